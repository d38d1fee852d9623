"""The result of `frontier`: quality and gap at each level of a lever, and the level to choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from fairstream.display import Summary, Table, Tabular
from fairstream.evaluation import Estimate, GroupScores, PeriodTask
from fairstream.evaluation.score_cells import CHANCE_MARK, gap_cells, regret_cells, shown_groups
from fairstream.experiments.compare import ON_FRONT, estimate_columns
from fairstream.models import Level
from fairstream.models.levels import ALONE
from fairstream.objectives import DisparityLoss
from fairstream.plotting import tradeoff_chart
from fairstream.recipe import GroupWeight
from fairstream.strategies import MaxGap
from fairstream.text import between, counted, number, percent, signed, signed_percent

MAX_LOSS: Final = 0.01  # the share of the quality that may be lost by default
FRONTIER_TASKS = {"event": "at each event", "moment": "at each moment", "next": "in one list a period"}
RECOMMENDED = "◆"

LeverName = Literal["level", "group_weight", "fairness_weight"]


class Lever(NamedTuple):
    """An option that trades quality against the gap between groups."""

    off: float  # the value without an effect
    levels: tuple[float, ...]  # the values tried by default


LEVERS: Final[Mapping[LeverName, Lever]] = {
    "level": Lever(1.0, (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 50.0, ALONE)),  # two groups have all of them
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
    regret_to_best: Mapping[str, Estimate] = field(default_factory=dict)
    """The share of what is attainable for each group at any level that was tried that the group does not get."""

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
            "regret_to_best": {name: regret.to_dict() for name, regret in self.regret_to_best.items()},
        }


@dataclass(frozen=True, repr=False)
class Frontier(Tabular):
    """What each level of disparity would have cost on the past: the result of `FairRecommender.frontier`.

    Examples
    --------
    >>> from fairstream import FairRecommender, read_events, synthetic_stream
    >>> stream = synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=0)
    >>> log = read_events(stream.events, users=stream.users, group="community", advantaged="majority")
    >>> frontier = FairRecommender("popularity", device="cpu").frontier(log, levels=[1, 2, 8], n_resamples=100)
    >>> [level.value for level in frontier.levels], frontier.lever
    ([1.0, 2.0, 8.0], 'level')
    >>> frontier.target_groups
    ('minority',)
    >>> frontier.to_arrow().column_names[:3]
    ['level', 'ndcg@20', 'majority']

    """

    lever: LeverName
    metric: str
    task: PeriodTask
    attribute: str
    """What makes the groups."""
    groups: tuple[str, ...]
    """Their names, the advantaged one first."""
    target_groups: tuple[str, ...]
    """The groups that the lever raises: the one furthest behind in the first test; of λ, all but the advantaged one."""
    n_users: int
    """Users tested."""
    period_ends: tuple[int, ...]
    """How many events there are up to the end of the pre-training data and of each period; the first of the periods
    is only learned from, the last only tested on."""
    levels: tuple[FrontierLevel, ...]
    """In ascending order of the values; `baseline` has no effect."""
    max_gap: float | None
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
    def setting(self) -> dict[str, Any]:
        """The recommended level as flat options (`run`, `MethodConfig`); the other levers are off."""
        if self.lever == "level":
            return {"target": "none"} if self.target is None else {"max_gap": self.target.gap}
        off: dict[str, Any] = {name: LEVERS[name].off for name in ("group_weight", "fairness_weight")}
        level, setting = self.recommended, {**off, "target": "none", self.lever: self.recommended.value}
        is_weighted = self.lever == "group_weight" and level is not self.baseline
        return {**setting, "weighted_group": self.target_groups[0]} if is_weighted else setting

    @property
    def fairness(self) -> GroupWeight | DisparityLoss | None:
        """The recommended level as the parameter `fairness` of a recommender; None for the lever "level"."""
        level = self.recommended
        if level is self.baseline or self.lever == "level":
            return None
        weighs_groups = self.lever == "group_weight"
        return GroupWeight(level.value, self.target_groups[0]) if weighs_groups else DisparityLoss(weight=level.value)

    @property
    def target(self) -> MaxGap | None:
        """The recommended level of the lever "level" as the parameter `target`: updates then hold its gap."""
        level = self.recommended
        if level is self.baseline or self.lever != "level":
            return None
        gap = self.max_gap if self._is_within(level) else None
        return MaxGap(gap or max(1e-4, ceil(round(level.size * 1e4, 6)) / 1e4), task=self.task, metric=self.metric)

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
            why = "which was furthest behind in the first test"
            turn = "weigh the group that is behind with GroupWeight(group=…), or use a target"
            if self.lever == "fairness_weight":
                why = "all but the advantaged group"
                turn = "declare another group as the advantaged one to turn it around"
            verdicts.append(
                f"The lever is for {', '.join(self.target_groups)}, {why}, but here {base.behind} is behind; {turn}."
            )
        return [*verdicts, "One seed: what another one would change is in none of these intervals."]

    def to_dict(self) -> dict[str, Any]:
        names = ["lever", "metric", "task", "groups", "target_groups", "n_users", "period_ends"]
        names += ["max_gap", "max_loss", "pretrain_seconds", "notes"]
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
                **{f"{name}_regret_to_best": regret.value for name, regret in level.regret_to_best.items()},
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
            title=self.title,
        )

    @property
    def title(self) -> str:
        """The heading of pictures."""
        raised = f"a level of {self.target_groups[0]}" if self.lever == "level" else f"each level of {self.lever}"
        return f"What {raised} costs"

    def table(self) -> Table:
        """Return the quality and the gap of every level."""
        names, rows = shown_groups(self.groups), []
        for level in self.levels:
            mark = RECOMMENDED if level is self.recommended else ON_FRONT if level.is_on_front else ""
            means = [number(value) for value in (level.quality, *(level.scores.by_group[name] for name in names))]
            gap, *interval_and_p, _ = gap_cells(level.gap.to_dict())
            behind = [gap] if names else [gap.lstrip("+±"), level.behind]
            largest = max(level.regret_to_best.values(), key=lambda regret: regret.value, default=None)
            regret = regret_cells(None if largest is None else largest.to_dict())[0]
            rows.append([mark, self.name_of(level), *means, *behind, *interval_and_p, regret, f"{level.seconds:.2f}"])
        gap_names = ["PD"] if names else ["largest gap", "furthest behind"]
        return Table(
            ["", "level", self.metric, *names, *gap_names, "95 % interval", "p", "largest regret", "s / update"],
            rows,
            f"{self.metric} {FRONTIER_TASKS[self.task]} by {self.lever}{self._raised}: {self.n_users:,} users, mean "
            f"over {counted(len(self.period_ends) - 2, 'period')}",
            f"{RECOMMENDED} recommended, {ON_FRONT} on the Pareto front; {CHANCE_MARK} not significant (permutations)\n"
            "largest regret: the largest share of what its best level would give a group that it does not get",
        )

    def _summary(self) -> Summary:
        table, notes = self.table(), (*self.verdicts(), *self.notes)
        return Summary(table.title, (), (), notes, [table], table.caption.splitlines())

    def name_of(self, level: FrontierLevel) -> str:
        if self.lever == "level" and level.value >= ALONE:
            return "alone"
        return "none" if level is self.baseline else f"{level.value:g}"

    @property
    def _raised(self) -> str:
        return "" if self.lever == "fairness_weight" else f" of {self.target_groups[0]}"

    def _is_within(self, level: FrontierLevel) -> bool:
        return self.max_gap is not None and level.size <= self.max_gap

    def _affordable(self, max_loss: float | None) -> list[FrontierLevel]:
        return [level for level in self.levels if max_loss is None or level.loss <= max_loss]

    def _choice(self, chosen: FrontierLevel) -> list[str]:
        """Return the recommendation for a gap that exceeds the limit, and its uncertainty."""
        base, change, quality = self.baseline, chosen.gap_change, chosen.quality_change
        limit = f"a loss of at most {percent(MAX_LOSS if self.max_loss is None else self.max_loss)}"
        verdicts = []
        if self.max_gap is not None and not self._is_within(chosen):
            afford = "" if self.max_loss is None else f" at {limit}"
            verdicts.append(f"No level that was tried brings the gap to {self.max_gap:g}{afford}.")
        if chosen is base:
            return [*verdicts, f"Recommended: no lever. No level has a smaller gap at {limit}."]
        why = f"the smallest gap at {limit}"
        if self._is_within(chosen):
            why = f"the best quality with a gap of at most {self._limit(chosen)}"
        value, low, high = (
            signed_percent(relative(part, base.quality)) for part in (quality.value, quality.low, quality.high)
        )
        verdicts += [
            f"Recommended: {self._named(chosen)}, {why}. There {_how_far(chosen)}.",
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

    def _named(self, level: FrontierLevel) -> str:
        if self.lever == "level":
            return f"the level {Level(self.target_groups[0], level.value)}"
        return f"{self.lever} {self.name_of(level)}{self._raised}"

    def _limit(self, level: FrontierLevel) -> str:
        """The accepted gap, and whether the whole interval of the level's gap is within it."""
        assert self.max_gap is not None
        is_whole = max(map(abs, level.size_interval)) <= self.max_gap
        reach = "and so is its whole interval" if is_whole else "though its interval reaches beyond"
        return f"{self.max_gap:g}, {reach}"

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
