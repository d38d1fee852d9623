"""A folder of finished runs, each a file named by its content id.

    runs/ID.parquet           a finished run
    times/ID.json             its seconds; the only thing that differs when a run is repeated
    parts/ID-T.parquet        period T of a run in progress
    pretrained/ID.safetensors a pre-trained model that runs still to be computed start from
    failed/ID.json            why a run could not be finished (its training diverged); it is not retried

Files are written atomically, so every file is complete. Parts and pre-trained models are removed as soon as
no run needs them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments.record import Record
from fairstream.files import replace_file


class Store:
    """Reads and writes a folder of finished runs; the first write creates the folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = folder = Path(folder)
        names = ("runs", "times", "parts", "pretrained", "failed")
        self._folders = [folder / name for name in names]
        self._runs, self._times, self._parts, self._pretrained, self._failed = self._folders

    @classmethod
    def opened(cls, folder: Path | str) -> Store:
        """Return an existing store; raises DataError if the folder is not one."""
        store = cls(folder)
        if not store._runs.is_dir():
            raise DataError(f"{folder} is not a store of runs; `run --store`, `sweep` and `reproduce` write one")
        return store

    def create(self) -> None:
        for folder in self._folders:
            folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    @contextmanager
    def temporary(cls) -> Iterator[Store]:
        """Create a store that is removed at the end of the block."""
        with tempfile.TemporaryDirectory(prefix="fairstream-") as folder:
            store = cls(folder)
            store.create()
            yield store

    @contextmanager
    def writing(self) -> Iterator[Store]:
        """Lock the folder for one writer; the lock ends with the process, however it ends.

        Temporary files of a killed writer are removed, and at the end the pre-trained models, which no run needs then.
        """
        try:
            import fcntl  # noqa: PLC0415 (not on Windows)
        except ImportError:
            raise ConfigurationError("a store can be written to on Linux and macOS only") from None
        try:
            self.create()
            lock = (self.folder / ".lock").open("w")
        except OSError as error:
            raise ConfigurationError(
                f"the store {self.folder} cannot be written to: {error.strerror or error}; choose another folder"
            ) from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigurationError(
                    f"another process is writing to the store {self.folder}; wait for it or choose another folder"
                ) from None
            self._remove_unfinished()
            try:
                yield self
                for path in self._pretrained.iterdir():
                    path.unlink(missing_ok=True)
            finally:
                self._remove_unfinished()  # a worker can outlive a killed parent for a moment

    def _remove_unfinished(self) -> None:
        for folder in (self.folder, *self._folders):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)

    def __contains__(self, run_id: str) -> bool:
        return self.path(run_id).exists()

    def path(self, run_id: str) -> Path:
        return self._runs / f"{run_id}.parquet"

    def ids(self) -> list[str]:
        return sorted(path.stem for path in self._runs.glob("*.parquet"))

    def read(self, run_id: str) -> Record:
        """Return a finished run; the users' rows are read when they are needed."""
        return Record.read(self.path(run_id))

    def records(self) -> list[Record]:
        return [self.read(run_id) for run_id in self.ids()]

    def write(self, run_id: str, record: Record) -> None:
        about = dict(record.about)
        timing = about.pop("timing", None)
        if timing is not None:
            replace_file(self._times / f"{run_id}.json", json.dumps(timing).encode())
        replace_file(self.path(run_id), Record(about, lambda: record.tests).content())

    def part(self, run_id: str, t: int) -> Path:
        return self._parts / f"{run_id}-{t}.parquet"

    def write_part(self, run_id: str, t: int, part: Record) -> None:
        replace_file(self.part(run_id, t), part.content())

    def join_parts(self, run_id: str, periods: range) -> bool:
        """Make one run of its parts, if all of them exist."""
        parts = [self.part(run_id, t) for t in periods]
        if run_id not in self:
            if not all(part.exists() for part in parts):
                return False
            self.write(run_id, Record.joined(Record.read(part) for part in parts))
        for part in parts:
            part.unlink(missing_ok=True)
        return True

    def write_failure(self, run_id: str, reason: str) -> None:
        replace_file(self._failed / f"{run_id}.json", json.dumps({"reason": reason}).encode())

    def failure(self, run_id: str) -> str | None:
        """Return why a run could not be finished, or None."""
        path = self._failed / f"{run_id}.json"
        return _read_json(path)["reason"] if path.exists() else None

    def pretrained(self, pretraining_id: str) -> Path:
        return self._pretrained / f"{pretraining_id}.safetensors"

    def write_note(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file next to the runs."""
        replace_file(self.folder / f"{name}.json", (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())

    def note(self, name: str) -> dict[str, Any] | None:
        """Return what `write_note` wrote under this name, or None."""
        path = self.folder / f"{name}.json"
        return _read_json(path) if path.exists() else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise DataError(f"{path} is damaged; remove it, and run the command that wrote the store again") from None
    return content
