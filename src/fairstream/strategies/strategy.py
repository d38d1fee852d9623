"""How W_{t−1} becomes W_t: a strategy decides the step, the learner takes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum


class Step(StrEnum):
    """What can be done with a new period."""

    KEEP = "keep"
    """Leave the model as it is."""
    RETRAIN = "retrain"
    """Start anew from D_0 ∪ … ∪ D_t."""
    FINE_TUNE = "fine-tune"
    """Go on from W_{t−1} with D_t alone."""


class Strategy(ABC):
    """Decides the step of each period, knowing at most how the model in service did on it."""

    needs_quality = False
    """Whether `next_step` must be told how W_{t−1} did on D_t before D_t was learned."""

    @abstractmethod
    def next_step(self, quality: float | None) -> Step:
        """The step for the period that has just come in."""

    def state(self) -> dict[str, float]:
        """What the next decision depends on; empty for strategies without memory."""
        return {}

    def restore(self, state: dict[str, float]) -> None:  # noqa: B027 (nothing to restore without memory)
        """Put back what `state` gave."""


class Keep(Strategy):
    """Pre-train once, never update."""

    def next_step(self, quality: float | None) -> Step:
        return Step.KEEP


class Retrain(Strategy):
    """Retrain from scratch on everything, every period."""

    def next_step(self, quality: float | None) -> Step:
        return Step.RETRAIN


class FineTune(Strategy):
    """Fine-tune on the new period alone, every period   (Section 3.2)."""

    def next_step(self, quality: float | None) -> Step:
        return Step.FINE_TUNE
