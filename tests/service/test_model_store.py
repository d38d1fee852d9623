"""Models are whole or not there, on every machine, and one process at a time changes them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fairstream.errors import CheckpointError, WorkspaceError
from fairstream.service import model_store
from fairstream.service.registry import tidy
from fairstream.service.workspace import Workspace
from live_services import wait_until

Maker = Callable[..., Workspace]
FILES = {"tensors": bytes(range(256)) * 3, "manifest.json": b"{}", "empty": b""}


def add(workspace: Workspace, name: str) -> None:
    with workspace.models.new(name) as folder:
        for file, content in FILES.items():
            (folder / file).write_bytes(content)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def second_machine(workspace: Workspace, folder: Path) -> Workspace:
    """What is copied to another machine by hand: no model, no table."""
    folder.mkdir()
    for name in ("fairstream.toml", "database", "secret"):
        shutil.copy(workspace.folder / name, folder / name)
    return Workspace.open(folder)


def test_a_model_is_there_as_it_was_written_until_it_is_removed(new_workspace: Maker) -> None:
    workspace = new_workspace()
    add(workspace, "m1")
    add(workspace, "m2")
    assert workspace.models.names() == {"m1", "m2"}
    assert content(workspace.models.path("m1")) == FILES
    workspace.models.remove(["m1"])
    assert workspace.models.names() == {"m2"}
    assert not workspace.models.exists("m1")
    with pytest.raises(CheckpointError, match="m1 are missing"):
        workspace.models.path("m1")
    assert content(workspace.models.path("m2")) == FILES


def test_a_model_whose_writing_fails_leaves_nothing(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with pytest.raises(TypeError), workspace.models.new("m1") as folder:
        (folder / "tensors").write_bytes("not bytes")  # type: ignore[arg-type]
    assert workspace.models.names() == set()
    assert [path for path in (workspace.folder / "models").iterdir() if path.is_dir()] == []


@pytest.fixture
def with_model(on_postgres: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(model_store, "_PART_BYTES", 100)  # so that files have several parts
    add(on_postgres, "m1")
    return on_postgres


def test_a_second_machine_needs_only_three_small_files(with_model: Workspace, tmp_path: Path) -> None:
    with second_machine(with_model, tmp_path / "second") as second:
        assert content(second.models.path("m1")) == FILES


def test_a_half_fetched_folder_is_no_model(with_model: Workspace, tmp_path: Path) -> None:
    with second_machine(with_model, tmp_path / "second") as second:
        folder = second.folder / "models" / ".m1.abcdef.tmp" / "new"  # of a process that was killed
        folder.mkdir(parents=True)
        (folder / "tensors").write_bytes(FILES["tensors"][:300])
        assert content(second.models.path("m1")) == FILES
        assert not folder.exists()


def test_a_model_that_was_removed_leaves_the_other_machine_too(with_model: Workspace, tmp_path: Path) -> None:
    with second_machine(with_model, tmp_path / "second") as second:
        old = second.models.path("m1")
        add(with_model, "m1.1")
        with_model.models.remove(["m1"])
        assert content(second.models.path("m1.1")) == FILES
        assert not old.exists()


def test_models_of_one_machine_are_fetched_once_for_all_its_processes(with_model: Workspace, tmp_path: Path) -> None:
    with second_machine(with_model, tmp_path / "second") as second, Workspace.open(second.folder) as beside:
        first = second.models.path("m1")
        inode = (first / "tensors").stat().st_ino
        assert (beside.models.path("m1") / "tensors").stat().st_ino == inode


def test_only_one_machine_updates(with_model: Workspace, tmp_path: Path) -> None:
    with second_machine(with_model, tmp_path / "second") as second:
        with with_model.updating(), pytest.raises(WorkspaceError, match="another process"), second.updating():
            pass
        with second.updating():
            pass


HOLD = """
import os, signal, sys
from pathlib import Path
from fairstream.service.workspace import Workspace
with Workspace.open(Path(sys.argv[1])) as workspace, workspace.updating():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_the_lock_ends_with_a_process_that_is_killed(new_workspace: Maker) -> None:
    workspace = new_workspace()
    killed = subprocess.run([sys.executable, "-c", HOLD, str(workspace.folder)], check=False)
    assert killed.returncode == -9
    wait_until(lambda: is_free(workspace))  # PostgreSQL takes a moment to see that its client has gone


def is_free(workspace: Workspace) -> bool:
    try:
        with workspace.updating():
            return True
    except WorkspaceError:
        return False


def test_what_a_killed_process_left_goes_with_the_next_look(new_workspace: Maker) -> None:
    """It may be a whole model that knows people who are forgotten since."""
    workspace = new_workspace()
    left = workspace.folder / "models" / ".m1.abcdef.tmp" / "new"
    left.mkdir(parents=True)
    (left / "tensors").write_bytes(b"anna")
    with workspace.updating():
        tidy(workspace)
    assert not left.parent.exists()
