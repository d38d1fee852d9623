"""Strategies: for each period, what the next model is trained on and where training starts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from fairstream.configuration import check_number
from fairstream.data import Groups, History, Rows
from fairstream.data.history import Floats, Positions
from fairstream.errors import ConfigurationError
from fairstream.randomness import Randomness
from fairstream.registry import Registry
from fairstream.training import ExtraLoss, TrainingReport

Memory = Mapping[str, Any]  # what a strategy remembers from one period to the next: JSON values


@dataclass(frozen=True)
class Plan:
    """What an update does with a new period; see `Strategy`.

    Parameters
    ----------
    start
        "current": continue from the serving model; "fresh": start from new weights.
    events
        Positions (in the history) of the events to learn, ascending; None: learn nothing.
    epochs
        How many; by default those of an update from the current model, `pretrain_epochs` from a fresh one.
    shuffle
        Whether every epoch has a new order and new negatives; by default only from a fresh model.
    extra_loss
        Added to the loss of every batch.
    memory
        The next call of `Strategy.plan` finds it in `Period.memory`.
    name
        The name in reports.
    reason
        One sentence for the notes of the update.

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
        if self.epochs is not None:
            check_number("the epochs of a plan", self.epochs, least=1, whole=True)
        if self.events is not None and not (isinstance(self.events, range) and self.events.step == 1):
            events = np.asarray(self.events)
            if len(events) and (events.dtype.kind not in "iu" or (np.diff(events) < 1).any()):
                raise ConfigurationError(
                    "a plan names events by their positions in the history, whole numbers in ascending order, each once"
                )
            object.__setattr__(self, "events", events.astype(np.int64))

    @property
    def step(self) -> str:
        """The name, by default from what the plan does."""
        return self.name or ("keep" if self.events is None else "retrain" if self.start == "fresh" else "fine-tune")

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
        """Return the same plan with this memory."""
        return replace(self, memory=memory)

    def because(self, reason: str) -> Plan:
        """Return the same plan with this reason."""
        return replace(self, reason=reason)


class UserQuality(NamedTuple):
    """How W_{t−1} did on D_t before learning it, for each user that it knew."""

    users: Rows  # (U,) rows, ascending
    values: Floats  # (U,) the NDCG of a list for the whole period
    reference: Floats  # (U,) that of recent popularity, which measures how hard the period was
    groups: Groups  # of all users so far


@dataclass(frozen=True, eq=False)
class Period:
    """What a strategy knows when period t has arrived."""

    t: int
    history: History
    """All events, those of the new period included."""
    new: Positions
    """The events to learn: those of this period, and earlier ones that were only observed."""
    quality: float | None
    """Mean NDCG of W_{t−1} on D_t before learning it, over users it could score; None if it was not measured."""
    memory: Memory
    """The memory of the last plan."""
    randomness: Randomness = field(default_factory=lambda: Randomness(0))
    tested: UserQuality | None = None
    """The same for each user, if it was measured."""

    @property
    def all(self) -> Positions:
        """Every event so far."""
        return range(len(self.history))

    def last(self, n: int) -> Positions:
        """Return the events of the last n periods, this one included."""
        ends = self.history.ends
        return range(ends[-n - 1] if len(ends) > n else 0, len(self.history))

    def sample(self, n: int) -> Positions:
        """Draw n events at random, without replacement, from those before this period."""
        past = np.setdiff1d(np.arange(len(self.history)), np.asarray(self.new, dtype=np.int64), assume_unique=True)
        rng = self.randomness.numpy("replay", self.t)
        return np.sort(rng.choice(past, size=min(n, len(past)), replace=False))


class Strategy(ABC):
    """Plans each update. Strategies are stateless: what they remember is in the plan.

    Examples
    --------
    >>> class LastFour(Strategy):
    ...     def plan(self, period):
    ...         return Plan(events=period.last(4), epochs=3)

    """

    needs_quality: ClassVar[bool] = False
    """Whether `Period.quality` and `Period.tested` must be measured before each update."""

    @abstractmethod
    def plan(self, period: Period) -> Plan:
        """Return the plan for the period that has just arrived."""

    def after(self, plan: Plan, report: TrainingReport | None) -> Memory:
        """Return the memory after training, by default the plan's; `report` is None without gradient descent."""
        return plan.memory

    def forget(self, memory: Memory, users: Rows) -> Memory:
        """Return the memory without these users, whose later rows move up; by default it holds no user."""
        return memory


class Keep(Strategy):
    """Pre-train once, never update."""

    def plan(self, period: Period) -> Plan:
        return Plan.keep()


class Retrain(Strategy):
    """Retrain from scratch on everything, every period."""

    def plan(self, period: Period) -> Plan:
        return Plan.retrain(period)


@dataclass(frozen=True)
class FineTune(Strategy):
    """Fine-tune on the new period alone, every period   (Section 3.2); retrain on everything on a schedule, if any.

    Fine-tuning forgets old distributions exponentially fast, but its learning error does not shrink as the history
    grows. A restart retrains on everything   (Section 3.1).

    Parameters
    ----------
    epochs, learning_rate
        Of each update; by default the model's own, else 10 and the learning rate of training.
    restart_every
        Retrain on all data every R-th period; None: never.

    Examples
    --------
    >>> FineTune(epochs=3, restart_every=10)
    FineTune(epochs=3, learning_rate=None, restart_every=10)

    """

    epochs: int | None = None
    learning_rate: float | None = None
    restart_every: int | None = None

    def __post_init__(self) -> None:
        check_update(self)
        if self.restart_every is not None:
            check_number("restart_every", self.restart_every, least=1, whole=True)

    def plan(self, period: Period) -> Plan:
        if self.restart_every is None:
            return Plan.fine_tune(period)
        since_restart = int(period.memory.get("since_restart", 0)) + 1
        reason = f"this is period {since_restart} of {self.restart_every} since the last restart"
        if since_restart < self.restart_every:
            return Plan.fine_tune(period).remembering(since_restart=since_restart).because(f"no restart: {reason}")
        return Plan.retrain(period).remembering(since_restart=0).because(f"restart: {reason}")


def check_update(strategy: Any) -> None:
    """Raise a ConfigurationError unless the epochs and the learning rate of updates are positive, or None."""
    if strategy.epochs is not None:
        check_number("epochs", strategy.epochs, least=1, whole=True)
    if strategy.learning_rate is not None:
        check_number("learning_rate", strategy.learning_rate, above=0)


class RestartOnNew(Strategy):
    """Start from fresh weights with the new events alone, after a complete change of the stream."""

    def plan(self, period: Period) -> Plan:
        return Plan(start="fresh", events=period.new, name="restart on new events")


@dataclass(frozen=True)
class SlidingWindow(Strategy):
    """Fine-tune on the last n periods, every period: less forgetting, n times the work."""

    n_periods: int = 3
    epochs: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_update(self)
        check_number("n_periods", self.n_periods, least=1, whole=True)

    def plan(self, period: Period) -> Plan:
        return Plan(events=period.last(self.n_periods), name="window")


@dataclass(frozen=True)
class Replay(Strategy):
    """Fine-tune on the new period together with a random sample of the past (experience replay)."""

    share: float = 0.5
    """Past events per new event."""
    epochs: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        check_update(self)
        check_number("share", self.share)

    def plan(self, period: Period) -> Plan:
        past = period.sample(round(self.share * len(period.new)))
        return Plan(events=np.union1d(past, np.asarray(period.new, dtype=np.int64)), name="replay")


STRATEGIES: Registry[type[Strategy] | Strategy] = Registry("strategy")
"""Strategies by name: objects, or classes that need no arguments."""
STRATEGIES.register("keep", Keep)
STRATEGIES.register("retrain", Retrain)
STRATEGIES.register("fine-tune", FineTune)
STRATEGIES.register("window", SlidingWindow)
STRATEGIES.register("replay", Replay)
