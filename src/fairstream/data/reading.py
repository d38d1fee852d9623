"""The reader of tables: files, folders, globs, addresses, frames and rows become Arrow tables.

Every table of events, users or items, in Python, on the command line and in the service, comes through here. A source
consists of parts, each a file or a frame. A part names its columns before its rows are read; then it gives the
requested columns, and only those, a block at a time. Other columns are never converted and cannot break anything.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, compress, groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from fairstream.errors import ConfigurationError, DataError

Repeats = Literal["first", "all"]
MAX_ROWS = 1 << 20  # the rows of a block
KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".tsv": "csv",
    ".tab": "csv",
    ".txt": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
}
"""File formats by suffix."""
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zip": "zip"}
"""Suffixes that may follow that of a text file; Arrow itself reads all but zip."""
SUFFIXES = ".parquet or .csv, .tsv, .txt, .arrow, .jsonl, .json (text also with .gz, .bz2, .zst or .zip)"
TIME_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}  # microseconds in each unit of time
_BLOCK_BYTES = 2 << 20  # Arrow reads up to 32 blocks ahead
_SNIFFED_BYTES = 1 << 16
_ROWS_PER_FRAME = 1 << 16
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
EMPTY_IS_MISSING: dict[str, Any] = {"strings_can_be_null": True, "null_values": [""]}
_NUMBERS = {pa.int64(): r"^\s*(\+|-?0[\dxX])", pa.float64(): r"^\s*(\+|-?0\d|-?\d{17,}\s*$)"}
"""Types of a text column, and the fields that would lose a character: 007, +7, digits beyond a float's precision."""
_USUAL_NAMES = {
    "user": ("user_id", "user", "userid", "uid", "customer_id", "member_id", "visitor_id"),
    "item": ("item_id", "item", "itemid", "iid", "movie_id", "movieid", "product_id", "article_id"),
    "time": ("timestamp", "time", "datetime", "date", "event_time", "created_at", "ts", "order"),
    "rating": ("rating", "stars"),
    "kind": ("kind", "event_kind", "event_type", "type", "event", "action"),
}


@dataclass(frozen=True)
class Columns:
    """How to read events: the columns (None: a usual name is recognised) and further options of `read_events`."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    rating_above: float = 2.0
    time_unit: str | None = None
    repeats: Repeats = "first"
    time_zone: bool | None = None  # whether the times of earlier events had a time zone; None: no events were read
    text_ids: tuple[str, ...] = ()
    """The roles (user, item) whose earlier ids were text; a text file's digits are then text too."""
    kind: str | None = None
    kinds: Mapping[str, float] = field(default_factory=dict)
    """The weight of each kind of event; without kinds every event counts once."""
    returning: tuple[str, ...] = ()
    """The kinds whose items may be recommended again."""
    judge_by: tuple[str, ...] = ()
    """The kinds that evaluations test; none: all."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields with lists, as JSON has them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    def __post_init__(self) -> None:
        for name in ("text_ids", "returning", "judge_by"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, weight in self.kinds.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigurationError(f"the weight of the kind {name!r} must be a number, got {weight!r}")
        if unknown := {*self.returning, *self.judge_by} - self.kinds.keys():
            raise ConfigurationError(f"{min(unknown)!r} is none of the kinds {', '.join(self.kinds) or '(none)'}")
        if self.time_unit is not None and self.time_unit not in TIME_UNITS:
            raise ConfigurationError(f"time_unit must be one of {', '.join(TIME_UNITS)}, got {self.time_unit!r}")
        if self.repeats not in get_args(Repeats):
            raise ConfigurationError(f"repeats must be 'first' or 'all', got {self.repeats!r}")
        if not isinstance(self.rating_above, float | int):
            raise ConfigurationError(f"rating_above must be a number, got {self.rating_above!r}")

    def find(self, role: str, table: pa.Table, *, what: str) -> str:
        """Return the column of `table` that plays `role`; raise DataError if there is none."""
        name = self.find_optional(role, table, what=what)
        if name is None:
            usual = ", ".join(_USUAL_NAMES[role][:4])
            raise DataError(
                f"{what} needs {'an' if role == 'item' else 'a'} {role} column ({usual} …), "
                f"but has only {column_list(table) or 'no columns'}; name it with {role}_column "
                f"(on the command line: --{role}-column)"
            )
        return name

    def find_optional(self, role: str, table: pa.Table, *, what: str) -> str | None:
        """As `find`, but return None if no column has a usual name."""
        given: str | None = getattr(self, role)
        if given is not None:
            if given not in table.column_names:
                raise DataError(f"{what} has no column {given!r}; its columns are {column_list(table)}")
            return given
        by_lower_case = {name.lower(): name for name in reversed(table.column_names)}
        name = next((by_lower_case[usual] for usual in _USUAL_NAMES[role] if usual in by_lower_case), None)
        endings = ("time", "date", "timestamp", "_at", "_ts")
        has_times = (pa.types.is_temporal(f.type) or f.name.lower().endswith(endings) for f in table.schema)
        times = list(compress(table.column_names, has_times))
        if name is not None and name.lower() == "order" and times:
            raise DataError(
                f"{what} has the column {name!r} and others with times ({', '.join(times)}); "
                f"name the one that counts with time_column (on the command line: --time-column)"
            )
        return name


def column_list(table: pa.Table) -> str:
    """Return the names of the columns for a message."""
    return ", ".join(table.column_names)


# ── sources ──────────────────────────────────────────────────────────────────────────────


def to_table(
    source: Any, *, what: str, names: Collection[str] | None = None, columns: Columns | None = None
) -> pa.Table:
    """Return a source as one Arrow table; raise DataError where it cannot be read.

    A source is a frame (pandas, Polars, also lazy, DuckDB, Arrow), columns by name, an iterable of frames or of rows
    (dictionaries), a file, a folder of files, a glob, an address that fsspec can open, or a list of those. `what` names
    it in messages. Where all columns are read (`names` is None), one without a common type becomes text. `columns` says
    which ids of earlier tables were text.

    >>> to_table(({"user": name, "n": n} for n, name in enumerate("ab")), what="the users").to_pydict()
    {'user': ['a', 'b'], 'n': [0, 1]}
    """
    return open_source(source, what, columns).read(names)


@dataclass(frozen=True)
class Source:
    """An opened source: its columns are known, its rows are not read yet.

    >>> events = open_source([{"user": 1, "price": 2}, {"user": 3, "price": "free"}], "the events")
    >>> events.like.column_names, events.read(["user"]).to_pydict()
    (['user', 'price'], {'user': [1, 3]})
    """

    what: str
    like: pa.Table  # an empty table with the columns; in CSV files, with the types of the first block
    blocks: Callable[[list[str] | None, bool], Iterable[pa.Table]]
    """Reads the named columns (None: all) as one or more tables; True: all rows may be in memory."""

    def tables(self, names: Collection[str] | None = None, *, in_memory: bool = False) -> Iterator[pa.Table]:
        """Yield the named columns (None: all), at most `MAX_ROWS` rows at a time and at least one table."""
        ours = None if names is None else [name for name in self.like.column_names if name in names]
        is_empty = True
        for table in self.blocks(ours, in_memory):
            for start in range(0, max(1, len(table)), MAX_ROWS):
                yield decoded(table.slice(start, MAX_ROWS), self.what)
                is_empty = False
        if is_empty:
            yield self.like.select(self.like.column_names if ours is None else ours)

    def read(self, names: Collection[str] | None = None) -> pa.Table:
        """Return the named columns (None: all) as one table."""
        return concat(list(self.tables(names, in_memory=True)), self.what)


def open_source(source: Any, what: str, columns: Columns | None = None) -> Source:
    """Open a source of `to_table`."""
    parts = _open_parts(source, what, columns or Columns())
    # A stream has the columns of its first part: the other parts do not exist yet.
    opened = list(islice(parts, 1)) if isinstance(source, Iterator) else list(parts)
    if len(opened) == 1 and not isinstance(source, Iterator):
        return opened[0]

    def blocks(names: list[str] | None, in_memory: bool) -> Iterator[pa.Table]:
        for table in chain.from_iterable(part.tables(names, in_memory=in_memory) for part in chain(opened, parts)):
            missing = [name for name in names or () if name not in table.column_names]  # a part may lack a column
            yield pa.table({**_columns_of(table), **{name: pa.nulls(len(table)) for name in missing}})

    return Source(what, _first_types(part.like.schema for part in opened).empty_table(), blocks)


def _first_types(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of all schemas, each in its first type."""
    fields: dict[str, pa.Field] = {}
    for each in chain.from_iterable(schemas):
        fields.setdefault(each.name, each)
    return pa.schema(list(fields.values()))


def _open_parts(source: Any, what: str, columns: Columns) -> Iterator[Source]:
    """Yield the files and frames of a source; rows become frames."""
    if isinstance(source, Source):
        yield source
    elif isinstance(source, str | Path | DataFile):
        files = [source] if isinstance(source, DataFile) else find_files(source, what)
        yield from (open_file(file, what, columns) for file in files)
    elif isinstance(source, Mapping):
        yield _open_columns(dict(source), what)
    elif _is_lazy(source):
        yield from _open_parts(source.collect(), what, columns)
    elif type(source).__module__.partition(".")[0] == "pandas" and hasattr(source, "iloc"):
        names = [str(name) for name in source.columns]
        _check_distinct(names, what)
        yield _open_columns({name: source.iloc[:, at] for at, name in enumerate(names)}, what)
    elif _is_frame(source):
        yield _open_stream(source, what)
    elif isinstance(source, Iterable) and not isinstance(source, bytes):
        yield from _open_iterable(source, what, columns)
    else:
        raise _no_table(what, type(source).__name__)


def is_address(source: Any) -> bool:
    """Return whether a string is an address such as s3://bucket/events.parquet."""
    return isinstance(source, str) and _ADDRESS.match(source) is not None


def is_glob(source: Any) -> bool:
    """Return whether a path is a pattern for several files."""
    return any(letter in str(source) for letter in "*?[") and not Path(source).exists()


def concat(tables: Sequence[pa.Table], what: str) -> pa.Table:
    """Return the tables as one; integers become text if another table has text in that column."""
    if len(tables) == 1:
        return tables[0]
    texts = {field.name for table in tables for field in table.schema if is_text(field.type)}
    try:
        return pa.concat_tables([_integers_as_text(table, texts) for table in tables], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{what}: the parts have columns that do not fit together: {first_sentence(error)}") from None


def _integers_as_text(table: pa.Table, names: Collection[str]) -> pa.Table:
    for at, column in enumerate(table.schema):
        if column.name in names and pa.types.is_integer(column.type):
            table = table.set_column(at, column.name, table[column.name].cast(pa.large_string()))
    return table


# ── frames and rows ──────────────────────────────────────────────────────────────────────


def _open_stream(frame: Any, what: str) -> Source:
    with read_errors(what):
        # A DuckDB connection has one open result: read a query completely, so that others can follow.
        is_stream = hasattr(frame, "__arrow_c_stream__") and "duckdb" not in type(frame).__module__
        reader = pa.RecordBatchReader.from_stream(frame) if is_stream else pa.table(frame).to_reader()
        like = decoded(reader.schema.empty_table(), what)

    def blocks(names: list[str] | None, _: bool) -> Iterator[pa.Table]:
        with read_errors(what):
            for batch in reader:
                yield pa.Table.from_batches([batch]).select(like.column_names if names is None else names)

    return Source(what, like, blocks)


def _open_rows(rows: list[Mapping[str, Any]], what: str) -> Source:
    names = dict.fromkeys(name for row in rows for name in row)
    return _open_columns({name: [row.get(name) for row in rows] for name in names}, what)


def _open_columns(columns: Mapping[str, Any], what: str) -> Source:
    def blocks(names: list[str] | None, _: bool) -> Iterator[pa.Table]:
        with read_errors(what):
            chosen = columns if names is None else names
            yield pa.table({name: to_arrow(columns[name], None if names is None else name) for name in chosen})

    for name, column in columns.items():
        if not hasattr(column, "__getitem__"):
            raise DataError(f"{what} must be columns by name, but {name!r} is {column!r}; make it a list")
    with read_errors(what):
        like = pa.table({name: to_arrow(column[:100])[:0] for name, column in columns.items()})
    return Source(what, decoded(like, what), blocks)


def to_arrow(values: Any, name: str | None = None) -> Any:
    """Return one column; values without a common type become text or, if the column has a `name`, an error."""
    dtype = getattr(values, "dtype", None)
    if str(getattr(getattr(dtype, "categories", None), "dtype", dtype)).startswith(("interval", "period")):
        values = values.astype(str).where(values.notna(), None)  # pandas has types that Arrow lacks
    for convert in (None, _plain, str) if name is None else (None, _plain):
        try:
            if convert is None:
                return pa.array(values)
            return pa.array([None if value is None else convert(value) for value in values], from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            failure = error
    raise ValueError(f"the values of {name!r} have no common type: {first_sentence(failure)}")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [None if part is None else str(part) for part in value]  # their types may differ
    return str(value) if type(value).__name__ in ("Interval", "Period") else value


def _open_iterable(source: Iterable[Any], what: str, columns: Columns) -> Iterator[Source]:
    """Yield the parts of each element; consecutive rows become one frame."""
    is_empty = True
    for is_row, elements in groupby(source, lambda element: isinstance(element, Mapping)):
        is_empty = False
        while is_row and (rows := list(islice(elements, _ROWS_PER_FRAME))):
            yield _open_rows(rows, what)
        for element in elements:
            if not isinstance(element, str | Path | DataFile) and not _is_frame(element) and not _is_lazy(element):
                raise _no_table(what, f"{type(source).__name__} of {type(element).__name__}")
            yield from _open_parts(element, what, columns)
    if is_empty:
        raise DataError(f"{what} are empty: an iterable without any row or table")


def _is_frame(source: Any) -> bool:
    """Return whether an object offers its columns to Arrow."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def _is_lazy(source: Any) -> bool:
    """Return whether an object is a Polars query that has not run."""
    return type(source).__name__ == "LazyFrame" and callable(getattr(source, "collect", None))


def _no_table(what: str, given: str) -> DataError:
    return DataError(
        f"{what} must be a path or a table (pandas, Polars, DuckDB, Arrow: anything with the Arrow PyCapsule "
        f"interface), or an iterable of tables or dictionaries, got {given}"
    )


# ── files ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class DataFile:
    """One file, on this machine or at an address."""

    name: str  # its path or address
    values: tuple[tuple[str, str], ...] = ()
    """Columns with one value for all rows, from the names of the folders: `country=NO/part-0.parquet`."""

    @property
    def compression(self) -> str:
        """The suffix of a compressed file, else nothing."""
        suffix = PurePosixPath(self.name.lower()).suffix
        return suffix if suffix in _COMPRESSIONS else ""

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name.lower().removesuffix(self.compression)).suffix

    @property
    def kind(self) -> str | None:
        """parquet, arrow, csv or json; None: an unknown format."""
        kind = KINDS.get(self.suffix)
        return kind if not self.compression or kind in ("csv", "json") else None

    @property
    def path(self) -> Path | None:
        """The path on this machine; None: it is at an address."""
        return None if is_address(self.name) else Path(self.name)

    def with_values(self, table: pa.Table, names: Collection[str] | None = None) -> pa.Table:
        """Return the table with the columns from the names of the folders; None: all, else those in `names`."""
        for name, value in self.values:
            if name not in table.column_names and (names is None or name in names):
                is_number = re.fullmatch(r"0|-?[1-9]\d{0,17}", value) is not None
                table = table.append_column(name, pa.array([int(value) if is_number else value] * len(table)))
        return table

    def reading(self, what: str) -> Any:
        return read_errors(what, self.name, self.suffix[1:])


def open_file(file: DataFile, what: str, columns: Columns) -> Source:
    """Open a file of any known format."""
    if file.kind is None:
        raise DataError(f"{what}: {PurePosixPath(file.name).name} must end in {SUFFIXES}")
    with file.reading(what):
        kind: Any = {"csv": _Csv, "json": _JsonLines}.get(file.kind, _Columnar)
        content = kind(file, what, columns)
        schema: pa.Schema = content.schema
        like = decoded(schema.empty_table(), what)

    def blocks(names: list[str] | None, in_memory: bool) -> Iterator[pa.Table]:
        chosen = schema.names if names is None else [name for name in names if name in schema.names]
        with file.reading(what):
            for table in content.tables(chosen, in_memory):
                yield file.with_values(table, names)

    return Source(what, file.with_values(like), blocks)


class _Columnar:
    """A Parquet or Arrow file. It is open while it is read, and not before: a folder may have thousands."""

    def __init__(self, file: DataFile, *_: Any) -> None:
        system = None if file.path else _file_system(file.name)
        name = file.name if system is None else system._strip_protocol(file.name)
        from pyarrow import dataset  # noqa: PLC0415 (slow to import)

        self._data = dataset.dataset(name, format=file.kind, filesystem=system)
        self.schema = self._data.schema

    def tables(self, names: list[str], _: bool) -> Iterator[pa.Table]:
        for batch in self._data.to_batches(columns=names, batch_size=MAX_ROWS, batch_readahead=1, use_threads=False):
            batch.validate(full=True)  # a damaged file has wrong offsets, at which Arrow would crash
            yield pa.Table.from_batches([batch])


def find_files(source: str | Path, what: str) -> list[DataFile]:
    """Return the files of a path, a folder, a glob or an address, sorted by name; at least one."""
    name = str(source)
    with read_errors(what, name, "data"):
        system = _file_system(name)
        path = system._strip_protocol(name)
        if not is_glob(name) and not system.isdir(path):
            if not is_address(name) and not Path(name).exists():
                raise FileNotFoundError
            return [DataFile(name)]
        full_name = system.unstrip_protocol if is_address(name) else str
        files = list[DataFile]()
        for match in map(PurePosixPath, sorted(system.glob(path)) if is_glob(name) else [path]):
            if not system.isdir(str(match)):
                files += [] if match.name[0] == "." else [DataFile(full_name(str(match)), _folder_values(match.parts))]
                continue
            for file in sorted(map(PurePosixPath, system.find(str(match)))):
                parts = file.relative_to(match).parts
                data = DataFile(full_name(str(file)), _folder_values(parts))
                if data.kind is not None and not any(part[0] in "._" for part in parts):  # hidden, or _SUCCESS
                    files.append(data)
    if not files:
        raise DataError(f"{what}: no file matches {name} and ends in {SUFFIXES}")
    return files


def find_file(folder: Path, stem: str) -> Path | None:
    """Return the file of `folder` with this stem and a known suffix; Parquet before the others."""
    files = [DataFile(str(folder / (stem + suffix + end))) for end in ("", *_COMPRESSIONS) for suffix in KINDS]
    return next((Path(file.name) for file in files if file.kind and Path(file.name).is_file()), None)


def _folder_values(parts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = (part.partition("=") for part in parts[:-1])
    return tuple((key, value) for key, equals, value in pairs if equals)


def _file_system(address: str) -> Any:
    """The fsspec file system of a path or an address."""
    import fsspec  # noqa: PLC0415 (slow to import)

    try:
        return fsspec.core.url_to_fs(address)[0]
    except ImportError as error:
        raise DataError(f"reading {address} needs another package: {first_sentence(error)}") from None
    except ValueError as error:
        raise DataError(f"{address} cannot be opened: {first_sentence(error)}") from None


# ── text files ───────────────────────────────────────────────────────────────────────────


class _TextFile:
    """A CSV or JSON file as a stream of UTF-8 that Arrow opens itself.

    A thread of Arrow that drops the last reference to a Python object while the interpreter ends aborts the process.
    So the content of zip archives and of files at addresses is held in memory.
    """

    def __init__(self, file: DataFile, what: str, columns: Columns) -> None:
        self.what, self._columns, self._file = what, columns, file
        self._content: bytes | None = None
        if file.path is None:
            self._content = _file_system(file.name).cat_file(file.name)
        if file.compression == ".zip":
            with zipfile.ZipFile(file.path or io.BytesIO(self._content or b"")) as archive:
                members = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
                if len(members) != 1:
                    raise OSError(f"the archive must hold one file, but holds {len(members)}")
                self._content = archive.read(members[0])

    def open(self) -> Any:
        file = pa.OSFile(self._file.name) if self._content is None else pa.BufferReader(self._content)
        codec = _COMPRESSIONS.get(self._file.compression)
        return file if codec in (None, "zip") else pa.CompressedInputStream(file, codec)


class _Csv(_TextFile):
    """Fields are read as text; a column gets the first type that fits all of them: integer, float, boolean, text."""

    def __init__(self, file: DataFile, what: str, columns: Columns) -> None:
        super().__init__(file, what, columns)
        with self.open() as stream:
            head = stream.read(_SNIFFED_BYTES)
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ValueError("it is not UTF-8 text; save it as UTF-8")
        self._separator, self._decimal_point = sniff_csv(head.decode(errors="ignore"))
        self.schema = self._reader(None).schema

    def tables(self, names: list[str], in_memory: bool) -> Iterator[pa.Table]:
        """Yield the columns; without room for all rows the file is read several times, first for the types."""
        if in_memory:
            table = pa.concat_tables(self._blocks(names)).combine_chunks()
            types = self._types(names, lambda chosen: [table.select(chosen)])
        else:
            types = self._types(names, self._blocks)
        for block in [table] if in_memory else self._blocks(names):
            yield pa.table({name: self._cast(block[name], types[name]) for name in names})

    def _reader(self, names: list[str] | None) -> Any:
        """Open the columns as text; None: all columns, in the types of the first block."""
        return pyarrow.csv.open_csv(
            self.open(),
            read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),  # the header must fit into a block
            parse_options=pyarrow.csv.ParseOptions(delimiter=self._separator, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names or (), pa.string()), include_columns=names, **EMPTY_IS_MISSING
            ),
        )

    def _blocks(self, names: list[str]) -> Iterator[pa.Table]:
        reader = self._reader(names)
        yield reader.schema.empty_table()
        for batch in reader:
            yield pa.Table.from_batches([batch])

    def _types(self, names: list[str], read: Callable[[list[str]], Iterable[pa.Table]]) -> dict[str, pa.DataType]:
        """Try one type after another on all rows of the columns that have none yet."""
        columns, like = self._columns, self.schema.empty_table()
        roles = [role for role in columns.text_ids if getattr(columns, role) in (None, *like.column_names)]
        texts = [columns.find_optional(role, like, what=self.what) for role in roles]
        types = dict.fromkeys(names, pa.string())
        for kind in (pa.null(), *_NUMBERS, pa.bool_()):
            fitting = [
                name for name in names if types[name] == pa.string() and (name not in texts or kind == pa.null())
            ]
            for block in read(fitting) if fitting else ():
                fitting = [name for name in fitting if self._fits(block[name], kind)]
                if not fitting:
                    break
            types |= dict.fromkeys(fitting, kind)
        return types

    def _fits(self, column: pa.ChunkedArray, kind: pa.DataType) -> bool:
        if pa.types.is_null(kind):
            return column.null_count == len(column)
        try:
            self._cast(column[:100], kind)  # most misfits show here
            self._cast(column, kind)
        except pa.ArrowInvalid:
            return False
        if kind not in _NUMBERS:
            return True
        # The regular expression is slow; most columns need none.
        is_suspect = any(pc.any(pc.starts_with(column, letters)).as_py() for letters in ("0", "+", "-0", " ", "\t"))
        is_suspect = is_suspect or (pc.max(pc.binary_length(column)).as_py() or 0) > 16
        return not (is_suspect and pc.any(pc.match_substring_regex(column, _NUMBERS[kind])).as_py())

    def _cast(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        if pa.types.is_null(kind):
            return pa.chunked_array([pa.nulls(len(column))])
        if kind == pa.float64() and self._decimal_point == ",":
            column = pc.replace_substring(column, ",", ".")
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            return pc.utf8_trim_whitespace(column).cast(kind)


def sniff_csv(text: str) -> tuple[str, str]:
    r"""Return the separator, judged by the header alone, and the decimal point of a CSV file, from its beginning.

    >>> sniff_csv("user;item;stars\na;b;4,5\n")
    (';', ',')
    """
    header = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    separator = max(",;\t|", key=header.count)  # a tie goes to the first
    has_comma, has_point = (re.search(rf"(^|;)-?\d+{mark}\d+(;|\r?$)", text, re.MULTILINE) for mark in (",", r"\."))
    return separator, "," if separator == ";" and has_comma and not has_point else "."


class _JsonLines(_TextFile):
    """One object a line, or one list of objects, which is held in memory."""

    def __init__(self, file: DataFile, what: str, columns: Columns) -> None:
        super().__init__(file, what, columns)
        # Any line can have a further field, so the columns are known after all lines only.
        self._schemas = list(dict.fromkeys(block.schema for block in self._blocks(None)))
        self.schema = _first_types(self._schemas)

    def tables(self, names: list[str], _: bool) -> Iterator[pa.Table]:
        # Only the types of the named columns must fit together.
        chosen = [[field for field in schema if field.name in names] for schema in self._schemas]
        types = concat([pa.schema(fields).empty_table() for fields in chosen] or [pa.table({})], self.what).schema
        for block in self._blocks(names):
            columns = {name: pa.nulls(len(block)) for name in names} | _columns_of(block)
            yield pa.table({name: columns[name].cast(types.field(name).type) for name in names})

    def _blocks(self, names: list[str] | None) -> Iterator[pa.Table]:
        with self.open() as stream:
            tail = stream.read(_BLOCK_BYTES).removeprefix(codecs.BOM_UTF8)
            if tail.lstrip()[:1] == b"[":
                yield self._of_rows(_parse_json(tail + stream.read()), names)
                return
            while tail:
                block = stream.read(_BLOCK_BYTES)
                lines, _, tail = (tail + block).rpartition(b"\n") if block else (tail, b"", b"")
                if lines.strip():
                    yield self._of_lines(lines, names)

    def _of_lines(self, lines: bytes, names: list[str] | None) -> pa.Table:
        options = {"read_options": pyarrow.json.ReadOptions(block_size=len(lines) + 1)}
        try:
            table = pyarrow.json.read_json(pa.BufferReader(lines), **options)
            texts = [(field.name, pa.string()) for field in table.schema if pa.types.is_temporal(field.type)]
            if texts:  # Arrow turns text that looks like a time into timestamps; other blocks may hold other text
                options["parse_options"] = pyarrow.json.ParseOptions(explicit_schema=pa.schema(texts))
                table = pyarrow.json.read_json(pa.BufferReader(lines), **options)
            return table if names is None else table.select([name for name in names if name in table.column_names])
        except pa.ArrowException:  # such as mixed types, perhaps in a column that nobody needs
            return self._of_rows([_parse_json(line) for line in lines.splitlines() if line.strip()], names)

    def _of_rows(self, rows: list[Any], names: list[str] | None) -> pa.Table:
        for row in rows:
            if not isinstance(row, dict):
                raise DataError(f"{self.what}: JSON must hold objects, one for each row, got {type(row).__name__}")
        return _open_rows(rows, self.what).read(names)


def _parse_json(text: bytes) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON, which writes null for a missing value")

    return json.loads(text, parse_constant=refuse)


@contextmanager
def read_errors(what: str, name: str | Path | None = None, kind: str = "") -> Iterator[None]:
    """Turn a failure to read a frame, or the file `name` as `kind`, into a DataError."""
    subject = f"{what} cannot be read as an Arrow table" if name is None else f"{what}: {name} cannot be read as {kind}"
    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError:
        raise DataError(f"{subject}: it is not UTF-8 text; save it as UTF-8") from None
    except FileNotFoundError as error:
        raise DataError(f"{what}: there is no file {name or error.filename}") from None
    except (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile, ValueError) as error:
        # ValueError: such as invalid JSON
        advice = "; save it as UTF-8" if "UTF8" in str(error) else ""
        raise DataError(f"{subject}: {first_sentence(error)}{advice}") from None


def native_reader(blocks: Iterable[bytes]) -> pa.BufferReader:
    """Copy bytes into Arrow's memory, for Arrow's readers of text; see `_TextFile` for the reason."""
    memory = pa.BufferOutputStream()
    for block in blocks:
        memory.write(block)
    return pa.BufferReader(memory.getvalue())


def first_sentence(error: Exception) -> str:
    """Return another library's message without the advice that follows it."""
    message = ", ".join(map(str, error.args))
    return message.splitlines()[0].split(". ")[0].rstrip(".")


def decoded(table: pa.Table, what: str) -> pa.Table:
    """Return the same table with dictionaries and string views as plain strings."""
    _check_distinct(table.column_names, what)
    columns = _columns_of(table)
    for name, column in columns.items():
        if pa.types.is_dictionary(column.type):
            parts = [_plain_strings(part.dictionary).take(part.indices) for part in column.chunks]
            columns[name] = pa.chunked_array(parts, None if parts else pa.large_string())
        else:
            columns[name] = _plain_strings(column)
    return pa.table(columns)


def _columns_of(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _check_distinct(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{what} have the column {repeated!r} more than once; keep one of them")


def _plain_strings(values: Any) -> Any:
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column holds strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def combined(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array; strings as large strings, because others cannot hold 2 GB."""
    return (column.cast(pa.large_string()) if pa.types.is_string(column.type) else column).combine_chunks()
