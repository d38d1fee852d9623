"""Which of the top k are hits, against lists made one user at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import SeenItems
from fairstream.errors import ModelError
from fairstream.evaluation import Lists, ranking, top_k
from fairstream.evaluation.top_k import TopKBackend, chunks, topk_cpu, topk_torch
from fairstream.models import Context
from fairstream.paper import protocol
from fairstream.paper.protocol import N_SAMPLED_CANDIDATES
from support import NO_CONTEXTS, Given, Pairs, had, items_of, pairs_of, rank_all, rows

best_items = partial(ranking.best_items, contexts=NO_CONTEXTS)
rank_sampled = partial(protocol.rank_sampled, contexts=NO_CONTEXTS)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def going(rank: Callable[..., Any] = topk_cpu, *, items: int = 1 << 12, scores: int = 1 << 20) -> Iterator[None]:
    """Rank on the CPU in this way, so many items and so many scores at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(top_k.BACKENDS, "cpu", TopKBackend(rank, items, scores))
        yield


both_ways = pytest.mark.parametrize("rank", [topk_cpu, topk_torch])
BACKENDS = st.builds(
    going, st.sampled_from([topk_cpu, topk_torch]), items=st.integers(1, 12), scores=st.integers(1, 60)
)
"""The way of the CPU and that of an accelerator, in blocks of every shape."""


def naive_hits(scores: list[float], candidates: set[int], positives: set[int], k: int) -> list[float]:
    """Candidates by score, the positives last among equals; what is not in the list is no hit."""
    ranked = sorted(candidates, key=lambda item: (-scores[item], item in positives))[:k]
    hits = [float(item in positives) for item in ranked]
    return hits + [0.0] * (k - len(hits))


Task = tuple[Tensor, Pairs, Pairs, list[int], int, int]


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """(scores, positives, seen, users, n_items, k); few values, so ties abound."""
    n_users, n_known, n_unknown = draw(st.integers(1, 4)), draw(st.integers(1, 9)), draw(st.integers(0, 2))
    n_all = n_known + n_unknown
    values = draw(st.sampled_from([[0.0], [0.0, 1.0], [-1.0, 0.0, 2.5], [-3e38, -1e-40, 0.0, 1e-40, 3e38]]))
    scores = draw(st.lists(st.sampled_from(values), min_size=n_users * n_all, max_size=n_users * n_all))
    pairs = st.sets(st.tuples(st.integers(0, n_users - 1), st.integers(0, n_all - 1)))
    positives, seen = draw(pairs), draw(pairs)
    users = draw(st.permutations(range(n_users)))[: draw(st.integers(1, n_users))]
    table = torch.tensor(scores, dtype=torch.float32).reshape(n_users, n_all)
    return table, positives - seen, seen, users, n_known, draw(st.integers(1, n_known))


# ── all items ────────────────────────────────────────────────────────────────────────────


@given(tasks(), BACKENDS)
def test_rank_all_against_a_list_made_by_hand(task: Task, way: AbstractContextManager[None]) -> None:
    scores, positives, seen, users, n_items, k = task
    with way:
        ranked = rank_all(Given(scores), rows(*users), pairs_of(positives), pairs_of(seen), n_items=n_items, k=k)
    assert ranked.hits.shape == (len(users), k)
    assert ranked.items.shape == (len(users), k)
    for place, user in enumerate(users):
        candidates, wanted = set(range(n_items)) - items_of(seen, user), items_of(positives, user)
        hits, items = ranked.hits[place].tolist(), ranked.items[place].tolist()[: len(candidates)]
        assert hits == naive_hits(scores[user].tolist(), candidates, wanted, k)
        assert ranked.items[place].tolist()[len(candidates) :] == [-1] * (k - len(candidates))
        assert [float(item in wanted) for item in items] == hits[: len(candidates)]
        assert len(set(items)) == len(items)
        assert set(items) <= candidates
        best = sorted(scores[user, sorted(candidates)].tolist(), reverse=True)[:k]
        assert scores[user, items].tolist() == best


@both_ways
@pytest.mark.parametrize(("items", "at_once"), [(1, 1), (7, 100), (64, 100), (100, 1 << 20)])
def test_rank_all_over_many_users_a_few_at_a_time(rank: Callable[..., Any], items: int, at_once: int) -> None:
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(rng.integers(0, 20, size=(30, 40))).float()
    pairs = [(int(user), int(item)) for user, item in rng.integers([30, 40], size=(400, 2))]
    seen = set(pairs[:200])
    positives, users = set(pairs[200:]) - seen, rng.permutation(30)
    with going(rank, items=items, scores=at_once):
        ranked = rank_all(Given(scores), users, pairs_of(positives), pairs_of(seen), n_items=40, k=8)
    for user, hits in zip(users, ranked.hits.tolist(), strict=True):
        candidates = set(range(40)) - items_of(seen, user)
        assert hits == naive_hits(scores[user].tolist(), candidates, items_of(positives, user), 8)


@given(tasks(), BACKENDS)
def test_the_best_items_are_those_with_the_highest_scores_that_were_not_had(
    task: Task, way: AbstractContextManager[None]
) -> None:
    table, _, seen, users, n_items, k = task
    with way:
        scores, items = best_items(Given(table), rows(*users), had(pairs_of(seen), n_items), k=k)
    for user, found, ranked in zip(users, scores.tolist(), items.tolist(), strict=True):
        candidates = sorted(set(range(n_items)) - items_of(seen, user))
        best = sorted(table[user, candidates].tolist(), reverse=True)[:k]
        assert found == best + [-np.inf] * (k - len(best))
        assert table[user, ranked[: len(best)]].tolist() == best
        assert set(ranked[: len(best)]) <= set(candidates)


@given(st.lists(st.booleans(), min_size=8, max_size=8), st.integers(0, 1000))
def test_two_rankings_merged_are_that_of_all_users(chosen: list[bool], seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, users, is_first = torch.from_numpy(rng.random((8, 12))), rng.permutation(8), np.array(chosen)
    positives, seen = (SeenItems.from_pairs(*rng.integers(8, size=(2, 20))) for _ in range(2))
    together, first, second = (
        rank_all(Given(scores), some, positives, seen, n_items=12, k=4)
        for some in (users, users[is_first], users[~is_first])
    )
    joined = first.merge(second, is_first)
    assert (joined.hits == together.hits).all()
    assert (joined.items == together.items).all()


@pytest.mark.slow
@given(tasks(), BACKENDS)
def test_users_a_few_at_a_time_are_ranked_as_all_at_once(task: Task, way: AbstractContextManager[None]) -> None:
    scores, positives, seen, users, n_items, k = task

    def both() -> tuple[Lists, Lists]:
        given_pairs = (rows(*users), pairs_of(positives), pairs_of(seen))
        full = rank_all(Given(scores), *given_pairs, n_items=n_items, k=k)
        sizes = {"n_items": n_items, "n_rankable": scores.shape[1]}
        return full, rank_sampled(Given(scores), *given_pairs, **sizes, k=k, key=0)

    whole = both()
    with way:
        pieces = both()
    for one, other in zip(whole, pieces, strict=True):
        assert (one.hits == other.hits).all()
        assert (one.items == other.items)[one.hits].all()


@given(st.integers(0, 50), st.integers(0, 40), st.integers(1, 100))
def test_chunks_cover_everyone_once_within_their_memory(n_users: int, width: int, at_once: int) -> None:
    ranges = list(chunks(n_users, width=width, at_once=at_once))
    assert [user for chunk in ranges for user in chunk] == list(range(n_users))
    sizes = [len(chunk) for chunk in ranges]
    assert all(size == 1 or size * width <= at_once for size in sizes)


def test_a_model_that_cannot_tell_items_apart_finds_nothing() -> None:
    model, positives = Given(torch.full((1, 6), 0.3)), pairs_of({(0, 1), (0, 2)})
    ranked = rank_all(model, rows(0), positives, pairs_of({(0, 0)}), n_items=6, k=3)
    assert ranked.hits.tolist() == [[0, 0, 0]]  # items 3, 4 and 5 are as good
    ranked = rank_all(model, rows(0), positives, pairs_of({(0, 0)}), n_items=6, k=4)
    assert ranked.hits.tolist() == [[0, 0, 0, 1]]


def test_with_nothing_else_left_the_positives_are_found() -> None:
    seen = pairs_of({(0, item) for item in range(6) if item not in {1, 2}})
    ranked = rank_all(Given(torch.zeros(1, 6)), rows(0), pairs_of({(0, 1), (0, 2)}), seen, n_items=6, k=4)
    assert ranked.hits.tolist() == [[1, 1, 0, 0]]


class PopularityScorer(Given):
    """Hands out its own weights, as a model of somebody's own may."""

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        return self.item.weight[start:stop].T.expand(len(users), -1)


@both_ways
def test_leaving_out_what_one_user_had_touches_neither_the_others_nor_the_model(rank: Callable[..., Any]) -> None:
    model = PopularityScorer(torch.zeros(2, 5))
    before = model.item.weight.clone()
    with going(rank):
        scores, items = best_items(model, rows(0, 1), had(pairs_of({(0, 3)}), 5), k=5)
    assert torch.equal(model.item.weight, before)
    assert [sorted(row) for row in items.tolist()][1] == [0, 1, 2, 3, 4]
    assert sorted(items[0, :4].tolist()) == [0, 1, 2, 4]
    assert np.isfinite(scores).tolist() == [[True] * 4 + [False], [True] * 5]


def test_a_positive_that_the_user_has_had_is_no_hit() -> None:
    seen = pairs_of({(0, 0), (0, 1), (0, 2)})
    ranked = rank_all(Given(torch.zeros(1, 4)), rows(0), pairs_of({(0, 0), (0, 1)}), seen, n_items=4, k=4)
    assert ranked.hits.tolist() == [[0, 0, 0, 0]]


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127),
    st.booleans(),
    st.sampled_from([topk_cpu, topk_torch]),
)
def test_the_smallest_lead_is_a_lead(score: float, is_sampled: bool, rank: Callable[..., Any]) -> None:
    """One float32 step above beats, equal loses: a tie is decided by value, not by a margin."""
    above = float(np.nextafter(np.float32(score), np.float32(np.inf), dtype=np.float32))
    for positive, hit in ((above, 1.0), (score, 0.0)):
        model = Given(torch.tensor([[score, positive, score]]))
        task = (model, rows(0), pairs_of({(0, 1)}), pairs_of(set()))
        with going(rank):
            if is_sampled:
                ranked = rank_sampled(*task, n_items=3, n_rankable=3, k=1, key=0)
            else:
                ranked = rank_all(*task, n_items=3, k=1)
        assert ranked.hits.tolist() == [[hit]]


# ── sampled items ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_items", [40, 300])
@pytest.mark.parametrize("n_unrankable", [0, 3])
def test_the_candidates_are_the_positives_and_100_items_that_are_neither_seen_nor_positive(
    n_items: int, n_unrankable: int
) -> None:
    """Positives that are not known yet may be found, but not those that the model has no row for."""
    rng = np.random.default_rng(0)
    n_users, n_all = 6, n_items + 5
    n_rankable = n_all - n_unrankable
    scores = torch.from_numpy(rng.integers(0, 4, size=(n_users, n_all))).float()
    drawn = {
        (int(u), int(i)) for u, i in zip(rng.integers(n_users, size=80), rng.integers(n_all, size=80), strict=True)
    }
    seen = {pair for pair in drawn if sum(pair) % 2} | {(user, 0) for user in range(n_users)}
    positives = drawn - seen - {(2, item) for item in range(n_all)} | {(user, n_all - 1) for user in (0, 1)}
    model, users, k = Given(scores), rows(4, 0, 1, 2, 3), 10
    with going(scores=300):
        ranked = rank_sampled(
            model,
            users,
            pairs_of(positives),
            pairs_of(seen),
            n_items=n_items,
            n_rankable=n_rankable,
            k=k,
            key=0,
        )
    assert len(model.asked) > 1
    asked = {user: items for chunk in model.asked for user, items in zip(*chunk, strict=True)}
    for user, hits in zip(users, ranked.hits.tolist(), strict=True):
        wanted, had = items_of(positives, user), items_of(seen, user)
        candidates = set(asked[user]) - {0}  # everyone has had item 0: it only fills up
        negatives = candidates - wanted
        assert candidates & wanted == {item for item in wanted if item < n_rankable}
        assert not negatives & had
        assert max(negatives) < n_items
        n_available = len(set(range(n_items)) - had - wanted)
        assert len(negatives) == min(N_SAMPLED_CANDIDATES, n_available)
        assert N_SAMPLED_CANDIDATES == 100
        assert hits == naive_hits(scores[user].tolist(), candidates, wanted, k)


def test_the_key_decides_the_candidates() -> None:
    scores = torch.rand(3, 400, generator=generator(5))
    asked = []
    for seed in (1, 1, 2):
        model = Given(scores)
        positives = pairs_of({(0, 7), (2, 8)})
        task = (model, rows(0, 1, 2), positives, pairs_of(set()))
        rank_sampled(*task, n_items=400, n_rankable=400, k=5, key=seed)
        asked.append(model.asked)
    assert asked[0] == asked[1] != asked[2]


# ── both ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.few(8)
@both_ways
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at", [3, 290])
def test_what_is_not_a_number_is_not_ranked(
    rank: Callable[..., Any], value: float, dtype: torch.dtype, at: int
) -> None:
    """Not even where the user has had the item, and none would have looked."""
    scores = torch.zeros(2, 300, dtype=dtype)
    scores[1, at] = value
    positives = pairs_of({(0, 1), (1, 2), (1, at)})
    with going(rank):
        with pytest.raises(ModelError, match="NaN or infinite"):
            rank_all(Given(scores), rows(0, 1), positives, pairs_of({(1, at)}), n_items=300, k=2)
        with pytest.raises(ModelError, match="NaN or infinite"):
            best_items(Given(scores), rows(0, 1), had(pairs_of(set()), 300), k=2)
        task = (Given(scores), rows(0, 1), positives, pairs_of(set()))
        with pytest.raises(ModelError, match="NaN or infinite"):
            rank_sampled(*task, n_items=300, n_rankable=300, k=2, key=0)


@both_ways
@pytest.mark.parametrize("largest", [torch.finfo(torch.float32).max, torch.finfo(torch.float32).min])
def test_the_largest_numbers_are_numbers(rank: Callable[..., Any], largest: float) -> None:
    """Though the sum of a row of them is not."""
    with going(rank):
        scores, _ = best_items(Given(torch.full((3, 1000), largest)), rows(0, 1, 2), had(pairs_of(set()), 1000), k=4)
    assert (scores == largest).all()


def test_nobody_to_test() -> None:
    task = (Given(torch.zeros(2, 5)), rows(), pairs_of({(0, 1)}), pairs_of(set()))
    sampled = rank_sampled(*task, n_items=5, n_rankable=5, k=2, key=0)
    for ranked in (rank_all(*task, n_items=5, k=2), sampled):
        assert ranked.hits.shape == ranked.items.shape == (0, 2)


# ── memory ───────────────────────────────────────────────────────────────────────────────

RANKING = """
import resource, sys
import numpy as np
import torch
from fairstream.evaluation import ItemLists
from fairstream.evaluation.requests import Requests
from fairstream.evaluation.top_k import top_k_of_all
from fairstream.data import History, SeenItems
from fairstream.models import ContextBuilder, MFScorer

torch.set_num_threads(1)
n_tested = int(sys.argv[1])
model = MFScorer(100_000, 100_000, embedding_dim=64)
pairs = np.random.default_rng(0).integers(100_000, size=(4, 30 * n_tested))
pairs[[0, 2]] %= n_tested
with torch.no_grad():
    users, positives = np.arange(n_tested), SeenItems.from_pairs(pairs[2], pairs[3])
    history = History.of(pairs[0], pairs[1])
    contexts = ContextBuilder(0, history)
    requests = Requests(users, ItemLists(*positives.lists(users)), history, contexts)
    top_k_of_all(model, requests, n_items=100_000, k=20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # KiB
"""


def peak_mib(n_tested: int) -> float:
    """The most memory resident in a process of its own that ranks 100,000 items for so many of 100,000 users."""
    process = subprocess.run([sys.executable, "-c", RANKING, str(n_tested)], check=True, capture_output=True, text=True)
    return int(process.stdout) / 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux alone")
def test_ranking_more_users_takes_no_more_memory_than_their_results() -> None:
    """What 100 users take and 1,000 do, too, 100,000 do: their results are 32 MB. The limit is 4 GiB."""
    few, many = peak_mib(100), peak_mib(1000)
    assert many < 4096
    assert many - few < 64  # two runs of the same differ by 20


class OneColumn(Given):
    """Forgets all items but one."""

    def score_range(self, users: Tensor, start: int, stop: int, context: Context) -> Tensor:
        return super().score_range(users, start, stop, context)[:, :1]

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return super().forward(users, items, context)[:, :1]


@both_ways
def test_scores_of_another_shape_are_not_ranked(rank: Callable[..., Any]) -> None:
    task = (OneColumn(torch.zeros(2, 9)), rows(0, 1), pairs_of({(0, 1), (1, 2)}), pairs_of(set()))
    with going(rank):
        with pytest.raises(ModelError, match=r"a score per item: expected the shape \(2, 9\), got \(2, 1\)"):
            rank_all(*task, n_items=9, k=2)
        with pytest.raises(ModelError, match="a score per item"):
            rank_sampled(*task, n_items=9, n_rankable=9, k=2, key=0)
