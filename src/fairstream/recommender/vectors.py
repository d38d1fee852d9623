"""What a model knows as vectors: exported for an index, and compared with each other."""

from __future__ import annotations

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
Floats = np.ndarray[Any, np.dtype[np.float32]]


def similar_items(state: State, ids: pa.Array, k: int) -> pa.Table:
    """The k items that are most like each of the known items among `ids`, never the item itself."""
    ids = ids if len(ids) else state.item_ids.ids[:0]
    rows = state.item_ids.lookup(ids)
    is_known = rows >= 0
    items = rows[is_known]
    vectors = _item_vectors(state)
    if vectors is None:
        source, likeness = "histories", _shared_users(state, items)
    else:
        source, unit = "vectors", vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        likeness = unit[items] @ unit.T
        if (scorable := state.contexts.items) is not None:  # no vector means anything that was not trained
            has_vector = np.isin(np.arange(len(unit)), scorable)
            likeness[:, ~has_vector] = -np.inf
            likeness[~has_vector[items]] = -np.inf
    likeness[np.arange(len(items)), items] = -np.inf
    if vectors is None:
        likeness[likeness <= 0] = -np.inf  # nobody has had both
    k = min(k, likeness.shape[1])
    best = np.argsort(-likeness, axis=1, kind="stable")[:, :k]
    scores = np.take_along_axis(likeness, best, axis=1)
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


def _shared_users(state: State, items: Rows) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(A, n_items) the cosine of who has had them: users of both over the root of the product of either's users."""
    n_items, seen = state.history.n_items, state.history.seen
    users, had = seen.users, seen.items
    n_users = np.bincount(had, minlength=n_items).astype(np.float64)
    likeness = np.zeros((len(items), len(state.item_ids)))
    for place, item in enumerate(items):
        _, of_both = seen.lists(users[had == item])
        shared = np.bincount(of_both, minlength=n_items)
        likeness[place, :n_items] = shared / np.sqrt(np.maximum(n_users[item] * n_users, 1))
    return likeness
