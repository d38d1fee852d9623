"""One model in memory, answering for one user at a time: the same lists as `FairRecommender.recommend`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch

from fairstream.data import Rows
from fairstream.errors import ModelError
from fairstream.evaluation.lists import Floats, ItemLists
from fairstream.evaluation.top_k import BACKENDS, chunks, score_blocks
from fairstream.models import NO_CONTEXT, Scorer
from fairstream.recommender import FairRecommender, load

Source = Literal["model", "popularity"]
_KEPT_LISTS = 10_000
_AT_LEAST = 32
"""Lists are made a little longer than asked for: a few items more cost little, another list much."""
_NOBODY: Rows = np.zeros(2, np.int64)
_NOTHING: Rows = np.empty(0, np.int64)


@dataclass(eq=False, slots=True)
class Ranked:
    """A user's best items, best first, less what the model knows that the user has had."""

    row: int
    """The user's, −1 if the model does not know it."""
    rows: list[int]
    """The items'."""
    scores: list[float]
    source: Source
    is_all: bool
    """Nothing comes behind the last one."""
    written: tuple[tuple[int, bytes], str] | None = None
    """What was last made of it, and for which question: the next one is mostly the same."""


class Answer(NamedTuple):
    """The best items for a user."""

    items: list[str]
    scores: list[float]
    source: Source


class Served:
    """A model that answers and never changes."""

    def __init__(self, recommender: FairRecommender, model_id: str) -> None:
        self.id = model_id
        self._state = state = recommender.state
        self._model, self._known, self.users, self.items = state.model, state.history, state.user_ids, state.item_ids
        if not all(bool(torch.isfinite(weights).all()) for weights in self._model.parameters()):
            raise ModelError(f"model {model_id} has weights that are not numbers; promote another one")
        self._popularity = state.fallback
        self._names: dict[int, str] = {}
        self._lists: OrderedDict[str | None, Ranked] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def load(cls, folder: Path, model_id: str) -> Self:
        """Read a checkpoint."""
        return cls(load(folder, device="cpu"), model_id)

    @property
    def n_items(self) -> int:
        return self._known.n_items

    def answer(self, user_id: str, k: int, had: Rows = _NOTHING) -> Answer:
        """The k best for a user, less what it has had: as the model knows, and the item rows `had`."""
        row = self.row_of(user_id)
        ranked = self.ranked(user_id, row, k + len(had))
        chosen = places(ranked, k, had)
        return Answer(
            [self.name(ranked.rows[at]) for at in chosen], [ranked.scores[at] for at in chosen], ranked.source
        )

    def ranked(self, user_id: str, row: int, n: int) -> Ranked:
        """The n best for the user of a row or more, or all there are; the row is −1 for one who is not known."""
        # Whoever the model does not know has one list with all the others: strangers crowd nobody out.
        key = user_id if row >= 0 else None
        kept = self.kept(key)
        if kept is not None and (len(kept.rows) >= n or kept.is_all):
            return kept
        return self._keep(key, self.rank(row, max(n, _AT_LEAST)))

    def kept(self, user_id: str | None) -> Ranked | None:
        """The list that was made for a user before, if it is still there; None stands for all who are not known."""
        with self._lock:
            kept = self._lists.get(user_id)
            if kept is not None:
                self._lists.move_to_end(user_id)
            return kept

    def asked_lately(self) -> list[str]:
        """The users whose lists are kept, who asked last first."""
        with self._lock:
            return [user for user in reversed(self._lists) if user is not None]

    def _keep(self, key: str | None, made: Ranked) -> Ranked:
        with self._lock:
            self._lists[key] = made
            if len(self._lists) > _KEPT_LISTS:
                self._lists.popitem(last=False)
        return made

    def knows(self, user_ids: pa.Array | pa.ChunkedArray, items: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether the model knows of each user that it has had the item of a row."""
        users = self.users.lookup(user_ids)
        there = (users >= 0) & (items >= 0)
        there[there] = self._known.seen.has(users[there], items[there])
        return there

    def row_of(self, user_id: str) -> int:
        """The user's row, −1 if the model does not know it."""
        return self.users.row_of(user_id)

    def rank(self, row: int, n: int) -> Ranked:
        """The n best for the user of a row, made anew."""
        source: Source = "model" if self._state.contexts.can_score(self._model, np.array([row]))[0] else "popularity"
        scores, rows = self._best(
            self._model if source == "model" else self._popularity, row if row >= 0 else self._known.n_users, n
        )
        return Ranked(
            row,
            rows.tolist(),
            scores.astype(np.float32).tolist(),
            source,
            len(rows) < n,
        )

    def name(self, row: int) -> str:
        """The id of an item; most lists are of the same few."""
        name = self._names.get(row)
        if name is None:
            name = self._names[row] = self.items.ids[row].as_py()
        return name

    @torch.no_grad()
    def _best(self, model: Scorer, row: int, n: int) -> tuple[Floats, Rows]:
        """What `best_items` gives for one user, without what it does for many: the same blocks, the same order."""
        user, backend = np.array([row]), BACKENDS["cpu"]
        context = self._state.contexts.at(user) if model is self._model else NO_CONTEXT
        blocks = score_blocks(
            model, torch.from_numpy(user), context, chunks(self.n_items, at_once=backend.items_at_once)
        )
        seen, nothing = ItemLists(*self._known.seen.lists(user)), ItemLists(_NOBODY, _NOTHING)
        best, items = backend.top_k(blocks, seen, nothing, self.n_items, n)
        is_item = np.isfinite(best[0])
        return best[0][is_item], items[0][is_item]


def places(ranked: Ranked, k: int, had: Rows) -> list[int] | range:
    """Where in a list the k best stand that are not among the item rows `had`."""
    if not len(had):
        return range(min(k, len(ranked.rows)))
    left_out = set(had.tolist())
    return [at for at, item in enumerate(ranked.rows) if item not in left_out][:k]
