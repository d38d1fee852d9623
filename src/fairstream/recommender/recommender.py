"""The recommender: it learns from a stream of events, and measures or narrows gaps between groups of users."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow as pa

from fairstream.configuration import Configuration
from fairstream.data import EventLog, Groups, read_events, read_more_events
from fairstream.data.groups import read_more_groups
from fairstream.data.reading import to_table
from fairstream.display import ReprMixin, Summary
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import (
    Evaluation,
    Evaluator,
    GapExplanation,
    Metric,
    PeriodTask,
    check_period_task,
    resolve_metrics,
)
from fairstream.methods import METHODS, NO_GROUPS, MethodConfig, Parts
from fairstream.models import CustomModel, Model, ModelConfig, ModelFactory, Scorer, Task, resolve_model
from fairstream.randomness import Randomness
from fairstream.recipe import AS_SAVED, Fairness, Recipe
from fairstream.recommender.checkpoint import read_checkpoint, read_options, read_state, write_checkpoint
from fairstream.recommender.gaps import explain_replays
from fairstream.recommender.holder import StateHolder
from fairstream.recommender.judging import evaluate_state
from fairstream.recommender.lists import ListMaker, id_or_ids, users_in
from fairstream.recommender.state import NewEvents, State
from fairstream.recommender.trainer import Trainer, Update
from fairstream.recommender.vectors import similar_items, write_vectors
from fairstream.reporting import report
from fairstream.strategies import (
    LeastRegret,
    MaxGap,
    PastRegret,
    PeriodReplay,
    ReplayGroups,
    Strategy,
    Target,
    past_regret,
)
from fairstream.threads import inference_threads, limit_threads
from fairstream.training import EngineName, OnEpoch, RuntimeConfig, Training

if TYPE_CHECKING:
    from fairstream.experiments.frontier import Frontier, LeverName
    from fairstream.experiments.levers import OnProgress

Metrics = Sequence[str] | Mapping[str, Metric]


class FairRecommender(ReprMixin):
    """Fit once, update with every period's new events, recommend at any time.

    Any thread may recommend, evaluate, observe and save while another one updates. An update that fails or is
    interrupted changes nothing.

    Parameters
    ----------
    model
        A name ("blend", "sasrec", "gru", "mf", "item-item", "popularity", …), one of `fairstream.models` with its
        hyperparameters (`models.SASRec(length=200)`), or a custom `Scorer` class.
    fairness
        What training does for fairness: `DisparityLoss` (the paper's FADE), `LargestGapLoss`, `GroupDROLoss`,
        `GroupWeight`, or a custom loss. None: nothing.
    target
        What each update does for groups: `LeastRegret` (the default) serves each group as well as it can be served,
        as long as no other loses; `MaxGap` limits the gap between groups. None: groups are measured only.
    strategy
        What each update learns: `FineTune` (the default), "retrain", "window", "replay", "keep",
        `RestartOnDegradation`, or a custom `Strategy`.
    training
        Loss, batches, epochs, learning rate, optimizer, threads: `Training`. By default the model's own.
    metrics
        What `evaluate` measures: names, or functions by name (`{"coverage@20": f}`).
    seed
        Seed of every random draw.
    device
        "auto", "cpu" or "cuda".
    engine
        "auto", "reference" (plain PyTorch) or "fused" (compiled).

    Examples
    --------
    >>> from fairstream import DisparityLoss, Training, synthetic_stream, read_events
    >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
    >>> first, later = stream.events.slice(0, 1500), stream.events.slice(1500)
    >>> rec = FairRecommender(fairness=DisparityLoss(weight=0.5), training=Training(pretrain_epochs=2))
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
        model: str | Model | type[ModelConfig] | ModelFactory = "blend",
        *,
        fairness: Fairness = None,
        target: Target | str | None = "least-regret",
        strategy: str | Strategy = "fine-tune",
        training: Training | None = None,
        metrics: Metrics | None = None,
        seed: int = 0,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        engine: EngineName = "auto",
    ) -> None:
        parts: dict[str, Any] = {"fairness": fairness, "target": target, "strategy": strategy, "training": training}
        runtime_options: dict[str, Any] = {"seed": seed, "device": device, "engine": engine}
        self._params: dict[str, Any] = {"model": model, **parts, "metrics": metrics, **runtime_options}
        runtime = RuntimeConfig(**runtime_options)
        torch_device, custom = runtime.torch_device(), dict(metrics) if isinstance(metrics, Mapping) else {}
        recipe = Recipe.resolve(model, **parts, device=torch_device.type)
        self._trainer = Trainer(recipe, Randomness(runtime.seed), torch_device, runtime.engine, custom)
        resolve_metrics(metrics, 1, {})  # an unknown name is an error now, not at the first evaluation
        if (goal := recipe.target) is not None:
            resolve_metrics(custom if goal.metric in custom else (goal.metric,), 20, {})
        self.last_update: Update | None = None
        """The report of the last `fit` or `update`."""
        self.notes: tuple[str, ...] = ()
        """One sentence for each unusual thing about the last `fit`, `update` or `observe`."""
        self._is_frozen = False
        self._states = StateHolder()

    @classmethod
    def from_config(
        cls, config: MethodConfig, parts: Parts | None = None, *, metrics: Metrics | None = None, **runtime: Any
    ) -> FairRecommender:
        """Make a recommender from flat options, as `fairstream.toml` and the command line hold them.

        Parameters
        ----------
        config
            The options.
        parts
            The objects behind options that are "custom".
        metrics
            As for the constructor.
        runtime
            `seed`, `device` and `engine`.

        """
        if METHODS[config.method].run is not None:
            raise ConfigurationError(
                f"{config.method} is a method of experiments (fairstream.run, `fairstream run`); give a recommender "
                f"another method"
            )
        recipe = config.recipe(parts)
        options: dict[str, Any] = {"model": recipe.model, "fairness": recipe.fairness_option, "target": recipe.target}
        recommender = cls(**options, strategy=recipe.strategy, training=recipe.training, metrics=metrics, **runtime)
        recommender._trainer = replace(recommender._trainer, recipe=recipe)
        return recommender

    @property
    def recipe(self) -> Recipe:
        """The model, training, fairness, target and strategy, with every setting filled in."""
        return self._trainer.recipe

    def _limited_threads(self) -> AbstractContextManager[None]:
        return limit_threads(inference_threads(self.recipe.training.threads))

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._limited_threads(), self._states.changing():
            yield

    @contextmanager
    def _reading(self) -> Iterator[State]:
        with self._limited_threads(), self._states.reading() as state:
            yield state

    def _summary(self) -> Summary:
        changed = {name: value for name, value in self._params.items() if value != _DEFAULTS[name]}
        written = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        title, last, model = f"{type(self).__name__}({written})", self.last_update, self.recipe.model
        if (state := self._states.state) is None:
            return Summary(f"{title}, not fitted")
        history, groups = state.history, ", ".join(state.groups.names) or "none"
        rows = [
            ["model", repr(model) if isinstance(model, ModelConfig) else model.name],
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
        """Return the parameters of the constructor, as scikit-learn's searches read them.

        Parameters
        ----------
        deep
            Also return the settings of the parameters: `model__ridge`, `training__batch_size`, `fairness__weight` ….

        Returns
        -------
        dict
            Name → value.

        Examples
        --------
        >>> rec = FairRecommender("item-item")
        >>> rec.get_params()["model__ridge"]
        10.0
        >>> rec.set_params(model__ridge=500)
        FairRecommender(model=ItemItem(ridge=500.0)), not fitted

        """
        params = dict(self._params)
        return _with_nested(params, _parts(self.recipe)) if deep else params

    def set_params(self, **params: Any) -> Self:
        """Change parameters of the constructor, or their settings; drop what was fitted.

        Parameters
        ----------
        params
            Name → value, checked as by the constructor; `model__ridge=500` changes one setting of the model.

        Returns
        -------
        FairRecommender
            The recommender itself.

        Raises
        ------
        ConfigurationError
            If a parameter is unknown or a value is wrong; then nothing changes.

        """
        changed = {**self._params, **{name: value for name, value in params.items() if name in self._params}}
        parts = _parts(self.recipe)
        if changed != self._params:  # the settings are those of the new parts
            parts = _parts(Recipe.resolve(**{name: changed[name] for name in parts}, device=self._trainer.device.type))
        known = _with_nested(changed, parts)
        if unknown := sorted(set(params) - set(known)):
            raise ConfigurationError(
                f"{', '.join(unknown)} is not a parameter; the parameters are {', '.join(sorted(known))}"
            )
        for name, part in parts.items():
            prefix = f"{name}__"
            settings = {key.removeprefix(prefix): value for key, value in params.items() if key.startswith(prefix)}
            if settings:
                changed[name] = _with_settings(part, settings, changed[name])
        with self._changing():
            recommender = type(self)(**changed)
            self._states.replace(None)
            self.__dict__.update({name: value for name, value in vars(recommender).items() if name != "_states"})
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
    ) -> Self:
        """Train from scratch. Without groups, training does nothing for fairness, and a note says so.

        Parameters
        ----------
        events
            An `EventLog`, or any source that `read_events` takes.
        users, items, group, advantaged
            As for `read_events`, unless `events` is an `EventLog`. Models that read features of items (gru, sasrec,
            blend) can recommend an item before its first event.
        on_epoch
            Called after each epoch with (epochs done, epochs in all).

        Returns
        -------
        FairRecommender
            The recommender itself; see `last_update`.

        """
        log = self._read(events, users=users, items=items, group=group, advantaged=advantaged)
        groups = log.require_groups() if log.groups is not None else Groups.none(log.n_users)
        if groups.is_empty and isinstance(self.recipe.target, MaxGap):
            raise ConfigurationError(
                "MaxGap is about a gap between groups, but there are none; give users=TABLE and group=COLUMN, or no "
                "target"
            )
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
            times=log.seconds,
            moments=log.times,
            marks=log.marks,
        )
        with self._changing():
            model = resolve_model(self._params["model"]).sized(self._trainer.device.type, len(log))
            self._trainer = replace(self._trainer, recipe=replace(self.recipe, model=model))
            candidate = self._trainer_with(groups).fit(first, on_epoch, columns=log.columns)
            self.last_update = self._states.commit(candidate, None, self._trainer)
            self._is_frozen = False
            notes = (NO_GROUPS,) if groups.is_empty else self._trainer.notes_on_fairness(groups)
            self.notes = (*log.notes, *notes, *candidate.update.notes)
            report(self.notes[len(log.notes) :])  # reading has reported the others
        return self

    def _read(self, events: Any, **options: Any) -> EventLog:
        """The events as a log whose features the model can read."""
        if not isinstance(events, EventLog):
            return self._trainer.readable(read_events(events, **options))
        if options.pop("items") is not None:
            raise ConfigurationError("an EventLog has its features already; give items to read_events instead")
        if given := [name for name, value in options.items() if value is not None]:
            raise ConfigurationError(f"an EventLog has its groups already; give {given[0]} to read_events instead")
        return self._trainer.readable(events)

    def _trainer_with(self, groups: Groups) -> Trainer:
        """The trainer; without groups, one that does nothing for fairness."""
        return self._trainer.without_lever() if groups.is_empty else self._trainer

    def update(
        self,
        events: Any,
        *,
        users: Any = None,
        items: Any = None,
        on_epoch: OnEpoch | None = None,
        min_group_size: int = 20,
        replay_groups: ReplayGroups | None = None,
        strategy: Strategy | None = None,
    ) -> Self:
        """Learn from new events, by the recommender's strategy.

        It reads tables as `fit` does: the same columns, the same ratings. It skips known (user, item) pairs. New
        users without a row in `users` have no group. `items` adds items and replaces the descriptions of known ones,
        if `fit` had descriptions.

        Parameters
        ----------
        events, users, items, on_epoch
            As for `fit`.
        min_group_size
            With a target, groups with fewer tested users are not measured.
        replay_groups
            With a target, replaces the plain means of the groups, for example by noisy ones: a function of the
            users' rows, their values at each level, the codes and names of their groups, and the levels.
        strategy
            Replaces the recommender's strategy for this update.

        Returns
        -------
        FairRecommender
            The recommender itself; see `last_update`.

        Raises
        ------
        DataError
            If all events are known already, or cannot be read; then nothing changes.
        ConfigurationError
            If the recommender was loaded without groups while events have group weights: call `set_groups` first.

        """
        with self._limited_threads(), self._states.updating() as state:
            self._require_optimizer("learn")
            trainer = self._trainer_with(state.groups)
            if strategy is not None:
                trainer = trainer.with_strategy(strategy)
            state.require_groups("an update")
            new = NewEvents.align(self._read_more(state, events, users, items), state)
            if len(new.users) == 0 and len(state.pending) == 0:
                raise DataError("there is nothing to learn: every one of these events is known already")
            evaluator = self._evaluator(new, k=min(20, state.history.n_items), min_group_size=min_group_size)
            judgement = trainer.judge(evaluator, state, new, by=replay_groups)
            candidate = trainer.update(state, new, judgement, on_epoch)
            if strategy is not None and candidate.state.started_at == state.started_at:
                # The recommender's own strategy remembers what it knew; after a restart it begins again.
                candidate.state = replace(candidate.state, memory=state.memory)
            # Earlier updates have reported the other notes.
            before, now = (trainer.notes_on_fairness(one.groups) for one in (state, new))
            notes = (*new.notes, *(note for note in now if note not in before))
            self.notes = (*notes, *candidate.update.notes)
            candidate.update = replace(candidate.update, notes=self.notes)
            self.last_update = self._states.commit(candidate, state, self._trainer)
            report(notes)
            report(self.notes[len(notes) :], logging.INFO)  # decisions, such as no restart
        return self

    def observe(self, events: Any = None, *, users: Any = None, items: Any = None, learn_later: bool = True) -> Self:
        """Record new events without training on them, at once, also while another thread runs an `update`.

        From then on users do not get these items again, models that read histories read the events, and the
        popularity fallback counts them. The next `update` learns them, unless `learn_later` is False. A model with
        item tables recommends a new item once an `update` has trained its row, or at once if `items` gives it a
        feature of a trained item. Without events, `items` describes items.
        """
        if events is None and items is None:
            raise DataError("observe needs events, or items to describe")
        with self._states.observing() as state:
            log = self._read_more(state, events, users, items)
            new = NewEvents.align(log, state)
            if len(new.users) or new.features is not state.features:
                following = self._trainer.observe(state, new, learn_later=learn_later)
                self._states.record(following, (log, learn_later))
            self.notes = new.notes
            report(self.notes)
        return self

    def forget(self, user_ids: Any) -> int:
        """Remove users: their ids, groups, events, rows and optimizer state.

        Other rows keep what they have learned from these users. Models in closed form are computed again. If they
        have group weights and the checkpoint had no groups, call `set_groups` first.

        Parameters
        ----------
        user_ids
            One id or a list of ids.

        Returns
        -------
        int
            The number of known users among them.

        """
        with self._changing():
            state = self._states.current
            rows = state.user_ids.lookup(id_or_ids(user_ids))
            rows = np.unique(rows[rows >= 0])
            if len(rows):
                self._require_optimizer("forget")
                state.require_groups("forgetting")
                self._states.replace(self._trainer.forget(state, rows))
            return len(rows)

    def retain(self, events: Any) -> int:
        """Keep only these events; drop all others, and users left without any.

        Models in closed form (popularity, item-item) are computed again; models trained by gradient descent keep
        what they have learned.

        Parameters
        ----------
        events
            Tables with the columns of users and items, as for `fit`, or an iterable of such tables. Unknown events
            change nothing.

        Returns
        -------
        int
            The number of dropped events.

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
            state = self._states.current
            remaining = state.positions_of(events)
            if len(remaining) == 0:
                raise DataError(
                    f"none of the {len(state.history)} events that the recommender knows is among these, so that "
                    f"nothing would be left; fit a new recommender instead"
                )
            n_dropped = len(state.history) - len(remaining)
            if n_dropped:
                self._require_optimizer("forget")
                state.require_groups("forgetting")
                self._states.replace(self._trainer.retain(state, remaining))
            return n_dropped

    def set_groups(self, users: Any, *, groups: Groups | None = None) -> None:
        """Set every user's group after loading a checkpoint without groups; users without a row get none.

        If the recommender was fitted without groups, `groups` names them: `Groups` of any users.
        """
        with self._changing():
            state = self._states.current
            known = groups if groups is not None and state.groups.is_empty else state.groups
            groups = read_more_groups(state.user_ids.ids, to_table(users, what="the users"), state.columns, known)
            if groups is None:
                raise DataError(f"the users have no column {state.groups.attribute!r}, which makes the groups")
            self._states.replace(replace(state, groups=groups, lacks_groups=False))

    def set_kinds(self, kinds: Mapping[str, float], *, returning: Sequence[str], judge_by: Sequence[str]) -> None:
        """Read later events with these kinds, as `read_events` does; the weights of known events stay."""
        with self._changing():
            state = self._states.current
            about: dict[str, Any] = {"kinds": dict(kinds), "returning": tuple(returning), "judge_by": tuple(judge_by)}
            self._states.replace(replace(state, columns=replace(state.columns, **about)))

    def set_target(self, recipe: Recipe) -> None:
        """Use the target and the objective of a recipe from now on, after `set_groups`."""
        with self._changing():
            changed = replace(self.recipe, target=recipe.target, objective=recipe.objective)
            self._trainer = replace(self._trainer, recipe=changed)

    # ── serving ──────────────────────────────────────────────────────────────────────────

    def recommend(
        self,
        user_ids: Any = None,
        k: int = 20,
        *,
        histories: Sequence[Sequence[Any]] | None = None,
        exclude: Any = None,
        only: Any = None,
        audience: Any = None,
        task: Task = "next",
        at: Any = None,
    ) -> pa.Table:
        """Return the k best items for each user, without the items of the user's own events.

        Parameters
        ----------
        user_ids
            An id, or a list or column of ids; unknown ones get the popularity fallback.
        k
            Items per user; fewer if the user has had nearly all items.
        histories
            Instead of ids, the items of people without an id, in order. Models that do not read histories give them
            the popularity fallback.
        exclude, only
            Ids of items to leave out, or of the only items to rank: one id or a list. Unknown ids change nothing.
        audience
            Ids of users, such as everyone in the newcomer's country or department: their events count four times in
            popularity. Use an attribute that you know at the request and may use: the lists reveal it.
        task
            What the lists predict: "next", all events of the user in the coming period; "event", the user's very
            next event. `evaluate` tests the same lists.
        at
            The time of the request, for a model that reads times: a datetime (UTC without a time zone), a NumPy
            datetime64, or seconds since 1970. By default the time of the latest known event. Items of `histories` have
            no time.

        Returns
        -------
        pyarrow.Table
            user_id (or history, its number from 0), item_id, rank (from 1), score, source ("model" or "popularity").

        Raises
        ------
        ConfigurationError
            If neither or both of `user_ids` and `histories` are given, histories are not lists, `only` and `exclude`
            leave no item, or `at` is before the latest known event or the model reads no times.

        Warns
        -----
        UserWarning
            If histories name unknown items, which are ignored.

        """
        if (user_ids is None) == (histories is None):
            raise ConfigurationError("recommend takes either user_ids or histories")
        with self._reading() as state:
            maker = ListMaker.of(state, _check_k(k), task, exclude=exclude, only=only, at=at, audience=audience)
            if histories is None:
                return maker.table("user_id", *users_in(state, user_ids), lambda: state.fallback)
            maker, rows = maker.with_histories(histories, state.item_ids)
            return maker.table("history", pa.array(np.arange(len(rows))), rows, lambda: state.fallback)

    def recommend_to(
        self,
        path: str | Path,
        user_ids: Any = None,
        k: int = 20,
        *,
        exclude: Any = None,
        only: Any = None,
        task: Task = "next",
        at: Any = None,
        users_per_file: int = 10_000,
    ) -> None:
        """Write the k best items for many users as Parquet files, in the memory of one file.

        Parameters
        ----------
        path
            A missing or empty folder, for `part-00000.parquet` and so on: the tables of `recommend`.
        user_ids
            As for `recommend`; None: all known users.
        k, exclude, only, task, at
            As for `recommend`.
        users_per_file
            Users per file.

        Raises
        ------
        ConfigurationError
            If the folder is not empty or cannot be written, or an option is wrong.

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
        if users_per_file < 1:
            raise ConfigurationError(f"users_per_file must be >= 1, got {users_per_file}")
        with self._reading() as state:
            maker = ListMaker.of(state, _check_k(k), task, exclude=exclude, only=only, at=at)
            ids, rows = users_in(state, state.user_ids.ids if user_ids is None else user_ids)
            maker.write(Path(path), ids, rows, state.fallback, users_per_file=users_per_file)

    def similar_items(self, items: Any, k: int = 20) -> pa.Table:
        """Return the k items most similar to each given item, by cosine.

        Models whose scores are inner products (mf, gru, sasrec) compare the items' vectors; the others compare the
        items' sets of users.

        Parameters
        ----------
        items
            One id or a list of ids; unknown and untrained items have no similar ones.
        k
            Similar items per item; fewer if fewer share a user with it.

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

    def evaluate(
        self,
        events: Any,
        *,
        users: Any = None,
        task: PeriodTask = "next",
        k: int | None = None,
        metrics: Metrics | None = None,
        min_group_size: int = 20,
        n_resamples: int = 1000,
        keep_lists: bool = False,
        at_levels: bool = True,
        baseline: bool = False,
    ) -> Evaluation:
        """Measure quality by group on new events, with its uncertainty.

        Call it before `update`: events that the model has learned cannot test it.

        Parameters
        ----------
        events, users
            As for `update`.
        task
            "next": one list for each user, tested on all of the user's events. "event": one list for each event, from
            the user's events before it. "moment": the same, but a user's events with equal times share one list.
        k
            Length of the lists, by default 20; at most the number of known items.
        metrics
            Names, or functions by name; by default those of the constructor.
        min_group_size
            Groups with fewer tested users are excluded.
        n_resamples
            Bootstrap samples and permutations; 0: no intervals and no p-values.
        keep_lists
            Keep the lists as `Evaluation.lists`: `fairstream.tools.breakdown` reads them.
        at_levels
            Also test the lists at every level of the groups: without it there is no regret.
        baseline
            Evaluate recent popularity in place of the model.

        Returns
        -------
        Evaluation
            Its metrics by name.

        """
        check_period_task(task)
        with self._reading() as state:
            state.require_groups("an evaluation")
            new = NewEvents.align(self._read_more(state, events, users, None), state)
            if state.history.seen.has(new.users, new.items).all():
                raise DataError("the model has learned from every one of these events already; evaluate it on new ones")
            if new.marks is not None and not new.marks.judged.any():
                raise DataError("none of these events is of a kind to judge by")
            n_items, notes = state.history.n_items, tuple[str, ...]()
            length = 20 if k is None else _check_k(k)
            if k is not None and length > n_items:
                notes = (f"k = {length} exceeds the {n_items} known items: the lists and the metrics end there",)
            evaluator = self._evaluator(
                new,
                k=min(length, n_items),
                min_group_size=min_group_size,
                n_resamples=n_resamples,
                metrics=metrics,
                keep_lists=keep_lists,
                at_levels=at_levels,
            )
            evaluation = evaluate_state(evaluator, state, new, task=task, is_popularity=baseline)
        tested = new.user_ids.ids.take(evaluation.tested.users)
        return replace(evaluation, users=tested, notes=(*notes, *evaluation.notes))

    def regret(self) -> dict[str, PastRegret]:
        """Return what each group could have had on the periods that this recommender has replayed.

        Every update with a target replays all levels on the new period before learning it; `fit` of the blend replays
        the last 5 % of its events. The numbers are those of the level in force now, in the metric of the target.

        Returns
        -------
        dict
            Group → `served`, `attainable`, `regret` (the share of `attainable` that it does not get) and its 95 %
            `interval`; empty without a replay.

        Examples
        --------
        >>> from fairstream import synthetic_stream
        >>> stream = synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
        >>> first, later = stream.events.slice(0, 15_000), stream.events.slice(15_000)
        >>> rec = FairRecommender("popularity").fit(first, users=stream.users, group="community")
        >>> outlook = rec.update(later, users=stream.users).regret()["minority"]
        >>> f"{outlook.served:.3f} of {outlook.attainable:.3f}"
        '0.099 of 0.111'

        """
        with self._reading() as state:
            periods = [PeriodReplay.from_json(period) for period in state.replays.get("periods", ())]
            return past_regret(periods, state.level)

    def explain_gap(self) -> GapExplanation:
        """Say why the group furthest behind was behind on the periods that this recommender has replayed.

        The numbers are those of `regret`: of the level in force now, in the metric of the target. For new events use
        `rec.evaluate(events).explain_gap()`, which also gives intervals of all parts.

        Returns
        -------
        GapExplanation
            Its `sentences()`, a row for each group, `composition` and `plot()`.

        Raises
        ------
        DataError
            If no period was replayed, or it had fewer than two groups with enough tested users.

        Examples
        --------
        >>> from fairstream import synthetic_stream
        >>> stream = synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
        >>> first, later = stream.events.slice(0, 15_000), stream.events.slice(15_000)
        >>> rec = FairRecommender("popularity").fit(first, users=stream.users, group="community")
        >>> rec.update(later, users=stream.users).explain_gap().behind
        'minority'

        """
        with self._reading() as state:
            replays = state.replays
            return explain_replays(
                [PeriodReplay.from_json(period) for period in replays.get("periods", ())],
                state.level,
                metric=replays.get("metric", ""),
                task=replays.get("task", ""),
                attribute=state.groups.attribute,
            )

    def frontier(
        self,
        events: Any = None,
        *,
        users: Any = None,
        items: Any = None,
        group: str | Sequence[str] | None = None,
        advantaged: object = None,
        lever: LeverName | None = None,
        levels: Sequence[float | str] | None = None,
        n_periods: int = 5,
        pretrain_ratio: float = 0.7,
        task: PeriodTask | None = None,
        metric: str | None = None,
        max_gap: float | None = None,
        max_loss: float | None = None,
        min_group_size: int = 20,
        n_resamples: int = 1000,
        on_progress: OnProgress | None = None,
    ) -> Frontier:
        """Measure the cost of each level of a fairness lever on past events, and recommend a level.

        It trains a model with this recommender's configuration and no lever on the first events. From there, a run
        for each level learns a period and tests the model on the next; for the lever "level" one run tests all levels.
        The recommender does not change.

        Parameters
        ----------
        events, users, items, group, advantaged
            The past, as for `fit`; None: the events that this recommender knows.
        lever
            "level" (the default), how many times the events of the group furthest behind count in popularity;
            "group_weight", how many times they count in training (closed forms, sequence models with the softmax loss,
            the blend); "fairness_weight", λ. Which group is furthest behind is decided on the first test alone, which
            comes before the tested periods.
        levels
            Values of the lever, with the one that has no effect; by default 1, 1.5, 2, 3, 5, 8, 13, 20, 50 and "alone"
            for "level" (with more than two groups 1, 2, 5, 13 and "alone"; others cannot be chosen), 1, 1.5, 2, 3, 5, 8
            for "group_weight" and 0, 0.5, 1, 2, 4, 8 for "fairness_weight".
        n_periods
            Periods to test on, after a first one that is only learned.
        pretrain_ratio
            Share of the events before these periods.
        task, metric
            "event", "moment" or "next", and NAME@K; by default those of the target.
        max_gap
            The accepted gap; by default the target's.
        max_loss
            The acceptable loss of overall quality, as a share; by default unlimited if some level reaches the
            accepted gap, else 1 %.
        min_group_size, n_resamples
            As for `evaluate`; `n_resamples` must be positive.
        on_progress
            Called with the current stage and the finished share of the work.

        Returns
        -------
        Frontier
            `levels`, `recommended`, `setting`, `verdicts()`, `to_arrow()`.

        Raises
        ------
        ConfigurationError
            If an option is out of range, or the model does not have the lever.
        DataError
            If there are no groups, too few events, or too few users of the groups.

        """
        from fairstream.experiments.levers import log_of, measure_frontier  # noqa: PLC0415 (a layer above this one)

        target = self.recipe.target or LeastRegret()  # for its metric and task
        task = check_period_task(task or target.task)
        if events is None:
            log = log_of(self.state, task)
        else:
            log = self._read(events, users=users, items=items, group=group, advantaged=advantaged)
        metric, custom = metric or target.metric, self._trainer.metrics
        return measure_frontier(
            self._trainer.readable(log),
            self._trainer,
            lever=lever,
            levels=levels,
            n_periods=n_periods,
            pretrain_ratio=pretrain_ratio,
            task=task,
            metric={metric: custom[metric]} if metric in custom else metric,
            max_gap=target.gap if max_gap is None and isinstance(target, MaxGap) else max_gap,
            max_loss=max_loss,
            min_group_size=min_group_size,
            n_resamples=n_resamples,
            on_progress=on_progress,
        )

    # ── keeping ──────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path, *, with_groups: bool = True) -> None:
        """Write a checkpoint, from which `load` continues bit for bit.

        Without groups it recommends the same. Call `set_groups` before it learns: a fairness loss has no effect
        without groups, and updates with group weights need them.
        """
        self._require_optimizer("be saved")
        with self._reading() as state:
            write_checkpoint(Path(path), state if with_groups else state.without_groups(), self._trainer)

    def export(self, path: str | Path) -> None:
        """Write ids and vectors whose inner products are the scores, for an index such as FAISS.

        Writes `items.parquet` (item_id, vector), `users.parquet` (user_id, vector), and the same vectors in the same
        order as `items.npy` and `users.npy` (float32), without users and items that the model cannot score. An index
        does not know the user's own items: request more, and leave those out.

        Parameters
        ----------
        path
            A missing or empty folder.

        Raises
        ------
        ConfigurationError
            If the model's scores are not inner products (item-item, transitions, popularity, ncf, blend).
        CheckpointError
            If the folder is not empty, or cannot be written.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from fairstream import Training, models, synthetic_stream
        >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
        >>> rec = FairRecommender(models.MF(embedding_dim=8), training=Training(pretrain_epochs=1)).fit(stream.events)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rec.export(f"{folder}/vectors")
        ...     np.load(f"{folder}/vectors/items.npy").shape[1]
        8

        """
        with self._reading() as state:
            write_vectors(Path(path), state, self.recipe.model.name)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        model: str | Model | ModelFactory = AS_SAVED,
        fairness: Fairness = AS_SAVED,
        target: Target | str | None = AS_SAVED,
        strategy: str | Strategy = AS_SAVED,
        training: Training = AS_SAVED,
        metrics: Metrics | None = None,
        device: Literal["auto", "cpu", "cuda"] | None = None,
        engine: EngineName | None = None,
        frozen: bool = False,
    ) -> FairRecommender:
        """Read a checkpoint, by default onto the device that it was saved from.

        Parameters
        ----------
        path
            The folder that `save` wrote.
        model
            Only for an unregistered model: a checkpoint holds no code. The model's settings, the optimizer and the
            seed cannot change.
        fairness, target, strategy
            Replace the saved ones; pass custom objects again.
        training
            Replaces the settings that it names.
        metrics, device, engine
            As for the constructor.
        frozen
            Leave out the optimizer, which takes most of the memory. The result can recommend and observe events;
            it cannot learn, forget or be saved.

        Raises
        ------
        CheckpointError
            If the folder is not a complete checkpoint.
        ConfigurationError
            If an option is wrong, or cannot change.

        Examples
        --------
        >>> import tempfile
        >>> from fairstream import Training, load, read_events, synthetic_stream
        >>> stream = synthetic_stream(n_users=100, n_items=60, n_events=2000, seed=0)
        >>> rec = FairRecommender("mf", training=Training(pretrain_epochs=1)).fit(stream.events, users=stream.users)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rec.save(folder)
        ...     again = load(folder)
        >>> users = stream.events["user_id"][:3]
        >>> again.recommend(users) == rec.recommend(users)
        True

        """
        manifest, tensors = read_checkpoint(Path(path))
        runtime = RuntimeConfig(device="cpu" if frozen else device or manifest.get("device", "auto"))
        runtime.torch_device()  # a missing device is no fault of the checkpoint
        given = {"model": model, "fairness": fairness, "target": target, "strategy": strategy, "training": training}
        options = read_options(path, manifest, given)
        if engine is not None:
            options["engine"] = engine
        if isinstance(target, MaxGap) and not manifest["groups"]["names"]:
            raise ConfigurationError(f"MaxGap is about a gap between groups, but {path} has none; leave it out")
        recommender = cls(metrics=metrics, device=runtime.device, **options)
        # Flat options may have set what no parameter says.
        flat: tuple[str, ...] = ("update_epochs", "update_learning_rate") if strategy is AS_SAVED else ()
        flat += ("fairness_weight", "n_fairness_negatives") if fairness is AS_SAVED and target is AS_SAVED else ()
        parts = {name: value for name, value in options.items() if name in given}
        recipe = Recipe.resolve(**parts, **{name: manifest["recipe"].get(name) for name in flat})
        recommender._trainer = replace(recommender._trainer, recipe=recipe)
        recommender._states.replace(read_state(path, manifest, tensors, recommender._trainer, frozen=frozen))
        recommender._is_frozen = frozen
        return recommender

    # ── the state ────────────────────────────────────────────────────────────────────────

    @property
    def state(self) -> State:
        """The serving state: immutable, valid as long as you keep it."""
        return self._states.share()

    @property
    def model(self) -> Scorer:
        """The serving model."""
        return self.state.model

    def __getstate__(self) -> dict[str, Any]:
        """A copy shares the state, which never changes."""
        return {**self.__dict__, "_states": copy.copy(self._states)}

    def __deepcopy__(self, memo: dict[int, Any]) -> FairRecommender:
        return copy.copy(self)

    def _require_optimizer(self, task: str) -> None:
        if self._is_frozen:
            raise ConfigurationError(
                f"this recommender was loaded with frozen=True, to recommend from, and cannot {task}; load it without"
            )

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
        return self._trainer.readable(log)

    def _evaluator(self, new: NewEvents, *, metrics: Metrics | None = None, **options: Any) -> Evaluator:
        metrics = self._params["metrics"] if metrics is None else metrics
        return Evaluator(groups=new.groups, randomness=self._trainer.randomness, metrics=metrics, **options)


_DEFAULTS = {name: option.default for name, option in inspect.signature(FairRecommender).parameters.items()}


def _parts(recipe: Recipe) -> dict[str, Any]:
    """The parameters that have settings."""
    parts = {"model": recipe.model, "target": recipe.target, "strategy": recipe.strategy}
    return {**parts, "fairness": recipe.fairness_option, "training": recipe.training}


def _with_nested(params: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    nested = {f"{name}__{key}": value for name, part in parts.items() for key, value in _settings(part).items()}
    return {**params, **nested}


def _settings(part: Any) -> dict[str, Any]:
    if isinstance(part, CustomModel):
        return part.all_settings
    if isinstance(part, Configuration):
        own = {name: getattr(part, name) for name in type(part).model_fields}
        return _with_nested(own, own)
    if is_dataclass(part) and not isinstance(part, type):
        return {field.name: getattr(part, field.name) for field in fields(part) if field.repr}
    return {}


def _with_settings(part: Any, settings: Mapping[str, Any], given: Any) -> Any:
    if isinstance(part, Training):  # what was not given stays the model's own
        return (given or Training()).with_options(**settings)
    if isinstance(part, ModelConfig | CustomModel):
        return resolve_model(part, {name.replace("__", "."): value for name, value in settings.items()})
    return replace(part, **settings)


def _check_k(k: Any) -> int:
    if not isinstance(k, int | np.integer) or k < 1:
        raise ConfigurationError(f"k must be a whole number from 1 on, got {k!r}")
    return int(k)


load = FairRecommender.load
