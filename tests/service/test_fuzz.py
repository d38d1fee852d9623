"""Thousands of malformed requests and files: each is refused with a sentence, and nothing of it is stored."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from malformed import MARK
from malformed_files import File, Files
from malformed_requests import Gun, Shot
from sqlalchemy import select
from streams import know, values_of

from fairstream.cli import main
from fairstream.service import schema
from fairstream.service.settings import Limits
from fairstream.service.workspace import Workspace
from live_services import N_USERS, PATIENCE_SECONDS, add_model, make_keys, running

pytestmark = pytest.mark.slow
N_SHOTS = int(os.environ.get("FAIRSTREAM_SHOTS", "1500"))

Maker = Callable[..., Workspace]
LIMITS = Limits(max_k=10, max_users=20, max_body_bytes=1 << 20, requests_per_second=10**6)
STILL = (schema.models, schema.service, schema.periods, schema.keys, schema.audit, schema.forgotten)
"""Tables that no request of these may change."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def sentence(self) -> Any:
        return json.loads(self.body)


def fire(port: int, shot: Shot) -> Answer | None:
    """Send a request; None where the connection ended without an answer."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as connection:
        try:
            connection.sendall(shot.content)
            if shot.is_cut_off:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has been refused already
        answer = HTTPResponse(connection, method="HEAD" if shot.content.startswith(b"HEAD ") else "GET")
        try:
            answer.begin()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        except (HTTPException, ConnectionError):
            return None


def assert_fit(shot: Shot, answer: Answer | None) -> None:
    """What every answer must be, and what this one must."""
    if answer is None:
        assert shot.is_cut_off or shot.expected == "either", "no answer"
        return
    status, headers, body = answer
    assert status < 500 or (status == 503 and int(headers["retry-after"]) > 0)
    assert b"Traceback" not in body
    assert "x-injected" not in headers
    if status >= 400 and not shot.content.startswith(b"HEAD "):
        assert_said(shot, answer)
    if shot.expected in ("stored", "answered"):
        assert status == 200
    if shot.expected == "stored":
        n = len(shot.events)
        assert answer.sentence == {"accepted": n, "stored": n, "repeated": 0, "forgotten": 0}
    if shot.expected == "refused":
        assert 400 <= status < 500


def assert_said(shot: Shot, answer: Answer) -> None:
    """One sentence as JSON, or a page; what is not even HTTP is refused by the server, before the service."""
    kind = answer.headers["content-type"]
    if answer.body in (b"Invalid HTTP request received.", b"The head of the request is too long."):
        assert answer.status == 400
    elif kind == "application/json":
        assert list(answer.sentence)[:2] == ["detail", "code"]
        assert answer.sentence["detail"].isprintable()
        assert 0 < len(answer.sentence["detail"]) < 500
    else:
        assert shot.is_page
        assert kind == "text/html; charset=utf-8"
        assert b"</html>" in answer.body


SEEDS = {"sqlite": 2, "postgresql": 3}
"""Of the many, so that there are twice as many in all."""


def everything(workspace: Workspace) -> dict[str, Any]:
    with workspace.engine.connect() as connection:
        return {table.name: connection.execute(select(table)).all() for table in STILL}


def assert_nothing_else_was_stored(
    workspace: Workspace, before: int, events: list[dict[str, Any]], n_by_chance: int
) -> None:
    """The good events as they were sent, and as many others as answers told of."""
    with workspace.engine.connect() as connection:
        rows = connection.execute(select(schema.events).where(schema.events.c.seq > before)).all()
    found = {row.event_id: (row.user_id, row.item_id, row.time) for row in rows}
    for event in events:
        assert found[event["event_id"]] == (event["user_id"], event["item_id"], event["time"] * 1_000_000)
    assert len(rows) == len(events) + n_by_chance
    for row in rows:
        for name in (row.event_id, row.user_id, row.item_id):
            assert 0 < len(name) <= 256
            assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in name)


def assert_withstands(workspace: Workspace, n_shots: int, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    add_model(workspace)
    keys = make_keys(workspace)
    statuses, events, n_by_chance = Counter[tuple[str, int]](), list[dict[str, Any]](), 0
    people = [{"user_id": f"u{n}", "value": "ab"[n % 2]} for n in range(N_USERS)]
    know(workspace, pa.Table.from_pylist(people))
    still, groups = everything(workspace), values_of(workspace)
    wrong: list[str] = []
    with running(workspace, keys) as client:
        client.wait_until_ready()
        port = client.base_url.port
        assert port is not None
        before = len(still["models"]) * 600
        key = keys.read["Authorization"].removeprefix("Bearer ")
        session = client.post("/login", data={"key": key}).cookies["fairstream_session"]
        gun = Gun(seed, keys, f"fairstream_session={session}", LIMITS.max_body_bytes)
        for _ in range(n_shots):
            shot = gun.shot()
            answer = fire(port, shot)
            statuses[shot.kind, answer.status if answer else 0] += 1
            try:
                assert_fit(shot, answer)
            except Exception as error:
                said = f"{shot.kind}, expected {shot.expected}: {shot.content[:600]!r}\n  → {answer}\n  {error!r}"
                wrong.append(said[:2000])
                continue
            if shot.expected == "stored":
                events += shot.events
            elif answer is not None and answer.status == 200 and b'"stored"' in answer.body:
                n_by_chance += answer.sentence["stored"]
        assert client.get("/readyz").status_code == 200
        assert client.get("/v1/users/u1/recommendations", headers=keys.read).status_code == 200
    logged = "".join(capfd.readouterr())
    by_status = Counter[int]()
    for (_, status), n in statuses.items():
        by_status[status] += n
    print(f"{n_shots} requests, {dict(sorted(by_status.items()))}; {n_by_chance} events were still good after all")
    assert not wrong, f"{len(wrong)} of {n_shots}:\n" + "\n".join(wrong[:20])
    assert "Traceback" not in logged
    assert MARK not in logged
    assert not [line for line in logged.splitlines() if "unexpected error" in line]
    assert_nothing_else_was_stored(workspace, before, events, n_by_chance)
    assert everything(workspace) == still
    assert values_of(workspace) == groups


def ingest(workspace: Workspace, file: File, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """As on the command line; gives the exit code and what was printed."""
    command = ["ingest", str(workspace.folder), *(["--users"] if file.are_users else []), str(file.path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairstream", *command])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return int(code or 0), "".join(capfd.readouterr())


def n_accepted(said: str) -> int:
    """How many events it says that were stored, also where it then found something wrong."""
    found = re.search(r"([0-9,]+) new events were stored", said) or re.search(r"Together: ([0-9,]+)", said)
    return int(found[1].replace(",", "")) if found else 0


def assert_takes_no_file(
    workspace: Workspace, folder: Path, n: int, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    know(workspace, pa.table({"user_id": ["u1"], "value": ["a"]}))
    still, groups = everything(workspace), values_of(workspace)
    files, events, n_by_chance = Files(seed, folder), list[dict[str, Any]](), 0
    codes: Counter[int] = Counter()
    wrong: list[str] = []
    for _ in range(n):
        file = files.file()
        try:
            code, said = ingest(workspace, file, capfd)
            codes[code] += 1
            assert code in (0, 2)
            assert "Traceback" not in said
            if code:
                assert re.fullmatch(r"fairstream: .+\n", said), said
                assert file.expected != "stored"
            else:
                assert file.expected != "refused"
        except Exception as error:
            content = file.path.read_bytes()[:300] if file.path.is_file() else b""
            wrong.append(f"{file.path.name}, expected {file.expected}: {content!r}\n  → {error!r}"[:2000])
            continue
        if file.expected == "stored":
            events += file.events
        else:
            n_by_chance += n_accepted(said)
    print(f"{n} files, exit codes {dict(codes)}; {n_by_chance} events were still good after all")
    assert not wrong, f"{len(wrong)} of {n}:\n" + "\n".join(wrong[:20])
    assert_nothing_else_was_stored(workspace, 0, events, n_by_chance)
    assert everything(workspace) == still
    assert values_of(workspace) == groups


def test_malformed_requests(new_workspace: Maker, capfd: pytest.CaptureFixture[str]) -> None:
    assert_withstands(new_workspace(limits=LIMITS), 250, 1, capfd)


@pytest.mark.slow
def test_many_malformed_requests(new_workspace: Maker, capfd: pytest.CaptureFixture[str]) -> None:
    workspace = new_workspace(limits=LIMITS)
    assert_withstands(workspace, N_SHOTS, SEEDS[workspace.engine.dialect.name], capfd)


def test_malformed_files(new_workspace: Maker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert_takes_no_file(new_workspace(), tmp_path, 40, 1, capfd)


@pytest.mark.slow
def test_many_malformed_files(new_workspace: Maker, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    workspace = new_workspace()
    assert_takes_no_file(workspace, tmp_path, N_SHOTS // 10, SEEDS[workspace.engine.dialect.name], capfd)
