"""The judge: two protocols, cold users beside the metrics, and the model left as it was."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fairstream.errors import ConfigurationError, ModelError
from fairstream.evaluation import Judge, Judgement, Protocol
from fairstream.events import Groups, SeenItems
from fairstream.models import ItemTable, MatrixFactorization, Scorer, UserTable
from fairstream.randomness import Randomness

N_USERS, N_COLD, N_ITEMS, K = 20, 4, 150, 5

both_protocols = pytest.mark.parametrize("protocol", ["strict", "paper"])


class Knowing(Scorer):
    """Scores the pairs it is told 1 and all others 0; it remembers in which mode it was asked."""

    def __init__(self, users: np.ndarray, items: np.ndarray) -> None:
        super().__init__()
        self.user, self.item = UserTable(N_USERS + N_COLD, 1), ItemTable(N_ITEMS, 1)
        self.dropout = torch.nn.Dropout(0.5)
        self.scores = torch.zeros(N_USERS + N_COLD, N_ITEMS)
        self.scores[users, items] = 1.0
        self.was_training: set[bool] = set()

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        self.was_training |= {self.training, self.dropout.training}
        return self.scores[users[:, None], items]


class Events:
    """Distinct random pairs of known users: the first half had, the second half to come."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pairs = rng.permutation(N_USERS * N_ITEMS)[:400].astype(np.int64)
        users, items = pairs // N_ITEMS, pairs % N_ITEMS
        self.seen = SeenItems.from_pairs(users[:200], items[:200])
        self.users, self.items = users[200:], items[200:]


def groups_of(n: int = N_USERS + N_COLD) -> Groups:
    return Groups.from_values("gender", ["M" if row % 3 else "F" for row in range(n)], advantaged="M")


def judge_of(protocol: Protocol, k: int = K, groups: Groups | None = None, seed: int = 0) -> Judge:
    return Judge(protocol, k, groups or groups_of(), Randomness(seed))


def judgement(judge: Judge, model: Scorer, events: Events, **options: Any) -> Judgement:
    known = {"seen": events.seen, "n_users": N_USERS, "n_items": N_ITEMS, "t": 0}
    return judge.judge(model, events.users, events.items, **{**known, **options})


def random_model(seed: int = 0) -> Scorer:
    torch.manual_seed(seed)
    return MatrixFactorization(N_USERS + N_COLD, N_ITEMS, embedding_dim=8)


@pytest.mark.parametrize(("protocol", "names"), [("strict", ["ndcg", "f1"]), ("paper", ["ndcg", "f1", "true_ndcg"])])
@pytest.mark.parametrize("k", [1, 7])
def test_the_metrics_of_a_protocol(protocol: Protocol, names: list[str], k: int) -> None:
    found = judgement(judge_of(protocol, k), random_model(), Events())
    assert set(found.metrics) == {f"{name}@{k}" for name in names}
    assert found[f"ndcg@{k}"] is found.metrics[f"ndcg@{k}"]
    for scores in found.metrics.values():
        assert set(scores.by_group) == {"M", "F"}
        assert scores.overall is not None
        assert 0 <= scores.overall <= 1


@both_protocols
def test_a_model_that_knows_the_future_is_perfect(protocol: Protocol) -> None:
    events = Events()
    found = judgement(judge_of(protocol), Knowing(events.users, events.items), events)
    for name in ("ndcg@5", "true_ndcg@5") if protocol == "paper" else ("ndcg@5",):
        assert found[name].overall == pytest.approx(1.0, rel=1e-12)
        assert found[name].performance_disparity == pytest.approx(0.0, abs=1e-12)
    n_positives = np.bincount(events.users, minlength=N_USERS)
    f1 = 2 * np.minimum(n_positives, K) / (K + n_positives)
    assert found["f1@5"].overall == pytest.approx(f1.mean())
    assert found.n_tested_users == N_USERS
    assert found.n_cold_users == 0


@both_protocols
def test_a_model_that_cannot_tell_items_apart_scores_nothing(protocol: Protocol) -> None:
    events = Events()
    found = judgement(judge_of(protocol), Knowing(events.users[:0], events.items[:0]), events)
    assert all(scores.overall == 0 for scores in found.metrics.values())


def test_the_papers_ndcg_is_normalised_by_what_was_retrieved() -> None:
    events = Events()
    first = np.unique(events.users, return_index=True)[1]  # one positive per user is known, the others are not
    model = Knowing(events.users[first], events.items[first])
    paper, strict = judgement(judge_of("paper"), model, events), judgement(judge_of("strict"), model, events)
    assert paper["ndcg@5"].overall == 1.0
    assert paper["true_ndcg@5"].overall < 0.7
    # The one hit is at rank 1 among all items, too, so the true NDCG is the same.
    assert strict["ndcg@5"].overall == pytest.approx(paper["true_ndcg@5"].overall)


@both_protocols
def test_cold_users_are_counted_and_not_in_the_metrics(protocol: Protocol) -> None:
    events, cold = Events(), Events()
    cold.users = np.append(events.users, np.repeat(np.arange(N_USERS, N_USERS + N_COLD), 2))
    cold.items = np.append(events.items, np.arange(2 * N_COLD))
    model = Knowing(events.users[::2], events.items[::2])
    without, within = (judgement(judge_of(protocol), model, one) for one in (events, cold))
    assert (within.n_tested_users, within.n_cold_users) == (without.n_tested_users, N_COLD)
    assert within.metrics == without.metrics


@both_protocols
def test_where_everyone_is_cold_there_is_nothing_to_say(protocol: Protocol) -> None:
    events = Events()
    events.users = events.users + N_USERS
    found = judgement(judge_of(protocol, groups=groups_of(2 * N_USERS)), random_model(), events)
    assert (found.n_tested_users, found.n_cold_users) == (0, N_USERS)
    for scores in found.metrics.values():
        assert (scores.overall, scores.performance_disparity) == (None, None)


def test_items_that_are_not_known_are_missed_under_the_strict_protocol() -> None:
    events = Events()
    model = Knowing(events.users, events.items)
    n_items = N_ITEMS // 2
    found = judgement(judge_of("strict"), model, events, n_items=n_items)
    n_positives = np.bincount(events.users, minlength=N_USERS)
    n_known = np.bincount(events.users[events.items < n_items], minlength=N_USERS)
    assert found["f1@5"].overall == pytest.approx((2 * np.minimum(n_known, K) / (K + n_positives)).mean())
    assert found.n_tested_users == N_USERS


@both_protocols
def test_k_goes_up_to_the_number_of_known_items(protocol: Protocol) -> None:
    judgement(judge_of(protocol, k=N_ITEMS), random_model(), Events())
    with pytest.raises(
        ConfigurationError, match=f"k must be between 1 and the number of known items, {N_ITEMS}, got 151"
    ):
        judgement(judge_of(protocol, k=N_ITEMS + 1), random_model(), Events())


@both_protocols
def test_judging_twice_gives_the_same_numbers(protocol: Protocol) -> None:
    model, events = random_model(), Events()
    first = judgement(judge_of(protocol), model, events)
    torch.rand(3)
    assert judgement(judge_of(protocol), model, events) == first


def test_the_seed_and_the_period_decide_the_papers_candidates() -> None:
    model, events = random_model(), Events()
    first = judgement(judge_of("paper"), model, events)
    assert judgement(judge_of("paper", seed=1), model, events) != first
    assert judgement(judge_of("paper"), model, events, t=1) != first
    strict = judgement(judge_of("strict"), model, events)
    assert judgement(judge_of("strict", seed=1), model, events, t=1) == strict  # which draws nothing


@both_protocols
@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_asked_in_evaluation_mode_and_left_as_it_was(protocol: Protocol, mode: bool) -> None:
    events = Events()
    model = Knowing(events.users, events.items).train(mode)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    judgement(judge_of(protocol), model, events)
    assert model.was_training == {False}
    assert all(module.training is mode for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@both_protocols
def test_a_model_that_cannot_be_judged_is_left_in_its_mode_too(protocol: Protocol) -> None:
    events = Events()
    model = Knowing(events.users, events.items).train()
    model.scores[:] = float("nan")
    with pytest.raises(ModelError):
        judgement(judge_of(protocol), model, events)
    assert model.training


@both_protocols
def test_swapping_the_groups_changes_the_sign_of_every_disparity(protocol: Protocol) -> None:
    model, events = random_model(), Events()
    found = judgement(judge_of(protocol), model, events)
    swapped = judgement(judge_of(protocol, groups=groups_of().swapped()), model, events)
    for name, scores in found.metrics.items():
        assert scores.performance_disparity
        assert swapped[name].performance_disparity == -scores.performance_disparity
        assert swapped[name].overall == scores.overall


@both_protocols
def test_a_judgement_is_json(protocol: Protocol) -> None:
    found = judgement(judge_of(protocol), random_model(), Events())
    document = json.loads(json.dumps(found.to_dict()))
    assert document["ndcg@5"] == found["ndcg@5"].to_dict()
    assert (document["n_tested_users"], document["n_cold_users"]) == (N_USERS, 0)
