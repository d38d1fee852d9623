"""Vectors of items and users: exported for an index, and compared for similar items."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch

from fairstream.data import Rows
from fairstream.errors import CheckpointError, ConfigurationError
from fairstream.evaluation.ranking import evaluating
from fairstream.files import new_folder
from fairstream.models import Task
from fairstream.recommender.state import State

_USERS_AT_ONCE = 4096
_SCORES_AT_ONCE = 1 << 20
Floats = np.ndarray[Any, np.dtype[np.float32]]
Similarities = np.ndarray[Any, np.dtype[np.floating[Any]]]


def similar_items(state: State, ids: pa.Array, k: int) -> pa.Table:
    """The k items most similar to each of the known items among `ids`, without the item itself."""
    ids = ids if len(ids) else state.item_ids.ids[:0]
    rows = state.item_ids.lookup(ids)
    is_known = rows >= 0
    items = rows[is_known]
    both = _vectors(state, np.arange(min(1, state.history.n_users)))
    if both is None:
        source, compare, n_items = "histories", _shared_users(state), len(state.item_ids)
    else:
        source, compare, n_items = "vectors", _cosines(both[1], state.contexts.items), len(both[1])
    at_once = max(1, _SCORES_AT_ONCE // max(1, n_items))
    blocks = [items[start : start + at_once] for start in range(0, max(1, len(items)), at_once)]
    best, scores = (
        np.concatenate(parts) for parts in zip(*(_best(compare(rows), rows, k) for rows in blocks), strict=True)
    )
    row, rank = np.nonzero(np.isfinite(scores))
    return pa.table(
        {
            "item_id": ids.take(pa.array(np.flatnonzero(is_known)[row])),
            "similar_id": state.item_ids.ids.take(pa.array(best[row, rank])),
            "rank": rank + 1,
            "score": scores[row, rank].astype(np.float32),
            "source": pa.array([source] * len(row), pa.string()),
        }
    )


def write_vectors(folder: Path, state: State, model: str) -> None:
    """Write the vectors of the items and the users that the model can score into a new folder."""
    rows = np.flatnonzero(state.contexts.can_score(state.model, np.arange(state.history.n_users)))
    items = np.arange(state.history.n_items) if state.contexts.items is None else state.contexts.items
    parts, of_items = [], None
    for start in range(0, max(1, len(rows)), _USERS_AT_ONCE):
        both = _vectors(state, rows[start : start + _USERS_AT_ONCE], "next")
        if both is None:
            raise ConfigurationError(
                f"the scores of the model {model} are not inner products of vectors, so an index cannot use them; "
                f"export mf, gru or sasrec"
            )
        parts.append(both[0])
        of_items = both[1]
    assert of_items is not None
    tables = {
        "users": ("user_id", state.user_ids.ids.take(pa.array(rows)), np.concatenate(parts)),
        "items": ("item_id", state.item_ids.ids.take(pa.array(items)), of_items[items]),
    }
    try:
        if folder.exists() and any(folder.iterdir()):
            raise CheckpointError(f"{folder} is not empty; export into a new folder")
        with new_folder(folder) as temporary:
            for name, (column, ids, vectors) in tables.items():
                listed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
                table = pa.table({column: ids, "vector": listed})
                pyarrow.parquet.write_table(table, temporary / f"{name}.parquet")
                np.save(temporary / f"{name}.npy", vectors)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"the vectors could not be written to {folder}: {error.strerror or error}") from None


def _vectors(state: State, users: Rows, task: Task = "event") -> list[Floats] | None:
    """(U, d) of users and (n_items, d) of all items: the vectors that the model scores with; None if it has none."""
    contexts = replace(state.contexts, task=task)
    with torch.no_grad(), evaluating(state.model):
        both = state.model.vectors(torch.from_numpy(users).to(state.model.device), contexts.at(users))
    return both and [part.detach().float().cpu().numpy() for part in both]


def _best(similarity: Similarities, items: Rows, k: int) -> tuple[Rows, Similarities]:
    """(A, n_items) → the k other items most similar to each, and their similarities: (A, k) each."""
    similarity[np.arange(len(items)), items] = -np.inf
    best = np.argsort(-similarity, axis=1, kind="stable")[:, :k].copy()  # a view would keep the whole block
    return best, np.take_along_axis(similarity, best, axis=1)


def _cosines(vectors: Floats, trained: Rows | None) -> Callable[[Rows], Similarities]:
    """Items (A,) → (A, n_items) the cosines of their vectors with those of all items; −∞ for untrained items."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    is_trained = np.full(len(unit), trained is None)
    if trained is not None:
        is_trained[trained] = True

    def compare(items: Rows) -> Similarities:
        return np.where(is_trained[items, None] & is_trained, unit[items] @ unit.T, -np.inf)

    return compare


def _shared_users(state: State) -> Callable[[Rows], Similarities]:
    """Items (A,) → (A, n_items) the cosines of their sets of users; −∞ for items without a common user."""
    n_items, seen = state.history.n_items, state.history.pairs
    n_users = np.bincount(seen.items, minlength=n_items).astype(np.float64)
    by_item, ends = seen.users[np.argsort(seen.items, kind="stable")], np.cumsum(n_users, dtype=np.int64)

    def compare(items: Rows) -> Similarities:
        similarity = np.full((len(items), len(state.item_ids)), -np.inf)
        for place, item in enumerate(items):
            _, of_both = seen.lists(by_item[ends[item] - int(n_users[item]) : ends[item]])
            shared = np.bincount(of_both, minlength=n_items)
            cosines = shared / np.sqrt(np.maximum(n_users[item] * n_users, 1))
            similarity[place, :n_items] = np.where(shared > 0, cosines, -np.inf)
        return similarity

    return compare
