"""What is known as of a moment is what the events up to it tell, in however many pieces they came."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairstream.data import History, Rows

Pairs = list[tuple[int, int]]

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=40)


def columns(pairs: Pairs) -> tuple[Rows, Rows]:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return users, items


def known(*pieces: Pairs) -> History:
    first, *others = (columns(piece) for piece in pieces)
    knowledge = History.of(*first)
    for piece in others:
        knowledge = knowledge.after(*piece)
    return knowledge


def told(knowledge: History) -> tuple[object, ...]:
    return (
        knowledge.users.tolist(),
        knowledge.items.tolist(),
        knowledge.seen.keys.tolist(),
        knowledge.n_users,
        knowledge.n_items,
        knowledge.popularity().tolist(),
    )


def slow_popularity(items: list[int]) -> dict[int, float]:
    """Each event halves with every tenth of the log that has come after it."""
    half_life = max(1.0, len(items) / 10)
    weights: dict[int, float] = {}
    for at, item in enumerate(items):
        n_later = len(items) - 1 - at
        weights[item] = weights.get(item, 0.0) + 0.5 ** (n_later / half_life)
    return weights


@given(PAIRS)
def test_it_is_what_the_events_have_shown(pairs: Pairs) -> None:
    knowledge = known(pairs)
    assert list(zip(knowledge.users.tolist(), knowledge.items.tolist(), strict=True)) == pairs
    assert set(zip(knowledge.seen.users.tolist(), knowledge.seen.items.tolist(), strict=True)) == set(pairs)
    assert knowledge.n_users == max((user + 1 for user, _ in pairs), default=0)
    assert knowledge.n_items == max((item + 1 for _, item in pairs), default=0)
    assert knowledge.n_items_before == 0


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_piece_by_piece_it_is_what_it_is_at_once(pieces: list[Pairs]) -> None:
    assert told(known(*pieces)) == told(known(list(itertools.chain(*pieces))))


@given(st.lists(PAIRS, min_size=2, max_size=4))
def test_new_items_are_those_that_the_last_events_brought(pieces: list[Pairs]) -> None:
    assert known(*pieces).n_items_before == known(*pieces[:-1]).n_items


@given(PAIRS, PAIRS)
def test_what_was_known_is_left_as_it_was_by_what_comes_later(before: Pairs, after: Pairs) -> None:
    knowledge = known(before)
    expected = told(known(before))
    knowledge.after(*columns(after))
    assert told(knowledge) == expected


# ── popularity ───────────────────────────────────────────────────────────────────────────


@given(PAIRS)
def test_popularity_is_that_of_a_slow_computation(pairs: Pairs) -> None:
    knowledge = known(pairs)
    expected = slow_popularity([item for _, item in pairs])
    popularity = knowledge.popularity()
    assert popularity.dtype == np.float64
    assert popularity.tolist() == pytest.approx([expected.get(item, 0.0) for item in range(knowledge.n_items)])


@given(PAIRS.filter(lambda pairs: len(pairs) > 1), st.data())
def test_recent_events_count_more(pairs: Pairs, data: st.DataObject) -> None:
    """Of two neighbouring events the item of the later one gains by its place."""
    at = data.draw(st.integers(0, len(pairs) - 2))
    (_, earlier), (_, later) = pairs[at : at + 2]
    assume(earlier != later)
    swapped = [*pairs[:at], pairs[at + 1], pairs[at], *pairs[at + 2 :]]
    gain = known(pairs).popularity() - known(swapped).popularity()
    assert gain[later] > 0
    assert gain[earlier] < 0
    assert gain[later] == pytest.approx(-gain[earlier])
    others = np.delete(gain, [earlier, later])
    assert others == pytest.approx(np.zeros(len(others)))


@given(PAIRS.filter(bool))
def test_who_had_an_item_does_not_matter_to_its_popularity(pairs: Pairs) -> None:
    anonymous = [(0, item) for _, item in pairs]
    assert known(anonymous).popularity().tolist() == known(pairs).popularity().tolist()


def test_a_tenth_of_the_log_is_the_half_life() -> None:
    popularity = known([(0, item) for item in range(100)]).popularity()
    assert popularity[[99, 89, 79, 0]] == pytest.approx([1, 1 / 2, 1 / 4, 2**-9.9])


@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_popularity_is_summed_in_the_order_of_the_events(pieces: list[Pairs]) -> None:
    """To the last bit: a fallback that depended on how the events came in would not repeat."""
    items = np.array([item for piece in pieces for _, item in piece], dtype=np.int64)
    age = np.arange(len(items) - 1, -1, -1, dtype=np.float64)
    expected = np.bincount(items, np.exp2(-age / max(1.0, 0.1 * len(items))))
    assert known(*pieces).popularity().tolist() == expected.tolist()
