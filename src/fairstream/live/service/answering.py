"""What answers: a model and what has happened since it learned, held by one reference."""

from __future__ import annotations

import time
from json.encoder import encode_basestring_ascii as quoted
from statistics import median
from typing import NamedTuple

from fairstream.live.recent import Recent
from fairstream.live.serving import Served

_WARM_UP = 50
_TAKEN_OVER = 1000
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
        kept = served.kept(user_id)
        row = served.row_of(user_id) if kept is None else kept.row
        ranked, places = served.choose(user_id, row, k, self.recent.of(user_id, row))
        pieces = ranked.pieces
        chosen = pieces[: len(places)] if isinstance(places, range) else [pieces[at] for at in places]
        return (
            f'{{"user_id":{quoted(user_id)},"model":"{served.id}","source":"{ranked.source}",'
            f'"items":[{",".join(chosen)}]}}'
        )

    def can_answer_at_once(self, user_id: str) -> bool:
        """Whether the answer is no more than a look at what is there already."""
        return self.is_quick or self.served.kept(user_id) is not None


def warm(served: Served, recent: Recent, before: Answering | None) -> Answering:
    """Let a model make lists before anyone waits for them.

    Nothing is compiled or paged in later, and whoever asked lately finds a list that is made.
    """
    users = served.users.ids[:_WARM_UP].to_pylist()
    seconds = [_timed(served, row) for row in range(len(users)) for _ in range(2)]
    answering = Answering(served, recent, median(seconds or [0.0]) < _QUICK)
    for user in [*users, "", *(before.served.asked_lately(_TAKEN_OVER) if before is not None else ())]:
        answering.json(user, 20)
    return answering


def _timed(served: Served, row: int) -> float:
    begin = time.perf_counter()
    served.rank(row, 20)
    return time.perf_counter() - begin
