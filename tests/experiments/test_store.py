"""The folder of finished runs: one writer at a time, whole files only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairstream import ConfigurationError, DataError
from fairstream.experiments.store import Store

_HOLD = """
import sys
from pathlib import Path
from fairstream.experiments.store import Store

with Store(Path(sys.argv[1])).writing():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@contextmanager
def held(store: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process that is writing to the store."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, store.folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def is_refused(store: Store) -> bool:
    with pytest.raises(ConfigurationError, match="another process is writing to the store"), store.writing():
        pass
    return True


def test_there_is_one_writer_at_a_time(store: Store) -> None:
    for _ in range(2):  # also after the first has left
        with store.writing():
            assert is_refused(Store(store.folder))


@pytest.mark.slow
def test_also_among_processes_and_a_killed_one_lets_go(store: Store) -> None:
    with held(store) as process:
        assert is_refused(store)
        assert Store.opened(store.folder).ids() == []  # reading is always possible
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with store.writing():
            pass


def test_a_writer_that_fails_lets_go(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), store.writing():
        _ = 1 / 0
    with store.writing():
        pass


def test_what_a_killed_writer_left_half_written_goes(store: Store) -> None:
    with store.writing():
        store.write_note("plan", {})
    folders = [store.folder, *(path for path in store.folder.iterdir() if path.is_dir())]
    assert len(folders) == 6
    early, late = ([folder / f".x.parquet.{n}.tmp" for folder in folders] for n in (1, 2))
    for path in early:
        path.touch()
    with store.writing():
        assert not any(path.exists() for path in early)
        for path in late:  # by a worker that outlived its parent for a moment
            path.touch()
    assert sorted(path.name for path in store.folder.rglob("*") if path.is_file()) == [".lock", "plan.json"]


def test_what_is_no_store_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "file", tmp_path / "nowhere"):
        with pytest.raises(DataError, match=r"is not a store of runs; .* write one"):
            Store.opened(folder)


def test_where_nothing_can_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "store"):
        with (
            pytest.raises(ConfigurationError, match=r"cannot be written to: .*; choose another"),
            Store(folder).writing(),
        ):
            pass
    assert (tmp_path / "file").is_file()


def test_why_a_run_failed_is_kept_with_it(store: Store) -> None:
    with store.writing():
        store.write_failure("x", "training diverged: λ")
    assert (store.failure("x"), store.failure("y")) == ("training diverged: λ", None)
    assert "x" not in store
    assert store.ids() == []
    (store.folder / "failed" / "x.json").write_bytes(b"{")
    with pytest.raises(DataError, match=r"x\.json is damaged; remove it"):
        store.failure("x")


def test_what_is_cleared_is_the_pretrained_models_alone(store: Store) -> None:
    with store.writing():
        store.write_failure("x", "")
        store.write_note("plan", {})
        kept = {path for path in store.folder.rglob("*") if path.is_file()}
        for name in ("x", "y"):
            store.pretrained(name).touch()
    assert {path for path in store.folder.rglob("*") if path.is_file()} == kept


def test_notes_come_back(store: Store) -> None:
    with store.writing():
        assert store.note("plan") is None
        store.write_note("plan", {"b": [1, 2.5, "μ"], "a": None})
    assert store.note("plan") == {"a": None, "b": [1, 2.5, "μ"]}
    assert json.loads((store.folder / "plan.json").read_bytes()) == store.note("plan")
    (store.folder / "plan.json").write_bytes((store.folder / "plan.json").read_bytes()[:-3])
    with pytest.raises(DataError, match=r"plan\.json is damaged; remove it"):
        store.note("plan")
