"""The k best, block by block, against dense tables: the first implementation, kept as the oracle, and a total order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import SeenItems, synthetic_stream
from fairstream.evaluation import Lists, best_items, top_k
from fairstream.evaluation.top_k import TopKBackend, topk_cpu, topk_torch
from fairstream.models import Context
from support import Given, make_recommender, rank_all

Rank = Callable[..., Any]


class Task(NamedTuple):
    scores: Tensor
    """(U, n_items + those that are not known)"""
    seen: np.ndarray
    positive: np.ndarray
    """Of the same shape; some of the positives were seen."""
    n_items: int
    k: int

    def lists(
        self,
        rank: Rank,
        items_at_once: int = 1 << 12,
        scores_at_once: int = 1 << 20,
        of: Any = Given,
        allowed: np.ndarray | None = None,
    ) -> Lists:
        users = np.arange(len(self.scores))
        seen, positives = (SeenItems.from_pairs(*np.nonzero(mask)) for mask in (self.seen, self.positive))
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(top_k.BACKENDS, "cpu", TopKBackend(rank, items_at_once, scores_at_once))
            model = of(self.scores)
            return rank_all(model, users, positives, seen, n_items=self.n_items, k=self.k, allowed=allowed)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Scores of few values, one float32 step apart or the width of the format; lists from none to full."""
    n_users, n_items, n_unknown = draw(st.integers(1, 5)), draw(st.integers(1, 200)), draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = np.nextafter(np.float32(0.3), np.array([0, 0.3, 1], np.float32))
    values = draw(st.sampled_from([[0.0], [-0.0, 0.0], [-1e-45, 0.0, 1e-45], [-3e38, -1.0, 2.5, 3e38], steps.tolist()]))
    shape = (n_users, n_items + n_unknown)
    scores = torch.from_numpy(rng.choice(values, size=shape)).to(draw(st.sampled_from([torch.float32, torch.float64])))
    if draw(st.booleans()):
        scores = scores + torch.from_numpy(rng.integers(-9, 9, size=shape)).to(scores.dtype)
    shares = st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0])
    seen, wanted = (rng.random(shape) < draw(shares) for _ in range(2))
    return Task(scores, seen, wanted, n_items, draw(st.integers(1, n_items + 2)))


def first_implementation(task: Task) -> np.ndarray:
    """(U, k) hits by a dense mask and `topk` in float64, a positive being moved down by a step too small to matter."""
    seen, wanted = (torch.from_numpy(mask[:, : task.n_items]) for mask in (task.seen, task.positive))
    scores = task.scores[:, : task.n_items].masked_fill(seen, -torch.inf)
    fine = scores.double()
    step = fine.abs().clamp(min=1e-200) * 2.0**-40
    fine = torch.where(wanted, fine - step, fine)
    chosen = fine.topk(min(task.k, task.n_items), dim=1).indices
    hits = (wanted & scores.isfinite()).gather(1, chosen)
    return torch.nn.functional.pad(hits, (0, task.k - hits.shape[1])).numpy()


def in_order(task: Task, user: int) -> list[tuple[float, bool, int]]:
    """The whole list of a user: by score, the positives last among equals, then by row."""
    items = [item for item in range(task.n_items) if not task.seen[user, item]]
    wanted, scores = task.positive[user], task.scores[user].tolist()
    return sorted((-scores[item], bool(wanted[item]), item) for item in items)


backends = st.sampled_from([topk_cpu, topk_torch])
sizes = st.sampled_from([1, 7, 64, 100, 1000])
WIDE = Task(torch.full((2, 150), 0.5), np.zeros((2, 150), bool), np.ones((2, 150), bool), 150, 20)


@given(tasks(), backends, sizes, sizes)
@example(WIDE, topk_cpu, 64, 1000)
def test_hits_are_those_of_the_first_implementation(task: Task, rank: Rank, items: int, scores: int) -> None:
    lists = task.lists(rank, items, scores)
    assert (lists.hits == first_implementation(task)).all()


@given(tasks(), backends, sizes, sizes)
def test_scores_and_positives_stand_in_order(task: Task, rank: Rank, items: int, scores: int) -> None:
    lists = task.lists(rank, items, scores)
    for user in range(len(task.scores)):
        expected = in_order(task, user)[: task.k]
        n = len(expected)
        assert lists.scores[user].tolist() == [-score for score, _, _ in expected] + [-np.inf] * (task.k - n)
        assert lists.hits[user].tolist() == [hit for _, hit, _ in expected] + [False] * (task.k - n)
        ranked = lists.items[user, :n]
        assert (lists.items[user, n:] == -1).all()
        assert task.scores[user, ranked].tolist() == lists.scores[user, :n].tolist()
        assert not task.seen[user, ranked].any()
        assert len(set(ranked.tolist())) == n


@given(tasks(), sizes, sizes)
def test_on_the_cpu_equals_stand_in_the_order_of_their_rows(task: Task, items: int, scores: int) -> None:
    """Whatever the size of the blocks, and by however many threads."""
    lists = task.lists(topk_cpu, items, scores)
    for user in range(len(task.scores)):
        expected = [item for _, _, item in in_order(task, user)[: task.k]]
        assert lists.items[user, : len(expected)].tolist() == expected


@given(tasks(), backends, sizes, sizes, st.data())
def test_of_some_items_the_best_are_those_of_the_whole_order_that_are_among_them(
    task: Task, rank: Rank, items: int, scores: int, data: st.DataObject
) -> None:
    """In however many blocks the catalogue is scored, and where whole blocks have none of them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    share = data.draw(st.sampled_from([0.01, 0.3, 0.95, 1.0]))
    allowed = np.flatnonzero(rng.random(task.n_items) < share)
    if not len(allowed):
        allowed = rng.integers(0, task.n_items, 1)
    lists = task.lists(rank, items, scores, allowed=allowed)
    for user in range(len(task.scores)):
        expected = [entry for entry in in_order(task, user) if entry[2] in allowed][: task.k]
        n = len(expected)
        assert lists.scores[user].tolist() == [-score for score, _, _ in expected] + [-np.inf] * (task.k - n)
        assert lists.hits[user].tolist() == [hit for _, hit, _ in expected] + [False] * (task.k - n)
        assert (lists.items[user, n:] == -1).all()
        ranked = lists.items[user, :n].tolist()
        if rank is topk_cpu:  # elsewhere the order of equals is not defined
            assert ranked == [item for _, _, item in expected]
        assert set(ranked) <= set(allowed.tolist())
        assert task.scores[user, ranked].tolist() == lists.scores[user, :n].tolist()


@given(tasks())
def test_both_backends_have_the_same_hits(task: Task) -> None:
    one, other = task.lists(topk_cpu), task.lists(topk_torch)
    assert (one.hits == other.hits).all()
    assert (one.items[one.hits] == other.items[other.hits]).all()


@pytest.mark.parametrize("rank", [topk_cpu, topk_torch])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_scores_of_other_kinds_are_ranked_too(rank: Rank, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(rng.integers(-50, 50, size=(4, 300))).to(dtype)
    task = Task(scores, rng.random((4, 300)) < 0.3, rng.random((4, 300)) < 0.3, 300, 25)
    assert (task.lists(rank).hits == first_implementation(task._replace(scores=scores.float()))).all()


@pytest.mark.parametrize("rank", [topk_cpu, topk_torch])
def test_scores_may_lie_in_any_order_of_memory(rank: Rank) -> None:
    rng = np.random.default_rng(1)
    transposed = torch.from_numpy(rng.integers(0, 9, size=(70, 5))).float().T
    task = Task(transposed, rng.random((5, 70)) < 0.3, rng.random((5, 70)) < 0.3, 70, 10)

    class Transposed(Given):
        def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
            return self.scores[:, start:stop]

    assert (task.lists(rank, of=Transposed).hits == first_implementation(task)).all()


@pytest.mark.parametrize("model", ["mf", "item-item", "sasrec"])
def test_few_allowed_items_are_scored_one_by_one_with_the_same_result(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = synthetic_stream(n_users=60, n_items=80, n_events=1500, seed=0)
    fitted = make_recommender(model, device="cpu", pretrain_epochs=1, embedding_dim=8).fit(stream.events)
    state, users = fitted.state, np.arange(20)
    allowed = np.array([3, 8, 21, 40, 41])

    def best() -> Any:
        return best_items(state.model, users, state.history, contexts=state.contexts, k=4, allowed=allowed)

    scores, items = best()
    monkeypatch.setattr(top_k, "_MANY", 10)
    monkeypatch.setattr(top_k, "_SCORES_OF_A_FEW", 40)  # two items at once
    few_scores, few_items = best()
    np.testing.assert_array_equal(few_items, items)
    np.testing.assert_allclose(few_scores, scores, rtol=1e-5, atol=1e-6)
