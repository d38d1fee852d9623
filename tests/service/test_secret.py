"""A workspace opens with the secret that it was made with, and with no other."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from fairstream.cli import main
from fairstream.errors import WorkspaceError
from fairstream.service.audit import entries, verify
from fairstream.service.event_store import EventStore
from fairstream.service.forgetting import request_forget
from fairstream.service.incoming import batch_from_json
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
EVENT = {"user_id": "gone", "item_id": "i", "time": 1}
WRONG = {"another": secrets.token_bytes(32), "empty": b"", "short": b"s" * 31}


def wrong_secrets(right: bytes) -> dict[str, bytes]:
    return {**WRONG, "cut short": right[:16], "longer": right + b"\n"}


def test_a_wrong_secret_opens_nothing_and_changes_nothing(
    new_workspace: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = new_workspace()
    store, path = EventStore(workspace), workspace.folder / "secret"
    store.append(batch_from_json([EVENT], workspace.config.limits))
    request_forget(workspace, ["gone"], by="test")
    before = list(entries(workspace.engine)), store.last_seq()
    events = tmp_path / "events.csv"
    events.write_text("user_id,item_id,time\ngone,i,1\n")
    folder = str(workspace.folder)
    commands = (
        ["status", folder],
        ["serve", folder, "--port", "0"],
        ["ingest", folder, str(events)],
        ["upgrade", folder],
    )
    for name, wrong in wrong_secrets(workspace.secret).items():
        path.write_bytes(wrong)
        for command in commands:
            monkeypatch.setattr("sys.argv", ["fairstream", *command])
            with pytest.raises(SystemExit) as ended:
                main()
            told = " ".join(capsys.readouterr().err.split())
            assert ended.value.code == 2, (name, command)
            assert "must hold the secret that this workspace was made with" in told, (name, command)
    assert (list(entries(workspace.engine)), store.last_seq()) == before
    path.write_bytes(workspace.secret)
    with Workspace.open(workspace.folder) as again:
        receipt = EventStore(again).append(batch_from_json([EVENT], again.config.limits))
        assert (receipt.accepted, receipt.forgotten) == (0, 1)


def test_a_second_machine_with_another_secret_is_refused(on_postgres: Workspace, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    for name in ("fairstream.toml", "database"):
        (second / name).write_bytes((on_postgres.folder / name).read_bytes())
    (second / "secret").write_bytes(WRONG["another"])
    with pytest.raises(WorkspaceError, match="must hold the secret that this workspace was made with"):
        Workspace.open(second)
    assert verify(on_postgres.engine) == 1
    (second / "secret").write_bytes(on_postgres.secret)
    Workspace.open(second).close()
