"""A recommender that keeps up with new events and stays fair while it does."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairstream._version import __version__
from fairstream.data import (
    Columns,
    Groups,
    Vocabulary,
    id_column,
    read_events,
    read_more_events,
)
from fairstream.data.groups import UNKNOWN, read_more_groups
from fairstream.data.tables import to_table
from fairstream.errors import CheckpointError, ConfigurationError, DataError
from fairstream.evaluation import Evaluation, Evaluator, Protocol
from fairstream.methods import METHODS, MethodConfig, make_learner
from fairstream.models import Scorer, ScorerFactory
from fairstream.randomness import Randomness
from fairstream.recommender.answering import recommendations
from fairstream.recommender.checkpoint import (
    read_checkpoint,
    vocabulary_from_tensors,
    vocabulary_tensors,
    write_checkpoint,
)
from fairstream.recommender.packing import packed_manifest, packed_tensors, unpack_learner, unpacked_groups
from fairstream.recommender.placing import NewEvents, as_event_log
from fairstream.recommender.standing import Standing
from fairstream.strategies import Learner, Update
from fairstream.training import OnEpoch, RuntimeConfig, Tensors


class FairRecommender:
    """Fit once, update with every period's new events, recommend at any time.

    `model` is "mf", "ncf", or a function (n_users, n_items) → `Scorer` of your own; further
    options are the fields of `MethodConfig` (method, fairness_weight, update_epochs …). Users
    and items simply appear: nothing has to be known ahead.

    >>> from fairstream import synthetic_stream, read_events
    >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
    >>> first, later = stream.events.slice(0, 1500), stream.events.slice(1500)
    >>> rec = FairRecommender(fairness_weight=0.5, pretrain_epochs=2, update_epochs=2, device="cpu")
    >>> rec.fit(read_events(first, users=stream.users)).step
    <Step.RETRAIN: 'retrain'>
    >>> judged = rec.disparity(later)
    >>> sorted(judged["ndcg@20"].by_group)
    ['majority', 'minority']
    >>> rec.update(later).step
    <Step.FINE_TUNE: 'fine-tune'>
    >>> rec.recommend(later["user_id"][:2], k=5).column_names
    ['user_id', 'item_id', 'rank', 'score', 'source']
    """

    def __init__(
        self,
        model: str | ScorerFactory = "mf",
        *,
        seed: int = 0,
        device: str = "auto",
        engine: str = "auto",
        **options: Any,
    ) -> None:
        self._factory: ScorerFactory | None = model if callable(model) else None
        self.config = MethodConfig(model="custom" if callable(model) else model, **options)
        if METHODS[self.config.method].reranks:
            raise ConfigurationError(
                f"{self.config.method} chooses the lists of all users together, so it is a method of experiments "
                f"(fairstream.run, `fairstream run`); give a recommender another method"
            )
        surroundings = RuntimeConfig(seed=seed, device=device, engine=engine)
        self._device, self._engine = surroundings.torch_device(), surroundings.engine
        self._randomness = Randomness(surroundings.seed)
        self._learner: Learner | None = None
        self._users, self._items = Vocabulary(), Vocabulary()
        self._groups: Groups | None = None
        self._columns = Columns()
        self._new_learner()  # what cannot be honoured is said now, not at the first fit

    # ── learning ─────────────────────────────────────────────────────────────────────────

    def fit(self, events: Any, *, users: Any = None, on_epoch: OnEpoch | None = None) -> Update:
        """Train from scratch on `events` (an `EventLog`, or what `read_events` takes)."""
        log = as_event_log(events, users) or read_events(events, users=users)
        groups = log.require_groups()
        learner = self._new_learner()
        update = learner.fit(log.users, log.items, groups, on_epoch)
        self._learner, self._users, self._items = learner, log.user_ids.copy().indexed(), log.item_ids.copy().indexed()
        self._groups, self._columns = groups, log.columns
        return update

    def update(self, events: Any, *, users: Any = None, on_epoch: OnEpoch | None = None) -> Update:
        """Learn from new events, by fine-tuning unless the method says otherwise.

        Tables are read as the fitted ones were: the same columns, the same ratings. Users that
        are new need a row in `users` to have a group; without one they are learned from but have
        no part in the fairness loss. (user, item) pairs known already are left out. An update
        that fails or is interrupted leaves everything as it was.
        """
        learner, _ = self._fitted()
        new = self._placed(events, users)
        if len(new.users) == 0:
            raise DataError("there is nothing to learn: every one of these events is known already")
        groups, quality = new.groups, None
        if learner.strategy.needs_quality or groups.choice == "auto":
            k = min(20, learner.known.n_items)
            main = self._judge(new, k=k).slices["warm_users"][f"ndcg@{k}"]
            quality = main.overall
            groups = groups.with_ahead(main.ahead, judged=main.gaps) if groups.choice == "auto" else groups
        update = learner.update(new.users, new.items, groups, quality, on_epoch)
        self._users, self._items, self._groups = new.user_ids, new.item_ids, groups
        return update

    def observe(self, events: Any, *, users: Any = None) -> None:
        """Take note of new events without learning from them: what users have had is not recommended to them."""
        learner, _ = self._fitted()
        new = self._placed(events, users)
        if len(new.users):
            learner.observe(new.users, new.items, new.groups)
            self._users, self._items, self._groups = new.user_ids, new.item_ids, new.groups

    def forget(self, user_id: Any) -> bool:
        """Take out a user's id, group, events and rows, and every trace of them in the optimizer.

        Gives whether the user was known. What others' rows have learned beside this user's stays.
        """
        learner, groups = self._fitted()
        (row,) = self._users.lookup(id_column([user_id])).tolist()
        if row < 0:
            return False
        learner.forget(row)
        self._users = self._users.without(row).indexed()
        self._groups = replace(groups, codes=np.delete(groups.codes, row))
        return True

    def set_groups(self, users: Any) -> None:
        """Say of all users who is in which group, where a checkpoint was saved without; unnamed ones have none."""
        _, groups = self._fitted()
        told = read_more_groups(self._users.ids, to_table(users, what="the users"), self._columns, groups)
        if told is None:
            raise DataError(f"the users have no column {groups.attribute!r}, which makes the groups")
        self._groups = told

    # ── serving ──────────────────────────────────────────────────────────────────────────

    def recommend(self, user_ids: Any, k: int = 20) -> pa.Table:
        """The k best items for each user, less what it has had: user_id, item_id, rank, score, source.

        The source is "model", or "popularity" for users of whom no event has been seen: they get
        what has been popular lately. A user who has had nearly everything gets fewer than k.
        """
        learner, _ = self._fitted()
        return recommendations(learner, self._users, self._items, id_column(user_ids), k)

    def disparity(
        self, events: Any, *, users: Any = None, k: int = 20, min_group_size: int = 20, n_resamples: int = 1000
    ) -> Evaluation:
        """Each group's quality and the signed PD on `events` with its uncertainty, by `strict`.

        Ask before `update`: events that the model has learned from cannot judge it. Groups with
        fewer than `min_group_size` tested users are set aside.
        """
        new = self._placed(events, users)
        if len(new.users) == 0:
            raise DataError("the model has learned from every one of these events already; judge it on new ones")
        return self._judge(new, k=k, min_group_size=min_group_size, n_resamples=n_resamples)

    # ── keeping ──────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, with_groups: bool = True) -> None:
        """Write a checkpoint: after `load`, every update gives bit for bit what it would have given.

        Without groups nobody's is in it, and `tell_groups` has to say them again.
        """
        learner, groups = self._fitted()
        if not with_groups:
            groups = replace(groups, codes=np.full_like(groups.codes, UNKNOWN))
        manifest = {
            "fairstream": __version__,
            "config": self.config.model_dump(),
            "seed": self._randomness.seed,
            "device": self._device.type,
            "engine": self._engine,
            "columns": asdict(self._columns),
            **packed_manifest(learner, groups),
        }
        tensors = packed_tensors(learner, groups)
        tensors |= vocabulary_tensors("users", self._users) | vocabulary_tensors("items", self._items)
        write_checkpoint(Path(path), manifest, tensors)

    @classmethod
    def load(
        cls, path: str | Path, *, model: ScorerFactory | None = None, device: str | None = None, **changed: Any
    ) -> FairRecommender:
        """Read a checkpoint, onto the device that it was saved from unless another one is named.

        One with a model of your own needs its constructor again as `model`. What else is given are
        options that are to be others from now on (fairness_weight, update_epochs …).
        """
        manifest, tensors = read_checkpoint(Path(path))
        place = RuntimeConfig(device=device or manifest.get("device", "auto"))
        place.torch_device()  # a device that is not there is no fault of the checkpoint
        try:
            options = {**manifest["config"], **changed}
            name = options.pop("model")
            if (name == "custom") != (model is not None):
                wanted = (
                    "a model of your own: pass its constructor" if model is None else f"{name}: do not pass a model"
                )
                raise CheckpointError(f"{path} was saved with {wanted}")
            engine = manifest.get("engine", "auto")
            recommender = cls(model or name, seed=manifest["seed"], device=place.device, engine=engine, **options)
            recommender._restore(manifest, tensors)
        except RuntimeError:  # PyTorch's word for tensors of other names or shapes
            raise CheckpointError(f"{path} does not fit this model: their tensors differ in names or shapes") from None
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged: its manifest is not what fairstream writes ({error})") from None
        return recommender

    def _restore(self, manifest: dict[str, Any], tensors: Tensors) -> None:
        self._users, self._items = (vocabulary_from_tensors(name, tensors).indexed() for name in ("users", "items"))
        self._columns, self._groups = Columns(**manifest["columns"]), unpacked_groups(manifest, tensors)
        learner = self._new_learner()
        unpack_learner(learner, manifest, tensors)
        self._learner = learner

    # ── inside ───────────────────────────────────────────────────────────────────────────

    @property
    def model(self) -> Scorer:
        """The model in service."""
        return self._fitted()[0].model

    @property
    def standing(self) -> Standing:
        """What answers are made from, for a service that makes them one at a time."""
        learner, _ = self._fitted()
        return Standing(learner.model, learner.known, learner.n_learned_users, self._users, self._items)

    def _new_learner(self) -> Learner:
        return make_learner(
            self.config,
            factory=self._factory,
            randomness=self._randomness,
            device=self._device,
            engine=self._engine,
        )

    def _fitted(self) -> tuple[Learner, Groups]:
        if self._learner is None or self._groups is None:
            raise ConfigurationError("this recommender has not been fitted yet; call fit(events) first")
        return self._learner, self._groups

    def _placed(self, events: Any, users: Any) -> NewEvents:
        """The events that are not known yet, in this recommender's rows; changes nothing."""
        learner, groups = self._fitted()
        log = as_event_log(events, users) or read_more_events(events, groups, self._columns, users=users)
        return NewEvents.of(log, learner.known.seen, self._users, self._items, groups)

    def _judge(self, new: NewEvents, *, k: int, min_group_size: int = 1, n_resamples: int = 0) -> Evaluation:
        learner, _ = self._fitted()
        judge = Evaluator(Protocol.named("strict"), k, new.groups, self._randomness, min_group_size, n_resamples)
        return judge.judge(
            learner.model,
            new.users,
            new.items,
            known=learner.known,
            t=learner.t,
            n_learned_users=learner.n_learned_users,
        )


def load(
    path: str | Path, *, model: ScorerFactory | None = None, device: str | None = None, **changed: Any
) -> FairRecommender:
    """Read what `FairRecommender.save` wrote; see `FairRecommender.load`.

    >>> import tempfile
    >>> from fairstream import read_events, synthetic_stream
    >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
    >>> rec = FairRecommender(pretrain_epochs=1, device="cpu")
    >>> _ = rec.fit(stream.events, users=stream.users)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rec.save(folder)
    ...     again = load(folder)
    >>> users = stream.events["user_id"][:3]
    >>> again.recommend(users) == rec.recommend(users)
    True
    """
    return FairRecommender.load(path, model=model, device=device, **changed)
