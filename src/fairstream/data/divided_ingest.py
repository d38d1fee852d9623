"""Reading a log of many files by the tasks of a cluster, into the log that one process would make of them.

Events go through five steps, each a task for each part, bucket or range; between them lie files in a folder that all
nodes see. Where an event stands in the log is decided by its key: its time and, among equals, its place in the source.

1. A part of the source is read, checked and sorted by time. Its distinct ids go to buckets by their hash.
2. A bucket finds the first key of each id; one task ranks the first keys of all ids, which gives their rows.
3. The ids of a part's events become rows; the events go to buckets by user.
4. A bucket orders the events of its users and drops repeated pairs; the events go to ranges of time.
5. A range orders its events. The ranges behind each other are the log.
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
"""Events of a part, a bucket or a range."""
_BYTES_PER_EVENT, _BYTES_PER_LINE = 300, 30
"""What a task needs for an event, and what an event takes in a file of text."""
_ROWS_PER_SAMPLE = 1 << 12
_PART_BITS = 40
"""The place of an event in the source is its part << 40 | its place in the part."""
_KINDS = ("user", "item")


class _Piece(NamedTuple):
    """What one task reads of the source."""

    file: DataFile
    row_groups: tuple[int, ...] | None
    """Of a Parquet file; None: all of it."""
    n_rows: int
    """About how many."""


class _Read(NamedTuple):
    """What is known of a piece that has been read."""

    parser: EventParser
    n_rows: int
    n_missing: int
    """Rows, and those without a user, where there are groups beside the events."""
    n_events: int
    kind: str
    """Of the times; "": there are none."""
    id_types: tuple[str, str]
    is_sorted: bool
    first: Any
    last: Any
    sample: np.ndarray[Any, Any]
    """Times, one of so many events."""


@dataclass(frozen=True)
class _Plan:
    """What all tasks know."""

    folder: Path
    n_buckets: int
    names: tuple[str, ...]
    parser: EventParser
    group: tuple[str, ...]
    """The columns that make the groups, where they stand beside the events."""
    memory_limit: str
    pieces: tuple[int, ...] = ()
    """The numbers of the pieces that have events, as soon as they are known."""
    splitters: Any = None
    """The times at which ranges begin, but for the first."""

    def batch(self, step: str, writer: int, reader: int) -> pa.RecordBatch:
        """What one task of a step has written for one of the next."""
        return pa.ipc.open_file(pa.memory_map(str(self._path(step, writer)))).get_batch(reader)

    def batches(self, step: str, writers: Iterable[int], reader: int) -> pa.Table:
        """What these tasks of a step have written for one of the next, in their order."""
        return pa.Table.from_batches([self.batch(step, writer, reader) for writer in writers])

    def write(self, step: str, writer: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write a batch for each task of the next step; whole or not at all, should the worker be killed."""
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
    """The log of a source of files, and the groups beside the events where `group` names their columns.

    Parameters
    ----------
    source
        As for `read_events`, and nothing but files.
    columns
        How to read it.
    group
        Columns of the events that make the groups.
    work
        A folder that all nodes see; what the log holds stays in its files.
    cluster
        Whose tasks do it.
    memory_limit
        The memory that DuckDB may use in each task.

    Raises
    ------
    DataError
        If the source cannot be read, or is not files.
    ConfigurationError
        If a node does not see the files or the folder, or has too little memory.

    """
    pieces = _cut(source)
    n_rows = sum(piece.n_rows for piece in pieces)
    largest = max(_ROWS_AT_ONCE, *(piece.n_rows for piece in pieces))
    memory = PROCESS_BYTES + _BYTES_PER_EVENT * min(largest, max(1, n_rows))
    cluster.check_memory(memory, "reading the largest part of the events")
    cluster.check_folder(work)
    cluster.check_files([path for piece in pieces if (path := piece.file.path) is not None])
    like = SourcePart.opened(pieces[0].file, partial(connect_duckdb, memory_limit)).like
    parser = EventParser(like, columns)
    parts = () if group is None else tuple(group_parts(like, group, what="the events table"))
    names = tuple(name for name in like.column_names if name in parser.used.union(parts))
    n_buckets = max(cluster.n_cpus, -(-n_rows // _ROWS_AT_ONCE))
    plan = _Plan(work.absolute(), n_buckets, names, parser, parts, memory_limit)

    def do(task: Any, arguments: Iterable[Any]) -> list[Any]:
        return cluster.run(task, list(arguments), shared=plan, memory=memory)

    read: list[_Read] = do(_read_piece, enumerate(pieces))
    parser, is_sorted, kind = _joined(read, parser)
    notes = parser.notes()
    require_events(sum(part.n_events for part in read))
    values = _group_values(plan, read) if parts else None
    plan = replace(plan, pieces=tuple(number for number, part in enumerate(read) if part.n_events))
    do(_number_ids, [(kind_of_id, bucket) for kind_of_id in _KINDS for bucket in range(n_buckets)])
    do(_rank_ids, _KINDS)
    do(_find_rows, range(len(plan.pieces)))
    plan = replace(plan, splitters=_splitters([part.sample for part in read], n_buckets))
    counts = np.array(do(_order_users, [(bucket, columns.repeats) for bucket in range(n_buckets)]))
    do(_order_range, range(n_buckets))
    users, items, times = _behind_each_other(plan)
    n_events, n_pairs = counts.sum(axis=0).tolist()
    notes += notes_on_order(was_sorted=is_sorted, n_repeated=n_events - n_pairs, repeats=columns.repeats)
    user_ids, item_ids = (Vocabulary.of_distinct(plan.batch(f"{name}-ids", 0, 0).column("id")) for name in _KINDS)
    log = EventLog(users, items, times.view(kind), user_ids, item_ids, columns=parser.columns, notes=notes)
    return log, values


def _cut(source: Any) -> list[_Piece]:
    """The files of a source; large Parquet files by their row groups."""
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


def _joined(read: Sequence[_Read], parser: EventParser) -> tuple[EventParser, bool, np.dtype[Any]]:
    """What all pieces together say of the events, whether they came in order, and the kind of their times."""
    for part in read:
        parser.add(part.parser)
    read = [part for part in read if part.n_events]
    kinds = {"the times": {part.kind for part in read}}
    kinds |= {f"the {name}s' ids": {part.id_types[at] for part in read} for at, name in enumerate(_KINDS)}
    for what, found in kinds.items():
        if len(found) > 1:
            raise DataError(f"{what} must be of one kind in all files, got {' and '.join(sorted(found))}; convert them")
    is_sorted = all(part.is_sorted for part in read) and all(one.last <= other.first for one, other in pairwise(read))
    return parser, is_sorted, np.dtype(read[0].kind if read else np.float64)


def _group_values(plan: _Plan, read: Sequence[_Read]) -> GroupValues:
    check_users(sum(part.n_missing for part in read), sum(part.n_rows for part in read), plan.parser.names["user"])
    pairs = plan.batches("groups", (number for number, part in enumerate(read) if part.n_rows), 0)
    pairs = pairs.group_by(["user_id", "value"], use_threads=False).aggregate([])
    return GroupValues.from_pairs(",".join(plan.group), combined(pairs["user_id"]), pairs["value"])


def _splitters(samples: Sequence[np.ndarray[Any, Any]], n_ranges: int) -> np.ndarray[Any, Any]:
    """Times that cut the events into ranges of about equal size."""
    times = np.sort(np.concatenate(samples))
    return times[[len(times) * at // n_ranges for at in range(1, n_ranges)]]


def _behind_each_other(plan: _Plan) -> list[np.ndarray[Any, Any]]:
    """The columns of all ranges, as arrays over files."""
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


def _read_piece(argument: tuple[int, _Piece], plan: _Plan, _: object) -> _Read:
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
        return _Read(parser, n_rows, n_missing, 0, "", ("", ""), True, None, None, np.empty(0))
    moments = np.concatenate(times)
    is_sorted, kind = is_chronological(moments), moments.dtype.str
    numbers = moments.view(np.int64) if moments.dtype.kind == "M" else moments
    order = np.argsort(numbers, kind="stable")
    numbers, places = numbers[order], (number << _PART_BITS) | order
    ids = {"user": pa.concat_arrays(users).take(pa.array(order)), "item": pa.concat_arrays(items).take(pa.array(order))}
    events = {"time": numbers, "place": places}
    for name in _KINDS:
        events[name] = _write_ids(plan, name, number, ids[name], numbers, places)
    plan.write("events", number, [pa.record_batch(events)])
    sample = numbers[:: max(1, min(_ROWS_PER_SAMPLE, len(numbers) // 64))]
    id_types = str(ids["user"].type), str(ids["item"].type)
    ends = numbers[0], numbers[-1]
    return _Read(parser, n_rows, n_missing, len(numbers), kind, id_types, is_sorted, *ends, sample)


def _write_ids(
    plan: _Plan, name: str, number: int, ids: pa.Array, times: np.ndarray[Any, Any], places: Rows
) -> np.ndarray[Any, Any]:
    """Send the distinct ids of a piece with their first keys to their buckets; returns which of them each event has."""
    encoded = ids.dictionary_encode()
    codes, distinct = encoded.indices.to_numpy(), encoded.dictionary  # in the order of first appearance
    _, first = np.unique(codes, return_index=True)
    bucket_of = (_hashes(distinct) % np.uint64(plan.n_buckets)).astype(np.int64)
    order = np.argsort(bucket_of, kind="stable")
    sent = {"id": distinct.take(pa.array(order)), "time": times[first[order]], "place": places[first[order]]}
    plan.write(name, number, _slices(sent, np.bincount(bucket_of, minlength=plan.n_buckets).tolist()))
    new_codes = np.empty(len(order), np.int64)
    new_codes[order] = np.arange(len(order))
    return new_codes[codes]


def _number_ids(argument: tuple[str, int], plan: _Plan, _: object) -> None:
    name, bucket = argument
    pieces = [plan.batch(name, number, bucket) for number in plan.pieces]
    ids = pa.concat_arrays([piece.column("id") for piece in pieces]).dictionary_encode()
    times, places = (np.concatenate([piece.column(key).to_numpy() for piece in pieces]) for key in ("time", "place"))
    codes, order = ids.indices.to_numpy(), np.lexsort((places, times))
    _, first = np.unique(codes[order], return_index=True)
    first = order[first]
    firsts = pa.record_batch({"id": ids.dictionary, "time": times[first], "place": places[first]})
    plan.write(f"{name}-firsts", bucket, [firsts])
    plan.write(f"{name}-codes", bucket, _slices({"code": codes}, [piece.num_rows for piece in pieces]))


def _rank_ids(name: str, plan: _Plan, _: object) -> None:
    """The row of an id is the rank of its first key."""
    firsts = [plan.batch(f"{name}-firsts", bucket, 0) for bucket in range(plan.n_buckets)]
    times, places = (np.concatenate([part.column(key).to_numpy() for part in firsts]) for key in ("time", "place"))
    order = np.lexsort((places, times))
    rows = np.empty(len(order), np.int64)
    rows[order] = np.arange(len(order))
    ids = pa.concat_arrays([part.column("id") for part in firsts]).take(pa.array(order))
    plan.write(f"{name}-ids", 0, [pa.record_batch({"id": ids})])
    plan.write(f"{name}-rows", 0, _slices({"row": rows}, [part.num_rows for part in firsts]))


def _find_rows(at: int, plan: _Plan, _: object) -> None:
    number = plan.pieces[at]
    events, rows = plan.batch("events", number, 0), dict[str, Rows]()
    for name in _KINDS:
        of_ids = []
        for bucket in range(plan.n_buckets):
            codes = plan.batch(f"{name}-codes", bucket, at).column("code").to_numpy()
            of_ids.append(plan.batch(f"{name}-rows", 0, bucket).column("row").to_numpy()[codes])
        rows[name] = np.concatenate(of_ids)[events.column(name).to_numpy()]
    bucket_of = rows["user"] % plan.n_buckets
    order = np.argsort(bucket_of, kind="stable")
    columns = {**rows, "time": events.column("time").to_numpy(), "place": events.column("place").to_numpy()}
    counts = np.bincount(bucket_of, minlength=plan.n_buckets).tolist()
    plan.write("rows", number, _slices({name: column[order] for name, column in columns.items()}, counts))


def _order_users(argument: tuple[int, Repeats], plan: _Plan, _: object) -> tuple[int, int]:
    """How many events there were, and how many pairs."""
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
    """The columns of events, by their keys."""
    columns = {name: events[name].to_numpy() for name in events.column_names}
    order = np.lexsort((columns["place"], columns["time"]))
    return {name: column[order] for name, column in columns.items()}


def _slices(columns: Mapping[str, Any], counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """So many rows each, one batch after another."""
    batch, start = pa.record_batch(dict(columns)), 0
    for count in counts:
        yield batch.slice(start, count)
        start += count


def _hashes(ids: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number for each id, the same in every process."""
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
