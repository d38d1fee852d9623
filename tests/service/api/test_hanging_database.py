"""A database that hangs instead of refusing: requests are answered within seconds, lists go on, and nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self

import httpx
import pytest
from sqlalchemy import select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from fairstream.service import postgres, schema
from fairstream.service.event_store import one_writer
from fairstream.service.workspace import Workspace
from live_services import PATIENCE_SECONDS, Process, add_model, make_keys, running, wait_until

BOUND_SECONDS = 60.0
"""What is allowed on a busy machine; on a quiet one an answer takes at most 13 s."""


class Proxy:
    """Forwards a TCP port to the server's socket, until it is frozen: then nothing passes, and nothing is refused."""

    def __init__(self, address: str) -> None:
        url = make_url(address)
        folder = str(url.query["host"])
        self._target = f"{folder}/.s.PGSQL.{url.port or 5432}"
        self._flows, self._ended = threading.Event(), False
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=200)
        port = self._listening.getsockname()[1]
        self.address = url.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self.thaw()
        for each in (self._listening, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._ended:
                client, _ = self._listening.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                target.sendall(data)
            self._flows.wait()
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(on_postgres: Workspace) -> Iterator[Proxy]:
    """The way from the workspace to its database."""
    file = on_postgres.folder / "database"
    with Proxy(file.read_text()) as proxy:
        file.write_text(proxy.address)
        yield proxy


def test_requests_are_refused_within_seconds_lists_go_on_and_no_acknowledged_event_is_lost(
    on_postgres: Workspace, proxy: Proxy, tmp_path: Path
) -> None:
    keys, acknowledged = make_keys(on_postgres), list[str]()
    add_model(on_postgres)
    with (
        Process(on_postgres.folder, tmp_path / "log") as process,
        httpx.Client(base_url=process.address, timeout=BOUND_SECONDS) as client,
    ):

        def post(event_id: str) -> httpx.Response:
            event = {"event_id": event_id, "user_id": "u1", "item_id": "i1", "time": 1}
            answer = client.post("/v1/events", json=event, headers=keys.ingest)
            if answer.status_code == 200:
                acknowledged.append(event_id)
            return answer

        process.wait_until_ready()
        assert post("before").status_code == 200
        proxy.freeze()
        with ThreadPoolExecutor(70) as threads:
            paths = ["/v1/models"] * 60 + ["/metrics"] * 2
            blocked = [threads.submit(client.get, path, headers=keys.read) for path in paths]
            blocked += [threads.submit(post, f"meanwhile {n}") for n in range(3)]
            begin = time.monotonic()
            assert client.get("/readyz").status_code == 200
            assert client.get("/v1/users/u2/recommendations", headers=keys.read).status_code == 200
            assert time.monotonic() - begin < BOUND_SECONDS / 6  # while the others still wait
            answers = [each.result() for each in blocked]
        assert time.monotonic() - begin < BOUND_SECONDS
        assert {answer.status_code for answer in (*answers[:60], *answers[62:])} == {503}
        assert all(answer.json()["detail"] and answer.headers["retry-after"] for answer in (answers[0], answers[-1]))
        assert "fairstream_database_up 0" in answers[60].text
        ready = client.get("/readyz").json()
        assert ready["status"] == "degraded"
        assert any("stored" in problem for problem in ready["problems"])
        assert any("database" in problem for problem in ready["problems"])
        assert client.get("/v1/users/u3/recommendations", headers=keys.read).status_code == 200

        proxy.thaw()
        wait_until(lambda: post("after").status_code == 200)
        wait_until(lambda: client.get("/readyz").json()["status"] == "ready")
        with on_postgres.engine.connect() as connection:
            stored = set(connection.scalars(select(schema.events.c.event_id)))
        assert {"before", "after"} <= set(acknowledged) <= stored

        proxy.freeze()
        with socket.create_connection(("127.0.0.1", client.base_url.port or 0)) as waiting:
            waiting.sendall(_request("/v1/models", keys.read))
            assert client.get("/readyz").status_code == 200  # came later, so the other was received
            begin = time.monotonic()
            assert process.end(signal.SIGTERM) in (0, -signal.SIGTERM)
            assert time.monotonic() - begin < BOUND_SECONDS
            assert b" 503 " in waiting.recv(1 << 16).splitlines()[0]
    assert "service stopped" in (tmp_path / "log").read_text()


def _request(path: str, headers: dict[str, str]) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_writer_that_keeps_its_lock_is_a_refusal_for_all_who_wait(on_postgres: Workspace) -> None:
    keys = make_keys(on_postgres)
    with running(on_postgres, keys) as client:
        client.wait_until_ready()
        event = {"user_id": "u1", "item_id": "i1", "time": 1}
        with on_postgres.engine.connect() as connection:
            one_writer(connection)
            begin = time.monotonic()
            with ThreadPoolExecutor(8) as threads:
                answers = list(
                    threads.map(
                        lambda n: client.post("/v1/events", json={**event, "time": n}, headers=keys.ingest), range(8)
                    )
                )
            assert time.monotonic() - begin < BOUND_SECONDS / 2  # not one wait after the other
            assert {answer.status_code for answer in answers} == {503}
            assert "locked" in answers[0].json()["detail"]
            assert client.get("/readyz").json()["status"] == "degraded"
        assert client.post("/v1/events", json=event, headers=keys.ingest).status_code == 200


def test_a_process_that_is_frozen_in_a_transaction_loses_its_lock(on_postgres: Workspace) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from fairstream.service import postgres; postgres.IDLE_SECONDS = 2\n"
        "from fairstream.service.event_store import one_writer; from fairstream.service.workspace import Workspace\n"
        "with Workspace.open(Path(sys.argv[1])).engine.connect() as connection:\n"
        "    one_writer(connection); os.kill(os.getpid(), signal.SIGSTOP)"
    )
    frozen = subprocess.Popen([sys.executable, "-c", script, str(on_postgres.folder)], env=os.environ)
    try:
        _, status = os.waitpid(frozen.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        with on_postgres.engine.connect() as connection:
            one_writer(connection)  # waits until the server has ended the other's transaction
    finally:
        frozen.kill()
        frozen.wait(PATIENCE_SECONDS)


def test_statements_of_requests_are_bounded_by_seconds_and_those_of_jobs_by_more(
    on_postgres: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "STATEMENT_SECONDS", 1)
    monkeypatch.setattr(postgres, "SILENCE_SECONDS", 2)
    with Workspace.open(on_postgres.folder) as job, job.engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(3)")
    monkeypatch.setattr(postgres, "JOB_SECONDS", 1)
    with (
        Workspace.open(on_postgres.folder) as job,
        job.engine.connect() as connection,
        pytest.raises(OperationalError, match=r"statement timeout|has not answered"),
    ):
        connection.exec_driver_sql("SELECT pg_sleep(60)")
    with Workspace.open(on_postgres.folder, for_requests=True) as workspace, workspace.engine.connect() as connection:
        with pytest.raises(OperationalError, match="statement timeout"):
            connection.exec_driver_sql("SELECT pg_sleep(60)")
        connection.rollback()
        one_writer(connection)  # from here on the server lets a statement take as long as it needs
        connection.exec_driver_sql("SELECT pg_sleep(1.5)")
        with pytest.raises(OperationalError, match="has not answered for 2 s"):
            connection.exec_driver_sql("SELECT pg_sleep(60)")
        connection.rollback()
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1  # on another connection
