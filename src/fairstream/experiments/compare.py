"""Methods side by side, paired on the same users, periods and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import GroupPanel, UserResults, stack_periods
from fairstream.evaluation.paired import Interval, Paired
from fairstream.evaluation.resampling import Array
from fairstream.experiments.record import Record, by_settings

PARTS = ("all", "warm", "cold")
"""Whom to compare on: everyone tested, those seen before, or the newcomers."""


@dataclass(frozen=True)
class Contender:
    """One method with its settings."""

    label: str
    performance: Interval
    disparity: Interval
    """The mean over periods and seeds of |PD|; with more than two groups, of the largest gap."""
    by_group: dict[str, float | None]
    is_on_front: bool
    """Whether no other is at least as good on both and better on one."""


@dataclass(frozen=True)
class Difference:
    """One contender minus another, on the same users and seeds."""

    label: str
    against: str
    performance: Interval
    disparity: Interval


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    metric: str
    task: str
    part: str
    seeds: tuple[int, ...]
    n_users: int
    n_groups: int
    contenders: tuple[Contender, ...]
    differences: tuple[Difference, ...]
    """Every ordered pair."""

    def against(self, label: str) -> list[Difference]:
        """Every other contender minus this one."""
        return [difference for difference in self.differences if difference.against == label]

    def verdicts(self) -> list[str]:
        """Who wins on performance, who on disparity, and who is on the Pareto front."""
        best = max(self.contenders, key=lambda contender: contender.performance.value)
        fairest = min(self.contenders, key=lambda contender: contender.disparity.value)
        front = ", ".join(contender.label for contender in self.contenders if contender.is_on_front)
        verdicts = [
            self._verdict("performance", best),
            self._verdict("disparity", fairest),
            f"On the Pareto front of the two: {front}.",
        ]
        if len(self.seeds) == 1:
            verdicts.append("One seed only: what another would change is not in these intervals; try --seeds 5.")
        return verdicts

    def _verdict(self, what: str, leader: Contender) -> str:
        level = [
            difference.label for difference in self.against(leader.label) if not getattr(difference, what).excludes_zero
        ]
        if not level:
            return f"{leader.label} wins on {what}: no other's interval of the difference holds 0."
        return f"{leader.label} leads on {what}, but cannot be told from {', '.join(level)}."


def compare(
    records: Iterable[Record],
    *,
    metric: str | None = None,
    task: str = "remain",
    part: str = "all",
    n_resamples: int = 2000,
) -> Comparison:
    """Compare stored runs; those that differ in nothing but the seed are one contender.

    Users are drawn anew from each group, seeds from the seeds that all contenders share; every
    contender sees the same draws, so what is hard for all of them cancels in the differences.
    """
    if part not in PARTS:
        raise ConfigurationError(f"the users compared must be {', '.join(PARTS)}, got {part!r}")
    if n_resamples < 1:
        raise ConfigurationError(f"n_resamples must be >= 1, got {n_resamples}; without draws there are no intervals")
    heaps = by_settings(records)
    seeds = _shared_seeds(heaps)
    runs = [[record for record in heap if record.seed in seeds] for heap in heaps]
    _need_one_test(runs)
    like = runs[0][0]
    metric = metric or f"ndcg@{like.config['k']}"
    names = like.document["data"]["groups"]
    panel = _panel(runs, metric, task, part, len(names))
    paired = Paired(panel, len(seeds), n_resamples)
    performance = paired.of("mean")
    disparity = paired.of("largest")[0]
    if np.isnan(disparity).any():
        raise DataError("no disparity can be compared: too few users of the groups were tested")
    labels = _labels([run[0] for run in runs])
    points = np.stack([performance[0], -disparity], axis=1)
    by_group = paired.of("by_group")[0]
    contenders = tuple(
        Contender(
            label,
            Interval.of(*(part[..., c] for part in performance)),
            paired.largest_gap(c),
            {name: None if np.isnan(by_group[g, c]) else float(by_group[g, c]) for g, name in enumerate(names)},
            not _is_dominated(points, c),
        )
        for c, label in enumerate(labels)
    )
    differences = tuple(
        Difference(
            labels[a],
            labels[b],
            Interval.of(*(part[..., a] - part[..., b] for part in performance)),
            paired.largest_gap(a, minus=b),
        )
        for a in range(len(labels))
        for b in range(len(labels))
        if a != b
    )
    return Comparison(metric, task, part, tuple(seeds), len(panel.codes), len(names), contenders, differences)


def _shared_seeds(heaps: Sequence[Sequence[Record]]) -> list[int]:
    if len(heaps) < 2:
        raise ConfigurationError(
            f"compare needs runs that differ in more than their seed, got {len(heaps)} of that kind; "
            f"add runs of another method or with other settings"
        )
    shared = set.intersection(*({record.seed for record in heap} for heap in heaps))
    if not shared:
        raise DataError("the runs have no seed in common, so they cannot be paired; run them with the same seeds")
    return sorted(shared)


def _need_one_test(runs: Sequence[Sequence[Record]]) -> None:
    """All runs must have been judged on the same events in the same way."""
    first = runs[0][0]
    for record in (record for run in runs for record in run):
        for what in ("sha256", "group", "groups", "period_ends", "k", "min_group_size"):
            ours, theirs = _told(first, what), _told(record, what)
            if ours != theirs:
                raise DataError(
                    f"only runs on the same data can be compared: {what} is {ours} for {first.config['method']} and "
                    f"{theirs} for {record.config['method']}"
                )
        if _how_tested(record) != _how_tested(first):
            raise DataError(
                f"only runs judged in the same way can be compared: {first.config['protocol']} and "
                f"{record.config['protocol']} are not"
            )


def _told(record: Record, what: str) -> Any:
    """What the record says of its data or configuration; of the groups, whoever is put first."""
    told = {**record.config, **record.document["data"]}[what]
    return sorted(told) if what == "groups" else told


def _how_tested(record: Record) -> tuple[bool, ...]:
    protocol = record.protocol
    return protocol.full_ranking, protocol.true_ndcg, protocol.cold_users


def _panel(runs: Sequence[Sequence[Record]], metric: str, task: str, part: str, n_groups: int) -> GroupPanel:
    """(U, P, C · S): each contender and seed is a metric of its own."""
    like = runs[0][0]
    measures = {f"{name}@{like.config['k']}": measure for name, measure in like.protocol.metrics.items()}
    if metric not in measures:
        raise ConfigurationError(f"metric must be one of {', '.join(measures)}, got {metric!r}")
    if task not in like.document["summary"]:
        raise ConfigurationError(f"task must be one of {', '.join(like.document['summary'])}, got {task!r}")
    tested = [
        stack_periods([_part_of(test, part) for test in record.tested(task)], [measures[metric]])
        for run in runs
        for record in run
    ]
    values, codes = np.concatenate([values for values, _ in tested], axis=2), tested[0][1]
    if len(codes) == 0:
        raise DataError(f"there are no {part} users among those tested")
    return GroupPanel(values, codes, n_groups, like.config["min_group_size"])


def _part_of(tested: UserResults, part: str) -> UserResults:
    return tested if part == "all" else tested.where(tested.is_cold == (part == "cold"))


def _is_dominated(points: Array, c: int) -> bool:
    at_least, better = (points >= points[c]).all(axis=1), (points > points[c]).any(axis=1)
    return bool((at_least & better).any())


def _labels(records: Sequence[Record]) -> list[str]:
    """The method, and those of its settings in which the contenders differ."""
    settings = [record.settings for record in records]
    names = [name for name in dict.fromkeys(name for part in settings for name in part) if name != "method"]
    differing = [name for name in names if len({str(part[name]) for part in settings if name in part}) > 1]
    return [
        " ".join([part["method"], *(f"{name}={part[name]}" for name in differing if part.get(name) is not None)])
        for part in settings
    ]
