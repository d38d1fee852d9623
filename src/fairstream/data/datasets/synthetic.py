"""A stream of events drawn from a known truth, in which a disparity grows.

Each user u has a taste θ_u(t), each item i a position x_i on the unit sphere and a popularity
b_i; in period t the user chooses among the present items that it has not had yet with

    P(i | u, t) ∝ exp(sharpness · ⟨θ_u(t), x_i⟩ + w_g · b_i).

A taste lies between the centre of the user's group and the user's own direction. From period to
period it turns by a random angle (drift), for the smaller group faster than for the larger one;
users and items arrive. What is popular is what the larger group likes (w_0 = 1); the smaller one
cares less for it (w_1 < 1) and chooses from the long tail. A recommender learns the popular things
first, from the larger group's many events, and falls behind for the smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from fairstream.configuration import Configuration
from fairstream.randomness import Randomness

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]

_DIMENSIONS = 6


class SyntheticConfig(Configuration):
    """The options of the stream."""

    n_users: int = Field(1_200, ge=2)
    """Users over the whole stream."""
    n_items: int = Field(500, ge=10)
    """Items over the whole stream."""
    n_events: int = Field(60_000, ge=100)
    """Events over the whole stream (a little fewer where users run out of items)."""
    n_periods: int = Field(10, ge=1)
    """Periods after the pre-training data; they get an equal share of the events each."""
    pretrain_ratio: float = Field(0.6, gt=0, lt=1)
    """Share of the events that lies before the first period."""
    disadvantaged_share: float = Field(0.3, gt=0, lt=1)
    """Share of the users that belongs to the smaller, disadvantaged group."""
    disparity: float = Field(0.6, ge=0, le=1)
    """How much the groups differ in taste, drift and preference for popular items; 0: not at all."""
    drift: float = Field(0.25, ge=0, le=1.5)
    """Angle (radians) by which a taste turns from one period to the next."""
    new_user_share: float = Field(0.2, ge=0, lt=1)
    """Share of the users that arrive after the pre-training data."""
    new_item_share: float = Field(0.2, ge=0, lt=1)
    """Share of the items that arrive after the pre-training data."""
    sharpness: float = Field(6.0, gt=0)
    """How strongly taste decides a choice."""
    seed: int = Field(0, ge=0)
    """Seed of the whole stream."""


@dataclass(frozen=True, eq=False)
class SyntheticStream:
    """The events, and the truth behind them."""

    config: SyntheticConfig
    user_group: Integers
    """(n_users,) 0 advantaged, 1 disadvantaged."""
    user_arrival: Integers
    """(n_users,) the period in which each user can first act."""
    item_arrival: Integers
    """(n_items,) the period in which each item arrives."""
    user_taste: Floats
    """(n_periods + 1, n_users, d) θ_u(t)."""
    item_position: Floats
    """(n_items, d) x_i."""
    item_popularity: Floats
    """(n_items,) b_i."""
    events: pa.Table
    """user_id, item_id, time; the whole part of a time is its period."""

    def preference(self, t: int) -> Floats:
        """(n_users, n_items) the true log-preference in period t, −∞ for items that have not arrived."""
        appeal = _appeal(self.config, self.user_group, self.item_popularity)
        return _preference(self.config, self.user_taste[t], self.item_position, appeal, self.item_arrival <= t)

    @cached_property
    def users(self) -> pa.Table:
        """user_id, community: "majority" (advantaged) or "minority" (disadvantaged)."""
        names = np.array(["majority", "minority"])[self.user_group]
        return pa.table({"user_id": np.arange(self.config.n_users), "community": names})


def synthetic_stream(**knobs: Any) -> SyntheticStream:
    """Make a stream; the knobs are the fields of `SyntheticConfig`.

    >>> stream = synthetic_stream(n_users=200, n_items=80, n_events=4000, seed=1)
    >>> stream.events.num_rows, stream.events.column_names
    (4000, ['user_id', 'item_id', 'time'])
    """
    config = SyntheticConfig(**knobs)
    rng = Randomness(config.seed).numpy("synthetic stream")
    group = (rng.random(config.n_users) < config.disadvantaged_share).astype(np.int64)
    group[:2] = (0, 1)  # both groups always occur
    taste = _tastes(config, group, rng)
    position = _directions(rng, config.n_items)
    popularity = rng.normal(0.0, 1.2, config.n_items)
    appeal = _appeal(config, group, popularity)
    user_arrival = _arrivals(rng, config.n_users, config.new_user_share, config.n_periods)
    item_arrival = _arrivals(rng, config.n_items, config.new_item_share, config.n_periods)
    activity = rng.lognormal(0.0, 0.7, config.n_users)

    had = np.zeros((config.n_users, config.n_items), dtype=np.bool_)
    parts = []
    first = round(config.pretrain_ratio * config.n_events)
    edges = np.linspace(first, config.n_events, config.n_periods + 1).round().astype(int)
    for t, n_events in enumerate([first, *np.diff(edges).tolist()]):
        score = _preference(config, taste[t], position, appeal, item_arrival <= t)
        score[had] = -np.inf
        left = np.isfinite(score).sum(axis=1)
        present = (user_arrival <= t) & ((t == 0) | (rng.random(config.n_users) < 0.6))
        counts = _share_out(rng, n_events, activity * present, left)
        users, items = _choose(rng, score, counts)
        had[users, items] = True
        order = rng.permutation(len(users))
        times = t + np.sort(rng.random(len(users)))
        parts.append(pa.table({"user_id": users[order], "item_id": items[order], "time": times}))
    return SyntheticStream(
        config, group, user_arrival, item_arrival, taste, position, popularity, pa.concat_tables(parts)
    )


def _directions(rng: np.random.Generator, n: int) -> Floats:
    raw = rng.normal(size=(n, _DIMENSIONS))
    return raw / np.linalg.norm(raw, axis=1, keepdims=True)


def _tastes(config: SyntheticConfig, group: Integers, rng: np.random.Generator) -> Floats:
    """θ_u(t): the group's centre and the user's own direction, both turning from period to period.

    The centre of the smaller group moves along with the larger one's and drifts away from it too.
    """
    first = _directions(rng, 1)
    second = _turn(first, 0.5 * np.pi * config.disparity, rng)
    own = _directions(rng, config.n_users)
    extra = config.drift * config.disparity
    tastes = []
    for t in range(config.n_periods + 1):
        if t > 0:
            rotation = _rotation(first[0], config.drift, rng)
            first, second = first @ rotation.T, _turn(second @ rotation.T, extra, rng)
            own = _turn(own, config.drift + extra * group[:, None], rng)
        mixed = np.concatenate([first, second])[group] + own
        tastes.append(mixed / np.linalg.norm(mixed, axis=1, keepdims=True))
    return np.stack(tastes)


def _turn(directions: Floats, angle: Any, rng: np.random.Generator) -> Floats:
    """Turn each direction by its angle towards a random one at right angles to it."""
    return np.cos(angle) * directions + np.sin(angle) * _sideways(directions, rng)


def _rotation(direction: Floats, angle: float, rng: np.random.Generator) -> Floats:
    """The rotation of space that turns `direction` by `angle` towards a random one."""
    a, b = direction, _sideways(direction[None], rng)[0]
    turning, plane = np.outer(b, a) - np.outer(a, b), np.outer(a, a) + np.outer(b, b)
    return np.eye(len(a)) + np.sin(angle) * turning + (np.cos(angle) - 1.0) * plane


def _sideways(directions: Floats, rng: np.random.Generator) -> Floats:
    """A random direction at right angles to each."""
    raw = rng.normal(size=directions.shape)
    raw -= (raw * directions).sum(axis=1, keepdims=True) * directions
    return raw / np.linalg.norm(raw, axis=1, keepdims=True)


def _appeal(config: SyntheticConfig, group: Integers, popularity: Floats) -> Floats:
    """(n_users, n_items) w_g · b_i."""
    return np.outer(np.where(group == 1, 1.0 - config.disparity, 1.0), popularity)


def _preference(
    config: SyntheticConfig, taste: Floats, position: Floats, appeal: Floats, is_present: np.ndarray[Any, Any]
) -> Floats:
    score: Floats = config.sharpness * (taste @ position.T) + appeal
    score[:, ~is_present] = -np.inf
    return score


def _arrivals(rng: np.random.Generator, n: int, share: float, n_periods: int) -> Integers:
    late = rng.random(n) < share
    late[:2] = False
    return np.where(late, rng.integers(1, n_periods + 1, n), 0)


def _share_out(rng: np.random.Generator, n_events: int, weight: Floats, left: Integers) -> Integers:
    """Draw the number of events of each user; events beyond a user's remaining items go to other users."""
    counts = np.zeros(len(weight), dtype=np.int64)
    while (missing := n_events - int(counts.sum())) > 0:
        open_weight = np.where(counts < left, weight, 0.0)
        if open_weight.sum() == 0:
            break
        counts = np.minimum(counts + rng.multinomial(missing, open_weight / open_weight.sum()), left)
    return counts


def _choose(rng: np.random.Generator, score: Floats, counts: Integers) -> tuple[Integers, Integers]:
    """Draw `counts[u]` distinct items for each user from softmax(score) (the Gumbel top-k trick)."""
    noisy = score + rng.gumbel(size=score.shape)  # (n_users, n_items)
    ranked = np.argsort(-noisy, axis=1)
    users = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)  # 0 … counts[u] − 1 for each user
    return users, ranked[users, place]
