"""Row Adam is Adam, row by row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fairstream.training import RowAdam

LR = 0.05


def weights(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


def gradients(n_steps: int, *shape: int, seed: int = 1) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    # Scales from step to step differ, so that both moments matter.
    scale = torch.logspace(-2, 2, n_steps, dtype=torch.float64)[torch.randperm(n_steps, generator=source)]
    return torch.randn(n_steps, *shape, dtype=torch.float64, generator=source) * scale.reshape(-1, *[1] * len(shape))


def sparse(rows: list[int], values: Tensor, like: Tensor) -> Tensor:
    indices = torch.tensor([rows], dtype=torch.int64)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=True)


def step(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, grad: Tensor) -> None:
    parameter.grad = grad
    optimizer.step()


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.few
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("shape", [(6,), (6, 4), (3, 2, 5)])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_with_every_row_touched_it_is_adam(shape: tuple[int, ...], weight_decay: float, is_sparse: bool) -> None:
    ours, theirs = weights(*shape), weights(*shape)
    options = {"lr": LR, "weight_decay": weight_decay, "betas": (0.8, 0.95), "eps": 1e-6}
    row_adam, adam = RowAdam([ours], **options), torch.optim.Adam([theirs], **options)
    for number, grad in enumerate(gradients(100, *shape)):
        rows = torch.randperm(shape[0], generator=torch.Generator().manual_seed(number))
        step(row_adam, ours, sparse(rows.tolist(), grad[rows], ours) if is_sparse else grad)
        step(adam, theirs, grad)
        assert_same(ours, theirs)


@pytest.mark.parametrize("shape", [(50,), (50, 8)])
def test_in_single_precision_it_is_adam_within_rounding(shape: tuple[int, ...]) -> None:
    """The compiled loop beside PyTorch's Adam; with ε so small, and β₂ of which 1 − β₂ is easily rounded wrongly."""
    ours, theirs = (nn.Parameter(weights(*shape).detach().float()) for _ in range(2))
    options = {"lr": 0.01, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
    row_adam, adam = RowAdam([ours], **options), torch.optim.Adam([theirs], **options)
    for grad in gradients(200, *shape):
        step(row_adam, ours, sparse(list(range(50)), grad.float(), ours))
        step(adam, theirs, grad.float())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    moments = row_adam.state[ours], adam.state[theirs]
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(moments[0][name], moments[1][name], rtol=1e-5, atol=1e-7)


def test_its_defaults_are_those_of_adam() -> None:
    ours, theirs = weights(5, 3), weights(5, 3)
    row_adam, adam = RowAdam([ours]), torch.optim.Adam([theirs])
    for grad in gradients(30, 5, 3):
        step(row_adam, ours, grad)
        step(adam, theirs, grad)
    assert_same(ours, theirs)


@given(st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=12), st.sampled_from([0.0, 0.3]))
def test_a_row_knows_only_its_own_updates(touched: list[set[int]], weight_decay: float) -> None:
    """A row touched k times is where plain Adam over those k gradients would have brought it."""
    parameter, grads = weights(5, 3), gradients(len(touched), 5, 3)
    start = parameter.detach().clone()
    optimizer = RowAdam([parameter], lr=LR, weight_decay=weight_decay)
    for rows, grad in zip(touched, grads, strict=True):
        step(optimizer, parameter, sparse(sorted(rows), grad[sorted(rows)], parameter))
    for row in range(5):
        alone = nn.Parameter(start[row].clone())
        adam = torch.optim.Adam([alone], lr=LR, weight_decay=weight_decay)
        for rows, grad in zip(touched, grads, strict=True):
            if row in rows:
                step(adam, alone, grad[row])
        assert_same(parameter[row], alone)
        if not any(row in rows for rows in touched):
            assert torch.equal(parameter[row], start[row])


@given(st.sets(st.integers(0, 5), max_size=5), st.integers(0, 1000))
def test_untouched_rows_stay_bit_for_bit(touched: set[int], seed: int) -> None:
    parameter = weights(6, 3)
    optimizer = RowAdam([parameter], lr=LR, weight_decay=0.3)
    for grad in gradients(3, 6, 3):  # everyone has a past
        step(optimizer, parameter, grad)
    before = {name: value.clone() for name, value in _everything(optimizer, parameter).items()}
    rows = sorted(touched)
    step(optimizer, parameter, sparse(rows, gradients(1, len(rows), 3, seed=seed)[0], parameter))
    untouched = [row for row in range(6) if row not in touched]
    for name, value in _everything(optimizer, parameter).items():
        assert torch.equal(value[untouched], before[name][untouched])
        assert not bool((value[rows] == before[name][rows]).all(dim=1).any())


def _everything(optimizer: RowAdam, parameter: nn.Parameter) -> dict[str, Tensor]:
    return {"weights": parameter.data, **optimizer.state[parameter]}


def test_rows_that_occur_twice_in_a_batch_add_up() -> None:
    ours, theirs = weights(4, 3), weights(4, 3)
    first, second = RowAdam([ours], lr=LR, weight_decay=0.3), RowAdam([theirs], lr=LR, weight_decay=0.3)
    for grad in gradients(10, 3, 3):
        step(first, ours, sparse([2, 0, 2], grad, ours))
        step(second, theirs, sparse([0, 2], torch.stack([grad[1], grad[0] + grad[2]]), theirs))
    assert_same(ours, theirs)
    assert first.state[ours]["n_updates"].flatten().tolist() == [10, 0, 10, 0]


def test_the_gradients_of_an_embedding_are_taken_as_they_come() -> None:
    rows = torch.tensor([[1, 3, 1], [0, 1, 3]])
    tables = [nn.Embedding(6, 4, sparse=is_sparse, dtype=torch.float64) for is_sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    ours, theirs = RowAdam(tables[0].parameters(), lr=LR), torch.optim.Adam(tables[1].parameters(), lr=LR)
    for _ in range(20):
        for table, optimizer in zip(tables, (ours, theirs), strict=True):
            optimizer.zero_grad()
            table(rows).square().sum().backward()
            optimizer.step()
    assert tables[0].weight.grad is not None
    assert tables[0].weight.grad.is_sparse
    assert_same(tables[0].weight, tables[1].weight)  # without L2, no gradient means no move in either


def test_a_newcomers_first_update_is_as_long_as_anyones() -> None:
    parameter = weights(2, 3)
    optimizer = RowAdam([parameter], lr=LR)
    for grad in gradients(50, 1, 3):
        step(optimizer, parameter, sparse([0], grad, parameter))
    before = parameter.detach().clone()
    step(optimizer, parameter, sparse([1], torch.full((1, 3), 2.0, dtype=torch.float64), parameter))
    assert_same(before[1] - parameter[1], torch.full((3,), LR / (1 + 1e-8 / 2), dtype=torch.float64))


def test_groups_have_options_of_their_own_and_parameters_without_gradient_are_left_alone() -> None:
    decayed, undecayed, unused = weights(3, 2), weights(3, 2), weights(3, 2)
    start = unused.detach().clone()
    groups = [{"params": [decayed], "weight_decay": 1.0}, {"params": [undecayed, unused], "weight_decay": 0.0}]
    optimizer = RowAdam(groups, lr=LR)
    decayed.grad, undecayed.grad = torch.zeros_like(decayed), torch.zeros_like(undecayed)
    optimizer.step()
    assert torch.equal(undecayed, start)
    assert torch.equal(unused, start)
    assert bool((decayed.abs() < start.abs()).all())


def test_a_single_number_is_learned_as_adam_learns_it() -> None:
    """A model of one's own may have a global bias or scale."""
    ours, theirs = weights(), weights()
    row_adam, adam = RowAdam([ours], lr=LR, weight_decay=0.3), torch.optim.Adam([theirs], lr=LR, weight_decay=0.3)
    for grad in gradients(30):
        step(row_adam, ours, grad)
        step(adam, theirs, grad)
    assert_same(ours, theirs)


def test_a_closure_is_refused() -> None:
    with pytest.raises(TypeError, match="closure"):
        RowAdam([weights(2, 2)]).step(lambda: 0.0)
