"""What each level of a fairness lever costs: quality against the gap between groups, and the level to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from fairstream.display import SIZE, Summary, Tabular, charts
from fairstream.errors import DataError
from fairstream.evaluation import (
    Estimate,
    GroupPanel,
    GroupScores,
    Interval,
    MetricAtK,
    Paired,
    UserResults,
    score_periods,
    stack_periods,
)
from fairstream.evaluation.resampling import Array
from fairstream.models import Task
from fairstream.randomness import Randomness
from fairstream.recommender.levers import LEVERS, LeverName
from fairstream.text import number, signed

MAX_LOSS: Final = 0.01
"""The share of the quality that may be lost where nothing else is asked for."""


@dataclass(frozen=True)
class FrontierLevel:
    """One value of the lever, and what it did on the tested periods of the past."""

    value: float
    """The value of the lever."""
    scores: GroupScores
    """The quality of everyone and of each group, averaged over the periods."""
    gap: Estimate
    """With two groups PD, the advantaged group's quality minus the other's; with more, how far `behind` is behind the
    rest, with a p-value that allows for several groups having been compared."""
    behind: str
    """The group that is furthest behind the rest."""
    quality_change: Interval
    """The quality of everyone minus that without the lever, on the same users."""
    gap_change: Interval
    """The gap minus that without the lever, on the same users."""
    seconds: float
    """Of an update, on average."""
    is_on_front: bool
    """Whether no other level has at least the quality and at most the gap, and is better in one of them."""

    @property
    def quality(self) -> float:
        """The mean over everyone."""
        assert self.scores.mean is not None  # nothing is compared without tested users
        return self.scores.mean

    @property
    def size(self) -> float:
        """The size of the gap."""
        return abs(self.gap.value)

    @property
    def size_interval(self) -> tuple[float, float]:
        """The interval of the gap, with the sign that makes the gap positive; it can reach below 0."""
        assert self.gap.interval is not None  # there is at least one resample
        low, high = self.gap.interval
        return (low, high) if self.gap.value >= 0 else (-high, -low)

    @property
    def loss(self) -> float:
        """The share of the quality that it costs; negative where it gains."""
        return -relative(self.quality_change.value, self.quality - self.quality_change.value)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "value": self.value,
            **self.scores.to_dict(),
            "gap": self.gap.to_dict(),
            "behind": self.behind,
            "quality_change": _as_json(self.quality_change),
            "gap_change": _as_json(self.gap_change),
            "seconds": self.seconds,
            "is_on_front": self.is_on_front,
        }


@dataclass(frozen=True, repr=False)
class Frontier(Tabular):
    """What each level of disparity would have cost on the past: the result of `FairRecommender.frontier`.

    Examples
    --------
    >>> from fairstream import FairRecommender, read_events, synthetic_stream
    >>> stream = synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=0)
    >>> log = read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    >>> frontier = FairRecommender("item-item", device="cpu").frontier(log, levels=[1, 2, 4], n_resamples=100)
    >>> [level.value for level in frontier.levels], frontier.lever
    ([1.0, 2.0, 4.0], 'group_weight')
    >>> sorted(frontier.setting)
    ['fairness_weight', 'group_weight']
    >>> frontier.to_arrow().column_names[:3]
    ['group_weight', 'ndcg@20', 'majority']

    """

    lever: LeverName
    metric: str
    task: Task
    attribute: str
    """What makes the groups."""
    groups: tuple[str, ...]
    """Their names, the advantaged one first."""
    raised: tuple[str, ...]
    """The groups that the lever is for: all but the advantaged one. None where `advantaged="auto"` finds them out."""
    n_users: int
    """Users tested."""
    period_ends: tuple[int, ...]
    """How many events there are up to the end of the pre-training data and of each period; the first of the periods
    is only learned from, the last only tested on."""
    levels: tuple[FrontierLevel, ...]
    """In ascending order of the values; `none` is the one that does nothing."""
    max_disparity: float | None
    """The gap that is accepted, if one was named."""
    max_loss: float | None
    """The share of the quality that may be lost for it, if one was named."""
    pretrain_seconds: float
    notes: tuple[str, ...] = ()
    """What is worth knowing about the log and the lever: one sentence each."""

    @property
    def none(self) -> FrontierLevel:
        """The level that does nothing."""
        return next(level for level in self.levels if level.value == LEVERS[self.lever].none)

    @property
    def recommended(self) -> FrontierLevel:
        """The level to choose.

        No lever where the gap without one is accepted, or cannot be told from chance. Else, of the levels whose gap is
        accepted, the one with the best quality; where there is none, or no accepted gap was named, the one with the
        smallest gap whose loss is at most `max_loss` (1 % unless named).
        """
        if self.none.gap.may_be_chance or self._is_within(self.none):
            return self.none
        within = [level for level in self._affordable(self.max_loss) if self._is_within(level)]
        if within:
            return max(within, key=lambda level: level.quality)
        least = self._affordable(MAX_LOSS if self.max_loss is None else self.max_loss)
        return min(least, key=lambda level: level.size)

    @property
    def setting(self) -> dict[str, float]:
        """The recommended level as options of `FairRecommender`: both levers, of which the other is off."""
        off: dict[str, float] = {name: lever.none for name, lever in LEVERS.items()}
        return {**off, self.lever: self.recommended.value}

    def verdicts(self) -> list[str]:
        """What was found and what is recommended, in words, with the intervals."""
        none, chosen = self.none, self.recommended
        chance = f", which chance alone may explain (p = {none.gap.p_value:.3f})" if none.gap.may_be_chance else ""
        verdicts = [f"Without a lever {_how_far(none)} in {self.metric}{chance}."]
        if none.gap.may_be_chance:
            verdicts.append(
                f"Recommended: no lever. A gap that cannot be told from chance gives nothing to narrow; "
                f"{_null_mean(none)}more periods or more users would tell."
            )
        elif self.max_disparity is not None and self._is_within(none):
            verdicts.append(
                f"Recommended: no lever, since the gap is at most {self.max_disparity:g}{self._whole(none)}."
            )
        else:
            verdicts += self._choice(chosen)
        if self.raised and none.behind not in self.raised and not none.gap.may_be_chance:
            verdicts.append(
                f"The lever is for {', '.join(self.raised)}, but here {none.behind} is behind, which counts as "
                f"advantaged; declare another group as the advantaged one to turn it around."
            )
        verdicts.append("One seed: what another one would change is in none of these intervals.")
        return verdicts

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "lever": self.lever,
            "metric": self.metric,
            "task": self.task,
            "group": self.attribute,
            "groups": list(self.groups),
            "raised": list(self.raised),
            "n_users": self.n_users,
            "period_ends": list(self.period_ends),
            "levels": [level.to_dict() for level in self.levels],
            "max_disparity": self.max_disparity,
            "max_loss": self.max_loss,
            "recommended": self.recommended.value,
            "setting": self.setting,
            "verdicts": self.verdicts(),
            "pretrain_seconds": self.pretrain_seconds,
            "notes": list(self.notes),
        }

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each level."""
        rows = [
            {
                self.lever: level.value,
                self.metric: level.quality,
                **{name: level.scores.by_group[name] for name in self.groups},
                "gap": level.gap.value,
                **dict(zip(("gap_low", "gap_high"), level.gap.interval or (None, None), strict=True)),
                "behind": level.behind,
                **_columns("quality_change", level.quality_change),
                **_columns("gap_change", level.gap_change),
                "seconds": level.seconds,
                "is_on_front": level.is_on_front,
                "is_recommended": level is self.recommended,
            }
            for level in self.levels
        ]
        return pa.Table.from_pylist(rows)

    def plot(self) -> Any:
        """Draw quality against the gap at each level, with intervals; needs altair (`fairstream[report]`).

        Returns
        -------
        altair.Chart

        """
        alt, rows = charts(), []
        for level in self.levels:
            low, high = level.size_interval
            part = "recommended" if level is self.recommended else "on the front" if level.is_on_front else "behind it"
            row = {"gap": level.size, "low": low, "high": high, "quality": level.quality, "is": part}
            rows.append({**row, "level": self.name_of(level)})
        parts = alt.Scale(domain=["recommended", "on the front", "behind it"], range=["#009E73", "#0072B2", "#767676"])
        of_gap = f"gap between groups in {self.metric}"
        base = alt.Chart(alt.Data(values=rows), title=f"What each level of {self.lever} costs").encode(
            alt.X("gap:Q", title=of_gap, scale=alt.Scale(zero=False)),
            alt.Y("quality:Q", title=f"{self.metric}, everyone", scale=alt.Scale(zero=False)),
            alt.Color("is:N", title=None, scale=parts),
        )
        names = base.mark_text(dy=-12).encode(alt.Text("level:N"))
        rules = base.mark_rule(opacity=0.4).encode(alt.X("low:Q", title=of_gap), alt.X2("high:Q"))
        return (rules + base.mark_point(filled=True, size=90, opacity=1) + names).properties(**SIZE)

    def _summary(self) -> Summary:
        title = f"{self.metric} by {self.lever}: {self.n_users:,} users, groups by {self.attribute}"
        headings = ["level", self.metric, *self.groups, self.gap_name, "95 % interval", "Pareto front"]
        rows = []
        for level in self.levels:
            low, high = level.gap.interval or (None, None)
            means = [number(level.quality), *(number(level.scores.by_group[name]) for name in self.groups)]
            is_front = "recommended" if level is self.recommended else "yes" if level.is_on_front else ""
            gap = [signed(level.gap.value), f"{signed(low)} … {signed(high)}"]
            rows.append([self.name_of(level), *means, *gap, is_front])
        return Summary(title, headings, rows, (*self.verdicts(), *self.notes))

    @property
    def gap_name(self) -> str:
        """How `FrontierLevel.gap` is called."""
        return "PD" if len(self.groups) == 2 else "The largest gap"

    def name_of(self, level: FrontierLevel) -> str:
        """How a level is called."""
        return "none" if level is self.none else f"{level.value:g}"

    def _is_within(self, level: FrontierLevel) -> bool:
        return self.max_disparity is not None and level.size <= self.max_disparity

    def _affordable(self, max_loss: float | None) -> list[FrontierLevel]:
        return [level for level in self.levels if max_loss is None or level.loss <= max_loss]

    def _choice(self, chosen: FrontierLevel) -> list[str]:
        """What is recommended where there is a gap to narrow, and how sure that is."""
        limit = f"a loss of at most {percent(MAX_LOSS if self.max_loss is None else self.max_loss)}"
        verdicts = []
        if self.max_disparity is not None and not self._is_within(chosen):
            afford = "" if self.max_loss is None else f" at {limit}"
            verdicts.append(f"No level that was tried brings the gap to {self.max_disparity:g}{afford}.")
        if chosen is self.none:
            return [*verdicts, f"Recommended: no lever. No level has a smaller gap at {limit}."]
        why = f"the smallest gap at {limit}"
        if self._is_within(chosen):
            why = f"the best quality with a gap of at most {self.max_disparity:g}{self._whole(chosen)}"
        verdicts.append(f"Recommended: {self.lever} {self.name_of(chosen)}, {why}. There {_how_far(chosen)}.")
        verdicts.append(
            f"{self.gap_name} changes by {_interval(chosen.gap_change)}, the quality of everyone by "
            f"{self._relative(chosen)}; {self._by_group(chosen)}."
        )
        before, after = (level.scores.by_group[self.none.behind] for level in (self.none, chosen))
        if before is not None and after is not None and after <= before:
            verdicts.append(f"That levels down: {self.none.behind} is no better off, the others lose more.")
        if not chosen.gap_change.excludes_zero:
            verdicts.append("That the gap narrows cannot be told from chance: the interval of its change holds 0.")
        return verdicts

    def _whole(self, level: FrontierLevel) -> str:
        """Whether the whole interval of the gap is accepted, too."""
        assert self.max_disparity is not None
        is_whole = max(map(abs, level.size_interval)) <= self.max_disparity
        return ", and so is its whole interval" if is_whole else ", though its interval reaches beyond"

    def _relative(self, level: FrontierLevel) -> str:
        """The change of the quality in percent of that without the lever."""
        change, base = level.quality_change, self.none.quality
        value, low, high = (percent(relative(part, base), sign="+") for part in (change.value, change.low, change.high))
        return f"{value} (95 % interval {low} … {high})"

    def _by_group(self, level: FrontierLevel) -> str:
        """What each group gains or loses."""
        before, after = self.none.scores.by_group, level.scores.by_group
        changes = {
            name: relative(now - then, then)
            for name in self.groups
            if (then := before[name]) is not None and (now := after[name]) is not None
        }
        if len(changes) > 2:  # those to whom it matters most
            ranked = sorted(changes, key=lambda name: changes[name])
            changes = {name: changes[name] for name in (ranked[0], ranked[-1])}
        return ", ".join(f"that of {name} by {percent(change, sign='+')}" for name, change in changes.items())


def make_levels(
    tests: Mapping[float, Sequence[UserResults]],
    metric: MetricAtK | str,
    names: Sequence[str],
    *,
    none: float,
    min_group_size: int,
    n_resamples: int,
    randomness: Randomness,
    seconds: Mapping[float, float],
) -> tuple[FrontierLevel, ...]:
    """Measure and compare the levels of a lever.

    Parameters
    ----------
    tests
        Value of the lever → the results of each tested period; the same users at every level.
    metric
        A built-in metric, or the name of a stored one.
    names
        The groups' names, in the order of their codes.
    none
        The value at which the lever does nothing.
    min_group_size
        The fewest tested users with which a group is compared.
    n_resamples
        Bootstrap samples and permutations behind the intervals and p-values.
    randomness
        Draws the permutations.
    seconds
        Value of the lever → what an update took, on average.

    Raises
    ------
    DataError
        If too few users of the groups were tested.

    """
    stacks = [stack_periods(periods, [metric]) for periods in tests.values()]
    panel = GroupPanel(
        np.concatenate([values for values, _ in stacks], axis=2), stacks[0][1], len(names), min_group_size
    )
    paired = Paired(panel, 1, n_resamples)
    scores: list[GroupScores] = []
    for periods in tests.values():
        rng = randomness.numpy("resampling of the mean", len(periods))
        scores += score_periods(periods, [metric], names, min_group_size, rng, n_resamples)[0].values()
    if not all(score.gaps for score in scores):
        raise DataError(
            f"no disparity can be compared: in every period fewer than {min_group_size} users of all groups but one "
            f"were tested; use fewer periods, more events, or a smaller min_group_size"
        )
    behind = [score.furthest_behind_group or "" for score in scores]
    at = list(tests).index(none)
    gaps = paired.of("gap")
    # Two groups: of the advantaged one; more: of the one furthest behind, turned around. As `_gap` has it.
    sides = [(0, 1.0) if len(names) == 2 else (names.index(name), -1.0) for name in behind]
    gap_values = np.array([sign * gaps[0][code, c] for c, (code, sign) in enumerate(sides)])
    gap_draws = np.stack([sign * gaps[1][:, code, c] for c, (code, sign) in enumerate(sides)], axis=1)
    quality_values, quality_draws = paired.of("mean")

    def minus_none(values: Array, drawn: Array, c: int) -> Interval:
        return Interval.of(values[c] - values[at], drawn[:, c] - drawn[:, at])

    points = [(-float(q), abs(float(gap))) for q, gap in zip(quality_values, gap_values, strict=True)]
    return tuple(
        FrontierLevel(
            value,
            score,
            _gap(score, name, names),
            name,
            minus_none(quality_values, quality_draws, c),
            minus_none(gap_values, gap_draws, c),
            seconds[value],
            not any(_dominates(other, points[c]) for other in points),
        )
        for c, (value, score, name) in enumerate(zip(tests, scores, behind, strict=True))
    )


def _gap(score: GroupScores, behind: str, names: Sequence[str]) -> Estimate:
    """PD of two groups; of more, how far the one furthest behind is behind the rest."""
    if len(names) == 2 and score.disparity is not None:
        return score.disparity
    gap, furthest = score.gaps[behind], score.furthest_behind
    assert gap.interval is not None  # there is at least one resample
    assert furthest is not None
    return Estimate(-gap.value, (-gap.interval[1], -gap.interval[0]), furthest.p_value, furthest.null_mean)


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]


def relative(change: float, base: float) -> float:
    """A change as a share; 0 of nothing."""
    return change / base if base else 0.0


def percent(share: float, sign: str = "") -> str:
    """A share in percent.

    >>> percent(0.01), percent(-0.0234, sign="+")
    ('1.0 %', '-2.3 %')
    """
    return f"{100 * share:{sign}.1f} %"


def _how_far(level: FrontierLevel) -> str:
    low, high = level.size_interval
    return f"{level.behind} is {level.size:.4f} (95 % interval {low:.4f} … {high:.4f}) behind the rest"


def _null_mean(level: FrontierLevel) -> str:
    null_mean = level.gap.null_mean
    return "" if null_mean is None else f"its size would be {null_mean:.4f} on average were there none; "


def _interval(interval: Interval) -> str:
    return f"{interval.value:+.4f} (95 % interval {interval.low:+.4f} … {interval.high:+.4f})"


def _as_json(interval: Interval) -> dict[str, Any]:
    return {"value": interval.value, "interval": [interval.low, interval.high]}


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
