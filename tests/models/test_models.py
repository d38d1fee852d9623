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

from fairstream.data import History
from fairstream.errors import ConfigurationError, ModelError
from fairstream.models import (
    MODELS,
    NO_CONTEXT,
    Context,
    ContextBuilder,
    ItemTable,
    MFScorer,
    ModelFactory,
    NCFScorer,
    PopularityScorer,
    RecentPopularityScorer,
    Scorer,
    Table,
    UserTable,
    make_model,
    resolve_model,
    scorer,
)
from fairstream.models.tables import grow_rows
from fairstream.training import RowAdam

N_USERS, N_ITEMS = 40, 60


class Tower(Scorer):
    """A model of somebody's own: one layer between user and item, and the base class for the rest."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.item = UserTable(n_users, 24), ItemTable(n_items, 12)
        self.popularity = ItemTable(n_items, 1, weight_decay=False)
        self.layer = nn.Linear(24, 12, bias=False)
        nn.init.normal_(self.layer.weight, std=0.01)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        p = self.layer(self.user(users)).unsqueeze(1)  # (B, 1, d)
        return (p * self.item(items)).sum(dim=-1) + self.popularity(items).squeeze(-1)


FACTORIES: dict[str, ModelFactory] = {
    "mf": resolve_model("mf", {"embedding_dim": 16}).build,
    "ncf": resolve_model("ncf", {"embedding_dim": 16}).build,
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
        assert model(*batch(*shape), NO_CONTEXT).shape == shape

    def test_a_score_depends_on_its_own_pair_alone(self, model: Scorer) -> None:
        users, items = batch(6, 5)
        together = model(users, items, NO_CONTEXT)
        alone = torch.stack(
            [model(u.reshape(1), i.reshape(1, 1), NO_CONTEXT).squeeze() for u, i in _pairs(users, items)]
        )
        torch.testing.assert_close(together, alone.reshape(6, 5))

    @pytest.mark.parametrize(("start", "stop"), [(0, 1), (0, 17), (3, 17), (17, N_ITEMS), (0, N_ITEMS)])
    def test_scores_of_a_range_are_forward_over_its_items(self, model: Scorer, start: int, stop: int) -> None:
        users = torch.tensor([5, 0, 5, N_USERS - 1])
        expected = model(users, torch.arange(start, stop).expand(len(users), -1), NO_CONTEXT)
        torch.testing.assert_close(model.score_range(users, start, stop, NO_CONTEXT), expected)

    def test_a_range_in_pieces_is_the_range(self, model: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
        users = torch.arange(5)
        at_once = model.score_range(users, 2, N_ITEMS, NO_CONTEXT)
        monkeypatch.setattr(scorer, "_SCORES_AT_ONCE", 11)
        torch.testing.assert_close(model.score_range(users, 2, N_ITEMS, NO_CONTEXT), at_once)

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
        assert torch.equal(model(users, items, NO_CONTEXT), before(users, items, NO_CONTEXT))

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
            model(*batch(4, 4), NO_CONTEXT).sum().backward()  # a graph of the old shape has been there
            model.zero_grad()
            model.grow(N_USERS + 3, N_ITEMS + 3)
        users, items = torch.arange(model.n_users), torch.arange(model.n_items).expand(model.n_users, -1)
        model(users, items, NO_CONTEXT).square().sum().backward()
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
        assert torch.equal(other(*batch(6, 4), NO_CONTEXT), model(*batch(6, 4), NO_CONTEXT))


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
    model = MFScorer(4, 6, embedding_dim=3).double()
    p, q = model.user.weight.tolist(), model.item.weight.tolist()
    expected = [[sum(a * b for a, b in zip(p_u, q_i, strict=True)) for q_i in q] for p_u in p]
    items = torch.arange(6).expand(4, -1)
    for scores in (model(torch.arange(4), items), model.score_range(torch.arange(4), 0, 6)):
        torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15)


def test_mf_has_embeddings_and_nothing_else() -> None:
    shapes = [tuple(p.shape) for p in MFScorer(7, 9).parameters()]
    assert shapes == [(7, 64), (9, 64)]


def test_ncf_against_its_formula_pair_by_pair() -> None:
    torch.manual_seed(5)
    model = NCFScorer(4, 5, embedding_dim=3).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(100)  # to where the perceptron has its say
    users, items = torch.tensor([3, 0, 2]), torch.tensor([[4, 0], [1, 1], [2, 3]])
    expected = [[_naive_ncf(model, u, i) for i in row] for u, row in zip(users.tolist(), items.tolist(), strict=True)]
    torch.testing.assert_close(model(users, items), torch.tensor(expected, dtype=torch.float64))


def _naive_ncf(model: NCFScorer, user: int, item: int) -> float:
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
    model = NCFScorer(7, 9)
    assert [tuple(layer.get_parameter("weight").shape) for layer in model.layers] == [(64, 128)] + 3 * [(64, 64)]
    assert tuple(model.output.weight.shape) == (1, 128)
    assert not any(name.endswith(".bias") for name, _ in model.named_parameters())


# ── closed forms ─────────────────────────────────────────────────────────────────────────

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=40)


def history_of(pairs: list[tuple[int, int]]) -> History:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return History.of(users, items)


@pytest.mark.parametrize("kind", [PopularityScorer, RecentPopularityScorer])
@given(pairs=PAIRS, cut=st.integers(0, 40), user=st.integers(0, 2**31))
def test_popularity_learned_in_pieces_is_what_it_is_at_once(
    kind: type[PopularityScorer], pairs: list[tuple[int, int]], cut: int, user: int
) -> None:
    cut = min(cut, len(pairs))
    history, first = history_of(pairs), history_of(pairs[:cut])
    at_once = kind(0, history.n_items)
    at_once.learn(history, range(len(history)))
    in_pieces = kind(0, first.n_items)
    in_pieces.learn(first, np.arange(cut))
    before = in_pieces.popularity
    kept = before.clone()
    in_pieces.grow(0, history.n_items)
    in_pieces.learn(history, range(cut, len(history)))
    torch.testing.assert_close(in_pieces.popularity, at_once.popularity)
    assert torch.equal(before, kept)  # an older state that shares this tensor keeps it
    users, items = torch.tensor([user, 0]), torch.arange(history.n_items).expand(2, -1)
    assert at_once(users, items).tolist() == at_once.score_range(users, 0, history.n_items).tolist()
    expected = history.recent_popularity if kind is RecentPopularityScorer else np.bincount(history.items)
    assert at_once.popularity.tolist() == pytest.approx(expected.tolist())


def test_the_fallback_knows_nothing_of_items_without_events() -> None:
    model = RecentPopularityScorer.of(history_of([(0, 1)]), n_items=4)
    assert model.popularity.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert not list(model.parameters())


# ── what a factory may return ────────────────────────────────────────────────────────────


def test_registered_models_are_made_by_name_in_any_case() -> None:
    assert {"mf", "ncf", "popularity", "recent-popularity", "item-item"} <= set(MODELS)
    assert type(resolve_model("NCF").build(4, 5)) is NCFScorer
    assert resolve_model("popularity").build(4, 5).n_items == 5
    with pytest.raises(ConfigurationError, match=r"model must be one of mf, ncf, .* got 'lstm'"):
        resolve_model("lstm")


class Parameterless(Scorer):
    """Nothing to train, and not said to be computed from the events either."""

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return torch.zeros(items.shape)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (lambda n_users, n_items: nn.Linear(2, 2), r"must be a fairstream\.Scorer, got Linear"),
        (lambda n_users, n_items: MFScorer(5, n_items), "exactly the 12 users and 30 items .* has 5 and 30"),
        (lambda n_users, n_items: MFScorer(n_users, n_items + 1), "has 12 and 31: .* padding=True"),
        (lambda n_users, n_items: Parameterless(), "no trainable parameters; derive .* from ClosedFormScorer"),
    ],
)
def test_a_model_that_cannot_work_is_refused_when_it_is_made(factory: ModelFactory, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        make_model(factory, 12, 30)


# ── whom a model can score ───────────────────────────────────────────────────────────────


class Reader(Scorer):
    """Scores by the history alone."""

    history_length = 3

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item = ItemTable(n_items, 4, padding=True)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        return (self.item(items) @ self.item(context.history).sum(dim=1).unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (MFScorer(4, 3), [True, False, False, False]),  # those it was trained on
        (Reader(4, 3), [True, True, False, False]),  # those with a history
        (PopularityScorer(4, 3), [True, True, True, True]),  # everybody
    ],
)
def test_a_model_says_whom_it_can_score(model: Scorer, expected: list[bool]) -> None:
    history = history_of([(0, 1), (1, 2)])
    contexts = ContextBuilder(model.history_length, history, np.array([True, False]))
    assert contexts.can_score(model, np.array([0, 1, 2, 7])).tolist() == expected


def test_a_context_holds_what_was_known_before_each_event_and_only_what_is_read() -> None:
    history = history_of([(0, 1), (1, 2), (0, 3), (0, 0)])
    assert ContextBuilder(0, history).at(np.array([0])) is NO_CONTEXT
    context = ContextBuilder(2, history).at(np.array([0, 0, 1]), np.array([2, 3, 1]))
    assert context.history is not None
    assert context.n_events is not None
    assert context.history.tolist() == [[-1, 1], [1, 3], [-1, -1]]
    assert context.n_events.tolist() == [1, 2, 0]
    now = ContextBuilder(2, history).at(np.array([0]))
    assert now.history is not None
    assert now.history.tolist() == [[3, 0]]


# ── tables ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "undecayed"), [("mf", set()), ("ncf", {"user_bias", "item_bias"})])
def test_only_the_biases_carry_no_l2(name: str, undecayed: set[str]) -> None:
    model = resolve_model(name).build(3, 4)
    named = {id(module): module_name for module_name, module in model.named_modules()}
    assert {named[id(table)] for table in model.tables() if not table.weight_decay} == undecayed


@pytest.mark.parametrize("dim", [1, 8])
def test_a_model_factory_has_the_length_that_was_asked_for(dim: int) -> None:
    for name in ("mf", "ncf"):
        model = resolve_model(name, {"embedding_dim": dim}).build(3, 4)
        assert dim in {table.embedding_dim for table in model.tables()}
    assert partial(MFScorer, embedding_dim=dim)(3, 4).user.weight.shape == (3, dim)


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


def test_a_plain_table_never_grows() -> None:
    class WithPositions(MFScorer):
        def __init__(self, n_users: int, n_items: int) -> None:
            super().__init__(n_users, n_items, embedding_dim=4)
            self.position = Table(10, 4)

    model = make_model(WithPositions, 3, 5)
    model.grow(6, 12)
    assert [table.num_embeddings for table in model.tables()] == [6, 12, 10]


def test_padding_is_a_zero_vector_that_is_never_trained() -> None:
    table = ItemTable(5, 3, padding=True)
    table.sparse = True
    rows = torch.tensor([[-1, 2], [-1, -1], [4, 2]])
    found = table(rows)
    assert torch.equal(found[rows < 0], torch.zeros(3, 3))
    assert torch.equal(found[rows >= 0], table.weight[rows[rows >= 0]])
    found.sum().backward()
    assert table.weight.grad is not None
    grad = table.weight.grad.coalesce()
    assert grad.indices()[0].tolist() == [2, 4]  # no row that is not in the batch counts as touched
    assert grad.values()[:, 0].tolist() == [2.0, 1.0]


def test_a_gradient_has_no_row_before_the_first() -> None:
    """PyTorch would add it up in memory that is not the gradient's."""
    table = ItemTable(5, 3, padding=True)
    table.sparse = True
    (table(torch.tensor([-1, -1])).sum() + table(torch.tensor([3, -1])).sum()).backward()
    assert table.weight.grad is not None
    assert table.weight.grad._indices().tolist() == [[3]]


@pytest.mark.parametrize("capturable", [False, True])
def test_a_batch_of_nothing_but_padding_moves_no_row(capturable: bool) -> None:
    """Not even by the momentum of earlier steps, or by weight decay; what else is looked up learns as ever."""
    torch.manual_seed(0)
    table, alone = ItemTable(5, 3, padding=True), ItemTable(5, 3, padding=True)
    alone.load_state_dict(table.state_dict())
    optimizers = []
    for each in (table, alone):
        each.sparse = True
        optimizers.append(RowAdam([each.weight], weight_decay=0.1, capturable=capturable))

    def step(which: int, *lookups: list[int]) -> None:
        each, optimizer = (table, alone)[which], optimizers[which]
        optimizer.zero_grad()
        sum(each(torch.tensor(rows)).square().sum() for rows in lookups).backward()
        optimizer.step()

    def assert_equal() -> None:
        assert torch.equal(table.weight, alone.weight)
        states = (optimizer.state[each.weight] for optimizer, each in zip(optimizers, (table, alone), strict=True))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(*(s.values() for s in states), strict=True))

    for which in (0, 1):
        step(which, [0, 1, -1, 4])
    step(0, [-1, -1])
    assert_equal()
    step(0, [-1, -1], [3])
    step(1, [3])
    assert_equal()


@given(st.sets(st.integers(0, 5), max_size=5))
def test_forgetting_rows_moves_the_later_ones_up(gone: set[int]) -> None:
    model = MFScorer(6, 4, embedding_dim=2)
    users, items = model.user.weight.detach().clone(), model.item.weight.detach().clone()
    model.forget(torch.tensor(sorted(gone), dtype=torch.int64))
    kept = [row for row in range(6) if row not in gone]
    assert torch.equal(model.user.weight, users[kept])
    assert torch.equal(model.item.weight, items)
    assert model.n_users == len(kept)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=6))
def test_two_that_descend_from_one_table_never_write_into_each_others_rows(steps: list[int]) -> None:
    """Rows are appended behind the shared ones by the first to ask; everybody else gets memory of their own."""
    first = MFScorer(64, 64, embedding_dim=2)  # room for 8 more rows
    family, rows = [first], [first.user.weight.detach().clone()]
    for number, step in enumerate(steps):
        parent = family[number // 2]
        child = parent.sharing_memory()
        child.grow(parent.n_users + step, parent.n_items)
        family.append(child)
        rows.append(child.user.weight.detach().clone())
        assert torch.equal(child.user.weight[: parent.n_users], parent.user.weight)
    for model, expected in zip(family, rows, strict=True):
        assert torch.equal(model.user.weight, expected)


def test_a_twin_shares_the_memory_of_its_model() -> None:
    model = MFScorer(6, 4, embedding_dim=2)
    twin = model.sharing_memory()
    with torch.no_grad():
        model.user.weight[0] = 7
    assert twin.user.weight[0].tolist() == [7, 7]
    assert twin.user.weight is not model.user.weight


def test_rows_that_are_not_tables_grow_too() -> None:
    moments = grow_rows(torch.ones(3, 2), 4)
    assert torch.equal(moments[:3], torch.ones(3, 2))
    assert moments.shape == (4, 2)
