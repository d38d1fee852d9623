"""`fairstream doctor` finds what is wrong, says what to do, and exits with 2 if there is a problem."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.service.doctor import examine
from fairstream.service.registry import in_service, models
from fairstream.service.updates import request
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]


def states(folder: Path) -> dict[str, str]:
    return {finding.what: finding.state for finding in examine(folder)}


def test_a_healthy_workspace_has_no_problem(learned: Workspace) -> None:
    found = CliRunner().invoke(app, ["doctor", str(learned.folder), "--json", "-"])
    assert found.exit_code == 0
    findings = json.loads(found.stdout)["findings"]
    assert {finding["what"] for finding in findings} > {"versions", "disk", "database", "clock", "models"}
    assert all(finding["state"] != "problem" for finding in findings)


def _no_secret(workspace: Workspace) -> None:
    (workspace.folder / "secret").write_bytes(b"x" * 32)


def _no_configuration(workspace: Workspace) -> None:
    (workspace.folder / "fairstream.toml").write_text("k = 3")


def _readable(workspace: Workspace) -> None:
    (workspace.folder / "secret").chmod(0o644)


def _damaged(workspace: Workspace) -> None:
    current = in_service(workspace.engine)
    assert current is not None
    folder = next(model.folder for model in models(workspace.engine) if model.id == current.model)
    for file in (workspace.folder / "models" / folder).glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-10])


def _no_database(workspace: Workspace) -> None:
    (workspace.folder / "events.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)


BROKEN = {
    "workspace": _no_secret,
    "configuration": _no_configuration,
    "permissions": _readable,
    "models": _damaged,
}


@pytest.mark.sqlite_only
@pytest.mark.parametrize("what", BROKEN)
def test_each_problem_is_found(learned: Workspace, what: str) -> None:
    assert states(learned.folder).get(what, "ok") == "ok"
    BROKEN[what](learned)
    found = CliRunner().invoke(app, ["doctor", str(learned.folder)])
    assert found.exit_code == 2
    assert any(line.startswith("problem") and what in line for line in found.output.splitlines())


@pytest.mark.sqlite_only
def test_a_damaged_database_is_a_problem_and_no_traceback(learned: Workspace) -> None:
    _no_database(learned)
    assert states(learned.folder)["workspace"] == "problem"


@pytest.mark.sqlite_only
def test_a_schedule_that_nobody_keeps_is_a_warning(learned: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(learned.folder)["updates"] == "warning"
    monkeypatch.setenv("FAIRSTREAM_EVERY", "1h")
    request(learned, "test")
    assert states(learned.folder)["updates"] == "ok"
    monkeypatch.setattr("fairstream.service.doctor.now", lambda: 4_000_000_000_000_000)
    assert states(learned.folder)["updates"] == "warning"


def test_the_machine_alone_is_examined_without_a_workspace() -> None:
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
