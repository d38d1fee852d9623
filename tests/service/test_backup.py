"""A backup has all that was acknowledged before it; what is restored of it brings nobody back."""

from __future__ import annotations

import io
import json
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from fairstream.cli import main
from fairstream.errors import WorkspaceError
from fairstream.service import schema
from fairstream.service.api.follower import Follower
from fairstream.service.audit import entries, verify
from fairstream.service.backup import _TABLES, backup, restore
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import forget, forgotten_since, known, request_forget
from fairstream.service.incoming import batch_from_json
from fairstream.service.keys import find_key, make_key
from fairstream.service.lists import Ask
from fairstream.service.registry import in_service
from fairstream.service.serving import Serving
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, Process

Maker = Callable[..., Workspace]
NewDatabase = Callable[..., str | None]


def take(workspace: Workspace, *users: str) -> None:
    events = [{"user_id": user, "item_id": "i", "time": 1} for user in users]
    EventStore(workspace).append(batch_from_json(events, workspace.config.limits))


def users_of(workspace: Workspace) -> list[str]:
    with workspace.engine.connect() as connection:
        return list(connection.scalars(sa.select(schema.events.c.user_id).order_by(schema.events.c.seq)))


def lists_of(workspace: Workspace) -> list[object]:
    serving = Serving()
    Follower(workspace, EventStore(workspace), serving).poll()
    return [serving.current.recommend(f"u{user}", Ask(10)) for user in range(20)]


def rows_of(workspace: Workspace) -> dict[str, list[tuple[object, ...]]]:
    tables = [table for table in _TABLES.values() if table is not schema.audit]
    with workspace.engine.connect() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key))]
            for table in tables
        }


def test_a_restored_workspace_is_the_same(learned: Workspace, tmp_path: Path, new_database: NewDatabase) -> None:
    take(learned, "after", "é😀", "gone")
    forget(learned, ["gone"], by="test")  # the number of that event is not given again
    key = make_key(learned.engine, "reader", "read")
    contents = backup(learned, file := tmp_path / "shop.tar.zst")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert contents.n_events == len(users_of(learned))
    again = tmp_path / "again"
    assert restore(file, again, None, database=new_database(), by="test") == contents
    with Workspace.open(again) as restored:
        assert rows_of(restored) == rows_of(learned)
        assert (restored.config, restored.secret) == (learned.config, learned.secret)
        assert find_key(restored.engine, key) == ("reader", "read")
        assert in_service(restored.engine) == in_service(learned.engine)
        assert lists_of(restored) == lists_of(learned)
        assert verify(restored.engine) == verify(learned.engine) + 1
        assert [entry.kind for entry in entries(restored.engine)][-1] == "restore"
        take(restored, "later")
        take(learned, "later")
        assert rows_of(restored)["events"] == rows_of(learned)["events"]


@pytest.mark.slow
@pytest.mark.sqlite_only
@pytest.mark.parametrize("first", ["sqlite", "postgresql"])
def test_a_backup_is_restored_on_the_other_database(
    first: str, postgres: str, learned: Workspace, tmp_path: Path
) -> None:
    backup(learned, tmp_path / "a.tar.zst")
    restore(tmp_path / "a.tar.zst", tmp_path / "there", None, database=f"{postgres}&schema=s{first}", by="test")
    if first == "postgresql":
        with Workspace.open(tmp_path / "there") as there:
            backup(there, tmp_path / "b.tar.zst")
        restore(tmp_path / "b.tar.zst", tmp_path / "back", None, by="test")
    folder = tmp_path / ("there" if first == "sqlite" else "back")
    with Workspace.open(folder) as restored:
        assert rows_of(restored) == rows_of(learned)
        assert lists_of(restored) == lists_of(learned)
        take(restored, "later")
        assert users_of(restored)[-1] == "later"


def test_what_was_acknowledged_is_in_it_while_others_write(
    new_workspace: Maker, tmp_path: Path, new_database: NewDatabase
) -> None:
    workspace, acknowledged, stop = new_workspace(), list[str](), threading.Event()

    def write() -> None:
        while not stop.is_set():
            take(workspace, f"u{len(acknowledged)}")
            acknowledged.append(f"u{len(acknowledged)}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for n in range(3):
            while len(acknowledged) < 20 * (n + 1):
                time.sleep(0.01)
            before = list(acknowledged)
            backup(workspace, file := tmp_path / f"{n}.tar.zst")
            restore(file, folder := tmp_path / f"{n}", None, database=new_database(), by="test")
            with Workspace.open(folder) as restored:
                users = users_of(restored)
            assert users[: len(before)] == before
            assert users == [f"u{place}" for place in range(len(users))]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("how", ["file", "log", "folder"])
def test_nobody_who_was_forgotten_comes_back(
    learned: Workspace, tmp_path: Path, new_database: NewDatabase, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = users_of(learned)[:2]
    assert before != after
    forget(learned, [before], by="test")
    backup(learned, file := tmp_path / "shop.tar.zst")
    forget(learned, [after], by="test")
    monkeypatch.setattr("sys.argv", ["fairstream", "restore", str(file), str(tmp_path / "none")])
    with pytest.raises(SystemExit):  # --forgotten is required
        main()
    assert not (tmp_path / "none").exists()
    if how == "log":  # the database is lost
        (learned.folder / "fairstream.toml").unlink()
    place = learned.folder / "forgotten.log" if how == "file" else learned.folder
    restore(file, again := tmp_path / "again", forgotten_since(place), database=new_database(), by="test")
    with Workspace.open(again) as restored:
        assert known(restored, [before, after]) == set()
        take(restored, before, after)  # a replay
        assert known(restored, [before, after]) == set()
        assert forgotten_since(again)  # for the next restore
        restored.check_files()
        verify(restored.engine)


def test_a_forgetting_is_noted_beside_the_database(new_workspace: Maker) -> None:
    workspace = new_workspace()
    take(workspace, "gone", "gone2")
    for user in ("gone", "gone2"):
        request_forget(workspace, [user], by="test")
    log = workspace.folder / "forgotten.log"
    assert len(log.read_text().splitlines()) == 2
    assert "gone" not in log.read_text().replace("forgotten", "")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def rewritten(file: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """The backup with some of its files changed or left out."""
    other = file.with_name("changed.tar.zst")
    with tarfile.open(fileobj=pa.input_stream(str(file), compression="zstd"), mode="r|") as tar:
        files = [(info, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    with pa.CompressedOutputStream(str(other), "zstd") as stream, tarfile.open(mode="w|", fileobj=stream) as tar:
        for info, content in files:
            if (changed := change(info.name, content)) is not None:
                info.size = len(changed)
                tar.addfile(info, io.BytesIO(changed))
    return other


def newer(name: str, content: bytes) -> bytes:
    return (
        json.dumps({**json.loads(content), "format": 2, "fairstream": "9.9"}).encode() if "backup" in name else content
    )


BROKEN = {
    "written by fairstream 9.9, which is newer": newer,
    "is damaged": lambda name, content: content[::-1] if name == "secret" else content,
    "is not complete": lambda name, content: None if name == "checksums.json" else content,
    "not a backup": lambda name, content: None if name == "backup.json" else content,
}


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_backup_is_one_sentence_and_leaves_nothing(
    new_workspace: Maker, tmp_path: Path, new_database: NewDatabase, sentence: str
) -> None:
    workspace, database = new_workspace(), new_database()
    take(workspace, "u")
    backup(workspace, file := tmp_path / "shop.tar.zst")
    broken = rewritten(file, BROKEN[sentence])
    places = set(tmp_path.iterdir())
    with pytest.raises(WorkspaceError, match=sentence) as told:
        restore(broken, tmp_path / "new", None, database=database, by="test")
    assert "\n" not in str(told.value)
    assert set(tmp_path.iterdir()) == places
    restore(file, tmp_path / "new", None, database=database, by="test")  # the database is as empty as before


@pytest.mark.sqlite_only
def test_any_cut_of_the_file_is_noticed(new_workspace: Maker, tmp_path: Path) -> None:
    workspace = new_workspace()
    take(workspace, "u")
    backup(workspace, file := tmp_path / "shop.tar.zst")
    content = file.read_bytes()
    for size in (0, 1, 100, len(content) // 2, len(content) * 9 // 10):
        file.write_bytes(content[:size])
        with pytest.raises(WorkspaceError):
            restore(file, tmp_path / "new", None, by="test")
        assert not (tmp_path / "new").exists()


def test_an_empty_folder_is_filled_and_not_replaced(
    new_workspace: Maker, tmp_path: Path, new_database: NewDatabase
) -> None:
    """It may be a volume that is mounted there, or a link to one."""
    workspace = new_workspace()
    take(workspace, "u")
    backup(workspace, file := tmp_path / "shop.tar.zst")
    (volume := tmp_path / "volume").mkdir()
    (link := tmp_path / "link").symlink_to(volume)
    restore(file, link, None, database=new_database(), by="test")
    assert link.is_symlink()
    with Workspace.open(volume) as restored:
        assert users_of(restored) == ["u"]
    assert not [path for path in volume.iterdir() if path.name.startswith(".") and path.is_dir()]


def test_nothing_is_overwritten(new_workspace: Maker, tmp_path: Path, database: str | None) -> None:
    workspace = new_workspace()
    backup(workspace, file := tmp_path / "shop.tar.zst")
    with pytest.raises(WorkspaceError, match="exists already"):
        backup(workspace, file)
    with pytest.raises(WorkspaceError, match="is not empty"):
        restore(file, workspace.folder, None, by="test")
    with pytest.raises(WorkspaceError, match=r"FILE\.tar\.zst"):
        backup(workspace, tmp_path / "shop.zip")
    if database is not None:
        with pytest.raises(WorkspaceError, match="holds a workspace already"):
            restore(file, tmp_path / "b", None, database=(workspace.folder / "database").read_text(), by="test")


@pytest.mark.slow
def test_a_killed_restore_leaves_nothing_that_opens(
    learned: Workspace, tmp_path: Path, new_database: NewDatabase
) -> None:
    backup(learned, file := tmp_path / "shop.tar.zst")
    folder, address = tmp_path / "new", new_database()
    options = [] if address is None else ["--database", address]
    command = [sys.executable, "-m", "fairstream", "restore", str(file), str(folder), "--forgotten", "none", *options]
    begin = time.monotonic()
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    seconds = time.monotonic() - begin
    with Workspace.open(folder) as whole:
        assert rows_of(whole) == rows_of(learned)
    for share in (0.5, 0.7, 0.8, 0.9):
        folder, address = tmp_path / f"killed{share}", new_database()
        options = [] if address is None else ["--database", address]
        process = subprocess.Popen([*command[:5], str(folder), "--forgotten", "none", *options])
        time.sleep(share * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if folder.exists():  # it had ended before
            with Workspace.open(folder) as whole:
                assert rows_of(whole) == rows_of(learned)


@pytest.mark.slow
def test_a_running_service_is_backed_up(learned: Workspace, tmp_path: Path, new_database: NewDatabase) -> None:
    with Process(learned.folder, tmp_path / "log") as process:
        process.wait_until_ready()
        command = [sys.executable, "-m", "fairstream", "backup", str(learned.folder), str(tmp_path / "a.tar.zst")]
        subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
    restore(tmp_path / "a.tar.zst", tmp_path / "b", None, database=new_database(), by="test")
    with Workspace.open(tmp_path / "b") as restored:
        assert users_of(restored) == users_of(learned)
