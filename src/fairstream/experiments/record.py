"""A finished run as a file: Parquet in a store, JSON as its export.

A row for each tested user of each period and task, in the task `event` for each event, with a column
for each metric that the hits do not determine; everything else is JSON in the file's metadata, the
results compressed.
A store keeps seconds in a file of their own: they are never the same twice, and a run that is
repeated must give the same file, byte for byte.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fairstream.errors import DataError
from fairstream.evaluation import MetricAtK, Protocol, Total, UserResults
from fairstream.experiments.config import evaluation_protocol
from fairstream.experiments.identity import used_settings
from fairstream.experiments.results import notes_on_advantaged, reported_metrics, stored_metric, summarise_periods

FORMAT = 2
Tests = dict[tuple[int, str], UserResults]
"""(t, task) → the tested users."""

_KEY, _RESULTS_KEY = b"fairstream", b"fairstream.results"
_DESCRIPTION = ("config", "data", "versions")
"""What stands uncompressed in the metadata, for any tool to read."""
_SCHEMA = pa.schema(
    [
        ("t", pa.int16()),
        ("task", pa.string()),
        ("user", pa.int32()),
        ("group", pa.int16()),
        ("is_cold", pa.bool_()),
        ("n_positives", pa.int32()),
        ("hit_ranks", pa.list_(pa.int16())),
    ]
)
"""The columns of every run; those of metrics, NAME@K, come after them."""
_TOTALS = "totals"
"""Where metrics that are one number for all users stand: [t, task, NAME@K → number]."""
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
    >>> record = Record.from_document(finished.document())
    >>> record.seed, record.config["method"], sorted(record.document["summary"])
    (0, 'Finetune', ['event', 'next', 'remain'])

    """

    about: Mapping[str, Any]
    """The run's document without the tested users."""
    _load: Callable[[], Tests] = field(repr=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Record:
        """Return the record of what `Run.document()` gives or a JSON export holds."""
        about = dict(document)
        if document.get("pretrained") is not None:
            about["pretrained"] = _without_users(document["pretrained"])
        about["periods"] = [_without_users(result) for result in document["periods"]]
        results = list(_results(document))
        return cls(
            about,
            lambda: {
                (result["t"], task): UserResults.from_dict(evaluation["tested"])
                for result in results
                for task, evaluation in result["tasks"].items()
            },
        )

    @classmethod
    def joined(cls, parts: Iterable[Record]) -> Record:
        """Return the run of which each part holds one period, computed apart from the others."""
        ordered = sorted(parts, key=lambda part: part.about["periods"][0]["t"])
        tests = {at: tested for part in ordered for at, tested in part.tests.items()}
        first, *later = (part.about["periods"][0] for part in ordered)
        shared = {name: ordered[0].about[name] for name in ("config", "data", "versions")}
        timing = {
            "pretrain_s": ordered[0].about["timing"]["update_s"][0],
            "update_s": [part.about["timing"]["update_s"][0] for part in ordered[1:]],
        }
        about = {**shared, "notes": ordered[0].about["notes"], "pretrained": first, "periods": later}
        about |= summarise_periods(about, tests)
        about["notes"] = [*about["notes"], *notes_on_advantaged(about, about["summary"])]
        return cls({**about, "timing": timing}, lambda: tests)

    @classmethod
    def read(cls, path: Path | str) -> Record:
        """Read a run file of a store, or a JSON export.

        Raises
        ------
        DataError
            If the file is neither.

        """
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
        document = {"timing": None, **self.about}
        if document["pretrained"] is not None:
            document["pretrained"] = self._with_users(document["pretrained"])
        return {**document, "periods": [self._with_users(result) for result in document["periods"]]}

    def _with_users(self, result: Mapping[str, Any]) -> dict[str, Any]:
        tasks = {
            task: {**evaluation, "tested": self.tests[result["t"], task].to_dict()}
            for task, evaluation in result["tasks"].items()
        }
        return {**result, "tasks": tasks}

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.about["config"]
        return config

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the run's results but for the seed: the options its method uses, and who is advantaged."""
        data = self.about["data"]
        advantaged = "auto" if data["advantaged_by"] == "auto" else data["advantaged"]
        return {**used_settings(self.config), "advantaged": advantaged}

    @cached_property
    def protocol(self) -> Protocol:
        return evaluation_protocol(self.config["protocol"])

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """The results of all periods, pre-training (t = 0) first, without the tested users."""
        return list(_results(self.about))

    @property
    def tasks(self) -> list[str]:
        """What the run was evaluated on."""
        return list(self.about["periods"][0]["tasks"])

    @cached_property
    def metrics(self) -> list[str]:
        """NAME@K of the metrics in the results, the main one first."""
        return reported_metrics(self.about)

    def metric(self, name: str) -> MetricAtK | str:
        """Return a metric of the results, in the form in which `UserResults.values_of` takes it."""
        return stored_metric(name, self.protocol)

    def tested(self, task: str) -> list[UserResults]:
        """Of each period after pre-training, the tested users."""
        return [self.tests[result["t"], task] for result in self.about["periods"]]

    def table(self) -> pa.Table:
        """One row for each tested user of each period and task; in the task `event` for each event."""
        schema = _with_values(name for tested in self.tests.values() for name in tested.values)
        parts = [_rows(t, task, tested, schema) for (t, task), tested in self.tests.items()]
        return pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()

    def hits(self, tasks: Container[str]) -> pa.Table:
        """The rows of some tasks, without the metrics' columns: the same for all records of one run."""
        ordered = sorted((at, tested) for at, tested in self.tests.items() if at[1] in tasks)
        parts = [_rows(*at, tested, _SCHEMA) for at, tested in ordered]
        return pa.concat_tables([_SCHEMA.empty_table(), *parts]).combine_chunks()

    def content(self) -> bytes:
        """The record as the bytes of a Parquet file."""
        buffer = io.BytesIO()
        description = {name: self.about[name] for name in _DESCRIPTION if name in self.about}
        results = {name: part for name, part in self.about.items() if name not in _DESCRIPTION}
        if any(tested.totals for tested in self.tests.values()):
            results[_TOTALS] = [[*at, tested.to_dict()["totals"]] for at, tested in self.tests.items() if tested.totals]
        table = self.table()
        packed = base64.b64encode(zlib.compress(json.dumps(results, allow_nan=False).encode(), 9))
        with pq.ParquetWriter(buffer, table.schema, compression="zstd", compression_level=9) as writer:
            writer.write_table(table)
            # Not in the schema, which would keep a second copy of it.
            writer.add_key_value_metadata(
                {_KEY: json.dumps({"format": FORMAT, **description}, allow_nan=False), _RESULTS_KEY: packed}
            )
        return buffer.getvalue()


def _results(about: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if about.get("pretrained") is not None:
        yield about["pretrained"]
    yield from about["periods"]


def _without_users(result: Mapping[str, Any]) -> dict[str, Any]:
    tasks = {
        task: {name: part for name, part in evaluation.items() if name != "tested"}
        for task, evaluation in result["tasks"].items()
    }
    return {**result, "tasks": tasks}


def _read_json(path: Path) -> Record:
    try:
        document = json.loads(path.read_bytes())
    except ValueError:
        raise DataError(f"{path} is not JSON; give a store, a run file of it, or what `--json` wrote") from None
    try:
        tasks = [task for result in document["periods"] for task in result["tasks"].values()]
        is_run = bool(tasks) and {"seed", "method", "protocol", "k"} <= set(document["config"])
        is_run &= "sha256" in document["data"] and all("tested" in task for task in tasks)
        is_run &= set(document) >= _SECTIONS
    except (KeyError, TypeError, AttributeError):
        is_run = False
    if not is_run:
        raise DataError(f"{path} is not a finished run; give a store, a run file of it, or what `--json` wrote")
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
            (t, task): {name: Total.from_dict(total) for name, total in by_name.items()}
            for t, task, by_name in about.pop(_TOTALS, [])
        }
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
    return Record(about, lambda: _read_tests(path, about, totals))


def _read_tests(path: Path, about: Mapping[str, Any], totals: Mapping[tuple[int, str], Mapping[str, Total]]) -> Tests:
    try:
        table = pq.read_table(path)
        table = table.cast(_with_values(table.column_names[len(_SCHEMA) :]))
    except (OSError, pa.ArrowException):
        raise _not_a_run(path) from None
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    t, task = columns["t"].to_numpy(), columns["task"].to_numpy(zero_copy_only=False)
    is_start = np.r_[True, (t[1:] != t[:-1]) | (task[1:] != task[:-1])][: len(t)]
    starts = np.flatnonzero(is_start).tolist()
    spans = {(int(t[start]), str(task[start])): (start, stop) for start, stop in pairwise([*starts, len(t)])}
    k = about["config"]["k"]
    tests = [(result["t"], name) for result in _results(about) for name in result["tasks"]]
    return {
        at: _tested(columns, *spans.get(at, (0, 0)), k, totals.get(at, {}), by_event=at[1] == "event") for at in tests
    }


def _not_a_run(path: Path) -> DataError:
    return DataError(f"{path} is not a run of a store (format {FORMAT}); remove it, and it is computed again")


def _with_values(names: Iterable[str]) -> pa.Schema:
    """The schema of runs with these metrics."""
    return pa.schema([*_SCHEMA, *((name, pa.float64()) for name in dict.fromkeys(names))])


def _rows(t: int, task: str, tested: UserResults, schema: pa.Schema) -> pa.Table:
    n = len(tested.hits)
    n_lists = 1 if tested.n_lists is None else tested.n_lists
    values = {name: np.repeat(values, n_lists) for name, values in tested.values.items()}
    row, place = np.nonzero(tested.hits.numpy())
    ends = np.cumsum(np.bincount(row, minlength=n))
    ranks = pa.ListArray.from_arrays(pa.array(np.r_[0, ends], pa.int32()), pa.array(place + 1, pa.int16()))
    columns = [
        pa.array(np.full(n, t), pa.int16()),
        pa.array([task] * n, pa.string()),
        pa.array(np.repeat(tested.users, n_lists), pa.int32()),
        pa.array(np.repeat(tested.codes, n_lists), pa.int16()),
        pa.array(np.repeat(tested.is_cold, n_lists)),
        pa.array(tested.n_positives.numpy().astype(np.int32)),
        ranks,
        *(pa.array(values.get(name, [None] * n), pa.float64()) for name in schema.names[len(_SCHEMA) :]),
    ]
    return pa.table(columns, schema=schema)


def _tested(
    columns: Mapping[str, Any], start: int, stop: int, k: int, totals: Mapping[str, Total], *, by_event: bool
) -> UserResults:
    n = stop - start
    lists = columns["hit_ranks"].slice(start, n)
    offsets = lists.offsets.to_numpy()
    hits = torch.zeros(n, k, dtype=torch.float64)
    ranks = lists.values.to_numpy()[offsets[0] : offsets[-1]]
    hits[np.repeat(np.arange(n), np.diff(offsets)), ranks.astype(np.int64) - 1] = 1.0

    def column(name: str, dtype: Any) -> Any:
        return columns[name].slice(start, n).to_numpy(zero_copy_only=False).astype(dtype)

    def is_there(name: str) -> bool:
        return columns[name].slice(start, n).null_count == 0

    first, n_lists = np.arange(n), None
    if by_event:
        _, first, n_lists = np.unique(column("user", np.int64), return_index=True, return_counts=True)
    return UserResults(
        column("user", np.int64)[first],
        column("group", np.int16)[first],
        column("is_cold", np.bool_)[first],
        hits,
        torch.from_numpy(column("n_positives", np.float64)),
        {name: column(name, np.float64)[first] for name in columns if "@" in name and n and is_there(name)},
        totals,
        n_lists,
    )
