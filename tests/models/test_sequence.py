"""Sequence models: what they read, what they learn, and how their training is set up."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

import fairstream as fs
from fairstream.data import History
from fairstream.methods import MethodConfig
from fairstream.models import Context, GRU4RecScorer, SASRec, SASRecScorer
from fairstream.objectives import AmongAll
from fairstream.recommender import jobs
from fairstream.sampling import NegativeSampler, SharedNegatives
from fairstream.training import Schedule, cut_windows
from fairstream.training.reference import among_all_items
from support import make_recommender

N_ITEMS = 30
MODELS = [GRU4RecScorer, SASRecScorer]


def cycle(n_users: int, length: int) -> pa.Table:
    """Everybody walks through the items in one order, from a place of their own: the last item tells the next."""
    events = [(t, f"u{u}", (7 * u + t) % N_ITEMS) for t in range(length) for u in range(n_users)]
    users, items = [user for _, user, _ in events], [item for _, _, item in events]
    return pa.table({"user_id": users, "item_id": items, "timestamp": range(len(events))})


def people(n: int) -> pa.Table:
    return pa.table({"user_id": [f"u{u}" for u in range(n)], "sex": ["f" if u % 2 else "m" for u in range(n)]})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gru", "sasrec"])
def test_what_comes_next_is_learned_and_newcomers_have_it_from_their_first_event(name: str) -> None:
    rec = make_recommender(name, embedding_dim=16, pretrain_epochs=60, batch_size=128, device="cpu")
    rec.fit(fs.read_events(cycle(60, 8), users=people(60), group="sex"))
    newcomers = [f"n{item}" for item in range(N_ITEMS)]
    times = range(10**6, 10**6 + N_ITEMS)
    rec.observe(pa.table({"user_id": newcomers, "item_id": range(N_ITEMS), "timestamp": times}))
    best = rec.recommend(newcomers, k=1, task="event")
    assert best["source"].to_pylist() == ["model"] * N_ITEMS
    hits = sum(found == (item + 1) % N_ITEMS for item, found in enumerate(best["item_id"].to_pylist()))
    assert hits >= 0.8 * N_ITEMS


@pytest.mark.parametrize("kind", MODELS)
def test_the_state_depends_on_what_was_read_alone(kind: type[SASRecScorer]) -> None:
    torch.manual_seed(0)
    model = kind(0, N_ITEMS, embedding_dim=8).eval()
    torch.nn.init.normal_(model.item.weight)
    items = torch.randint(0, N_ITEMS, (5, 12))
    longer = F.pad(items, (9, 0), value=-1)
    if kind is SASRecScorer:  # padding is not attended to; a GRU reads it as zeros
        assert torch.allclose(model.states(items), model.states(longer)[:, 9:], atol=1e-5)
    shuffled = items[:, torch.cat([torch.randperm(11), torch.tensor([11])])]
    assert not torch.allclose(model.states(items)[:, -1], model.states(shuffled)[:, -1], atol=1e-3)


def windows(exponent: float) -> Any:
    rng = np.random.default_rng(0)
    users, items = rng.choice(6, 200, p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05]), rng.integers(0, N_ITEMS, 200)
    history = History.of(users, items)
    sampler = NegativeSampler(history.seen, users, n_items=N_ITEMS)
    codes = np.zeros(6, np.int16)
    return cut_windows(
        history, np.arange(200), codes, sampler, n_drawn=0, length=9, size=40, activity_exponent=exponent
    )


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_an_event_counts_the_less_the_more_its_user_has(exponent: float) -> None:
    cut = windows(exponent)
    n_targets = (cut.targets >= 0).sum(axis=1)
    of_user: Counter[int] = Counter()
    for user, n in zip(cut.users.tolist(), n_targets.tolist(), strict=True):
        of_user[user] += n
    assert np.average(cut.weights, weights=n_targets) == pytest.approx(1)
    ratio = cut.weights / np.array([of_user[user] ** -exponent for user in cut.users.tolist()])
    assert np.allclose(ratio, ratio[0])


def test_what_stands_for_all_items_sums_up_to_them() -> None:
    torch.manual_seed(0)
    model = SASRecScorer(0, N_ITEMS, embedding_dim=8).eval()
    torch.nn.init.normal_(model.item.weight, std=0.3)
    states, positives, ones = torch.randn(3, 8), torch.tensor([1, 5, 9]), torch.ones(3)
    n_events = np.arange(N_ITEMS)
    exact = among_all_items(model, states, positives, ones, None)
    with torch.no_grad():
        sums = []
        for key in range(400):
            drawn = among_all_items(model, states, positives, ones, SharedNegatives(n_events, 20).draw(key, batch=3))
            assert torch.allclose(drawn.scores[:, 0], exact.scores[torch.arange(3), positives])
            sums.append(drawn.scores[:, 1:].exp().sum(dim=1))
        others = exact.scores.exp().sum(dim=1) - exact.scores[torch.arange(3), positives].exp()
    mean, error = torch.stack(sums).mean(dim=0), torch.stack(sums).std(dim=0) / 20
    assert ((mean - others).abs() < 4 * error).all()
    assert (error < 0.05 * others).all()
    assert isinstance(drawn, AmongAll)


def test_draws_are_a_function_of_key_and_batch_and_as_frequent_as_they_say() -> None:
    n_events = np.array([0, 10, 30, 0, 60])
    shared = SharedNegatives(n_events, 1000)
    items, log_expected = shared.draw(3, 5)
    assert torch.equal(items, shared.draw(3, torch.tensor(5))[0])
    assert not torch.equal(items, shared.draw(3, 6)[0])
    assert not torch.equal(items, shared.draw(4, 5)[0])
    expected = 1000 * (0.5 / 5 + 0.5 * n_events / 100)
    assert torch.allclose(log_expected.exp(), torch.tensor(expected, dtype=torch.float32)[items])
    counts = sum(torch.bincount(shared.draw(key, 0)[0], minlength=5) for key in range(50))
    assert np.allclose(np.asarray(counts) / 50, expected, rtol=0.05)


@pytest.mark.slow
def test_a_large_catalogue_is_learned_from_a_sample_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jobs.MAX_RANKED_ITEMS, "cpu", N_ITEMS - 1)
    monkeypatch.setattr(jobs, "N_SHARED", 12)
    rec = make_recommender("sasrec", embedding_dim=16, pretrain_epochs=60, batch_size=128, device="cpu")
    rec.fit(fs.read_events(cycle(60, 8), users=people(60), group="sex"))
    best = rec.recommend([f"u{u}" for u in range(60)], k=1, task="event")["item_id"].to_pylist()
    assert sum(item == (7 * u + 8) % N_ITEMS for u, item in enumerate(best)) >= 45


def test_models_have_defaults_of_their_own_and_what_is_given_goes_before() -> None:
    assert MethodConfig().loss == MethodConfig(model="mf").loss == "bpr"
    assert (MethodConfig(model="SASRec").loss, MethodConfig(model="sasrec", loss="bpr").loss) == (
        "softmax",
        "bpr",
    )
    assert make_recommender("gru").recipe.training.optimizer == "dense"
    assert make_recommender("gru", learning_rate=0.5).recipe.training.learning_rate == 0.5

    class Mine(GRU4RecScorer):
        defaults: ClassVar = {"pretrain_epochs": 7}

    assert make_recommender(Mine).recipe.training.pretrain_epochs == 7
    assert make_recommender(Mine, pretrain_epochs=2).recipe.training.pretrain_epochs == 2


def test_the_learning_rate_goes_up_and_down_and_the_optimizer_gets_it_back() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([weight], lr=7.0)
    schedule, rates = Schedule(optimizer, 2.0, n_steps=100), []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.advance()
    assert max(rates) == max(rates[:6])
    assert max(rates) <= 2.0
    assert rates[:5] == sorted(rates[:5])
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert rates[-1] < 0.01
    schedule.finish()
    assert optimizer.param_groups[0]["lr"] == 2.0


@pytest.mark.slow
def test_a_likelihood_gap_pulls_the_groups_together() -> None:
    """The larger group's walk is learned first; with a fairness weight the other one is less far behind."""
    table = cycle(60, 8)
    reverse = {u for u in range(60) if u % 4 == 1}
    pairs = zip(table["user_id"].to_pylist(), table["item_id"].to_pylist(), strict=True)
    items = [-item % N_ITEMS if int(user[1:]) in reverse else item for user, item in pairs]
    table = table.set_column(1, "item_id", [items])
    walks = ["back" if u in reverse else "on" for u in range(60)]
    users = pa.table({"user_id": [f"u{u}" for u in range(60)], "walk": walks})
    log = fs.read_events(table, users=users, group="walk", advantaged="on")
    gaps = []
    for weight in (0.0, 8.0):
        rec = make_recommender(
            "gru",
            fairness_weight=weight,
            surrogate="log-likelihood",
            embedding_dim=16,
            pretrain_epochs=45,
            batch_size=128,
            device="cpu",
        ).fit(log)
        state = rec.state
        rows = np.arange(60)
        context = state.contexts.at(rows, np.arange(420, 480))
        scores = state.model.score_range(torch.from_numpy(rows), 0, N_ITEMS, context).detach()
        likelihood = F.log_softmax(scores, dim=1)[torch.arange(60), torch.from_numpy(log.items[420:480])]
        is_back = torch.tensor([u in reverse for u in range(60)])
        gaps.append(float(likelihood[~is_back].mean() - likelihood[is_back].mean()))
    assert gaps[0] > 0.2
    assert gaps[1] < 0.5 * gaps[0]


def test_the_size_follows_the_log_and_the_device_where_no_size_is_given() -> None:
    def shape(model: SASRec, device: str, n_events: int) -> tuple[Any, ...]:
        sized = model.sized(device, n_events)
        assert sized.sized("cuda", 10**9) == sized
        return sized.embedding_dim, sized.length, sized.blocks, sized.heads, sized.dropout

    assert shape(SASRec(), "cpu", 199_999) == shape(SASRec(), "cuda", 199_999) == (64, 50, 2, 2, 0.2)
    assert shape(SASRec(), "cpu", 200_000) == (64, 100, 4, 2, 0.2)
    assert shape(SASRec(), "cuda", 200_000) == (128, 100, 4, 4, 0.3)
    assert shape(SASRec(embedding_dim=50, blocks=8), "cuda", 10**6) == (50, 100, 8, 2, 0.2)
    assert fs.models.Blend(sequence=SASRec(length=7)).sized("cuda", 10**6).sequence.length == 7


@pytest.mark.parametrize("kind", [GRU4RecScorer, SASRecScorer])
def test_lists_of_a_period_have_a_head_of_their_own_whose_loss_does_not_reach_the_model(kind: type) -> None:
    torch.manual_seed(0)
    model = kind(0, 9, embedding_dim=8, length=5).eval()
    users, history = torch.arange(2), torch.tensor([[-1, 3, 1, 4, 1], [-1, -1, -1, -1, 5]])
    items = torch.arange(9).expand(2, -1)
    event, period = (model(users, items, Context(history, task=task)) for task in ("event", "next"))
    assert not torch.allclose(event, period)
    period.sum().backward()
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained
    assert all(name.startswith("period_head.") for name in trained)


def test_the_period_head_learns_what_comes_later_and_the_model_what_comes_next() -> None:
    # Everybody has item 0, then one of 1 … 4, then 5 … 8 in any order: after 0 comes one of 1 … 4, later mostly 5 … 8.
    rng = np.random.default_rng(0)
    rows = [
        (user, item, 10 * user + at)
        for user in range(150)
        for at, item in enumerate([0, rng.integers(1, 5), *rng.permutation([5, 6, 7, 8])])
    ]
    log = pa.table(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))
    training = fs.Training(pretrain_epochs=25, batch_size=64, threads=1)
    model = SASRec(embedding_dim=8, dropout=0.0)
    rec = fs.FairRecommender(model, target=None, training=training, device="cpu").fit(log)
    following, later = (
        set(rec.recommend(histories=[[0]], k=4, task=task)["item_id"].to_pylist()) for task in ("event", "next")
    )
    assert following == {1, 2, 3, 4}
    assert later == {5, 6, 7, 8}
