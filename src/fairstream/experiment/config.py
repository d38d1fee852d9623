"""Everything that decides a run's numbers, in one frozen object."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from fairstream.evaluation import Protocol
from fairstream.methods import MethodConfig
from fairstream.training import Surroundings


class RunConfig(MethodConfig, Surroundings):
    """A method, a protocol, how the log is cut, and where it runs.

    >>> RunConfig().optimizer, RunConfig(protocol="paper").optimizer
    ('row', 'dense')
    """

    protocol: Protocol = "strict"
    """strict: point in time, full ranking, true NDCG; paper: what produced the published numbers."""
    pretrain_ratio: float | None = Field(None, gt=0, lt=1)
    """Share of the events to pre-train on; by default 0.6, and 0.7 for ModCloth, as in the paper."""
    n_periods: int = Field(7, ge=2)
    """T, the periods used after pre-training; the last one is only tested on."""
    n_blocks: int = Field(10, ge=1)
    """Equal blocks that the events after the pre-training data are cut in; the first T are the periods."""
    k: int = Field(20, ge=1)
    """Length of the recommended list that is judged."""

    @model_validator(mode="before")
    @classmethod
    def _optimizer_by_protocol(cls, given: Any) -> Any:
        """The paper's protocol uses the paper's optimizer, unless another one is asked for."""
        if isinstance(given, dict) and given.get("protocol") == "paper" and given.get("optimizer") is None:
            return {**given, "optimizer": "dense"}
        return given

    @model_validator(mode="after")
    def _periods_fit(self) -> Self:
        if self.n_periods > self.n_blocks:
            raise ValueError(f"n_periods must be at most n_blocks, {self.n_blocks}, got {self.n_periods}")
        return self
