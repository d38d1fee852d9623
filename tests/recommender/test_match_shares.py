"""Updates of sequence models: the biases follow the shares of the items in the new period."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import fairstream as fs
from fairstream.models.sequence import SASRecScorer

N_USERS, N_ITEMS = 60, 12


def period(items: range, n: int, seed: int, first: int) -> pa.Table:
    """Events of different users with some of the items; the first items are chosen most."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation([(u, i) for u in range(N_USERS) for i in items if rng.random() < 1 / (1 + i - items[0])])
    times = first + np.arange(min(n, len(pairs)))
    return pa.table({"user_id": pairs[:n, 0], "item_id": pairs[:n, 1], "time": times})


def fitted(kinds: dict[str, float] | None = None, **training: Any) -> fs.FairRecommender:
    options = {"pretrain_epochs": 2, "threads": 1, **training}
    rec = fs.FairRecommender(
        fs.models.SASRec(embedding_dim=8, dropout=0.0),
        strategy=fs.FineTune(epochs=1, learning_rate=1e-9),  # nothing but the biases moves
        training=fs.Training(**options),
        device="cpu",
    )
    first = period(range(N_ITEMS), 150, 0, 0)
    if kinds is None:
        return rec.fit(first)
    return rec.fit(fs.read_events(first.append_column("kind", pa.array(["buy"] * len(first))), kinds=kinds))


def test_expected_counts_move_to_the_counts_of_the_period() -> None:
    torch.manual_seed(0)
    model = SASRecScorer(0, 6, embedding_dim=8)
    history, weights = torch.randint(-1, 5, (40, 50)), torch.full((40,), 2.0)
    counts = torch.tensor([30.0, 20.0, 10.0, 0.0, 0.0, 20.0])
    is_trained = torch.tensor([True, True, True, True, False, False])

    def expected() -> torch.Tensor:
        scores = model.score_states(model.eval().states(history)[:, -1], None)
        scores[:, 4] = -torch.inf  # neither trained nor chosen
        return (weights @ scores.softmax(dim=1)).detach()

    before, bias = expected(), model.bias.weight[4].item()
    model.match_shares(model.states(history)[:, -1], weights, counts, is_trained)
    after = expected()
    assert ((after - counts).abs() < (before - counts).abs())[[0, 3, 5]].all()
    assert after[5].item() == pytest.approx(20, abs=0.5)  # new: nothing but its count is known
    assert after[3] > 0.5  # a trained item may be chosen again
    assert model.bias.weight[4].item() == bias
    assert not model.item.weight[5].any()
    assert model.item.weight[4].any()


def test_chance_alone_moves_no_bias() -> None:
    torch.manual_seed(0)
    model = SASRecScorer(0, 50, embedding_dim=8)
    history = torch.randint(-1, 50, (40, 50))
    before = model.bias.weight.detach().clone()
    counts = torch.full((50,), 4.0).scatter_add(0, torch.arange(50), torch.tensor([1.0, -1.0] * 25))
    states, is_trained = model.eval().states(history)[:, -1], torch.ones(50, dtype=torch.bool)
    model.match_shares(states, torch.full((40,), 5.0), counts, is_trained)
    assert torch.allclose(model.bias.weight, before, atol=1e-3)


@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_a_model_that_is_right_keeps_its_biases(scale: float) -> None:
    """Whatever part of a period's requests is compared; its users differ much from each other."""
    torch.manual_seed(0)
    model = SASRecScorer(0, 1_000, embedding_dim=16)
    torch.nn.init.normal_(model.item.weight, std=scale)
    torch.nn.init.zeros_(model.bias.weight)
    states = torch.randn(600, 16)
    chosen = model.score_states(states, None).softmax(dim=1).multinomial(1).squeeze(1)
    counts = torch.bincount(chosen, minlength=1_000).float()
    model.match_shares(states, torch.ones(600), counts, torch.ones(1_000, dtype=torch.bool))
    assert model.bias.weight.abs().mean().item() < 0.06


@pytest.mark.parametrize("scale", [10.0, 1e3])
def test_items_that_a_certain_model_excludes_leave_the_biases_finite(scale: float) -> None:
    """Their probability is 0 in float32."""
    torch.manual_seed(0)
    model = SASRecScorer(0, 50, embedding_dim=8)
    torch.nn.init.normal_(model.item.weight)
    counts, is_trained = torch.randint(0, 3, (50,)).float(), torch.arange(50) < 45
    model.match_shares(scale * torch.randn(40, 8), torch.full((40,), counts.sum() / 40), counts, is_trained)
    assert model.bias.weight.isfinite().all()


def test_an_update_learns_the_popularity_of_new_items() -> None:
    rec = fitted()
    new = range(N_ITEMS, N_ITEMS + 4)
    rec.update(period(new, 80, 1, 1_000))
    bias = rec.model.bias.weight[:, 0].detach()
    rows = rec.state.item_ids.lookup(list(new))
    assert bias[rows[0]] > bias[rows[3]] + 0.5  # chosen more often
    assert bias[rows].min() > bias[rec.state.item_ids.lookup(list(range(N_ITEMS)))].max()  # nobody chose an old one


@pytest.mark.parametrize("loss", ["sampled-softmax", "bpr"])
def test_a_loss_without_shares_leaves_the_biases_to_training(loss: str) -> None:
    rec = fitted(loss=loss)
    before = rec.model.bias.weight.detach().clone()
    rec.update(period(range(N_ITEMS, N_ITEMS + 4), 80, 1, 1_000))
    assert torch.allclose(rec.model.bias.weight[: len(before)], before, atol=1e-6)


def test_an_update_leaves_the_state_before_it_as_it_was() -> None:
    rec = fitted()
    rec.observe(period(range(N_ITEMS, N_ITEMS + 2), 10, 2, 500))  # its rows exist before they are trained
    before = rec.state
    held = {name: value.clone() for name, value in before.model.state_dict().items()}
    rec.update(period(range(N_ITEMS, N_ITEMS + 4), 80, 1, 1_000))
    assert all(torch.equal(value, held[name]) for name, value in before.model.state_dict().items())
    assert not torch.equal(rec.model.bias.weight[:N_ITEMS], held["bias.weight"][:N_ITEMS])


def test_counts_are_those_of_the_compared_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those of new items, of which every event tells something, in proportion."""
    rec, compared = fitted(), []
    monkeypatch.setattr("fairstream.recommender.jobs.MAX_MATCHED_REQUESTS", 20)
    monkeypatch.setattr(SASRecScorer, "match_shares", lambda *args: compared.append(args))
    n_before = len(rec.state.history)
    rec.update(period(range(4, N_ITEMS + 4), 80, 1, 1_000))
    _, _, weights, counts, is_trained = compared[0]
    rows = rec.state.history.items[n_before:]
    chosen = np.bincount(rows[np.linspace(0, len(rows) - 1, 20).astype(int)], minlength=len(counts))
    everything = np.bincount(rows, minlength=len(counts))
    expected = np.where(is_trained, chosen, everything * 20 / len(rows))
    assert counts.tolist() == pytest.approx(expected.tolist())
    assert weights.sum() == pytest.approx(counts.sum().item())


@pytest.mark.parametrize("weights", [{"view": 4.0, "buy": 4.0}, {"view": 1.0, "buy": 4.0}])
def test_weights_of_kinds_make_no_event_tell_more(monkeypatch: pytest.MonkeyPatch, weights: dict[str, float]) -> None:
    """A count of weighted events varies more by chance; in units of that variance it is a Poisson count again."""
    compared: list[Any] = []
    monkeypatch.setattr(SASRecScorer, "match_shares", lambda *args: compared.append(args))
    for kinds in ({"view": 1.0, "buy": 1.0}, weights):
        rec, new = fitted(kinds=kinds), period(range(4, N_ITEMS + 4), 80, 1, 1_000)
        kind = ["buy" if n % 3 else "view" for n in range(len(new))]
        rec.update(new.append_column("kind", pa.array(kind)))
    (_, _, _, plain, _), (_, _, each, weighted, _) = compared
    assert float((each**2).sum()) == pytest.approx(float(each.sum()), rel=0.05)
    if len({*weights.values()}) == 1:
        assert weighted.tolist() == pytest.approx(plain.tolist())
    else:
        assert weighted.sum() < plain.sum()


def test_one_nearly_impossible_item_moves_no_other() -> None:
    """It was chosen once; its share of the variance would be a million times that of the others."""
    torch.manual_seed(0)
    model = SASRecScorer(0, 200, embedding_dim=8)
    torch.nn.init.normal_(model.bias.weight)
    model.bias.weight.data[0] = -14.0
    states, before = torch.randn(600, 8), model.bias.weight.detach().clone()
    chosen = model.score_states(states, None).softmax(dim=1).multinomial(1).squeeze(1)
    counts = torch.bincount(chosen, minlength=200).float()
    counts[0] += 1
    model.match_shares(states, torch.full((600,), 601 / 600), counts, torch.ones(200, dtype=torch.bool))
    assert (model.bias.weight - before)[1:].abs().mean().item() < 0.05


def test_without_a_trained_item_the_biases_stay() -> None:
    model = SASRecScorer(0, 6, embedding_dim=8)
    before = model.bias.weight.detach().clone()
    model.match_shares(torch.randn(4, 8), torch.ones(4), torch.ones(6), torch.zeros(6, dtype=torch.bool))
    assert torch.equal(model.bias.weight, before)
