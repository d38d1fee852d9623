"""`SeenItems` is a dict of sets that fits in one sorted array."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fairstream.events.seen import SeenItems

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
    position, item = make_seen(pairs).of(rows(users))
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


@given(PAIRS, st.integers(0, N_ITEMS + 1))
def test_below_forgets_the_later_items_alone(pairs: Pairs, n_items: int) -> None:
    expected = make_seen([(user, item) for user, item in pairs if item < n_items])
    assert make_seen(pairs).below(n_items).keys.tolist() == expected.keys.tolist()


@given(PAIRS, st.integers(0, N_USERS + 2))
def test_bounds_say_where_each_users_list_lies(pairs: Pairs, n_users: int) -> None:
    seen, sets = make_seen(pairs), oracle(pairs)
    bounds = seen.bounds(n_users)
    assert len(bounds) == n_users + 1
    lists = [seen.items[start:end].tolist() for start, end in pairwise(bounds)]
    assert lists == [sorted(sets[user]) for user in range(n_users)]
