"""The two optimizers: who moves, what L2 reaches, how their state grows and is put back."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from fairstream.models import NO_CONTEXT, Scorer, resolve_model
from fairstream.training import RowAdam
from fairstream.training.optimizers import grow_state, make_optimizer, restore_state, state_tensors

Kind = Literal["row", "dense"]
LR, L2 = 1e-3, 1e-4
N_USERS, N_ITEMS = 8, 12

both_kinds = pytest.mark.parametrize("kind", ["row", "dense"])
both_models = pytest.mark.parametrize("name", ["mf", "ncf"])


def started(name: str, kind: Kind, l2: float = L2) -> tuple[Scorer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = resolve_model(name, {"embedding_dim": 4}).build(N_USERS, N_ITEMS)
    return model, make_optimizer(kind, model, learning_rate=LR, l2=l2)


def learn(model: Scorer, optimizer: torch.optim.Optimizer, users: Tensor, items: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    (1 - model(users, items, NO_CONTEXT)).square().sum().backward()
    optimizer.step()


def batches(n: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(N_USERS, (3,), generator=source), torch.randint(N_ITEMS, (3, 2), generator=source))
        for _ in range(n)
    ]


def test_dense_is_adam_and_row_is_row_adam() -> None:
    assert type(started("mf", "dense")[1]) is torch.optim.Adam
    assert type(started("mf", "row")[1]) is RowAdam


@both_kinds
@both_models
def test_every_parameter_is_held_once_with_its_l2(name: str, kind: Kind) -> None:
    model, optimizer = started(name, kind)
    held = [(id(p), group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]]
    biases = {id(table.weight) for table in model.tables() if not table.weight_decay}
    assert len(held) == len(set(held))
    assert dict(held) == {id(p): 0.0 if id(p) in biases else L2 for p in model.parameters()}
    assert {group["lr"] for group in optimizer.param_groups} == {LR}


def test_dense_moves_every_row_and_row_only_what_the_batch_touches() -> None:
    users, items = torch.tensor([2, 5]), torch.tensor([[0, 7], [7, 9]])
    moved: dict[str, tuple[list[int], list[int]]] = {}
    for kind in ("dense", "row"):
        model, optimizer = started("mf", kind)
        before = copy.deepcopy(model)
        learn(model, optimizer, users, items)
        moved[kind] = tuple(
            (model.get_parameter(name) != before.get_parameter(name)).all(dim=1).nonzero().flatten().tolist()
            for name in ("user.weight", "item.weight")
        )
    assert moved["dense"] == (list(range(N_USERS)), list(range(N_ITEMS)))
    assert moved["row"] == ([2, 5], [0, 7, 9])


@pytest.mark.parametrize("kind", ["dense", "row"])
def test_l2_is_inside_the_gradient_and_not_on_the_biases(kind: Kind) -> None:
    """With no other gradient, Adam's first step is the learning rate towards 0, whatever the L2."""
    model, optimizer = started("ncf", kind)
    before = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        was = before.get_parameter(name)
        if name in {"user_bias.weight", "item_bias.weight"}:
            assert torch.equal(parameter, was)
        else:
            wanted = LR * (L2 * was) / ((L2 * was).abs() + 1e-8)
            torch.testing.assert_close(was - parameter, wanted, rtol=1e-3, atol=1e-7)


def test_without_l2_dense_and_row_take_the_same_first_step() -> None:
    models = []
    for kind in ("dense", "row"):
        model, optimizer = started("ncf", kind, l2=0.0)
        learn(model, optimizer, *batches(1)[0])
        models.append(model)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


@both_kinds
@both_models
def test_a_grown_state_keeps_its_rows_and_new_rows_have_no_past(name: str, kind: Kind) -> None:
    model, optimizer = started(name, kind)
    for batch in batches(4):
        learn(model, optimizer, *batch)
    before = {key: value.clone() for key, value in state_tensors(optimizer, model).items()}
    model.grow(N_USERS + 2, N_ITEMS + 3)
    grow_state(optimizer)
    after = state_tensors(optimizer, model)
    assert set(after) == set(before)
    for key, value in after.items():
        if value.dim() == 0:  # dense Adam's step
            assert torch.equal(value, before[key])
            continue
        parameter = model.get_parameter(key.rpartition("/")[0])
        assert len(value) == len(parameter)
        assert torch.equal(value[: len(before[key])], before[key])
        assert not bool(value[len(before[key]) :].any())


@both_kinds
@both_models
def test_after_growth_newcomers_learn_beside_the_old(name: str, kind: Kind) -> None:
    model, optimizer = started(name, kind)
    for batch in batches(4):
        learn(model, optimizer, *batch)
    model.grow(N_USERS + 2, N_ITEMS + 3)
    grow_state(optimizer)
    before = copy.deepcopy(model)
    learn(model, optimizer, torch.tensor([1, N_USERS + 1]), torch.tensor([[0], [N_ITEMS + 2]]))
    for table_name, table in ((n, m) for n, m in model.named_modules() if isinstance(m, nn.Embedding)):
        moved = (table.weight != before.get_parameter(f"{table_name}.weight")).any(dim=1)
        assert bool(moved[-1])
        assert bool(moved[1] if table.num_embeddings == N_USERS + 2 else moved[0])


def test_growth_before_the_first_step_is_growth_all_the_same() -> None:
    model, optimizer = started("mf", "row")
    model.grow(N_USERS + 2, N_ITEMS + 3)
    grow_state(optimizer)
    learn(model, optimizer, torch.tensor([N_USERS + 1]), torch.tensor([[N_ITEMS + 2]]))
    assert len(optimizer.state[model.get_parameter("user.weight")]["exp_avg"]) == N_USERS + 2


@both_kinds
@both_models
def test_a_restored_optimizer_goes_on_bit_for_bit(name: str, kind: Kind) -> None:
    model, optimizer = started(name, kind)
    for batch in batches(5):
        learn(model, optimizer, *batch)
    model.grow(N_USERS + 2, N_ITEMS + 3)
    grow_state(optimizer)
    saved = {key: value.clone() for key, value in state_tensors(optimizer, model).items()}
    weights = copy.deepcopy(model.state_dict())

    torch.manual_seed(99)
    other = resolve_model(name, {"embedding_dim": 4}).build(N_USERS + 2, N_ITEMS + 3)
    other.load_state_dict(weights)
    restored = make_optimizer(kind, other, learning_rate=LR, l2=L2)
    restore_state(restored, other, saved)
    forgetful = copy.deepcopy(other)
    anew = make_optimizer(kind, forgetful, learning_rate=LR, l2=L2)
    for batch in batches(5, seed=1):
        for a_model, an_optimizer in ((model, optimizer), (other, restored), (forgetful, anew)):
            learn(a_model, an_optimizer, *batch)
    state = state_tensors(restored, other)
    assert all(torch.equal(value, state[key]) for key, value in state_tensors(optimizer, model).items())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), other.parameters(), strict=True))
    assert not torch.equal(next(model.parameters()), next(forgetful.parameters()))


@both_kinds
def test_an_optimizer_that_has_done_nothing_has_no_state(kind: Kind) -> None:
    model, optimizer = started("ncf", kind)
    assert state_tensors(optimizer, model) == {}
    restore_state(optimizer, model, {})
    learn(model, optimizer, *batches(1)[0])
    assert state_tensors(optimizer, model)
