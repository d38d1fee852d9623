"""A recommender that keeps up with new events and stays fair while it does."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Literal, NamedTuple, Self, get_args, overload

import numpy as np
import pyarrow as pa

from fairstream._version import __version__
from fairstream.cluster import Cluster
from fairstream.data import EventLog, Groups, read_events, read_more_events
from fairstream.data.groups import read_more_groups
from fairstream.data.inputs import to_table
from fairstream.display import Shown, Summary
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Evaluation, Evaluator, Metric, Protocol, resolve_metrics
from fairstream.evaluation.blocks import connected
from fairstream.methods import METHODS, MethodConfig, Parts, note_without_groups
from fairstream.models import TASKS, ContextBuilder, ModelFactory, Reads, RecentPopularity, Scorer, Task
from fairstream.objectives import FairnessLoss, Loss, Surrogate
from fairstream.randomness import Randomness
from fairstream.recommender.checkpoint import (
    read_checkpoint,
    read_state,
    saved_options,
    state_all_tensors,
    state_manifest,
    write_checkpoint,
)
from fairstream.recommender.frontier import Frontier
from fairstream.recommender.learning import Candidate, Learning, Update, note_on_undecided
from fairstream.recommender.levers import LeverName
from fairstream.recommender.lists import ListMaker, id_or_ids, users_in
from fairstream.recommender.past import OnProgress, log_of, measure_frontier
from fairstream.recommender.state import NewEvents, State
from fairstream.recommender.vectors import similar_items, write_vectors
from fairstream.reporting import report
from fairstream.strategies import MeasureGroups, Side, Strategy
from fairstream.threads import Threads, check_threads, inference_threads, limit_threads
from fairstream.training import EngineName, FairnessWeight, OnEpoch, RuntimeConfig, ScheduleName
from fairstream.training.distributed import ActorGroup

Metrics = Sequence[str] | Mapping[str, Metric]
_OWN_TO_EACH = ("_writing", "_observing", "_observed", "_swapping", "_n_readers")
"""What a copy does not share: locks, and who is reading."""
_RUN_OPTIONS = ("metrics", "seed", "device", "engine", "threads")
"""Options of the constructor that are not of the method."""


class _Observed(NamedTuple):
    """The events of one `observe`."""

    log: EventLog
    learn_later: bool


class FairRecommender(Shown):
    """Fit once, update with every period's new events, recommend at any time.

    A recommender is one immutable `State` that is replaced as a whole: `recommend`, `evaluate`
    and `save` can be called from any thread while another one updates, and an update that fails
    or is interrupted changes nothing.

    Parameters
    ----------
    model
        A registered name ("mf", "ncf", "item-item", "popularity", …), or a `Scorer` class or function
        (n_users, n_items) → `Scorer` of your own, `partial(SASRec, embedding_dim=128)` for one. A function is
        called with one user and one item to see what it makes.
    method
        Which method of the paper: "FADE" (fine-tuning with the fairness loss), "Finetune",
        "Retrain", … (see `METHODS`).
    loss
        Recommendation loss: a registered name ("bpr", "sampled-softmax", "softmax"), or a function
        of scores (B, 1 + n), with the positive in column 0, that returns a scalar.
    fairness
        Fairness loss in place of the method's: "signed", "absolute", "largest", "group-dro", "cvar", or a
        function of (scores, groups, signs).
    strategy
        What each update learns in place of the method's: "fine-tune", "retrain", "window",
        "replay", …, or a `Strategy` of your own.
    metrics
        What `evaluate` measures: names, or functions of your own by name (`{"coverage@20": f}`).
    fairness_weight
        λ, the weight of the fairness loss; 0 switches it off, "auto" computes it at every step (Proposition 1).
    max_disparity
        Instead of λ, the gap between any group and the rest that is accepted, in `disparity_metric` on
        `disparity_task`: each update measures it on the new period before learning it, and sets how much
        each group's events count. `notes` says what it did and why. `min_quality` and `max_group_loss` say
        what it may not cost; `group_weight` is where it starts.
    restart
        When a fine-tuning method retrains on everything: "on-degradation", once a test says that quality or a
        group's gap has become worse since the last time; "by-bound", once the bounds of the paper's theory say that
        fine-tuning has cost more than that; or, with `restart_every`, on a schedule. `notes` gives the reason of each
        decision, also of those against it.
    seed, device, engine
        Seed of every random draw; "auto", "cpu" or "cuda"; "auto", "reference" or "fused".
    threads
        How many of PyTorch's threads to use. "auto" takes as many as this process has cores, by its affinity and the
        CPU quota of its container, and for gradient descent at most half of them and 4. The limit holds inside the
        calls of this recommender alone; `torch.get_num_threads()` stays as it is.

    The remaining options are the fields of `MethodConfig`; None stands for what the model wants by default.

    Examples
    --------
    >>> from fairstream import synthetic_stream, read_events
    >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
    >>> first, later = stream.events.slice(0, 1500), stream.events.slice(1500)
    >>> rec = FairRecommender(fairness_weight=0.5, pretrain_epochs=2, update_epochs=2, device="cpu")
    >>> rec.fit(read_events(first, users=stream.users)).last_update.step
    'retrain'
    >>> sorted(rec.evaluate(later)["ndcg@20"].by_group)
    ['majority', 'minority']
    >>> rec.update(later).last_update.step
    'fine-tune'
    >>> rec.recommend(later["user_id"][:2], k=5).column_names
    ['user_id', 'item_id', 'rank', 'score', 'source']

    """

    def __init__(
        self,
        model: str | ModelFactory = "blend",
        *,
        method: str = "FADE",
        loss: str | Loss | None = None,
        fairness: str | FairnessLoss | None = None,
        strategy: str | Strategy | None = None,
        metrics: Metrics | None = None,
        fairness_weight: FairnessWeight = 0.5,
        fairness_ema_decay: float | None = None,
        dro_step_size: float = 0.01,
        cvar_share: float = 0.2,
        seed: int = 0,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        engine: EngineName = "auto",
        threads: Threads = "auto",
        embedding_dim: int | None = None,
        feature_buckets: int | None = None,
        surrogate: Surrogate = "hit",
        temperature: float = 3.0,
        n_negatives: int | None = None,
        n_fairness_negatives: int = 4,
        pretrain_epochs: int | None = None,
        update_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        update_learning_rate: float | None = None,
        schedule: ScheduleName | None = None,
        activity_exponent: float | None = None,
        l2: float | None = None,
        group_weight: float = 1.0,
        max_disparity: float | None = None,
        min_quality: float | None = None,
        max_group_loss: float | None = None,
        disparity_side: Side = "behind",
        disparity_lever: Literal["auto", "event-weights", "fairness-loss"] = "auto",
        disparity_task: Literal["event", "next"] = "next",
        disparity_metric: str = "ndcg@20",
        optimizer: Literal["row", "dense"] | None = None,
        restart: Literal["never", "on-degradation", "by-bound"] = "never",
        restart_every: int | None = None,
        adversary_weight: float = 10.0,
    ) -> None:
        given = locals()
        self._params = {name: given[name] for name in _parameters()}
        if METHODS[method].reranker is not None:
            raise ConfigurationError(
                f"{METHODS.canonical(method)} chooses the lists of all users together, so it is a method of "
                f"experiments (fairstream.run, `fairstream run`); give a recommender another method"
            )
        options, parts = Parts.split(
            **{name: value for name, value in self._params.items() if name not in _RUN_OPTIONS}
        )
        self.config = MethodConfig(**options)
        runtime = RuntimeConfig(seed=seed, device=device, engine=engine)
        self._learning = Learning(
            self.config,
            parts,
            Randomness(runtime.seed),
            runtime.torch_device(),
            engine=runtime.engine,
            threads=check_threads(threads),
        )
        resolve_metrics(metrics, 1, {})  # an unknown name is an error now, not at the first evaluation
        self._metrics = metrics
        self._state: State | None = None
        self.last_update: Update | None = None
        """What the last `fit` or `update` did."""
        self.notes: tuple[str, ...] = ()
        """What was unusual about the last `fit`, `update` or `observe`: one sentence each."""
        self._is_mapped = False
        self._locks()

    def _locks(self) -> None:
        # Locks are taken in this order. `observe` takes the second alone, so that it does not wait for training.
        self._writing = RLock()  # one fit, update, forget, retain … at a time
        self._observing = RLock()  # held from reading the state in force until its successor is in force
        self._observed: list[_Observed] | None = None  # while an update runs, what was observed since it began
        self._swapping = Lock()  # guards the state and the number of its readers
        self._n_readers = 0

    def _limited_threads(self) -> AbstractContextManager[None]:
        """Limit PyTorch's threads inside the block, in the calling thread alone."""
        return limit_threads(inference_threads(self._learning.threads))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclude everything else that changes the state."""
        with self._limited_threads(), self._writing, self._observing:
            yield

    def _summary(self) -> Summary:
        defaults = {name: parameter.default for name, parameter in _parameters().items()}
        changed = {name: value for name, value in self._params.items() if value is not defaults[name]}
        written = ", ".join(f"{name}={value!r}" for name, value in changed.items() if value != defaults[name])
        title, state, last = f"{type(self).__name__}({written})", self._state, self.last_update
        if state is None:
            return Summary(f"{title}, not fitted")
        history, groups = state.history, ", ".join(state.groups.names) or "none"
        rows = [
            ["model", type(state.model).__name__],
            ["events", f"{len(history):,}"],
            ["users", f"{history.n_users:,}"],
            ["items", f"{history.n_items:,}"],
            [f"groups by {state.groups.attribute}" if state.groups.names else "groups", groups],
            ["period", str(state.t)],
            ["events not learned yet", f"{len(state.pending):,}"],
        ]
        if last is not None:
            rows.append(["last update", f"{last.step}, {last.seconds:.1f} s"])
        return Summary(title, ["", "fitted"], rows, self.notes)

    # ── parameters ───────────────────────────────────────────────────────────────────────

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of the constructor, as scikit-learn and what searches with it want them.

        Parameters
        ----------
        deep
            Has no effect: no parameter has parameters of its own.

        Returns
        -------
        dict
            Name → value as it was given.

        Examples
        --------
        >>> rec = FairRecommender("item-item", group_weight=2.0)
        >>> rec.get_params()["group_weight"]
        2.0
        >>> FairRecommender(**rec.get_params()).set_params(group_weight=3.0)
        FairRecommender(model='item-item', group_weight=3.0), not fitted

        """
        return dict(self._params)

    def set_params(self, **params: Any) -> Self:
        """Change parameters of the constructor; what was fitted is dropped.

        Parameters
        ----------
        params
            Name → value, checked as by the constructor.

        Returns
        -------
        FairRecommender
            The recommender itself.

        Raises
        ------
        ConfigurationError
            If there is no such parameter or a value is wrong. Nothing has changed then.

        """
        if unknown := sorted(set(params) - set(self._params)):
            known = ", ".join(sorted(self._params))
            raise ConfigurationError(f"{', '.join(unknown)} is not an option; the options are {known}")
        with self._changing():
            changed = type(self)(**{**self._params, **params})
            with self._swapping:
                self.__dict__.update({name: value for name, value in vars(changed).items() if name not in _OWN_TO_EACH})
        return self

    # ── learning ─────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        events: Any,
        *,
        users: Any = None,
        items: Any = None,
        group: str | Sequence[str] | None = None,
        advantaged: object = None,
        on_epoch: OnEpoch | None = None,
        cluster: str | None = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Train from scratch.

        Events without groups can be learned too: nothing is then done for fairness, and a note says so.

        Parameters
        ----------
        events
            An `EventLog`, or whatever `read_events` takes.
        users
            A table with each user's group, unless `events` is an `EventLog`.
        group, advantaged
            The column that makes the groups and the value of the advantaged one, as for `read_events`.
        items
            A table that describes the items, as for `read_events`, unless `events` is an `EventLog`.
            Models that read features (gru, sasrec, blend) recommend an item by them from its first
            event on, and even before it.
        on_epoch
            Called after each epoch with (epochs done, epochs in all).
        cluster
            "local" or HOST:PORT: train on a Ray cluster (`pip install 'fairstream[cluster]'`), data-parallel over
            users, on CPUs; None: in this process.
        checkpoint
            On a cluster, a folder where the training is saved once a minute while it lasts. Where this process or the
            cluster dies, the same call goes on from there, with as many workers as there are then.

        Returns
        -------
        FairRecommender
            The recommender itself; `last_update` tells what was done.

        """
        log = self._read(events, users=users, items=items, group=group, advantaged=advantaged)
        groups = log.require_groups() if log.groups is not None else Groups.none(log.n_users)
        notes = self._notes_without_groups() if groups.is_empty else ()
        item_ids, features = log.item_ids.copy().indexed(), None
        if log.features is not None:
            item_ids.extend(log.features.ids.ids)
            features = log.features.of(item_ids)
        first = NewEvents(
            log.users,
            log.items,
            log.user_ids.copy().indexed(),
            item_ids,
            groups,
            log.times[-1],
            features=features,
            n_items=0 if features is None else len(item_ids),
        )
        with self._changing():
            candidate = self._learning_with(groups, cluster, checkpoint).fit(first, on_epoch, columns=log.columns)
            self._commit(candidate, None)
            self._is_mapped = False
            notes += self._learning.notes_on_fairness(groups)
            self.notes = (*log.notes, *notes, *candidate.notes)
            report(self.notes[len(log.notes) :])  # reading has reported the others
        return self

    def _read(self, events: Any, **options: Any) -> EventLog:
        """The events as a log whose features the model can read."""
        if not isinstance(events, EventLog):
            return self._learning.readable(read_events(events, **options))
        if options.pop("items") is not None:
            raise ConfigurationError("an EventLog has its features already; give items to read_events instead")
        if given := [name for name, value in options.items() if value is not None]:
            raise ConfigurationError(f"an EventLog has its groups already; give {given[0]} to read_events instead")
        return self._learning.readable(events)

    def _notes_without_groups(self) -> tuple[str, ...]:
        """What no groups mean; raise ConfigurationError where something was asked for that needs them."""
        if self.config.max_disparity is not None:
            raise ConfigurationError(
                "max_disparity is a gap between groups, but there are none; give users=TABLE and group=COLUMN, or no "
                "max_disparity"
            )
        return (note_without_groups(self._learning.without_groups().config),)

    def _learning_with(
        self, groups: Groups, cluster: str | None = None, checkpoint: str | Path | None = None
    ) -> Learning:
        """How states follow each other, and where; without groups, what needs them is off."""
        learning = self._learning.without_groups() if groups.is_empty else self._learning
        if cluster is None:
            if checkpoint is not None:
                raise ConfigurationError("checkpoint goes with a training on a cluster; give cluster, or leave it out")
            return learning
        return replace(
            learning, workers=ActorGroup(cluster), checkpoint=None if checkpoint is None else Path(checkpoint)
        )

    def update(
        self,
        events: Any,
        *,
        users: Any = None,
        items: Any = None,
        on_epoch: OnEpoch | None = None,
        min_group_size: int = 20,
        control_step: float = 1.0,
        measure_groups: MeasureGroups | None = None,
        strategy: Strategy | None = None,
        cluster: str | None = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Learn from new events: by fine-tuning, unless the method or strategy says otherwise.

        Tables are read as the fitted ones were: the same columns, the same ratings. Users that
        are new need a row in `users` to have a group; without one they are learned from but have
        no part in the fairness loss. (user, item) pairs known already are left out. `items` describes
        items that are new, or replaces what described others; it needs a recommender fitted with some.

        Parameters
        ----------
        events, users, items, on_epoch, cluster, checkpoint
            As for `fit`.
        min_group_size
            Under `max_disparity`, groups with fewer tested users are not measured.
        control_step
            Under `max_disparity`, how much of the controller's step is taken, above 0 and up to 1: less where a whole
            one was too much.
        measure_groups
            Under `max_disparity`, measures the gaps between groups in place of plain means, for example with noise: a
            function of the users' rows, their values, the codes and the names of their groups, and their values under
            recent popularity where `max_group_loss` asks for them.
        strategy
            What is learned by this update alone, in place of the recommender's own strategy.

        Returns
        -------
        FairRecommender
            The recommender itself; `last_update` tells what was done.

        Raises
        ------
        DataError
            If all events are known already, or cannot be read. Nothing has changed then.
        ConfigurationError
            If the recommender was loaded without groups while events have weights by group: `set_groups` comes first.

        """
        if not 0 < control_step <= 1:
            raise ConfigurationError(f"control_step must be above 0 and at most 1, got {control_step!r}")
        with self._limited_threads(), self._writing, self._while_observing() as state:
            self._require_optimizer("learn")
            learning = self._learning_with(state.groups, cluster, checkpoint)
            if strategy is not None:
                learning = replace(learning, parts=replace(learning.parts, strategy=strategy))
            state.require_groups("an update")
            new = self._align(state, events, users, items)
            if len(new.users) == 0 and len(state.pending) == 0:
                raise DataError("there is nothing to learn: every one of these events is known already")
            quality, tested, notes = None, None, list(new.notes)
            is_measured = learning.strategy.needs_quality or new.groups.choice == "auto"
            is_tested = is_measured or learning.controller is not None
            with connected(cluster if is_tested else None, state.model.device) as there:
                if is_measured:
                    k = min(20, state.history.n_items)
                    evaluation = self._evaluate(state, new, k=k, metrics=("ndcg",), cluster=there)
                    main = evaluation.slices["warm_users"][f"ndcg@{k}"]
                    quality = main.mean
                    evaluator = replace(self._evaluator(new, k=k), cluster=there)
                    tested = learning.test(evaluator, state, new, evaluation.tested)
                    if new.groups.choice == "auto":
                        groups = new.groups.with_ahead(main.ahead, judged=main.gaps)
                        if main.not_compared or not main.gaps:
                            notes.append(note_on_undecided(main.not_compared))
                        new = new._replace(groups=groups)
                evaluator = self._evaluator(new, k=1, min_group_size=min_group_size)
                measured = self._learning.measure(replace(evaluator, cluster=there), state, new, by=measure_groups)
                candidate = learning.update(
                    state, new, quality, on_epoch, measured=measured, tested=tested, control_step=control_step
                )
                # What held before this update has been said.
                before, now = (learning.notes_on_fairness(one.groups) for one in (state, new))
                notes += [note for note in now if note not in before]
                candidate.notes = self.notes = (*notes, *candidate.notes)
                self._commit(candidate, state)  # workers hold a part of it until then
            report(self.notes)
        return self

    def observe(self, events: Any, *, users: Any = None, items: Any = None, learn_later: bool = True) -> Self:
        """Record new events without training on them, at once, also while another thread runs an `update`.

        Items that users have interacted with are no longer recommended to them, and models that
        read histories use the events from now on. The next `update` learns the events, unless `learn_later`
        is False.

        A model with item tables recommends a new item once an `update` has trained its row, or at once where `items`
        gives it a feature that a trained item has. The popularity fallback counts its events at once.
        """
        with self._observing:
            state = self._fitted()
            log = self._read_more(state, events, users, items)
            new = NewEvents.align(log, state)
            if len(new.users) or new.features is not state.features:
                self._replace_state(self._learning.observe(state, new, learn_later=learn_later))
                if self._observed is not None:
                    self._observed.append(_Observed(log, learn_later))
            self.notes = new.notes
            report(self.notes)
        return self

    def forget(self, user_ids: Any) -> int:
        """Remove users: their ids, groups, events and rows, and every trace of them in the optimizer.

        What the rows of others have learned beside these users stays. Counts that events enter with weights by
        group are computed again, so a recommender loaded without groups needs `set_groups` first, and says so.

        Parameters
        ----------
        user_ids
            One id or a list of ids.

        Returns
        -------
        int
            How many of them were known.

        """
        with self._changing():
            state = self._fitted()
            rows = state.user_ids.lookup(id_or_ids(user_ids))
            rows = np.unique(rows[rows >= 0])
            if len(rows):
                self._require_optimizer("forget")
                state.require_groups("forgetting")
                self._replace_state(self._learning.forget(state, rows))
            return len(rows)

    def retain(self, events: Any) -> int:
        """Forget which user had which item, except as these events say; users who have none of them are removed.

        Call it with the events that you still keep, so that the recommender keeps no others and its memory is bounded
        by them. Models in closed form (popularity, item-item) are computed again; what gradient descent has learned
        from the other events stays.

        Parameters
        ----------
        events
            Tables with the columns of users and items, as for `fit`, or an iterable of such tables. Events that are not
            known change nothing.

        Returns
        -------
        int
            How many events were forgotten.

        Raises
        ------
        DataError
            If no event would be left.

        Examples
        --------
        >>> from fairstream import FairRecommender, synthetic_stream
        >>> stream = synthetic_stream(n_users=60, n_items=40, n_events=1000, seed=0)
        >>> rec = FairRecommender("item-item").fit(stream.events, users=stream.users)
        >>> rec.retain(stream.events.slice(600))
        600

        """
        with self._changing():
            state = self._fitted()
            kept = state.positions_of(events)
            if len(kept) == 0:
                raise DataError(
                    f"none of the {len(state.history)} events that the recommender knows is among these, so that "
                    f"nothing would be left; fit a new recommender instead"
                )
            n_forgotten = len(state.history) - len(kept)
            if n_forgotten:
                self._require_optimizer("forget")
                state.require_groups("forgetting")
                self._replace_state(self._learning.retain(state, kept))
            return n_forgotten

    def set_groups(self, users: Any, *, groups: Groups | None = None) -> None:
        """Set every user's group, where a checkpoint was saved without; users that are not named have none.

        Where there were no groups at all, `groups` says what they are called: `Groups` of any users.
        """
        with self._changing():
            state = self._fitted()
            known = groups if groups is not None and state.groups.is_empty else state.groups
            groups = read_more_groups(state.user_ids.ids, to_table(users, what="the users"), state.columns, known)
            if groups is None:
                raise DataError(f"the users have no column {state.groups.attribute!r}, which makes the groups")
            self._replace_state(replace(state, groups=groups, lacks_groups=False))

    # ── serving ──────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        user_ids: Any = None,
        k: int = 20,
        *,
        histories: Sequence[Sequence[Any]] | None = None,
        exclude: Any = None,
        only: Any = None,
        task: Task = "next",
        cluster: str | None = None,
    ) -> pa.Table:
        """The k best items for each user, without those the user has interacted with.

        Parameters
        ----------
        user_ids
            An id, or a list or column of ids; unknown ones get the popularity fallback.
        k
            Items per user; a user who has had nearly everything gets fewer, and so does everyone where there are
            not so many items.
        histories
            Instead of ids, the items that people without an id have interacted with, in order. Models
            that read histories answer them; others answer with the popularity fallback.
        exclude, only
            Ids of items that must not be recommended, and of the only ones that may be: one id or a list. Unknown
            ids among them change nothing.
        task
            What the lists are for: "next", all that the user does in the coming period, or "event", the user's
            very next event. `evaluate` tests the same lists.
        cluster
            "local" or HOST:PORT: make the lists on a Ray cluster (`pip install 'fairstream[cluster]'`), bit for bit
            the same ones; None: in this process.

        Returns
        -------
        pyarrow.Table
            user_id (or history: which of the histories, from 0), item_id, rank (from 1), score, source
            ("model" or "popularity").

        Raises
        ------
        ConfigurationError
            If neither or both of `user_ids` and `histories` are given, histories are not lists, or `only` and
            `exclude` leave no item.

        Warns
        -----
        UserWarning
            If histories name unknown items, which are ignored.

        """
        if (user_ids is None) == (histories is None):
            raise ConfigurationError("recommend takes either user_ids or histories")
        _check_task(task)
        with self._reading() as state, connected(cluster, state.model.device) as there:
            maker = ListMaker.of(state, _check_k(k), task, exclude=exclude, only=only)
            if histories is None:
                return maker.table("user_id", *users_in(state, user_ids), lambda: state.fallback, there)
            maker, rows = maker.with_histories(histories, state.item_ids)
            return maker.table("history", pa.array(np.arange(len(rows))), rows, lambda: state.fallback, there)

    def recommend_to(
        self,
        path: str | Path,
        user_ids: Any = None,
        k: int = 20,
        *,
        exclude: Any = None,
        only: Any = None,
        task: Task = "next",
        users_per_file: int = 10_000,
        cluster: str | None = None,
    ) -> None:
        """Write the k best items for each of many users as Parquet files, in memory that one file takes.

        Parameters
        ----------
        path
            A folder that is missing or empty; it gets `part-00000.parquet` and so on, each the table that `recommend`
            returns for the next users.
        user_ids
            As for `recommend`; None: all known users.
        k, exclude, only, task
            As for `recommend`.
        users_per_file
            How many users the lists of a file are for.
        cluster
            "local" or HOST:PORT: the tasks of a Ray cluster (`pip install 'fairstream[cluster]'`) write the files,
            byte for byte the same ones, on storage that all nodes see; None: this process.

        Raises
        ------
        ConfigurationError
            If the folder holds something or cannot be written, an option makes no sense, or the cluster cannot do it.

        Examples
        --------
        >>> import tempfile
        >>> import pyarrow.parquet as pq
        >>> from fairstream import synthetic_stream
        >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
        >>> rec = FairRecommender("item-item").fit(stream.events)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rec.recommend_to(f"{folder}/lists", k=3, users_per_file=40)
        ...     pq.read_table(f"{folder}/lists").num_rows
        288

        """
        _check_task(task)
        if users_per_file < 1:
            raise ConfigurationError(f"users_per_file must be >= 1, got {users_per_file}")
        with self._reading() as state, connected(cluster, state.model.device) as there:
            maker = ListMaker.of(state, _check_k(k), task, exclude=exclude, only=only)
            ids, rows = users_in(state, state.user_ids.ids if user_ids is None else user_ids)
            maker.write(Path(path), ids, rows, state.fallback, users_per_file=users_per_file, cluster=there)

    def similar_items(self, items: Any, k: int = 20) -> pa.Table:
        """The k items that are most like each of some items.

        Models whose scores are inner products (mf, gru, sasrec) compare the items' vectors; for the others items are
        alike that the same people have had. Either is a cosine.

        Parameters
        ----------
        items
            One id or a list of ids; unknown ones have no similar items, nor have those whose vector is untrained.
        k
            Items each; fewer where there are not so many, or where nobody has had an item with another.

        Returns
        -------
        pyarrow.Table
            item_id, similar_id, rank (from 1), score, source ("vectors" or "histories").

        Examples
        --------
        >>> import pyarrow as pa
        >>> events = pa.table({"user": [1, 1, 2, 2, 3], "item": list("abaca"), "time": range(5)})
        >>> rec = FairRecommender("item-item").fit(events)
        >>> rec.similar_items("a", k=1).select(["item_id", "similar_id", "rank"]).to_pylist()
        [{'item_id': 'a', 'similar_id': 'b', 'rank': 1}]

        """
        with self._reading() as state:
            return similar_items(state, id_or_ids(items), _check_k(k))

    @overload
    def evaluate(
        self,
        events: Any,
        *,
        users: Any = None,
        tasks: Task | None = None,
        k: int | None = None,
        metrics: Metrics | None = None,
        min_group_size: int = 20,
        n_resamples: int = 1000,
        breakdown: bool = False,
        baseline: bool = False,
        cluster: str | None = None,
    ) -> Evaluation: ...

    @overload
    def evaluate(
        self,
        events: Any,
        *,
        users: Any = None,
        tasks: list[Task] | tuple[Task, ...],
        k: int | None = None,
        metrics: Metrics | None = None,
        min_group_size: int = 20,
        n_resamples: int = 1000,
        breakdown: bool = False,
        baseline: bool = False,
        cluster: str | None = None,
    ) -> dict[Task, Evaluation]: ...

    def evaluate(
        self,
        events: Any,
        *,
        users: Any = None,
        tasks: Task | list[Task] | tuple[Task, ...] | None = None,
        k: int | None = None,
        metrics: Metrics | None = None,
        min_group_size: int = 20,
        n_resamples: int = 1000,
        breakdown: bool = False,
        baseline: bool = False,
        cluster: str | None = None,
    ) -> Evaluation | dict[Task, Evaluation]:
        """Quality by group on events that have not been learned yet, with its uncertainty (protocol `strict`).

        Evaluate before `update`: events that the model has learned from cannot test it.

        Parameters
        ----------
        events, users
            As for `update`.
        tasks
            "next": one list for each user, made now and tested on all of the user's events.
            "event": one list for each event, made from everything that the user did before it.
            A list of names: each of them. By default "next".
        k
            Length of the lists; by default 20, or the number of known items where there are fewer.
        metrics
            Names, or functions of your own by name; by default those given to the constructor.
        min_group_size
            Groups with fewer tested users are excluded.
        n_resamples
            Bootstrap samples and permutations; 0: no intervals and no p-values.
        breakdown
            Also say what the test consisted of, as `Evaluation.breakdown`: newcomers and known users, how
            much was known of them, and what could be recommended.
        baseline
            Evaluate recent popularity among the events known so far in place of the model: what is attainable without
            knowing anybody.
        cluster
            "local" or HOST:PORT: make the lists on a Ray cluster (`pip install 'fairstream[cluster]'`), so that every
            number, intervals included, is bit for bit the same; None: in this process.

        Returns
        -------
        Evaluation or dict of Evaluation
            Of one task; with a list of tasks, the evaluation of each by its name.

        """
        names = _task_names(tasks)
        with self._reading() as state, connected(cluster, state.model.device) as there:
            state.require_groups("an evaluation")
            new = self._align(state, events, users)
            if state.history.seen.has(new.users, new.items).all():
                raise DataError("the model has learned from every one of these events already; evaluate it on new ones")
            options: dict[str, Any] = {
                "k": min(20, state.history.n_items) if k is None else _check_k(k),
                "min_group_size": min_group_size,
                "n_resamples": n_resamples,
                "metrics": metrics,
                "breakdown": breakdown,
                "baseline": baseline,
                "cluster": there,
            }
            found = {name: self._evaluate(state, new, by_event=name == "event", **options) for name in names}
        return found if isinstance(tasks, list | tuple) else found[names[0]]

    def frontier(
        self,
        events: Any = None,
        *,
        users: Any = None,
        items: Any = None,
        group: str | Sequence[str] | None = None,
        advantaged: object = None,
        lever: LeverName | None = None,
        levels: Sequence[float] | None = None,
        n_periods: int = 5,
        pretrain_ratio: float = 0.7,
        task: Task | None = None,
        metric: str | None = None,
        max_disparity: float | None = None,
        max_loss: float | None = None,
        min_group_size: int = 20,
        n_resamples: int = 1000,
        on_progress: OnProgress | None = None,
        cluster: str | None = None,
    ) -> Frontier:
        """What each level of disparity would have cost on the past, and which level to choose.

        A model with this recommender's configuration and no lever is pre-trained on the first part of the past. From
        there each level of the lever goes through the rest, period by period: the model learns a period and is tested
        on the next before learning that. Nothing after the given events is looked at; the recommender stays as it is.

        Parameters
        ----------
        events, users, items, group, advantaged
            The past, as for `fit`; None: the events that this recommender knows.
        lever
            "group_weight", how many times the events of the groups behind count, or "fairness_weight", λ. By default
            the first where the model takes weights (closed forms, sequence models with the softmax loss, the blend).
            The other lever is off.
        levels
            Values of the lever, among them the one that does nothing (1 and 0); by default 1, 1.5, 2, 3, 5, 8 and
            0, 0.5, 1, 2, 4, 8.
        n_periods
            Periods to test on; one more comes before them, which is only learned from.
        pretrain_ratio
            Share of the events before these periods.
        task, metric
            What is tested: "event" or "next", and NAME@K; by default `disparity_task` and `disparity_metric`.
        max_disparity
            The gap that is accepted; by default this recommender's own, if it has one.
        max_loss
            The share of the quality of everyone that may be lost; by default none is set if an accepted gap can be
            reached, else 1 %.
        min_group_size, n_resamples
            As for `evaluate`; there must be resamples.
        on_progress
            Called with what is being done and the share of the work that is done.
        cluster
            "local" or HOST:PORT: compute the levels at the same time on a Ray cluster
            (`pip install 'fairstream[cluster]'`), with the same results; None: here, one after another.

        Returns
        -------
        Frontier
            `levels`, `recommended`, `setting`, `verdicts()`, `to_arrow()`.

        Raises
        ------
        ConfigurationError
            If an option makes no sense, or the method and the model do not have the lever.
        DataError
            If there are no groups, too few events, or too few users of the groups.

        """
        if events is None:
            log = log_of(self.state)
        else:
            log = self._read(events, users=users, items=items, group=group, advantaged=advantaged)
        metric = metric or self.config.disparity_metric
        own = self._metrics if isinstance(self._metrics, Mapping) else {}
        return measure_frontier(
            self._learning.readable(log),
            self._learning,
            self._variant,
            lever=lever,
            levels=levels,
            n_periods=n_periods,
            pretrain_ratio=pretrain_ratio,
            task=_task_names(task or self.config.disparity_task)[0],
            metric={metric: own[metric]} if metric in own else metric,
            max_disparity=self.config.max_disparity if max_disparity is None else max_disparity,
            max_loss=max_loss,
            min_group_size=min_group_size,
            n_resamples=n_resamples,
            on_progress=on_progress,
            cluster=cluster,
        )

    # ── keeping ──────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, with_groups: bool = True) -> None:
        """Write a checkpoint: after `load`, every update gives bit for bit what it would have given.

        Without groups nobody's is in it: what it recommends is the same, and before it learns or forgets anything
        `set_groups` has to be called.
        """
        self._require_optimizer("be saved")
        with self._reading() as state:
            learning, saved = self._learning, state if with_groups else state.without_groups()
            manifest = {
                "fairstream": __version__,
                "config": self.config.model_dump(),
                "seed": learning.randomness.seed,
                "device": learning.device.type,
                "engine": learning.engine,
                **state_manifest(saved),
            }
            write_checkpoint(Path(path), manifest, state_all_tensors(saved))

    def export(self, path: str | Path) -> None:
        """Write ids and vectors whose inner products are the scores, for an index such as FAISS.

        A new folder gets `items.parquet` (item_id, vector) and `users.parquet` (user_id, vector), and the same
        vectors in the same order as `items.npy` and `users.npy` (float32). Users and items that the model cannot score
        are not in it. An index does not leave out what a user has had: ask it for more, and leave that out.

        Parameters
        ----------
        path
            A folder that is missing or empty.

        Raises
        ------
        ConfigurationError
            If the scores of the model are no inner products (item-item, popularity, ncf, blend).
        CheckpointError
            If the folder holds something, or cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from fairstream import synthetic_stream
        >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
        >>> rec = FairRecommender("mf", embedding_dim=8, pretrain_epochs=1, device="cpu").fit(stream.events)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rec.export(f"{folder}/vectors")
        ...     np.load(f"{folder}/vectors/items.npy").shape[1]
        8

        """
        with self._reading() as state:
            write_vectors(Path(path), state, self.config.model)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: ModelFactory | None = None,
        loss: str | Loss | None = None,
        fairness: str | FairnessLoss | None = None,
        strategy: str | Strategy | None = None,
        metrics: Metrics | None = None,
        device: Literal["auto", "cpu", "cuda"] | None = None,
        threads: Threads = "auto",
        mapped: bool = False,
        **changed: Any,
    ) -> FairRecommender:
        """Read a checkpoint, onto the device that it was saved from unless another one is named.

        Parameters
        ----------
        path
            The folder that `save` wrote.
        model, loss, fairness, strategy
            Objects of your own have to be passed again; a checkpoint holds no code.
        metrics
            As for the constructor.
        device, threads
            As for the constructor.
        mapped
            Leave the model in the file, mapped into memory, and the optimizer out: for processes that share one file
            to recommend from. What was loaded so can observe events, and neither learn, forget nor be saved.
        changed
            Options of the constructor that are to differ from now on (`fairness_weight`,
            `update_epochs` …). The model, its embedding_dim and feature_buckets, the optimizer and the
            seed are what the checkpoint is made of and cannot change.

        Raises
        ------
        CheckpointError
            If the folder is not a whole checkpoint.
        ConfigurationError
            If an option is wrong, or cannot change.

        Examples
        --------
        >>> import tempfile
        >>> from fairstream import load, read_events, synthetic_stream
        >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
        >>> rec = FairRecommender(pretrain_epochs=1, device="cpu").fit(stream.events, users=stream.users)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rec.save(folder)
        ...     again = load(folder)
        >>> users = stream.events["user_id"][:3]
        >>> again.recommend(users) == rec.recommend(users)
        True

        """
        manifest, tensors = read_checkpoint(Path(path), mapped=mapped)
        runtime = RuntimeConfig(device="cpu" if mapped else device or manifest.get("device", "auto"))
        runtime.torch_device()  # a device that is not there is no fault of the checkpoint
        own = {"model": model, "loss": loss, "fairness": fairness, "strategy": strategy}
        options = saved_options(path, manifest, changed, own)
        recommender = cls(metrics=metrics, device=runtime.device, threads=threads, **options)
        recommender._state = read_state(path, manifest, tensors, recommender._learning, mapped=mapped)
        recommender._is_mapped = mapped
        return recommender

    # ── the state ────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> State:
        """The state in force: immutable, and valid for as long as you keep it."""
        with self._swapping:
            return self._fitted().share()

    @property
    def model(self) -> Scorer:
        """The model in service."""
        return self.state.model

    @contextmanager
    def _reading(self) -> Iterator[State]:
        """The state in force; its memory is not reused as long as the block lasts."""
        with self._swapping:
            state = self._fitted()
            self._n_readers += 1
        try:
            with self._limited_threads():
                yield state
        finally:
            with self._swapping:
                self._n_readers -= 1

    def _replace_state(self, following: State) -> None:
        with self._swapping:
            self._state = following

    @contextmanager
    def _while_observing(self) -> Iterator[State]:
        """The state in force; `_commit` adds what is observed meanwhile to its successor."""
        with self._observing:
            state, self._observed = self._fitted(), []
        try:
            yield state
        finally:
            with self._observing:
                self._observed = None

    def _commit(self, candidate: Candidate, before: State | None) -> None:
        """Put the next state in force by a single assignment, with what was observed since `before`."""
        with self._observing:
            if not self._observed:
                self._commit_alone(candidate, before)
                return
            early = list(self._observed)
        # The state in force shares memory with `before`, so that the next one needs its own.
        following, update = candidate.commit(in_place=False)
        following = self._after(following, early)
        with self._observing:  # what came in since
            self._replace_state(self._after(following, self._observed[len(early) :]))
            self.last_update = update

    def _after(self, state: State, observed: Sequence[_Observed]) -> State:
        """The state that also knows what was observed."""
        for log, learn_later in observed:
            new = NewEvents.align(log, state)
            if len(new.users) or new.features is not state.features:
                state = self._learning.observe(state, new, learn_later=learn_later)
        return state

    def _commit_alone(self, candidate: Candidate, before: State | None) -> None:
        """Put the next state in force where nothing was observed since `before`.

        Its memory may be that of the state before, unless somebody is using that one.
        """
        with self._swapping:
            in_place = before is not None and not before.is_shared and self._n_readers == 0
            if in_place or before is None:
                following = None
                try:
                    following, update = candidate.commit(in_place=in_place)
                    self._state = following
                except BaseException:
                    if following is None or self._state is not following:
                        candidate.undo()
                    raise
        if not in_place and before is not None:
            following, update = candidate.commit(in_place=False)
            self._replace_state(following)
        self.last_update = update

    def __getstate__(self) -> dict[str, Any]:
        with self._swapping:
            if self._state is not None:
                self._state.share()
            fields = self.__dict__.copy()
        return {name: value for name, value in fields.items() if name not in _OWN_TO_EACH}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self._locks()

    def __deepcopy__(self, memo: dict[int, Any]) -> FairRecommender:
        """Both share the state, which never changes."""
        twin = object.__new__(type(self))
        twin.__setstate__(self.__getstate__())
        return twin

    def _variant(self, config: MethodConfig, state: State | None) -> FairRecommender:
        """A recommender with another configuration in another state, and this one's parts, seed and device."""
        twin = copy(self)
        twin.config, twin._learning, twin._state = config, replace(self._learning, config=config), state
        return twin

    def _fitted(self) -> State:
        if self._state is None:
            raise ConfigurationError("this recommender has not been fitted yet; call fit(events) first")
        return self._state

    def _require_optimizer(self, task: str) -> None:
        if self._is_mapped:
            raise ConfigurationError(
                f"this recommender was loaded with mapped=True, to recommend from, and cannot {task}; load it without"
            )

    def _align(self, state: State, events: Any, users: Any, items: Any = None) -> NewEvents:
        """The events that are not known yet, in the rows of the state."""
        return NewEvents.align(self._read_more(state, events, users, items), state)

    def _read_more(self, state: State, events: Any, users: Any, items: Any) -> EventLog:
        """Events as a log, read as those of the state were."""
        if isinstance(events, EventLog):
            log = self._read(events, users=users, items=items)
            if state.last_time is not None:
                log = replace(log, notes=(*log.notes, *log.notes_after(state.last_time)))
        else:
            log = read_more_events(
                events, state.groups, state.later_columns, users=users, items=items, last_time=state.last_time
            )
        return self._learning.readable(log)

    def _evaluate(
        self,
        state: State,
        new: NewEvents,
        *,
        by_event: bool = False,
        breakdown: bool = False,
        baseline: bool = False,
        cluster: Cluster | None = None,
        **options: Any,
    ) -> Evaluation:
        """Quality on new events, by an `_evaluator` with these options."""
        model, contexts = state.model, state.contexts
        if baseline:
            model = RecentPopularity.of(state.history).eval().to(self._learning.device)
            contexts = ContextBuilder(Reads(), state.history, None, self._learning.device)
        return replace(self._evaluator(new, **options), breaks_down=breakdown, cluster=cluster).evaluate(
            model,
            new.users,
            new.items,
            history=state.history,
            contexts=contexts,
            t=state.t,
            by_event=by_event,
        )

    def _evaluator(
        self,
        new: NewEvents,
        *,
        k: int,
        min_group_size: int = 1,
        n_resamples: int = 0,
        metrics: Metrics | None = None,
    ) -> Evaluator:
        return Evaluator(
            Protocol.named("strict"),
            k,
            new.groups,
            self._learning.randomness,
            min_group_size,
            n_resamples,
            metrics=metrics or self._metrics or None,
        )


@cache
def _parameters() -> Mapping[str, inspect.Parameter]:
    """The parameters of the constructor."""
    named = inspect.signature(FairRecommender.__init__).parameters
    return {name: parameter for name, parameter in named.items() if name != "self"}


def _task_names(tasks: Any) -> list[Task]:
    """The names of the tasks to evaluate."""
    names: list[Any] = list(tasks) if isinstance(tasks, list | tuple) else ["next" if tasks is None else tasks]
    if not names or (unknown := [name for name in names if name not in get_args(Task)]):
        found = repr(unknown[0]) if names else "no name"
        raise ConfigurationError(f"tasks must be 'next', 'event' or a list of them, got {found}")
    return names


def _check_task(task: Any) -> None:
    if task not in TASKS:
        raise ConfigurationError(f"task must be one of {', '.join(TASKS)}, got {task!r}")


def _check_k(k: Any) -> int:
    try:
        number = operator.index(k)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigurationError(f"k must be a whole number from 1 on, got {k!r}")
    return number


load = FairRecommender.load
