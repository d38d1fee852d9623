"""How a workspace reports groups: numbers with margins, gaps with one sign, or the reason for withholding them.

It reads what updates have stored (see `privacy`). Every workspace command imports it, so it imports nothing large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from fairstream.text import MISSING, number, percent

TOO_FEW: Final = "too few people to report"
IN_REPLAY: Final = "numbers of groups follow when the imported history has been replayed"
TOO_NOISY: Final = "too few people for the privacy noise"
SERVED_TASK: Final = "event"  # the service makes a list for each event, so its models are judged by such lists
_N_TREND, _TREND = 10, 1.96  # periods, and the size of the test's statistic


@dataclass(frozen=True)
class Gap:
    """The gap between a group and everybody else."""

    group: str
    value: float  # its size
    interval: tuple[float, float]  # the 95 % interval of its size, which includes the privacy noise
    is_behind: bool

    @property
    def may_be_chance(self) -> bool:
        """Whether equally served groups could have it, by chance and by the privacy noise."""
        return self.interval[0] <= 0

    @property
    def margin(self) -> float:
        """How far the interval goes beyond the size."""
        return self.interval[1] - self.value

    @property
    def size(self) -> str:
        return with_margin(self.value, self.interval)

    @property
    def side(self) -> str:
        """Where the group is, or that nobody can tell."""
        return "may be chance" if self.may_be_chance else f"{self.group} {'behind' if self.is_behind else 'ahead'}"

    @property
    def words(self) -> str:
        """Which group is how far behind or ahead; a gap that may be chance names none.

        >>> print(Gap("F", 0.05, (0.02, 0.08), True).words)
        the group “F” is 0.050 ± 0.030 behind everyone else
        >>> print(Gap("F", 0.02, (0.0, 0.05), True).words)
        the largest gap between a group and everyone else is 0.020 ± 0.030, which may be chance
        """
        if self.may_be_chance:
            return f"the largest gap between a group and everyone else is {self.size}, which may be chance"
        return f"the group “{self.group}” is {self.size} {'behind' if self.is_behind else 'ahead of'} everyone else"


def score_in(evaluation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """NDCG of everyone and of the groups in a stored evaluation; empty if there is none."""
    metrics: Mapping[str, Any] = (evaluation or {}).get("metrics") or {}
    return next((score for name, score in metrics.items() if name.startswith("ndcg@")), {})


def gap_in(score: Mapping[str, Any]) -> Gap | None:
    """The largest gap; of two groups, whose gaps have the same size, that of the one behind.

    >>> gaps = {"a": {"value": 0.04}, "b": {"value": -0.04}}
    >>> gap_in({"gaps": gaps, "largest_gap": {"group": "a", "value": 0.04, "interval": [-0.01, 0.07]}})
    Gap(group='b', value=0.04, interval=(0.0, 0.07), is_behind=True)
    """
    largest, gaps = score.get("largest_gap"), score.get("gaps", {})
    if not largest:
        return None
    behind = [name for name, gap in gaps.items() if gap["value"] < 0]
    name = behind[0] if len(gaps) == 2 and len(behind) == 1 else largest["group"]
    low, high = largest["interval"]
    return Gap(name, largest["value"], (max(0.0, low), high), name in behind)


def why_no_gap(evaluation: Mapping[str, Any]) -> str:
    """Why an evaluation with groups has no gap."""
    reasons = set((evaluation.get("withheld") or {}).values())
    return next(iter(reasons - {TOO_FEW}), TOO_FEW if reasons else TOO_NOISY)


def latest_gap(periods: Iterable[Any]) -> tuple[Any, Gap] | tuple[None, None]:
    """The latest period whose evaluation has a gap, and that gap: not every period has one."""
    gaps = [(period, gap) for period in periods if (gap := gap_in(score_in(period.evaluation))) is not None]
    return gaps[-1] if gaps else (None, None)


def level_of(evaluation: Mapping[str, Any] | None, group: str) -> str:
    """A group's mean with its margin, or why it is withheld."""
    evaluation = evaluation or {}
    if (level := evaluation.get("levels", {}).get(group)) is None:
        return str(evaluation.get("withheld", {}).get(group, TOO_FEW))
    return with_margin(*level)


def gap_of(score: Mapping[str, Any], group: str) -> str:
    """A group's gap to everyone else.

    >>> score = {"gaps": {"a": {"value": -0.06, "interval": [-0.08, -0.04]}}}
    >>> gap_of(score, "a"), gap_of(score, "c")
    ('0.060 ± 0.020 behind', '–')
    """
    own, gap = gap_in(score), score.get("gaps", {}).get(group)
    if gap is None:
        return MISSING
    if own is None or own.group != group:  # the interval of the largest gap allows for the comparison of all groups
        low, high = gap["interval"] if gap["value"] >= 0 else (-end for end in reversed(gap["interval"]))
        own = Gap(group, abs(gap["value"]), (max(0.0, low), high), gap["value"] < 0)
    return f"{own.size}, may be chance" if own.may_be_chance else f"{own.size} {'behind' if own.is_behind else 'ahead'}"


def share_of(published: Mapping[str, Any] | None, what: str, group: str) -> str:
    """A group's regret, or its share of people who clicked, with the interval; or why it is withheld.

    >>> share_of({"regret": {"F": [0.123, [0.05, 0.2]]}, "withheld": {"M": TOO_FEW}}, "regret", "F")
    '12.3 % (5.0 % to 20.0 %)'
    """
    if published is None:
        return MISSING
    if (share := published[what].get(group)) is None:
        return str(published["withheld"].get(group, MISSING))
    value, (low, high) = share
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def falling(means: Sequence[float | None]) -> str | None:
    """A sentence if the quality has fallen over the last ten periods by more than chance (Mann and Kendall's test).

    >>> print(falling([0.30, 0.31, 0.27, 0.26, 0.24, 0.22]))
    Quality is falling: from 0.300 to 0.220 over the last 6 periods.
    >>> falling([0.30, 0.31, 0.27, 0.28, 0.30, 0.29])
    """
    latest = [mean for mean in means if mean is not None][-_N_TREND:]
    n = len(latest)
    score = sum((after > before) - (after < before) for before, after in combinations(latest, 2))
    if score + 1 > -_TREND * math.sqrt(n * (n - 1) * (2 * n + 5) / 18) or latest[-1] >= latest[0]:
        return None
    return f"Quality is falling: from {number(latest[0], 3)} to {number(latest[-1], 3)} over the last {n} periods."


def with_margin(value: float, interval: tuple[float, float]) -> str:
    """A number of groups with half of its interval.

    >>> with_margin(-0.02, (-0.05, 0.01))
    '−0.020 ± 0.030'
    """
    return f"{number(value, 3)} ± {number(interval[1] - value, 3)}"


def noise_words(epsilon: Any) -> str | None:
    """What readers of groups' numbers must know; None if they have no noise."""
    if epsilon == "off":
        return None
    return (
        f"Numbers of groups carry noise on purpose, for privacy (epsilon = {epsilon:g} a quarter); ± is half of a 95 % "
        f"interval, which includes the noise."
    )
