"""A filtered model is the same model, with one filter on what describes a user."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from fairstream import ItemTable, ModelError, Scorer, UserTable
from fairstream.models import NO_CONTEXT, Context, MFScorer, NCFScorer, resolve_model
from fairstream.paper.adver import Filter, FilteredModel, FilteredUserTable, capture_outputs
from fairstream.paper.recovery import user_embeddings

BOTH = pytest.mark.parametrize("name", ["mf", "ncf"])
USERS, ITEMS = torch.tensor([0, 3, 3, 9]), torch.arange(8).view(4, 2)


class Tied(Scorer):
    """A model whose one user table goes by two names, inside a list of its own."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        table = UserTable(n_users, 4)
        self.parts = nn.ModuleList([table, ItemTable(n_items, 4), table])

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return (self.parts[1](items) * (self.parts[0](users) + self.parts[2](users)).unsqueeze(1)).sum(-1)


class Two(Scorer):
    """User embeddings of two widths."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.user, self.more, self.item = UserTable(n_users, 4), UserTable(n_users, 6), ItemTable(n_items, 4)

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return torch.zeros(items.shape)


def make(name: str) -> Scorer:
    torch.manual_seed(0)
    return FilteredModel(resolve_model(name, {"embedding_dim": 6})).build(10, 20)


@BOTH
def test_the_rows_are_those_of_the_plain_model(name: str) -> None:
    torch.manual_seed(0)
    plain = resolve_model(name, {"embedding_dim": 6}).build(10, 20).state_dict()
    found = make(name).state_dict()
    assert all(torch.equal(found[key], value) for key, value in plain.items())
    added = {key.partition(".")[0] for key in found.keys() - plain.keys()}
    assert added == {"user_filter", "group_discriminator"}  # each once, whatever the number of tables


def test_a_copy_keeps_the_filter() -> None:
    model = FilteredModel(resolve_model("mf", {"embedding_dim": 6}))
    for twin in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin, FilteredModel)
        assert twin == model


@BOTH
def test_scores_are_made_with_filtered_embeddings(name: str) -> None:
    model = make(name)
    shared = model.user_filter
    assert isinstance(shared, Filter)
    shared(torch.randn(30, 6))  # running statistics of some kind
    model.eval()
    found = model(USERS, ITEMS, NO_CONTEXT)
    plain = resolve_model(name, {"embedding_dim": 6}).build(10, 20).eval()
    plain.load_state_dict({key: value for key, value in model.state_dict().items() if key in plain.state_dict()})
    tables = [table for table in plain.tables() if isinstance(table, UserTable) and table.embedding_dim > 1]
    assert len(tables) == (1 if name == "mf" else 2)
    with torch.no_grad():
        for table in tables:
            table.weight.copy_(shared(table.weight))
    assert torch.allclose(found, plain(USERS, ITEMS, NO_CONTEXT), atol=1e-6)
    assert torch.allclose(
        model.score_range(USERS, 3, 9, NO_CONTEXT), plain.score_range(USERS, 3, 9, NO_CONTEXT), atol=1e-6
    )
    rows = user_embeddings(model, torch.arange(7).numpy())
    assert torch.allclose(rows, torch.cat([table.weight[:7] for table in tables], dim=1), atol=1e-6)


@BOTH
def test_a_copy_has_a_filter_of_its_own(name: str) -> None:
    model = make(name).eval()
    other = copy.deepcopy(model)
    before = model(USERS, ITEMS, NO_CONTEXT)
    assert torch.equal(other(USERS, ITEMS, NO_CONTEXT), before)
    with torch.no_grad():
        for parameter in other.user_filter.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(USERS, ITEMS, NO_CONTEXT), before)
    assert not torch.equal(other(USERS, ITEMS, NO_CONTEXT), before)


@BOTH
def test_it_grows_as_any_model(name: str) -> None:
    model = make(name).eval()
    before, parameters = model(USERS, ITEMS, NO_CONTEXT), list(model.parameters())
    model.grow(15, 30)
    assert (model.n_users, model.n_items) == (15, 30)
    assert torch.equal(model(USERS, ITEMS, NO_CONTEXT), before)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert torch.isfinite(model(torch.tensor([14]), torch.tensor([[29]]), NO_CONTEXT)).all()


def test_what_the_filter_gives_is_overheard() -> None:
    model = make("ncf")
    with capture_outputs(model) as heard:
        model(USERS, ITEMS, NO_CONTEXT)
    assert [tuple(rows.shape) for rows in heard] == [(4, 6), (4, 6)]
    assert all(rows.requires_grad for rows in heard)
    model(USERS, ITEMS, NO_CONTEXT)
    assert len(heard) == 2  # nobody listens any more


def test_a_table_with_two_names_is_filtered_under_both() -> None:
    model = FilteredModel(resolve_model(Tied)).build(10, 20)
    one, _, other = model.parts
    assert isinstance(one, FilteredUserTable)
    assert one is other
    assert len(list(model.tables())) == 2


@pytest.mark.parametrize(
    "factory",
    [
        lambda n_users, n_items: MFScorer(n_users, n_items, embedding_dim=1),
        Two,
        FilteredModel(resolve_model(MFScorer)).build,
    ],
    ids=["too narrow", "two widths", "filtered already"],
)
def test_what_cannot_be_filtered_is_said_in_a_sentence(factory: type[Scorer]) -> None:
    with pytest.raises(ModelError, match=r"^Adver filters user embeddings: expected .* found .*; use .*[^.]$"):
        FilteredModel(resolve_model(factory)).build(10, 20)


def test_the_bias_is_not_an_embedding() -> None:
    model = FilteredModel(resolve_model(NCFScorer)).build(10, 20)
    assert type(model.user_bias) is UserTable
