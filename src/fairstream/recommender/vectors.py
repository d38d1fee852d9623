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
from scipy import sparse

from fairstream.data import Rows
from fairstream.errors import CheckpointError, ConfigurationError
from fairstream.evaluation.ranking import evaluating
from fairstream.files import new_folder
from fairstream.models import Task
from fairstream.recommender.state import State

_USERS_AT_ONCE = 4096
_SCORES_AT_ONCE = 1 << 20
_ITEM_BITS = (1 << 32) - 1  # of a pair's key
Floats = np.ndarray[Any, np.dtype[np.float32]]
Similarities = np.ndarray[Any, np.dtype[np.floating[Any]]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def similar_items(
    state: State,
    ids: pa.Array,
    k: int,
    *,
    min_shared: int = 1,
    max_users: int | None = None,
    allowed: Rows | None = None,
) -> pa.Table:
    """The k items most similar to each of the known items among `ids`, without the item itself.

    A model without vectors compares the users of two items; they count if at least `min_shared` are the same. Of an
    item with more than `max_users` users, this many stand for all. With `allowed`, only these item rows are compared.
    """
    ids = ids if len(ids) else state.item_ids.ids[:0]
    rows = state.item_ids.lookup(ids)
    is_known = rows >= 0
    items = rows[is_known]
    vectors = _item_vectors(state)
    if vectors is None:
        source, compare, n_items = "histories", _shared_users(state, items, min_shared, max_users), len(state.item_ids)
    else:
        source, compare, n_items = "vectors", _cosines(vectors, state.contexts.items), len(vectors)
    is_left_out = np.full(n_items, allowed is not None)
    is_left_out[[] if allowed is None else allowed] = False
    at_once = max(1, _SCORES_AT_ONCE // max(1, n_items))
    blocks = [items[start : start + at_once] for start in range(0, max(1, len(items)), at_once)]
    best, scores = (
        np.concatenate(parts)
        for parts in zip(*(_best(compare(rows), rows, k, is_left_out) for rows in blocks), strict=True)
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


def similarities(state: State, items: Rows, others: Rows, *, min_shared: int = 1) -> Similarities:
    """(A,) and (B,) item rows → (A, B) their similarities, as `similar_items` computes them; −∞: none."""
    vectors = _item_vectors(state)
    if vectors is not None:
        both = np.concatenate([items, others])
        is_trained = None if state.contexts.items is None else np.flatnonzero(np.isin(both, state.contexts.items))
        compare = _cosines(vectors[both], is_trained)
        return np.where(items[:, None] == others, -np.inf, compare(np.arange(len(items)))[:, len(items) :])
    keys = state.history.pairs.keys
    is_wanted = np.zeros(len(state.item_ids), np.bool_)
    is_wanted[items] = is_wanted[others] = True
    keys = keys[is_wanted[keys & _ITEM_BITS]]
    pairs = keys >> 32, keys & _ITEM_BITS
    matrix = sparse.csc_array((np.ones(len(keys)), pairs), shape=(int(pairs[0].max(initial=-1)) + 1, len(is_wanted)))
    shared = (matrix[:, items].T @ matrix[:, others]).toarray()
    n_users = np.diff(matrix.indptr)
    cosines = shared / np.sqrt(np.maximum(n_users[items, None] * n_users[others].astype(np.float64), 1))
    return np.where((shared >= min_shared) & (items[:, None] != others), cosines, -np.inf)


def _item_vectors(state: State) -> Floats | None:
    both = _vectors(state, np.arange(min(1, state.history.n_users)))
    return None if both is None else both[1]


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


def _best(similarity: Similarities, items: Rows, k: int, is_left_out: Mask) -> tuple[Rows, Similarities]:
    """(A, n_items) → the k other items most similar to each, and their similarities: (A, k) each."""
    similarity[np.arange(len(items)), items] = -np.inf
    similarity[:, is_left_out] = -np.inf
    columns = np.flatnonzero(np.isfinite(similarity).any(axis=0))
    part = similarity[:, columns]
    if k < (n := len(columns)) // 8:  # sort only what may be among them: all that is not worse than the k-th
        bound = np.partition(part, n - k, axis=1)[:, n - k]
        is_close = (part >= bound[:, None]).any(axis=0)
        columns, part = columns[is_close], part[:, is_close]
    order = np.argsort(-part, axis=1, kind="stable")[:, :k].copy()  # a view would keep the whole block
    return columns[order], np.take_along_axis(part, order, axis=1)


def _cosines(vectors: Floats, trained: Rows | None) -> Callable[[Rows], Similarities]:
    """Items (A,) → (A, n_items) the cosines of their vectors with those of all items; −∞ for untrained items."""
    lengths = np.maximum(np.sqrt(np.einsum("id,id->i", vectors, vectors)), 1e-12)  # no copy of all vectors
    is_trained = np.full(len(vectors), trained is None)
    if trained is not None:
        is_trained[trained] = True

    def compare(items: Rows) -> Similarities:
        cosines = (vectors[items] / lengths[items, None]) @ vectors.T / lengths
        return np.where(is_trained[items, None] & is_trained, cosines, -np.inf)

    return compare


def _shared_users(state: State, items: Rows, min_shared: int, max_users: int | None) -> Callable[[Rows], Similarities]:
    """Some of these items (A,) → (A, n_items) the cosines of their sets of users; −∞ for too few common users."""
    n_items, seen, keys = state.history.n_items, state.history.pairs, state.history.pairs.keys
    of_pairs = keys & _ITEM_BITS
    n_users = np.bincount(of_pairs, minlength=n_items).astype(np.float64)
    is_wanted = np.zeros(len(state.item_ids), np.bool_)
    is_wanted[items] = True
    wanted = is_wanted[of_pairs]
    users, of_wanted = keys[wanted] >> 32, of_pairs[wanted]
    order = np.argsort(of_wanted, kind="stable")
    users, of_wanted = users[order], of_wanted[order]

    def compare(items: Rows) -> Similarities:
        similarity = np.full((len(items), len(state.item_ids)), -np.inf)
        for place, item in enumerate(items):
            start, end = np.searchsorted(of_wanted, [item, item + 1])
            step = 1 if max_users is None else max(1, -(-(end - start) // max_users))
            _, of_both = seen.lists(users[start:end:step])
            shared = np.bincount(of_both, minlength=n_items)
            is_enough, shared = shared >= min_shared, shared * step
            cosines = shared / np.sqrt(np.maximum(n_users[item] * n_users, 1))
            similarity[place, :n_items] = np.where(is_enough, cosines, -np.inf)
        return similarity

    return compare
