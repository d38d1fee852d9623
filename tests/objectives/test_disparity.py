"""DPD: advantaged − disadvantaged, and nobody else."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.objectives import differentiable_disparity

HITS = st.floats(0, 1)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """DH of a batch in which both groups occur, and the codes: 0, 1, and −1 where not known."""
    codes = [0, 1, *draw(st.lists(st.sampled_from([0, 1, -1]), max_size=8))]
    groups = torch.tensor(draw(st.permutations(codes)))
    dh = draw(st.lists(HITS, min_size=len(codes), max_size=len(codes)))
    return torch.tensor(dh, dtype=torch.float64), groups


@given(batches())
def test_it_is_the_difference_of_the_two_means(batch: tuple[Tensor, Tensor]) -> None:
    dh, groups = batch
    by_group = {a: fmean(x for x, g in zip(dh.tolist(), groups.tolist(), strict=True) if g == a) for a in (0, 1)}
    dpd = differentiable_disparity(dh, groups)
    assert dpd.item() == pytest.approx(by_group[0] - by_group[1], abs=1e-12)
    assert -1 <= dpd <= 1


@given(batches())
def test_swapping_the_groups_negates_it(batch: tuple[Tensor, Tensor]) -> None:
    dh, groups = batch
    swapped = torch.where(groups < 0, groups, 1 - groups)
    assert torch.equal(differentiable_disparity(dh, swapped), -differentiable_disparity(dh, groups))


@given(batches(), HITS)
def test_unknown_groups_have_no_part_in_it(batch: tuple[Tensor, Tensor], other: float) -> None:
    dh, groups = batch
    dpd = differentiable_disparity(dh, groups)
    torch.testing.assert_close(differentiable_disparity(dh[groups >= 0], groups[groups >= 0]), dpd)
    assert torch.equal(differentiable_disparity(dh.masked_fill(groups < 0, other), groups), dpd)


@given(batches())
def test_gradient_is_one_share_of_the_group_each(batch: tuple[Tensor, Tensor]) -> None:
    dh, groups = batch
    dh = dh.requires_grad_()
    (grad,) = torch.autograd.grad(differentiable_disparity(dh, groups), dh)
    sizes = {a: int((groups == a).sum()) for a in (0, 1)}
    shares = {0: 1 / sizes[0], 1: -1 / sizes[1], -1: 0.0}
    assert grad.tolist() == pytest.approx([shares[g] for g in groups.tolist()])


@given(batches(), st.sampled_from([torch.int8, torch.int32]))
def test_codes_of_any_integer_type_do(batch: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    dh, groups = batch
    assert torch.equal(differentiable_disparity(dh, groups.to(dtype)), differentiable_disparity(dh, groups))


@pytest.mark.parametrize("codes", [[0, 0, 0], [1, 1, 1], [0, -1, 0], [1, -1, -1], [-1, -1, -1]])
def test_without_one_of_the_groups_there_is_none(codes: list[int]) -> None:
    assert differentiable_disparity(torch.tensor([0.1, 0.5, 0.9]), torch.tensor(codes)).isnan()


def test_gradient_agrees_with_finite_differences() -> None:
    dh = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    groups = torch.tensor([0, 1, -1, 0, 0, 1, -1])
    assert gradcheck(lambda x: differentiable_disparity(x, groups), dh, atol=1e-7)
