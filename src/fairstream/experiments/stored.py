"""A run as a Parquet file: a row for each user tested, and everything else in the file's metadata.

Times are not in it: they are never the same twice, and a run that is done again has to give the
same file, byte for byte.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from fairstream.errors import DataError
from fairstream.evaluation import UserResults
from fairstream.experiments.record import Record
from fairstream.experiments.results import TASKS, PeriodResult

FORMAT = 1
_KEY = b"fairstream"
_SCHEMA = pa.schema(
    [
        ("t", pa.int16()),
        ("task", pa.dictionary(pa.int8(), pa.string())),
        ("user", pa.int32()),
        ("group", pa.int16()),
        ("is_cold", pa.bool_()),
        ("n_positives", pa.int32()),
        ("hit_ranks", pa.list_(pa.int16())),
    ]
)


@dataclass(frozen=True, eq=False)
class StoredRun:
    """Some or all periods of a run, as they are stored."""

    about: Mapping[str, Any]
    """The configuration, the data, the versions, and under `results` what each period came to."""
    table: pa.Table

    @classmethod
    def of(cls, about: Mapping[str, Any], results: Sequence[PeriodResult], **found: Any) -> StoredRun:
        """Of a run's `about()` and its periods; `found` is whatever else is to be kept of it."""
        parts = [_rows(result.t, task, result.tasks[task].tested) for result in results for task in TASKS]
        content = {"format": FORMAT, **about, "results": [_summary(result) for result in results], **found}
        return cls(content, pa.concat_tables(parts))

    @classmethod
    def joined(cls, parts: Iterable[StoredRun]) -> StoredRun:
        """One run from parts that hold different periods of it."""
        ordered = sorted(parts, key=lambda part: part.about["results"][0]["t"])
        results = [result for part in ordered for result in part.about["results"]]
        return cls({**ordered[0].about, "results": results}, pa.concat_tables(part.table for part in ordered))

    def content(self) -> bytes:
        """The file."""
        buffer = io.BytesIO()
        table = self.table.combine_chunks().replace_schema_metadata({_KEY: json.dumps(self.about, allow_nan=False)})
        pq.write_table(table, buffer, compression="zstd", compression_level=9)
        return buffer.getvalue()

    @classmethod
    def read(cls, path: Path) -> StoredRun:
        """A stored run, or one sentence that says why the file is none."""
        about = cls.read_about(path)
        try:
            return cls(about, pq.read_table(path).cast(_SCHEMA))
        except (OSError, pa.ArrowException):
            raise _not_a_run(path) from None

    @classmethod
    def read_about(cls, path: Path) -> Mapping[str, Any]:
        """Everything but the users' rows, without reading them."""
        try:
            schema = pq.read_schema(path)
            about: Mapping[str, Any] = json.loads(schema.metadata[_KEY])
            is_run = about["format"] == FORMAT and schema.names == _SCHEMA.names
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
            is_run = False
        if not is_run:
            raise _not_a_run(path)
        return about

    @cached_property
    def tests(self) -> dict[tuple[int, str], UserResults]:
        """(t, task) → the users tested."""
        columns = {name: self.table[name].combine_chunks() for name in _SCHEMA.names}
        t, task = columns["t"].to_numpy(), columns["task"].indices.to_numpy()
        codes = {name: code for code, name in enumerate(columns["task"].dictionary.to_pylist())}
        found = {}
        for period, name in ((result["t"], name) for result in self.about["results"] for name in TASKS):
            at = np.flatnonzero((t == period) & (task == codes.get(name)))  # together; none if nobody was tested
            start, stop = (int(at[0]), int(at[-1]) + 1) if len(at) else (0, 0)
            found[period, name] = _tested(columns, start, stop, self.about["config"]["k"])
        return found

    def record(self) -> Record:
        """What `compare` takes, of the periods after pre-training."""
        periods = [
            {"t": result["t"], "tasks": {task: {"tested": self.tests[result["t"], task].to_dict()} for task in TASKS}}
            for result in self.about["results"]
            if result["t"] > 0
        ]
        summary: dict[str, Any] = dict.fromkeys(TASKS)
        return Record(
            {"config": self.about["config"], "data": self.about["data"], "periods": periods, "summary": summary}
        )


def _not_a_run(path: Path) -> DataError:
    return DataError(f"{path} is not a run of a store (format {FORMAT}); remove it, and it is computed again")


def _summary(result: PeriodResult) -> dict[str, Any]:
    """What can be read without a tool of ours: means, by group, and the gap."""
    tasks = {
        task: {
            metric: {
                "mean": score.mean,
                "by_group": dict(score.by_group),
                "performance_disparity": score.performance_disparity,
            }
            for metric, score in judgement.metrics.items()
        }
        for task, judgement in result.tasks.items()
    }
    return {**result.about(), "tasks": tasks}


def _rows(t: int, task: str, tested: UserResults) -> pa.Table:
    n = len(tested.users)
    row, place = np.nonzero(tested.hits.numpy())
    ends = np.cumsum(np.bincount(row, minlength=n))
    ranks = pa.ListArray.from_arrays(pa.array(np.r_[0, ends], pa.int32()), pa.array(place + 1, pa.int16()))
    columns = [
        pa.array(np.full(n, t), pa.int16()),
        pa.DictionaryArray.from_arrays(pa.array(np.full(n, TASKS.index(task)), pa.int8()), pa.array(TASKS)),
        pa.array(tested.users, pa.int32()),
        pa.array(tested.codes, pa.int16()),
        pa.array(tested.is_cold),
        pa.array(tested.n_positives.numpy().astype(np.int32)),
        ranks,
    ]
    return pa.table(columns, schema=_SCHEMA)


def _tested(columns: Mapping[str, Any], start: int, stop: int, k: int) -> UserResults:
    n = stop - start
    lists = columns["hit_ranks"].slice(start, n)
    offsets = lists.offsets.to_numpy()
    hits = torch.zeros(n, k, dtype=torch.float64)
    ranks = lists.values.to_numpy()[offsets[0] : offsets[-1]]
    hits[np.repeat(np.arange(n), np.diff(offsets)), ranks.astype(np.int64) - 1] = 1.0

    def column(name: str, dtype: Any) -> Any:
        return columns[name].slice(start, n).to_numpy(zero_copy_only=False).astype(dtype)

    return UserResults(
        column("user", np.int64),
        column("group", np.int16),
        column("is_cold", np.bool_),
        hits,
        torch.from_numpy(column("n_positives", np.float64)),
    )
