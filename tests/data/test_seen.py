"""`SeenItems` is a dict of sets that fits in one sorted array."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fairstream.data import SeenItems

Pairs = list[tuple[int, int]]

N_USERS, N_ITEMS = 8, 10
ROWS = st.integers(0, N_USERS - 1) | st.just(2**31 - 2)
PAIRS = st.lists(st.tuples(ROWS, st.integers(0, N_ITEMS - 1) | st.just(2**32 - 1)), max_size=40)


def rows(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def make_seen(pairs: Pairs) -> SeenItems:
    return SeenItems.from_pairs(rows([user for user, _ in pairs]), rows([item for _, item in pairs]))


def oracle(pairs: Pairs) -> dict[int, set[int]]:
    sets: dict[int, set[int]] = defaultdict(set)
    for user, item in pairs:
        sets[user].add(item)
    return sets


@given(PAIRS)
def test_users_and_items_are_the_distinct_pairs_in_order(pairs: Pairs) -> None:
    seen = make_seen(pairs)
    assert list(zip(seen.users.tolist(), seen.items.tolist(), strict=True)) == sorted(set(pairs))


@given(PAIRS, st.lists(ROWS | st.just(-1), max_size=10))
@example([], [0, 1])
@example([(0, 1)], [])
def test_of_lists_each_users_items_in_order_of_the_users_asked_for(pairs: Pairs, users: list[int]) -> None:
    bounds, item = make_seen(pairs).lists(rows(users))
    position = np.repeat(np.arange(len(users)), np.diff(bounds))
    sets = oracle(pairs)
    expected = [(at, item) for at, user in enumerate(users) for item in sorted(sets[user])]
    assert list(zip(position.tolist(), item.tolist(), strict=True)) == expected


@given(PAIRS, PAIRS)
@example([], [(0, 0)])
def test_has_is_membership(pairs: Pairs, asked: Pairs) -> None:
    asked = [*asked, *pairs, (-1, 0), (0, -1)]
    found = make_seen(pairs).has(rows([user for user, _ in asked]), rows([item for _, item in asked]))
    assert found.dtype == np.bool_
    assert found.tolist() == [pair in set(pairs) for pair in asked]


@given(PAIRS, PAIRS)
def test_union_is_having_seen_either(one: Pairs, other: Pairs) -> None:
    together = make_seen([*one, *other]).keys.tolist()
    assert make_seen(one).union(make_seen(other)).keys.tolist() == together
    assert make_seen(other).union(make_seen(one)).keys.tolist() == together


@given(st.lists(PAIRS, max_size=12), st.lists(ROWS | st.just(-1), max_size=10), st.integers(0, N_ITEMS + 1))
def test_piece_by_piece_it_is_what_it_is_at_once(pieces: list[Pairs], users: list[int], n_items: int) -> None:
    """In however many runs the pairs end up, every question has the same answer."""
    seen, pairs = make_seen([]), [pair for piece in pieces for pair in piece]
    for piece in pieces:
        before = seen.keys.tolist()
        seen, earlier = seen.union(make_seen(piece)), seen
        assert earlier.keys.tolist() == before
    at_once = make_seen(pairs)
    assert seen.keys.tolist() == at_once.keys.tolist()
    assert seen.below(n_items).keys.tolist() == at_once.below(n_items).keys.tolist()
    bounds, items = seen.lists(rows(users))
    sets = oracle(pairs)
    assert len(bounds) == len(users) + 1
    assert [items[a:b].tolist() for a, b in pairwise(bounds)] == [sorted(sets[user]) for user in users]
    asked = [*pairs, (0, 0), (-1, 0), (0, -1), (N_USERS, N_ITEMS)]
    columns = rows([user for user, _ in asked]), rows([item for _, item in asked])
    assert seen.has(*columns).tolist() == at_once.has(*columns).tolist()


@given(PAIRS, st.integers(0, N_ITEMS + 1))
def test_below_forgets_the_later_items_alone(pairs: Pairs, n_items: int) -> None:
    expected = make_seen([(user, item) for user, item in pairs if item < n_items])
    assert make_seen(pairs).below(n_items).keys.tolist() == expected.keys.tolist()
