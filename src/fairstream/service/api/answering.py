"""What answers: a model and what has happened since it learned, held by one reference."""

from __future__ import annotations

import time
from json.encoder import encode_basestring_ascii as quoted
from statistics import median
from typing import NamedTuple

from fairstream.data import Rows
from fairstream.service.recent import Recent
from fairstream.service.serving import Ranked, Served, places

_WARM_UP = 50
_TAKE_OVER_SECONDS = 2.0
_POLITE_SECONDS = 0.0005
"""Between two lists the requests that come in have their turn."""
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
        had = self.recent.of(user_id, row)
        ranked = served.ranked(user_id, row, k + len(had))
        question, written = (k, had.tobytes()), ranked.written
        if written is None or written[0] != question:
            written = ranked.written = question, self._written(ranked, k, had)
        return f'{{"user_id":{quoted(user_id)},{written[1]}'

    def _written(self, ranked: Ranked, k: int, had: Rows) -> str:
        """All of an answer but who it is for; nine digits are what tells two scores apart."""
        name, rows, scores = self.served.name, ranked.rows, ranked.scores
        items = ",".join(
            f'{{"item_id":{quoted(name(rows[at]))},"score":{scores[at]:.9g}}}' for at in places(ranked, k, had)
        )
        return f'"model":"{self.served.id}","source":"{ranked.source}","items":[{items}]}}'

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
    for user in [*users, ""]:
        answering.json(user, 20)
    if before is not None:
        _take_over(before.served, answering)
    return answering


def _take_over(before: Served, answering: Answering) -> None:
    end = time.monotonic() + _TAKE_OVER_SECONDS
    for user in before.asked_lately():
        if time.monotonic() > end:
            return
        answering.json(user, 20)
        time.sleep(_POLITE_SECONDS)


def _timed(served: Served, row: int) -> float:
    begin = time.perf_counter()
    served.rank(row, 20)
    return time.perf_counter() - begin
