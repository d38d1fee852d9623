"""Methods compared on the same users, periods and seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream.display import Summary, Table, Tabular
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Estimate, UserResults, seed_certificate
from fairstream.evaluation.by_group import ordered
from fairstream.evaluation.regret import SystemRegret
from fairstream.evaluation.score_cells import ABOUT_REGRET, alignment, regret_cells, shown_groups
from fairstream.experiments.config import TASK_NAMES, RunConfig
from fairstream.experiments.measured import level_panels, measure, own_regret, pareto_front
from fairstream.experiments.record import Record
from fairstream.experiments.run import Run
from fairstream.experiments.store import Store
from fairstream.plotting import tradeoff_chart
from fairstream.text import between, counted, number, percent

DEFAULT_TASK = "remain"
ON_FRONT = "●"
PARTS = ("all", "warm", "cold")  # users to compare on: all tested users, those seen before, or new ones
Runs = Record | Run | Store | Path | str
"""A run, a store of runs, a run file of a store, a JSON export, or a folder of such files."""


@dataclass(frozen=True)
class Contender:
    """One method with its settings."""

    label: str
    performance: Estimate
    disparity: Estimate
    """The mean over periods and seeds of |PD|; with more than two groups, of how far the worst-served one is behind the
    rest: a group that is ahead is not treated unfairly."""
    behind: str  # the worst-served group: the one furthest behind the rest
    by_group: dict[str, float | None]
    is_on_front: bool  # whether no other is at least as good on both and better on one
    regret: dict[str, Estimate] = field(default_factory=dict)
    """The share of what is attainable for each group with this method, at any level, that the group does not get."""
    regret_to_best: dict[str, Estimate] = field(default_factory=dict)
    """The share of what is attainable for each group with any of the compared methods that it does not get."""
    largest_regret: Estimate | None = None
    """The largest of `regret_to_best`; None: the metric is one number for all users."""
    largest_regret_group: str | None = None
    seed_certificate: float | None = None
    """How much another seed would narrow the gap at most, in expectation; None with one seed."""


@dataclass(frozen=True)
class Difference:
    """One contender minus another, on the same users and seeds."""

    label: str
    against: str
    performance: Estimate
    disparity: Estimate
    largest_regret: Estimate | None = None


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """The result of `compare`."""

    metric: str
    task: str
    part: str
    seeds: tuple[int, ...]
    n_users: int
    n_groups: int
    contenders: tuple[Contender, ...]
    differences: tuple[Difference, ...]  # of every ordered pair
    notes: tuple[str, ...] = ()
    """Notes of the runs, such as fairness options without an effect: one sentence each."""
    attainable: Mapping[str, float] = field(default_factory=dict)
    """The best mean of each group with any of the methods at any level, free of the winner's curse."""
    best: Mapping[str, str] = field(default_factory=dict)
    """The method, and its level, that gives each group its best mean."""

    def table(self) -> Table:
        """Return the performance and the disparity of every contender."""
        n_seeds, first = len(self.seeds), self.contenders[0]
        over = "users and seeds" if n_seeds > 1 else "users"
        is_point = first.performance.interval is None
        intervals = "one number for all users: no intervals" if is_point else f"95 % intervals over {over}"
        size = "|PD|" if self.n_groups == 2 else "how far a group is behind"
        names, rows = shown_groups(list(first.by_group)), []
        for one in self.contenders:
            performance, disparity = (
                [number(part.value), between(part.interval)] for part in (one.performance, one.disparity)
            )
            by_group, behind = [number(one.by_group[name]) for name in names], [] if names else [one.behind]
            regret = [regret_cells(_stored(one.largest_regret))[0]] if one.largest_regret else []
            marks = [ON_FRONT if one.is_on_front else "", one.label]
            rows.append([*marks, *performance, *by_group, *disparity, *behind, *regret])
        gap = ("mean |PD|", "interval") if names else ("behind by", "interval", "furthest behind")
        return Table(
            ["", "method", self.metric, "interval", *names, *gap, *(["largest regret"] if self.attainable else [])],
            rows,
            f"{self.metric} on {TASK_NAMES[self.task]}, {self.n_users:,} users, {counted(n_seeds, 'seed')}",
            f"{intervals}; {ON_FRONT} on the Pareto front\n"
            f"{size} is above 0 by chance alone: see the run's own table for its size under permutation",
            align="ll",
        )

    def regret_table(self) -> Table | None:
        """Return each group's regret with each method; None for a metric that is one number for all users."""
        if not self.attainable:
            return None
        rows = []
        for one in self.contenders:
            for name in [name for name in one.by_group if name in self.attainable]:
                alone, to_best = (_stored(part.get(name)) for part in (one.regret, one.regret_to_best))
                mean = number(one.by_group[name])
                rows.append([one.label, name, mean, *regret_cells(alone), *regret_cells(to_best), self.best[name]])
        own = ["own regret", "its interval", "regret to the best", "its interval", "the best for it"]
        headings = ["method", "group", self.metric, *own]
        caption = (
            f"{ABOUT_REGRET}: own, at a level of the method itself; to the best, with any of the compared methods\n"
            "a method that was tested without levels has no regret of its own"
        )
        return Table(headings, rows, "Regret by group", caption, alignment(headings, "Ll"))

    def _summary(self) -> Summary:
        tables = [table for table in (self.table(), self.regret_table()) if table is not None]
        captions = [line for table in tables for line in table.caption.splitlines()]
        return Summary(f"Comparison of {tables[0].title}", (), (), (*self.verdicts(), *self.notes), tables, captions)

    def to_arrow(self) -> pa.Table:
        """As an Arrow table, a row for each contender.

        Columns: label, performance, performance_low, performance_high, the same for disparity, behind (the worst-served
        group), is_on_front, and each group's mean under its name. Where there is a value for each user, also
        largest_regret with its interval, largest_regret_group, and GROUP_regret (own) and GROUP_regret_to_best.
        """
        return pa.Table.from_pylist(
            [
                {
                    "label": one.label,
                    **estimate_columns("performance", one.performance),
                    **estimate_columns("disparity", one.disparity),
                    "behind": one.behind,
                    "is_on_front": one.is_on_front,
                    **one.by_group,
                    **_regret_columns(one),
                }
                for one in self.contenders
            ]
        )

    def plot(self) -> Any:
        """Draw performance against disparity, with intervals.

        Returns an altair.Chart; needs `fairstream[report]`.
        """
        gap = "|PD|" if self.n_groups == 2 else "how far the worst-served group is behind the rest"
        rows = [
            {"kind": one.label, **estimate_columns("x", one.disparity), **estimate_columns("y", one.performance)}
            for one in self.contenders
        ]
        return tradeoff_chart(rows, gap, self.metric, kinds=[one.label for one in self.contenders])

    def against(self, label: str) -> list[Difference]:
        """Every other contender minus this one."""
        return [difference for difference in self.differences if difference.against == label]

    def verdicts(self) -> list[str]:
        """Return the best method on performance, regret and disparity, and the Pareto front, in sentences.

        A method does not lead on disparity if its largest regret is larger than another's by more than chance.
        """
        best = max(self.contenders, key=lambda contender: contender.performance.value)
        worse = {
            pair.label for pair in self.differences if pair.largest_regret and pair.largest_regret.low > 0
        }  # by more than chance than some other
        fairest = min(
            (one for one in self.contenders if one.label not in worse), key=lambda contender: contender.disparity.value
        )
        smallest = min(self.contenders, key=lambda contender: contender.disparity.value)
        front = ", ".join(contender.label for contender in self.contenders if contender.is_on_front)
        verdicts = [self._verdict("performance", best)]
        if self.attainable:
            least = min(self.contenders, key=lambda one: one.largest_regret.value if one.largest_regret else 0.0)
            verdicts.append(self._verdict("largest_regret", least))
        verdicts.append(self._verdict("disparity", fairest))
        if smallest is not fairest:
            verdicts.append(self._levelled_down(smallest, fairest))
        verdicts.append(f"On the Pareto front of performance and disparity: {front}.")
        if best.performance.interval is None:
            verdicts.append(f"{self.metric} is one number for all users: its differences have no intervals.")
        elif len(self.seeds) == 1:
            verdicts.append("One seed only: what another would change is not in these intervals; try --seeds 5.")
        if fairest.seed_certificate is not None:
            bound = number(fairest.seed_certificate)
            verdicts.append(f"Another seed of {fairest.label} would narrow its gap by at most {bound} in expectation.")
        return verdicts

    def _verdict(self, what: str, leader: Contender) -> str:
        level = [
            difference.label for difference in self.against(leader.label) if not getattr(difference, what).excludes_zero
        ]
        how = ""
        if leader.largest_regret is not None and what == "largest_regret":
            what, share = "regret", leader.largest_regret.value
            how = " (every group gets its best of the compared)"
            if share >= 0.001:
                group = leader.largest_regret_group
                how = f" ({group} gets {percent(share)} less than its best of the compared, the most of any group)"
        if what == "disparity" and self.n_groups > 2:
            how = f" ({leader.behind}, its worst-served group, is {number(leader.disparity.value)} behind the rest)"
        if not level:
            return f"{leader.label} wins on {what}{how}: no other's interval of the difference holds 0."
        return f"{leader.label} leads on {what}{how}, but cannot be told from {', '.join(level)}."

    def _levelled_down(self, one: Contender, than: Contender) -> str:
        """Say why the method with the smallest gap does not lead on disparity."""
        assert one.largest_regret is not None
        before, after = (each.by_group.get(than.behind) for each in (than, one))
        levels_down = before is not None and after is not None and after <= before
        why = f", and levels down: {than.behind} is no better off than with {than.label}" if levels_down else ""
        group, share = one.largest_regret_group, percent(one.largest_regret.value)
        return (
            f"{one.label} has the smallest gap ({number(one.disparity.value)}), but serves {group} {share} worse than "
            f"{self.best[str(group)]} would{why}."
        )


def _stored(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else estimate.to_dict()


def _regret_columns(one: Contender) -> dict[str, Any]:
    if one.largest_regret is None:
        return {}
    largest = estimate_columns("largest_regret", one.largest_regret)
    by_group: dict[str, Any] = {}
    for name in one.by_group:
        for column, regrets in (("regret", one.regret), ("regret_to_best", one.regret_to_best)):
            by_group[f"{name}_{column}"] = regrets[name].value if name in regrets else None
    return {**largest, "largest_regret_group": one.largest_regret_group, **by_group}


def estimate_columns(name: str, estimate: Estimate) -> dict[str, float | None]:
    """Return an estimate as columns of a table: NAME, NAME_low and NAME_high."""
    low, high = estimate.interval or (None, None)
    return {name: estimate.value, f"{name}_low": low, f"{name}_high": high}


def compare(
    runs: Iterable[Runs] | Runs,
    *,
    metric: str | None = None,
    task: str | None = None,
    part: str = "all",
    n_resamples: int = 2000,
) -> Comparison:
    """Compare runs; those that differ in nothing but the seed are one contender.

    Users are resampled from each group, seeds from the seeds that all contenders share; every
    contender sees the same resamples, so what is hard for all of them cancels in the differences.

    Parameters
    ----------
    runs
        Finished runs in any mix: records, runs, stores or their folders, run files, JSON exports.
    metric
        Such as `recall@20`, or any other that the runs have computed; by default NDCG at the runs' k.
        One that is a single number for all users is compared without intervals.
    task
        `event` (a list at each event of the next period), `moment` (one for simultaneous events), `next` (one for the
        period) or `remain` (one for everything that follows); by default `remain` if all runs have it, else the first
        that all of them have.
    part
        Users to compare on: `all`, `warm` (seen before) or `cold` (new).
    n_resamples
        Bootstrap samples.

    Raises
    ------
    ConfigurationError
        If fewer than two contenders are given, or the runs lack the metric or the task.
    DataError
        If the runs are not on the same data, or share no seed.

    Examples
    --------
    >>> from fairstream import compare, read_events, run, synthetic_stream
    >>> stream = synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=0)
    >>> log = read_events(stream.events, users=stream.users)
    >>> options = dict(model="mf", pretrain_epochs=1, update_epochs=1, n_periods=2, device="cpu")
    >>> runs = [run(log, method, **options) for method in ("finetune", "fade")]
    >>> for finished in runs:
    ...     results = list(finished)
    >>> comparison = compare(runs, n_resamples=50)
    >>> [contender.label for contender in comparison.contenders]
    ['Finetune', 'FADE']

    """
    if part not in PARTS:
        raise ConfigurationError(f"the users compared must be {', '.join(PARTS)}, got {part!r}")
    if n_resamples < 1:
        raise ConfigurationError(f"n_resamples must be >= 1, got {n_resamples}; without draws there are no intervals")
    grouped = _by_settings(read_runs(runs), task or DEFAULT_TASK, metric)
    seeds = _shared_seeds(grouped)
    records = [[record for record in group if record.seed in seeds] for group in grouped]
    flat = [record for group in records for record in group]
    _need_one_test(flat)
    like = flat[0]
    metric = metric or f"ndcg@{like.config['k']}"
    task = _shared_task(flat, task)
    tests = _tests(flat, metric, task, part)
    if not any(len(tested.users) for periods in tests for tested in periods):
        raise DataError(f"no {part} users were tested")
    groups = [record.about["data"]["groups"] for record in flat]
    labels = _labels([group[0] for group in records])
    min_size, each = like.config["min_group_size"], range(len(labels))
    measured = measure(tests, like.metric(metric), groups, min_size, len(seeds), n_resamples)
    regret, own = None, [dict[str, Estimate]() for _ in each]
    if not any(metric in tested.totals for periods in tests for tested in periods):
        if not all(record.metrics[:1] == [metric] for record in flat):  # levels are tested by the main metric alone
            tests = [[replace(part, levels=(), level_values=None) for part in periods] for periods in tests]
        panels = level_panels(tests, like.metric(metric), groups, min_size, len(seeds))
        regret, own = SystemRegret.of(panels, n_resamples), [own_regret(panel, n_resamples) for panel in panels]
    performance, disparity = ([of(c, None) for c in each] for of in (measured.performance, measured.disparity))
    is_on_front = pareto_front([(-p.value, d.value) for p, d in zip(performance, disparity, strict=True)])
    means = measured.by_group.astype(object)
    means[np.isnan(measured.by_group)] = None
    contenders = tuple(
        Contender(
            labels[c],
            performance[c],
            disparity[c],
            groups[0][int(np.nanargmin(measured.gaps[:, c]))],
            {name: means[groups[0].index(name), c] for name in ordered(groups[0])},
            is_on_front[c],
            own[c],
            {} if regret is None else regret.by_group(c),
            None if regret is None else regret.largest(c),
            None if regret is None else regret.worst(c),
            seed_certificate(measured.by_seed[c].tolist()) if len(seeds) > 1 else None,
        )
        for c in each
    )
    differences = tuple(
        Difference(
            labels[a],
            labels[b],
            measured.performance(a, b),
            measured.disparity(a, b),
            None if regret is None else regret.largest(a, b),
        )
        for a in each
        for b in each
        if a != b
    )
    n_users = len(np.unique(np.concatenate([tested.users for tested in tests[0]])))
    notes = dict.fromkeys(
        f"{label}: {note}"
        for label, of in zip(labels, records, strict=True)
        for record in of
        for note in record.about.get("notes", ())
    )
    attainable, best = {}, {}
    if regret is not None:
        attainable = dict(zip(regret.names, regret.attainable, strict=True))
        best = {
            name: labels[c] if level is None else f"{labels[c]} at {level}"
            for name, (c, level) in zip(regret.names, regret.best, strict=True)
        }
    about = (metric, task, part, tuple(seeds), n_users, len(groups[0]))
    return Comparison(*about, contenders, differences, tuple(notes), attainable, best)


def by_label(
    runs: Iterable[Runs] | Runs, *, metric: str | None = None, task: str | None = None
) -> tuple[dict[str, list[Record]], str, str]:
    """Return runs by the label that `compare` gives them, each with its seeds, and the task and metric to show.

    The parameters are those of `compare`. Raises ConfigurationError if not all runs have the task or the metric,
    DataError if there are no runs.
    """
    groups = _by_settings(read_runs(runs), task or DEFAULT_TASK, metric)
    if not groups:
        raise DataError("there are no finished runs to show")
    flat = [record for group in groups for record in group]
    if len({record.about["data"]["sha256"] for record in flat}) > 1:
        raise DataError("the runs are on different events; show those of each log on their own")
    task = _shared_task(flat, task)
    shared = [name for name in flat[0].about["summary"][task] if all(name in r.about["summary"][task] for r in flat)]
    if not shared or metric not in (None, *shared):
        raise ConfigurationError(
            f"metric must be one that all runs have, of {', '.join(shared) or 'none'}, got {metric!r}"
        )
    labels = _labels([group[0] for group in groups])
    return dict(zip(labels, groups, strict=True)), task, metric or shared[0]


def read_runs(runs: Iterable[Runs] | Runs) -> list[Record]:
    """Return the records of runs in any of the forms that `compare` takes; raises DataError where there is no run."""
    if isinstance(runs, Runs):
        runs = [runs]
    records = []
    for source in runs:
        if isinstance(source, Record):
            records.append(source)
        elif isinstance(source, Run):
            records.append(source.record())
        elif isinstance(source, Store):
            records += source.records()
        else:
            records += [Record.read(path) for path in _files(Path(source))]
    return records


def _files(path: Path) -> list[Path]:
    """Return the run files of a store or a folder, or the path itself."""
    if not path.is_dir():
        return [path]
    runs = path / "runs"
    files = sorted(runs.glob("*.parquet")) if runs.is_dir() else sorted([*path.glob("*.parquet"), *path.glob("*.json")])
    if not files:
        raise DataError(f"{path} holds no runs; give a store, a run file of it, or what `fairstream run --json` wrote")
    return files


def _by_settings(records: Iterable[Record], task: str, metric: str | None) -> list[list[Record]]:
    """The records in groups that differ in nothing but the seed; of two of one run, the one with task and metric."""
    groups: dict[str, dict[int, Record]] = {}
    for record in records:
        about = [record.about["data"]["sha256"], record.settings]
        group = groups.setdefault(json.dumps(about, sort_keys=True), {})
        other = group.setdefault(record.seed, record)
        if other is not record and not record.has_hits_of(other):
            raise DataError(
                f"two runs of {record.config['method']} with seed {record.seed} differ in nothing but their results; "
                f"leave one of them out"
            )
        group[record.seed] = max(other, record, key=lambda run: (task in run.tasks, metric in run.metrics))
    return [[group[seed] for seed in sorted(group)] for group in groups.values()]


def _shared_seeds(groups: Sequence[Sequence[Record]]) -> list[int]:
    if len(groups) < 2:
        raise ConfigurationError(
            f"compare needs runs that differ in more than their seed, got {len(groups)} of that kind; "
            f"add runs of another method or with other settings"
        )
    shared = set.intersection(*({record.seed for record in group} for group in groups))
    if not shared:
        raise DataError("the runs have no seed in common, so they cannot be paired; run them with the same seeds")
    return sorted(shared)


def _need_one_test(records: Sequence[Record]) -> None:
    """Raise DataError unless all runs were evaluated on the same events in the same way."""

    def about(record: Record, name: str) -> Any:
        value = {**record.config, **record.about["data"]}[name]
        return sorted(value) if name == "groups" else value  # in one order, whichever is advantaged

    first = records[0]
    for record in records:
        for name in ("sha256", "group", "groups", "period_ends", "k", "min_group_size"):
            ours, theirs = about(first, name), about(record, name)
            if ours != theirs:
                raise DataError(
                    f"only runs on the same data can be compared: {name} is {ours} for {first.config['method']} and "
                    f"{theirs} for {record.config['method']}"
                )
        if record.protocol.way_of_testing != first.protocol.way_of_testing:
            raise DataError(
                f"only runs under the same protocol can be compared: {first.config['protocol']} and "
                f"{record.config['protocol']} differ"
            )


def _shared_task(records: Sequence[Record], task: str | None) -> str:
    """Return the task to compare on; all runs must have it."""
    first, *others = (record.tasks for record in records)
    shared = [name for name in first if all(name in tasks for tasks in others)]
    if not shared:
        raise ConfigurationError("the runs share no task that they were evaluated on; evaluate them on the same one")
    if task is None:
        return DEFAULT_TASK if DEFAULT_TASK in shared else shared[0]
    if task not in shared:
        raise ConfigurationError(f"task must be one of {', '.join(shared)}, got {task!r}")
    return task


def _tests(records: Sequence[Record], metric: str, task: str, part: str) -> list[list[UserResults]]:
    """The tested users of each period, of each contender and seed."""
    # The protocol's metrics, which the hits give, and those of the results.
    known = [[*(f"{name}@{run.config['k']}" for name in run.protocol.metrics), *run.metrics] for run in records]
    metrics = [name for name in dict.fromkeys(known[0]) if all(name in names for names in known)]
    if metric not in metrics:
        raise ConfigurationError(f"metric must be one of {', '.join(metrics)}, got {metric!r}")
    tests = [record.tested(task) for record in records]
    if part == "all":
        return tests
    if any(metric in tested.totals for periods in tests for tested in periods):
        raise ConfigurationError(f"{metric} is one number for all users, not for {part} users; compare part='all'")
    return [[tested.where(tested.is_cold == (part == "cold")) for tested in periods] for periods in tests]


def _labels(records: Sequence[Record]) -> list[str]:
    """The method, the model if they differ, and those settings in which contenders with the same model differ."""
    settings = [record.settings for record in records]
    names = ["model", *dict.fromkeys(name for part in settings for name in part if name not in ("method", "model"))]

    def differs(name: str, part: Mapping[str, Any]) -> bool:
        others = [other for other in settings if name == "model" or other.get("model") == part.get("model")]
        if len({str(other[name]) for other in others if name in other}) > 1:
            return True
        is_default = name in RunConfig.model_fields and part[name] == RunConfig.model_fields[name].default
        return not is_default and any(name not in other for other in others if other["method"] == part["method"])

    def named(part: Mapping[str, Any]) -> list[str]:  # without the defaults of models
        return [name for name in names if part.get(name) is not None and differs(name, part)]

    return [" ".join([part["method"], *(f"{name}={part[name]}" for name in named(part))]) for part in settings]
