"""Targets: what each update steers to, by replaying every level on the periods that have ended.

A level (`models.levels`) can be tried on a past period without serving it: its lists follow from what was known before
the period, and the events are recorded. So each update tests all levels on the period that has just ended, pools the
results with those of earlier periods, and serves the level that the target prefers. Only past data decide.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.special import stdtrit

from fairstream.configuration import check_number
from fairstream.errors import ConfigurationError
from fairstream.evaluation.lists import PeriodTask, check_period_task
from fairstream.models import NO_LEVEL, Level
from fairstream.models.levels import ALONE
from fairstream.strategies.replay import ONE_SIDED, SIGNIFICANCE, PeriodReplay, PooledReplay
from fairstream.strategies.strategy import Memory
from fairstream.text import number, percent

N_POOLED: Final = 8  # the latest periods are pooled


class Decision(NamedTuple):
    """The level that a target chooses after a period, and why."""

    level: Level
    sentence: str
    memory: Memory  # what the next decision needs: JSON values
    is_met: bool | None = None  # whether the chosen level meets the requested gap on past periods; None: none requested


class _Target(ABC):
    task: PeriodTask
    metric: str

    def decide(self, memory: Memory, period: PeriodReplay) -> Decision:
        """Choose the level to serve, from this period and those in `memory` with the same task and metric."""
        judged_by = {"task": self.task, "metric": self.metric}
        past = memory["periods"] if judged_by.items() <= memory.items() else ()
        periods = [*map(PeriodReplay.from_json, past), period][-N_POOLED:]
        stored = {**judged_by, "periods": [each.to_json() for each in periods]}
        pooled = PooledReplay.of(periods)
        if pooled is None:
            return Decision(NO_LEVEL, f"no level: {_TOO_FEW}", stored)
        at, sentence, is_met = self._choose(pooled)
        return Decision(pooled.levels[at], sentence, stored, is_met)

    @abstractmethod
    def _choose(self, pooled: PooledReplay) -> tuple[int, str, bool | None]:
        """The place of the level to serve, why, and whether it meets the requested gap."""


@dataclass(frozen=True)
class LeastRegret(_Target):
    """Serve the level with the smallest largest regret, as long as no group loses more than is allowed.

    Each update replays all levels on the periods that have ended. A level is served if the group that it raises gains
    by more than chance (`PooledReplay.raises_its_group`), no group loses more than `max_group_loss`, and everyone
    together does not lose by more than chance. Of these the one with the smallest largest regret is served. Without
    such evidence nothing changes.

    Parameters
    ----------
    max_group_loss
        The largest share of its quality that any group may lose on past periods.
    task
        The lists to replay: "next", one for the period just ended; "event", one at each of its events; "moment", one
        for simultaneous events of a user.
    metric
        NAME@K.

    Examples
    --------
    >>> LeastRegret()
    LeastRegret(max_group_loss=0.02, task='next', metric='ndcg@20')

    """

    max_group_loss: float = 0.02
    task: PeriodTask = "next"
    metric: str = "ndcg@20"

    def __post_init__(self) -> None:
        check_number("max_group_loss", self.max_group_loss, least=0, below=1)
        check_period_task(self.task)

    def _choose(self, pooled: PooledReplay) -> tuple[int, str, bool | None]:
        n_periods = _periods(pooled.n_periods)
        regret = pooled.regret().max(axis=0)  # (L,)
        floor = -self.max_group_loss * pooled.mean[:, None]
        overall = pooled.everyone - pooled.everyone[0]
        is_allowed = (pooled.change >= floor).all(axis=0) & (overall >= -ONE_SIDED * pooled.everyone_se)
        is_proven = pooled.raises_its_group()
        is_better = is_allowed & is_proven & (regret < regret[0])
        if not is_better.any():
            why = "none of them raises a group by more than chance"
            if (is_proven & (regret < regret[0])).any():
                loss = percent(self.max_group_loss)
                why = f"each that raises a group by more than chance costs another more than {loss}, or everyone"
            return 0, f"no level: of {len(pooled.levels) - 1} tried on {n_periods}, {why}", None
        best = int(np.flatnonzero(is_better)[np.argmin(regret[is_better])])
        return best, f"{_served(pooled.levels[best])}: on {n_periods} that gave {pooled.sentence_on(best)}", None


@dataclass(frozen=True)
class MaxGap(_Target):
    """Keep every group's gap to the rest at or below a limit, at the lowest cost.

    Each update replays all levels on the periods that have ended and serves, of those at which no group is further
    behind than `gap`, the one with the highest quality overall. If no level does that, a note says so, with the
    smallest gap that some level reaches and who would pay for it, and nothing changes. A gap that may be chance changes
    nothing either.

    Parameters
    ----------
    gap
        The largest accepted gap between a group and the rest, in `metric`.
    task
        The lists to replay: "next", one for the period just ended; "event", one at each of its events; "moment", one
        for simultaneous events of a user.
    metric
        NAME@K.

    Examples
    --------
    >>> MaxGap(0.02)
    MaxGap(gap=0.02, task='next', metric='ndcg@20')

    """

    gap: float
    task: PeriodTask = "next"
    metric: str = "ndcg@20"

    def __post_init__(self) -> None:
        check_number("gap", self.gap, above=0, below=1)
        check_period_task(self.task)

    def _choose(self, pooled: PooledReplay) -> tuple[int, str, bool | None]:
        gaps, n_periods = pooled.gaps, _periods(pooled.n_periods)
        largest = gaps.max(axis=0)  # (L,)
        last = int(np.argmax(gaps[:, 0]))
        where = f"{pooled.names[last]} is {number(float(gaps[last, 0]))} behind the rest on {n_periods}"
        if largest[0] <= self.gap:
            return 0, f"no level: {where}, and {self.gap:g} is accepted", True
        # One test for each group that may be behind; Student's t, because groups may be small.
        t = float(stdtrit(pooled.n_users.min() * pooled.n_periods - 1, 1 - SIGNIFICANCE / len(pooled.names)))
        if gaps[last, 0] < t * pooled.gap_se[last]:
            return 0, f"no level: {where}, which may be chance", None
        is_held = largest <= self.gap
        if not is_held.any():  # within the standard error of what the level changes
            is_held = (gaps - pooled.se.max(axis=0) <= self.gap).all(axis=0)
            is_held &= largest == largest[is_held].min(initial=math.inf)
        if is_held.any():
            best = int(np.flatnonzero(is_held)[np.argmax(pooled.everyone[is_held])])
            sentence = (
                f"{_served(pooled.levels[best])}: {where}, and that level gave a gap of {number(float(largest[best]))} "
                f"there ({self.gap:g} is accepted) and {pooled.sentence_on(best)}"
            )
            return best, sentence, True
        least = int(np.argmin(largest))
        value = pooled.value.max(axis=1)
        rest = np.delete(pooled.n_users, last) @ np.delete(value, last) / np.delete(pooled.n_users, last).sum()
        smallest = "none makes the gap smaller"
        if least:
            which = f"{number(float(largest[least]))}, at {pooled.levels[least]}"
            smallest = f"the smallest gap is {which}, which gave {pooled.sentence_on(least)}"
        sentence = (
            f"no level: {where}, and no level reaches {self.gap:g}; {smallest}; "
            f"{number(float(rest - value[last]))} remains when each group gets its best level; accept more with MaxGap "
            f"(--max-gap), or leave the target out"
        )
        return 0, sentence, False


Target = LeastRegret | MaxGap
TARGETS: Final[Mapping[str, type[LeastRegret] | type[MaxGap]]] = {"least-regret": LeastRegret, "max-gap": MaxGap}
_TOO_FEW: Final = "too few users of two groups were tested in the period that has ended"


def target_named(target: Any) -> Target | None:
    """Return a target: the object itself, or the one of a name.

    >>> target_named("least-regret")
    LeastRegret(max_group_loss=0.02, task='next', metric='ndcg@20')
    """
    if target is None or isinstance(target, LeastRegret | MaxGap):
        return target
    if target == "least-regret":
        return LeastRegret()
    raise ConfigurationError(
        f"target must be fairstream.LeastRegret(…), fairstream.MaxGap(…), 'least-regret' or None, got {target!r}"
    )


def _served(level: Level) -> str:
    times = "alone count" if level.weight >= ALONE else f"count {level.weight:g} times"
    return f"events of {level.group} {times} in popularity"


def _periods(n: int) -> str:
    return "the period that has ended" if n == 1 else f"the last {n} periods"
