"""What a model knows as vectors: exported for an index, and compared with each other."""

from __future__ import annotations

from collections.abc import Callable
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
from fairstream.recommender.state import State

_USERS_AT_ONCE = 4096
_SCORES_AT_ONCE = 1 << 20
Floats = np.ndarray[Any, np.dtype[np.float32]]
Likeness = np.ndarray[Any, np.dtype[np.floating[Any]]]


def similar_items(state: State, ids: pa.Array, k: int) -> pa.Table:
    """The k items that are most like each of the known items among `ids`, never the item itself."""
    ids = ids if len(ids) else state.item_ids.ids[:0]
    rows = state.item_ids.lookup(ids)
    is_known = rows >= 0
    items = rows[is_known]
    vectors = _item_vectors(state)
    if vectors is None:
        source, likeness = "histories", _shared_users(state)
    else:
        source, likeness = "vectors", _cosines(vectors, state.contexts.items)
    n_items = len(state.item_ids) if vectors is None else len(vectors)
    at_once = max(1, _SCORES_AT_ONCE // max(1, n_items))
    blocks = [items[start : start + at_once] for start in range(0, max(1, len(items)), at_once)]
    best, scores = (
        np.concatenate(parts) for parts in zip(*(_best(likeness(rows), rows, k) for rows in blocks), strict=True)
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
    with torch.no_grad(), evaluating(state.model):
        for start in range(0, max(1, len(rows)), _USERS_AT_ONCE):
            users = rows[start : start + _USERS_AT_ONCE]
            both = state.model.vectors(torch.from_numpy(users).to(state.model.device), state.contexts.at(users))
            if both is None:
                raise ConfigurationError(
                    f"the scores of the model {model} are no inner products of vectors, so that an index has no use "
                    f"for them; export mf, gru or sasrec"
                )
            parts.append(both[0].detach().float().cpu().numpy())
            of_items = both[1].detach().float().cpu().numpy()
    assert of_items is not None
    tables = {
        "users": ("user_id", state.user_ids.ids.take(pa.array(rows)), np.concatenate(parts)),
        "items": ("item_id", state.item_ids.ids.take(pa.array(items)), of_items[items]),
    }
    try:
        if folder.exists() and any(folder.iterdir()):
            raise CheckpointError(f"{folder} holds something already; export into a new folder")
        with new_folder(folder) as being_written:
            for name, (column, ids, vectors) in tables.items():
                listed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
                table = pa.table({column: ids, "vector": listed})
                pyarrow.parquet.write_table(table, being_written / f"{name}.parquet")
                np.save(being_written / f"{name}.npy", vectors)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"the vectors could not be written to {folder}: {error.strerror or error}") from None


def _item_vectors(state: State) -> Floats | None:
    """(n_items, d) the vectors that the model scores with; None where it has none."""
    anybody: Rows = np.arange(min(1, state.history.n_users))
    with torch.no_grad(), evaluating(state.model):
        both = state.model.vectors(torch.from_numpy(anybody).to(state.model.device), state.contexts.at(anybody))
    return None if both is None else both[1].detach().float().cpu().numpy()


def _best(likeness: Likeness, items: Rows, k: int) -> tuple[Rows, Likeness]:
    """(A, n_items) → the k others that are most like each of the items, and how much: (A, k) each."""
    likeness[np.arange(len(items)), items] = -np.inf
    best = np.argsort(-likeness, axis=1, kind="stable")[:, :k].copy()  # a view would keep the whole block
    return best, np.take_along_axis(likeness, best, axis=1)


def _cosines(vectors: Floats, trained: Rows | None) -> Callable[[Rows], Likeness]:
    """Items (A,) → (A, n_items) the cosines of their vectors with those of all items; −∞ where one is not trained."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    is_trained = np.full(len(unit), trained is None)
    if trained is not None:
        is_trained[trained] = True

    def likeness(items: Rows) -> Likeness:
        return np.where(is_trained[items, None] & is_trained, unit[items] @ unit.T, -np.inf)

    return likeness


def _shared_users(state: State) -> Callable[[Rows], Likeness]:
    """Items (A,) → (A, n_items) the cosine of who has had them; −∞ where nobody has had both.

    That is users of both over the root of the product of either's users.
    """
    n_items, seen = state.history.n_items, state.history.seen
    n_users = np.bincount(seen.items, minlength=n_items).astype(np.float64)
    by_item, ends = seen.users[np.argsort(seen.items, kind="stable")], np.cumsum(n_users, dtype=np.int64)

    def likeness(items: Rows) -> Likeness:
        found = np.full((len(items), len(state.item_ids)), -np.inf)
        for place, item in enumerate(items):
            _, of_both = seen.lists(by_item[ends[item] - int(n_users[item]) : ends[item]])
            shared = np.bincount(of_both, minlength=n_items)
            cosines = shared / np.sqrt(np.maximum(n_users[item] * n_users, 1))
            found[place, :n_items] = np.where(shared > 0, cosines, -np.inf)
        return found

    return likeness
