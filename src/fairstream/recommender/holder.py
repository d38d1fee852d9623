"""Holds the serving state: readers in any thread, one update at a time, and events observed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, RLock

from fairstream.data import EventLog
from fairstream.errors import ConfigurationError
from fairstream.recommender.state import NewEvents, State
from fairstream.recommender.trainer import Candidate, Trainer, Update

Observed = tuple[EventLog, bool]  # the events of one `observe`, and whether an update will learn them


class StateHolder:
    """Replaces one immutable state by the next; a failed transition changes nothing."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state  # None until the first fit
        # Locks are taken in this order. `observing` takes the second alone, so that it does not wait for training.
        self._writing = RLock()  # one fit, update, forget, retain … at a time
        self._observing = RLock()  # held from reading the serving state until its successor replaces it
        self._observed: list[Observed] | None = None  # during an update, the events observed since it began
        self._swapping = Lock()  # guards the state and the number of its readers
        self._n_readers = 0

    def __reduce__(self) -> tuple[type[StateHolder], tuple[State | None]]:
        """A copy shares the state, which never changes, and has its own locks."""
        with self._swapping:
            return StateHolder, (self.state and self.state.share(),)

    @property
    def current(self) -> State:
        """The serving state; the next update may reuse its memory."""
        if self.state is None:
            raise ConfigurationError("this recommender has not been fitted yet; call fit(events) first")
        return self.state

    def share(self) -> State:
        """Return the serving state; no later update reuses its memory."""
        with self._swapping:
            return self.current.share()

    @contextmanager
    def reading(self) -> Iterator[State]:
        """Yield the serving state; no update reuses its memory inside the block."""
        with self._swapping:
            state = self.current
            self._n_readers += 1
        try:
            yield state
        finally:
            with self._swapping:
                self._n_readers -= 1

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._writing, self._observing:
            yield

    @contextmanager
    def observing(self) -> Iterator[State]:
        """Yield the serving state; inside the block only `record` may replace it, also during an update."""
        with self._observing:
            yield self.current

    @contextmanager
    def updating(self) -> Iterator[State]:
        """Yield the serving state; `commit` adds the events observed meanwhile to its successor."""
        with self._writing:
            with self._observing:
                state, self._observed = self.current, []
            try:
                yield state
            finally:
                with self._observing:
                    self._observed = None

    def replace(self, state: State | None) -> None:
        with self._swapping:
            self.state = state

    def record(self, state: State, observed: Observed) -> None:
        """Serve a state with observed events; a running update adds them to its result."""
        self.replace(state)
        if self._observed is not None:
            self._observed.append(observed)

    def commit(self, candidate: Candidate, before: State | None, trainer: Trainer) -> Update:
        """Serve the next state, with the events observed since `before`, by a single assignment."""
        with self._observing:
            if not self._observed:
                return self._commit_alone(candidate, before)
            early = list(self._observed)
        # The serving state shares memory with `before`, so the next one needs its own.
        following, update = candidate.commit(in_place=False)
        following = _observe(trainer, following, early)
        with self._observing:  # events that arrived since
            self.replace(_observe(trainer, following, self._observed[len(early) :]))
        return update

    def _commit_alone(self, candidate: Candidate, before: State | None) -> Update:
        """Serve the next state if nothing was observed, in the memory of `before` unless a reader uses it."""
        with self._swapping:
            in_place = before is not None and not before.memory_use.is_shared and self._n_readers == 0
            if in_place or before is None:
                try:
                    self.state, update = candidate.commit(in_place=in_place)
                except BaseException:
                    if self.state is not candidate.state:
                        candidate.undo()
                    raise
                return update
        following, update = candidate.commit(in_place=False)
        self.replace(following)
        return update


def _observe(trainer: Trainer, state: State, observed: Sequence[Observed]) -> State:
    for log, learn_later in observed:
        new = NewEvents.align(log, state)
        if len(new.users) or new.features is not state.features:
            state = trainer.observe(state, new, learn_later=learn_later)
    return state
