"""The past gone through again at each level of a lever: from one pre-training, each period tested before learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fairstream.cluster import connect
from fairstream.data import EventLog, Groups, Vocabulary
from fairstream.data.features import ItemFeatures
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import Metric, MetricAtK, Protocol, UserResults, resolve_metrics
from fairstream.methods import MethodConfig
from fairstream.models import Task
from fairstream.periods import Periods, cut_periods
from fairstream.recommender.frontier import Frontier, make_levels
from fairstream.recommender.learning import Learning
from fairstream.recommender.levers import LEVERS, LeverName, at_level, check_levels, choose_lever
from fairstream.recommender.state import State
from fairstream.training import OnEpoch

if TYPE_CHECKING:
    from fairstream.recommender.recommender import FairRecommender

_K = 20
"""The cut-off of a metric that is named without one."""
OnProgress = Callable[[str, float], None]
"""Called with what is being done and the share of the whole work, 0 to 1, that is done."""


@dataclass(frozen=True, eq=False)
class Past:
    """A log cut into the events to pre-train on and the periods after them."""

    log: EventLog
    groups: Groups
    """With the advantaged group as the pre-training data show it, where it is not declared."""
    periods: Periods

    @classmethod
    def cut(cls, log: EventLog, *, pretrain_ratio: float, n_periods: int) -> Past:
        """Cut a log for `n_periods` tests, each after an update.

        Raises
        ------
        ConfigurationError
            If the numbers make no sense.
        DataError
            If there are no groups, or too few events.

        """
        if n_periods < 1:
            raise ConfigurationError(f"n_periods must be >= 1, got {n_periods}")
        if not 0 < pretrain_ratio < 1:
            raise ConfigurationError(f"pretrain_ratio must be > 0 and < 1, got {pretrain_ratio:g}")
        if log.groups is None:
            raise DataError(
                "a frontier is about the gap between groups of users, but the log has none; read it with a users table "
                "and group=COLUMN (on the command line: --group COLUMN)"
            )
        groups = log.require_groups()
        if math.floor(pretrain_ratio * len(log)) < 1 or (1 - pretrain_ratio) * len(log) < n_periods + 1:
            raise DataError(
                f"{len(log)} events are too few to pre-train on {pretrain_ratio:g} of them and to cut the rest into "
                f"one period to learn from and {n_periods} to test on; use more events or fewer periods"
            )
        n_cut = n_periods + 1
        periods = cut_periods(len(log), pretrain_ratio=pretrain_ratio, n_periods=n_cut, n_blocks=n_cut)
        return cls(log, groups.as_of(log.n_users_after(periods.ends[0])), periods)

    @property
    def updates(self) -> range:
        """The periods that are learned from; each is followed by one to test on."""
        return range(1, self.periods.last)

    def part(self, t: int) -> EventLog:
        """D_t, with the ids, groups and features that were known by its end and nothing later."""
        log, at = self.log, self.periods.span(t)
        n_users = log.n_users_after(at.stop)
        item_ids = Vocabulary.of_distinct(log.item_ids.ids[: log.n_items_after(at.stop)])
        features = None if log.features is None else ItemFeatures(item_ids, log.features.of(item_ids))
        return replace(
            log,
            users=log.users[at],
            items=log.items[at],
            times=log.times[at],
            user_ids=Vocabulary.of_distinct(log.user_ids.ids[:n_users]),
            item_ids=item_ids,
            groups=replace(self.groups, codes=self.groups.codes[:n_users]),
            features=features,
        )


def log_of(state: State) -> EventLog:
    """The events of a state as a log, in the order in which they came; their times are lost and counted instead."""
    history = state.history
    users, items = history.users, history.items
    log = EventLog.from_columns(
        state.user_ids.ids.take(users), state.item_ids.ids.take(items), np.arange(len(history)), state.columns.repeats
    )
    _, first = np.unique(users, return_index=True)
    rows = users[np.sort(first)]  # in the order of first appearance, as the log numbers them
    groups = replace(state.groups, codes=state.groups.codes[rows])
    features = None
    if state.features is not None:
        features = ItemFeatures(state.item_ids, state.features[: len(state.item_ids)])
    return replace(log, groups=groups.with_advantaged(groups.names[0]), columns=state.columns, features=features)


Variant = Callable[[MethodConfig, State | None], "FairRecommender"]
"""(configuration, state) → the recommender with that configuration in that state."""


def measure_frontier(
    log: EventLog,
    learning: Learning,
    variant: Variant,
    *,
    lever: LeverName | None,
    levels: Sequence[float] | None,
    n_periods: int,
    pretrain_ratio: float,
    task: Task,
    metric: str | Mapping[str, Metric],
    max_disparity: float | None,
    max_loss: float | None,
    min_group_size: int,
    n_resamples: int,
    on_progress: OnProgress | None,
    cluster: str | None = None,
) -> Frontier:
    """`FairRecommender.frontier` of a recommender with these transitions; `metric` may be a function by its name."""
    lever, notes = choose_lever(learning, lever)
    values, none = check_levels(lever, levels), LEVERS[lever].none
    for name, value in {"max_disparity": max_disparity, "max_loss": max_loss}.items():
        if value is not None and not 0 <= value < 1:
            raise ConfigurationError(f"{name} must be >= 0 and < 1, got {value:g}")
    if n_resamples < 1:
        raise ConfigurationError(f"n_resamples must be >= 1, got {n_resamples}; without draws there are no intervals")
    named = (metric,) if isinstance(metric, str) else metric
    (resolved,) = resolve_metrics(named, _K, Protocol.named("strict").metrics)
    past = Past.cut(log, pretrain_ratio=pretrain_ratio, n_periods=n_periods)
    configs = {value: at_level(learning.config, lever, value) for value in values}
    for config in configs.values():
        _check_advantaged(replace(learning, config=config), past.groups)
    tests, seconds, pretrain_seconds = _go_through(
        past,
        variant,
        at_level(learning.config, lever, none),
        {f"{lever} {value:g}": config for value, config in configs.items()},
        task=task,
        metric=resolved,
        min_group_size=min_group_size,
        on_progress=on_progress,
        cluster=cluster,
    )
    groups = past.groups.names[: past.groups.n_groups_among(log.n_users)]
    found = make_levels(
        dict(zip(values, tests, strict=True)),
        resolved,
        groups,
        none=none,
        min_group_size=min_group_size,
        n_resamples=n_resamples,
        randomness=learning.randomness,
        seconds=dict(zip(values, seconds, strict=True)),
    )
    return Frontier(
        lever=lever,
        metric=resolved.name,
        task=task,
        attribute=past.groups.attribute,
        groups=groups,
        raised=() if past.groups.choice == "auto" else tuple(name for name in past.groups.behind() if name in groups),
        n_users=len(np.unique(np.concatenate([tested.users for tested in tests[0]]))),
        period_ends=past.periods.ends,
        levels=found,
        max_disparity=max_disparity,
        max_loss=max_loss,
        pretrain_seconds=pretrain_seconds,
        notes=(*log.notes, *notes),
    )


def _check_advantaged(learning: Learning, groups: Groups) -> None:
    """Raise a ConfigurationError where a level would not do anything, because nobody has said for whom."""
    learning.fixed_weights(groups)
    if not groups.has_advantaged and (notes := learning.notes_on_fairness(groups)):
        raise ConfigurationError(notes[0])


def _go_through(
    past: Past,
    variant: Variant,
    none: MethodConfig,
    settings: Mapping[str, MethodConfig],
    *,
    task: Task,
    metric: MetricAtK,
    min_group_size: int,
    on_progress: OnProgress | None,
    cluster: str | None = None,
) -> tuple[list[list[UserResults]], list[float], float]:
    """Pre-train once, then carry each setting from there through the periods, testing on each what was learned before.

    Parameters
    ----------
    past
        The log, cut.
    variant
        Makes the recommenders.
    none
        The configuration to pre-train with.
    settings
        Those to go on with, by name.
    task, metric, min_group_size
        What is tested.
    on_progress
        Called after each epoch; on a cluster after each setting.
    cluster
        Where the settings are computed, all at once; None: here, one after another.

    Returns
    -------
    tests
        Of each setting, the results of each tested period.
    seconds
        Of each setting, what an update took on average.
    pretrain_seconds
        What the pre-training took.

    """
    parts = [past.part(t) for t in range(past.periods.last + 1)]
    progress = _Progress(on_progress, _work(parts, none, len(settings)))
    test = partial(_test, task=task, metric=metric, min_group_size=min_group_size)
    with ExitStack() as stack:
        # What cannot be honoured is said before the pre-training.
        connected = None if cluster is None else stack.enter_context(connect(cluster))
        first = variant(none, None).fit(
            parts[0], on_epoch=progress.stage("pre-training", len(parts[0]) * none.pretrain_epochs)
        )
        recommenders = {name: variant(config, first.state) for name, config in settings.items()}
        if connected is not None:
            of_each = sum(len(part) for part in parts[1:-1]) * none.update_epochs
            found = connected.run(
                _go_through_there,
                list(recommenders.values()),
                shared=(parts, past.updates, test),
                on_result=lambda n, _: progress.stage(f"{list(settings)[n]} done", of_each)(1, 1),
            )
        else:
            found = []
            for name, rec in recommenders.items():
                stages = [f"{name}, period {t} of {len(past.updates)}" for t in past.updates]
                on_epochs = (
                    progress.stage(stage, len(parts[t]) * none.update_epochs)
                    for t, stage in zip(past.updates, stages, strict=True)
                )
                found.append(_go_on(rec, parts, past.updates, test, on_epochs))
    tests, seconds = zip(*found, strict=True)
    return list(tests), list(seconds), _seconds(first)


_Test = Callable[["FairRecommender", EventLog], UserResults]


def _test(rec: FairRecommender, events: EventLog, *, task: Task, metric: MetricAtK, min_group_size: int) -> UserResults:
    metrics = {metric.name: metric.metric}
    evaluation = rec.evaluate(events, tasks=task, k=1, metrics=metrics, min_group_size=min_group_size, n_resamples=0)
    _check_by_user(evaluation.tested)
    return evaluation.tested


def _go_on(
    rec: FairRecommender,
    parts: Sequence[EventLog],
    updates: range,
    test: _Test,
    on_epochs: Iterable[OnEpoch | None],
) -> tuple[list[UserResults], float]:
    """Carry one setting through the periods: the results of each, and what an update took on average."""
    results, took = [], []
    for t, on_epoch in zip(updates, on_epochs, strict=True):
        rec.update(parts[t], on_epoch=on_epoch)
        results.append(test(rec, parts[t + 1]))
        took.append(_seconds(rec))
    return results, sum(took) / len(took)


def _go_through_there(rec: FairRecommender, shared: tuple[Any, ...], _: object) -> tuple[list[UserResults], float]:
    parts, updates, test = shared
    return _go_on(rec, parts, updates, test, [None] * len(updates))


class _Progress:
    """How much of the work, counted in events visited by training, is done."""

    def __init__(self, on_progress: OnProgress | None, work: int) -> None:
        self._on_progress, self._work, self._done, self._next = on_progress, work, 0, 0

    def stage(self, name: str, work: int) -> OnEpoch:
        """Begin the next stage; returns what is to be called after each epoch."""
        self._done, self._next = self._done + self._next, work

        def on_epoch(done: int, total: int) -> None:
            if self._on_progress is not None:
                self._on_progress(name, (self._done + work * done / total) / self._work)

        on_epoch(0, 1)
        return on_epoch


def _work(parts: Sequence[EventLog], config: MethodConfig, n_settings: int) -> int:
    updates = sum(len(part) for part in parts[1:-1]) * config.update_epochs
    return len(parts[0]) * config.pretrain_epochs + n_settings * updates


def _seconds(rec: FairRecommender) -> float:
    assert rec.last_update is not None  # it has learned something
    return rec.last_update.seconds


def _check_by_user(tested: UserResults) -> None:
    if tested.totals:
        raise ConfigurationError(
            f"{next(iter(tested.totals))} is one number for all users and leaves no users to resample; "
            f"choose a metric of one value a user"
        )
