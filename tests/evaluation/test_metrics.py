"""Ranking metrics against the sums that define them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.evaluation.metrics import (
    HitCounts,
    Metric,
    dcg,
    f1,
    hit,
    mrr,
    precision,
    recall,
    retrieved_ndcg,
    true_ndcg,
)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Lists of hits, and at least as many positives as were hit, and at least one."""
    k = draw(st.integers(1, 12))
    rows = draw(st.lists(st.lists(st.integers(0, 1), min_size=k, max_size=k), min_size=1, max_size=5))
    return rows, [max(1, sum(row)) + draw(st.integers(0, 20)) for row in rows]


def naive_dcg(row: list[int]) -> float:
    return sum(hit / math.log2(rank + 1) for rank, hit in enumerate(row, start=1))


def naive_true_ndcg(row: list[int], n_positives: int) -> float:
    return naive_dcg(row) / naive_dcg([1] * min(len(row), n_positives))


def naive_retrieved_ndcg(row: list[int], _: int) -> float:
    return naive_dcg(row) / naive_dcg(sorted(row, reverse=True)) if any(row) else 0.0


def naive_precision(row: list[int], _: int) -> float:
    return sum(row) / len(row)


def naive_recall(row: list[int], n_positives: int) -> float:
    return sum(row) / n_positives


def naive_f1(row: list[int], n_positives: int) -> float:
    p, r = naive_precision(row, n_positives), naive_recall(row, n_positives)
    return 2 * p * r / (p + r) if any(row) else 0.0


def naive_hit(row: list[int], _: int) -> float:
    return float(1 in row)


def naive_mrr(row: list[int], _: int) -> float:
    return 1 / (row.index(1) + 1) if 1 in row else 0.0


NAIVE: list[tuple[Metric, Callable[[list[int], int], float]]] = [
    (true_ndcg, naive_true_ndcg),
    (retrieved_ndcg, naive_retrieved_ndcg),
    (recall, naive_recall),
    (precision, naive_precision),
    (f1, naive_f1),
    (hit, naive_hit),
    (mrr, naive_mrr),
]
METRICS = [metric for metric, _ in NAIVE]


def both(hits: Any, n_positives: Any) -> tuple[HitCounts, HitCounts]:
    """The arguments of a metric: the lists, and the truth."""
    stored = HitCounts(np.array(hits, dtype=np.bool_), np.array(n_positives))
    return stored, stored


@pytest.mark.parametrize(("metric", "naive"), NAIVE)
@given(ranking=rankings())
def test_a_metric_is_its_definition_user_by_user(
    metric: Metric, naive: Callable[[list[int], int], float], ranking: tuple[list[list[int]], list[int]]
) -> None:
    found = metric(*both(*ranking)).tolist()
    assert found == pytest.approx([naive(row, n) for row, n in zip(*ranking, strict=True)], rel=1e-12)
    assert all(0 <= value <= 1 + 1e-12 for value in found)


@given(rankings())
def test_dcg_is_a_sum_over_the_ranks(ranking: tuple[list[list[int]], list[int]]) -> None:
    assert dcg(both(*ranking)[0]).tolist() == pytest.approx([naive_dcg(row) for row in ranking[0]], rel=1e-12)


@given(st.integers(1, 30), st.integers(1, 60))
def test_a_perfect_list_scores_one(k: int, n_positives: int) -> None:
    hits = np.arange(k)[None] < n_positives
    for metric in (true_ndcg, retrieved_ndcg):
        assert metric(*both(hits, [n_positives])).item() == pytest.approx(1.0, rel=1e-14)


@pytest.mark.parametrize("metric", METRICS)
@given(ranking=rankings())
def test_an_earlier_hit_never_scores_less(metric: Metric, ranking: tuple[list[list[int]], list[int]]) -> None:
    hits, n_positives = ranking
    sooner = [sorted(row, reverse=True) for row in hits]
    assert (metric(*both(sooner, n_positives)) >= metric(*both(hits, n_positives)) - 1e-12).all()


@given(rankings())
def test_anything_but_a_perfect_list_scores_less(ranking: tuple[list[list[int]], list[int]]) -> None:
    rows, n_positives = ranking
    found = true_ndcg(*both(rows, n_positives)).tolist()
    perfect = [sum(row[:n]) == min(len(row), n) for row, n in zip(rows, n_positives, strict=True)]
    assert [value > 1 - 1e-9 for value in found] == perfect


@pytest.mark.parametrize("k", [1, 2, 20])
def test_the_papers_ndcg_asks_only_how_the_hits_are_ordered(k: int) -> None:
    one_at_the_top = [[1, *[0] * (k - 1)]]
    assert retrieved_ndcg(*both(one_at_the_top, [500])).item() == 1.0
    assert retrieved_ndcg(*both([[0] * k], [500])).item() == 0.0


@given(rankings())
def test_the_papers_ndcg_flatters(ranking: tuple[list[list[int]], list[int]]) -> None:
    arguments = both(*ranking)
    assert (retrieved_ndcg(*arguments) >= true_ndcg(*arguments) - 1e-12).all()


@pytest.mark.parametrize("metric", METRICS)
def test_no_users_no_values(metric: Metric) -> None:
    assert metric(*both(np.zeros((0, 5)), np.zeros(0))).tolist() == []
