"""A finished run: Parquet in a store, JSON as its export.

The Parquet file has a row for each tested user of each period and task, in the task `event` for each event and in
`moment` for each moment, with a column for each metric that the hits do not determine; everything else is JSON in its
metadata, the results compressed. A store keeps seconds in a separate file: they differ each time, and a repeated run
must give the same bytes.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fairstream.errors import DataError
from fairstream.evaluation import AggregateMetric, GroupScores, MetricAtK, UserResults, built_in, score_periods
from fairstream.evaluation.regret import LEVEL_DIGITS
from fairstream.experiments.config import Protocol, protocol_of
from fairstream.experiments.identity import used_settings
from fairstream.models import Level
from fairstream.randomness import Randomness

FORMAT = 3
Tests = dict[tuple[int, str], UserResults]  # (t, task) → the tested users

_KEY, _RESULTS_KEY = b"fairstream", b"fairstream.results"
_DESCRIPTION = ("config", "data", "versions")  # uncompressed in the metadata, so that any tool can read it
_SCHEMA = pa.schema(
    [
        ("t", pa.int16()),
        ("task", pa.string()),
        ("user", pa.int32()),
        ("group", pa.int16()),
        ("is_cold", pa.bool_()),
        ("n_positives", pa.int32()),
        ("hit_ranks", pa.list_(pa.int16())),
        ("stratum", pa.int16()),
        ("level_values", pa.list_(pa.float32())),  # in the first row of each user
    ]
)
"""The columns of every run; those of metrics, NAME@K, come after them."""
_TOTALS = "totals"  # the key of metrics with one number for all users: [t, task, NAME@K → number]
_LEVELS = "levels"  # the key of the levels of `level_values`: [t, task, levels]
_GIVE = "give a store, a run file of it, or what `--json` wrote"
_SECTIONS = {"config", "data", "pretrained", "periods", "summary", "slices"}


@dataclass(frozen=True, eq=False)
class Record:
    """A finished run.

    Examples
    --------
    >>> from fairstream import Record, read_events, run, synthetic_stream
    >>> stream = synthetic_stream(n_users=150, n_items=80, n_events=4000, seed=0)
    >>> log = read_events(stream.events, users=stream.users)
    >>> finished = run(log, "finetune", model="mf", pretrain_epochs=1, update_epochs=1, n_periods=3, device="cpu")
    >>> for result in finished:
    ...     pass
    >>> record = finished.record()
    >>> record.seed, record.config["method"], sorted(record.document["summary"])
    (0, 'Finetune', ['event', 'next', 'remain'])

    """

    about: Mapping[str, Any]
    """The run's document without the tested users."""
    _load: Callable[[], Tests] = field(repr=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Record:
        """Return the record of a JSON export (`Run.document()`)."""
        tests: dict[tuple[int, str], Any] = {}

        def without_users(at: tuple[int, str], evaluation: Mapping[str, Any]) -> dict[str, Any]:
            rest = dict(evaluation)
            tests[at] = rest.pop("tested")
            return rest

        about = _with_tasks(document, without_users)
        return cls(about, lambda: {at: UserResults.from_dict(tested) for at, tested in tests.items()})

    @classmethod
    def of_periods(
        cls, about: Mapping[str, Any], results: Sequence[Mapping[str, Any]], tests: Tests, seconds: Sequence[float]
    ) -> Record:
        """Return the record of a run from the results and seconds of its periods, pre-training first."""
        document = {**about, "pretrained": results[0] if results else None, "periods": list(results[1:])}
        record = cls(document, lambda: tests)
        summary = document["summary"] = record._summary() if document["periods"] else {}
        document["slices"] = {
            task: _mean_slices([result["tasks"][task]["slices"] for result in document["periods"]]) for task in summary
        }
        document["notes"] = [*about["notes"], *_notes_on_advantaged(summary)]
        document["timing"] = {"pretrain_s": seconds[0] if seconds else None, "update_s": list(seconds[1:])}
        return record

    @classmethod
    def joined(cls, parts: Iterable[Record]) -> Record:
        """Join parts, each with one period, into one run."""
        ordered = sorted(parts, key=lambda part: part.about["periods"][0]["t"])
        shared = {name: ordered[0].about[name] for name in (*_DESCRIPTION, "notes")}
        tests = {at: tested for part in ordered for at, tested in part.tests.items()}
        results = [part.about["periods"][0] for part in ordered]
        return cls.of_periods(shared, results, tests, [part.about["timing"]["update_s"][0] for part in ordered])

    def _summary(self) -> dict[str, Any]:
        """Task → metric → means over the periods, as the paper averages."""
        metrics = [self.metric(name) for name in self.metrics]
        rng, n_periods = Randomness(self.seed), len(self.about["periods"])
        summary = {}
        for task in self.tasks:
            scores = self.scores(self.tested(task), metrics, rng.numpy("resampling of the mean", n_periods))
            summary[task] = {name: score.to_dict() for name, score in scores.items()}
        return summary

    @classmethod
    def read(cls, path: Path | str) -> Record:
        """Read a run file of a store, or a JSON export; raises DataError if the file is neither."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                is_parquet = file.read(4) == b"PAR1"
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
        return _read_parquet(path) if is_parquet or path.suffix == ".parquet" else _read_json(path)

    @cached_property
    def tests(self) -> Tests:
        """(t, task) → the tested users, read from the file on first use."""
        return self._load()

    @property
    def document(self) -> dict[str, Any]:
        """The whole run in the layout of `Run.document()`, as `--json` writes it."""
        document = _with_tasks(self.about, lambda at, part: {**part, "tested": self.tests[at].to_dict()})
        return {**document, "timing": self.about.get("timing")}

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.about["config"]
        return config

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the seed that decides the results: the options in use, and the advantaged group."""
        return {**used_settings(self.config), "advantaged": self.about["data"]["advantaged"]}

    @cached_property
    def protocol(self) -> Protocol:
        return protocol_of(self.config["protocol"])

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """The results of all periods, pre-training (t = 0) first, without the tested users."""
        first = self.about.get("pretrained")
        return [*([] if first is None else [first]), *self.about["periods"]]

    @property
    def tasks(self) -> list[str]:
        """The tasks that the run was evaluated on."""
        return list(self.about["periods"][0]["tasks"])

    @cached_property
    def metrics(self) -> list[str]:
        """NAME@K of the metrics in the results, the main one first."""
        return [name for name in next(iter(self.about["periods"][0]["tasks"].values())) if "@" in name]

    def metric(self, name: str) -> MetricAtK | str:
        """Return a metric for `UserResults.values_of`: computed from the hits, or the name of its stored values."""
        return built_in(name, self.protocol.metrics) or name

    def scores(
        self, tests: Sequence[UserResults], metrics: Sequence[MetricAtK | str], rng: np.random.Generator
    ) -> dict[str, GroupScores]:
        """The scores of stored tests, averaged over them, as the run's configuration says."""
        config, data = self.config, self.about["data"]
        has_advantaged, size = data["advantaged"] is not None, config["min_group_size"]
        return score_periods(
            tests, metrics, data["groups"], size, rng, config["n_resamples"], has_advantaged=has_advantaged
        )[0]

    def tested(self, task: str) -> list[UserResults]:
        """Return the tested users of each period after pre-training."""
        return [self.tests[result["t"], task] for result in self.about["periods"]]

    def table(self) -> pa.Table:
        """One row for each tested user of each period and task; in the tasks `event` and `moment` for each list."""
        schema = _with_values(name for tested in self.tests.values() for name in tested.values)
        parts = [_rows(t, task, tested, schema) for (t, task), tested in self.tests.items()]
        return pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()

    def has_hits_of(self, other: Record) -> bool:
        """Whether the tasks that both have were tested on the same users, with the same hits."""
        pairs = [(self.tests[at], other.tests[at]) for at in self.tests.keys() & other.tests.keys()]
        names = ("users", "hits", "n_positives")
        return all(np.array_equal(getattr(one, name), getattr(two, name)) for one, two in pairs for name in names)

    def content(self) -> bytes:
        """The record as the bytes of a Parquet file."""
        buffer = io.BytesIO()
        description = {name: self.about[name] for name in _DESCRIPTION if name in self.about}
        results = {name: part for name, part in self.about.items() if name not in _DESCRIPTION}
        if any(tested.totals for tested in self.tests.values()):
            results[_TOTALS] = [[*at, tested.to_dict()["totals"]] for at, tested in self.tests.items() if tested.totals]
        if any(tested.levels for tested in self.tests.values()):
            levels = {at: [list(level) for level in tested.levels] for at, tested in self.tests.items()}
            results[_LEVELS] = [[*at, each] for at, each in levels.items() if each]
        table = self.table()
        packed = base64.b64encode(zlib.compress(json.dumps(results, allow_nan=False).encode(), 9))
        with pq.ParquetWriter(buffer, table.schema, compression="zstd", compression_level=9) as writer:
            writer.write_table(table)
            # Not in the schema, which would keep a second copy of it.
            writer.add_key_value_metadata(
                {_KEY: json.dumps({"format": FORMAT, **description}, allow_nan=False), _RESULTS_KEY: packed}
            )
        return buffer.getvalue()


def _with_tasks(about: Mapping[str, Any], change: Callable[[tuple[int, str], Any], Any]) -> dict[str, Any]:
    """The document with `change((t, task), evaluation)` in place of each evaluation."""

    def changed(result: Mapping[str, Any]) -> dict[str, Any]:
        return {**result, "tasks": {name: change((result["t"], name), part) for name, part in result["tasks"].items()}}

    first = about.get("pretrained")
    return {
        **about,
        "pretrained": None if first is None else changed(first),
        "periods": [changed(result) for result in about["periods"]],
    }


def _read_json(path: Path) -> Record:
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        raise DataError(f"{path} is not JSON; {_GIVE}") from None
    try:
        tasks = [task for result in document["periods"] for task in result["tasks"].values()]
        is_run = bool(tasks) and all("tested" in task for task in tasks) and set(document) >= _SECTIONS
        is_run &= {"seed", "method", "protocol", "k"} <= set(document["config"]) and "sha256" in document["data"]
    except (KeyError, TypeError, AttributeError):
        is_run = False
    if not is_run:
        raise DataError(f"{path} is not a finished run; {_GIVE}")
    return Record.from_document(document)


def _read_parquet(path: Path) -> Record:
    """Read everything but the users' rows."""
    try:
        schema = pq.read_schema(path)
        metadata = pq.read_metadata(path).metadata
        about = json.loads(metadata[_KEY])
        own, of_metrics = schema.names[: len(_SCHEMA)], schema.names[len(_SCHEMA) :]
        is_run = about.pop("format") == FORMAT and own == _SCHEMA.names and all("@" in name for name in of_metrics)
        about |= json.loads(zlib.decompress(base64.b64decode(metadata[_RESULTS_KEY])))
        totals = {
            (t, task): {name: AggregateMetric.from_dict(total) for name, total in by_name.items()}
            for t, task, by_name in about.pop(_TOTALS, [])
        }
        levels = {(t, task): tuple(Level(*one) for one in each) for t, task, each in about.pop(_LEVELS, [])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error, pa.ArrowException):
        is_run = False
    if not is_run:
        raise _not_a_run(path)
    seconds = path.parent.parent / "times" / f"{path.stem}.json"
    if "timing" not in about and path.parent.name == "runs" and seconds.exists():
        try:
            about["timing"] = json.loads(seconds.read_bytes())
        except (OSError, ValueError):
            raise DataError(f"{seconds} is damaged; remove it: only the run's seconds are lost") from None
    record = Record(about, lambda: _read_tests(path, record, totals, levels))
    return record


def _read_tests(
    path: Path,
    record: Record,
    totals: Mapping[tuple[int, str], Mapping[str, AggregateMetric]],
    levels: Mapping[tuple[int, str], tuple[Level, ...]],
) -> Tests:
    try:
        table = pq.read_table(path)
        table = table.cast(_with_values(table.column_names[len(_SCHEMA) :]))
    except (OSError, pa.ArrowException):
        raise _not_a_run(path) from None
    tests = {}
    for t, task in [(result["t"], task) for result in record.results for task in result["tasks"]]:
        rows = table.filter((pc.field("t") == t) & (pc.field("task") == task))
        tested = _tested(rows, record.config["k"], totals.get((t, task), {}), has_lists=task in ("event", "moment"))
        tests[t, task] = _with_levels(tested, rows, levels.get((t, task), ()))
    return tests


def _not_a_run(path: Path) -> DataError:
    return DataError(f"{path} is not a run of a store (format {FORMAT}); remove it, and it is computed again")


def _with_values(names: Iterable[str]) -> pa.Schema:
    """The schema of runs with these metrics."""
    return pa.schema([*_SCHEMA, *((name, pa.float64()) for name in dict.fromkeys(names))])


def _rows(t: int, task: str, tested: UserResults, schema: pa.Schema) -> pa.Table:
    n = len(tested.hits)
    n_lists = 1 if tested.n_lists is None else tested.n_lists
    values = {name: np.repeat(values, n_lists) for name, values in tested.values.items()}
    row, place = np.nonzero(tested.hits)
    ends = np.cumsum(np.bincount(row, minlength=n))
    ranks = pa.ListArray.from_arrays(pa.array(np.r_[0, ends], pa.int32()), pa.array(place + 1, pa.int16()))
    columns = [
        pa.array(np.full(n, t), pa.int16()),
        pa.array([task] * n, pa.string()),
        pa.array(np.repeat(tested.users, n_lists), pa.int32()),
        pa.array(np.repeat(tested.codes, n_lists), pa.int16()),
        pa.array(np.repeat(tested.is_cold, n_lists)),
        pa.array(tested.n_positives.astype(np.int32)),
        ranks,
        pa.nulls(n, pa.int16()) if tested.strata is None else pa.array(np.repeat(tested.strata, n_lists), pa.int16()),
        _level_column(tested, n),
        *(pa.array(values.get(name, [None] * n), pa.float64()) for name in schema.names[len(_SCHEMA) :]),
    ]
    return pa.table(columns, schema=schema)


def _level_column(tested: UserResults, n: int) -> pa.Array:
    if tested.level_values is None:
        return pa.nulls(n, pa.list_(pa.float32()))
    width, n_lists = (
        tested.level_values.shape[1],
        np.ones(len(tested.users)) if tested.n_lists is None else tested.n_lists,
    )
    is_first = np.zeros(n, np.bool_)
    is_first[(np.cumsum(n_lists) - n_lists).astype(np.int64)] = True
    bounds = np.r_[0, np.cumsum(is_first * width)]
    values = pa.array(tested.level_values.ravel(), pa.float32())
    lists = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), values)
    return pc.if_else(pa.array(is_first), lists, pa.scalar(None, lists.type))


def _with_levels(tested: UserResults, rows: pa.Table, levels: tuple[Level, ...]) -> UserResults:
    """Add the strata and the values at each level from the rows of a file."""
    first = np.arange(len(rows)) if tested.n_lists is None else np.cumsum(tested.n_lists) - tested.n_lists
    strata = None if rows["stratum"].null_count else rows["stratum"].to_numpy()[first].astype(np.int16)
    values = None
    if levels:
        flat = rows["level_values"].combine_chunks().flatten().to_numpy()
        values = flat.astype(np.float64).round(LEVEL_DIGITS).reshape(len(tested.users), len(levels))
    return replace(tested, strata=strata, levels=levels, level_values=values)


def _tested(rows: pa.Table, k: int, totals: Mapping[str, AggregateMetric], *, has_lists: bool) -> UserResults:
    n, ranks = len(rows), rows["hit_ranks"].combine_chunks()
    hits = np.zeros((n, k), np.bool_)
    hits[pc.list_parent_indices(ranks).to_numpy(), ranks.flatten().to_numpy().astype(np.int64) - 1] = True

    def column(name: str, dtype: Any) -> Any:
        return rows[name].to_numpy().astype(dtype)

    stored = [name for name in rows.column_names if "@" in name and n and not rows[name].null_count]
    first, n_lists = np.arange(n), None
    if has_lists:
        _, first, n_lists = np.unique(column("user", np.int64), return_index=True, return_counts=True)
    return UserResults(
        column("user", np.int64)[first],
        column("group", np.int16)[first],
        column("is_cold", np.bool_)[first],
        hits,
        column("n_positives", np.int64),
        {name: column(name, np.float64)[first] for name in stored},
        totals,
        n_lists,
    )


def mean_of(parts: Sequence[Any]) -> Any:
    """Return the mean of documents of one shape, number by number; missing numbers do not count.

    >>> mean_of([{"a": 1, "b": [2]}, {"a": 3, "b": [None]}])
    {'a': 2.0, 'b': [2.0]}
    """
    parts = [part for part in parts if part is not None]
    if not parts:
        return None
    if isinstance(parts[0], Mapping):
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: mean_of([part.get(name) for part in parts]) for name in names}
    if isinstance(parts[0], list):
        return [mean_of(column) for column in zip(*parts, strict=True)]
    return sum(parts) / len(parts)


def _mean_slices(periods: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Each slice's users, events, means and PD, averaged over the periods; intervals do not average."""
    averaged = ("mean", "by_group", "performance_disparity")

    def averages(part: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value if isinstance(value, int) else {name: value[name] for name in averaged}
            for key, value in part.items()
        }

    means: dict[str, Any] = mean_of([{name: averages(part) for name, part in each.items()} for each in periods])
    return means


def _notes_on_advantaged(summary: Mapping[str, Any]) -> list[str]:
    """Return a note on the first task in which the advantaged group is behind, over all periods."""
    mains = {task: next(iter(scores.items())) for task, scores in summary.items() if scores}
    notes = {task: GroupScores.from_dict(score).note_on_advantaged(name) for task, (name, score) in mains.items()}
    return [f"on the task {task}, {note}" for task, note in notes.items() if note is not None][:1]
