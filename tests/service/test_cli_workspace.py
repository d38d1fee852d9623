"""init, ingest, keys and audit, as real processes with real files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from streams import values_of
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.data import Columns
from fairstream.errors import ConfigurationError, DataError, FairstreamError, WorkspaceError
from fairstream.service import incoming
from fairstream.service.audit import entries
from fairstream.service.database import writing
from fairstream.service.event_store import EventStore, closed_periods
from fairstream.service.incoming import batches_from_file
from fairstream.service.keys import find_key
from fairstream.service.settings import Limits, LiveConfig
from fairstream.service.workspace import Workspace
from fairstream.strategies import LeastRegret, MaxGap

NewDatabase = Callable[..., str | None]
EVENTS = pa.table(
    {"user_id": ["007", "b", "007"], "item_id": ["x", "y,z", "ü"], "time": [1, 2, 3], "event_id": ["1", "2", "3"]}
)


def run(*arguments: object) -> str:
    """What a command prints, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False).stdout


def told(kind: type[FairstreamError], *arguments: object) -> str:
    """The sentence that a command is refused with."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, kind), result.exception
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.fixture
def folder(tmp_path: Path, new_database: NewDatabase) -> Path:
    """A workspace that the command line made."""
    address = new_database()
    run("init", tmp_path / "w", "--group", "community", *([] if address is None else ["--database", address]))
    return tmp_path / "w"


def write(path: Path, table: pa.Table) -> Path:
    writers: dict[str, Callable[..., Any]] = {
        ".csv": pyarrow.csv.write_csv,
        ".parquet": pyarrow.parquet.write_table,
        ".arrow": lambda table, path: pyarrow.feather.write_feather(table, path, compression="uncompressed"),
        ".jsonl": lambda table, path: path.write_text("\n".join(map(json.dumps, table.to_pylist()))),
    }
    writers[path.suffix](table, path)
    return path


def test_init_prints_a_key_once_and_the_next_command(tmp_path: Path) -> None:
    said = run("init", tmp_path / "w", "--every", "6h", "--advantaged", "m")
    (key,) = re.findall(r"^fs_[\w-]{43}$", said, re.MULTILINE)
    assert f"Next: fairstream ingest {tmp_path / 'w'}" in said
    with Workspace.open(tmp_path / "w") as workspace:
        assert find_key(workspace.engine, key) == ("admin", "admin")
        assert (workspace.config.every, workspace.config.advantaged) == ("6h", "m")
        assert [entry.kind for entry in entries(workspace.engine)] == ["init", "key"]


def test_init_writes_the_gap_that_is_accepted(tmp_path: Path) -> None:
    said = run("init", tmp_path / "w", "--max-gap", "0.02")
    assert "accepted gap 0.02" in said
    assert "max_group_fall in [gate]" in said
    assert "max_gap = 0.02" in (tmp_path / "w" / "fairstream.toml").read_text().splitlines()
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.config.learning.recipe().target == MaxGap(0.02, task="event")
        assert workspace.config.gate.max_group_fall == workspace.config.gate.max_fall
    assert "workspace already" in told(ConfigurationError, "init", tmp_path / "w", "--max-gap", "0.03")


@pytest.mark.parametrize(
    ("options", "target"),
    [
        ((), LeastRegret(task="event")),
        (("--max-group-loss", "0.05"), LeastRegret(0.05, task="event")),
        (("--target", "none"), None),
    ],
)
def test_init_writes_the_target(tmp_path: Path, options: tuple[str, ...], target: LeastRegret | None) -> None:
    run("init", tmp_path / "w", *options)
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.config.learning.recipe().target == target
        assert workspace.config.gate.max_group_fall == 0.02


def test_what_init_cannot_make_leaves_nothing(tmp_path: Path, folder: Path) -> None:
    new = tmp_path / "new"
    assert "every must be" in told(ConfigurationError, "init", new, "--every", "banana")
    for option, value, said in (
        ("--max-gap", "0", "max_gap must be > 0, got 0.0"),
        ("--max-gap", "1.5", "max_gap must be < 1, got 1.5"),
        ("--max-group-loss", "1", "max_group_loss must be < 1, got 1.0"),
    ):
        assert said in told(ConfigurationError, "init", new, option, value)
    assert "postgresql://" in told(ConfigurationError, "init", new, "--database", "mysql://x/y")
    assert "cannot be used" in told(WorkspaceError, "init", new, "--database", "postgresql://x@127.0.0.1:1/y")
    assert not new.exists()
    assert "workspace already" in told(ConfigurationError, "init", folder, "--demo")
    (tmp_path / "file").write_text("")
    assert "cannot be made" in told(WorkspaceError, "init", tmp_path / "file")
    if (folder / "database").exists():
        address = (folder / "database").read_text()
        assert "holds a workspace already" in told(WorkspaceError, "init", new, "--database", address)
        assert not new.exists()


@pytest.mark.few(2)
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow", ".jsonl"])
def test_files_of_every_kind_hold_the_same_events(folder: Path, tmp_path: Path, suffix: str) -> None:
    file = write(tmp_path / f"events{suffix}", EVENTS)
    users = write(tmp_path / f"users{suffix}", pa.table({"user_id": ["007", "b"], "community": ["m", None]}))
    if suffix == ".jsonl":
        users.write_text('{"user_id": "007", "community": "m", "age": 3}\n\n')
    said = run("ingest", folder, file, file, "--users", users)
    assert "3 accepted, 3 repeated, 0 of forgotten users" in said
    with Workspace.open(folder) as workspace:
        stored = EventStore(workspace).read(0)
        assert stored.select(["user_id", "item_id"]).equals(EVENTS.select(["user_id", "item_id"]))
        assert stored["time"].to_pylist() == [1_000_000, 2_000_000, 3_000_000]
        assert values_of(workspace).to_pylist() == [{"user_id": "007", "value": "m"}]


def test_a_group_that_was_not_declared_is_refused(folder: Path, tmp_path: Path) -> None:
    config = LiveConfig.read(folder).with_options(groups=["m", "f"])
    config.write(folder)
    assert LiveConfig.read(folder) == config
    users = write(tmp_path / "users.csv", pa.table({"user_id": ["a", "b"], config.group: ["m", "Majority "]}))
    assert "must be one of m, f" in told(DataError, "ingest", folder, "--users", users)


def test_columns_are_called_as_they_are_called(folder: Path, tmp_path: Path) -> None:
    names = {"user_id": "who", "item_id": "what", "time": "when", "event_id": "id"}
    for suffix in (".csv", ".jsonl"):
        file = write(tmp_path / f"e{suffix}", EVENTS.rename_columns(names).append_column("more", [[1.5] * 3]))
        options = ("--user-column", "who", "--item-column", "what", "--time-column", "when", "--event-id-column", "id")
        assert "3 " in run("ingest", folder, file, *options)
        assert "needs a user column" in told(DataError, "ingest", folder, file)
    with Workspace.open(folder) as workspace:
        assert EventStore(workspace).last_seq() == 3
    assert "'nr'" in told(DataError, "ingest", folder, write(tmp_path / "f.csv", EVENTS), "--event-id-column", "nr")


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("e.csv", "user_id,item_id,time\na,b,1\n,b,2\n", "event 2: user_id is missing"),
        ("e.csv", "user_id,item_id,time\na,b,soon\n", "must be ISO 8601"),
        ("e.csv", "", "cannot be read as csv"),
        ("e.csv", "user_id,item_id\na,b\n", "needs a time column"),
        ("e.csv", "user_id,item_id,time\na,b,1,4\n", "cannot be read as csv"),
        ("e.csv", "user_id,user_id,item_id,time\na,a,b,1\n", "more than once"),
        ("e.parquet", "PAR1", "cannot be read as parquet"),
        ("e.arrow", "ARROW1", "cannot be read as arrow"),
        ("e.jsonl", '{"user_id": 1, "item_id": 2, "time": 3}\n{', "cannot be read as jsonl"),
        ("e.jsonl", "3", "JSON must hold objects, one for each row"),
        ("e.xlsx", "", "must end in"),
        ("missing.csv", None, "there is no file"),
    ],
)
def test_a_bad_file_is_one_sentence(folder: Path, tmp_path: Path, name: str, content: str | None, said: str) -> None:
    good = write(tmp_path / "good.parquet", EVENTS)
    if content is not None:
        (tmp_path / name).write_text(content)
    sentence = told(DataError, "ingest", folder, good, tmp_path / name)
    assert said in sentence
    assert name in sentence
    assert "3 new events were stored" in sentence


def refusal(file: Path) -> str:
    """The sentence that a file is refused with, none where it is taken."""
    try:
        for batch in batches_from_file(file, Columns(), Limits()):
            assert not any(column.null_count for column in batch.columns)
    except DataError as error:
        return str(error)
    return ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([".csv", ".jsonl", ".parquet", ".arrow"]), st.binary(max_size=200), st.data())
def test_any_bytes_are_a_file_or_one_sentence(tmp_path: Path, suffix: str, content: bytes, data: st.DataObject) -> None:
    file = write(tmp_path / f"e{suffix}", EVENTS)
    whole = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(whole)))
    whole[at : at + data.draw(st.integers(0, 20))] = content
    file.write_bytes(whole)
    assert "\n" not in refusal(file)


def test_a_long_file_is_stored_in_parts(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MAX_ROWS", 1000)
    n = 2500
    table = pa.table({"user_id": [f"u{i % 1000}" for i in range(n)], "item_id": ["i"] * n, "time": range(n)})
    for suffix in (".parquet", ".csv"):
        said = run("ingest", folder, write(tmp_path / f"long{suffix}", table))
        assert "2,500 " in said
        assert "events a second" in said
    bad = write(tmp_path / "bad.parquet", table.set_column(2, "time", [[*range(10**6, 10**6 + n - 1), None]]))
    assert f"event {n}: time is missing; before that, 2,000 new" in told(DataError, "ingest", folder, bad)
    with Workspace.open(folder) as workspace:
        assert EventStore(workspace).last_seq() == n + 2000


def test_keys_are_made_listed_and_revoked(folder: Path) -> None:
    key = run("keys", "add", folder, "shop", "--scope", "ingest").strip()
    with Workspace.open(folder) as workspace:
        assert find_key(workspace.engine, key) == ("shop", "ingest")
        said = run("keys", "list", folder)
        assert "shop" in said
        assert key not in said
        run("keys", "revoke", folder, "shop")
        assert find_key(workspace.engine, key) is None
    assert "no key named" in told(WorkspaceError, "keys", "revoke", folder, "shop")
    listed = json.loads(run("keys", "list", folder, "--json", "-"))["keys"]
    assert [(key["name"], key["scope"], key["revoked"] is None) for key in listed] == [
        ("admin", "admin", True),
        ("shop", "ingest", False),
    ]


def test_the_record_is_checked_and_printed(folder: Path) -> None:
    run("keys", "add", folder, "shop", "--scope", "ingest")
    said = run("audit", folder)
    assert "name shop, scope ingest" in said
    assert "3 entries, each unchanged" in said
    document = json.loads(run("audit", folder, "--json", "-"))
    assert [entry["kind"] for entry in document["entries"]] == ["init", "key", "key"]
    assert said.split()[-1] == document["last_hash"] == document["entries"][-1]["hash"]
    with Workspace.open(folder) as workspace, writing(workspace.engine) as connection:
        guard = "audit_guard ON audit" if workspace.engine.dialect.name == "postgresql" else "audit_no_update"
        connection.execute(text(f"DROP TRIGGER {guard}"))
        connection.execute(text("UPDATE audit SET kind = 'kex' WHERE seq = 2"))
    assert "entry 2" in told(WorkspaceError, "audit", folder)


@pytest.mark.slow
def test_the_commands_are_there_without_the_extra(tmp_path: Path) -> None:
    for name in ("sqlalchemy", "alembic", "fastapi", "psycopg"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('no {name}', name='{name}')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for arguments, code, said in (
        (["--help"], 0, b"ingest"),
        (["init", str(tmp_path / "w")], 2, b"fairstream[live]"),
        (["status", str(tmp_path / "w")], 2, b"fairstream[live]"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "fairstream", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert said in done.stdout + done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_the_demonstration_shows_a_disparity_that_falls(tmp_path: Path) -> None:
    said = run("init", tmp_path / "w", "--demo")
    assert f"Next: fairstream serve {tmp_path / 'w'}" in said
    with Workspace.open(tmp_path / "w") as workspace:
        judged = [period.evaluation for period in closed_periods(workspace.engine) if period.evaluation]
        gaps = [evaluation["metrics"]["ndcg@20"]["disparity"]["value"] for evaluation in judged]
    assert sum(gaps[-4:]) < 0.7 * sum(gaps[:4])
