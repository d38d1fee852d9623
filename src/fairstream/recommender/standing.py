"""What a fitted recommender stands on."""

from __future__ import annotations

from typing import NamedTuple

from fairstream.data import History, Vocabulary
from fairstream.models import Scorer


class Standing(NamedTuple):
    """The model, what it knows, and the ids of its rows; not to be changed."""

    model: Scorer
    known: History
    n_learned_users: int
    user_ids: Vocabulary
    item_ids: Vocabulary
