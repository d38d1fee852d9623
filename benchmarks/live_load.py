"""The service under load: requests a second beside a bare endpoint, while updates and promotions run.

    python -m benchmarks.live_load --seconds 60 [--database postgresql://…]

A workspace is made in a temporary folder, filled and updated; then `fairstream serve` and a bare FastAPI
application take turns at being asked, from this process, over the same connections' worth of load, while
another process stores period after period, has each learned, and puts models into service. It stops by
itself and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import uvloop

from benchmarks.live_client import Load, ask
from fairstream.data import synthetic_stream
from fairstream.service.database import now
from fairstream.service.keys import make_key
from fairstream.service.settings import Gate, Learning, Limits, LiveConfig
from fairstream.service.workspace import Workspace

N_USERS, N_ITEMS, N_EVENTS, FIRST, PERIOD = 6_000, 3_700, 400_000, 250_000, 5_000
CONNECTIONS, TURN_SECONDS = 16, 5.0
BULK_EVENTS, BULK_REQUESTS = 100_000, 10
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
BARE = """
from fastapi import FastAPI

app = FastAPI()


@app.get("/bare")
async def bare() -> dict[str, str]:
    return {"status": "ok"}
"""


class Stream(NamedTuple):
    """Made-up events with ids and times as the service wants them."""

    events: pa.Table
    people: pa.Table

    @classmethod
    def make(cls) -> Stream:
        made = synthetic_stream(n_users=N_USERS, n_items=N_ITEMS, n_events=N_EVENTS, seed=0)
        n = len(made.events)
        times = np.linspace(now() / 1e6 - 30 * 86_400, now() / 1e6 - 3600, n)
        columns = {name: _text(made.events[name], name[0]) for name in ("user_id", "item_id")}
        people = {"user_id": _text(made.users["user_id"], "u"), "group": made.users["community"]}
        return cls(pa.table({**columns, "time": times}), pa.table(people))


def _text(ids: pa.ChunkedArray, letter: str) -> list[str]:
    return [f"{letter}{one}" for one in ids.to_pylist()]


def ipc(table: pa.Table) -> bytes:
    """As an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


class Place(NamedTuple):
    """A workspace and how to come to it."""

    folder: Path
    key: str
    port: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=self.headers, timeout=120)


def new_place(folder: Path, database: str | None) -> Place:
    """An empty workspace with limits that a load test does not run into."""
    config = LiveConfig(
        group="community",
        advantaged="majority",
        learning=Learning(pretrain_epochs=5, update_epochs=2),
        gate=Gate(min_tested_users=50),
        limits=Limits(requests_per_second=1e6, max_open_events=20_000_000, max_body_bytes=256 << 20),
    )
    with Workspace.create(folder, config, database) as workspace:
        key = make_key(workspace.engine, "load", "admin")
    return Place(folder, key, free_port())


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def started(command: list[str], port: int, log: Path, cwd: Path | None = None) -> Iterator[int]:
    """A server in a process of its own; gives its number, and ends it with SIGTERM."""
    with log.open("wb") as written:
        process = subprocess.Popen([sys.executable, *command], stdout=written, stderr=written, cwd=cwd)  # noqa: S603
    try:
        end = time.monotonic() + 120
        while True:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(30)
            if code not in (0, -signal.SIGTERM):
                print(f"a server ended with {code}: {log.read_text()[-2000:]}")
        except subprocess.TimeoutExpired:
            process.kill()
            print("a server had to be killed")


def serving(place: Place, log: Path) -> Any:
    """The service of a workspace."""
    command = ["-m", "fairstream", "serve", str(place.folder), "--port", str(place.port)]
    return started(command, place.port, log)


def resident(pid: int) -> float:
    """MiB of memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait_for(condition: Callable[[], Any], seconds: float, every: float = 0.1) -> bool:
    """Whether it came to that in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def bulk_ingest(folder: Path, database: str | None) -> None:
    """Events a second over HTTP into an empty workspace, one request after the other."""
    place, random = new_place(folder / "bulk", database), np.random.default_rng(0)

    def body(number: int) -> bytes:
        users, items = random.integers(0, N_USERS, BULK_EVENTS), random.integers(0, N_ITEMS, BULK_EVENTS)
        ids = {"user_id": [f"u{one}" for one in users], "item_id": [f"i{one}" for one in items]}
        event_ids = [f"e{number}-{one}" for one in range(BULK_EVENTS)]
        return ipc(pa.table({**ids, "time": np.full(BULK_EVENTS, 1e9 + number), "event_id": event_ids}))

    bodies = [body(number) for number in range(BULK_REQUESTS)]
    with serving(place, folder / "bulk.log") as pid, place.client() as client:
        rates = []
        for content in bodies:
            begin = time.perf_counter()
            answer = client.post("/v1/events", content=content, headers=ARROW)
            rates.append(BULK_EVENTS / (time.perf_counter() - begin))
            assert answer.json() == {"accepted": BULK_EVENTS, "repeated": 0, "forgotten": 0}, answer.text
        print(
            f"bulk ingest, {BULK_REQUESTS} requests of {BULK_EVENTS:,} events as Arrow: median "
            f"{np.median(rates):,.0f} events/s (best {max(rates):,.0f}, worst {min(rates):,.0f}); "
            f"memory {resident(pid):.0f} MiB",
            flush=True,
        )


def feed(place: Place, stream: Stream, end: float, told: Any) -> None:
    """Store period after period, have each learned, and put models into service; tells how it went."""
    counts = {"events": 0, "updates": 0, "promoted": 0, "rejected": 0, "by hand": 0, "refused": 0}
    with place.client() as client:
        for start in range(FIRST, N_EVENTS - PERIOD, PERIOD):
            if time.monotonic() > end - 5:
                break
            answer = client.post("/v1/events", content=ipc(stream.events.slice(start, PERIOD)), headers=ARROW)
            counts["events" if answer.status_code == 200 else "refused"] += PERIOD
            n_before = len(client.get("/v1/models").json())
            # The process of the update before may still be on its way out.
            wait_for(lambda: client.post("/v1/periods").status_code == 202 or time.monotonic() > end, 60, 0.5)
            wait_for(lambda n=n_before: time.monotonic() > end or len(client.get("/v1/models").json()) > n, 120, 1.0)
            found = client.get("/v1/models").json()
            if len(found) > n_before:
                counts["updates"] += 1
                counts["promoted" if found[0]["in_service"] else "rejected"] += 1
                if not found[0]["in_service"]:  # promotions are what is looked at here, not what the gate thinks
                    time.sleep(0.5)  # the update's process ends, and with it its lock
                    counts["by hand"] += client.post(f"/v1/models/{found[0]['id']}/promote").status_code == 200
    told.put(counts)


def under_load(folder: Path, database: str | None, seconds: float) -> None:
    """The main part."""
    place, stream = new_place(folder / "workspace", database), Stream.make()
    (folder / "bare_app.py").write_text(BARE)
    bare_port = free_port()
    bare = ["-m", "uvicorn", "bare_app:app", "--port", str(bare_port), "--no-access-log", "--log-level", "warning"]
    with (
        started(bare, bare_port, folder / "bare.log", cwd=folder),
        serving(place, folder / "serve.log") as pid,
        place.client() as client,
    ):
        client.put("/v1/users", content=ipc(stream.people), headers=ARROW).raise_for_status()
        client.post("/v1/events", content=ipc(stream.events.slice(0, FIRST)), headers=ARROW).raise_for_status()
        client.post("/v1/periods").raise_for_status()
        if not wait_for(lambda: client.get("/readyz").status_code == 200, 300):
            raise SystemExit(f"no model came: {(folder / 'serve.log').read_text()[-2000:]}")
        quiet = turns(bare_port, place, 6 * TURN_SECONDS)  # the first of them makes every list for the first time
        report("nothing else running", quiet, None)
        memory = [resident(pid)]
        end = time.monotonic() + seconds
        told: Any = multiprocessing.Queue()
        feeder = multiprocessing.Process(target=feed, args=(place, stream, end, told), daemon=True)
        feeder.start()
        loads = turns(bare_port, place, seconds)
        counts = told.get(timeout=180)
        feeder.join(10)
        memory.append(resident(pid))
        report("with updates and promotions", loads, counts)
        print(f"memory {memory[0]:.0f} MiB at the start, {memory[1]:.0f} MiB at the end")
        swaps = [
            json.loads(line) for line in (folder / "serve.log").read_text().splitlines() if "model swapped" in line
        ]
        print(f"{len(swaps)} models taken up; each made ready in {[swap['seconds'] for swap in swaps]} s")


def turns(bare_port: int, place: Place, seconds: float) -> dict[str, list[Load]]:
    """Ask one after the other, a few seconds each."""
    loads: dict[str, list[Load]] = {"bare": [], "service": []}
    random, key = np.random.default_rng(0), place.key.encode()
    users = [b"u%d" % user for user in random.integers(0, N_USERS, 100_000)]
    bare_request = b"GET /bare HTTP/1.1\r\nHost: localhost\r\n\r\n"
    requests = [
        b"GET /v1/users/%b/recommendations?k=20 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
        % (user, key)
        for user in users
    ]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loads["bare"].append(uvloop.run(ask(bare_port, [bare_request], TURN_SECONDS, CONNECTIONS)))
        loads["service"].append(uvloop.run(ask(place.port, requests, TURN_SECONDS, CONNECTIONS)))
    return loads


def report(title: str, loads: dict[str, list[Load]], counts: dict[str, int] | None) -> None:
    """Print what came of it."""
    print(f"\n{title}, {CONNECTIONS} connections, turns of {TURN_SECONDS:g} s:")
    for name, turns_of in loads.items():
        latency = np.concatenate([load.latencies for load in turns_of])
        failures = sum(load.n_failed for load in turns_of)
        print(
            f"  {name:8} {np.median([load.rate for load in turns_of]):7,.0f} requests/s   p50 "
            f"{1000 * np.quantile(latency, 0.5):.2f} ms   p99 {1000 * np.quantile(latency, 0.99):.2f} ms   "
            f"{len(latency):,} answers, {failures} failures"
        )
    ratios = [ours.rate / theirs.rate for ours, theirs in zip(loads["service"], loads["bare"], strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    print(f"  service over bare: {middle:.2f} ({low:.2f} – {high:.2f})")
    models = set().union(*(load.models for load in loads["service"]))
    print(f"  {len(models)} models answered" + (f"; {counts}" if counts else ""), flush=True)


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--database", help="an empty database of PostgreSQL for the load; without it SQLite")
    parser.add_argument("--bulk-database", help="another one for the bulk ingest")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also then nothing is left behind
    with tempfile.TemporaryDirectory(prefix="fairstream-load-") as folder:
        bulk_ingest(Path(folder), options.bulk_database)
        under_load(Path(folder), options.database, options.seconds)


if __name__ == "__main__":
    main()
