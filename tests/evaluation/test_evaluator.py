"""The evaluator: who is tested, on what, by which protocol, and the model left as it was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import Groups, History
from fairstream.errors import ConfigurationError, ModelError
from fairstream.evaluation import Evaluator
from fairstream.experiments import protocol_of
from fairstream.models import Context, ContextBuilder, MFScorer, Scorer
from fairstream.paper.protocol import PaperEvaluator, PaperProtocol, RerankReport
from fairstream.paper.rerank import Rerank, Reranking
from fairstream.randomness import Randomness
from support import Given, Pairs, items_of, pairs_of, rank_all

N_USERS, N_COLD, N_ITEMS, K = 20, 4, 150, 5
ALL = N_USERS + N_COLD

both_protocols = pytest.mark.parametrize("protocol", ["strict", "paper"])
every_repair = pytest.mark.parametrize(
    "protocol",
    ["strict", "paper", "paper+leak", "paper+ranking", "paper+ndcg", "paper+cold-users"],
)


class Knowing(Given):
    """Scores the given pairs 1 and all others 0; records in which mode it was called."""

    def __init__(self, users: np.ndarray, items: np.ndarray) -> None:
        super().__init__(torch.zeros(ALL, N_ITEMS))
        self.dropout = torch.nn.Dropout(0.5)
        self.scores[users, items] = 1.0
        self.was_training: set[bool] = set()

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        self.was_training |= {self.training, self.dropout.training}
        return super().forward(users, items, context)


class Events:
    """Distinct random pairs: half of them known, of all users but the cold ones, and half to come."""

    def __init__(self, seed: int = 0, n_cold: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pairs = rng.permutation(N_USERS * N_ITEMS)[:400].astype(np.int64)
        users, items = pairs // N_ITEMS, pairs % N_ITEMS
        self.known = history_of(users[:200], items[:200])
        self.users = np.append(users[200:], np.repeat(np.arange(N_USERS, N_USERS + n_cold), 6))
        self.items = np.append(items[200:], rng.permutation(N_ITEMS)[: 6 * n_cold])


def history_of(users: np.ndarray, items: np.ndarray, n_items: int = N_ITEMS, n_items_before: int = 100) -> History:
    """All rows are known, whether they occur among the events or not."""
    return History.of(users, items, n_users=N_USERS, n_items=n_items, n_items_before=n_items_before)


def groups_of(n: int = ALL, names: str = "MFM") -> Groups:
    return Groups.from_values("gender", [names[row % len(names)] for row in range(n)], advantaged="M")


def evaluator_of(name: str, k: int = K, groups: Groups | None = None, seed: int = 0, **options: Any) -> Evaluator:
    """The library's evaluator, or the paper's where its protocol or its Rerank is asked for."""
    kind = Evaluator
    if name != "strict" or options.keys() & {"rerank", "n_items"}:
        kind, options["protocol"] = PaperEvaluator, PaperProtocol() if name == "strict" else protocol_of(name)
    return kind(k, groups or groups_of(), Randomness(seed), **options)


def evaluated(
    evaluator: Evaluator,
    model: Scorer,
    events: Events,
    *,
    known: History | None = None,
    n_trained: int = N_USERS,
    t: int = 0,
) -> Any:
    """Of a model that was trained on the first `n_trained` users."""
    history = known or events.known
    contexts = ContextBuilder(model.history_length, history, np.arange(history.n_users) < n_trained)
    return evaluator.evaluate(model, events.users, events.items, history=history, contexts=contexts, t=t)


def random_model(seed: int = 0) -> Scorer:
    torch.manual_seed(seed)
    return MFScorer(ALL, N_ITEMS, embedding_dim=8)


def knowing_half(events: Events) -> Knowing:
    return Knowing(events.users[::2], events.items[::2])


# ── the metrics ──────────────────────────────────────────────────────────────────────────


@every_repair
@pytest.mark.parametrize("k", [1, 7])
def test_the_metrics_of_a_protocol(protocol: str, k: int) -> None:
    found = evaluated(evaluator_of(protocol, k), random_model(), Events())
    assert list(found.metrics) == [f"{name}@{k}" for name in protocol_of(protocol).metrics]
    assert found[f"ndcg@{k}"] is found.metrics[f"ndcg@{k}"]
    for scores in found.metrics.values():
        assert set(scores.by_group) == {"M", "F"}
        assert 0 <= scores.mean <= 1


@every_repair
def test_a_model_that_knows_the_future_is_perfect(protocol: str) -> None:
    events = Events()
    found = evaluated(evaluator_of(protocol), Knowing(events.users, events.items), events)
    n_positives = np.bincount(events.users, minlength=N_USERS)
    assert n_positives.min() > 0
    expected = {
        "ndcg@5": 1.0,
        "recall@5": (np.minimum(n_positives, K) / n_positives).mean(),
        "precision@5": (np.minimum(n_positives, K) / K).mean(),
        "f1@5": (2 * np.minimum(n_positives, K) / (K + n_positives)).mean(),
        "hit@5": 1.0,
        "mrr@5": 1.0,
        "true_ndcg@5": 1.0,
    }
    for name, scores in found.metrics.items():
        assert scores.mean == pytest.approx(expected[name])
    assert found["ndcg@5"].performance_disparity == pytest.approx(0.0, abs=1e-12)
    assert (found.n_users, found.n_cold_users) == (N_USERS, 0)


@every_repair
def test_a_model_that_cannot_tell_items_apart_scores_nothing(protocol: str) -> None:
    events = Events()
    found = evaluated(evaluator_of(protocol), Knowing(events.users[:0], events.items[:0]), events)
    assert all(scores.mean == 0 for scores in found.metrics.values())


def test_the_papers_ndcg_is_normalised_by_what_was_retrieved() -> None:
    events = Events()
    first = np.unique(events.users, return_index=True)[1]  # one positive per user is known, the others are not
    model = Knowing(events.users[first], events.items[first])
    paper, strict = (evaluated(evaluator_of(name), model, events) for name in ("paper", "strict"))
    assert paper["ndcg@5"].mean == 1.0
    assert paper["true_ndcg@5"].mean < 0.7
    # The one hit is at rank 1 among all items, too, so the true NDCG is the same.
    assert strict["ndcg@5"].mean == pytest.approx(paper["true_ndcg@5"].mean)
    assert evaluated(evaluator_of("paper+ndcg"), model, events)["ndcg@5"] == paper["true_ndcg@5"]


def test_full_ranking_is_a_repair_of_its_own() -> None:
    """The hits are those of `rank_all`, and fewer than among 100 sampled items."""
    events, model = Events(), random_model()
    positives = pairs_of(set(zip(events.users.tolist(), events.items.tolist(), strict=True)))
    ranked = rank_all(model, np.arange(N_USERS), positives, events.known.seen, n_items=N_ITEMS, k=K)
    full, sampled = (evaluated(evaluator_of(name), model, events).tested for name in ("paper+ranking", "paper"))
    assert full.hits.tolist() == ranked.hits.tolist()
    assert full.hits.sum() < sampled.hits.sum()


def test_items_that_are_not_known_are_missed_under_the_strict_protocol() -> None:
    events, n_known = Events(), N_ITEMS // 2
    keep = events.known.items < n_known
    known = history_of(events.known.users[keep], events.known.items[keep], n_known, n_items_before=10)
    found = evaluated(evaluator_of("strict"), Knowing(events.users, events.items), events, known=known)
    n_positives = np.bincount(events.users, minlength=N_USERS)
    n_findable = np.bincount(events.users[events.items < n_known], minlength=N_USERS)
    assert found["f1@5"].mean == pytest.approx((2 * np.minimum(n_findable, K) / (K + n_positives)).mean())
    assert found.n_users == N_USERS
    missed = found.slices["cold_items"]
    assert missed.n_positives == (events.items >= n_known).sum() > 0
    assert all(scores.mean == 0 for scores in missed.metrics.values())


def test_with_the_catalogue_known_ahead_items_are_found_that_nobody_has_had() -> None:
    """The paper's leak: `n_items` is how many items the model was shown."""
    events = Events()
    keep = events.known.items < 100
    known = history_of(events.known.users[keep], events.known.items[keep], 100, n_items_before=10)
    model = Knowing(events.users, events.items)
    shown, not_shown = (
        evaluated(evaluator_of("paper", n_items=n), model, events, known=known) for n in (N_ITEMS, None)
    )
    assert shown["true_ndcg@5"].mean == pytest.approx(1.0)
    assert shown.slices["cold_items"]["recall@5"].mean > 0
    assert not_shown["true_ndcg@5"].mean < 1.0
    assert not_shown.slices["cold_items"]["recall@5"].mean == 0


@both_protocols
def test_k_goes_from_one_to_the_number_of_known_items(protocol: str) -> None:
    evaluated(evaluator_of(protocol, k=N_ITEMS), random_model(), Events())
    for k in (0, N_ITEMS + 1):
        with pytest.raises(
            ConfigurationError, match=rf"\Ak must be between 1 and the number of known items, {N_ITEMS}, got {k}\Z"
        ):
            evaluated(evaluator_of(protocol, k=k), random_model(), Events())


# ── newcomers ────────────────────────────────────────────────────────────────────────────


def popularity_by_hand(events: list[tuple[int, int]], n_items: int) -> list[float]:
    """Σ 2^(−age / h) of each item, one event after the other; h is a tenth of the events, at least one."""
    score = [0.0] * n_items
    for place, (_, item) in enumerate(events):
        age = len(events) - 1 - place
        score[item] += 0.5 ** (age / max(1.0, len(events) / 10))
    return score


def list_by_hand(scores: list[float], had: set[int], wanted: set[int], k: int) -> list[float]:
    candidates = [item for item in range(len(scores)) if item not in had]
    ranked = sorted(candidates, key=lambda item: (-scores[item], item in wanted))[:k]
    return [float(item in wanted) for item in ranked] + [0.0] * (k - len(ranked))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Pairs, int]:
    """Known events in order, events to come, and how many of the users have been learned from."""
    pair = st.tuples(st.integers(0, 4), st.integers(0, 7))
    known = draw(st.lists(pair, min_size=1, max_size=25, unique=True))
    future = draw(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 9)), min_size=1)) - set(known)
    return known, future or {(6, 9)}, draw(st.integers(0, max(user for user, _ in known) + 1))


@given(worlds(), st.integers(1, 4), st.integers(0, 2**31))
def test_users_whom_the_model_has_not_learned_from_get_what_is_popular(
    world: tuple[list[tuple[int, int]], Pairs, int], k: int, seed: int
) -> None:
    """The model has no rows for the others; the fallback leaves out what a user has had, too."""
    known, future, n_learned = world
    before = History.of(*np.array(known, dtype=np.int64).T)
    k = min(k, before.n_items)
    table = torch.rand(max(1, n_learned), before.n_items, generator=torch.Generator().manual_seed(seed))
    users, items = np.array(sorted(future), dtype=np.int64).T
    evaluator = evaluator_of("strict", k, groups_of(7))
    contexts = ContextBuilder(Given.history_length, before, np.arange(before.n_users) < n_learned)
    found = evaluator.evaluate(Given(table), users, items, history=before, contexts=contexts, t=0)
    popularity = popularity_by_hand(known, before.n_items)
    present = sorted({user for user, _ in future})
    assert found.tested.users.tolist() == present
    for user, hits in zip(present, found.tested.hits.tolist(), strict=True):
        scores = table[user].tolist() if user < n_learned else popularity
        assert hits == list_by_hand(scores, items_of(set(known), user), items_of(future, user), k)
    assert found.tested.is_cold.tolist() == [user >= before.n_users for user in present]
    assert found.n_cold_users == sum(user >= before.n_users for user in present)
    assert found.n_users == len(present)


def test_the_model_is_asked_for_those_it_has_learned_from_alone() -> None:
    events = Events(n_cold=N_COLD)
    model = knowing_half(events)
    evaluated(evaluator_of("strict"), model, events, n_trained=15)
    assert {user for users, _ in model.asked for user in users} == set(range(15))


@pytest.mark.parametrize("protocol", ["paper", "paper+ranking", "paper+leak"])
def test_without_the_repair_cold_users_are_counted_and_left_out(protocol: str) -> None:
    with_cold, without = Events(n_cold=N_COLD), Events()
    model = knowing_half(without)
    found, expected = (
        evaluated(evaluator_of(protocol), model, events, n_trained=15) for events in (with_cold, without)
    )
    assert (found.n_users, found.n_cold_users) == (N_USERS, N_COLD)
    assert (expected.n_users, expected.n_cold_users) == (N_USERS, 0)
    assert {user for users, _ in model.asked for user in users} == set(range(N_USERS))  # learned or not
    assert found.slices["cold_users"].n_users == 0
    assert found.slices["cold_users"]["ndcg@5"].mean is None
    if protocol == "paper+ranking":  # which draws nothing
        assert found.metrics == expected.metrics


def test_cold_users_are_a_repair_of_its_own() -> None:
    """Among 100 sampled items, too, they get what is popular."""
    events = Events(n_cold=N_COLD)
    known = list(zip(events.known.users.tolist(), events.known.items.tolist(), strict=True))
    by_popularity = np.argsort(popularity_by_hand(known, N_ITEMS))
    events.items[-6:] = by_popularity[[-1, -2, -3, 0, 1, 2]]  # of the last cold user
    events.items[-12:-6] = by_popularity[:6]  # of the last but one
    found = evaluated(evaluator_of("paper+cold-users"), random_model(), events)
    assert (found.n_users, found.n_cold_users) == (ALL, N_COLD)
    assert found.slices["cold_users"].n_users == N_COLD
    assert found.tested.hits[-1].tolist() == [1, 1, 1, 0, 0]  # no sampled item is more popular
    assert found.tested.hits[-2].tolist() == [0, 0, 0, 0, 0]  # no sampled item is less popular


def test_where_everyone_is_cold_the_paper_has_nothing_to_say() -> None:
    events = Events()
    events.users = events.users + N_USERS
    found = evaluated(evaluator_of("paper", groups=groups_of(2 * N_USERS)), random_model(), events)
    assert (found.n_users, found.n_cold_users) == (0, N_USERS)
    for scores in found.metrics.values():
        assert (scores.mean, scores.performance_disparity) == (None, None)
    strict = evaluated(evaluator_of("strict", groups=groups_of(2 * N_USERS)), random_model(), events)
    assert (strict.n_users, strict.n_cold_users) == (N_USERS, N_USERS)
    assert strict["ndcg@5"].mean is not None


@every_repair
def test_nobody_to_test(protocol: str) -> None:
    events = Events()
    events.users, events.items = events.users[:0], events.items[:0]
    found = evaluated(evaluator_of(protocol, n_resamples=5), random_model(), events)
    assert (found.n_users, found.n_cold_users, found.excluded_groups) == (0, 0, {})
    assert all(scores.mean is None for scores in found.metrics.values())
    json.dumps(found.to_dict(), allow_nan=False)


# ── groups ───────────────────────────────────────────────────────────────────────────────


@both_protocols
def test_swapping_the_groups_changes_the_sign_of_every_disparity(protocol: str) -> None:
    model, events = random_model(), Events()
    found = evaluated(evaluator_of(protocol), model, events)
    swapped = evaluated(evaluator_of(protocol, groups=groups_of().with_advantaged("F")), model, events)
    for name, scores in found.metrics.items():
        assert scores.performance_disparity
        assert swapped[name].performance_disparity == pytest.approx(-scores.performance_disparity)
        assert swapped[name].mean == pytest.approx(scores.mean)


@pytest.mark.parametrize("min_group_size", [1, 3, 6, 11])
def test_groups_with_too_few_tested_users_are_set_aside(min_group_size: int) -> None:
    groups = groups_of(names="MFMFMMFMFx")  # of 20 users 10 are M, 8 are F, 2 are x
    found = evaluated(evaluator_of("strict", groups=groups, min_group_size=min_group_size), random_model(), Events())
    sizes = {"M": 10, "F": 8, "x": 2}
    assert found.excluded_groups == {name: n for name, n in sizes.items() if n < min_group_size}
    scores = found["ndcg@5"]
    assert scores.mean is not None
    assert {name for name, value in scores.by_group.items() if value is None} == set(found.excluded_groups)
    assert set(scores.gaps) == (set(sizes) - set(found.excluded_groups) if len(found.excluded_groups) < 2 else set())


def test_a_group_that_newcomers_bring_is_judged_with_them() -> None:
    events = Events(n_cold=N_COLD)
    groups = Groups.from_values("gender", ["M", "F"] * 10 + ["x"] * N_COLD + ["y"], advantaged="M")
    found = evaluated(evaluator_of("strict", groups=groups), random_model(), events)
    assert list(found["ndcg@5"].by_group) == ["M", "F", "x"]  # of y nobody has come yet
    assert found["ndcg@5"].by_group["x"] == found.slices["cold_users"]["ndcg@5"].mean
    before = evaluated(evaluator_of("paper", groups=groups), random_model(), events)
    assert list(before["ndcg@5"].by_group) == ["M", "F"]


def test_while_nobodys_group_is_known_the_overall_value_is_judged_alone() -> None:
    groups = Groups.from_values("gender", [None] * ALL + ["M", "F"], advantaged="M")
    found = evaluated(evaluator_of("strict", groups=groups), random_model(), Events())
    assert found["ndcg@5"].mean is not None
    assert found["ndcg@5"].performance_disparity is None
    assert found.slices["no_group"].n_users == N_USERS


# ── slices ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.few
@every_repair
@pytest.mark.parametrize("seed", range(3))
def test_the_slices_add_up_to_the_whole(protocol: str, seed: int) -> None:
    events = Events(seed, n_cold=N_COLD)
    groups = Groups.from_values("gender", ["M", "F", None, "F"] * (ALL // 4), advantaged="M")
    found = evaluated(evaluator_of(protocol, groups=groups), random_model(seed), events)
    warm, cold, no_group = (found.slices[name] for name in ("warm_users", "cold_users", "no_group"))
    tested = found.tested
    assert warm.n_users + cold.n_users == found.n_users
    assert warm.n_positives + cold.n_positives == tested.n_positives.sum()
    assert cold.n_users == (found.n_cold_users if protocol_of(protocol).way_of_testing[2] else 0)
    assert no_group.n_users == (tested.codes == -1).sum() > 0
    for name, scores in found.metrics.items():
        parts = [part[name].mean * part.n_users for part in (warm, cold) if part.n_users]
        assert scores.mean * found.n_users == pytest.approx(sum(parts))
        assert no_group[name].by_group == {"M": None, "F": None}
    new = found.slices["new_items"]
    is_new = (events.items >= 100) & np.isin(events.users, tested.users)
    assert (new.n_users, new.n_positives) == (len(np.unique(events.users[is_new])), is_new.sum())
    assert (found.slices["cold_items"].n_users, found.slices["cold_items"].n_positives) == (0, 0)


def test_several_tests_together_are_the_mean_over_the_tests() -> None:
    evaluator = evaluator_of("strict", n_resamples=20)
    tests = [evaluated(evaluator, random_model(seed), Events(seed)) for seed in range(3)]
    together, panel = evaluator.scores([one.tested for one in tests], 2)
    assert panel.values.shape == (N_USERS, 3, 6)
    for name, scores in together.items():
        gaps = [one[name].performance_disparity for one in tests]
        assert scores.mean == pytest.approx(np.mean([one[name].mean for one in tests]))
        assert scores.performance_disparity == pytest.approx(np.mean(gaps))
        assert scores.abs_performance_disparity == pytest.approx(np.mean(np.abs(gaps)))
        assert scores.interval is None
    surer, _ = evaluator.scores([one.tested for one in tests], 2, np.random.default_rng(0))
    assert surer["ndcg@5"].disparity.interval is not None


# ── what decides, and what does not ──────────────────────────────────────────────────────


@pytest.mark.few(2)
@every_repair
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_events_does_not_matter(protocol: str, seed: int) -> None:
    events, shuffled = Events(n_cold=N_COLD), Events(n_cold=N_COLD)
    order = np.random.default_rng(seed).permutation(len(events.users))
    shuffled.users, shuffled.items = events.users[order], events.items[order]
    evaluator = evaluator_of(protocol, n_resamples=10)
    assert evaluated(evaluator, random_model(), shuffled) == evaluated(evaluator, random_model(), events)


@pytest.mark.few(2)
@every_repair
def test_judging_twice_gives_the_same_numbers(protocol: str) -> None:
    model, events = random_model(), Events(n_cold=N_COLD)
    evaluator = evaluator_of(protocol, n_resamples=10)
    first = evaluated(evaluator, model, events)
    torch.rand(3)
    assert evaluated(evaluator, model, events) == first


def test_the_seed_and_the_period_decide_the_papers_candidates() -> None:
    model, events = random_model(), Events()
    first = evaluated(evaluator_of("paper"), model, events)
    assert evaluated(evaluator_of("paper", seed=1), model, events) != first
    assert evaluated(evaluator_of("paper"), model, events, t=1) != first
    strict = evaluated(evaluator_of("strict"), model, events)
    assert evaluated(evaluator_of("strict", seed=1), model, events, t=1) == strict  # which draws nothing


def test_the_seed_and_the_period_decide_the_permutations_and_not_the_numbers() -> None:
    model, events = random_model(), Events()
    first, other_seed, other_period = (
        evaluated(evaluator_of("strict", seed=seed, n_resamples=50), model, events, t=t)["recall@5"]
        for seed, t in ((0, 0), (1, 0), (0, 1))
    )
    for other in (other_seed, other_period):
        assert other.disparity.null_mean != first.disparity.null_mean
        assert (other.mean, other.by_group, other.interval) == (first.mean, first.by_group, first.interval)
    assert evaluated(evaluator_of("strict"), model, events)["recall@5"].interval is None


# ── the model ────────────────────────────────────────────────────────────────────────────


@both_protocols
@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_asked_in_evaluation_mode_and_left_as_it_was(protocol: str, mode: bool) -> None:
    events = Events(n_cold=N_COLD)
    model = Knowing(events.users, events.items).train(mode)
    model.dropout.train(not mode)  # each part has a mode of its own
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluated(evaluator_of(protocol), model, events)
    assert model.was_training == {False}
    assert (model.training, model.user.training, model.dropout.training) == (mode, mode, not mode)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@both_protocols
def test_a_model_that_cannot_be_judged_is_left_in_its_mode_too(protocol: str) -> None:
    events = Events()
    model = Knowing(events.users, events.items).train()
    model.scores[:] = float("nan")
    with pytest.raises(ModelError):
        evaluated(evaluator_of(protocol), model, events)
    assert model.training


@both_protocols
def test_an_evaluation_is_json(protocol: str) -> None:
    groups = groups_of(names="MFMFMMFMFx")
    evaluator = evaluator_of(protocol, groups=groups, min_group_size=3, n_resamples=10)
    found = evaluated(evaluator, random_model(), Events(n_cold=N_COLD))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["metrics"]["ndcg@5"] == json.loads(json.dumps(found["ndcg@5"].to_dict()))
    assert (document["n_users"], document["n_cold_users"]) == (found.n_users, N_COLD)
    assert document["excluded_groups"] == {"x": 2}
    assert document["slices"]["new_items"]["n_positives"] == found.slices["new_items"].n_positives
    assert "tested" not in document  # nothing about single users


def test_newcomers_are_measured_like_anyone() -> None:
    found = evaluated(evaluator_of("strict", n_resamples=20), random_model(), Events(n_cold=N_COLD))
    for name in ("warm_users", "cold_users"):
        scores = found.slices[name]["recall@5"]
        assert scores.interval is not None
        assert scores.disparity is not None
        assert scores.disparity.p_value is not None


# ── lists chosen anew ────────────────────────────────────────────────────────────────────


class Choosing:
    """Takes the given places of every list, and remembers what it was given."""

    def __init__(self, *places: int) -> None:
        self.places, self.asked = places, list[tuple[np.ndarray, np.ndarray, int]]()

    def __call__(self, scores: np.ndarray, codes: np.ndarray, k: int) -> Reranking:
        self.asked.append((scores, codes, k))
        columns = np.tile(np.array(self.places or range(k)), (len(scores), 1))
        return Reranking(columns, value=0.0, gap=0.25, is_within=False)


@pytest.mark.slow
@every_repair
@pytest.mark.parametrize("k", [1, K, 120])
def test_a_reranker_that_keeps_the_best_k_changes_nothing(protocol: str, k: int) -> None:
    events, model = Events(n_cold=N_COLD), random_model()
    plain = evaluated(evaluator_of(protocol, k, n_resamples=10), model, events, n_trained=15)
    for reranker in (Choosing(), Rerank(tolerance=9.0)):
        evaluator = evaluator_of(protocol, k, n_resamples=10, rerank=reranker)
        found = evaluated(evaluator, model, events, n_trained=15)
        assert np.array_equal(found.tested.hits, plain.tested.hits)
        assert (found.metrics, found.slices) == (plain.metrics, plain.slices)
        assert found.reranking.seconds > 0


@both_protocols
def test_a_reranker_is_given_the_candidates_of_those_whom_the_model_ranks(protocol: str) -> None:
    events, reranker = Events(n_cold=N_COLD), Choosing()
    model = Given(torch.rand(ALL, N_ITEMS, generator=torch.Generator().manual_seed(0)))
    groups = Groups.from_values("gender", ["M", "F", None, "F"] * (ALL // 4), advantaged="M")
    evaluator = evaluator_of(protocol, groups=groups, rerank=reranker)
    found = evaluated(evaluator, model, events, n_trained=15)
    ((scores, codes, k),) = reranker.asked
    n_ranked = 15 if protocol == "strict" else N_USERS  # the others are on the fallback, or there are none
    assert k == K
    assert codes.tolist() == groups.codes[:n_ranked].tolist()
    n_positives = np.bincount(events.users, minlength=N_USERS)[:n_ranked]
    n_candidates = np.full(n_ranked, 100) if protocol == "strict" else 100 + n_positives
    assert np.isfinite(scores).sum(axis=1).tolist() == n_candidates.tolist()
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    for user in range(n_ranked):
        assert set(scores[user, : n_candidates[user]]) <= set(model.scores[user].tolist())
    assert (found.reranking.label_gap, found.reranking.is_within) == (0.25, False)


@both_protocols
def test_the_hits_are_read_off_the_lists_that_were_chosen(protocol: str) -> None:
    """With every second place of a list of 2 K, the hits and the items of the slices are those of these places."""
    events = Events()
    model = knowing_half(events)
    longer = evaluated(evaluator_of(protocol, 2 * K), model, events).tested.hits
    found = evaluated(evaluator_of(protocol, rerank=Choosing(*range(1, 2 * K, 2))), model, events)
    assert np.array_equal(found.tested.hits, longer[:, 1::2])
    assert 0 < found["recall@5"].mean < evaluated(evaluator_of(protocol), model, events)["recall@5"].mean


def test_the_items_of_the_slices_are_those_of_the_lists_that_were_chosen() -> None:
    events = Events()
    positives = pairs_of(set(zip(events.users.tolist(), events.items.tolist(), strict=True)))
    model = knowing_half(events)
    longer = rank_all(model, np.arange(N_USERS), positives, events.known.seen, n_items=N_ITEMS, k=2 * K)
    found = evaluated(evaluator_of("strict", rerank=Choosing(*range(1, 2 * K, 2))), model, events)
    n_new = np.bincount(events.users[events.items >= 100], minlength=N_USERS)
    n_found = (longer.hits * (longer.items >= 100))[:, 1::2].sum(axis=1)
    recall = (n_found[n_new > 0] / n_new[n_new > 0]).mean()
    assert found.slices["new_items"]["recall@5"].mean == pytest.approx(recall)
    assert recall > 0


@both_protocols
def test_ties_still_go_against_the_model(protocol: str) -> None:
    """All items score alike, so nothing is relevant, and no positive is among the first of equals."""
    events = Events()
    evaluator = evaluator_of(protocol, rerank=Rerank(tolerance=0.0))
    found = evaluated(evaluator, Knowing(events.users[:0], events.items[:0]), events)
    assert found.tested.hits.sum() == 0


@both_protocols
def test_reranked_lists_are_as_alike_as_was_asked_for_and_otherwise_as_they_were(protocol: str) -> None:
    events, model = Events(n_cold=N_COLD), random_model()
    plain = evaluator_of(protocol, rerank=Rerank(tolerance=9.0))
    fair = evaluator_of(protocol, rerank=Rerank(tolerance=0.005))
    before, after = (evaluated(evaluator, model, events) for evaluator in (plain, fair))
    assert abs(before.reranking.label_gap) > 0.005 >= abs(after.reranking.label_gap)
    assert after.reranking.is_within
    assert np.array_equal(after.tested.n_positives, before.tested.n_positives)
    cold = after.tested.is_cold
    assert np.array_equal(after.tested.hits[cold], before.tested.hits[cold])
    document = json.loads(json.dumps(after.to_dict(), allow_nan=False))
    assert document["reranking"] == {"label_gap": after.reranking.label_gap, "is_within": True}
    assert "reranking" not in evaluated(evaluator_of(protocol), model, events).to_dict()


@every_repair
def test_nobody_to_rerank(protocol: str) -> None:
    events = Events()
    events.users, events.items = events.users[:0], events.items[:0]
    found = evaluated(evaluator_of(protocol, rerank=Rerank(tolerance=0.1)), random_model(), events)
    assert found.n_users == 0
    assert found.reranking == RerankReport(0.0, True, seconds=0.0)
