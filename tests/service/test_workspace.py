"""A workspace is made once, opened often, and updated by one process at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event
from typer.testing import CliRunner

from fairstream import FairRecommender
from fairstream.cli import app
from fairstream.errors import ConfigurationError, DataError, WorkspaceError
from fairstream.service import database
from fairstream.service.event_store import EventStore
from fairstream.service.incoming import batch_from_json
from fairstream.service.learning import Learning
from fairstream.service.settings import FILE, Gate, Limits, LiveConfig
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]


def test_what_was_configured_is_read_again(new_workspace: Maker) -> None:
    options = {
        "advantaged": "majority",
        "learning": Learning(method="FADE", fairness_weight=2.5),
        "gate": Gate(max_rise=0.01),
    }
    made = new_workspace(**options)
    with Workspace.open(made.folder) as again:
        assert again.config == made.config == LiveConfig(group="community", **options)
        assert again.secret == made.secret


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(WorkspaceError, match="is not empty"):
        Workspace.create(tmp_path, LiveConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("content", ["group = ", "grop = 'sex'", "[gate]\nmax_rise = -1", "gate = 3", "\xff"])
def test_a_configuration_that_cannot_be_honoured_is_one_sentence(new_workspace: Maker, content: str) -> None:
    folder = new_workspace().folder
    (folder / FILE).write_text(content, encoding="latin-1")
    with pytest.raises(ConfigurationError) as told:
        Workspace.open(folder)
    assert "\n" not in str(told.value)


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("command", "content", "sentence"),
    [
        (["serve", "--port", "0"], "modell = 'mf'", "[learning] modell is not an option; the options are"),
        (["serve", "--port", "0"], "model = 'mf'\nmodel_settings.embedding_dim = -1", "embedding_dim must be >= 1"),
    ],
)
def test_what_is_wrong_with_learning_is_said_before_an_update(
    new_workspace: Maker, command: list[str], content: str, sentence: str
) -> None:
    folder = new_workspace().folder
    (folder / FILE).write_text(f"[learning]\n{content}")
    name, *options = command
    with pytest.raises(ConfigurationError) as told:
        CliRunner().invoke(app, [name, str(folder), *options], catch_exceptions=False)
    assert sentence in str(told.value)


def test_one_process_updates_at_a_time(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with workspace.updating(), pytest.raises(WorkspaceError, match="another process"), workspace.updating():
        pass
    with workspace.updating():
        pass


@pytest.mark.slow
def test_the_lock_is_given_back_before_its_connection_is_closed(on_postgres: Workspace) -> None:
    """The server ends a closed connection's lock a moment later, and whoever comes in between is refused."""
    held = []

    @event.listens_for(on_postgres.engine.pool, "close_detached")
    def _look(_: object) -> None:
        with on_postgres.engine.connect() as second:
            held.append(second.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").scalar())

    with on_postgres.updating():
        assert not held
    assert held == [0]


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_an_init_that_fails_leaves_an_empty_folder_as_it_was(tmp_path: Path, kind: str) -> None:
    """It may be a volume that is mounted there, or a link to one: it must not be removed and made again."""
    target = tmp_path / "volume"
    target.mkdir()
    target.chmod(0o750)
    folder = target
    if kind == "link":
        folder = tmp_path / "link"
        folder.symlink_to(target)
    inode = target.stat().st_ino
    with pytest.raises(WorkspaceError, match="cannot be used"):
        Workspace.create(folder, LiveConfig(), "postgresql://nobody@127.0.0.1:1/none")
    assert (target.stat().st_ino, target.stat().st_mode & 0o777) == (inode, 0o750)
    assert list(target.iterdir()) == []
    assert folder.is_symlink() == (kind == "link")
    Workspace.create(folder, LiveConfig()).close()


def test_a_missing_secret_is_one_sentence(new_workspace: Maker) -> None:
    folder = new_workspace().folder
    (folder / "secret").unlink()
    with pytest.raises(WorkspaceError, match="secret cannot be read: No such file"):
        Workspace.open(folder)


@pytest.mark.sqlite_only
@pytest.mark.parametrize("file", ["events.sqlite", "people.sqlite"])
def test_a_missing_database_is_one_sentence_and_is_not_made_again(new_workspace: Maker, file: str) -> None:
    folder = new_workspace().folder
    (folder / file).unlink()
    with pytest.raises(WorkspaceError, match="cannot be used: unable to open database"):
        Workspace.open(folder)
    assert not (folder / file).exists()


@pytest.mark.sqlite_only
@pytest.mark.parametrize("file", ["events.sqlite", "people.sqlite"])
def test_damaged_pages_are_found(new_workspace: Maker, file: str) -> None:
    with new_workspace() as workspace:
        append(workspace)
        workspace.check_files()
    path = workspace.folder / file
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for start in range(page, len(content), page):
        content[start : start + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(WorkspaceError, match=r"is damaged .*; restore it from a backup"):
        workspace.check_files()


def test_a_clock_that_is_hours_ahead_is_refused_by_default() -> None:
    """Its events would be the last of every period, and make all of the next one late."""
    events = [{"user_id": "u", "item_id": "i", "time": time.time() + 3600}]
    with pytest.raises(DataError, match="at most 300 seconds ahead of the clock"):
        batch_from_json(events, Limits())


@pytest.mark.sqlite_only
def test_a_folder_that_cannot_be_written_to_is_one_sentence(new_workspace: Maker) -> None:
    workspace = new_workspace()
    (workspace.folder / ".updating").mkdir()  # as good as a file system that is read-only, for root too
    with pytest.raises(WorkspaceError, match="cannot be written to: Is a directory"), workspace.updating():
        pass


def append(workspace: Workspace) -> None:
    rows = [{"user_id": f"u{n}", "item_id": "i", "time": n} for n in range(5000)]
    EventStore(workspace).append(batch_from_json(rows, workspace.config.limits))


@pytest.mark.sqlite_only
def test_a_full_disk_is_one_sentence_and_nothing_is_stored(new_workspace: Maker) -> None:
    workspace = new_workspace()

    @event.listens_for(workspace.engine.pool, "connect")
    def _fill(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 100")

    workspace.engine.dispose()
    with pytest.raises(WorkspaceError, match="database or disk is full"):
        append(workspace)
    assert EventStore(workspace).last_seq() == 0


@pytest.mark.sqlite_only
def test_a_locked_database_is_given_up_within_seconds(new_workspace: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert database._WAIT_SECONDS <= 5
    monkeypatch.setattr(database, "_WAIT_SECONDS", 0.1)
    with Workspace.open(new_workspace().folder) as workspace:
        other = sqlite3.connect(workspace.folder / "events.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(WorkspaceError, match="database is locked"):
            append(workspace)
        other.close()
        append(workspace)


def test_the_model_brings_its_own_training(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["init", str(tmp_path / "shop")]).exit_code == 0
    made = LiveConfig.read(tmp_path / "shop")
    ours, library = made.learning.recipe(), FairRecommender(device="cpu").recipe
    for name in ("model", "training", "fairness", "update_epochs", "update_learning_rate", "group_weight"):
        assert getattr(ours, name) == getattr(library, name), name
    content = (tmp_path / "shop" / FILE).read_text()
    for model in ("mf", "item-item", "gru"):
        (tmp_path / "shop" / FILE).write_text(content.replace('model = "blend"', f'model = "{model}"'))
        assert LiveConfig.read(tmp_path / "shop").learning.recipe().training == FairRecommender(model).recipe.training
        assert CliRunner().invoke(app, ["init", str(tmp_path / model), "--model", model]).exit_code == 0
        assert LiveConfig.read(tmp_path / model).learning == LiveConfig.read(tmp_path / "shop").learning


def test_a_fairness_weight_without_a_fairness_loss_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="Finetune has no fairness loss"):
        Learning(fairness_weight=2.5)
