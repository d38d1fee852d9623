"""The training loop: what it visits, in which order, with which negatives, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import SeenItems
from fairstream.errors import DataError, ModelError
from fairstream.models import ItemTable, MatrixFactorization, Scorer, ModelFactory, UserTable, model_factory
from fairstream.objectives import Objective
from fairstream.randomness import Randomness
from fairstream.sampling import NegativeSampler
from fairstream.training import Hyperparameters, Trainer, TrainingReport
from support import Recorder, coded

N_USERS, N_ITEMS, BATCH = 12, 30, 8
CPU = torch.device("cpu")


class Interactions:
    """Random events: distinct pairs, and the exclusion lists that go with them."""

    def __init__(self, n: int = 60, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        pairs = rng.permutation(N_USERS * N_ITEMS)[:n].astype(np.int64)
        self.users, self.items = pairs // N_ITEMS, pairs % N_ITEMS
        self.groups = coded(np.arange(N_USERS) % 3)
        self.seen = SeenItems.from_pairs(self.users, self.items)

    def sampler(self) -> NegativeSampler:
        return NegativeSampler(self.seen, np.arange(N_USERS), n_items=N_ITEMS)


def trainer_of(
    factory: ModelFactory, *, seed: int = 0, lambda_: float = 0.5, n: int = 2, mu: int = 3, **options: Any
) -> Trainer:
    hyper = Hyperparameters(batch_size=BATCH, **options)
    objective = Objective(lambda_=lambda_, tau=3.0, n=n, mu=mu)
    sizes = {"n_users": N_USERS, "n_items": N_ITEMS}
    return Trainer(factory, hyper, objective, randomness=Randomness(seed), device=CPU, t=0, **sizes)


def train(
    trainer: Trainer, data: Interactions, *, epochs: int = 3, shuffled: bool = False, **options: Any
) -> TrainingReport:
    defaults = {"t": 0, "n_groups": len(data.groups.names)}
    return trainer.train(
        data.users, data.items, data.groups, data.sampler(), epochs=epochs, shuffled=shuffled, **{**defaults, **options}
    )


def recorded(trainer: Trainer, data: Interactions, **options: Any) -> list[list[tuple[list[int], list[list[int]]]]]:
    """For each epoch its batches, as (users, candidates)."""
    report = train(trainer, data, **options)
    assert isinstance(trainer.model, Recorder)
    asked = [(users.tolist(), items.tolist()) for users, items in trainer.model.asked]
    return [asked[at : at + report.n_batches] for at in range(0, len(asked), report.n_batches)]


def batches_of(users: Sequence[int], items: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    return [(list(users[at : at + BATCH]), list(items[at : at + BATCH])) for at in range(0, len(users), BATCH)]


def positives(epoch: list[tuple[list[int], list[list[int]]]]) -> list[tuple[list[int], list[int]]]:
    return [(users, [row[0] for row in candidates]) for users, candidates in epoch]


def negatives(epoch: list[tuple[list[int], list[list[int]]]]) -> list[list[int]]:
    return [row[1:] for _, candidates in epoch for row in candidates]


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


# ── reproducibility ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("optimizer", ["row", "dense"])
@pytest.mark.parametrize("name", ["mf", "ncf"])
def test_the_seed_decides_everything(name: str, optimizer: str, shuffled: bool) -> None:
    def trained(seed: int, global_seed: int) -> tuple[Tensor, TrainingReport]:
        torch.manual_seed(global_seed)
        trainer = trainer_of(model_factory(name, 4), seed=seed, optimizer=optimizer)
        report = train(trainer, Interactions(), shuffled=shuffled)
        trainer.grow(N_USERS + 3, N_ITEMS + 3, t=1)
        return weights(trainer), report

    first, again, other = trained(0, 1), trained(0, 2), trained(1, 1)
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    assert not torch.equal(first[0], other[0])


class Forgetful(MatrixFactorization):
    """A model that draws while it trains."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__(n_users, n_items, embedding_dim=4)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        return self.dropout(super().forward(users, items))


def test_the_seed_decides_what_a_model_draws_itself() -> None:
    trained = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        trainer = trainer_of(Forgetful)
        train(trainer, Interactions())
        trained.append(weights(trainer))
    assert torch.equal(*trained)


def test_nobody_elses_draws_are_disturbed() -> None:
    before = torch.get_rng_state()
    trainer = trainer_of(Recorder)
    train(trainer, Interactions(), shuffled=True)
    trainer.grow(N_USERS + 1, N_ITEMS + 1, t=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_period_draws_anew() -> None:
    data = Interactions()
    drawn = [negatives(recorded(trainer_of(Recorder), data, t=t, epochs=1)[0]) for t in (1, 2, 1)]
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]


# ── what is visited ──────────────────────────────────────────────────────────────────────


def test_unshuffled_batches_are_chronological_and_keep_their_negatives() -> None:
    data = Interactions(n=60)
    epochs = recorded(trainer_of(Recorder), data, shuffled=False, epochs=3)
    expected = batches_of(data.users.tolist(), data.items.tolist())
    assert [len(users) for users, _ in expected] == [8] * 7 + [4]
    assert all(positives(epoch) == expected for epoch in epochs)
    assert len(epochs) == 3
    assert epochs[0] == epochs[1] == epochs[2]


def test_shuffling_permutes_the_batches_not_what_is_in_them() -> None:
    data = Interactions(n=60)
    epochs = recorded(trainer_of(Recorder), data, shuffled=True, epochs=3)
    expected = batches_of(data.users.tolist(), data.items.tolist())
    orders = [[expected.index(batch) for batch in positives(epoch)] for epoch in epochs]
    assert all(sorted(order) == list(range(len(expected))) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_shuffled_epochs_draw_fresh_negatives() -> None:
    epochs = recorded(trainer_of(Recorder), Interactions(n=6), shuffled=True, epochs=3)  # one batch: no order to tell
    assert positives(epochs[0]) == positives(epochs[1]) == positives(epochs[2])
    assert len({str(negatives(epoch)) for epoch in epochs}) == 3


@pytest.mark.parametrize(("n", "mu"), [(1, 1), (2, 5), (5, 2)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_one_draw_of_max_n_mu_distinct_free_negatives_per_interaction(n: int, mu: int, shuffled: bool) -> None:
    data = Interactions()
    had = set(zip(data.users.tolist(), data.items.tolist(), strict=True))
    for epoch in recorded(trainer_of(Recorder, n=n, mu=mu), data, shuffled=shuffled):
        for users, candidates in epoch:
            for user, row in zip(users, candidates, strict=True):
                assert len(row) == len(set(row)) == 1 + max(n, mu)
                assert all((user, item) not in had and 0 <= item < N_ITEMS for item in row[1:])


def test_interactions_without_enough_free_items_are_left_out_and_counted() -> None:
    data = Interactions()
    crowded = np.array([3, 7])  # two users with 2 free items each, where 3 are drawn
    others = ~np.isin(data.users, crowded)
    pairs = np.array([(user, item) for user in crowded for item in range(N_ITEMS - 2)], dtype=np.int64)
    sampler = NegativeSampler(
        data.seen.union(SeenItems.from_pairs(pairs[:, 0], pairs[:, 1])), np.arange(N_USERS), n_items=N_ITEMS
    )
    n_left_out = int((~others).sum())
    assert n_left_out > 0
    trainer = trainer_of(Recorder, n=2, mu=3)
    before = trainer.model.get_parameter("user.weight")[crowded].detach().clone()
    report = trainer.train(data.users, data.items, data.groups, sampler, n_groups=3, t=0, epochs=1, shuffled=False)
    assert report.n_without_negatives == n_left_out
    assert report.n_interactions == len(data.users)
    assert isinstance(trainer.model, Recorder)
    visited = [(users.tolist(), items[:, 0].tolist()) for users, items in trainer.model.asked]
    assert visited == batches_of(data.users[others].tolist(), data.items[others].tolist())
    assert torch.equal(trainer.model.get_parameter("user.weight")[crowded], before)


def test_with_nobody_left_to_learn_from_it_says_so_and_changes_nothing() -> None:
    users, items = np.repeat(np.arange(N_USERS), N_ITEMS), np.tile(np.arange(N_ITEMS), N_USERS)
    sampler = NegativeSampler(SeenItems.from_pairs(users, items), np.arange(N_USERS), n_items=N_ITEMS)
    trainer = trainer_of(Recorder)
    before = weights(trainer)
    with pytest.raises(DataError, match="distinct negatives"):
        trainer.train(users, items, coded([0] * N_USERS), sampler, n_groups=2, t=0, epochs=2, shuffled=True)
    assert torch.equal(weights(trainer), before)


# ── groups ───────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(-1, 3), min_size=N_USERS, max_size=N_USERS))
def test_batches_without_two_groups_are_counted(codes: list[int]) -> None:
    data = Interactions(n=40)
    data.groups = coded(codes)
    n_one_group = sum(
        len({codes[user] for user in users} - {-1}) < 2
        for users, _ in batches_of(data.users.tolist(), data.items.tolist())
    )
    report = train(trainer_of(Recorder), data, epochs=1)
    assert report.n_one_group_batches == n_one_group
    assert report.n_batches == 5


@pytest.mark.parametrize("code", [-1, 0, 1, 7])
def test_one_group_alone_trains_on_the_recommendation_loss_alone(code: int) -> None:
    data = Interactions()
    data.groups = coded([code] * N_USERS)
    fair, unfair = trainer_of(Recorder, lambda_=4.0), trainer_of(Recorder, lambda_=0.0)
    assert train(fair, data) == train(unfair, data)
    assert torch.equal(weights(fair), weights(unfair))


@pytest.mark.parametrize("codes", [[0, 1], [1, 2], [0, 2, -1], [2, 0, 1]])
def test_two_groups_together_feel_the_fairness_loss(codes: list[int]) -> None:
    data = Interactions()
    data.groups = coded(np.resize(codes, N_USERS))
    fair, unfair = trainer_of(Recorder, lambda_=4.0), trainer_of(Recorder, lambda_=0.0)
    train(fair, data)
    train(unfair, data)
    assert not torch.equal(weights(fair), weights(unfair))


def test_who_is_ahead_decides_where_the_fairness_loss_pulls() -> None:
    """The group that is held to be ahead ends up lower."""
    data = Interactions()
    below = []
    for ahead in ((0,), (1,), (2,)):
        data.groups = coded(np.arange(N_USERS) % 3, ahead)
        trainer = trainer_of(Recorder, lambda_=50.0, learning_rate=0.05, l2=0.0)
        train(trainer, data, epochs=10)
        users, candidates = torch.from_numpy(data.users), torch.from_numpy(data.items)[:, None]
        scores = trainer.model(users, candidates)[:, 0]
        below.append(int(torch.stack([scores[users % 3 == code].mean() for code in range(3)]).argmin()))
    assert below == [0, 1, 2]


# ── the loss ─────────────────────────────────────────────────────────────────────────────


def test_the_reported_loss_is_the_mean_over_the_batches_of_the_last_epoch() -> None:
    data = Interactions(n=20)
    trainer = trainer_of(Recorder, lambda_=0.5, learning_rate=1e-30)  # a model that stands still can be asked again
    loss = train(trainer, data, epochs=1).loss
    assert isinstance(trainer.model, Recorder)
    losses, signs = [], torch.tensor([1.0, -1.0, -1.0])
    for users, candidates in list(trainer.model.asked):
        groups = torch.from_numpy(data.groups.codes)[users]
        with torch.no_grad():
            scores = trainer.model(users, candidates)
            losses.append(float(trainer.objective.loss(scores, groups, signs, has_two_groups=len(groups.unique()) > 1)))
    assert len(losses) == 3
    assert loss == pytest.approx(sum(losses) / len(losses), rel=1e-6)


@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_training_lowers_the_loss(optimizer: str) -> None:
    trainer = trainer_of(Recorder, optimizer=optimizer, learning_rate=0.05, l2=0.0)
    first = train(trainer, Interactions(), epochs=1).loss
    assert train(trainer, Interactions(), epochs=30).loss < 0.7 * first


def test_epochs_are_told_one_by_one() -> None:
    told: list[tuple[int, int]] = []
    train(trainer_of(Recorder), Interactions(), epochs=3, on_epoch=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]


class Broken(Scorer):
    """Loses its mind with the second batch."""

    def __init__(self, n_users: int, n_items: int, how: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.user, self.item, self.how = UserTable(n_users, 1), ItemTable(n_items, 1), how
        self.n_calls = 0

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        self.n_calls += 1
        scores = self.user(users) * self.item(items).squeeze(-1)
        return scores if self.n_calls == 1 else self.how(scores)


@pytest.mark.parametrize(
    ("loss", "how"),
    [
        ("nan", lambda scores: scores * float("nan")),
        ("inf", lambda scores: scores.sign() * 3e38),  # finite scores, but not their differences
    ],
)
def test_a_training_that_diverges_is_an_error(loss: str, how: Callable[[Tensor], Tensor]) -> None:
    trainer = trainer_of(lambda n_users, n_items: Broken(n_users, n_items, how), lambda_=0.0)
    sentence = rf"diverged: the loss of epoch 1 is {loss}; lower learning_rate \(0.001\) or fairness_weight"
    with pytest.raises(ModelError, match=sentence):
        train(trainer, Interactions(), epochs=5)


# ── growth ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("optimizer", ["row", "dense"])
def test_a_grown_trainer_learns_newcomers(optimizer: str) -> None:
    trainer, data = trainer_of(Recorder, optimizer=optimizer), Interactions()
    train(trainer, data)
    before = weights(trainer)
    trainer.grow(N_USERS + 1, N_ITEMS + 4, t=1)
    assert torch.equal(trainer.model.get_parameter("user.weight")[:N_USERS].flatten(), before[: N_USERS * 4])
    grown = trainer.model.get_parameter("item.weight").detach().clone()
    sampler = NegativeSampler(data.seen, np.arange(N_USERS + 1), n_items=N_ITEMS + 4)
    users, items = np.full(4, N_USERS), np.arange(N_ITEMS, N_ITEMS + 4)
    trainer.train(users, items, coded([0] * (N_USERS + 1)), sampler, n_groups=2, t=1, epochs=1, shuffled=False)
    assert bool((trainer.model.get_parameter("item.weight") != grown)[N_ITEMS:].all())


def test_a_model_of_another_kind_or_shape_is_told_apart_from_divergence() -> None:
    class OneColumn(MatrixFactorization):
        def forward(self, users: Tensor, items: Tensor) -> Tensor:
            return super().forward(users, items)[:, :1]

    users, items = np.arange(N_USERS), np.zeros(N_USERS, dtype=np.int64)
    sampler = NegativeSampler(SeenItems.from_pairs(users, items), np.arange(N_USERS), n_items=N_ITEMS)
    with pytest.raises(ModelError, match="a score per candidate"):
        trainer_of(OneColumn).train(
            users, items, coded([0] * N_USERS), sampler, n_groups=2, t=0, epochs=1, shuffled=False
        )
    with pytest.raises(ModelError, match=r"must be a fairstream\.Scorer, got Linear"):
        trainer_of(torch.nn.Linear)


def test_a_model_without_room_for_all_is_told_so() -> None:
    with pytest.raises(ModelError, match=r"room for 12 users and \d+ items.*has room for 5"):
        trainer_of(lambda n_users, n_items: MatrixFactorization(5, n_items))
