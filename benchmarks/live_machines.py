"""Two machines' worth of services on one PostgreSQL: one update a period, and how soon all answer with its model.

    python -m benchmarks.live_machines --rounds 5 --workers 2

The second machine is a folder with nothing but the three small files that are copied to another machine by hand. Both
run `fairstream serve` with the same schedule. Each round sends the events of a period to one of the two, and asks
both over new connections, again and again, until no process answers with an older model.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa

from benchmarks.live_load import Place, databases, free_port, send, serving, to_json, wait_for
from fairstream.data import synthetic_stream
from fairstream.service.database import now
from fairstream.service.keys import make_key
from fairstream.service.learning import Learning
from fairstream.service.registry import in_service
from fairstream.service.settings import Gate, LiveConfig
from fairstream.service.workspace import Workspace

N_USERS, N_ITEMS, EVENTS_A_PERIOD, IN_A_ROW = 2_000, 500, 20_000, 60


def machines(folder: Path, database: str | None) -> tuple[Place, Place]:
    """A workspace on a database, and what another machine needs of it."""
    config = LiveConfig(
        group="community",
        advantaged="majority",
        every=f"{EVENTS_A_PERIOD} events",
        learning=Learning(model="mf", pretrain_epochs=5, update_epochs=2),
        gate=Gate(min_tested_users=50, max_drift=1, max_fall=0.99, max_rise=1, max_user_share=1),
    )
    first, second = folder / "first", folder / "second"
    with Workspace.create(first, config, database) as workspace:
        key = make_key(workspace.engine, "machines", "admin")
    second.mkdir()
    for name in ("fairstream.toml", "database", "secret"):
        shutil.copy(first / name, second / name)
    return Place(first, key, free_port()), Place(second, key, free_port())


def model_of(place: Place) -> str | None:
    """The model that one of the machine's processes answers with."""
    with place.client() as client:  # a new connection, which any of the processes may accept
        model: str | None = client.get("/readyz").json()["model"]
        return model


def seconds_until_all_answer(places: Sequence[Place], workspace: Workspace) -> list[float]:
    """From the promotion of the model in service to the last answer with an older one, of each machine."""
    current = in_service(workspace.engine)
    assert current is not None
    n_new, last_old = [0] * len(places), [0.0] * len(places)
    while min(n_new) < IN_A_ROW:
        for n, place in enumerate(places):
            if model_of(place) == current.model:
                n_new[n] += 1
            else:
                n_new[n], last_old[n] = 0, (now() - current.since) / 1e6
    return last_old


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2, help="processes of each machine")
    options = parser.parse_args()
    stream = synthetic_stream(
        n_users=N_USERS, n_items=N_ITEMS, n_events=EVENTS_A_PERIOD * options.rounds, n_periods=options.rounds, seed=0
    )
    users = [f"u{each}" for each in stream.users["user_id"].to_pylist()]
    columns = {name: [f"{name[0]}{e}" for e in stream.events[name].to_pylist()] for name in ("user_id", "item_id")}
    events = pa.table({**columns, "event_id": [f"e{n}" for n in range(len(stream.events))]})
    with ExitStack() as stack:
        new_database = stack.enter_context(databases(True))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairstream-machines-")))
        places = machines(folder, new_database())
        workspace = stack.enter_context(Workspace.open(places[0].folder))
        for number, place in enumerate(places):
            stack.enter_context(serving(place, options.workers, folder / f"{number}.log"))
        clients = [stack.enter_context(place.client()) for place in places]
        send(clients[0], "PUT", "/v1/users", to_json(pa.table({"user_id": users, "group": stream.users["community"]})))
        delays: list[list[float]] = [[], []]
        for n in range(options.rounds):
            before, part = in_service(workspace.engine), events.slice(n * EVENTS_A_PERIOD, EVENTS_A_PERIOD)
            times = pa.array(np.linspace(time.time() - 1, time.time(), len(part)))
            send(clients[n % 2], "POST", "/v1/events", to_json(part.append_column("time", times)))
            if not wait_for(lambda before=before: in_service(workspace.engine) != before, 300, 0.05):  # type: ignore[misc]
                raise SystemExit(f"period {n} was not learned: {clients[0].get('/v1/updates').json()['data'][:1]}")
            for found, seconds in zip(delays, seconds_until_all_answer(places, workspace), strict=True):
                found.append(seconds)
        rows = clients[1].get("/v1/updates").json()["data"]
        print(f"{options.rounds} periods, 2 machines of {options.workers} processes: {len(rows)} updates")
        for row in rows:
            if row["state"] != "promoted":
                print(f"  {row['state']}: {row['reason']}")
        for number, found in enumerate(delays, 1):
            each = ", ".join(f"{seconds:.2f}" for seconds in found)
            print(f"machine {number}: seconds from a promotion until no process answers with an older model: {each}")
        signed_in = [sign_in(client, places[0].key, other) for client, other in (clients, clients[::-1])]
        print(f"sign-in on one machine is good on the other: {all(signed_in)}")


def sign_in(client: httpx.Client, key: str, other: httpx.Client) -> bool:
    """Whether a session that begins on one machine opens the pages of the other."""
    with httpx.Client() as browser:  # one name with two ports: cookies are sent to both
        browser.post(client.base_url.join("/login"), data={"key": key})
        return browser.get(other.base_url.join("/models")).status_code == 200


if __name__ == "__main__":
    main()
