"""A folder of finished runs, each a file named by what it is.

    runs/ID.parquet           a finished run
    times/ID.json             seconds, measured; the only thing that differs when all is done again
    parts/ID-T.parquet        period T of a run that is still in the making
    pretrained/ID.safetensors a pre-trained model that runs still to come will begin with
    failed/ID.json            why a run could not be finished (its training diverged); it is not tried again
    selection.json, plan.json what was asked for, and what was chosen on the way

Files appear whole or not at all, so whatever is there is done. Parts and pre-trained models go as
soon as nothing needs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairstream.errors import ConfigurationError, DataError
from fairstream.experiments.stored import StoredRun
from fairstream.files import replace_file


class Store:
    """Reads and writes one such folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs, self._times = folder / "runs", folder / "times"
        self._parts, self._pretrained = folder / "parts", folder / "pretrained"
        self._failed = folder / "failed"

    @classmethod
    def opened(cls, folder: Path) -> Store:
        """A store that is there, to read from."""
        store = cls(folder)
        if not store._runs.is_dir():
            raise DataError(f"{folder} is not a store of runs; `fairstream reproduce` or `fairstream sweep` makes one")
        return store

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder for one writer; it is let go of even by a process that is killed.

        What a killed one has left half written is removed, and at the end all that nothing needs any more.
        """
        try:
            import fcntl  # noqa: PLC0415 (not on Windows)
        except ImportError:
            raise ConfigurationError("a store can be written to on Linux and macOS only") from None
        try:
            for folder in (self._runs, self._times, self._parts, self._pretrained, self._failed):
                folder.mkdir(parents=True, exist_ok=True)
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
                    f"another process is working on the store {self.folder}; wait for it or choose another folder"
                ) from None
            self._remove_unfinished()
            try:
                yield
            finally:
                self._remove_unfinished()  # a worker of a killed process may have outlived it for a moment

    def _remove_unfinished(self) -> None:
        """Remove files that somebody was killed in the middle of writing."""
        for folder in (self.folder, self._runs, self._times, self._parts, self._pretrained, self._failed):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the pre-trained models, where no run that begins with one is left to do."""
        for path in self._pretrained.iterdir():
            path.unlink(missing_ok=True)

    def __contains__(self, run_id: str) -> bool:
        return self.path(run_id).exists()

    def path(self, run_id: str) -> Path:
        return self._runs / f"{run_id}.parquet"

    def ids(self) -> list[str]:
        """All finished runs."""
        return sorted(path.stem for path in self._runs.glob("*.parquet"))

    def read(self, run_id: str) -> StoredRun:
        return StoredRun.read(self.path(run_id))

    def about(self, run_id: str) -> Mapping[str, Any]:
        return StoredRun.read_about(self.path(run_id))

    def write(self, run_id: str, run: StoredRun) -> None:
        replace_file(self.path(run_id), run.content())

    def part(self, run_id: str, t: int) -> Path:
        return self._parts / f"{run_id}-{t}.parquet"

    def write_part(self, run_id: str, t: int, run: StoredRun) -> None:
        replace_file(self.part(run_id, t), run.content())

    def join_parts(self, run_id: str, periods: range) -> bool:
        """Make one run of its parts, if all of them are there."""
        parts = [self.part(run_id, t) for t in periods]
        if run_id not in self:
            if not all(part.exists() for part in parts):
                return False
            self.write(run_id, StoredRun.joined(StoredRun.read(part) for part in parts))
        for part in parts:
            part.unlink(missing_ok=True)
        return True

    def write_failure(self, run_id: str, reason: str) -> None:
        replace_file(self._failed / f"{run_id}.json", json.dumps({"reason": reason}).encode())

    def failure(self, run_id: str) -> str | None:
        """Why a run could not be finished, if it could not."""
        path = self._failed / f"{run_id}.json"
        return _read_json(path)["reason"] if path.exists() else None

    def pretrained(self, pretraining_id: str) -> Path:
        return self._pretrained / f"{pretraining_id}.safetensors"

    def write_times(self, name: str, times: Mapping[str, Any]) -> None:
        replace_file(self._times / f"{name}.json", json.dumps(times, indent=1).encode())

    def times(self) -> dict[str, dict[str, Any]]:
        """All that was measured."""
        return {path.stem: _read_json(path) for path in sorted(self._times.glob("*.json"))}

    def write_note(self, name: str, content: Mapping[str, Any]) -> None:
        """A JSON file beside the runs."""
        replace_file(self.folder / f"{name}.json", (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())

    def note(self, name: str) -> dict[str, Any] | None:
        """What `write_note` wrote, if it did."""
        path = self.folder / f"{name}.json"
        return _read_json(path) if path.exists() else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise DataError(f"{path} is damaged; remove it, and run the command that made the store again") from None
    return content
