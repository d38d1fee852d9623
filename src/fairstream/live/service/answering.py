"""What answers: a model and what has happened since it learned, held by one reference."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from fairstream.live.recent import Recent
from fairstream.live.serving import Served

_WARM_UP = 50
_QUICK = 0.001
"""Seconds that a list may take where other requests wait for it."""


class Answering(NamedTuple):
    """Whoever has taken this reference answers from one model alone, whatever is promoted meanwhile."""

    served: Served
    recent: Recent
    is_quick: bool
    """A list is made so fast that handing it to another thread would take longer."""

    def json(self, user_id: str, k: int) -> str:
        """The answer to one user."""
        served = self.served
        ranked = served.ranked(user_id, k)
        had = self.recent.of(user_id, ranked.row)
        if len(had):
            ranked, places = served.choose(user_id, k, had)
            chosen = [ranked.pieces[at] for at in places]
        else:
            chosen = ranked.pieces[:k]
        return (
            f'{{"user_id":{json.dumps(user_id)},"model":"{served.id}","source":"{ranked.source}",'
            f'"items":[{",".join(chosen)}]}}'
        )

    def can_answer_at_once(self, user_id: str) -> bool:
        """Whether the answer is no more than a look at what is there already."""
        return self.is_quick or self.served.kept(user_id) is not None


def warm(served: Served, recent: Recent) -> Answering:
    """Let a model make some lists before anyone waits for them, so that nothing is compiled or paged in later."""
    k = min(20, served.n_items)
    users = served.users.ids[:_WARM_UP].to_pylist()
    for user in users:
        served.answer(user, k)
    served.answer("", k)  # a stranger
    begin = time.perf_counter()
    for row in range(len(users)):
        served.rank(row, k)
    seconds = (time.perf_counter() - begin) / max(1, len(users))
    answering = Answering(served, recent, seconds < _QUICK)
    answering.json("", k)
    return answering
