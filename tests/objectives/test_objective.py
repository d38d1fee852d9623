"""L = L_rec + λ L_fair: which negatives go where, when L_fair stays away, and slopes down to the embeddings."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from fairstream.errors import ModelError
from fairstream.objectives import (
    DisparityLoss,
    Objective,
    bpr_loss,
    differentiable_disparity,
    positive_hit,
    recommendation,
)
from fairstream.objectives.fairness import Kind
from fairstream.objectives.recommendation import factored_softmax_loss, softmax_loss
from fairstream.paper.surrogates import positive_approx_ndcg, positive_neural_ndcg
from support import EXTREME

N_GROUPS = 4
SIGNS = torch.tensor([1.0, -1.0, -1.0, -1.0])
KINDS: st.SearchStrategy[Kind] = st.sampled_from(["signed", "absolute"])
SURROGATES: st.SearchStrategy[str] = st.sampled_from(["hit", "neural-ndcg", "approx-ndcg"])
OBJECTIVES = st.builds(
    Objective,
    lambda_=st.sampled_from([0.1, 1.0, 7.0]),
    n=st.integers(1, 4),
    mu=st.integers(1, 4),
    fairness=st.builds(DisparityLoss, KINDS, SURROGATES, st.sampled_from([0.3, 1.0, 3.0])),
)
QUALITY = {"hit": positive_hit, "neural-ndcg": positive_neural_ndcg, "approx-ndcg": positive_approx_ndcg}


@st.composite
def batches(draw: st.DrawFn, n_columns: int) -> tuple[Tensor, Tensor]:
    """Scores (B, n_columns) and the groups (B,), of which at least two occur."""
    two = draw(st.lists(st.integers(0, N_GROUPS - 1), min_size=2, max_size=2, unique=True))
    codes = two + draw(st.lists(st.integers(-1, N_GROUPS - 1), max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    scores = torch.randn(len(codes), n_columns, dtype=torch.float64, generator=generator)
    return scores, torch.tensor(draw(st.permutations(codes)))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Objective, Tensor, Tensor]:
    objective = draw(OBJECTIVES)
    return objective, *draw(batches(1 + max(objective.n, objective.mu)))


def naive_quality(objective: Objective, candidates: list[float]) -> float:
    """DH(C; 1), or the NDCG of the only positive, the first candidate."""
    n, tau = len(candidates), objective.fairness.temperature
    if objective.fairness.surrogate == "approx-ndcg":
        rank = 1 + sum(1 / (1 + math.exp((candidates[0] - other) / tau)) for other in candidates[1:])
        return 1 / math.log2(1 + rank)
    distance = [sum(abs(s - other) for other in candidates) for s in candidates]
    p = [
        [math.exp(((n + 1 - 2 * k) * s - a) / tau) for s, a in zip(candidates, distance, strict=True)]
        for k in range(1, n + 1)
    ]
    p = [[x / sum(row) for x in row] for row in p]
    if objective.fairness.surrogate == "hit":
        return p[0][0]
    for _ in range(50):
        for _ in range(2):  # columns, then rows: each is divided and turned over
            p = [[x / sum(column) for x in column] for column in zip(*p, strict=True)]
    return sum(row[0] / math.log2(1 + rank) for rank, row in enumerate(p, start=1))


def naive(objective: Objective, rows: list[list[float]], groups: list[int]) -> float:
    """Algorithm 1, lines 10 to 13, number by number, with each group against the rest."""
    l_rec, dh = [], []
    for row in rows:
        l_rec += [math.log1p(math.exp(other - row[0])) / objective.n for other in row[1 : 1 + objective.n]]
        dh.append(naive_quality(objective, row[: 1 + objective.mu]))
    terms = []
    for code in set(groups) - {-1}:
        ours, rest = (
            fmean(x for x, g in zip(dh, groups, strict=True) if g >= 0 and (g == code) == inside)
            for inside in (True, False)
        )
        ahead = ours - rest if code == 0 else rest - ours
        terms.append(math.log1p(math.exp(ahead if objective.fairness.kind == "signed" else abs(ahead))))
    l_fair = fmean(terms)
    return sum(l_rec) / len(rows) + objective.lambda_ * l_fair


def value_and_gradient(objective: Objective, scores: Tensor, groups: Tensor, *, two: bool) -> tuple[Tensor, Tensor]:
    scores = scores.clone().requires_grad_()
    loss = objective(scores, groups, SIGNS, has_two_groups=two)
    (grad,) = torch.autograd.grad(loss, scores)
    return loss.detach(), grad


def bpr_alone(n: int, scores: Tensor) -> tuple[Tensor, Tensor]:
    scores = scores.clone().requires_grad_()
    loss = bpr_loss(scores[:, : 1 + n])
    (grad,) = torch.autograd.grad(loss, scores)
    return loss.detach(), grad


@given(cases())
def test_it_is_algorithm_1(case: tuple[Objective, Tensor, Tensor]) -> None:
    objective, scores, groups = case
    loss = objective(scores, groups, SIGNS, has_two_groups=True)
    assert loss.item() == pytest.approx(naive(objective, scores.tolist(), groups.tolist()), rel=1e-10)


@given(st.integers(1, 9), st.integers(1, 9))
def test_one_draw_serves_both_losses(n: int, mu: int) -> None:
    assert Objective(lambda_=1.0, n=n, mu=mu).n_drawn == max(n, mu)


@given(cases())
def test_without_fairness_it_is_bpr_to_the_bit(case: tuple[Objective, Tensor, Tensor]) -> None:
    fair, scores, groups = case
    objective = replace(fair, lambda_=0.0)
    assert not objective.is_fair
    scores = scores.to(torch.float32)
    loss, grad = value_and_gradient(objective, scores, groups, two=True)
    expected_loss, expected_grad = bpr_alone(objective.n, scores)
    assert torch.equal(loss, expected_loss)
    assert torch.equal(grad, expected_grad)


@given(cases())
def test_without_fairness_dpd_is_not_even_computed(case: tuple[Objective, Tensor, Tensor]) -> None:
    fair, scores, groups = case
    objective = replace(fair, lambda_=0.0)
    nobody = torch.full_like(groups, -1)  # whose fairness loss is NaN, and so is 0 times it
    loss = objective(scores, nobody, SIGNS, has_two_groups=True)
    assert torch.equal(loss, bpr_loss(scores[:, : 1 + objective.n]))


@given(cases(), st.integers(-1, N_GROUPS - 1))
def test_a_batch_with_one_group_is_bpr_to_the_bit(case: tuple[Objective, Tensor, Tensor], only: int) -> None:
    objective, scores, groups = case
    scores, groups = scores.to(torch.float32), torch.full_like(groups, only)
    assert not differentiable_disparity(
        positive_hit(scores, tau=objective.fairness.temperature), groups, N_GROUPS
    ).is_defined.any()
    loss, grad = value_and_gradient(objective, scores, groups, two=False)
    expected_loss, expected_grad = bpr_alone(objective.n, scores)
    assert torch.equal(loss, expected_loss)
    assert torch.equal(grad, expected_grad)


@given(cases(), st.integers(0, 1000))
def test_l_rec_sees_the_first_n_negatives_only(case: tuple[Objective, Tensor, Tensor], seed: int) -> None:
    objective, scores, groups = case
    changed = scores.clone()
    changed[:, 1 + objective.n :] += torch.randn((), generator=torch.Generator().manual_seed(seed))
    loss, grad = value_and_gradient(objective, scores, groups, two=False)
    assert torch.equal(objective(changed, groups, SIGNS, has_two_groups=False), loss)
    assert not grad[:, 1 + objective.n :].any()


@given(cases())
def test_l_fair_sees_the_first_mu_negatives_only(case: tuple[Objective, Tensor, Tensor]) -> None:
    objective, scores, groups = case
    changed = scores.clone()
    changed[:, 1 + objective.mu :] += 1
    loss, grad = value_and_gradient(objective, scores, groups, two=True)
    l_rec, l_rec_grad = bpr_alone(objective.n, scores)
    changed_l_rec, _ = bpr_alone(objective.n, changed)
    changed_loss = objective(changed, groups, SIGNS, has_two_groups=True)
    torch.testing.assert_close(changed_loss - changed_l_rec, loss - l_rec)
    torch.testing.assert_close(grad[:, 1 + objective.mu :], l_rec_grad[:, 1 + objective.mu :])


@pytest.mark.parametrize(("n", "mu"), [(1, 3), (3, 1)])
@pytest.mark.parametrize("surrogate", ["hit", "neural-ndcg", "approx-ndcg"])
def test_every_negative_of_the_draw_is_used_by_one_of_the_losses(n: int, mu: int, surrogate: str) -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    objective = Objective(lambda_=1.0, n=n, mu=mu, fairness=DisparityLoss(surrogate=surrogate))
    _, grad = value_and_gradient(objective, scores, torch.tensor([0, 1, 0, 1]), two=True)
    assert (grad != 0).all()


@given(cases())
def test_unknown_groups_train_on_l_rec_alone(case: tuple[Objective, Tensor, Tensor]) -> None:
    objective, scores, groups = case
    _, grad = value_and_gradient(objective, scores, groups, two=True)
    _, l_rec_grad = bpr_alone(objective.n, scores)
    torch.testing.assert_close(grad[groups < 0], l_rec_grad[groups < 0])


@given(cases(), st.lists(st.sampled_from([1.0, -1.0]), min_size=N_GROUPS, max_size=N_GROUPS))
def test_who_is_ahead_matters_to_the_signed_loss_alone(
    case: tuple[Objective, Tensor, Tensor], signs: list[float]
) -> None:
    objective, scores, groups = case
    ours, theirs = torch.tensor(signs), -torch.tensor(signs)
    loss, other = (objective(scores, groups, a, has_two_groups=True) for a in (ours, theirs))
    if objective.fairness.kind == "absolute":
        assert torch.equal(loss, other)
    else:  # softplus(x) − softplus(−x) = x
        dh = QUALITY[objective.fairness.surrogate](scores[:, : 1 + objective.mu], tau=objective.fairness.temperature)
        dpd, is_defined = differentiable_disparity(dh, groups, N_GROUPS)
        torch.testing.assert_close(loss - other, objective.lambda_ * (ours * dpd)[is_defined].mean())


@given(
    st.lists(st.lists(EXTREME, min_size=4, max_size=4), min_size=2, max_size=5),
    st.sampled_from([1e-3, 0.3, 3.0]),
    KINDS,
    st.sampled_from([(1, 3), (3, 1), (3, 3)]),
    SURROGATES,
)
@example([[1e4, -1e4, -1e4, -1e4], [-1e4, 1e4, 1e4, 1e4]], 3.0, "signed", (3, 3), "hit")
@example([[-1e4, 1e4, 1e4, 1e4], [1e4, -1e4, -1e4, -1e4]], 1e-3, "absolute", (3, 3), "neural-ndcg")
def test_value_and_gradient_are_finite_at_extreme_scores(
    rows: list[list[float]], tau: float, kind: Kind, sizes: tuple[int, int], surrogate: str
) -> None:
    n, mu = sizes
    objective = Objective(lambda_=5.0, n=n, mu=mu, fairness=DisparityLoss(kind, surrogate, tau))
    groups = torch.tensor([0, 1, -1, 3, 1][: len(rows)])
    loss, grad = value_and_gradient(objective, torch.tensor(rows, dtype=torch.float32), groups, two=True)
    assert loss.isfinite()
    assert grad.isfinite().all()


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", ["signed", "absolute"])
@pytest.mark.parametrize(("n", "mu"), [(1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("has_two_groups", [True, False])
def test_gradient_through_a_factorisation_agrees_with_finite_differences(
    n: int, mu: int, kind: Kind, has_two_groups: bool
) -> None:
    generator = torch.Generator().manual_seed(4)
    p = torch.randn(4, 3, dtype=torch.float64, generator=generator, requires_grad=True)  # users
    q = torch.randn(7, 3, dtype=torch.float64, generator=generator, requires_grad=True)  # items
    users, groups = torch.tensor([0, 1, 2, 3, 1, 3]), torch.tensor([0, 1, -1, 3, 1, 3])
    items = torch.stack([torch.randperm(7, generator=generator)[: 1 + max(n, mu)] for _ in users])
    objective = Objective(lambda_=2.0, n=n, mu=mu, fairness=DisparityLoss(kind, temperature=1.0))

    def total(p: Tensor, q: Tensor) -> Tensor:
        scores = torch.einsum("bd,bcd->bc", p[users], q[items])  # s_ui = ⟨p_u, q_i⟩
        return objective(scores, groups, SIGNS, has_two_groups=has_two_groups)

    assert gradcheck(total, (p, q), atol=1e-7)


@pytest.mark.parametrize("part", ["loss", "fairness"])
@pytest.mark.parametrize(
    ("result", "found"), [(None, "None"), ("x", "'x'"), (torch.zeros(3), r"a tensor of shape \(3,\)")]
)
def test_a_loss_that_returns_no_number_is_one_sentence(part: str, result: object, found: str) -> None:
    objective = replace(Objective(lambda_=1.0, n=2, mu=2), **{part: lambda *_: result})
    with pytest.raises(ModelError, match=rf"\Aa (fairness )?loss must return one number, got {found}\Z"):
        objective(torch.zeros(2, 3), torch.tensor([0, 1]), SIGNS, has_two_groups=True)


def test_a_fairness_loss_may_be_a_plain_number() -> None:
    objective = Objective(lambda_=2.0, n=2, mu=2, fairness=lambda *_: 0.5)
    loss = objective(torch.zeros(2, 3), torch.tensor([0, 1]), SIGNS, has_two_groups=True)
    assert float(loss) == pytest.approx(math.log(2) + 1.0)


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_softmax_loss_of_factors_is_that_of_the_scores(has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(recommendation._SCORES_AT_ONCE, "cpu", 3 * 7)  # three interactions at a time
    torch.manual_seed(0)
    states, rows, bias = (torch.randn(*of, dtype=torch.float64, requires_grad=True) for of in ((10, 4), (7, 4), (7,)))
    parts = [states, rows, *([bias] if has_bias else [])]
    positives, weights = torch.randint(0, 7, (10,)), torch.rand(10)
    losses = (
        3 * factored_softmax_loss(states, rows, bias if has_bias else None, positives, weights),
        3 * softmax_loss(F.linear(states, rows, bias if has_bias else None), positives, weights.double()),
    )
    ours, expected = ([loss.detach(), *torch.autograd.grad(loss, parts, retain_graph=True)] for loss in losses)
    torch.testing.assert_close(ours, expected)
    (slope,) = torch.autograd.grad(losses[0] ** 2, [states], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
