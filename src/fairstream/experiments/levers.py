"""The levels of a lever, computed as runs that share one pre-training.

A lever is an option that trades quality against the gap between groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fairstream.data import EventLog
from fairstream.data.features import ItemFeatures
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import (
    DEFAULT_METRICS,
    Estimate,
    GroupPanel,
    GroupScores,
    Metric,
    MetricAtK,
    Paired,
    PeriodTask,
    UserResults,
    resolve_metrics,
    score_periods,
    stack_periods,
)
from fairstream.evaluation.regret import SystemRegret
from fairstream.experiments.config import RunConfig
from fairstream.experiments.frontier import LEVERS, Frontier, FrontierLevel, LeverName
from fairstream.experiments.jobs import PlannedRun, Pretrained, Source, plan_runs
from fairstream.experiments.measured import level_panels, pareto_front
from fairstream.experiments.pool import load_runs
from fairstream.experiments.record import Record
from fairstream.experiments.run import Run
from fairstream.experiments.store import Store
from fairstream.methods import MethodConfig, Parts
from fairstream.models import MODELS, ClosedFormScorer, Level, levels_of
from fairstream.models.levels import ALONE
from fairstream.objectives import DisparityLoss
from fairstream.randomness import Randomness
from fairstream.recipe import Recipe
from fairstream.recommender import State
from fairstream.recommender.trainer import Trainer
from fairstream.strategies import Keep
from fairstream.text import counted
from fairstream.training import choose_engine

_K = 20  # the cut-off of a metric that is named without one
OnProgress = Callable[[str, float], None]  # called with the current stage and the share of the work done, 0 to 1


def check_levels(
    lever: LeverName, levels: Sequence[float | str] | None, groups: Sequence[str] = ("", "")
) -> tuple[float, ...]:
    """Return the values of a lever in ascending order, each once, the one without an effect among them.

    The lever "level" has those of `models.levels`, fewer with more than two groups; the last of them can be named
    "alone".

    >>> check_levels("group_weight", [4, 1, 2])
    (1.0, 2.0, 4.0)
    >>> check_levels("level", ["alone", 1])
    (1.0, 1000.0)
    """
    off, default = LEVERS[lever]
    weights = sorted({level.weight for level in levels_of(groups)})
    if lever == "level":
        default = tuple(value for value in weights if value in LEVERS[lever].levels)
    if levels is None:
        return default
    if lever == "level":
        known = {"alone" if value >= ALONE else f"{value:g}": value for value in weights}
        named = [value if isinstance(value, str) else f"{value:g}" for value in levels]
        if unknown := [name for name in named if name not in known and name != f"{ALONE:g}"]:
            raise ConfigurationError(f"the levels of a group are {', '.join(known)}, got {', '.join(unknown)}")
        values = tuple(sorted({known.get(name, ALONE) for name in named}))
    else:
        values = tuple(sorted({getattr(MethodConfig(**{lever: level}), lever) for level in levels}))
    if off not in values or len(values) < 2:
        raise ConfigurationError(
            f"the levels of {lever} must include {off:g}, which does nothing, and another value to compare with it, "
            f"got {', '.join(f'{value:g}' for value in values) or 'none at all'}"
        )
    return values


def choose_lever(learning: Trainer, lever: LeverName | None) -> tuple[LeverName, tuple[str, ...]]:
    """Return the lever to vary, by default the levels of popularity; and notes on it."""
    recipe, has_weights = learning.recipe, learning.takes_event_weights
    is_closed = isinstance(learning.models.example, ClosedFormScorer)
    if lever is None or lever == "level":
        return "level", learning.note_on_levels()
    problem = None
    if recipe.engine_choice is not choose_engine or isinstance(recipe.strategy, Keep):
        problem = "this method uses neither event weights nor λ in updates; choose a strategy that updates the model"
    elif lever not in LEVERS:
        problem = f"lever must be one of {', '.join(LEVERS)}, got {lever!r}"
    elif is_closed and not has_weights:
        problem = f"the model {recipe.model.name} has neither group weights nor a fairness loss to vary"
    elif is_closed and lever == "fairness_weight":
        problem = (
            f"the model {recipe.model.name} is computed in closed form and has no fairness loss to weigh; "
            f"choose the lever group_weight"
        )
    if problem is not None:
        raise ConfigurationError(problem)
    if lever == "group_weight" and not has_weights:
        return lever, (
            f"the training of {recipe.model.name} takes no event weights, so they have no effect; fairness_weight "
            f"is the lever that this model has",
        )
    if lever == "fairness_weight" and recipe.fairness is None:
        return lever, ("there is no fairness loss: the signed one is weighed, as with fairness='signed'",)
    return lever, ()


def at_level(recipe: Recipe, lever: LeverName, value: float, group: str | None = None) -> Recipe:
    """Return the recipe with one lever at a value and the others off, and without a target.

    A group weight is for `group`. The levels of popularity need no recipe: every test tries them all.
    """
    off = recipe.without_lever()
    if lever == "level":
        return off
    if lever == "group_weight":
        return replace(off, group_weight=value, weighted_group=group)
    loss, n = recipe.fairness or DisparityLoss(), recipe.n_fairness_negatives
    mu = n if value else recipe.training.n_negatives
    return replace(off, fairness=loss, objective=replace(off.objective, lambda_=value, mu=mu, fairness=loss))


class LevelRun(Run):
    """A run with the trainer of a recommender, at the level of a lever that its configuration names."""

    def __init__(
        self, log: EventLog, config: RunConfig, *, learning: Trainer, lever: LeverName, **options: Any
    ) -> None:
        value = LEVERS[lever].off if lever == "level" else getattr(config, lever)
        recipe = at_level(learning.recipe, lever, value, config.weighted_group)
        self._at_level = replace(learning, recipe=recipe)
        super().__init__(log, config, **options)

    def _make_trainer(self, parts: Parts) -> Trainer:
        return self._at_level


def log_of(state: State, task: PeriodTask) -> EventLog:
    """Return the events of a state as a log, in order of arrival; if times do not have this order, without times."""
    history = state.history
    users, items = history.users, history.items
    seconds, times = history.times_at(range(len(history))), np.arange(len(history))
    if seconds is not None and bool((np.diff(seconds, prepend=0) >= 0).all()):
        times = (seconds * 1e6).round().astype("datetime64[us]")
    elif task == "moment":
        raise ConfigurationError(
            "the task moment needs the time of each event, in order, which this recommender does not have; pass the "
            "events to frontier, or evaluate the task event"
        )
    log = EventLog.from_columns(
        state.user_ids.ids.take(users), state.item_ids.ids.take(items), times, state.columns.repeats
    )
    features = None
    if state.features is not None:
        features = ItemFeatures(state.item_ids, state.features[: len(state.item_ids)])
    groups = None
    if not state.groups.is_empty:
        _, first = np.unique(users, return_index=True)
        rows = users[np.sort(first)]  # in the order of first appearance, as the log numbers them
        groups = replace(state.groups, codes=state.groups.codes[rows]).with_advantaged(state.groups.names[0])
    return replace(log, groups=groups, columns=state.columns, features=features)


def measure_frontier(
    log: EventLog,
    learning: Trainer,
    *,
    lever: LeverName | None,
    levels: Sequence[float | str] | None,
    n_periods: int,
    pretrain_ratio: float,
    task: PeriodTask,
    metric: str | Mapping[str, Metric],
    max_gap: float | None,
    max_loss: float | None,
    min_group_size: int,
    n_resamples: int,
    on_progress: OnProgress | None = None,
) -> Frontier:
    """Compute `FairRecommender.frontier` with the trainer of a recommender; `metric` may be a named function."""
    lever, notes = choose_lever(learning, lever)
    own = {} if isinstance(metric, str) else dict(metric)
    _check_options(lever, own, {"max_gap": max_gap, "max_loss": max_loss}, n_periods=n_periods, n_resamples=n_resamples)
    if log.groups is None:
        raise DataError(
            "a frontier is about the gap between groups of users, but the log has none; read it with a users table "
            "and group=COLUMN (on the command line: --group COLUMN)"
        )
    values = check_levels(lever, levels, log.require_groups().names)
    (resolved,) = resolve_metrics(own or (str(metric),), _K, DEFAULT_METRICS)
    recipe = learning.recipe
    # The trainer decides how the runs learn; of that, their configurations only name the level.
    config = RunConfig(
        method="FADE",
        target="none",
        model=recipe.model.name if recipe.model.name in MODELS else "mf",
        pretrain_epochs=recipe.training.pretrain_epochs,
        update_epochs=recipe.update_epochs,
        batch_size=recipe.training.batch_size,
        seed=learning.randomness.seed,
        device="cuda" if learning.device.type == "cuda" else "cpu",
        tasks=(task,),
        metrics=() if own else (resolved.name,),
        k=resolved.k,
        min_group_size=min_group_size,
        n_resamples=0,
        pretrain_ratio=pretrain_ratio,
        n_periods=n_periods + 1,  # the last one is only tested on
        n_blocks=n_periods + 1,
    )
    run_level = partial(LevelRun, learning=learning, lever=lever)
    parts = Parts(metrics=own)
    # One run tests all levels of popularity.
    configs = [config] if lever == "level" else [config.with_options(**{lever: value}) for value in values]
    first = run_level(log, configs[0 if lever == "level" else values.index(LEVERS[lever].off)], parts=parts)
    raised = list(first.groups.behind())
    if lever == "fairness_weight" and not raised:
        loss = replace(learning, recipe=at_level(recipe, lever, max(values)))
        for why_not in loss.notes_on_fairness(first.groups):  # without an advantaged group, some losses do nothing
            raise ConfigurationError(why_not)
    progress = _Progress(on_progress, plan_runs(Source(log), configs))
    progress.pretrain(first)
    if lever != "fairness_weight":
        raised = [_furthest_behind(first, task, min_group_size)]
    if lever == "group_weight":
        configs = [config.with_options(weighted_group=raised[0]) for config in configs]
    records = _execute(log, first, configs, parts, run_level, progress)
    _need_user_values(records)
    if lever == "level":
        records = records * len(values)
        tests = {value: _at_popularity(records[0].tested(task), resolved.name, raised[0], value) for value in values}
    else:
        tests = {value: record.tested(task) for value, record in zip(values, records, strict=True)}
    groups = tuple(records[0].about["data"]["groups"])
    timing = [record.about["timing"] for record in records]
    return Frontier(
        lever=lever,
        metric=resolved.name,
        task=task,
        attribute=first.groups.attribute,
        groups=groups,
        target_groups=tuple(name for name in raised if name in groups),
        n_users=len(np.unique(np.concatenate([tested.users for tested in tests[values[0]]]))),
        period_ends=first.periods.ends,
        levels=make_levels(
            tests,
            records[0].metric(resolved.name),
            groups,
            off=LEVERS[lever].off,
            min_group_size=min_group_size,
            n_resamples=n_resamples,
            randomness=learning.randomness,
            seconds={value: float(np.mean(of["update_s"])) for value, of in zip(values, timing, strict=True)},
        ),
        max_gap=max_gap,
        max_loss=max_loss,
        pretrain_seconds=timing[0]["pretrain_s"],
        notes=(*log.notes, *notes),
    )


def _check_options(
    lever: LeverName, own_metrics: Mapping[str, Metric], shares: Mapping[str, float | None], **counts: int
) -> None:
    """Raise a ConfigurationError if an option is out of range, or the lever cannot be tested by a custom metric."""
    for name, value in shares.items():
        if value is not None and not 0 <= value < 1:
            raise ConfigurationError(f"{name} must be >= 0 and < 1, got {value:g}")
    for name, n in counts.items():
        if n < 1:
            raise ConfigurationError(f"{name} must be >= 1, got {n}")
    if own_metrics and lever == "level":
        raise ConfigurationError(
            f"levels are tested by the hits alone, and {next(iter(own_metrics))} is a custom metric; choose another "
            f"metric, or the lever group_weight or fairness_weight"
        )


def _need_user_values(records: Sequence[Record]) -> None:
    for record in records:
        if total := next((name for tested in record.tests.values() for name in tested.totals), None):
            raise ConfigurationError(
                f"{total} is one number for all users and leaves no users to resample; choose a metric of one value a "
                f"user"
            )


class _Progress:
    """Reports the share of the work done: one pre-training, then a run for each configuration."""

    def __init__(self, on_progress: OnProgress | None, runs: Sequence[PlannedRun]) -> None:
        self._on_progress, self._n_runs, self._pretraining = on_progress, len(runs), runs[0].work(0)
        self._total = self._pretraining + sum(run.update_work for run in runs)

    def pretrain(self, first: Run) -> None:
        first.on_progress = lambda _, done, n: self._report("pre-training", self._pretraining * done / n)
        self._report("pre-training", 0.0)
        first.begin()

    def on_jobs(self, work: float, n_done: int) -> None:
        # A closed form has no epochs that would count as work.
        least = (self._total - self._pretraining) * n_done / self._n_runs
        self._report(f"{n_done} of {counted(self._n_runs, 'run')}", self._pretraining + max(work, least))

    def _report(self, stage: str, work: float) -> None:
        if self._on_progress is not None:
            self._on_progress(stage, min(1.0, work / self._total))


def _furthest_behind(first: Run, task: PeriodTask, min_group_size: int) -> str:
    """Return the group that is furthest behind in the first test, which comes before all tested periods."""
    score = next(iter(first.begin().tasks[task].metrics.values()))
    if score.furthest_behind_group is not None:
        return score.furthest_behind_group
    if len(first.groups.names) == 2:
        return first.groups.names[1]
    raise DataError(
        f"no group can be raised: in the first test fewer than {min_group_size} users of all groups but one were "
        f"tested; use fewer periods, more events, or a smaller min_group_size"
    )


def _at_popularity(tested: Sequence[UserResults], metric: str, group: str, weight: float) -> list[UserResults]:
    """Return tests with the users' values at a level; a group that appears later has no level before."""
    if weight == LEVERS["level"].off:
        return list(tested)
    level, parts = Level(group, weight), []
    for part in tested:
        assert part.level_values is not None  # a built-in metric, and two groups or more
        column = part.levels.index(level) if level in part.levels else 0
        parts.append(replace(part, values={metric: part.level_values[:, column]}))
    return parts


def _execute(
    log: EventLog,
    first: Run,
    configs: Sequence[RunConfig],
    parts: Parts,
    run_level: Callable[..., Run],
    progress: _Progress,
) -> list[Record]:
    """Compute a run from the pre-training of the first one for each configuration."""
    with Store.temporary() as store:
        return load_runs(
            store,
            plan_runs(Source(log), configs),
            device=first.config.device,
            parts=parts,
            make_run=run_level,
            pretrained=Pretrained.of(first),
            on_start=lambda _: progress.on_jobs,
        )


def make_levels(
    tests: Mapping[float, Sequence[UserResults]],
    metric: MetricAtK | str,
    names: Sequence[str],
    *,
    off: float,
    min_group_size: int,
    n_resamples: int,
    randomness: Randomness,
    seconds: Mapping[float, float],
) -> tuple[FrontierLevel, ...]:
    """Measure and compare the levels of a lever.

    `tests` holds, for each value of the lever, the results of each tested period, of the same users at every level;
    `off` is the value without an effect; `seconds` are those of an update, on average.
    """
    stacks = [stack_periods(periods, [metric]) for periods in tests.values()]
    panel = GroupPanel(
        np.concatenate([values for values, _ in stacks], axis=2), stacks[0][1], len(names), min_group_size
    )
    paired = Paired(panel, 1, n_resamples)
    scores: list[GroupScores] = []
    for periods in tests.values():
        rng = randomness.numpy("resampling of the mean", len(periods))
        scores += score_periods(periods, [metric], names, min_group_size, rng, n_resamples)[0].values()
    # Two groups: of the advantaged one; more: of the one furthest behind.
    both = [(score.disparity if len(names) == 2 else None) or score.gap for score in scores]
    level_gaps = [gap for gap in both if gap is not None]
    if len(level_gaps) < len(scores):
        raise DataError(
            f"no disparity can be compared: in every period fewer than {min_group_size} users of all groups but one "
            f"were tested; use fewer periods, more events, or a smaller min_group_size"
        )
    behind = [score.furthest_behind_group or "" for score in scores]
    at, gaps = list(tests).index(off), paired.of("gap")
    # As `level_gaps`: the gap of the group furthest behind is turned around.
    sides = [(0, 1.0) if len(names) == 2 else (names.index(name), -1.0) for name in behind]
    gap_values = np.array([sign * gaps[0][code, c] for c, (code, sign) in enumerate(sides)])
    gap_draws = np.stack([sign * gaps[1][:, code, c] for c, (code, sign) in enumerate(sides)], axis=1)
    panels = level_panels(list(tests.values()), metric, [names] * len(tests), min_group_size, 1)
    regret = SystemRegret.of(panels, n_resamples)
    is_on_front = pareto_front(list(zip(-paired.of("mean")[0], np.abs(gap_values), strict=True)))
    return tuple(
        FrontierLevel(
            value,
            score,
            gap,
            name,
            paired.interval("mean", c, at),
            Estimate.of_draws(gap_values[c] - gap_values[at], gap_draws[:, c] - gap_draws[:, at]),
            seconds[value],
            is_on_front[c],
            regret.by_group(c),
        )
        for c, (value, score, gap, name) in enumerate(zip(tests, scores, level_gaps, behind, strict=True))
    )
