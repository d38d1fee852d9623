"""Arrow IPC streams from whoever sends them."""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.ipc

from fairstream.data.tables import first_sentence
from fairstream.errors import DataError

MOST_ROWS = 5_000_000
"""A column of nulls takes no room at all, so that a few bytes could stand for any number of rows."""
_DICTIONARY, _ROWS = 2, 3
"""Kinds of messages that carry data, as Arrow's format numbers them."""


def read_ipc(content: bytes) -> pa.Table:
    """The table of a stream that is not compressed: a few bytes could otherwise fill all memory."""
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(content)):
            if _is_compressed(message.metadata.to_pybytes()):
                raise DataError("the Arrow stream must not be compressed; send it without")
        with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error, IndexError) as error:
        raise DataError(f"the events are not an Arrow IPC stream: {first_sentence(error)}") from None
    if len(table) > MOST_ROWS:
        raise DataError(f"the Arrow stream must have at most {MOST_ROWS} rows, got {len(table)}; send several")
    return table


def _is_compressed(message: bytes) -> bool:
    """Whether a message says that its buffers are compressed; Arrow gives no other way to know beforehand."""
    root = _number("<I", message, 0)
    kind, header = _field(message, root, 1), _field(message, root, 2)
    if kind is None or header is None or message[kind] not in (_DICTIONARY, _ROWS):
        return False
    rows = header + _number("<I", message, header)
    if message[kind] == _DICTIONARY:
        inner = _field(message, rows, 1)
        if inner is None:
            return False
        rows = inner + _number("<I", message, inner)
    return _field(message, rows, 3) is not None


def _field(message: bytes, table: int, n: int) -> int | None:
    """Where the n-th field of a FlatBuffers table is, None where it is left out."""
    directory = table - _number("<i", message, table)
    place = 4 + 2 * n
    offset = _number("<H", message, directory + place) if place < _number("<H", message, directory) else 0
    return table + offset if offset else None


def _number(form: str, message: bytes, at: int) -> int:
    number: int = struct.unpack_from(form, message, at)[0]
    return number
