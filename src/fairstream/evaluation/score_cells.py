"""Scores as cells of tables and in words, as every table of results shows them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from fairstream.display import Shown, Summary
from fairstream.evaluation.by_group import SIGNIFICANCE, Estimate, GroupScores, ordered
from fairstream.text import number, signed

CHANCE_MARK = "~"
LEGEND = f"{CHANCE_MARK} not significant (permutation p ≥ {SIGNIFICANCE:g})"
_FEW_GROUPS = 2


def shown_groups(names: Sequence[str]) -> list[str]:
    """The groups that get a column each; of many, only the one furthest behind does."""
    return list(names) if len(names) <= _FEW_GROUPS else []


def gap_headings(shown: Sequence[str]) -> list[str]:
    """Above the cells of the gap: of two groups PD, of more how far the worst-served one is behind, and its name."""
    gap = [*shown, "PD", "95 % interval"] if shown else ["behind by", "furthest behind"]
    return [*gap, "p", "null"]


def score_cells(score: Mapping[str, Any], shown: Sequence[str]) -> list[str]:
    """The mean, each group's where they are few, and the gap with its null mean."""
    sd = score.get("seed_sd", {})
    mean = number(score["mean"]) + plus_minus(sd.get("mean"))
    if shown:
        gap, *rest = gap_cells(score["disparity"])
        gap += plus_minus(sd.get("performance_disparity"))
        return [mean, *(number(score["by_group"].get(name)) for name in shown), gap, *rest]
    behind = score.get("furthest_behind")  # a run that was stored before it was measured has none
    gap, _, p_value, null_mean = gap_cells(behind)
    return [mean, gap.lstrip("+"), "–" if behind is None else behind["group"], p_value, null_mean]


def gap_cells(gap: Mapping[str, Any] | None) -> list[str]:
    """Value with its mark, interval, p-value, and null mean."""
    if gap is None:
        return ["–", "–", "–", "–"]
    p_value, interval = gap["p_value"], gap["interval"]
    mark = CHANCE_MARK if p_value is not None and p_value >= SIGNIFICANCE else " "
    between = "–" if interval is None else f"{interval[0]:+.4f} … {interval[1]:+.4f}"
    return [
        signed(gap["value"]) + mark,
        between,
        "–" if p_value is None else f"{p_value:.3f}",
        number(gap["null_mean"]),
    ]


def plus_minus(sd: float | None) -> str:
    """The standard deviation over seeds, where there is one."""
    return "" if sd is None else f" ± {sd:.4f}"


def between(interval: tuple[float, float] | None) -> str:
    """An interval of something that is not negative."""
    return "–" if interval is None else f"{number(interval[0])} … {number(interval[1])}"


class Scored(Shown):
    """Shows metrics by group: a verdict, every metric, and of more than two groups each one."""

    metrics: Mapping[str, GroupScores]
    group: str | None
    """What makes the groups; None: there are none."""
    n_users_by_group: Mapping[str, int]
    """Tested users of each group, in the order of the codes."""
    excluded_groups: Mapping[str, int]
    """Groups with too few tested users to compare, and their numbers of tested users."""
    notes: tuple[str, ...]
    """What was left out, assumed, or is unusual: one sentence each."""

    def __getitem__(self, metric: str) -> GroupScores:
        if metric not in self.metrics:
            raise KeyError(f"{metric}; there are {', '.join(self.metrics)}")
        return self.metrics[metric]

    @property
    def verdict(self) -> str:
        """One sentence on the gap between the groups in the first metric: who is furthest behind, and who ahead."""
        name, score = next(iter(self.metrics.items()))
        if self.group is None:
            over = f"over {self._n_users():,} users"
            return f"{name} is {number(score.mean)} {over}; without groups there is no disparity."
        if score.furthest_behind is None or score.largest_gap is None:
            return f"{name} is {number(score.mean)}; too few users of the groups were tested to compare them."
        last, first = score.furthest_behind_group, score.largest_gap_group
        rest = "the rest" if len(self.n_users_by_group) > _FEW_GROUPS else next(o for o in score.gaps if o != last)
        verdict = f"{self.group} {last} is {number(score.furthest_behind.value)} behind {rest} in {name}"
        verdict += _chance(score.furthest_behind)
        if len(score.gaps) > _FEW_GROUPS and first is not None and score.gaps[first].value > 0:
            size = f"{number(score.largest_gap.value)} ahead"
            verdict += f"; the largest gap is that of {first}, {size}{_chance(score.largest_gap)}"
        return f"{verdict}."

    def cells(self, score: GroupScores) -> list[str]:
        """The mean and its interval, and the gap where there are groups."""
        mean, *gap = score_cells(score.to_dict(), shown_groups(list(self.n_users_by_group)))
        return [mean, between(score.interval), *(gap if self.group else [])]

    @property
    def headings(self) -> list[str]:
        """Above `cells`."""
        gap = gap_headings(shown_groups(list(self.n_users_by_group))) if self.group else []
        return ["mean", "95 % interval", *gap]

    def _summary(self) -> Summary:
        by_group, names = self.n_users_by_group, ordered(list(self.n_users_by_group))
        rows = [[name, *self.cells(score)] for name, score in self.metrics.items()]
        more = [self._group_table()] if self.group and len(names) > _FEW_GROUPS else []
        sizes = ", ".join(f"{name} {by_group[name]:,}" for name in names)
        captions = [f"{self._n_users():,} users" + (f" by {self.group}: {sizes}" if self.group else "")]
        if any(score.furthest_behind and score.furthest_behind.p_value for score in self.metrics.values()):
            captions += [LEGEND, "null: the size of the gap on average (null mean) where the groups' means are equal"]
        if self.excluded_groups:
            captions.append(f"excluded, too few users: {', '.join(self.excluded_groups)}")
        return Summary(self._title(), ["", *self.headings], rows, self.notes, more, captions)

    def _title(self) -> str:
        return self.verdict

    @abstractmethod
    def _n_users(self) -> int:
        """Tested users."""

    def _group_table(self) -> tuple[list[str], list[list[str]]]:
        """Each group's mean and gap to the rest in the first metric."""
        name, score = next(iter(self.metrics.items()))
        rows = []
        for group in ordered(list(self.n_users_by_group)):
            gap = score.gaps.get(group)
            cells = gap_cells(None if gap is None else gap.to_dict())
            own = [number(score.by_group[group]), between(score.by_group_interval.get(group))]
            rows.append([group, f"{self.n_users_by_group[group]:,}", *own, *cells])
        interval = "95 % interval"
        return [str(self.group), "users", name, interval, "gap to the rest", interval, "p", "null"], rows


def _chance(gap: Estimate) -> str:
    if gap.p_value is None:
        return ""
    chance = "which may be chance" if gap.may_be_chance else "more than chance explains"
    return f", {chance} (permutation p = {gap.p_value:.3f}, null mean {number(gap.null_mean)})"
