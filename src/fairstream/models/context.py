"""The context of a score: what a model may know about a user in training, evaluation and serving."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairstream.data import History, Rows
from fairstream.models.levels import Tilt
from fairstream.periods import minutes_of

if TYPE_CHECKING:
    from fairstream.models.scorer import Scorer

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Task = Literal["event", "next"]
TASKS: tuple[Task, ...] = ("event", "next")
"""What a list predicts: the user's very next event, or all events of the user in the next period."""


@dataclass(frozen=True, eq=False)
class Context:
    """What the model may know about B users, each at the moment of the score."""

    history: Tensor | None = None
    """(B, L) the user's latest items before that moment, in chronological order, padded with −1 at the front."""
    n_events: Tensor | None = None
    """(B,) the number of the user's events so far."""
    times: Tensor | None = None
    """(B, L + 1) whole minutes since 1970: of the events in `history`, then of the request; −1 where unknown. None
    unless the model reads times."""
    is_trained: Tensor | None = None
    """(B,) whether the model has been trained on the user."""
    task: Task = "event"


NO_CONTEXT = Context()


@dataclass(frozen=True, eq=False)
class ContextBuilder:
    """Builds the contexts of one model from one history.

    Training, evaluation and serving use the same builder, so none of them can leak the future to the model.
    """

    history_length: int  # how many of the user's latest items the model reads; 0: none
    history: History  # all events that the model may know
    trained: Mask | None = None  # (n_users,) whether the model has been trained on each user
    device: torch.device | str = "cpu"
    items: Rows | None = None  # the sorted rows of the items that the model can score; None: all of them
    observed: History | None = None  # a longer history to read latest items from; its later events are not learned
    task: Task = "event"
    tilt: Tilt | None = None  # (n_items,) of the level in force, for lists; None: no level
    reads_times: bool = False  # whether the model reads the times of events and requests
    now: float | None = None  # the time of the requests in seconds since 1970; None: of the latest known event

    def observing(self, history: History) -> ContextBuilder:
        """Return a builder that reads latest items from a longer history; the trained users stay the same."""
        return replace(self, observed=history)

    @property
    def _known(self) -> History:
        return self.history if self.observed is None else self.observed

    def index(self) -> None:
        """Sort the events now, so that copies of this builder need not."""
        if self.history_length:
            self._known.index()

    @property
    def n_items(self) -> int:
        return self.history.n_items

    @property
    def scorable_items(self) -> Rows:
        """The sorted rows of the items that the model can score."""
        return np.arange(self.n_items) if self.items is None else self.items

    def at(self, users: Rows, before: Rows | None = None, seconds: Floats | None = None) -> Context:
        """Return the context of each of `users`, as of the event at position `before` (None: as of now).

        The time of a request is that of `seconds` (B,) since 1970, else `now`, else that of the event at `before`.
        """
        if not self.history_length:
            return NO_CONTEXT if self.task == NO_CONTEXT.task else Context(task=self.task)
        places, counts = self._known.latest_positions(users, self.history_length, before)
        latest = self._known.items_of_events(places)
        history, n_events = (torch.as_tensor(part, device=self.device) for part in (latest, counts))
        times = None
        if self.reads_times:
            request = self._request_minutes(before, seconds, len(users))
            both = np.column_stack([self._known.minutes_of_events(places), request])
            times = torch.as_tensor(both, device=self.device)
        return Context(history, n_events, times, task=self.task)

    def _request_minutes(self, before: Rows | None, seconds: Floats | None, n: int) -> Rows:
        if seconds is None and self.now is None and before is not None:
            return self._known.minutes_of_events(before)
        now = self._known.latest_time() if self.now is None else self.now
        return minutes_of(np.full(n, now) if seconds is None else seconds)

    def can_score(self, model: Scorer, users: Rows, before: Rows | None = None) -> Mask:
        """Return whether the model can score each of `users`, as of the moments of `at`; others get the fallback."""
        is_trained, n_events = np.zeros(len(users), np.bool_), None
        if self.trained is not None:
            has_row = (users >= 0) & (users < len(self.trained))
            is_trained[has_row] = self.trained[users[has_row]]
        if self.history_length:
            n_events = torch.from_numpy(self._known.n_events_of(users, before))
        context = Context(n_events=n_events, is_trained=torch.from_numpy(is_trained))
        mask: Mask = model.can_score(context).cpu().numpy()
        return mask
