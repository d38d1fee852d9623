"""Reading many files in parallel on a cluster, into the same log that one process would make of them.

This is a distributed sort. Events go through five steps; each has a task for each piece of the source, hash bucket or
range of time, and writes files for the next step (a shuffle) into a folder that all nodes see. The log is sorted by
the events' keys: the time and, among equal times, the position in the source.

1. `_read_piece` reads, checks and sorts a piece of the source, and sends its distinct ids to buckets by their hash.
2. `_number_ids` finds the first key of each id of a bucket; `_rank_ids` ranks those of all ids, which gives their rows.
3. `_find_rows` replaces the ids of a piece's events by rows, and sends the events to buckets by user.
4. `_order_users` sorts the events of a bucket's users, drops repeated pairs, and sends the events to ranges of time.
5. `_order_range` sorts the events of a range. The ranges, concatenated, are the log.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from fairstream.cluster import PROCESS_BYTES, Cluster
from fairstream.compiled import njit
from fairstream.data.groups import GroupValues, check_users, group_parts, intersection
from fairstream.data.inputs import DataFile, parts_of
from fairstream.data.log import EventLog, first_of_each, is_chronological, notes_on_order, pair_keys, require_events
from fairstream.data.source_parts import EVENTS, SourcePart, connect_duckdb
from fairstream.data.tables import Columns, EventParser, Repeats, combined
from fairstream.data.vocabulary import Rows, Vocabulary, id_column, utf8
from fairstream.errors import DataError
from fairstream.randomness import GOLDEN

_ROWS_AT_ONCE = 1 << 21
"""About how many events a piece, a bucket or a range has."""
_BYTES_PER_EVENT, _BYTES_PER_LINE = 300, 30
"""The memory of a task for an event, and the size of an event in a text file."""
_ROWS_PER_SAMPLE = 1 << 12
_PIECE_BITS = 40
"""The position of an event in the source is (number of the piece) << 40 | (row in the piece)."""
_ID_COLUMNS = ("user", "item")


class _Piece(NamedTuple):
    """A file, or some row groups of one, that one task reads."""

    file: DataFile
    row_groups: tuple[int, ...] | None
    """Of a Parquet file; None: all of it."""
    n_rows: int
    """An estimate."""


class _PieceSummary(NamedTuple):
    """What the task that has read a piece returns of it."""

    parser: EventParser
    n_rows: int
    n_missing: int
    """Rows, and those without a user; counted where the groups are columns of the events."""
    n_events: int
    time_type: str
    """The dtype of the times; "": there are no events."""
    id_types: tuple[str, str]
    is_sorted: bool
    first_time: Any
    last_time: Any
    sample: np.ndarray[Any, Any]
    """Some of the times, at equal distances in their order."""


@dataclass(frozen=True)
class _Plan:
    """What all tasks share: the settings, and the files between the steps."""

    folder: Path
    n_buckets: int
    names: tuple[str, ...]
    """The columns to read."""
    parser: EventParser
    group: tuple[str, ...]
    """The columns that make the groups, where they are columns of the events."""
    memory_limit: str
    pieces: tuple[int, ...] = ()
    """The numbers of the pieces that have events; known after step 1."""
    splitters: Any = None
    """The times at which the ranges begin, except the first; known after step 1."""

    def batch(self, step: str, writer: int, reader: int) -> pa.RecordBatch:
        """What one task of a step has written for one task of the next."""
        return pa.ipc.open_file(pa.memory_map(str(self._path(step, writer)))).get_batch(reader)

    def batches(self, step: str, writers: Iterable[int], reader: int) -> pa.Table:
        """What several tasks of a step have written for one task of the next, in their order."""
        return pa.Table.from_batches([self.batch(step, writer, reader) for writer in writers])

    def write(self, step: str, writer: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write a batch for each task of the next step; atomically, because the worker may be killed."""
        path = self._path(step, writer)
        temporary = path.with_name(f"{path.name}.{uuid4().hex}")
        file: Any = None
        with pa.OSFile(str(temporary), "wb") as sink:
            for batch in batches:
                file = file or pa.ipc.new_file(sink, batch.schema)
                file.write_batch(batch)
            file.close()
        temporary.replace(path)

    def _path(self, step: str, writer: int) -> Path:
        return self.folder / f"{step}-{writer}.arrow"


def read_divided(
    source: Any, columns: Columns, group: str | Sequence[str] | None, *, work: Path, cluster: Cluster, memory_limit: str
) -> tuple[EventLog, GroupValues | None]:
    """Read files into a log, and the groups too where they are columns of the events.

    Parameters
    ----------
    source
        As for `read_events`, and nothing but files.
    columns
        The columns of the events, and how to parse them.
    group
        Columns of the events that make the groups.
    work
        A folder that all nodes see; the columns of the log stay in its files.
    cluster
        Where the tasks run.
    memory_limit
        The memory that DuckDB may use in each task.

    Raises
    ------
    DataError
        If the source cannot be read, or is not files.
    ConfigurationError
        If a node does not see the files or the folder, or has too little memory.

    """
    pieces = _split(source)
    n_rows = sum(piece.n_rows for piece in pieces)
    largest = max(_ROWS_AT_ONCE, *(piece.n_rows for piece in pieces))
    memory = PROCESS_BYTES + _BYTES_PER_EVENT * min(largest, max(1, n_rows))
    cluster.check_memory(memory, "reading the largest part of the events")
    cluster.check_folder(work)
    cluster.check_files([path for piece in pieces if (path := piece.file.path) is not None])
    like = SourcePart.opened(pieces[0].file, partial(connect_duckdb, memory_limit)).like
    parser = EventParser(like, columns)
    group_columns = () if group is None else tuple(group_parts(like, group, what="the events table"))
    names = tuple(name for name in like.column_names if name in parser.used.union(group_columns))
    n_buckets = max(cluster.n_cpus, -(-n_rows // _ROWS_AT_ONCE))
    plan = _Plan(work.absolute(), n_buckets, names, parser, group_columns, memory_limit)

    def run(task: Any, arguments: Iterable[Any]) -> list[Any]:
        return cluster.run(task, list(arguments), shared=plan, memory=memory)

    summaries: list[_PieceSummary] = run(_read_piece, enumerate(pieces))
    parser, is_sorted, time_type = _merged(summaries, parser)
    notes = parser.notes()
    require_events(sum(piece.n_events for piece in summaries))
    values = _group_values(plan, summaries) if group_columns else None
    plan = replace(
        plan,
        pieces=tuple(number for number, piece in enumerate(summaries) if piece.n_events),
        splitters=_splitters([piece.sample for piece in summaries], n_buckets),
    )
    run(_number_ids, [(name, bucket) for name in _ID_COLUMNS for bucket in range(n_buckets)])
    run(_rank_ids, _ID_COLUMNS)
    run(_find_rows, range(len(plan.pieces)))
    counts = np.array(run(_order_users, [(bucket, columns.repeats) for bucket in range(n_buckets)]))
    run(_order_range, range(n_buckets))
    users, items, times = _concatenated(plan)
    n_events, n_pairs = counts.sum(axis=0).tolist()
    notes += notes_on_order(was_sorted=is_sorted, n_repeated=n_events - n_pairs, repeats=columns.repeats)
    user_ids, item_ids = (Vocabulary.of_distinct(plan.batch(f"{name}-ids", 0, 0).column("id")) for name in _ID_COLUMNS)
    log = EventLog(users, items, times.view(time_type), user_ids, item_ids, columns=parser.columns, notes=notes)
    return log, values


def _split(source: Any) -> list[_Piece]:
    """The pieces of a source: its files, and of large Parquet files runs of row groups."""
    pieces: list[_Piece] = []
    for given in parts_of(source, EVENTS):
        if not isinstance(given, DataFile):
            raise DataError(
                f"{EVENTS} must be files that all nodes of the cluster see, got {type(given).__name__}; write a file, "
                f"or leave out cluster"
            )
        given.check(EVENTS)
        part = given if given.path is None else replace(given, name=str(given.path.absolute()))
        if part.kind != "parquet":
            with part.reading(EVENTS):
                pieces.append(_Piece(part, None, part.size() // _BYTES_PER_LINE))
            continue
        with part.reading(EVENTS):
            about = part.parquet().metadata
        sizes = [about.row_group(at).num_rows for at in range(about.num_row_groups)]
        ends = np.flatnonzero(np.diff(np.cumsum(sizes) // _ROWS_AT_ONCE, prepend=0)) + 1
        bounds = sorted({0, *ends.tolist(), len(sizes)})
        groups = [tuple(range(*span)) for span in pairwise(bounds)] or [()]
        pieces += [_Piece(part, row_groups, sum(sizes[at] for at in row_groups)) for row_groups in groups]
    return pieces


def _merged(summaries: Sequence[_PieceSummary], parser: EventParser) -> tuple[EventParser, bool, np.dtype[Any]]:
    """The parser with the notes on all pieces, whether the source was sorted by time, and the dtype of the times."""
    for piece in summaries:
        parser.add(piece.parser)
    pieces = [piece for piece in summaries if piece.n_events]
    types = {"the times": {piece.time_type for piece in pieces}}
    types |= {f"the {name}s' ids": {piece.id_types[at] for piece in pieces} for at, name in enumerate(_ID_COLUMNS)}
    for what, found in types.items():
        if len(found) > 1:
            raise DataError(f"{what} must be of one kind in all files, got {' and '.join(sorted(found))}; convert them")
    is_sorted = all(piece.is_sorted for piece in pieces)
    is_sorted = is_sorted and all(one.last_time <= other.first_time for one, other in pairwise(pieces))
    return parser, is_sorted, np.dtype(pieces[0].time_type if pieces else np.float64)


def _group_values(plan: _Plan, pieces: Sequence[_PieceSummary]) -> GroupValues:
    n_missing, n_rows = sum(piece.n_missing for piece in pieces), sum(piece.n_rows for piece in pieces)
    check_users(n_missing, n_rows, plan.parser.names["user"])
    pairs = plan.batches("groups", (number for number, piece in enumerate(pieces) if piece.n_rows), 0)
    pairs = pairs.group_by(["user_id", "value"], use_threads=False).aggregate([])
    return GroupValues.from_pairs(",".join(plan.group), combined(pairs["user_id"]), pairs["value"])


def _splitters(samples: Sequence[np.ndarray[Any, Any]], n_ranges: int) -> np.ndarray[Any, Any]:
    """Quantiles of the sampled times, which split the events into ranges of about equal size."""
    times = np.sort(np.concatenate(samples))
    return times[[len(times) * at // n_ranges for at in range(1, n_ranges)]]


def _concatenated(plan: _Plan) -> list[np.ndarray[Any, Any]]:
    """The columns of all ranges, memory-mapped."""
    columns = ("user", "item", "time")
    types: dict[str, Any] = {}
    for at in range(plan.n_buckets):
        batch = plan.batch("range", at, 0)
        for name in columns:
            values = batch.column(name).to_numpy()
            types[name] = values.dtype
            with (plan.folder / name).open("ab") as file:
                values.tofile(file)
    return [np.asarray(np.memmap(plan.folder / name, types[name], "r")) for name in columns]


# ── the tasks ────────────────────────────────────────────────────────────────────────────


def _read_piece(argument: tuple[int, _Piece], plan: _Plan, _: object) -> _PieceSummary:
    number, piece = argument
    parser, n_rows, n_missing = copy.deepcopy(plan.parser), 0, 0
    users, items, times, pairs = [], [], [], []
    part = SourcePart.opened(piece.file, partial(connect_duckdb, plan.memory_limit), piece.row_groups)
    for table in part.tables(list(plan.names)):
        if plan.group:
            user_ids = table[plan.parser.names["user"]]
            n_rows, n_missing = n_rows + len(table), n_missing + user_ids.null_count
            if n_missing == 0:
                values = intersection([table[name] for name in plan.group]).cast(pa.large_string())
                pairs.append(pa.table({"user_id": id_column(user_ids), "value": values}))
        of_users, of_items, of_times = parser.parse(table)
        if len(of_times):
            users.append(id_column(of_users))
            items.append(id_column(of_items))
            times.append(of_times)
    if pairs:
        distinct = pa.concat_tables(pairs).group_by(["user_id", "value"]).aggregate([]).combine_chunks()
        plan.write("groups", number, distinct.to_batches())
    if not times:
        return _PieceSummary(parser, n_rows, n_missing, 0, "", ("", ""), True, None, None, np.empty(0))
    moments = np.concatenate(times)
    is_sorted, time_type = is_chronological(moments), moments.dtype.str
    numbers = moments.view(np.int64) if moments.dtype.kind == "M" else moments
    order = np.argsort(numbers, kind="stable")
    numbers, positions = numbers[order], (number << _PIECE_BITS) | order
    ids = {"user": pa.concat_arrays(users).take(pa.array(order)), "item": pa.concat_arrays(items).take(pa.array(order))}
    events = {"time": numbers, "position": positions}
    for name in _ID_COLUMNS:
        events[name] = _write_ids(plan, name, number, ids[name], numbers, positions)
    plan.write("events", number, [pa.record_batch(events)])
    sample = numbers[:: max(1, min(_ROWS_PER_SAMPLE, len(numbers) // 64))]
    id_types = str(ids["user"].type), str(ids["item"].type)
    ends = numbers[0], numbers[-1]
    return _PieceSummary(parser, n_rows, n_missing, len(numbers), time_type, id_types, is_sorted, *ends, sample)


def _write_ids(
    plan: _Plan, name: str, number: int, ids: pa.Array, times: np.ndarray[Any, Any], positions: Rows
) -> np.ndarray[Any, Any]:
    """Send the distinct ids of a piece, with their first keys, to buckets; returns the code of each event's id."""
    encoded = ids.dictionary_encode()
    codes, distinct = encoded.indices.to_numpy(), encoded.dictionary  # in the order of first appearance
    _, first = np.unique(codes, return_index=True)
    bucket_of = (_hashes(distinct) % np.uint64(plan.n_buckets)).astype(np.int64)
    order = np.argsort(bucket_of, kind="stable")
    sent = {"id": distinct.take(pa.array(order)), "time": times[first[order]], "position": positions[first[order]]}
    plan.write(name, number, _slices(sent, np.bincount(bucket_of, minlength=plan.n_buckets).tolist()))
    new_codes = np.empty(len(order), np.int64)
    new_codes[order] = np.arange(len(order))
    return new_codes[codes]


def _number_ids(argument: tuple[str, int], plan: _Plan, _: object) -> None:
    name, bucket = argument
    pieces = [plan.batch(name, number, bucket) for number in plan.pieces]
    ids = pa.concat_arrays([piece.column("id") for piece in pieces]).dictionary_encode()
    times, positions = (
        np.concatenate([piece.column(key).to_numpy() for piece in pieces]) for key in ("time", "position")
    )
    codes, order = ids.indices.to_numpy(), np.lexsort((positions, times))
    _, first = np.unique(codes[order], return_index=True)
    first = order[first]
    firsts = pa.record_batch({"id": ids.dictionary, "time": times[first], "position": positions[first]})
    plan.write(f"{name}-firsts", bucket, [firsts])
    plan.write(f"{name}-codes", bucket, _slices({"code": codes}, [piece.num_rows for piece in pieces]))


def _rank_ids(name: str, plan: _Plan, _: object) -> None:
    """The row of an id is the rank of its first key."""
    firsts = [plan.batch(f"{name}-firsts", bucket, 0) for bucket in range(plan.n_buckets)]
    times, positions = (
        np.concatenate([part.column(key).to_numpy() for part in firsts]) for key in ("time", "position")
    )
    order = np.lexsort((positions, times))
    rows = np.empty(len(order), np.int64)
    rows[order] = np.arange(len(order))
    ids = pa.concat_arrays([part.column("id") for part in firsts]).take(pa.array(order))
    plan.write(f"{name}-ids", 0, [pa.record_batch({"id": ids})])
    plan.write(f"{name}-rows", 0, _slices({"row": rows}, [part.num_rows for part in firsts]))


def _find_rows(at: int, plan: _Plan, _: object) -> None:
    number = plan.pieces[at]
    events, rows = plan.batch("events", number, 0), dict[str, Rows]()
    for name in _ID_COLUMNS:
        of_ids = []
        for bucket in range(plan.n_buckets):
            codes = plan.batch(f"{name}-codes", bucket, at).column("code").to_numpy()
            of_ids.append(plan.batch(f"{name}-rows", 0, bucket).column("row").to_numpy()[codes])
        rows[name] = np.concatenate(of_ids)[events.column(name).to_numpy()]
    bucket_of = rows["user"] % plan.n_buckets
    order = np.argsort(bucket_of, kind="stable")
    columns = {**rows, "time": events.column("time").to_numpy(), "position": events.column("position").to_numpy()}
    counts = np.bincount(bucket_of, minlength=plan.n_buckets).tolist()
    plan.write("rows", number, _slices({name: column[order] for name, column in columns.items()}, counts))


def _order_users(argument: tuple[int, Repeats], plan: _Plan, _: object) -> tuple[int, int]:
    """Returns how many events there were, and how many distinct pairs."""
    bucket, repeats = argument
    events = _in_order(plan.batches("rows", plan.pieces, bucket))
    first = first_of_each(pair_keys(events["user"], events["item"]))
    n_events = len(events["user"])
    if repeats == "first":
        events = {name: column[first] for name, column in events.items()}
    ends = np.searchsorted(events["time"], plan.splitters)  # equal times stay together
    counts = np.diff(ends, prepend=0, append=len(events["time"])).tolist()
    plan.write("kept", bucket, _slices(events, counts))
    return n_events, len(first)


def _order_range(at: int, plan: _Plan, _: object) -> None:
    events = _in_order(plan.batches("kept", range(plan.n_buckets), at))
    plan.write("range", at, [pa.record_batch(events)])


def _in_order(events: pa.Table) -> dict[str, Any]:
    """The columns of the events, sorted by their keys."""
    columns = {name: events[name].to_numpy() for name in events.column_names}
    order = np.lexsort((columns["position"], columns["time"]))
    return {name: column[order] for name, column in columns.items()}


def _slices(columns: Mapping[str, Any], counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Record batches of `counts` rows each, one after another."""
    batch, start = pa.record_batch(dict(columns)), 0
    for count in counts:
        yield batch.slice(start, count)
        start += count


def _hashes(ids: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A hash of each id, the same in every process."""
    if pa.types.is_integer(ids.type):
        return (ids.to_numpy().view(np.uint64) * np.uint64(GOLDEN)) >> np.uint64(32)
    letters, bounds = utf8(ids)
    hashes = np.empty(len(ids), np.uint64)
    _hash_strings(letters, bounds, hashes)
    return hashes


@njit
def _hash_strings(letters: Any, bounds: Any, hashes: Any) -> None:
    """FNV-1a."""
    for at in range(len(hashes)):
        hashed = np.uint64(0xCBF29CE484222325)
        for letter in letters[bounds[at] : bounds[at + 1]]:
            hashed = (hashed ^ np.uint64(letter)) * np.uint64(0x100000001B3)
        hashes[at] = hashed >> np.uint64(16)
