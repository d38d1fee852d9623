"""How a workspace reports groups: numbers with margins, gaps with one sign, or the reason for withholding them.

It reads what updates have stored (see `privacy`). Every workspace command imports it, so it imports nothing large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any, Final

from fairstream.text import MISSING, number, percent

TOO_FEW: Final = "too few people to report"
IN_REPLAY: Final = "numbers of groups follow when the imported history has been replayed"
TOO_NOISY: Final = "too few people for the privacy noise"
SERVED_TASK: Final = "event"  # the service makes a list for each event, so its models are judged by such lists
_SIGNIFICANCE = 0.05
_N_TREND, _TREND = 10, 1.96  # periods, and the size of the test's statistic


@dataclass(frozen=True)
class Gap:
    """The largest gap between a group and everybody else."""

    group: str
    value: float  # its size
    interval: tuple[float, float] | None  # the 95 % interval of its size, which the privacy noise is part of
    is_behind: bool
    p_value: float | None

    @property
    def may_be_chance(self) -> bool:
        """Whether groups that are served equally could have it, by chance and by the privacy noise."""
        holds_zero = self.interval is not None and self.interval[0] <= 0
        return holds_zero or (self.p_value is not None and self.p_value >= _SIGNIFICANCE)

    @property
    def margin(self) -> float | None:
        """How far the interval goes beyond the size."""
        return None if self.interval is None else self.interval[1] - self.value

    @property
    def size(self) -> str:
        return with_margin(self.value, self.interval)

    @property
    def side(self) -> str:
        """Where the group is, or that nobody can tell."""
        return "may be chance" if self.may_be_chance else f"{self.group} {'behind' if self.is_behind else 'ahead'}"

    @property
    def words(self) -> str:
        """Who is how far behind or ahead; where it may be chance nobody is named.

        >>> print(Gap("F", 0.05, (0.02, 0.08), True, 0.01).words)
        the group “F” is 0.050 ± 0.030 behind everyone else
        >>> print(Gap("F", 0.02, (0.0, 0.05), True, 0.2).words)
        the largest gap between a group and everyone else is 0.020 ± 0.030, which may be chance
        """
        if self.may_be_chance:
            return f"the largest gap between a group and everyone else is {self.size}, which may be chance"
        return f"the group “{self.group}” is {self.size} {'behind' if self.is_behind else 'ahead of'} everyone else"


def score_in(evaluation: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """NDCG of everyone and of the groups in what is stored of an evaluation; empty where there is none."""
    metrics: Mapping[str, Any] = (evaluation or {}).get("metrics") or {}
    return next((score for name, score in metrics.items() if name.startswith("ndcg@")), {})


def gap_in(score: Mapping[str, Any]) -> Gap | None:
    """The largest gap with its interval; of two groups, whose gaps are the same, that of the one behind.

    >>> behind = {"value": -0.04, "interval": [-0.07, 0.01]}
    >>> gap_in({"gaps": {"b": behind}, "largest_gap": {"group": "b", "value": 0.04}})
    Gap(group='b', value=0.04, interval=(0.0, 0.07), is_behind=True, p_value=None)
    """
    largest, gaps = score.get("largest_gap") or {}, score.get("gaps") or {}
    if largest.get("group") is None or largest.get("value") is None:
        return None
    behind = [name for name, gap in gaps.items() if gap["value"] < 0]
    name = behind[0] if len(gaps) == 2 and len(behind) == 1 else largest["group"]
    interval = largest.get("interval")
    if interval is None and (ends := gaps.get(name, {}).get("interval")) is not None:
        interval = sorted(end if gaps[name]["value"] >= 0 else -end for end in ends)
    ends = None if interval is None else (max(0.0, interval[0]), interval[1])
    return Gap(name, largest["value"], ends, name in behind, largest.get("p_value"))


def why_no_gap(evaluation: Mapping[str, Any]) -> str:
    """Why an evaluation with groups has no gap."""
    reasons = set((evaluation.get("withheld") or {}).values())
    return next(iter(reasons - {TOO_FEW}), TOO_FEW if reasons else TOO_NOISY)


def latest_gap(periods: Iterable[Any]) -> tuple[Any, Gap] | tuple[None, None]:
    """Return the last of some periods whose evaluation has a gap, and that gap: not every period has."""
    found = [(period, gap) for period in periods if (gap := gap_in(score_in(period.evaluation))) is not None]
    return found[-1] if found else (None, None)


def level_of(evaluation: Mapping[str, Any] | None, group: str) -> str:
    """A group's mean with its margin, or why it is withheld."""
    level = ((evaluation or {}).get("levels") or {}).get(group)
    if level is None:
        return str(((evaluation or {}).get("withheld") or {}).get(group, TOO_FEW))
    return with_margin(*level)


def gap_of(score: Mapping[str, Any], group: str) -> str:
    """A group's gap to everyone else, as `gap_in` tells it of the largest one.

    >>> score = {"gaps": {"a": {"value": 0.06, "interval": [0.04, 0.08]}, "b": {"value": -0.06}}}
    >>> gap_of(score, "a"), gap_of(score, "c")
    ('0.060 ± 0.020 ahead', '–')
    """
    largest, gap = gap_in(score), (score.get("gaps") or {}).get(group)
    if gap is None:
        return MISSING
    ends = gap.get("interval")
    if ends is not None and gap["value"] < 0:
        ends = (-ends[1], -ends[0])
    own = Gap(group, abs(gap["value"]), ends and (max(0.0, ends[0]), ends[1]), gap["value"] < 0, gap.get("p_value"))
    own = largest if largest is not None and largest.group == group else own
    return f"{own.size}, may be chance" if own.may_be_chance else f"{own.size} {'behind' if own.is_behind else 'ahead'}"


def regret_of(control: Mapping[str, Any] | None, group: str) -> str:
    """A group's regret with its interval, or why it is withheld.

    >>> regret_of({"regret": {"F": [0.123, [0.05, 0.2]]}, "withheld": {"M": TOO_FEW}}, "F")
    '12.3 % (5.0 % to 20.0 %)'
    """
    if control is None:
        return MISSING
    if (regret := control["regret"].get(group)) is None:
        return str(control["withheld"].get(group, MISSING))
    value, (low, high) = regret
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def falling(means: Sequence[float | None]) -> str | None:
    """A sentence if the quality has fallen over the last ten periods by more than chance (Mann and Kendall's test).

    >>> print(falling([0.30, 0.31, 0.27, 0.26, 0.24, 0.22]))
    Quality is falling: from 0.300 to 0.220 over the last 6 periods.
    >>> falling([0.30, 0.31, 0.27, 0.28, 0.30, 0.29])
    """
    latest = [mean for mean in means if mean is not None][-_N_TREND:]
    n, steps = len(latest), list(combinations(latest, 2))
    score = sum((after > before) - (after < before) for before, after in steps)
    if score + 1 > -_TREND * math.sqrt(n * (n - 1) * (2 * n + 5) / 18) or latest[-1] >= latest[0]:
        return None
    return f"Quality is falling: from {number(latest[0], 3)} to {number(latest[-1], 3)} over the last {n} periods."


def with_margin(value: float, interval: tuple[float, float] | None) -> str:
    """A number of groups with half of its interval.

    >>> with_margin(-0.02, (-0.05, 0.01))
    '−0.020 ± 0.030'
    """
    return number(value, 3) + ("" if interval is None else f" ± {number(interval[1] - value, 3)}")


def too_early(when: int) -> str:
    """Why numbers wait: `when`, in microseconds, the privacy budget will allow them."""
    day = datetime.fromtimestamp(when / 1e6, UTC) + timedelta(days=1)
    return f"too few people were tested yet; the privacy budget allows numbers of groups from about {day:%Y-%m-%d} on"


def noise_words(epsilon: Any) -> str | None:
    """What readers of groups' numbers must know; None where there is no noise."""
    if epsilon == "off":
        return None
    return (
        f"Numbers of groups carry noise on purpose, for privacy (epsilon = {epsilon:g} a quarter); ± is half of a 95 % "
        f"interval, the noise included."
    )
