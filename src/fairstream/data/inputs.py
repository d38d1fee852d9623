"""From what people have to Arrow tables: frames, iterables, files, folders of parts, globs and addresses.

Every table that fairstream reads, of events, users or items, in Python or on the command line, comes through here.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import re
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet

from fairstream.data.tables import (
    Columns,
    csv_conversion,
    decoded,
    first_sentence,
    integers_as_text,
    is_text,
    native_reader,
    reading,
)
from fairstream.errors import DataError

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
"""What a file holds, by the end of its name."""
COMPRESSIONS = (".gz", ".zip", ".bz2", ".xz", ".zst")
"""May follow that end, except of Parquet and Arrow files, which are compressed inside."""
_SUFFIXES = ".parquet or .csv, .tsv, .txt, .arrow, .jsonl, .json (text also with .gz, .zip, .bz2, .xz or .zst)"
_SEPARATORS = ",;\t|"
_BLOCK = 1 << 20
_SNIFFED = 1 << 16
_PADDED = r"^\s*(0\d|\+)"
"""Numbers that would lose a letter."""
_JSON_BLOCK = 16 << 20
_ROWS_AT_ONCE = 1 << 16
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}


def to_table(source: Any, *, what: str, columns: Columns | None = None) -> pa.Table:
    """Return whatever holds a table as one Arrow table.

    Parameters
    ----------
    source
        A frame (pandas, Polars, lazy ones too, DuckDB, Arrow), columns by name, an iterable of frames or of rows
        (dictionaries), a file, a folder of files, a glob, an address that fsspec can open, or a list of those.
    what
        What it is, for messages.
    columns
        How earlier tables were read: ids in text files are read as text where they were text before.

    Raises
    ------
    DataError
        If it is none of these or cannot be read.

    Examples
    --------
    >>> to_table(({"user": name, "n": n} for n, name in enumerate("ab")), what="the users").to_pydict()
    {'user': ['a', 'b'], 'n': [0, 1]}
    """
    tables = list(read_pieces(source, what, columns))
    if len(tables) == 1:
        return tables[0]
    texts = {field.name for table in tables for field in table.schema if is_text(field.type)}
    try:
        return pa.concat_tables([integers_as_text(table, texts) for table in tables], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{what}: the parts have columns that do not fit together: {first_sentence(error)}") from None


def read_pieces(source: Any, what: str, columns: Columns | None = None) -> Iterator[pa.Table]:
    """Yield the tables that a source consists of, one at a time: at least one."""
    for part in parts_of(source, what):
        yield part.read(what, columns) if isinstance(part, DataFile) else frame_to_table(part, what)


def parts_of(source: Any, what: str) -> Iterator[Any]:
    """Yield the `DataFile`s and frames that a source consists of; rows become frames."""
    if isinstance(source, str | Path):
        yield from find_files(source, what)
    elif isinstance(source, DataFile) or is_frame(source):
        yield source
    elif isinstance(source, Mapping):
        with reading(what):
            yield pa.table(dict(source))
    elif _is_lazy(source):
        yield source.collect()
    elif isinstance(source, Iterable) and not isinstance(source, bytes):
        yield from _of_iterable(source, what)
    else:
        raise _no_table(what, type(source).__name__)


def is_frame(source: Any) -> bool:
    """Return whether Arrow can take over the columns of an object."""
    return hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def frame_to_table(frame: Any, what: str) -> pa.Table:
    """Return a frame as a table."""
    with reading(what):
        return decoded(pa.table(_plain_frame(frame)), what)


def is_address(source: Any) -> bool:
    """Return whether a string is an address such as s3://bucket/events.parquet."""
    return isinstance(source, str) and _ADDRESS.match(source) is not None


def is_glob(source: Any) -> bool:
    """Return whether a path is a pattern for several files."""
    return any(letter in str(source) for letter in "*?[") and not Path(source).exists()


# ── iterables and frames ─────────────────────────────────────────────────────────────────


def _of_iterable(source: Iterable[Any], what: str) -> Iterator[Any]:
    """The parts of each element; neighbouring rows become one frame."""
    is_empty = True
    for is_row, elements in groupby(source, lambda element: isinstance(element, Mapping)):
        is_empty = False
        if is_row:
            rows: list[Mapping[str, Any]] = []
            for row in elements:
                rows.append(row)
                if len(rows) == _ROWS_AT_ONCE:
                    yield _of_rows(rows, what)
                    rows = []
            if rows:
                yield _of_rows(rows, what)
        else:
            for element in elements:
                if not isinstance(element, str | Path | DataFile) and not is_frame(element) and not _is_lazy(element):
                    raise _no_table(what, f"{type(source).__name__} of {type(element).__name__}")
                yield from parts_of(element, what)
    if is_empty:
        raise DataError(f"{what} are empty: an iterable without any row or table")


def _of_rows(rows: list[Mapping[str, Any]], what: str) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    with reading(what):
        try:
            return pa.table(columns)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.table({name: [_plain(value) for value in values] for name, values in columns.items()})


def _is_lazy(source: Any) -> bool:
    """Whether a Polars query has not been run yet."""
    return type(source).__name__ == "LazyFrame" and callable(getattr(source, "collect", None))


def _plain_frame(frame: Any) -> Any:
    """A pandas frame with intervals, and tuples of mixed kinds, as what Arrow knows; others as they are."""
    if type(frame).__module__.partition(".")[0] != "pandas" or not hasattr(frame, "isetitem"):
        return frame
    plain = frame.copy(deep=False)
    for at, dtype in enumerate(frame.dtypes):
        column, kind = frame.iloc[:, at], str(getattr(getattr(dtype, "categories", None), "dtype", dtype))
        if kind.startswith(("interval", "period")):
            plain.isetitem(at, column.astype(str).where(column.notna(), None))
        elif kind == "object" and any(_plain(value) is not value for value in column.dropna().iloc[:1]):
            plain.isetitem(at, column.map(_plain))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [None if part is None else str(part) for part in value]  # their kinds may differ
    return str(value) if type(value).__name__ in ("Interval", "Period") else value


def _no_table(what: str, found: str) -> DataError:
    return DataError(
        f"{what} must be a path or a table (pandas, Polars, DuckDB, Arrow: anything with the Arrow PyCapsule "
        f"interface), or an iterable of tables or dictionaries, got {found}"
    )


# ── files ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class DataFile:
    """One file, on this machine or behind an address."""

    name: str
    """Its path or address."""
    values: tuple[tuple[str, str], ...] = ()
    """Columns that its folders give the same value in all rows: `country=NO/part-0.parquet`."""

    @property
    def kind(self) -> str | None:
        """parquet, arrow, csv or json; None: nothing that can be read."""
        path = PurePosixPath(self.name.lower())
        if path.suffix in COMPRESSIONS:
            kind = KINDS.get(path.with_suffix("").suffix)
            return kind if kind in ("csv", "json") else None
        return KINDS.get(path.suffix)

    @property
    def compression(self) -> str | None:
        """The end of the name that says how it is compressed."""
        suffix = PurePosixPath(self.name.lower()).suffix
        return suffix if suffix in COMPRESSIONS else None

    @property
    def path(self) -> Path | None:
        """Where it is on this machine; None: it is behind an address."""
        return None if is_address(self.name) else Path(self.name)

    def check(self, what: str) -> None:
        """Raise DataError where the name says that it cannot be read."""
        if self.kind is None:
            raise DataError(f"{what}: {PurePosixPath(self.name).name} must end in {_SUFFIXES}")

    def read(self, what: str, columns: Columns | None = None) -> pa.Table:
        """Return the file as a table."""
        self.check(what)
        with self.reading(what):
            table = self.with_values(decoded(self._read(), what))
            # A text file does not say whether digits are a number: the earlier tables do.
            return table if columns is None or self.kind != "csv" else columns.with_text_ids(table)

    def with_values(self, table: pa.Table) -> pa.Table:
        """Return the table with the columns that the folders' names give."""
        for name, value in self.values:
            if name not in table.column_names:
                is_number = re.fullmatch(r"0|-?[1-9]\d{0,17}", value) is not None
                table = table.append_column(name, pa.array([int(value) if is_number else value] * len(table)))
        return table

    def reading(self, what: str) -> AbstractContextManager[None]:
        """Failures to read it in the block become a DataError."""
        plain = self.name if self.compression is None else self.name[: -len(self.compression)]
        return reading(what, self.name, PurePosixPath(plain).suffix[1:])

    def _read(self) -> pa.Table:
        if self.kind == "parquet":
            return pyarrow.parquet.read_table(self.name if self.path else self._open(), partitioning=None)
        if self.kind == "arrow":
            return pa.ipc.open_file(pa.memory_map(self.name) if self.path else self._open()).read_all()
        with self.opened() as stream:
            if self.kind == "json":
                return _read_json(stream)
            layout = sniff_csv(stream)
        table = self._read_csv(layout)
        for field in table.schema:
            if pa.types.is_binary(field.type):
                raise ValueError(f"the text in {field.name!r} is not UTF-8; save the file as UTF-8")
        return table

    def _read_csv(self, layout: CsvLayout) -> pa.Table:
        """Numbers are numbers where no field would lose a letter; a column with 007 or +7 is text, as DuckDB has it."""
        watch = _PaddingWatch(layout)
        with self.opened() as stream:
            blocks = map(watch.look_at, _utf8_blocks(stream, layout.encoding))
            if self.path and self.compression is None and layout.encoding == "utf-8":
                deque(blocks, maxlen=0)
                source = pa.OSFile(self.name)
            else:
                source = native_reader(blocks)
        table = _parse_csv(source, layout)
        numbers = [field.name for field in table.schema if pa.types.is_integer(field.type)]
        numbers += [field.name for field in table.schema if pa.types.is_floating(field.type)]
        if watch.has_padding and numbers:
            source.seek(0)
            texts = _parse_csv(source, layout, numbers)
            for name in numbers:
                if pc.any(pc.match_substring_regex(texts[name], _PADDED)).as_py():
                    table = table.set_column(table.column_names.index(name), name, texts[name])
        return table

    @contextmanager
    def opened(self) -> Iterator[Any]:
        """Its content without compression, as a stream of bytes."""
        with self._open() as file:
            if self.compression == ".zip":
                with zipfile.ZipFile(file) as archive:
                    inside = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
                    if len(inside) != 1:
                        raise OSError(f"the archive must hold one file, but holds {len(inside)}")
                    with archive.open(inside[0]) as stream:
                        yield stream
            else:
                openers: dict[str | None, Any] = {
                    None: lambda raw: raw,
                    ".gz": gzip.open,
                    ".bz2": bz2.open,
                    ".xz": lzma.open,
                    ".zst": lambda raw: pa.CompressedInputStream(raw, "zstd"),
                }
                yield openers[self.compression](file)

    def size(self) -> int:
        """Return how many bytes it has; 0 where that cannot be told."""
        return self.path.stat().st_size if self.path else _file_system(self.name).size(self.name) or 0

    def parquet(self) -> pyarrow.parquet.ParquetFile:
        """Return a Parquet file opened, of which no events have been read."""
        return pyarrow.parquet.ParquetFile(self.path or self._open())

    def _open(self) -> Any:
        return self.path.open("rb") if self.path else _file_system(self.name).open(self.name, "rb")


def find_files(source: str | Path, what: str) -> list[DataFile]:
    """Return the files behind a path, a folder, a glob or an address, in the order of their names; at least one."""
    name = str(source)
    if is_address(name):
        return _behind_address(name, what)
    path = Path(source)
    if path.is_file():
        return [DataFile(name)]
    if path.is_dir():
        if not (found := files_within(path)):
            inside = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
            raise DataError(f"{what}: the folder {path} holds no file that ends in {_SUFFIXES}; it holds {inside}")
        return found
    if is_glob(name):
        base = Path(path.anchor) if path.is_absolute() else Path()
        matches = sorted(file for file in base.glob(name.removeprefix(path.anchor)) if not file.name.startswith("."))
        found = [file for match in matches for file in _in_or_itself(match)]
        if not found:
            raise DataError(f"{what}: no file matches {name}")
        return found
    raise DataError(f"{what}: there is no file {path}")


def _in_or_itself(match: Path) -> list[DataFile]:
    return files_within(match) if match.is_dir() else [DataFile(str(match))]


def find_file(folder: Path, stem: str) -> Path | None:
    """Return the file of `folder` with this stem and an end that can be read; Parquet before the others."""
    text = [suffix for suffix, kind in KINDS.items() if kind in ("csv", "json")]
    ends = [*KINDS, *(suffix + compression for suffix in text for compression in COMPRESSIONS)]
    return next((folder / (stem + end) for end in ends if (folder / (stem + end)).is_file()), None)


def files_within(folder: Path) -> list[DataFile]:
    """Return the files of a folder, and of those in it, that can be read; hidden ones and _those are no data."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return [found for file in files if (found := _part(PurePosixPath(file), PurePosixPath(folder), str(file)))]


def _part(file: PurePosixPath, folder: PurePosixPath, name: str) -> DataFile | None:
    """A file of a folder, with the values that the folders between them are named after; None: no data."""
    parts = file.relative_to(folder).parts
    pairs = (part.partition("=") for part in parts[:-1])
    found = DataFile(name, tuple((key, value) for key, equals, value in pairs if equals))
    return None if found.kind is None or any(part[0] in "._" for part in parts) else found


def _behind_address(address: str, what: str) -> list[DataFile]:
    with reading(what, address, "data"):
        system = _file_system(address)
        path = system._strip_protocol(address)
        if any(letter in path for letter in "*?["):
            found = [DataFile(system.unstrip_protocol(name)) for name in sorted(system.glob(path))]
        elif system.isdir(path):
            base = PurePosixPath(path)
            names = ((PurePosixPath(name), system.unstrip_protocol(name)) for name in sorted(system.find(path)))
            found = [part for file, name in names if (part := _part(file, base, name))]
        else:
            return [DataFile(address)]
    if not found:
        raise DataError(f"{what}: no file matches {address}")
    return found


def _file_system(address: str) -> Any:
    """The fsspec file system of an address."""
    try:
        import fsspec  # noqa: PLC0415 (optional)
    except ModuleNotFoundError:
        raise DataError(f"reading {address} needs fsspec; install it with: pip install fsspec") from None
    try:
        return fsspec.core.url_to_fs(address)[0]
    except ImportError as error:
        raise DataError(f"reading {address} needs another package: {first_sentence(error)}") from None
    except ValueError as error:
        raise DataError(f"{address} cannot be opened: {first_sentence(error)}") from None


# ── text ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CsvLayout:
    """How the fields of a text file are written."""

    separator: str
    encoding: str
    decimal_point: str


def sniff_csv(stream: Any) -> CsvLayout:
    r"""Find out how a CSV file is written, from its beginning; the separator from the header alone.

    >>> import io
    >>> sniff_csv(io.BytesIO(b"user;item;stars\na;b;4,5\n"))
    CsvLayout(separator=';', encoding='utf-8', decimal_point=',')
    """
    head = stream.read(_SNIFFED)
    encoding = next((name for mark, name in _BYTE_ORDER_MARKS.items() if head.startswith(mark)), "utf-8")
    text = head.decode(encoding, errors="ignore")
    header = re.sub(r'"[^"]*"', "", text.partition("\n")[0])
    separator = max(_SEPARATORS, key=header.count)  # of equals the first
    has_comma, has_point = (re.search(rf"(^|;)-?\d+{mark}\d+(;|\r?$)", text, re.MULTILINE) for mark in (",", r"\."))
    is_continental = separator == ";" and has_comma and not has_point
    return CsvLayout(separator, encoding.removesuffix("-sig"), "," if is_continental else ".")


def _utf8_blocks(stream: Any, encoding: str) -> Iterator[bytes]:
    if encoding == "utf-8":
        return iter(partial(stream.read, _BLOCK), b"")
    text = codecs.getreader(encoding)(stream)
    return (block.encode() for block in iter(partial(text.read, _BLOCK), ""))


def _parse_csv(source: pa.NativeFile, layout: CsvLayout, texts: list[str] | None = None) -> pa.Table:
    """Read a CSV file in UTF-8; with `texts` these columns alone, as text."""
    return pyarrow.csv.read_csv(
        source,
        parse_options=pyarrow.csv.ParseOptions(delimiter=layout.separator, newlines_in_values=True),
        convert_options=csv_conversion(dict.fromkeys(texts or (), pa.string()), texts, layout.decimal_point),
    )


class _PaddingWatch:
    """Looks, block by block of a CSV file, for fields that may begin with a plus sign or a zero and a digit."""

    def __init__(self, layout: CsvLayout) -> None:
        self.has_padding, self._last = False, b"\n\n"
        self._starts = np.zeros(256, dtype=np.bool_)
        """The letters that a field can follow."""
        self._starts[list(b'\r\n\t "' + layout.separator.encode())] = True
        self._plus = re.compile(rb'[\r\n\t "' + re.escape(layout.separator.encode()) + rb"]\+")

    def look_at(self, block: bytes) -> bytes:
        """Look at the next block, and return it."""
        if not self.has_padding:
            text = self._last + block
            letters = np.frombuffer(text, np.uint8)
            at = np.flatnonzero(letters[2:-1] == ord("0"))
            at = at[self._starts[letters[at + 1]]]
            is_time = (letters[at + 1] == ord(" ")) & _is_digit(letters[at])  # of a day and the time after it
            is_padded = _is_digit(letters[at + 3]) & ~is_time
            self.has_padding = bool(is_padded.any()) or (b"+" in text and self._plus.search(text) is not None)
            self._last = text[-3:]
        return block


def _is_digit(letters: Any) -> Any:
    return (letters >= ord("0")) & (letters <= ord("9"))


def _read_json(stream: Any) -> pa.Table:
    """One object a line, or one list of objects."""
    content = stream.read()
    if content.lstrip()[:1] == b"[":
        return _of_rows(json.loads(content), "the rows")
    options = pyarrow.json.ReadOptions(block_size=max(_JSON_BLOCK, 1))
    return pyarrow.json.read_json(native_reader([content]), read_options=options)
