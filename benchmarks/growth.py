"""What an update of 33,280 events costs when the catalogue and the past are 1, 10 and 100 times MovieLens-1M.

The new events are MovieLens' own, D_1 to D_9. It is the whole of `FairRecommender.update`: reading the
table, finding the ids, placing the events, ten epochs, everything.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks import movielens
from benchmarks.timing import Times, table
from fairstream import FairRecommender, Groups, Training
from fairstream.data import EventLog, History, Rows, Vocabulary
from fairstream.recommender.state import State
from fairstream.recommender.trainer import Trainer
from fairstream.training import Tensors

SCALES, ROUNDS = (1, 10, 100), 9


class World(NamedTuple):
    """MovieLens-1M among strangers: `scale` times as many users and items and past events, in no order of names."""

    scale: int
    log: EventLog
    users: Rows
    """The names of MovieLens' users."""
    items: Rows
    n_users: int
    n_items: int

    @classmethod
    def of(cls, log: EventLog, scale: int) -> World:
        rng, n_users, n_items = np.random.default_rng(scale), log.n_users * scale, log.n_items * scale
        users, items = rng.permutation(n_users)[: log.n_users], rng.permutation(n_items)[: log.n_items]
        return cls(scale, log, users, items, n_users, n_items)

    def recommender(self, threads: int) -> FairRecommender:
        """As one that was fitted on D_0 and on the strangers' events would stand; who comes later is not known."""
        at, made = movielens.D_0, FairRecommender("mf", training=Training(threads=threads), device="cpu")
        users, user_names = self._known(self.users, self.log.users[at], self.n_users)
        items, item_names = self._known(self.items, self.log.items[at], self.n_items)
        learning, history = made._trainer, History.of(users, items)
        model, optimizer = learning.models.load(history, _initial(learning, history), 0)
        state = State(
            model,
            optimizer,
            history,
            Groups.from_values("gender", np.where(user_names % 3, "M", "F").tolist()),
            Vocabulary(user_names).indexed(),
            Vocabulary(item_names).indexed(),
            np.ones(history.n_users, np.bool_),
            np.ones(history.n_items, np.bool_),
            t=0,
            started_at=0,
        )
        made._states.replace(state)
        return made

    def _known(self, names: Rows, column: Rows, n: int) -> tuple[Rows, Rows]:
        """The rows of D_0's column and of the strangers' random events, and the names of all rows."""
        is_known = np.ones(n, dtype=np.bool_)
        is_known[names] = False
        is_known[names[column]] = True
        known = np.flatnonzero(is_known)
        row_of = np.cumsum(is_known) - 1
        others = np.random.default_rng(n).integers(0, len(known), len(column) * (self.scale - 1))
        return np.concatenate([row_of[names[column]], others, [len(known) - 1]]), known

    def new_events(self, t: int) -> pa.Table:
        """The 33,280 interactions of MovieLens D_t."""
        n = movielens.D_1.stop - movielens.D_1.start
        at = slice(movielens.D_0.stop + (t - 1) * n, movielens.D_0.stop + t * n)
        users, items = self.users[self.log.users[at]], self.items[self.log.items[at]]
        return pa.table({"user_id": users, "item_id": items, "time": np.arange(n)})


def _initial(learning: Trainer, history: History) -> Tensors:
    """The tensors of a model that has learned nothing."""
    return {f"model/{name}": value for name, value in learning.models.new(history, 0).state_dict().items()}


def report(folder: Path) -> str:
    """Medians and spreads of an update, the sizes taken in turns."""
    log = movielens.read(folder)
    worlds, rows = [World.of(log, scale) for scale in SCALES], []
    for n_threads in (1, 2):
        made = [world.recommender(n_threads) for world in worlds]
        whole, learning = [[[] for _ in worlds] for _ in range(2)]  # type: list[list[float]], list[list[float]]
        for t in range(1, ROUNDS + 1):
            for n, world in enumerate(worlds):
                events = world.new_events(t)
                begin = time.perf_counter()
                update = made[n].update(events).last_update
                assert update is not None
                if t > 1:
                    whole[n].append(time.perf_counter() - begin)
                    learning[n].append(update.seconds)
        for n, world in enumerate(worlds):
            taken = Times(whole[n])
            ratio = taken.over(Times(whole[0]))
            rows.append(
                [str(n_threads), f"× {world.scale}", taken.show(), ratio.show(".2f"), Times(learning[n]).show()]
            )
    return table(["threads", "catalogue", "update, s", "over × 1", "of which learning, s"], rows)
