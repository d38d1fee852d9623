"""People visit a shop over HTTP: they ask for lists, see them, click and buy, and the shop reports all of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

import httpx
import numpy as np

from benchmarks.live_load import Place
from benchmarks.shop_world import CATEGORIES, GROUPS, K, World

AT_ONCE = 16  # connections


class Hour:
    """What happened in one hour of the day."""

    def __init__(self, hour: int) -> None:
        self.hour = hour
        self.sums: dict[str, Counter[str]] = defaultdict(Counter)  # by group, and of everyone
        self.models: dict[str, Counter[str]] = defaultdict(Counter)  # the same by the model that made the lists
        self.seconds: list[float] = []  # that each list took
        self.errors: Counter[str] = Counter()
        self.shown: set[str] = set()
        self.notes: list[str] = []
        self.report: dict[str, Any] = {}  # what the service says of itself at the end

    def add(self, group: str, **values: float) -> None:
        for name in (group, "everyone"):
            self.sums[name].update({"visits": 1, **values})

    def words(self) -> str:
        total = self.sums["everyone"]
        served, best, popular = (total[name] / max(1, total["visits"]) for name in ("served", "best", "popular"))
        milliseconds = 1000 * np.quantile(self.seconds or [0.0], 0.99)
        return (
            f"{self.hour:02d}:00 {total['visits']:5.0f} visits, utility {served:.3f} (best {best:.3f}, popular "
            f"{popular:.3f}), forbidden {total['forbidden']:.0f}, p99 {milliseconds:.0f} ms, errors "
            f"{dict(self.errors)} {'; '.join(self.notes)}"
        )

    def to_dict(self, n_items: int) -> dict[str, Any]:
        p50, p99 = np.quantile(self.seconds or [0.0], [0.5, 0.99])
        return {
            "hour": self.hour,
            "groups": {name: dict(sums) for name, sums in self.sums.items()},
            "models": {str(name): dict(sums) for name, sums in self.models.items()},
            "p50": float(p50),
            "p99": float(p99),
            "errors": dict(self.errors),
            "coverage": len(self.shown) / n_items,
            "notes": self.notes,
            **self.report,
        }


class Shop:
    """The shop's own software: it knows the service over HTTP alone."""

    def __init__(self, place: Place, partner: str, world: World) -> None:
        self.world, self.place = world, place
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{place.port}",
            headers={"Authorization": f"Bearer {place.key}"},
            timeout=httpx.Timeout(10.0),
            limits=httpx.Limits(max_connections=AT_ONCE, keepalive_expiry=2.0),  # before the server closes them
        )
        self.partner = {"Authorization": f"Bearer {partner}"}
        self.hour = Hour(0)
        self.outbox: list[tuple[str, str, Any]] = []  # what the service has not acknowledged yet, in order
        self.n_acknowledged = 0
        self.forbidden: dict[str, float] = {}  # items that no list may hold, and since when the service knows
        self.pinned: tuple[str, ...] = ()
        self.parts: set[str] = set()  # endpoints that there are

    async def look(self) -> None:
        paths = (await self.http.get("/v1/openapi.json")).json()["paths"]
        self.parts = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
        parameters = paths["/v1/users/{user_id}/recommendations"]["get"]["parameters"]
        self.parts |= {parameter["name"] for parameter in parameters}

    async def send(self, method: str, path: str, body: Any) -> None:
        """Send something now, or as soon as the service takes it: nothing is lost, and the order stays."""
        self.outbox.append((method, path, body))
        await self.flush()

    async def flush(self) -> None:
        """Send what waits."""
        while self.outbox:
            method, path, body = self.outbox[0]
            try:
                answer = await self.http.request(method, path, json=body)
            except httpx.TransportError as error:
                self.hour.errors[f"{path}: {type(error).__name__}"] += 1
                return
            if answer.status_code >= 500 or answer.status_code == 429:
                self.hour.errors[f"{path}: {answer.status_code}"] += 1
                return
            answer.raise_for_status()
            self.outbox.pop(0)
            if path == "/v1/events":
                self.n_acknowledged += answer.json()["accepted"]
            elif path == "/v1/items":
                gone = {item["item_id"] for item in body if not item["available"]}
                self.forbidden |= {item: time.monotonic() for item in gone - self.forbidden.keys()}

    async def list_of(self, person: int, category: str | None = None) -> tuple[int, dict[str, Any]] | None:
        """Return a person's list, perhaps on the page of a category; None if the service did not answer."""
        query = {"k": str(K)} | ({"filter": f'category = "{category}" and stock > 0'} if category else {})
        begin = time.perf_counter()
        try:
            answer = await self.http.get(f"/v1/users/p{person}/recommendations", params=query)
        except httpx.TransportError as error:
            self.hour.errors[f"lists: {type(error).__name__}"] += 1
            return None
        self.hour.seconds.append(time.perf_counter() - begin)
        if answer.status_code != 200:
            self.hour.errors[f"lists: {answer.status_code}"] += 1
            return None
        body: dict[str, Any] = answer.json()
        return person, body

    async def feed(self, items: Sequence[int]) -> None:
        """Report the properties of items; those that are sold out may be in no list from then on."""
        await self.send("PUT", "/v1/items", self.world.properties(items))

    async def serve(self, people: Sequence[int]) -> None:
        """Let people come at the same time: ask for their lists, see them, click and buy."""
        world, hour = self.world, self.hour
        p = world.p_click(people)
        best, by_popularity = world.best(p), world.by_popularity(p, people)
        category: dict[int, str] = {}
        if "filter" in self.parts:
            category = {person: CATEGORIES[world.rng.integers(len(CATEGORIES))] for person in people[::10]}
        asked = time.monotonic()
        lists = await at_once(AT_ONCE, (self.list_of(person, category.get(person)) for person in people))
        # What the service knows that they have had; after an outage it learns it a moment later.
        had = [set() if self.outbox else set(world.had[person]) for person in people]
        browsed = world.browse(people)
        events, impressions = list[dict[str, Any]](), list[dict[str, Any]]()
        for at, (person, answer) in enumerate(zip(people, lists, strict=True)):
            group = GROUPS[world.groups[person]]
            did = browsed[at]
            if answer is not None:
                body = answer[1]
                items = [item["item_id"] for item in body["items"]]
                hour.shown.update(items)
                rows = [world.rows[item] for item in items]
                wrong = [item for item in items if self.forbidden.get(item, np.inf) < asked - 1.0]
                wrong += [item for item, row in zip(items, rows, strict=True) if row in had[at]]
                if (name := category.get(person)) is not None:
                    wrong += [
                        item for item, row in zip(items, rows, strict=True) if CATEGORIES[world.category[row]] != name
                    ]
                visit = world.visit(person, p[at], rows)
                did += visit.events
                impressions.append({"user_id": f"p{person}", "items": items, "list_id": body.get("list_id")})
                shown = hour.sums["everyone"]
                if name is None:  # the page of a category cannot be compared with the best list of all
                    hour.add(
                        group,
                        served=visit.clicks,
                        best=float(best[at]),
                        popular=float(by_popularity[at]),
                        hits=visit.n_clicked > 0,
                        clicks=visit.n_clicked,
                        bought=visit.n_bought,
                        revenue=visit.revenue,
                        fallback=body["source"] == "popularity",
                    )
                    hour.models[body["model"]].update({"visits": 1, "served": visit.clicks, "best": float(best[at])})
                shown.update(lists=1, items=len(items), filtered=name is not None, forbidden=len(wrong))
                shown["pinned"] += bool(self.pinned) and items[0] in self.pinned
            events += [{"user_id": f"p{person}", "item_id": item, "kind": kind} for item, kind in did]
        now = time.time()
        sent = [{**event, "time": now + n / 1000} for n, event in enumerate(events)]
        if impressions and "POST /v1/impressions" in self.parts:
            await self.send("POST", "/v1/impressions", {"impressions": impressions})
        if sent:
            await self.send("POST", "/v1/events", sent)
        sold_out = np.flatnonzero(world.is_sold & (world.stock <= 0))
        world.is_sold[sold_out] = False
        if len(sold_out):
            await self.feed(sold_out.tolist())


async def at_once(n: int, calls: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await calls, so many at once."""
    free = asyncio.Semaphore(n)

    async def one(call: Awaitable[Any]) -> Any:
        async with free:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))
