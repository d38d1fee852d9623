"""DPD of each group: its own mean less that of the rest, and nobody of unknown group has a part in it."""

from __future__ import annotations

from random import Random
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
def batches(draw: st.DrawFn, most_groups: int = 5) -> tuple[Tensor, Tensor, int]:
    """DH of a batch, its codes (−1 where not known), and how many groups there are."""
    n_groups = draw(st.integers(2, most_groups))
    codes = draw(st.lists(st.integers(-1, n_groups - 1), min_size=1, max_size=10))
    dh = draw(st.lists(HITS, min_size=len(codes), max_size=len(codes)))
    return torch.tensor(dh, dtype=torch.float64), torch.tensor(codes), n_groups


def both_occur(batch: tuple[Tensor, Tensor, int]) -> bool:
    return {0, 1} <= set(batch[1].tolist())


TWO_GROUPS = batches(most_groups=2).filter(both_occur)


@given(batches())
def test_it_is_the_mean_of_the_group_less_that_of_the_rest(batch: tuple[Tensor, Tensor, int]) -> None:
    dh, groups, n_groups = batch
    dpd, is_defined = differentiable_disparity(dh, groups, n_groups)
    assert dpd.shape == is_defined.shape == (n_groups,)
    assert dpd.isfinite().all()
    hits = list(zip(dh.tolist(), groups.tolist(), strict=True))
    for code in range(n_groups):
        ours = [x for x, g in hits if g == code]
        rest = [x for x, g in hits if g not in (code, -1)]
        assert is_defined[code].item() == bool(ours and rest)
        if is_defined[code]:
            assert dpd[code].item() == pytest.approx(fmean(ours) - fmean(rest), abs=1e-12)


@given(TWO_GROUPS)
def test_of_two_groups_the_one_is_exactly_as_far_ahead_as_the_other_behind(batch: tuple[Tensor, Tensor, int]) -> None:
    dh, groups, _ = batch
    dpd, is_defined = differentiable_disparity(dh, groups)
    assert is_defined.all()
    assert torch.equal(dpd[0], -dpd[1])
    swapped = torch.where(groups < 0, groups, 1 - groups)
    assert torch.equal(differentiable_disparity(dh, swapped).dpd, dpd.flip(0))


@given(batches(), HITS)
def test_unknown_groups_have_no_part_in_it(batch: tuple[Tensor, Tensor, int], other: float) -> None:
    dh, groups, n_groups = batch
    ours = differentiable_disparity(dh, groups, n_groups)
    alone = differentiable_disparity(dh[groups >= 0], groups[groups >= 0], n_groups)
    torch.testing.assert_close(alone.dpd, ours.dpd)
    assert torch.equal(alone.is_defined, ours.is_defined)
    assert torch.equal(differentiable_disparity(dh.masked_fill(groups < 0, other), groups, n_groups).dpd, ours.dpd)


@given(batches(), st.randoms(use_true_random=False))
def test_it_belongs_to_the_group_and_not_to_its_code(batch: tuple[Tensor, Tensor, int], random: Random) -> None:
    dh, groups, n_groups = batch
    code = list(range(n_groups))
    random.shuffle(code)
    ours = differentiable_disparity(dh, groups, n_groups)
    theirs = differentiable_disparity(dh, torch.tensor([*code, -1])[groups], n_groups)
    torch.testing.assert_close(theirs.dpd[code], ours.dpd, rtol=0, atol=1e-12)
    assert torch.equal(theirs.is_defined[code], ours.is_defined)


@given(TWO_GROUPS)
def test_gradient_is_one_share_of_the_group_each(batch: tuple[Tensor, Tensor, int]) -> None:
    dh, groups, _ = batch
    (grad,) = torch.autograd.grad(differentiable_disparity(dh.requires_grad_(), groups).dpd[0], dh)
    sizes = {a: int((groups == a).sum()) for a in (0, 1)}
    shares = {0: 1 / sizes[0], 1: -1 / sizes[1], -1: 0.0}
    assert grad.tolist() == pytest.approx([shares[g] for g in groups.tolist()])


@given(batches(), st.sampled_from([torch.int8, torch.int16, torch.int32]))
def test_codes_of_any_integer_type_do(batch: tuple[Tensor, Tensor, int], dtype: torch.dtype) -> None:
    dh, groups, n_groups = batch
    narrow, wide = (differentiable_disparity(dh, codes, n_groups) for codes in (groups.to(dtype), groups))
    assert torch.equal(narrow.dpd, wide.dpd)
    assert torch.equal(narrow.is_defined, wide.is_defined)


def test_gradient_agrees_with_finite_differences() -> None:
    dh = torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    groups = torch.tensor([0, 1, -1, 0, 2, 1, -1, 4])
    assert gradcheck(lambda x: differentiable_disparity(x, groups, 5).dpd, dh, atol=1e-7)
