"""What every model must do, and what the built-in ones compute."""

from __future__ import annotations

import copy
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fairstream.models import (
    ItemTable,
    MatrixFactorization,
    NeuralCollaborativeFiltering,
    Popularity,
    Scorer,
    ModelFactory,
    UserTable,
    model_factory,
    scorer,
)

N_USERS, N_ITEMS = 40, 60


class Tower(Scorer):
    """A model of somebody's own: one layer between user and item, and the base class for the rest."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 24), ItemTable(n_items, 12)
        self.popularity = ItemTable(n_items, 1, decayed=False)
        self.layer = nn.Linear(24, 12, bias=False)
        nn.init.normal_(self.layer.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        p = self.layer(self.user(users)).unsqueeze(1)  # (B, 1, d)
        return (p * self.item(items)).sum(dim=-1) + self.popularity(items).squeeze(-1)


FACTORIES: dict[str, ModelFactory] = {
    "mf": model_factory("mf", 16),
    "ncf": model_factory("ncf", 16),
    "custom": Tower,
}


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> ModelFactory:
    return FACTORIES[request.param]


@pytest.fixture
def model(factory: ModelFactory) -> Scorer:
    torch.manual_seed(0)
    return factory(N_USERS, N_ITEMS)


def batch(n: int, n_candidates: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    users = torch.randint(N_USERS, (n,), generator=source)
    return users, torch.randint(N_ITEMS, (n, n_candidates), generator=source)


class TestConformance:
    """The suite that any model has to pass."""

    @pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 5), (7, 4), (0, 3)])
    def test_scores_have_the_shape_of_the_items(self, model: Scorer, shape: tuple[int, int]) -> None:
        assert model(*batch(*shape)).shape == shape

    def test_a_score_depends_on_its_own_pair_alone(self, model: Scorer) -> None:
        users, items = batch(6, 5)
        together = model(users, items)
        alone = torch.stack([model(u.reshape(1), i.reshape(1, 1)).squeeze() for u, i in _pairs(users, items)])
        torch.testing.assert_close(together, alone.reshape(6, 5))

    @pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 17), (3, 17), (17, N_ITEMS), (0, N_ITEMS)])
    def test_scores_of_a_range_are_forward_over_its_items(self, model: Scorer, start: int, stop: int) -> None:
        users = torch.tensor([5, 0, 5, N_USERS - 1])
        expected = model(users, torch.arange(start, stop).expand(len(users), -1))
        torch.testing.assert_close(model.score_range(users, start, stop), expected)

    def test_a_range_in_pieces_is_the_range(self, model: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
        users = torch.arange(5)
        at_once = model.score_range(users, 2, N_ITEMS)
        monkeypatch.setattr(scorer, "_SCORES_AT_ONCE", 11)
        torch.testing.assert_close(model.score_range(users, 2, N_ITEMS), at_once)

    def test_it_knows_how_many_users_and_items_it_has(self, model: Scorer) -> None:
        assert (model.n_users, model.n_items) == (N_USERS, N_ITEMS)
        model.grow(N_USERS + 1, N_ITEMS + 2)
        assert (model.n_users, model.n_items) == (N_USERS + 1, N_ITEMS + 2)

    def test_growth_keeps_what_is_there(self, model: Scorer) -> None:
        before = copy.deepcopy(model)
        parameters = dict(model.named_parameters())
        model.grow(N_USERS + 30, N_ITEMS + 20)
        for name, parameter in model.named_parameters():
            old = before.get_parameter(name)
            assert parameter is parameters[name]
            assert torch.equal(parameter[: len(old)], old)
        users, items = batch(8, 5)
        assert torch.equal(model(users, items), before(users, items))

    def test_growth_reaches_every_table_and_nothing_else(self, model: Scorer) -> None:
        before = copy.deepcopy(model)
        model.grow(N_USERS + 30, N_ITEMS + 20)
        tables = {id(table.weight) for table in model.tables()}
        for name, parameter in model.named_parameters():
            n_new = len(parameter) - len(before.get_parameter(name))
            is_user_table = len(before.get_parameter(name)) == N_USERS
            assert n_new == (0 if id(parameter) not in tables else 30 if is_user_table else 20)
        assert all(table.num_embeddings == len(table.weight) for table in model.tables())

    def test_new_rows_start_as_all_rows_do(self, model: Scorer) -> None:
        torch.manual_seed(4)
        model.grow(N_USERS + 2000, N_ITEMS + 2000)
        for table in model.tables():
            fresh = table.weight[-2000:].detach()
            assert _looks_like_initial(fresh)
            assert len(fresh.unique(dim=0)) == 2000

    def test_it_never_shrinks(self, model: Scorer) -> None:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.grow(N_USERS - 5, N_ITEMS)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    @pytest.mark.parametrize("grown", [False, True])
    def test_gradients_reach_every_parameter(self, model: Scorer, grown: bool) -> None:
        if grown:
            model(*batch(4, 4)).sum().backward()  # a graph of the old shape has been there
            model.zero_grad()
            model.grow(N_USERS + 3, N_ITEMS + 3)
        users, items = torch.arange(model.n_users), torch.arange(model.n_items).expand(model.n_users, -1)
        model(users, items).square().sum().backward()
        tables = {id(table.weight) for table in model.tables()}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.shape == parameter.shape
            reached = (parameter.grad != 0).any(dim=-1)
            # Everyone and everything was in the batch; a unit behind a ReLU may sleep.
            assert bool(reached.all() if id(parameter) in tables else reached.any()), name

    def test_all_weights_start_from_a_narrow_normal(self, factory: ModelFactory) -> None:
        torch.manual_seed(2)
        for name, parameter in factory(3000, 2000).named_parameters():
            assert _looks_like_initial(parameter.detach()), name

    def test_the_state_goes_into_another_model_of_that_size(self, model: Scorer, factory: ModelFactory) -> None:
        model.grow(N_USERS + 5, N_ITEMS + 5)
        other = factory(N_USERS + 5, N_ITEMS + 5)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(*batch(6, 4)), model(*batch(6, 4)))


def _pairs(users: Tensor, items: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(user, item) for user, row in zip(users, items, strict=True) for item in row]


def _looks_like_initial(weights: Tensor) -> bool:
    """Whether mean and standard deviation are those of N(0, 0.01²), within 5 standard errors."""
    n = weights.numel()
    return (
        abs(float(weights.mean())) < 0.05 / math.sqrt(n)
        and abs(float(weights.std()) - 0.01) < 0.05 / math.sqrt(2 * n)
        and (n < 500 or float(weights.abs().max()) > 0.025)  # not a narrow uniform either
    )


def test_mf_is_the_dot_product() -> None:
    model = MatrixFactorization(4, 6, embedding_dim=3).double()
    p, q = model.user.weight.tolist(), model.item.weight.tolist()
    expected = [[sum(a * b for a, b in zip(p_u, q_i, strict=True)) for q_i in q] for p_u in p]
    items = torch.arange(6).expand(4, -1)
    for scores in (model(torch.arange(4), items), model.score_range(torch.arange(4), 0, 6)):
        torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15)


def test_mf_has_embeddings_and_nothing_else() -> None:
    shapes = [tuple(p.shape) for p in MatrixFactorization(7, 9).parameters()]
    assert shapes == [(7, 64), (9, 64)]


def test_ncf_against_its_formula_pair_by_pair() -> None:
    torch.manual_seed(5)
    model = NeuralCollaborativeFiltering(4, 5, embedding_dim=3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(100)  # to where the perceptron has its say
    users, items = torch.tensor([3, 0, 2]), torch.tensor([[4, 0], [1, 1], [2, 3]])
    expected = [[_naive_ncf(model, u, i) for i in row] for u, row in zip(users.tolist(), items.tolist(), strict=True)]
    torch.testing.assert_close(model(users, items), torch.tensor(expected, dtype=torch.float64))


def _naive_ncf(model: NeuralCollaborativeFiltering, user: int, item: int) -> float:
    """w · [p_u ⊙ q_i ; MLP(p'_u ; q'_i)] + b_u + b_i, a number at a time."""
    hidden = model.user_mlp.weight[user].tolist() + model.item_mlp.weight[item].tolist()
    for layer in model.layers:
        hidden = [
            max(0.0, sum(w * x for w, x in zip(row, hidden, strict=True)))
            for row in layer.get_parameter("weight").tolist()
        ]
    p, q = model.user_product.weight[user].tolist(), model.item_product.weight[item].tolist()
    joined = [a * b for a, b in zip(p, q, strict=True)] + hidden
    (w,) = model.output.weight.tolist()
    (b_u,), (b_i,) = model.user_bias.weight[user].tolist(), model.item_bias.weight[item].tolist()
    return sum(a * b for a, b in zip(w, joined, strict=True)) + b_u + b_i


def test_ncf_has_the_layers_of_the_paper() -> None:
    model = NeuralCollaborativeFiltering(7, 9)
    assert [tuple(layer.get_parameter("weight").shape) for layer in model.layers] == [(64, 128)] + 3 * [(64, 64)]
    assert tuple(model.output.weight.shape) == (1, 128)
    assert not any(name.endswith(".bias") for name, _ in model.named_parameters())


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.integers(0, 3), st.integers(0, 2**31))
def test_popularity_is_what_was_given_whoever_asks_and_0_for_items_beyond_it(
    values: list[float], n_more: int, user: int
) -> None:
    popularity, n_items = np.array(values), len(values) + n_more
    model = Popularity(popularity, n_items=n_items)
    expected = [values + [0.0] * n_more] * 2
    users = torch.tensor([user, 0])
    assert model(users, torch.arange(n_items).expand(2, -1)).tolist() == expected
    assert model.score_range(users, 0, n_items).tolist() == expected
    popularity += 1  # what becomes of the numbers later is no concern of the model
    assert model.score_range(users, 0, n_items).tolist() == expected


def test_popularity_has_nothing_to_learn() -> None:
    assert not any(parameter.requires_grad for parameter in Popularity(np.ones(3), n_items=3).parameters())


@pytest.mark.parametrize(("name", "undecayed"), [("mf", set()), ("ncf", {"user_bias", "item_bias"})])
def test_only_the_biases_carry_no_l2(name: str, undecayed: set[str]) -> None:
    model = model_factory(name, 8)(3, 4)
    named = {id(module): module_name for module_name, module in model.named_modules()}
    assert {named[id(table)] for table in model.tables() if not table.decayed} == undecayed


@pytest.mark.parametrize("dim", [1, 8])
def test_a_model_factory_has_the_length_that_was_asked_for(dim: int) -> None:
    for name in ("mf", "ncf"):
        model = model_factory(name, dim)(3, 4)
        assert dim in {table.embedding_dim for table in model.tables()}
    assert partial(MatrixFactorization, embedding_dim=dim)(3, 4).user.weight.shape == (3, dim)


def test_growing_leaves_alone_the_memory_of_others() -> None:
    pretrained = torch.arange(40.0).reshape(10, 4)
    table = UserTable(6, 4)
    table.weight.data = pretrained[:6]
    table.grow(8)
    assert torch.equal(pretrained, torch.arange(40.0).reshape(10, 4))
    assert torch.equal(table.weight[:6], pretrained[:6])


def test_growing_little_by_little_copies_seldom_and_loses_nothing() -> None:
    table, seen, places = UserTable(100, 3), [], set()
    for n_rows in range(101, 140):
        table.grow(n_rows)
        seen.append(table.weight.detach().clone())
        places.add(table.weight.data_ptr())
    for before, after in itertools.pairwise(seen):
        assert torch.equal(after[: len(before)], before)
    assert len(places) <= 4
