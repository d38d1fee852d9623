"""The result of `frontier`: quality and gap at each level of a lever, and the level to choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from fairstream.display import Summary, Table, Tabular
from fairstream.evaluation import Estimate, GroupScores
from fairstream.evaluation.score_cells import CHANCE_MARK, gap_cells, shown_groups
from fairstream.experiments.compare import ON_FRONT, estimate_columns
from fairstream.models import Task
from fairstream.objectives import DisparityLoss
from fairstream.plotting import tradeoff_chart
from fairstream.recipe import GroupWeight
from fairstream.text import between, counted, number, percent, signed, signed_percent

MAX_LOSS: Final = 0.01  # the share of the quality that may be lost by default
FRONTIER_TASKS = {"event": "at each event", "next": "in one list a period"}
RECOMMENDED = "◆"

LeverName = Literal["group_weight", "fairness_weight"]


class Lever(NamedTuple):
    """An option that trades quality against the gap between groups."""

    off: float  # the value without an effect
    levels: tuple[float, ...]  # the values tried by default


LEVERS: Final[Mapping[LeverName, Lever]] = {
    "group_weight": Lever(1.0, (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)),
    "fairness_weight": Lever(0.0, (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)),
}


@dataclass(frozen=True)
class FrontierLevel:
    """One value of the lever, and its results on the tested periods."""

    value: float
    """The value of the lever."""
    scores: GroupScores
    """The quality of everyone and of each group, averaged over the periods."""
    gap: Estimate
    """With two groups PD, the advantaged group's quality minus the other's; with more, how far `behind` is behind the
    rest, with a p-value that allows for several groups having been compared."""
    behind: str
    """The group that is furthest behind the rest."""
    quality_change: Estimate
    """The quality of everyone minus that without the lever, on the same users."""
    gap_change: Estimate
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
        changes = {"quality_change": self.quality_change, "gap_change": self.gap_change}
        return {
            "value": self.value,
            **self.scores.to_dict(),
            "gap": self.gap.to_dict(),
            "behind": self.behind,
            **{name: {"value": each.value, "interval": [each.low, each.high]} for name, each in changes.items()},
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
    target_groups: tuple[str, ...]
    """The groups that the lever is for: all but the advantaged one."""
    n_users: int
    """Users tested."""
    period_ends: tuple[int, ...]
    """How many events there are up to the end of the pre-training data and of each period; the first of the periods
    is only learned from, the last only tested on."""
    levels: tuple[FrontierLevel, ...]
    """In ascending order of the values; `baseline` has no effect."""
    max_disparity: float | None
    """The gap that is accepted, if one was named."""
    max_loss: float | None
    """The share of the quality that may be lost for it, if one was named."""
    pretrain_seconds: float
    notes: tuple[str, ...] = ()
    """Notes on the log and the lever: one sentence each."""

    @property
    def baseline(self) -> FrontierLevel:
        """The level without an effect."""
        return next(level for level in self.levels if level.value == LEVERS[self.lever].off)

    @property
    def recommended(self) -> FrontierLevel:
        """The level to choose.

        No lever where the gap without one is accepted, or cannot be told from chance. Else, of the levels whose gap is
        accepted, the one with the best quality; where there is none, or no accepted gap was named, the one with the
        smallest gap whose loss is at most `max_loss` (1 % unless named).
        """
        if self.baseline.gap.may_be_chance or self._is_within(self.baseline):
            return self.baseline
        within = [level for level in self._affordable(self.max_loss) if self._is_within(level)]
        if within:
            return max(within, key=lambda level: level.quality)
        least = self._affordable(MAX_LOSS if self.max_loss is None else self.max_loss)
        return min(least, key=lambda level: level.size)

    @property
    def setting(self) -> dict[str, float]:
        """The recommended level as flat options (`run`, `MethodConfig`): both levers, of which the other is off."""
        off: dict[str, float] = {name: lever.off for name, lever in LEVERS.items()}
        return {**off, self.lever: self.recommended.value}

    @property
    def fairness(self) -> GroupWeight | DisparityLoss | None:
        """The recommended level as the parameter `fairness` of a recommender."""
        level = self.recommended
        if level is self.baseline:
            return None
        return GroupWeight(level.value) if self.lever == "group_weight" else DisparityLoss(weight=level.value)

    def verdicts(self) -> list[str]:
        """Return the findings and the recommendation in sentences, with intervals."""
        base, gap = self.baseline, self.baseline.gap
        chance = f", which chance alone may explain (p = {gap.p_value:.3f})" if gap.may_be_chance else ""
        verdicts = [f"Without a lever {_how_far(base)} in {self.metric}{chance}."]
        if gap.may_be_chance:
            null = "" if gap.null_mean is None else f"with no gap its mean size is {number(gap.null_mean)}; "
            verdicts.append(
                f"Recommended: no lever. A gap that may be chance gives nothing to narrow; {null}more periods or more "
                f"users would tell."
            )
        elif self._is_within(base):
            verdicts.append(f"Recommended: no lever, since the gap is at most {self._limit(base)}.")
        else:
            verdicts += self._choice(self.recommended)
        if self.target_groups and base.behind not in self.target_groups and not gap.may_be_chance:
            verdicts.append(
                f"The lever is for {', '.join(self.target_groups)}, but here {base.behind} is behind, which counts as "
                f"advantaged; declare another group as the advantaged one to turn it around."
            )
        return [*verdicts, "One seed: what another one would change is in none of these intervals."]

    def to_dict(self) -> dict[str, Any]:
        names = ["lever", "metric", "task", "groups", "target_groups", "n_users", "period_ends"]
        names += ["max_disparity", "max_loss", "pretrain_seconds", "notes"]
        return {
            **{name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names},
            "group": self.attribute,
            "levels": [level.to_dict() for level in self.levels],
            "recommended": self.recommended.value,
            "setting": self.setting,
            "verdicts": self.verdicts(),
        }

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each level."""
        rows = [
            {
                self.lever: level.value,
                self.metric: level.quality,
                **{name: level.scores.by_group[name] for name in self.groups},
                **estimate_columns("gap", level.gap),
                "behind": level.behind,
                **estimate_columns("quality_change", level.quality_change),
                **estimate_columns("gap_change", level.gap_change),
                "seconds": level.seconds,
                "is_on_front": level.is_on_front,
                "is_recommended": level is self.recommended,
            }
            for level in self.levels
        ]
        return pa.Table.from_pylist(rows)

    def plot(self) -> Any:
        """Draw quality against the gap at each level, with intervals.

        Returns an altair.Chart; needs `fairstream[report]`.
        """
        rows = []
        for level in self.levels:
            low, high = level.size_interval
            kind = "recommended" if level is self.recommended else "on the front" if level.is_on_front else "behind it"
            x = {"x": level.size, "x_low": low, "x_high": high}
            rows.append({"label": self.name_of(level), "kind": kind, **x, "y": level.quality})
        return tradeoff_chart(
            rows,
            f"gap between groups in {self.metric}",
            f"{self.metric}, everyone",
            kinds=("recommended", "on the front", "behind it"),
            colours=("#009E73", "#0072B2", "#767676"),
            title=f"What each level of {self.lever} costs",
        )

    def table(self) -> Table:
        """Return the quality and the gap of every level."""
        names, rows = shown_groups(self.groups), []
        for level in self.levels:
            mark = RECOMMENDED if level is self.recommended else ON_FRONT if level.is_on_front else ""
            means = [number(value) for value in (level.quality, *(level.scores.by_group[name] for name in names))]
            gap, *interval_and_p, _ = gap_cells(level.gap.to_dict())
            behind = [gap] if names else [gap.lstrip("+±"), level.behind]
            rows.append([mark, self.name_of(level), *means, *behind, *interval_and_p, f"{level.seconds:.2f}"])
        gap_names = ["PD"] if names else ["largest gap", "furthest behind"]
        return Table(
            ["", "level", self.metric, *names, *gap_names, "95 % interval", "p", "s / update"],
            rows,
            f"{self.metric} {FRONTIER_TASKS[self.task]} by {self.lever}: {self.n_users:,} users, mean over "
            f"{counted(len(self.period_ends) - 2, 'period')}",
            f"{RECOMMENDED} recommended, {ON_FRONT} on the Pareto front; {CHANCE_MARK} not significant (permutations)",
        )

    def _summary(self) -> Summary:
        table, notes = self.table(), (*self.verdicts(), *self.notes)
        return Summary(table.title, (), (), notes, [table], [table.caption])

    def name_of(self, level: FrontierLevel) -> str:
        return "none" if level is self.baseline else f"{level.value:g}"

    def _is_within(self, level: FrontierLevel) -> bool:
        return self.max_disparity is not None and level.size <= self.max_disparity

    def _affordable(self, max_loss: float | None) -> list[FrontierLevel]:
        return [level for level in self.levels if max_loss is None or level.loss <= max_loss]

    def _choice(self, chosen: FrontierLevel) -> list[str]:
        """Return the recommendation for a gap that exceeds the limit, and its uncertainty."""
        base, change, quality = self.baseline, chosen.gap_change, chosen.quality_change
        limit = f"a loss of at most {percent(MAX_LOSS if self.max_loss is None else self.max_loss)}"
        verdicts = []
        if self.max_disparity is not None and not self._is_within(chosen):
            afford = "" if self.max_loss is None else f" at {limit}"
            verdicts.append(f"No level that was tried brings the gap to {self.max_disparity:g}{afford}.")
        if chosen is base:
            return [*verdicts, f"Recommended: no lever. No level has a smaller gap at {limit}."]
        why = f"the smallest gap at {limit}"
        if self._is_within(chosen):
            why = f"the best quality with a gap of at most {self._limit(chosen)}"
        value, low, high = (
            signed_percent(relative(part, base.quality)) for part in (quality.value, quality.low, quality.high)
        )
        verdicts += [
            f"Recommended: {self.lever} {self.name_of(chosen)}, {why}. There {_how_far(chosen)}.",
            f"{'PD' if len(self.groups) == 2 else 'The largest gap'} changes by {signed(change.value)} (95 % interval "
            f"{between(change.interval, is_signed=True)}), the quality of everyone by {value} (95 % interval {low} … "
            f"{high}); {self._by_group(chosen)}.",
        ]
        before, after = (level.scores.by_group[base.behind] for level in (base, chosen))
        if before is not None and after is not None and after <= before:
            verdicts.append(f"That levels down: {base.behind} is no better off, the others lose more.")
        if not change.excludes_zero:
            verdicts.append("That the gap narrows cannot be told from chance: the interval of its change holds 0.")
        return verdicts

    def _limit(self, level: FrontierLevel) -> str:
        """The accepted gap, and whether the whole interval of the level's gap is within it."""
        assert self.max_disparity is not None
        is_whole = max(map(abs, level.size_interval)) <= self.max_disparity
        reach = "and so is its whole interval" if is_whole else "though its interval reaches beyond"
        return f"{self.max_disparity:g}, {reach}"

    def _by_group(self, level: FrontierLevel) -> str:
        """Return the gain or loss of each group."""
        before, after = self.baseline.scores.by_group, level.scores.by_group
        changes = {
            name: relative(now - then, then)
            for name in self.groups
            if (then := before[name]) is not None and (now := after[name]) is not None
        }
        if len(changes) > 2:  # the largest loss and the largest gain
            ranked = sorted(changes, key=lambda name: changes[name])
            changes = {name: changes[name] for name in (ranked[0], ranked[-1])}
        return ", ".join(f"that of {name} by {signed_percent(change)}" for name, change in changes.items())


def relative(change: float, base: float) -> float:
    """Return a change as a share of the base; 0 if the base is 0."""
    return change / base if base else 0.0


def _how_far(level: FrontierLevel) -> str:
    return f"{level.behind} is {number(level.size)} (95 % interval {between(level.size_interval)}) behind the rest"
