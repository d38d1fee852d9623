"""An attack on people's groups: give each victim an event with an item of its own, and read every number about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from fairstream import FairRecommender, synthetic_stream
from fairstream.models import Level
from fairstream.recommender.trainer import Trainer
from support import make_recommender

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Kind = Literal["known", "new"]
GROUPS = ("majority", "minority")
N_VICTIMS = 120
ITEMS = [f"probe{n}" for n in range(N_VICTIMS)]
"""The items of the victims, in their order."""
CHANCE = 0.5 + 4 * np.sqrt((N_VICTIMS + 1) / (3 * N_VICTIMS**2))
"""Four standard errors above the AUC of an attacker who guesses."""


class Reader(Protocol):
    """What an attacker may ask for: for each user or session, the scores of the only items allowed."""

    def __call__(
        self, *, users: Sequence[str] | None = None, histories: Sequence[Sequence[str]] | None = None, only: list[str]
    ) -> list[Mapping[str, float]]: ...


@dataclass(frozen=True, eq=False)
class World:
    """Events before and after the attack begins, and victims whose groups were drawn by lot.

    The groups say nothing about what the victims like: whoever finds them read them in what training did.
    """

    before: pa.Table
    after: pa.Table
    """It begins with the victims' events."""
    users: pa.Table
    victims: list[str]
    is_behind: np.ndarray[Any, np.dtype[np.bool_]]

    @classmethod
    @cache
    def made(cls, kind: Kind, seed: int = 0) -> World:
        """Victims who have had other items before ("known"), or nothing at all ("new")."""
        stream = synthetic_stream(n_users=600, n_items=120, n_events=12_000, seed=seed)
        events, random = _named(stream.events), np.random.default_rng(seed)
        before, after = events.slice(0, 9_000), events.slice(9_000)
        groups = dict(zip((f"u{n}" for n in range(600)), stream.users["community"].to_pylist(), strict=True))
        active = sorted(set(before["user_id"].to_pylist()))
        known = random.choice(active, N_VICTIMS, replace=False).tolist()
        victims = known if kind == "known" else [f"v{n}" for n in range(N_VICTIMS)]
        is_behind = random.permutation(np.arange(N_VICTIMS) % 2 == 1)
        groups |= {user: GROUPS[int(code)] for user, code in zip(victims, is_behind, strict=True)}
        users = pa.table({"user_id": [*groups], "community": [*groups.values()]})
        begin = after["time"][0].as_py()
        mine = pa.table({"user_id": victims, "item_id": ITEMS, "time": np.full(N_VICTIMS, begin)})
        return cls(before, pa.concat_tables([mine, after]), users, victims, is_behind)

    def swapped(self) -> World:
        """The same world with every victim in the other group."""
        other = dict(zip(GROUPS, reversed(GROUPS), strict=True))
        rows = zip(self.users["user_id"].to_pylist(), self.users["community"].to_pylist(), strict=True)
        groups = {user: other[group] if user in set(self.victims) else group for user, group in rows}
        users = pa.table({"user_id": [*groups], "community": [*groups.values()]})
        return World(self.before, self.after, users, self.victims, ~self.is_behind)

    def with_accomplices(self, n_behind: int, n_ahead: int, seed: int = 1) -> World:
        """The same with users of known groups who have each victim's item, too, all at the end of the update."""
        random, groups = np.random.default_rng(seed), dict(zip(*self.users.to_pydict().values(), strict=True))
        active = sorted(set(self.before["user_id"].to_pylist()) - set(self.victims))
        rows = [
            (user, item)
            for item in ITEMS
            for name, n in zip(GROUPS, (n_ahead, n_behind), strict=True)
            for user in random.choice([user for user in active if groups[user] == name], n, replace=False).tolist()
        ]
        rows += list(zip(self.victims, ITEMS, strict=True))
        end = np.full(len(rows), self.after["time"][-1].as_py())
        mine = pa.table({"user_id": [user for user, _ in rows], "item_id": [item for _, item in rows], "time": end})
        after = pa.concat_tables([self.after.slice(N_VICTIMS), mine])
        return World(self.before, after, self.users, self.victims, self.is_behind)

    def learned(self, model: str, **options: Any) -> FairRecommender:
        """A recommender that has learned what came before, and the victims' events in one update."""
        rec = make_recommender(model, device="cpu", **options)
        rec.fit(self.before, users=self.users, group="community", advantaged="majority")
        return rec.update(self.after, users=self.users)


def at_level(rec: FairRecommender, level: Level) -> FairRecommender:
    """The recommender with this level in force, whatever its target has chosen."""
    rec._states.replace(Trainer.with_tilt(replace(rec.state, level=level)))
    return rec


def advantage(values: Numbers, is_behind: np.ndarray[Any, np.dtype[np.bool_]]) -> float:
    """The AUC of whoever sorts the victims by these values, up or down: ½ is guessing."""
    from scipy.stats import rankdata  # takes half a second

    n = int(is_behind.sum())
    auc = (rankdata(values)[is_behind].sum() - n * (n + 1) / 2) / (n * (len(is_behind) - n))
    return float(max(auc, 1 - auc))


def numbers(read: Reader, victims: Sequence[str], items: list[str], catalogue: list[str]) -> dict[str, Numbers]:
    """Every number about each victim that lists give away: scores of its item, and what its item and itself score."""
    found = dict(_scores_of_items(read, items, catalogue))
    asked: dict[str, dict[str, Any]] = {
        "session of the item": {"histories": [[item] for item in items]},
        "session of the item and more": {"histories": [[item, *catalogue[:3]] for item in items]},
        "own list": {"users": victims},
    }
    for name, options in asked.items():
        for what, only in (("catalogue", catalogue), ("other victims' items", items)):
            lists = [np.array([*scores.values()] or [0.0]) for scores in read(only=only, **options)]
            for summary in ("mean", "max", "min", "std"):
                found[f"{name}, {what}: {summary}"] = np.array([getattr(np, summary)(each) for each in lists])
    return found


def _scores_of_items(read: Reader, items: list[str], catalogue: list[str]) -> Iterator[tuple[str, Numbers]]:
    """The score of each victim's item for a stranger, and for sessions; their order says less."""
    asked = {f"for a session of items {at} on": {"histories": [catalogue[at : at + 10]]} for at in range(0, 40, 10)}
    for name, options in {"for a stranger": {"users": ["nobody"]}, **asked}.items():
        [scores] = read(only=items, **options)
        yield name, np.array([scores.get(item, -np.inf) for item in items])


def reader_of(rec: FairRecommender) -> Reader:
    """What a recommender answers."""

    def read(
        *, users: Sequence[str] | None = None, histories: Sequence[Sequence[str]] | None = None, only: list[str]
    ) -> list[Mapping[str, float]]:
        table = rec.recommend(users, k=len(only), histories=histories, only=only)
        asked: Sequence[Any] = users if histories is None else range(len(histories))
        lists: dict[Any, dict[str, float]] = {one: {} for one in asked}
        for who, item, score in zip(*(table[at].to_pylist() for at in (0, "item_id", "score")), strict=True):
            lists[who][item] = score
        return [lists[one] for one in asked]

    return read


def similarities(rec: FairRecommender, items: list[str]) -> dict[str, Numbers]:
    """How similar each victim's item is to those that are most like it."""
    table = rec.similar_items(items, k=10)
    scores: dict[str, list[float]] = {item: [] for item in items}
    for item, score in zip(table["item_id"].to_pylist(), table["score"].to_pylist(), strict=True):
        scores[item].append(score)
    lists = [np.array(scores[item] or [0.0]) for item in items]
    return {f"similar: {name}": np.array([getattr(np, name)(each) for each in lists]) for name in ("mean", "max")}


def _named(events: pa.Table) -> pa.Table:
    return pa.table(
        {
            "user_id": [f"u{row}" for row in events["user_id"].to_pylist()],
            "item_id": [f"i{row}" for row in events["item_id"].to_pylist()],
            "time": events["time"],
        }
    )
