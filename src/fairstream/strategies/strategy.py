"""A strategy decides, period by period, what the next model is trained on and where it starts from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fairstream.data import Groups, History, Rows
from fairstream.data.history import Floats, Positions
from fairstream.errors import ConfigurationError
from fairstream.randomness import Randomness
from fairstream.registry import Registry
from fairstream.training import ExtraLoss, TrainingReport

Memory = Mapping[str, Any]
"""What a strategy remembers from one period to the next: JSON values."""


@dataclass(frozen=True)
class Plan:
    """What to do with a new period. Keep, retrain and fine-tune are three plans; see `Strategy`.

    Parameters
    ----------
    start
        "current": continue from the model in service; "fresh": from new weights.
    events
        Positions (in the history) of the events to learn, ascending; None: learn nothing.
    epochs
        How many; by default `update_epochs` from the current model, `pretrain_epochs` from a fresh one.
    shuffle
        New order and new negatives every epoch; by default only from a fresh model.
    extra_loss
        Added to the loss of every batch.
    memory
        What the next call of `Strategy.plan` finds in `Period.memory`.
    name
        What reports call it.
    reason
        Why this plan, in one sentence, for the notes of the update.

    """

    start: Literal["current", "fresh"] = "current"
    events: Positions | None = None
    epochs: int | None = None
    shuffle: bool | None = None
    extra_loss: ExtraLoss | None = None
    memory: Memory = field(default_factory=dict)
    name: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.start not in ("current", "fresh"):
            raise ConfigurationError(f"a plan starts from 'current' or 'fresh', got {self.start!r}")
        if self.start == "fresh" and self.events is None:
            raise ConfigurationError("a plan that starts from fresh weights must name the events to learn")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigurationError(f"a plan has at least one epoch, got {self.epochs}")
        if self.events is not None and not (isinstance(self.events, range) and self.events.step == 1):
            events = np.asarray(self.events)
            if len(events) and (events.dtype.kind not in "iu" or (np.diff(events) < 1).any()):
                raise ConfigurationError(
                    "a plan names events by their positions in the history, whole numbers in ascending order, each once"
                )
            object.__setattr__(self, "events", events.astype(np.int64))

    @property
    def step(self) -> str:
        """The name, or what the plan amounts to."""
        if self.name:
            return self.name
        return "keep" if self.events is None else "retrain" if self.start == "fresh" else "fine-tune"

    @classmethod
    def keep(cls) -> Plan:
        """Leave the model as it is."""
        return cls(name="keep")

    @classmethod
    def retrain(cls, period: Period) -> Plan:
        """Start from fresh weights with D_0 ∪ … ∪ D_t."""
        return cls(start="fresh", events=period.all, name="retrain")

    @classmethod
    def fine_tune(cls, period: Period) -> Plan:
        """Continue from W_{t−1} with D_t alone   (Section 3.2)."""
        return cls(events=period.new, name="fine-tune")

    def remembering(self, **memory: Any) -> Plan:
        """The same plan with something to remember."""
        return replace(self, memory=memory)

    def because(self, reason: str) -> Plan:
        """The same plan with the reason for it."""
        return replace(self, reason=reason)


class UserQuality(NamedTuple):
    """How W_{t−1} did on D_t before learning it, user by user: of the users whom it knew."""

    users: Rows
    """(U,) rows, ascending."""
    values: Floats
    """(U,) the NDCG of a list for the whole period."""
    reference: Floats
    """(U,) that of recent popularity, which says how hard the period was."""
    groups: Groups
    """Of all users so far."""


@dataclass(frozen=True, eq=False)
class Period:
    """What a strategy knows when period t has come in."""

    t: int
    history: History
    """All events, those of the new period included."""
    new: Positions
    """The events that have not been learned yet."""
    quality: float | None
    """How W_{t−1} did on D_t before learning it (NDCG of the users it could score), where it was measured."""
    memory: Memory
    """What the last plan said to remember."""
    randomness: Randomness = field(default_factory=lambda: Randomness(0))
    tested: UserQuality | None = None
    """The same user by user, where it was measured."""

    @property
    def all(self) -> Positions:
        """Every event so far."""
        return range(len(self.history))

    def last(self, n: int) -> Positions:
        """The events of the last n periods, this one included."""
        ends = self.history.ends
        return range(ends[-n - 1] if len(ends) > n else 0, len(self.history))

    def sample(self, n: int) -> Positions:
        """N events drawn at random, without replacement, from those before this period."""
        n_before = len(self.history) - len(self.new)
        past = np.setdiff1d(np.arange(len(self.history)), np.asarray(self.new, dtype=np.int64), assume_unique=True)
        rng = self.randomness.numpy("replay", self.t)
        return np.sort(rng.choice(past, size=min(n, n_before), replace=False))


class Strategy(ABC):
    """Makes the plan of each period. Strategies are stateless: what they remember is in the plan.

    Examples
    --------
    >>> class LastFour(Strategy):
    ...     def plan(self, period):
    ...         return Plan(events=period.last(4), epochs=3)

    """

    needs_quality: bool = False
    """Whether `Period.quality` and `Period.tested` must be measured before each update."""

    @abstractmethod
    def plan(self, period: Period) -> Plan:
        """The plan for the period that has just come in."""

    def after(self, plan: Plan, report: TrainingReport | None) -> Memory:
        """What to remember once a plan has been carried out: by default what it says.

        `report` tells how training went; None where nothing was trained by gradient descent.
        """
        return plan.memory

    def forget(self, memory: Memory, users: Rows) -> Memory:
        """What is remembered without these users, whose rows the later ones move up to: by default all of it.

        Only a strategy that remembers something about single users has to forget it.
        """
        return memory


class Keep(Strategy):
    """Pre-train once, never update."""

    def plan(self, period: Period) -> Plan:
        return Plan.keep()


class Retrain(Strategy):
    """Retrain from scratch on everything, every period."""

    def plan(self, period: Period) -> Plan:
        return Plan.retrain(period)


class FineTune(Strategy):
    """Fine-tune on the new period alone, every period   (Section 3.2)."""

    def plan(self, period: Period) -> Plan:
        return Plan.fine_tune(period)


class RestartOnNew(Strategy):
    """Start from fresh weights with the new events alone: for a world that is another one.

    What was learned before is lost; what users have had is known as before.
    """

    def plan(self, period: Period) -> Plan:
        return Plan(start="fresh", events=period.new, name="restart on new events")


class SlidingWindow(Strategy):
    """Fine-tune on the last n periods, every period: less forgetting, n times the work."""

    def __init__(self, n_periods: int = 3) -> None:
        if n_periods < 1:
            raise ConfigurationError(f"a window has at least one period, got {n_periods}")
        self.n_periods = n_periods

    def plan(self, period: Period) -> Plan:
        return Plan(events=period.last(self.n_periods), name="window")


class Replay(Strategy):
    """Fine-tune on the new period together with a random sample of the past (experience replay)."""

    def __init__(self, share: float = 0.5) -> None:
        if not share >= 0:
            raise ConfigurationError(f"the share of replayed events must be 0 or more, got {share}")
        self.share = share
        """Past events per new event."""

    def plan(self, period: Period) -> Plan:
        past = period.sample(round(self.share * len(period.new)))
        return Plan(events=np.union1d(past, np.asarray(period.new, dtype=np.int64)), name="replay")


STRATEGIES: Registry[type[Strategy] | Strategy] = Registry("strategy")
"""Strategies by name: objects, or classes that need no arguments."""
for _name, _strategy in {
    "keep": Keep,
    "retrain": Retrain,
    "fine-tune": FineTune,
    "window": SlidingWindow,
    "replay": Replay,
}.items():
    STRATEGIES.register(_name, _strategy)
