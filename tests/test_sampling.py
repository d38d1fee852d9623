"""Negatives are free, distinct and exactly uniform."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data import SeenItems
from fairstream.sampling import NegativeSampler

# 99.9 % points of χ², by degrees of freedom.
CHI_SQUARE = {4: 18.47, 6: 22.46, 19: 43.82, 23: 49.73}

N_USERS, N_ITEMS = 4, 10

# Users and items beyond the known ones too: they must change nothing.
exclusion_lists = st.sets(st.tuples(st.integers(0, N_USERS + 1), st.integers(0, N_ITEMS + 2)))


def seen_items(pairs: set[tuple[int, int]]) -> SeenItems:
    columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return SeenItems.from_pairs(columns[:, 0], columns[:, 1])


def sampler_of(pairs: set[tuple[int, int]], n_users: int = N_USERS, n_items: int = N_ITEMS) -> NegativeSampler:
    return NegativeSampler(seen_items(pairs), np.arange(n_users), n_items=n_items)


def free_items(pairs: set[tuple[int, int]], user: int, n_items: int = N_ITEMS) -> set[int]:
    return {item for item in range(n_items) if (user, item) not in pairs}


users_of_a_batch = st.lists(st.integers(0, N_USERS - 1), max_size=6).map(lambda rows: np.array(rows, dtype=np.int64))
keys = st.integers(0, 2**63 - 1)


@given(exclusion_lists, users_of_a_batch, st.integers(1, N_ITEMS + 3), keys)
def test_draws_are_free_and_distinct_and_as_many_as_there_are(
    pairs: set[tuple[int, int]], users: np.ndarray, n: int, key: int
) -> None:
    drawn = sampler_of(pairs).draw(users, n, key)
    assert drawn.shape == (len(users), n)
    for user, row in zip(users.tolist(), drawn.tolist(), strict=True):
        free = free_items(pairs, user)
        items = [item for item in row if item != -1]
        assert len(items) == min(n, len(free))
        assert len(set(items)) == len(items)
        assert set(items) <= free  # and hence all of `free` where there are fewer than n


@given(exclusion_lists, users_of_a_batch, st.integers(1, 5), keys, st.integers(0, 2**40), st.data())
def test_a_draw_depends_on_its_key_and_its_position_and_on_nothing_else(
    pairs: set[tuple[int, int]], users: np.ndarray, n: int, key: int, first: int, data: st.DataObject
) -> None:
    whole = sampler_of(pairs).draw(users, n, key, first)
    start = data.draw(st.integers(0, len(users)))
    part = NegativeSampler(seen_items(pairs), users[start:], n_items=N_ITEMS)  # serves fewer users, elsewhere placed
    assert torch.equal(part.draw(users[start:], n, key, first + start), whole[start:])


def test_another_key_or_position_draws_something_else() -> None:
    sampler, users = sampler_of(set()), np.zeros(50, dtype=np.int64)
    first = sampler.draw(users, 2, key=0)
    assert not torch.equal(first, sampler.draw(users, 2, key=1))
    assert not torch.equal(first, sampler.draw(users, 2, key=0, first=50))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("excluded", "n_items", "n"),
    [
        ({0, 2, 3, 8}, 9, 2),  # 5 free items, 20 ordered pairs; the list holds the first, the last, a run
        ({1, 2, 5}, 7, 3),  # 4 free items, 24 ordered triples
        ({0, 1, 2}, 10, 1),  # 7 free items
        (set(), 5, 1),
        ({3, 4}, 6, 4),  # every order of all that is free
    ],
)
def test_every_ordered_tuple_is_equally_likely(excluded: set[int], n_items: int, n: int) -> None:
    # The users before and after have lists of their own, which must not show.
    pairs = {(0, 4), (0, 1), (2, 0), (2, 3)} | {(1, item) for item in excluded}
    sampler = sampler_of(pairs, n_users=3, n_items=n_items)
    n_draws = 100_000
    drawn = sampler.draw(np.ones(n_draws, dtype=np.int64), n, 7)
    counts = Counter(map(tuple, drawn.tolist()))
    tuples = list(itertools.permutations(free_items(pairs, 1, n_items), n))
    assert set(counts) == set(tuples)
    expected = n_draws / len(tuples)
    statistic = sum((counts[outcome] - expected) ** 2 / expected for outcome in tuples)
    assert statistic < CHI_SQUARE[len(tuples) - 1]


def test_the_users_of_a_batch_are_drawn_for_independently() -> None:
    drawn = sampler_of(set(), n_items=5).draw(np.zeros(20_000, dtype=np.int64), 1, 1).reshape(-1, 2)
    counts = Counter(map(tuple, drawn.tolist()))
    expected = len(drawn) / 25
    assert sum((counts[pair] - expected) ** 2 / expected for pair in itertools.product(range(5), repeat=2)) < 51.18


def test_memory_follows_the_pairs_and_not_the_catalogue() -> None:
    n_items = 10**9
    sampler = sampler_of({(0, 0), (1, n_items - 1)}, n_users=2, n_items=n_items)
    drawn = sampler.draw(np.array([0, 1]), 20, 0)
    assert int(drawn.min()) > 0
    assert int(drawn.max()) < n_items
    assert int(drawn.max()) > n_items // 2


@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 30))),
    st.lists(st.integers(0, 5), min_size=1, max_size=8),
    st.integers(1, 9),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**40),
    st.sampled_from([31, 40]),
)
def test_compiled_draws_are_those_of_whole_tensors(
    pairs: set[tuple[int, int]], rows: list[int], n: int, key: int, first: int, n_items: int
) -> None:
    columns, users = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2), np.array(rows, dtype=np.int64)
    sampler = NegativeSampler(SeenItems.from_pairs(columns[:, 0], columns[:, 1]), users, n_items=n_items)
    arguments = sampler.place(users), n, key, np.arange(first, first + len(users))
    assert torch.equal(sampler._draw_on_cpu(*arguments), sampler._draw_on_device(*arguments))
