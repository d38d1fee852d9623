"""From users to the lists that they get."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fairstream.data import Vocabulary
from fairstream.errors import ConfigurationError
from fairstream.evaluation import best_items
from fairstream.models import Popularity
from fairstream.strategies import Learner


def recommendations(learner: Learner, users: Vocabulary, items: Vocabulary, wanted: pa.Array, k: int) -> pa.Table:
    """The k best items for each of the wanted users: user_id, item_id, rank, score, source."""
    known = learner.known
    rows = users.lookup(wanted)
    if not isinstance(k, int) or not 1 <= k <= known.n_items:
        raise ConfigurationError(f"k must be between 1 and the number of known items, {known.n_items}, got {k}")
    by_model = (rows >= 0) & (rows < learner.n_learned_users)
    rows = np.where(rows < 0, known.n_users, rows)  # a row that has had nothing
    scores, best = np.empty((len(rows), k)), np.empty((len(rows), k), np.int64)
    for chosen, is_fallback in ((by_model, False), (~by_model, True)):
        if chosen.any():
            # The popularity walks through all events, so it is asked for only where it is needed.
            model = Popularity(known.popularity(), n_items=known.n_items) if is_fallback else learner.model
            scores[chosen], best[chosen] = best_items(model, rows[chosen], known.seen, n_items=known.n_items, k=k)
    there = np.isfinite(scores)
    user, rank = np.nonzero(there)
    return pa.table(
        {
            "user_id": wanted.take(user),
            "item_id": items.ids.take(best[there]),
            "rank": rank + 1,
            "score": scores[there].astype(np.float32),
            "source": pa.array(np.where(by_model, "model", "popularity")[user]),
        }
    )
