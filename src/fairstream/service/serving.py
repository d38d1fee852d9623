"""The models that answer: the one in service, and the second of an experiment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from json import dumps
from secrets import randbits
from threading import Lock
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from fairstream.data.catalogue import Catalogue
from fairstream.errors import FairstreamError
from fairstream.service.arms import Arms, encode, interleave
from fairstream.service.database import now
from fairstream.service.impressions import ShownInVain
from fairstream.service.lists import Ask
from fairstream.service.rules import NO_RULES, Rules
from fairstream.service.serving_model import ServingModel
from fairstream.service.settings import EventKinds, Impressions

ServedBy = Literal["model", "earlier model", "popularity"]
_KINDS, _IMPRESSIONS = EventKinds(), Impressions()


class NotReadyError(FairstreamError):
    """No model has been loaded yet."""


class ServingStatus(NamedTuple):
    """The model that answers, and its problem."""

    model: str | None
    source: ServedBy | None  # None: nothing is loaded yet
    problem: str | None  # why the lists are not those of the model in service and all events, if so
    events_behind: int  # events in the database that the lists do not reflect yet
    ready: bool  # whether there are lists


class Serving:
    """The serving model; a `Follower` replaces it when another one is promoted.

    >>> from fairstream.service.ranking import popularity_of
    >>> serving = Serving()
    >>> serving.status().ready
    False
    >>> events = pa.table({"user_id": ["ann", "bob", "bob"], "item_id": ["tea", "tea", "jam"], "time": [1, 2, 3]})
    >>> serving.use(ServingModel(popularity_of(events), None), "popularity")
    >>> serving.current.recommend("ann", Ask(2)).items
    ['jam']
    >>> serving.set_shop(Catalogue.of({}).updated(["jam"], [False], [{}]))
    >>> serving.current.json("carl", Ask(2))
    b'{"user_id":"carl","model":null,"source":"popularity","items":[{"item_id":"tea","score":null}]}'
    """

    def __init__(self, kinds: EventKinds = _KINDS, impressions: Impressions = _IMPRESSIONS) -> None:
        self._kinds, self.shown = kinds, ShownInVain(impressions)
        self._disliked: dict[str, frozenset[str]] = {}
        self._catalogue, self._rules = Catalogue.of({}), NO_RULES
        self._current: ServingModel | None = None
        self._served_by: ServedBy | None = None
        self.experiment: tuple[Arms, ServingModel] | None = None
        """The running experiment, and the model of its arm B."""
        self._lock = Lock()
        self._problem: str | None = "nothing has been loaded yet; try again in a few seconds"
        self._shop_problem: str | None = None
        self.stale_reason: str | None = None  # a sentence, where the database cannot be read
        self.events_behind = 0

    @property
    def current(self) -> ServingModel:
        """The model that answers now; keep the reference to get lists of one model."""
        if self._current is None:
            raise NotReadyError(self.stale_reason or self._problem)
        return self._current

    def of(self, user_id: str) -> ServingModel:
        """Return the model that answers a user, in an experiment that of the user's arm."""
        experiment = self.experiment  # which another thread may end meanwhile
        if experiment is not None and experiment[0].mode == "split" and experiment[0].arm_of(user_id) == "B":
            return experiment[1]
        return self.current

    def cached_json(self, user_id: str, ask: Ask) -> bytes | None:
        """Return a list as JSON if it is in the cache."""
        return None if self._interleaved(user_id, ask) else self.of(user_id).cached_json(user_id, ask)

    def json(self, user_id: str, ask: Ask) -> bytes:
        """Return a list as JSON, of one model or interleaved."""
        experiment = self._interleaved(user_id, ask)
        if experiment is None:
            return self.of(user_id).json(user_id, ask)
        arms, second = experiment
        a, b = (model.recommend(user_id, ask) for model in (self.current, second))
        entries = interleave(a.items, b.items, ask.k, b_first=bool(randbits(1)))
        source = "model" if "model" in (a.source, b.source) else "popularity"
        items = [{"item_id": item, "score": None} for item, _, _ in entries]
        body = {"list_id": encode(arms.id, entries), "user_id": user_id, "model": arms.both, "source": source}
        return dumps(body | {"items": items}, separators=(",", ":")).encode()

    def _interleaved(self, user_id: str, ask: Ask) -> tuple[Arms, ServingModel] | None:
        """Return the experiment that interleaves a list, if one does; a list with reasons is of one model."""
        experiment = None if ask.explain else self.experiment
        if experiment is None or experiment[0].mode != "interleave" or not experiment[0].arm_of(user_id):
            return None
        return experiment

    def make_lists(self, user_ids: Iterable[str], k: int) -> None:
        """Compute the missing lists of these users, many at once."""
        users: dict[ServingModel, list[str]] = {}
        for user_id in user_ids:
            users.setdefault(self.of(user_id), []).append(user_id)
        for model, own in users.items():
            model.make_lists(own, k)

    def stored(self, events: pa.Table) -> None:
        """Add stored events (user_id, item_id, time) at once."""
        chosen = self.choices(events)
        for model in self.models():
            model.add(chosen)

    def choices(self, events: pa.Table) -> pa.Table:
        """Note negative feedback; return the other events that count, and which of their items may come back."""
        if self.shown:
            self.shown.reacted(events["user_id"].to_pylist(), events["item_id"].to_pylist())
        if "kind" not in events.column_names:
            return events
        kinds = events["kind"].to_pylist()
        weights = np.array([self._kinds.kinds.get(kind, 1.0) for kind in kinds])  # 1: not configured any more
        disliked = events.filter(pa.array(weights < 0))
        self.dislike(zip(disliked["user_id"].to_pylist(), disliked["item_id"].to_pylist(), strict=True))
        if self._kinds.repeats:
            events = events.append_column("returns", pa.array([kind in self._kinds.repeats for kind in kinds]))
        return events.filter(pa.array(weights > 0))

    def dislike(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Leave items out of all lists of a user from now on."""
        with self._lock:
            for user, item in pairs:
                self._disliked[user] = self._disliked.get(user, frozenset()) | {item}

    def users(self) -> set[str]:
        """Return the users of whom something is known apart from the model."""
        with self._lock:
            return {*self._disliked, *self.shown.users()}

    def set_shop(self, catalogue: Catalogue, rules: Rules = NO_RULES, problem: str | None = None) -> None:
        """Use another catalogue and other rules; `problem` says what is wrong with them."""
        with self._lock:
            self._catalogue, self._rules, self._shop_problem = catalogue, rules, problem
            for model in self.models():
                model.set_shop(catalogue, rules)

    def forget(self, user_ids: Collection[str], *others: ServingModel) -> None:
        """Treat users as strangers in all models and these others, and drop their feedback."""
        self.shown.forget(user_ids)
        with self._lock:
            for user in user_ids:
                self._disliked.pop(user, None)
        for model in (*self.models(), *others):
            model.forget(user_ids)

    def prepare(self, model: ServingModel) -> None:
        """Give a model the catalogue, the rules and the feedback."""
        model.left_out = self._left_out
        model.set_shop(self._catalogue, self._rules)

    def use(self, model: ServingModel, served_by: ServedBy, problem: str | None = None) -> None:
        """Answer from a model from now on."""
        with self._lock:  # no change of the catalogue misses the model
            self.prepare(model)
            self._current, self._served_by, self._problem = model, served_by, problem

    def use_second(self, arms: Arms, model: ServingModel) -> None:
        """Begin an experiment with a model for arm B."""
        with self._lock:
            self.prepare(model)
            self.experiment = arms, model

    def status(self) -> ServingStatus:
        """Return the model that answers, and the most important problem."""
        current = self._current
        shortage = None if current is None else current.shortage()
        problem = self.stale_reason or self._problem or self._shop_problem or shortage
        model = None if current is None else current.id
        return ServingStatus(model, self._served_by, problem, self.events_behind, current is not None)

    def models(self) -> list[ServingModel]:
        """Return every model that answers."""
        models = self._current, *(self.experiment or ())[1:]
        return [model for model in models if model is not None]

    def _left_out(self, user_id: str) -> Collection[str]:
        disliked, avoided = self._disliked.get(user_id, ()), self.shown.avoided_by(user_id, now())
        return (*disliked, *avoided) if avoided else disliked
