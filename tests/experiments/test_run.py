"""The prequential run: which periods, which steps, which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fairstream
from fairstream import (
    METHODS,
    ConfigurationError,
    Context,
    DataError,
    EventLog,
    ItemTable,
    Period,
    Run,
    RunConfig,
    Scorer,
    State,
    UserTable,
)
from fairstream.data import UNKNOWN
from fairstream.evaluation import Evaluator
from fairstream.experiments.config import REPAIRS
from fairstream.models import MFScorer
from fairstream.strategies import RestartOnDegradation, UserQuality
from support import FAST

PROTOCOLS = ("strict", "paper")
STEP_OF = {"Pretrain": "keep", "Retrain": "retrain"}


@pytest.fixture(scope="module")
def small() -> EventLog:
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    return fairstream.read_events(stream.events, users=stream.users, group="community", advantaged="majority")


def finished(log: EventLog, method: str = "FADE", **options: Any) -> Run:
    run = fairstream.run(log, method, **{"model": "mf", **FAST, **options})
    list(run)
    return run


def numbers(run: Run) -> dict[str, Any]:
    """The document without what differs from one day to the next, and without the method's name."""
    document = run.document()
    return {name: document[name] for name in ("data", "versions", "pretrained", "periods", "summary")}


def weights(run: Run) -> dict[str, list[Any]]:
    return {name: value.tolist() for name, value in run.state.model.state_dict().items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["FADE", "Pretrain", "Retrain"])
@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_a_state_that_somebody_holds_never_changes(small: EventLog, method: str, optimizer: str) -> None:
    def contents(state: State) -> dict[str, Any]:
        return {**state.model.state_dict(), "trained": torch.from_numpy(state.trained)}

    run = fairstream.run(small, method, **{"model": "mf", **FAST, "optimizer": optimizer})
    run.begin()
    held = [run.state]
    before = [{name: value.clone() for name, value in contents(held[0]).items()}]
    for _ in run:
        held.append(run.state)
        before.append({name: value.clone() for name, value in contents(run.state).items()})
    for state, expected in zip(held, before, strict=True):
        assert all(torch.equal(value, expected[name]) for name, value in contents(state).items())
    assert numbers(run) == numbers(finished(small, method, optimizer=optimizer))  # who looks on changes nothing


# ── periods ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("n_periods", [2, 7])
def test_a_run_yields_the_periods_up_to_the_one_before_last(small: EventLog, n_periods: int, protocol: str) -> None:
    run = fairstream.run(small, **{"model": "mf", **FAST, "n_periods": n_periods, "protocol": protocol})
    assert run.pretrained is None
    for t, result in enumerate(run, start=1):
        assert result.t == result.update.t == t
        assert run.pretrained is not None
        assert run.pretrained.t == run.pretrained.update.t == 0
        assert run.results[-1] is result
    assert [result.t for result in run.results] == list(range(1, n_periods))
    assert list(run) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_period_is_learned_and_what_follows_is_judged(small: EventLog, protocol: str) -> None:
    run = finished(small, "Finetune", protocol=protocol)
    ends = run.periods.ends
    assert run.pretrained is not None
    for t, result in enumerate([run.pretrained, *run.results]):
        begin = 0 if t == 0 else ends[t - 1]
        assert result.update.report is not None
        assert result.update.report.n_interactions == ends[t] - begin
        known = set(small.users[: ends[t]])
        for task, end in (("next", ends[t + 1]), ("remain", len(small))):
            judged, there = result.tasks[task], set(small.users[ends[t] : end])
            tested = there if protocol == "strict" else there & known  # newcomers get the fallback, or are left out
            assert (judged.n_users, judged.n_cold_users) == (len(tested), len(there - known))
            assert judged.slices["warm_users"].n_users == len(there & known)
            assert judged.slices["cold_users"].n_users == len(tested - known)


def test_retraining_learns_from_everything_so_far(small: EventLog) -> None:
    run = finished(small, "Retrain")
    learned = [result.update.report.n_interactions for result in run.results if result.update.report]
    assert learned == list(run.periods.ends[1:-1])


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_progress_is_told_epoch_by_epoch(small: EventLog, protocol: str) -> None:
    told: list[tuple[int, int, int]] = []
    finished(small, protocol=protocol, pretrain_epochs=3, on_progress=lambda *progress: told.append(progress))
    expected = [(0, epoch, 3) for epoch in (1, 2, 3)] + [(t, epoch, 2) for t in (1, 2, 3) for epoch in (1, 2)]
    assert told == expected


# ── methods and protocols ────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("method", "model"), [*((method, "mf") for method in METHODS), ("FADE", "ncf")])
def test_every_method_runs_under_both_protocols(small: EventLog, method: str, model: str, protocol: str) -> None:
    run = finished(small, method, model=model, protocol=protocol)
    expected = STEP_OF.get(method.removesuffix("-Fair"), "fine-tune")
    assert [result.update.step for result in run.results] == [expected] * 3
    for result in run.results:
        for judgement in result.tasks.values():
            for score in judgement.metrics.values():
                assert score.mean is not None
                assert 0 <= score.mean <= 1
    assert all(torch.isfinite(value).all() for value in run.state.model.state_dict().values())


@pytest.mark.slow
def test_methods_are_found_in_any_case_and_differ(small: EventLog) -> None:
    assert RunConfig(model="mf", method="fade-abs").method == "FADE-Abs"
    options = {"fairness_weight": 4.0, "n_periods": 2, "tasks": ("next",)}
    found = {method: weights(finished(small, method, **options)) for method in METHODS}
    assert found.pop("Rerank") == found["Finetune"]  # what differs are the lists
    assert all(found[a] != found[b] for a in found for b in found if a < b)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_without_a_fairness_weight_fade_is_finetune_bit_for_bit(small: EventLog, protocol: str) -> None:
    plain = finished(small, "Finetune", protocol=protocol)
    for method in ("FADE", "FADE-Abs"):
        fair = finished(small, method, fairness_weight=0.0, protocol=protocol)
        assert numbers(fair) == numbers(plain)
        assert weights(fair) == weights(plain)
    assert weights(finished(small, "FADE", fairness_weight=1.0, protocol=protocol)) != weights(plain)


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pretrain_never_changes_what_it_has_learned(small: EventLog, protocol: str) -> None:
    def check(t: int, done: int, total: int) -> None:
        assert t == 0  # nothing is trained later

    run = fairstream.run(
        small, "Pretrain", **{"model": "mf", **FAST, "n_periods": 7, "protocol": protocol}, on_progress=check
    )
    run.begin()
    pretrained = {name: value.clone() for name, value in run.state.model.state_dict().items()}
    for result in run:
        assert (result.update.step, result.update.report) == ("keep", None)
        for name, value in run.state.model.state_dict().items():
            assert torch.equal(value[: len(pretrained[name])], pretrained[name])
    # newcomers have a row under either protocol: from the start, or from the period on in which they come
    n_users = {"strict": small.n_users_after(run.periods.ends[6]), "paper": small.n_users}
    assert run.state.model.n_users == n_users[protocol]


@pytest.mark.parametrize(("protocol", "optimizer"), [("paper", "dense"), ("strict", "row")])
def test_a_protocol_has_its_optimizer_unless_another_is_asked_for(protocol: str, optimizer: str) -> None:
    assert RunConfig(model="mf", protocol=protocol).optimizer == optimizer
    for asked in ("row", "dense"):
        assert RunConfig(model="mf", protocol=protocol, optimizer=asked).optimizer == asked


@pytest.mark.slow
def test_the_optimizer_of_the_config_is_the_one_that_runs(small: EventLog) -> None:
    assert type(finished(small, protocol="paper").state.optimizer) is torch.optim.Adam
    assert type(finished(small).state.optimizer).__name__ == "RowAdam"


def test_metrics_follow_the_protocol(small: EventLog) -> None:
    names = ["ndcg@7", "recall@7", "precision@7", "f1@7", "hit@7", "mrr@7"]
    assert list(finished(small, k=7).results[0].tasks["next"].metrics) == names
    paper = finished(small, k=7, protocol="paper").results[0].tasks["next"].metrics
    assert list(paper) == [*names, "true_ndcg@7"]


# ── repairs ──────────────────────────────────────────────────────────────────────────────


AT_LEVELS = {"attainable", "regret", "best_level", "inherent_gap", "avoidable_gap", "avoidable_gap_interval"}
AT_LEVELS |= {"levels", "level_values"}


def without_levels(part: Any) -> Any:
    """A document without what only strict tests: the lists at every level."""
    if isinstance(part, dict):
        return {name: without_levels(inner) for name, inner in part.items() if name not in AT_LEVELS}
    return [without_levels(inner) for inner in part] if isinstance(part, list) else part


@pytest.mark.slow
def test_with_every_repair_the_papers_protocol_is_strict(small: EventLog) -> None:
    options = {**FAST, "batch_size": 40, "n_resamples": 10}  # a block of the rest is two batches, as under strict
    options["tasks"] = ("event", "next", "remain")
    repaired = finished(small, protocol="+".join(["paper", *REPAIRS]), **options)
    strict = finished(small, protocol="strict", **options)
    assert repaired.periods == strict.periods
    assert without_levels(numbers(repaired)) == without_levels(numbers(strict))
    assert weights(repaired) == weights(strict)


@pytest.mark.few(1)
@pytest.mark.parametrize("repair", [*REPAIRS])
def test_each_repair_changes_what_it_is_for_and_nothing_else(small: EventLog, repair: str) -> None:
    paper, repaired = (finished(small, protocol=protocol, n_periods=2) for protocol in ("paper", f"paper+{repair}"))
    ours, theirs = (run.results[0].tasks["remain"] for run in (paper, repaired))
    learns_otherwise = repair in ("leak", "optimizer")
    assert (weights(paper) != weights(repaired)) == learns_otherwise
    assert (ours.n_users != theirs.n_users) == (repair == "cold-users")
    assert ours.n_cold_users == theirs.n_cold_users > 0
    hits = [judged.tested.where(~judged.tested.is_cold).to_dict() for judged in (ours, theirs)]
    assert (hits[0] != hits[1]) == (learns_otherwise or repair == "ranking")
    if repair == "ndcg":
        assert theirs["ndcg@20"] == ours["true_ndcg@20"] != ours["ndcg@20"]


# ── any number of groups ─────────────────────────────────────────────────────────────────


def grouped(values: list[str | None], advantaged: str | None = None) -> EventLog:
    """The small stream by other groups: the value of each user id."""
    stream = fairstream.synthetic_stream(n_users=100, n_items=60, n_events=2000)
    users = pa.table({"user_id": np.arange(100), "side": values})
    return fairstream.read_events(stream.events, users=users, group="side", advantaged=advantaged)


@pytest.mark.slow
@pytest.mark.parametrize("n_groups", [2, 3, 7])
@pytest.mark.parametrize("method", ["FADE", "FADE-Abs"])
def test_any_number_of_groups_is_learned_and_judged(n_groups: int, method: str) -> None:
    names = [f"g{user % n_groups}" for user in range(100)]
    run = finished(grouped(names, "g1"), method, fairness_weight=4.0)
    assert run.groups.names[0] == "g1"
    assert set(run.groups.names) == set(names)
    for result in run.results:
        for judgement in result.tasks.values():
            for score in judgement.metrics.values():
                assert list(score.by_group) == list(score.gaps) == list(run.groups.names)
                assert score.largest_gap is not None
                assert score.spread is not None
                assert score.disparity is not None
                sizes = {name: abs(gap.value) for name, gap in score.gaps.items()}
                assert score.largest_gap.value == pytest.approx(max(sizes.values()))
                assert score.largest_gap_group is not None
                assert sizes[score.largest_gap_group] == pytest.approx(max(sizes.values()))
                assert score.spread.value == pytest.approx(np.ptp(list(score.by_group.values())))
                assert score.disparity == score.gaps["g1"]
    assert weights(run) != weights(finished(grouped(names, "g1"), "Finetune"))


def test_a_group_too_small_to_judge_is_set_aside_and_counts_overall() -> None:
    names = ["few" if user < 6 else "left" if user % 2 else "right" for user in range(100)]
    lenient, severe = (finished(grouped(names), min_group_size=size) for size in (1, 10))
    assert weights(lenient) == weights(severe)  # judging has no part in learning
    for ours, theirs in zip(lenient.results, severe.results, strict=True):
        one, other = ours.tasks["remain"], theirs.tasks["remain"]
        assert dict(one.excluded_groups) == {}
        assert set(other.excluded_groups) == {"few"}
        assert 0 < other.excluded_groups["few"] <= 6
        for metric, score in other.metrics.items():
            assert score.mean == one[metric].mean
            assert score.by_group["few"] is None
            assert set(score.gaps) == {"left", "right"}
            # nor is it in anybody's rest
            assert score.gaps["left"].value == pytest.approx(score.by_group["left"] - score.by_group["right"])


def test_users_without_a_group_are_a_slice_of_their_own() -> None:
    names = [None if user % 4 == 0 else "left" if user % 2 else "right" for user in range(100)]
    log = grouped(names)
    run = finished(log)
    assert run.pretrained is not None
    for result in (run.pretrained, *run.results):
        for judgement in result.tasks.values():
            codes = judgement.tested.codes
            assert judgement.slices["no_group"].n_users == (codes == UNKNOWN).sum() > 0
            assert list(judgement["ndcg@20"].by_group) == list(run.groups.names)


# ── newcomers ────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_newcomers_get_the_same_whatever_the_method(small: EventLog) -> None:
    runs = [finished(small, method) for method in ("FADE", "Pretrain", "Retrain")]
    for results in zip(*(run.results for run in runs), strict=True):
        for task in ("remain", "next"):
            cold = [result.tasks[task].slices["cold_users"] for result in results]
            assert cold[0] == cold[1] == cold[2]
            assert cold[0].n_users > 0
    warm = [run.results[-1].tasks["remain"].slices["warm_users"] for run in runs]
    assert warm[0] != warm[1] != warm[2]


def test_newcomers_get_what_was_popular_before_they_came(small: EventLog) -> None:
    run = finished(small, "Finetune")
    assert run.pretrained is not None
    for t, result in enumerate([run.pretrained, *run.results]):
        begin, end = run.periods.ends[t], run.periods.ends[t + 1]
        age = np.arange(begin)[::-1]
        popularity = np.bincount(small.items[:begin], 2.0 ** (-age / (0.1 * begin)))
        best = popularity.argsort()[::-1][:20]
        tested = result.tasks["next"].tested
        assert tested.is_cold.any()
        for user, hits in zip(tested.users[tested.is_cold], tested.hits[tested.is_cold], strict=True):
            wanted = small.items[begin:end][small.users[begin:end] == user]
            assert hits.tolist() == np.isin(best, wanted).tolist()


class Asked(MFScorer):
    """Matrix factorisation that remembers whom it was asked to rank for."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.ranked_for: set[int] = set()

    def score_range(self, users: torch.Tensor, start: int, stop: int, context: Context) -> torch.Tensor:
        self.ranked_for |= set(users.tolist())
        return super().score_range(users, start, stop, context)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["Pretrain", "Finetune"])
def test_a_model_ranks_for_nobody_whom_it_has_not_learned_from(small: EventLog, method: str) -> None:
    run = fairstream.run(small, method, model=Asked, **FAST)
    trained: set[int] = set()
    for result in run:
        model = run.state.model
        assert isinstance(model, Asked)
        learned = small.n_users_after(run.periods.ends[0 if method == "Pretrain" else result.t])
        assert max(model.ranked_for) < learned
        for t in (0, *(() if method == "Pretrain" else (result.t,))):
            # But for those who have had nearly everything, and leave no negatives to draw.
            n_had = np.bincount(small.users[: run.periods.ends[t]], minlength=small.n_users)
            n_left = small.n_items_after(run.periods.ends[t]) - n_had
            at = small.users[run.periods.span(t)]
            trained |= set(at[n_left[at] >= run.config.n_negatives].tolist())
        assert run.state.trained.tolist() == [row in trained for row in range(run.state.history.n_users)]
        assert 0 < len(trained) < learned
    assert small.n_users_after(run.periods.ends[0]) < small.n_users_after(run.periods.ends[-2])


# ── periods of a given length ────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_period_can_be_a_number_of_events_or_a_share_of_them(small: EventLog) -> None:
    options = {"period": "160", "n_periods": None, "n_blocks": 10}
    by_count, by_share = (finished(small, **{**options, "period": period}) for period in ("160", "8%"))
    assert by_count.periods.ends == (1200, 1360, 1520, 1680, 1840, 2000)
    assert by_count.config.n_periods == by_count.periods.last == 5
    assert numbers(by_count) == numbers(by_share)
    first = finished(small, **{**options, "n_periods": 3})
    assert first.periods.ends == by_count.periods.ends[:4]
    assert [result.tasks["next"] for result in first.results] == [r.tasks["next"] for r in by_count.results[:2]]


def test_a_period_can_be_a_stretch_of_the_calendar(small: EventLog) -> None:
    # the clock of the stream in days, from a Thursday on
    dated = replace(small, times=(small.times * 86_400).astype("datetime64[s]"))
    days = finished(dated, period="2d", n_periods=None)
    edges = [int((small.times < day).sum()) for day in (2, 4, 6, 8, 10)]
    assert days.periods.ends == (*edges, len(small))
    with pytest.raises(DataError, match=r"2 periods of 1mo are needed .*, but there are 0; choose shorter"):
        finished(dated, period="1mo", n_periods=None)


# ── repeating ────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize(("model", "protocol"), [("mf", "paper"), ("ncf", "strict")])
def test_the_same_seed_gives_the_same_document_and_another_does_not(small: EventLog, model: str, protocol: str) -> None:
    once, again, other = (finished(small, model=model, protocol=protocol, seed=seed) for seed in (5, 5, 6))
    assert once.document()["config"] == again.document()["config"]
    assert numbers(once) == numbers(again)
    assert weights(once) == weights(again)
    assert numbers(once)["periods"] != numbers(other)["periods"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("method", ["Finetune", "Pretrain"])
def test_swapping_the_groups_changes_the_sign_of_every_disparity_and_nothing_else(
    small: EventLog, method: str, protocol: str
) -> None:
    assert small.groups is not None
    run = finished(small, method, protocol=protocol)
    swapped = finished(replace(small, groups=small.groups.with_advantaged("minority")), method, protocol=protocol)
    for ours, theirs in zip(run.results, swapped.results, strict=True):
        for task in ("remain", "next"):
            for metric, score in ours.tasks[task].metrics.items():
                other = theirs.tasks[task][metric]
                assert score.performance_disparity is not None
                assert other.performance_disparity == pytest.approx(-score.performance_disparity, abs=1e-12)
                assert (other.mean, other.by_group) == (score.mean, score.by_group)
    assert any(result.tasks["next"]["ndcg@20"].performance_disparity for result in run.results)


# ── restarting ───────────────────────────────────────────────────────────────────────────


@pytest.mark.few(1)
@pytest.mark.parametrize("every", [1, 3])
def test_restarts_come_every_rth_period(small: EventLog, every: int) -> None:
    run = finished(small, n_periods=7, restart_every=every)
    steps = [result.update.step for result in run.results]
    assert steps == ["retrain" if t % every == 0 else "fine-tune" for t in range(1, 7)]
    assert [period["step"] for period in run.document()["periods"]] == [str(step) for step in steps]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_restarts_on_degradation_follow_from_the_numbers_shown(small: EventLog, protocol: str) -> None:
    run = finished(small, n_periods=7, restart="on-degradation", protocol=protocol, update_epochs=1)
    other = fairstream.run(
        small, "FADE", model="recent-popularity", **{**FAST, "model_settings": {}, "n_periods": 7, "protocol": protocol}
    )
    list(other)
    rule, memory, expected = RestartOnDegradation(), dict[str, Any](), []
    ours, theirs = ([part.pretrained, *part.results[:-1]] for part in (run, other))
    for t, (result, reference) in enumerate(zip(ours, theirs, strict=True)):
        assert result is not None
        assert reference is not None
        # by those the model knew: what newcomers get is the fallback's merit
        known, of_reference = (
            part.tasks["next"].tested.where(~part.tasks["next"].tested.is_cold) for part in (result, reference)
        )
        metric = run._evaluator.resolved_metrics[0]
        assert metric.name == "ndcg@20"
        values = known.values_of(metric), of_reference.values_of(metric)
        quality = UserQuality(known.users, *values, run.groups)
        plan = rule.plan(Period(t, run.state.history, range(0), None, memory, tested=quality))
        memory = dict(plan.memory)
        expected.append((plan.step, plan.reason))
    assert [(result.update.step, result.update.notes[0]) for result in run.results] == expected


# ── a model of one's own, and what cannot be run ─────────────────────────────────────────


class Popularity(Scorer):
    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 1), ItemTable(n_items, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor, context: Context) -> torch.Tensor:
        return self.item(items).squeeze(-1) + self.user(users)


@pytest.mark.few(1)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_model_of_ones_own_runs(small: EventLog, protocol: str) -> None:
    run = finished(small, model=Popularity, protocol=protocol)
    assert isinstance(run.state.model, Popularity)
    assert run.document()["config"]["model"] == "custom"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 1000}, "k must be at most the .* items of the pre-training data, got 1000"),
        ({"k": 0}, "k must be >= 1, got 0"),
        ({"n_periods": 11}, "n_periods must be at most n_blocks, 10, got 11"),
        ({"n_periods": 1}, "n_periods must be >= 2, got 1"),
        ({"pretrain_ratio": 1.0}, "pretrain_ratio must be < 1, got 1.0"),
        ({"method": "fadee"}, "method must be one of .*, got 'fadee'"),
        ({"protocol": "strict+ranking"}, "protocol must be strict, paper, or paper with repairs .*, got 'strict.rank"),
        ({"protocol": "paper+speed"}, "there are leak, ranking, ndcg, cold-users, optimizer"),
        ({"period": "1 fortnight"}, "period must be a number of events .*, got '1 fortnight'"),
        ({"period": "1d", "protocol": "paper"}, "period goes with strict"),
        ({"min_group_size": 0}, "min_group_size must be >= 1, got 0"),
        ({"n_resamples": -1}, "n_resamples must be >= 0, got -1"),
        ({"protocol": "loose"}, "protocol must be strict, paper, or paper with repairs .*, got 'loose'"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"device": "gpu"}, "device must be one of"),
        ({"epochs": 3}, "epochs is not an option; the options are activity_exponent, batch_size, "),
        ({"restart": "on-degradation", "restart_every": 2}, "give one of them"),
        ({"method": "Pretrain", "restart_every": 2}, "only fine-tuning methods restart"),
        ({"temperature": 0.0}, r"temperature must be >= 1e-06, got 0.0 \(the default is 3.0\)"),
        ({"model": "custom"}, "custom model; pass it again as model="),
    ],
)
def test_what_cannot_be_honoured_is_said_before_anything_is_trained(
    small: EventLog, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        fairstream.run(small, **{"model": "mf", **FAST, **options})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_log_too_short_to_cut_is_refused(small: EventLog, protocol: str) -> None:
    n = {"strict": 9, "paper": 9 * 64}[protocol]
    short = replace(small, users=small.users[:n], items=small.items[:n], times=small.times[:n])
    with pytest.raises(DataError, match=f"{n} events are too few .*; use more events or fewer blocks"):
        fairstream.run(short, **{"model": "mf", **FAST, "protocol": protocol})


@pytest.mark.slow
def test_without_groups_nothing_is_done_for_fairness_and_that_is_said(small: EventLog) -> None:
    bare = replace(small, groups=None)
    fade, plain = finished(bare), finished(small, "Finetune")
    assert any("there are no groups" in note for note in fade.notes)
    assert fade.config.fairness_weight == 0
    document = fade.document()
    assert (document["data"]["group"], document["data"]["groups"]) == (None, [])
    for task, metrics in document["summary"].items():  # what is learned is what plain fine-tuning learns
        for name, score in metrics.items():
            assert score["mean"] == pytest.approx(plain.document()["summary"][task][name]["mean"])
            assert (score["disparity"], score["by_group"]) == (None, {})
    with pytest.raises(ConfigurationError, match="max_gap is about groups"):
        fairstream.run(bare, model="mf", max_gap=0.1, **FAST)


def test_groups_that_do_not_differ_are_refused(small: EventLog) -> None:
    assert small.groups is not None
    alone = replace(small.groups, codes=np.zeros_like(small.groups.codes))
    with pytest.raises(DataError, match="community does not differ: every known value is 'majority'"):
        fairstream.run(replace(small, groups=alone), model="mf", **FAST)
    nobodys = replace(small.groups, codes=np.full_like(small.groups.codes, UNKNOWN))
    with pytest.raises(DataError, match="community does not differ: no value is known"):
        fairstream.run(replace(small, groups=nobodys), model="mf", **FAST)


@pytest.mark.slow
def test_a_published_data_set_is_recognised_by_its_counts_alone(small: EventLog) -> None:
    assert finished(small).document()["data"]["name"] is None
    assert finished(small).config.pretrain_ratio == 0.6
    assert finished(small, pretrain_ratio=0.5).config.pretrain_ratio == 0.5


@pytest.mark.slow
def test_a_period_whose_evaluation_was_interrupted_is_not_learned_twice(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed, disturbed = (
        fairstream.run(log, "FADE", **{"model": "mf", **FAST, "n_periods": 3, "n_resamples": 10}) for _ in range(2)
    )
    expected = [result.to_dict() for result in undisturbed]
    evaluate, calls = Evaluator.evaluate, iter(range(100))

    def interrupted(self: Evaluator, *arguments: Any, **options: Any) -> Any:
        if next(calls) == 2:  # the first judging after the first update
            raise KeyboardInterrupt
        return evaluate(self, *arguments, **options)

    monkeypatch.setattr(Evaluator, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(disturbed)
    assert [result.to_dict() for result in disturbed] == expected


def test_a_run_takes_a_log() -> None:
    with pytest.raises(fairstream.DataError, match="make one with read_events"):
        fairstream.run({"user": [1]}, model="mf")  # type: ignore[arg-type]


def test_so_many_events_to_pretrain_on_do_not_depend_on_how_many_follow(stream: fairstream.SyntheticStream) -> None:
    ends = []
    for n_events in (4000, 3000):
        log = fairstream.read_events(stream.events.slice(0, n_events), users=stream.users, group="community")
        run = fairstream.run(log, model="mf", pretrain_events=1234, period="400", n_periods=3, device="cpu")
        assert run.config.pretrain_ratio is None
        ends.append(run.periods.ends)
    assert ends[0] == ends[1] == (1234, 1634, 2034, 2434)
    with pytest.raises(fairstream.ConfigurationError, match="give one of them"):
        fairstream.RunConfig(model="mf", pretrain_events=5, pretrain_ratio=0.5)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["Finetune", "Retrain"])
def test_the_work_is_known_before_it_is_done(method: str, small: EventLog) -> None:
    run = fairstream.run(small, method, **{"model": "mf", **FAST, "pretrain_epochs": 3})
    expected = run.expected_work()
    reports = [result.update.report for result in (run.begin(), *run)]
    later = 3 if method == "Retrain" else FAST["update_epochs"]
    visited = [report.n_interactions * (later if t else 3) for t, report in enumerate(reports)]
    assert expected == visited
