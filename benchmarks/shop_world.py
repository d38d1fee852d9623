"""A made-up shop whose truth is known: people with tastes, items with properties, and what people do with a list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
GROUPS, SHARES = ("young", "middle", "old"), (0.5, 0.33, 0.17)
KINDS = {"view": 1.0, "click": 1.0, "cart": 2.0, "purchase": 4.0, "like": 2.0, "dislike": -1.0, "return": -1.0}
CATEGORIES = ("shoes", "coats", "bags", "books", "games", "lamps", "chairs", "tea", "bikes", "tents", "paint", "toys")
N_BRANDS, N_DIMENSIONS, K = 120, 16, 20
HOURS = np.array([2, 1, 1, 1, 1, 2, 4, 7, 9, 9, 9, 9, 10, 9, 8, 8, 9, 11, 13, 15, 16, 14, 9, 4], float)
"""How many people visit in each hour of the day, up to a factor."""
RECALL, DRIFT, PROMOTION, FLOOD, OUTAGE, EXPERIMENT = 11, 12, (14, 16), 15, 17, 18  # hours of the script
_SCALE, _BIAS = 7.0, 6.6  # a random item is clicked in one case of a hundred, the best ones in about half
_POSITION = np.arange(1, K + 1) ** -0.6  # how likely a person looks at each position
_N_BROWSED = 300  # items among which people who search find theirs


class Visit(NamedTuple):
    """What came of one list: the truth about it, and what the shop hears."""

    clicks: float  # expected: the list's true utility
    n_clicked: int
    n_bought: int
    revenue: float
    events: list[tuple[str, str]]  # item and kind


class World:
    """People, items, and the truth that the service cannot see."""

    def __init__(self, n_people: int, n_items: int, seed: int = 0) -> None:
        self.rng = rng = np.random.default_rng(seed)
        n_categories = len(CATEGORIES)
        self._centres = _unit(rng.normal(size=(n_categories, N_DIMENSIONS)))
        self.category = rng.choice(n_categories, n_items, p=_zipf(n_categories, 0.5))
        self.vectors = _unit(self._centres[self.category] + 0.25 * rng.normal(size=(n_items, N_DIMENSIONS)))
        self.quality = 0.7 * rng.normal(size=n_items)
        self.price = np.round(np.exp(rng.normal(3.2, 0.8, n_items)), 2)
        self.brand = rng.integers(0, N_BRANDS, n_items)
        self.stock = rng.geometric(1 / 60, n_items)
        self.is_sold = np.ones(n_items, bool)  # neither sold out nor withdrawn
        self.groups = rng.choice(len(GROUPS), n_people, p=SHARES)
        self.activity = rng.gamma(1.2, size=n_people)
        self._likes = rng.dirichlet(np.full(n_categories, 0.4), len(GROUPS))  # of categories, by group
        self.tastes = self._new_tastes(self.groups, self._likes)
        self.had: list[set[int]] = [set() for _ in range(n_people)]  # items that a person does not want again
        self._bought: list[tuple[int, int]] = []
        self.popularity = np.zeros(n_items)  # recent, by what people did
        self.items = [f"i{item}" for item in range(n_items)]
        self.rows = {name: row for row, name in enumerate(self.items)}

    def properties(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Return items as a feed sends them."""
        return [
            {
                "item_id": self.items[item],
                "title": f"{CATEGORIES[self.category[item]].title()} no. {item}",
                "category": CATEGORIES[self.category[item]],
                "brand": f"brand {self.brand[item]}",
                "price": float(self.price[item]),
                "stock": int(self.stock[item]),
                "available": bool(self.is_sold[item]),
            }
            for item in items
        ]

    def drift(self, group: int, share: float) -> Array:
        """Change what a part of a group likes; return these people."""
        members = np.flatnonzero(self.groups == group)
        changed = self.rng.choice(members, int(share * len(members)), replace=False)
        likes = self.rng.dirichlet(np.full(len(CATEGORIES), 0.4), len(GROUPS))
        self.tastes[changed] = self._new_tastes(self.groups[changed], likes)
        return changed

    def p_click(self, people: Sequence[int]) -> Array:
        """Return the probability that each person clicks each item when seeing it; 0 for what nobody can have."""
        # Not by @: stopping PostgreSQL forks this process, and a fork inside of OpenBLAS's threads never comes back.
        p = _click(np.einsum("pd,id->pi", self.tastes[people], self.vectors), self.quality)
        p[:, ~self.is_sold] = 0
        for row, person in enumerate(people):
            p[row, list(self.had[person])] = 0
        return p

    def best(self, p: Array) -> Array:
        """Return the true utility of each person's best list."""
        return _utility(np.sort(np.partition(p, -K, axis=1)[:, -K:])[:, ::-1])

    def by_popularity(self, p: Array, people: Sequence[int]) -> Array:
        """Return the true utility of the lists that recent popularity would have shown."""
        order = np.argsort(-np.where(self.is_sold, self.popularity, -1), kind="stable")[: 20 * K]
        lists = [[item for item in order if item not in self.had[person]][:K] for person in people]
        return np.array([_utility(row[items]) for row, items in zip(p, lists, strict=True)])

    def visit(self, person: int, p: Array, items: Sequence[int]) -> Visit:
        """Show a list to a person: who looks at an item may click it, and then put it into the cart and buy it."""
        rng, shown = self.rng, p[list(items)]
        clicked = [items[at] for at in np.flatnonzero(rng.random(len(items)) < shown * _POSITION[: len(items)])]
        events: list[tuple[int, str]] = []
        for item in clicked:
            events.append((item, "click"))
            events += self._after_click(person, item, p[item])
        bought = [item for item, kind in events if kind == "purchase"]
        revenue = float(self.price[bought].sum())
        return Visit(float(_utility(shown)), len(clicked), len(bought), revenue, self._done(person, events))

    def browse(self, people: Sequence[int]) -> list[list[tuple[str, str]]]:
        """Let people search the shop without a list: each views a few items that suit, and what follows."""
        rng = self.rng
        found = rng.integers(0, len(self.items), (len(people), _N_BROWSED))
        tastes = np.einsum("pd,pnd->pn", self.tastes[people], self.vectors[found])
        p = _click(tastes, self.quality[found])
        # The largest of p^1.5 / an exponential draw are a sample without replacement by these weights.
        order = np.argsort(-(p**1.5) / rng.exponential(size=p.shape), axis=1)
        done = []
        for row, (person, n) in enumerate(zip(people, rng.integers(1, 4, len(people)), strict=True)):
            events: list[tuple[int, str]] = []
            for at in order[row, :n]:
                if self.is_sold[item := int(found[row, at])] and item not in self.had[person]:
                    events += [(item, "view"), *self._after_click(person, item, p[row, at])]
            done.append(self._done(person, events))
        return done

    def returned(self) -> Iterator[tuple[int, str]]:
        """Yield people who send something back, and the item."""
        for person, item in self._bought[:]:
            if self.rng.random() < 0.02:
                self._bought.remove((person, item))
                yield person, self.items[item]

    def _after_click(self, person: int, item: int, p: float) -> Iterator[tuple[int, str]]:
        rng = self.rng
        if rng.random() < 0.15:
            yield item, "cart"
            if rng.random() < 0.5 and self.stock[item] > 0:
                self.stock[item] -= 1
                self._bought.append((person, item))
                yield item, "purchase"
        if rng.random() < 0.06:
            yield item, "like" if rng.random() < p * 2 else "dislike"

    def _done(self, person: int, events: list[tuple[int, str]]) -> list[tuple[str, str]]:
        for item, kind in events:
            self.had[person].add(item)
            self.popularity[item] += max(KINDS[kind], 0.0)
        return [(self.items[item], kind) for item, kind in events]

    def _new_tastes(self, groups: Array, likes: Array) -> Array:
        """A person's taste is that of two categories which the group likes, and some of the person's own."""
        chosen = np.array([self.rng.choice(len(CATEGORIES), 2, p=likes[group]) for group in groups])
        own = 0.15 * self.rng.normal(size=(len(groups), N_DIMENSIONS))
        return _unit(self._centres[chosen[:, 0]] + 0.6 * self._centres[chosen[:, 1]] + own)


def profile(hour: int, rng: np.random.Generator, world: World, n_visits: int) -> Array:
    """Return who visits in an hour of the day."""
    n = rng.poisson(n_visits * HOURS[hour % 24] / HOURS.sum())
    return rng.choice(len(world.activity), n, p=world.activity / world.activity.sum())


def lost_share(served: Mapping[str, float]) -> float:
    """Return the regret: the share of what the best lists would have given that the served ones do not give.

    >>> lost_share({"served": 1.5, "best": 2.0})
    0.25
    """
    return 1 - served["served"] / served["best"]


def _utility(p: Array) -> Any:
    """Return the expected clicks on lists whose items are clicked with these probabilities when seen."""
    return (p * _POSITION[: p.shape[-1]]).sum(axis=-1)


def _click(agreement: Array, quality: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(_BIAS - quality - _SCALE * agreement)))


def _unit(vectors: Array) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _zipf(n: int, power: float) -> Array:
    weights = np.arange(1, n + 1) ** -power
    return np.asarray(weights / weights.sum())
