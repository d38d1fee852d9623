"""Evaluation of the serving model on new events before an update learns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fairstream.evaluation import Evaluation, Evaluator, Metric, PeriodTask, resolve_metrics
from fairstream.models import ContextBuilder, RecentPopularityScorer
from fairstream.recommender.state import NewEvents, State
from fairstream.strategies import PeriodReplay, ReplayGroups, Target, UserQuality


class Judgement(NamedTuple):
    """The results of W_{t−1} on D_t before learning it that the strategy and the target need."""

    quality: float | None = None  # mean NDCG of the users that the model knew
    users: UserQuality | None = None  # NDCG of each of these users, for the strategy
    replay: PeriodReplay | None = None  # all levels, for the target


UNJUDGED = Judgement()


def judge_users(evaluator: Evaluator, state: State, events: NewEvents, known: Evaluation | None) -> Judgement:
    """NDCG of the users that the model knew; newcomers get the fallback, which says nothing about the model."""
    evaluator = replace(evaluator, metrics=("ndcg",), n_resamples=0, min_group_size=1, at_levels=False)
    tested = evaluate_state(evaluator, state, events) if known is None else known
    reference = evaluate_state(evaluator.plain, state, events, is_popularity=True)
    # Values of other metrics may share a name.
    warm = [replace(one.tested, values={}, totals={}).where(~one.tested.is_cold) for one in (tested, reference)]
    groups = events.groups
    (main,) = evaluator.scores(warm[:1], groups.n_groups_among(len(groups.codes)))[0].values()
    values, baseline = (part.values_of(evaluator.resolved_metrics[0]) for part in warm)
    return Judgement(main.mean, UserQuality(warm[0].users, values, baseline, groups))


def replay_levels(
    evaluator: Evaluator,
    state: State,
    events: NewEvents,
    target: Target,
    known: Evaluation | None,
    metrics: Mapping[str, Metric],
    by: ReplayGroups | None,
) -> PeriodReplay | None:
    """Test every level on new events, by the task and the metric of a target; `by` replaces `PeriodReplay.of`.

    None where there are no two groups yet, or the hits do not determine the metric.
    """
    custom = {target.metric: metrics[target.metric]} if target.metric in metrics else (target.metric,)
    (metric,) = resolve_metrics(custom, 20, evaluator.named_metrics)
    # A list is no longer than the catalogue.
    name = f"{metric.name.rpartition('@')[0]}@{min(metric.k, state.history.n_items)}"
    if known is None or not known.tested.levels or next(iter(known.metrics)) != name:
        evaluator = replace(evaluator.plain, metrics={name: metric.metric}, k=1, n_resamples=0, at_levels=True)
        known = evaluate_state(evaluator, state, events, task=target.task)
    results, names = known.tested, events.groups.names
    if results.level_values is None:
        return None
    if by is not None:
        return by(results.users, results.level_values, results.codes, names, results.levels)
    options = (evaluator.min_group_size, results.strata)
    return PeriodReplay.of(results.levels, results.level_values, results.codes, names, *options)


def evaluate_state(
    evaluator: Evaluator, state: State, events: NewEvents, *, task: PeriodTask = "next", is_popularity: bool = False
) -> Evaluation:
    """Evaluate the model of a state on new events, or recent popularity in its place."""
    model, contexts = state.model, state.contexts
    if is_popularity:
        n_items, device = evaluator.n_rankable(state.history), state.model.device
        model = RecentPopularityScorer.of(state.history, n_items).eval().to(device)
        contexts = ContextBuilder(0, state.history, None, device)  # without a level: a baseline
    about: dict[str, Any] = {"history": state.history, "contexts": contexts, "t": state.t, "task": task}
    about |= {"times": events.times, "moments": events.moments, "marks": events.marks}
    return evaluator.evaluate(model, events.users, events.items, **about)
