"""Everything that decides a run's numbers, in one frozen object."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from fairstream.evaluation import REPAIRS, Protocol, check_by_event
from fairstream.methods import METHODS, MethodConfig
from fairstream.periods import check_length
from fairstream.registry import load_plugins
from fairstream.training import RuntimeConfig

TASKS = ("event", "next", "remain")
"""The next event; Task-N: D_{t+1}; Task-R: everything after D_t   (the last two: Section 4.1 of the paper)."""
PAPER_TASKS = ("remain", "next")
_ROW_UPDATES = "optimizer"
"""The repair of the paper's protocol that is none of the evaluation: only the rows that a batch touches move."""


def evaluation_protocol(name: str) -> Protocol:
    """The evaluation protocol of a run's protocol, which may also repair the optimizer.

    >>> evaluation_protocol("paper+optimizer") == evaluation_protocol("paper")
    True
    """
    base, *repairs = name.split("+")
    try:
        return Protocol.named("+".join([base, *(r for r in repairs if base != "paper" or r != _ROW_UPDATES)]))
    except ValueError:
        raise ValueError(
            f"protocol must be strict, paper, or paper with repairs such as paper+ranking "
            f"(there are {', '.join((*REPAIRS, _ROW_UPDATES))}), got {name!r}"
        ) from None


class RunConfig(MethodConfig, RuntimeConfig):
    """A method, a protocol, how the log is cut, and where it runs.

    >>> RunConfig().model, RunConfig(protocol="paper").model, RunConfig(method="Adver").model
    ('blend', 'mf', 'mf')
    """

    model: str = "blend"
    """Base recommender: blend (sasrec, item-item and popularity, weighed by what the last period showed), mf (matrix \
factorisation), ncf (neural collaborative filtering), item-item (regression on the user's items in closed form), gru \
and sasrec (they read the user's latest items in order), popularity, recent-popularity, or a registered model; mf is \
the default under the paper's protocol and for Adver. Models have defaults of their own for some of the options \
below."""
    metrics: tuple[str, ...] = ()
    """Metrics to compute, as NAME@K; by default those of the protocol at k."""
    tasks: tuple[str, ...] = ()
    """What is evaluated after each update: event (at each event of the next period, from everything \
before it), next (one list a user for the next period), remain (for everything after it); by default all \
of them under strict, and next and remain under the paper's protocol and for methods that rerank."""
    plugins: tuple[str, ...] = ()
    """Modules, or .py files, that register models, losses, metrics and strategies of your own."""
    protocol: str = "strict"
    """strict: point in time, full ranking, true NDCG, newcomers included; paper: what produced the \
published numbers; paper+ranking and the like: the paper's with one thing repaired \
(leak, ranking, ndcg, cold-users, optimizer)."""
    pretrain_ratio: float | None = Field(None, gt=0, lt=1)
    """Share of the events to pre-train on; by default 0.6, and 0.7 for ModCloth, as in the paper."""
    pretrain_events: int | None = Field(None, ge=1)
    """Number of events to pre-train on, instead of a share: unlike a share, it does not depend on how \
many are still to come."""
    period: str | None = None
    """Length of a period: a number of events (5000), a share of them (4%) or a stretch of the \
calendar (6h, 1d, 1w, 1mo, 1y); by default one of the n_blocks."""
    n_periods: int | None = Field(None, ge=2)
    """T, the periods used after pre-training, the last one only tested on; by default 7, and with a \
period's length given as many as there are."""
    n_blocks: int = Field(10, ge=1)
    """Equal blocks that the events after the pre-training data are cut in; the first T are the periods."""
    k: int = Field(20, ge=1)
    """Length of the recommended list that is judged."""
    min_group_size: int = Field(20, ge=1)
    """A group with fewer tested users is too small to judge and set aside (under the paper's protocol \
none is)."""
    n_resamples: int = Field(1000, ge=0)
    """Bootstrap samples and permutations behind every interval and p-value; 0: none of them."""

    explain: bool = False
    """Also measure why each period differs from the one before, for `fairstream explain`: the last model is evaluated \
on the new period once more, and where something is done for fairness the update is made a second time without it."""

    @model_validator(mode="before")
    @classmethod
    def _import_plugins(cls, given: Any) -> Any:
        """Names are checked after this, so those that a plugin registers are known."""
        if isinstance(given, dict) and given.get("plugins"):
            load_plugins(tuple(given["plugins"]))
        return given

    @field_validator("metrics", mode="before")
    @classmethod
    def _one_or_several(cls, metrics: Any) -> Any:
        return (metrics,) if isinstance(metrics, str) else metrics

    @field_validator("protocol")
    @classmethod
    def _known_protocol(cls, name: str) -> str:
        evaluation_protocol(name)
        return name

    @field_validator("tasks", mode="before")
    @classmethod
    def _known_tasks(cls, names: Any) -> Any:
        names = (names,) if isinstance(names, str) else tuple(names)
        if unknown := [name for name in names if name not in TASKS]:
            raise ValueError(f"task must be one of {', '.join(TASKS)}, got {unknown[0]!r}")
        return tuple(dict.fromkeys(names))

    @field_validator("period")
    @classmethod
    def _known_length(cls, length: str | None) -> str | None:
        return None if length is None else check_length(length)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_protocol(cls, given: Any) -> Any:
        """The paper's protocol uses the paper's model and optimizer, unless others are asked for."""
        if not isinstance(given, dict):
            return given
        protocol = given.get("protocol")
        is_paper = isinstance(protocol, str) and protocol.startswith("paper")
        method = METHODS.get(str(given.get("method")))
        defaults: dict[str, Any] = {"model": "mf" if is_paper or (method and method.wrap_model) else "blend"}
        if is_paper:
            optimizer = "row" if _ROW_UPDATES in str(protocol).split("+") else "dense"
            defaults |= {"optimizer": optimizer, "min_group_size": 1}
        return {**defaults, **given}

    @property
    def resolved_tasks(self) -> tuple[str, ...]:
        """The tasks in force."""
        if self.tasks:
            return self.tasks
        return TASKS if self.protocol == "strict" and METHODS[self.method].reranker is None else PAPER_TASKS

    @property
    def explained_tasks(self) -> tuple[str, ...]:
        """The tasks whose changes are explained: those that are about one period."""
        return tuple(task for task in self.resolved_tasks if task != "remain") if self.explain else ()

    @model_validator(mode="after")
    def _something_to_explain(self) -> Self:
        if self.explain and not self.explained_tasks:
            raise ValueError("explain is about the tasks event and next; evaluate one of them, too")
        return self

    @model_validator(mode="after")
    def _events_fit(self) -> Self:
        if "event" in self.tasks:
            check_by_event(evaluation_protocol(self.protocol), reranks=METHODS[self.method].reranker is not None)
        return self

    @model_validator(mode="after")
    def _periods_fit(self) -> Self:
        if self.pretrain_events is not None and self.pretrain_ratio is not None:
            raise ValueError("pretrain_ratio and pretrain_events are two ways to say it; give one of them")
        if self.period is not None and self.protocol != "strict":
            raise ValueError("the paper's protocol cuts the log in n_blocks; period goes with strict")
        if self.period is None and self.n_periods is not None and self.n_periods > self.n_blocks:
            raise ValueError(f"n_periods must be at most n_blocks, {self.n_blocks}, got {self.n_periods}")
        for name in self.metrics:
            cutoff = name.rpartition("@")[2]
            if cutoff.isdecimal() and int(cutoff) > self.k:
                raise ValueError(f"k must be at least the cut-off of every metric, got {self.k} and {name}")
        return self
