"""Which of the top k are hits, against lists made one user at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.errors import ModelError
from fairstream.evaluation import all_scores, ranking, user_chunks
from fairstream.evaluation.ranking import N_SAMPLED_CANDIDATES, RankedHits, rank_all, rank_sampled
from fairstream.events import SeenItems
from fairstream.models import ItemTable, Scorer, UserTable

Pairs = set[tuple[int, int]]


class Given(Scorer):
    """Scores that are given, and a note of what was asked."""

    def __init__(self, scores: Tensor) -> None:
        super().__init__()
        self.user, self.item = UserTable(len(scores), 1), ItemTable(scores.shape[1], 1)
        self.scores = scores
        self.asked: list[tuple[list[int], list[list[int]]]] = []

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        self.asked.append((users.tolist(), items.tolist()))
        return self.scores[users[:, None], items]


def seen_items(pairs: Pairs) -> SeenItems:
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return SeenItems.from_pairs(columns[:, 0], columns[:, 1])


def rows(*users: int) -> np.ndarray:
    return np.array(users, dtype=np.int64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@contextmanager
def scores_at_once(n: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_SCORES_AT_ONCE", n)
        yield


def naive_hits(scores: list[float], candidates: set[int], positives: set[int], k: int) -> list[float]:
    """Candidates by score, the positives last among equals; what is not in the list is no hit."""
    ranked = sorted(candidates, key=lambda item: (-scores[item], item in positives))[:k]
    hits = [float(item in positives) for item in ranked]
    return hits + [0.0] * (k - len(hits))


def of(pairs: Pairs, user: int) -> set[int]:
    return {item for other, item in pairs if other == user}


@st.composite
def tasks(draw: st.DrawFn) -> tuple[Tensor, Pairs, Pairs, list[int], int, int]:
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


@given(tasks())
def test_rank_all_against_a_list_made_by_hand(task: tuple[Tensor, Pairs, Pairs, list[int], int, int]) -> None:
    scores, positives, seen, users, n_items, k = task
    ranked = rank_all(Given(scores), rows(*users), seen_items(positives), seen_items(seen), n_items=n_items, k=k)
    assert ranked.hits.shape == (len(users), k)
    for user, hits, n_positives in zip(users, ranked.hits.tolist(), ranked.n_positives.tolist(), strict=True):
        candidates = set(range(n_items)) - of(seen, user)
        assert hits == naive_hits(scores[user].tolist(), candidates, of(positives, user), k)
        assert n_positives == len(of(positives, user))  # the unknown ones are missed, not forgotten


@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
def test_rank_all_over_many_users_a_few_at_a_time(at_once: int) -> None:
    rng = np.random.default_rng(1)
    scores = torch.from_numpy(rng.integers(0, 20, size=(30, 40))).float()
    pairs = [(int(user), int(item)) for user, item in rng.integers([30, 40], size=(400, 2))]
    seen = set(pairs[:200])
    positives, users = set(pairs[200:]) - seen, rng.permutation(30)
    with scores_at_once(at_once):
        ranked = rank_all(Given(scores), users, seen_items(positives), seen_items(seen), n_items=40, k=8)
    for user, hits, n_positives in zip(users, ranked.hits.tolist(), ranked.n_positives.tolist(), strict=True):
        candidates = set(range(40)) - of(seen, user)
        assert hits == naive_hits(scores[user].tolist(), candidates, of(positives, user), 8)
        assert n_positives == len(of(positives, user))


@given(tasks(), st.integers(1, 30))
def test_users_a_few_at_a_time_are_ranked_as_all_at_once(
    task: tuple[Tensor, Pairs, Pairs, list[int], int, int], at_once: int
) -> None:
    scores, positives, seen, users, n_items, k = task

    def both() -> tuple[RankedHits, RankedHits]:
        given_pairs = (rows(*users), seen_items(positives), seen_items(seen))
        full = rank_all(Given(scores), *given_pairs, n_items=n_items, k=k)
        return full, rank_sampled(Given(scores), *given_pairs, n_items=n_items, k=k, generator=generator())

    whole = both()
    with scores_at_once(at_once):
        pieces = both()
    for one, other in zip(whole, pieces, strict=True):
        assert torch.equal(one.hits, other.hits)
        assert torch.equal(one.n_positives, other.n_positives)


@given(st.integers(0, 50), st.integers(0, 40), st.integers(1, 100))
def test_chunks_cover_everyone_once_within_their_memory(n_users: int, width: int, at_once: int) -> None:
    with scores_at_once(at_once):
        chunks = list(user_chunks(n_users, width))
    assert [user for chunk in chunks for user in range(n_users)[chunk]] == list(range(n_users))
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    assert all(size == 1 or size * width <= at_once for size in sizes)


def test_a_model_that_cannot_tell_items_apart_finds_nothing() -> None:
    model, positives = Given(torch.full((1, 6), 0.3)), seen_items({(0, 1), (0, 2)})
    ranked = rank_all(model, rows(0), positives, seen_items({(0, 0)}), n_items=6, k=3)
    assert ranked.hits.tolist() == [[0, 0, 0]]  # items 3, 4 and 5 are as good
    ranked = rank_all(model, rows(0), positives, seen_items({(0, 0)}), n_items=6, k=4)
    assert ranked.hits.tolist() == [[0, 0, 0, 1]]


def test_with_nothing_else_left_the_positives_are_found() -> None:
    seen = seen_items({(0, item) for item in range(6) if item not in {1, 2}})
    ranked = rank_all(Given(torch.zeros(1, 6)), rows(0), seen_items({(0, 1), (0, 2)}), seen, n_items=6, k=4)
    assert ranked.hits.tolist() == [[1, 1, 0, 0]]


@given(tasks())
def test_what_the_user_has_had_is_never_ranked(task: tuple[Tensor, Pairs, Pairs, list[int], int, int]) -> None:
    scores, _, seen, users, n_items, _ = task
    found = all_scores(Given(scores), rows(*users), seen_items(seen), n_items)
    for user, row in zip(users, found.tolist(), strict=True):
        had = of(seen, user)
        assert row == [-np.inf if item in had else scores[user, item].item() for item in range(n_items)]


class Popularity(Given):
    """Hands out its own weights, as a model of somebody's own may."""

    def score_all(self, users: Tensor, n_items: int) -> Tensor:
        return self.item.weight[:n_items].T.expand(len(users), -1)


@pytest.mark.filterwarnings("ignore:Use of index_put_ on expanded tensors")
@torch.no_grad()
def test_masking_one_user_touches_neither_the_others_nor_the_model() -> None:
    model = Popularity(torch.zeros(2, 5))
    before = model.item.weight.clone()
    found = all_scores(model, rows(0, 1), seen_items({(0, 3)}), 5)
    assert torch.equal(model.item.weight, before)
    assert torch.isinf(found).tolist() == [[False, False, False, True, False], [False] * 5]


def test_a_positive_that_the_user_has_had_is_no_hit() -> None:
    seen = seen_items({(0, 0), (0, 1), (0, 2)})
    ranked = rank_all(Given(torch.zeros(1, 4)), rows(0), seen_items({(0, 0), (0, 1)}), seen, n_items=4, k=4)
    assert ranked.hits.tolist() == [[0, 0, 0, 0]]


@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127),
    st.booleans(),
)
def test_the_smallest_lead_is_a_lead(score: float, is_sampled: bool) -> None:
    """One float32 step above beats, equal loses: a tie is decided by value, not by a margin."""
    above = float(np.nextafter(np.float32(score), np.float32(np.inf), dtype=np.float32))
    for positive, hit in ((above, 1.0), (score, 0.0)):
        model = Given(torch.tensor([[score, positive, score]]))
        task = (model, rows(0), seen_items({(0, 1)}), seen_items(set()))
        if is_sampled:
            ranked = rank_sampled(*task, n_items=3, k=1, generator=generator())
        else:
            ranked = rank_all(*task, n_items=3, k=1)
        assert ranked.hits.tolist() == [[hit]]


# ── sampled items ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n_items", [40, 300])
def test_the_candidates_are_the_positives_and_100_items_that_are_neither_seen_nor_positive(n_items: int) -> None:
    rng = np.random.default_rng(0)
    n_users, n_all = 6, n_items + 5  # 5 items that are not known yet, but may be positive
    scores = torch.from_numpy(rng.integers(0, 4, size=(n_users, n_all))).float()
    drawn = {
        (int(u), int(i)) for u, i in zip(rng.integers(n_users, size=80), rng.integers(n_all, size=80), strict=True)
    }
    seen = {pair for pair in drawn if sum(pair) % 2} | {(user, 0) for user in range(n_users)}
    positives = drawn - seen - {(2, item) for item in range(n_all)} | {(user, n_all - 1) for user in (0, 1)}
    model, users, k = Given(scores), rows(4, 0, 1, 2, 3), 10
    with scores_at_once(300):
        ranked = rank_sampled(
            model, users, seen_items(positives), seen_items(seen), n_items=n_items, k=k, generator=generator()
        )
    assert len(model.asked) > 1
    asked = {user: items for chunk in model.asked for user, items in zip(*chunk, strict=True)}
    for user, hits, n_positives in zip(users, ranked.hits.tolist(), ranked.n_positives.tolist(), strict=True):
        wanted, had = of(positives, user), of(seen, user)
        candidates = set(asked[user]) - {0}  # everyone has had item 0: it only fills up
        negatives = candidates - wanted
        assert wanted <= candidates
        assert not negatives & had
        assert max(negatives) < n_items
        n_available = len(set(range(n_items)) - had - wanted)
        assert len(negatives) == min(N_SAMPLED_CANDIDATES, n_available)
        assert N_SAMPLED_CANDIDATES == 100
        assert hits == naive_hits(scores[user].tolist(), candidates, wanted, k)
        assert n_positives == len(wanted)


def test_the_generator_decides_the_candidates() -> None:
    scores = torch.rand(3, 400, generator=generator(5))
    asked = []
    for seed in (1, 1, 2):
        model = Given(scores)
        positives = seen_items({(0, 7), (2, 8)})
        rank_sampled(model, rows(0, 1, 2), positives, seen_items(set()), n_items=400, k=5, generator=generator(seed))
        asked.append(model.asked)
    assert asked[0] == asked[1] != asked[2]


# ── both ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_is_not_ranked(value: float) -> None:
    scores = torch.zeros(2, 5)
    scores[1, 3] = value
    task = (Given(scores), rows(0, 1), seen_items({(0, 1), (1, 2)}), seen_items({(1, 3)}))
    with pytest.raises(ModelError, match="NaN or infinite"):
        rank_all(*task, n_items=5, k=2)
    task = (Given(scores), rows(0, 1), seen_items({(0, 1), (1, 2)}), seen_items(set()))
    with pytest.raises(ModelError, match="NaN or infinite"):
        rank_sampled(*task, n_items=5, k=2, generator=generator())


def test_nobody_to_test() -> None:
    task = (Given(torch.zeros(2, 5)), rows(), seen_items({(0, 1)}), seen_items(set()))
    for ranked in (rank_all(*task, n_items=5, k=2), rank_sampled(*task, n_items=5, k=2, generator=generator())):
        assert ranked.hits.shape == (0, 2)
        assert ranked.n_positives.shape == (0,)
