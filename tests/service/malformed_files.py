"""Files of events and of users: good ones, and every kind of bad one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import malformed
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from malformed import MARK, bad_event, bad_json, event, scratched

Expected = Literal["stored", "refused", "either"]
SUFFIXES = (".parquet", ".csv", ".arrow", ".jsonl")


@dataclass(frozen=True)
class File:
    """A file to ingest, and what should become of it."""

    path: Path
    expected: Expected = "refused"
    events: list[dict[str, Any]] = field(default_factory=list)
    are_users: bool = False


def content_of(table: pa.Table, suffix: str, rng: Random) -> bytes:
    """The table as a file."""
    sink = io.BytesIO()
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, sink, compression=rng.choice(["NONE", "SNAPPY", "ZSTD"]))
    elif suffix == ".csv":
        pyarrow.csv.write_csv(table, sink)
    elif suffix == ".arrow":
        with pa.ipc.new_file(sink, table.schema) as file:
            file.write_table(table)
    else:
        sink.write(b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist()))
    return sink.getvalue()


class Files:
    """Writes files of all kinds into a folder; the same seed writes the same ones."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._rng, self._folder, self._n = Random(seed), folder, 0
        self._kinds: list[Callable[[], File]] = [
            self._good, self._scratched, self._scratched, self._scratched, self._wrong_table, self._wrong_table,
            self._bad_rows, self._bad_text, self._wrong_suffix, self._no_file, self._bad_users, self._bad_users,
        ]  # fmt: skip

    def file(self) -> File:
        self._n += 1
        return self._rng.choice(self._kinds)()

    def _write(self, content: bytes, suffix: str) -> Path:
        path = self._folder / f"file{self._n}{suffix}"
        path.write_bytes(content)
        return path

    def _table(self) -> tuple[pa.Table, list[dict[str, Any]]]:
        events = [event(self._rng, self._n) for _ in range(self._rng.randrange(1, 30))]
        return pa.Table.from_pylist(events), events

    def _good(self) -> File:
        suffix = self._rng.choice(SUFFIXES)
        table, events = self._table()
        return File(self._write(content_of(table, suffix, self._rng), suffix), "stored", events)

    def _scratched(self) -> File:
        suffix = self._rng.choice(SUFFIXES)
        content = scratched(self._rng, content_of(self._table()[0], suffix, self._rng))
        return File(self._write(content, suffix), "either")

    def _wrong_table(self) -> File:
        """Of a table that cannot be taken, as far as the format can hold it."""
        suffix = self._rng.choice([".parquet", ".arrow", ".jsonl"])
        try:
            content = content_of(malformed.wrong_tables(self._rng, self._n), suffix, self._rng)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, MemoryError):
            return self._bad_rows()
        # A format may turn it into what can be taken: columns that are not asked for are passed over.
        return File(self._write(content, suffix), "either")

    def _bad_rows(self) -> File:
        rows = [event(self._rng, self._n), bad_event(self._rng, self._n)]
        has_more = rows[1].keys() - rows[0].keys()
        content = b"\n".join(json.dumps(row).encode() for row in rows)
        return File(self._write(content, ".jsonl"), "either" if has_more else "refused")

    def _bad_text(self) -> File:
        rng = self._rng
        content = rng.choice(
            [
                bad_json(rng), b"user_id,item_id,time\n", b"user_id,item_id,time\na,b\n", b"user_id,item_id\na,b\n",
                b"\n\n\n",
                b"user_id,item_id,time\na,b,never\n", b"user_id,item_id,time\n,b,1\n",
                b"user_id,item_id,time\n\x00,b,1\n",
                b"user_id,user_id,item_id,time\na,a,b,1\n", b'user_id,item_id,time\n"a,b,1\n',
                b"user_id;item_id;time\na;b;1\n",
                b"user_id,item_id,time\n\xff\xfe,b,1\n", b"user_id,item_id,time\n" + b"a" * 300 + b",b,1\n",
                b"PAR1PAR1", b"ARROW1",
                b"PAR1" + bytes(100) + b"PAR1", b"user_id,item_id,time\na,b,nan\n",
                b"user_id,item_id,time\na,b,1e300\n",
                "user_id,item_id,time\na,b,1\n".encode("utf-16"), b"user_id,item_id,time\na,b,99999999999999999999\n",
            ]
        )  # fmt: skip
        return File(self._write(content, rng.choice(SUFFIXES)), "either")

    def _wrong_suffix(self) -> File:
        suffix, other = self._rng.sample((*SUFFIXES, ".txt", "", ".parquet.gz", ".CSV", ".json"), 2)
        content = content_of(self._table()[0], suffix if suffix in SUFFIXES else ".csv", self._rng)
        return File(self._write(content, other), "either")

    def _no_file(self) -> File:
        path = self._folder / f"file{self._n}{self._rng.choice(SUFFIXES)}"
        way = self._rng.randrange(4)
        if way == 0:
            path.mkdir()
        elif way == 1:
            path.symlink_to(path)
        elif way == 2:
            path = Path("/dev/null")
        return File(path)

    def _bad_users(self) -> File:
        rng = self._rng
        rows: list[dict[str, Any]] = [{"user_id": MARK, "community": "a"}, {"user_id": MARK, "community": "b"}]
        way = rng.randrange(5)
        if way == 0:
            rows[1][rng.choice(["user_id", "community"])] = rng.choice(
                [bad for bad in malformed.BAD_IDS if bad is not None]
            )
        elif way == 1:
            rows[1] = {"user_id": None, "community": "a"}
        elif way == 2:
            rows = [{"person": MARK, "community": "a"}]
        elif way == 3:
            rows = [{"user_id": MARK, "group": "a"}]
        content = b"\n".join(json.dumps(row).encode() for row in rows)
        if way == 4:
            content = b"user_id,community\n" + rng.choice([b",a\n", b"a,b,c\n", b"\x00,a\n", b"\xff,a\n", b'"a,b\n'])
        return File(self._write(content, ".csv" if way == 4 else ".jsonl"), are_users=True)
