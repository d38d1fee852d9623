"""Arrow IPC streams from anyone: what is read takes no more memory than what was sent."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.ipc

from fairstream.errors import DataError
from fairstream.events.tables import first_sentence

MOST_ROWS = 5_000_000
"""A column of nulls takes no room at all, so that a few bytes could stand for any number of rows."""


def table_from_ipc(content: bytes) -> pa.Table:
    """The table of an Arrow IPC stream, or one sentence that it is none."""
    buffer = pa.py_buffer(content)
    with _readable():
        is_compressed = _any_compressed(buffer)
    if is_compressed:
        raise DataError("an Arrow IPC stream must not be compressed; write it without compression")
    with _readable(), pa.ipc.open_stream(buffer) as reader:
        table = reader.read_all()
    if table.num_rows > MOST_ROWS:
        raise DataError(f"an Arrow IPC stream must have at most {MOST_ROWS} rows; send it in several parts")
    return table


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise DataError(f"this is not an Arrow IPC stream: {first_sentence(error)}") from None


def _any_compressed(stream: pa.Buffer) -> bool:
    """Whether there are buffers that are written out only when they are read, to whatever size they say."""
    messages = pa.ipc.MessageReader.open_stream(stream)
    return any(message.type in ("record batch", "dictionary") and _is_compressed(message) for message in messages)


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Whether its header says so; pyarrow tells nothing of it, so the FlatBuffers table is looked into.

    Message {version, header_type, header: RecordBatch or DictionaryBatch, ...},
    DictionaryBatch {id, data: RecordBatch, ...}, RecordBatch {length, nodes, buffers, compression, ...}
    """
    content = message.metadata.to_pybytes()
    batch = _follow(content, _field(content, _follow(content, 0), 2))
    if message.type == "dictionary":
        batch = _follow(content, _field(content, batch, 1))
    return _field(content, batch, 3) != 0


def _follow(content: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", content, at)[0])


def _field(content: bytes, table: int, number: int) -> int:
    """Where a field of a table stands, 0 where it is left out."""
    fields = table - struct.unpack_from("<i", content, table)[0]
    (size,) = struct.unpack_from("<H", content, fields)
    place = 4 + 2 * number
    offset = struct.unpack_from("<H", content, fields + place)[0] if place < size else 0
    return table + offset if offset else 0
