"""A history is what its events say, in however many pieces they came in."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fairstream.data import History, Rows
from support import rows

Pairs = list[tuple[int, int]]

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=40)


def columns(pairs: Pairs) -> tuple[Rows, Rows]:
    users, items = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return users, items


def known(*pieces: Pairs) -> History:
    first, *others = (columns(piece) for piece in pieces)
    history = History.of(*first)
    for piece in others:
        history = history.after(*piece)
    return history


def facts(history: History) -> tuple[object, ...]:
    return (
        history.users.tolist(),
        history.items.tolist(),
        history.seen.keys.tolist(),
        history.n_users,
        history.n_items,
        history.recent_popularity.tolist(),
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
    history = known(pairs)
    assert list(zip(history.users.tolist(), history.items.tolist(), strict=True)) == pairs
    assert set(zip(history.seen.users.tolist(), history.seen.items.tolist(), strict=True)) == set(pairs)
    assert history.n_users == max((user + 1 for user, _ in pairs), default=0)
    assert history.n_items == max((item + 1 for _, item in pairs), default=0)
    assert history.n_items_before == 0


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_piece_by_piece_it_is_what_it_is_at_once(pieces: list[Pairs]) -> None:
    assert facts(known(*pieces)) == facts(known(list(itertools.chain(*pieces))))


@given(st.lists(PAIRS, min_size=2, max_size=4))
def test_new_items_are_those_that_the_last_events_brought(pieces: list[Pairs]) -> None:
    assert known(*pieces).n_items_before == known(*pieces[:-1]).n_items


@given(PAIRS, PAIRS)
def test_what_was_known_is_left_as_it_was_by_what_comes_later(before: Pairs, after: Pairs) -> None:
    history = known(before)
    expected = facts(known(before))
    history.after(*columns(after))
    assert facts(history) == expected


# ── what users had ───────────────────────────────────────────────────────────────────────


@given(
    pieces=st.lists(PAIRS, min_size=1, max_size=3),
    users=st.lists(st.integers(0, 8), min_size=1, max_size=5),
    data=st.data(),
)
def test_the_items_of_a_user_up_to_a_position_are_those_of_a_slow_search(
    pieces: list[Pairs], users: list[int], data: st.DataObject
) -> None:
    pairs = [pair for piece in pieces for pair in piece]
    before = [data.draw(st.integers(0, len(pairs) + 1)) for _ in users]
    history = known(*pieces)
    bounds, items = history.items_of(rows(*users), rows(*before))
    expected = [
        sorted(item for user, item in pairs[:end] if user == wanted) for wanted, end in zip(users, before, strict=True)
    ]
    assert [items[start:end].tolist() for start, end in itertools.pairwise(bounds)] == expected
    bounds, items = history.items_of(rows(*users))
    everything = [sorted({item for user, item in pairs if user == wanted}) for wanted in users]
    assert [items[start:end].tolist() for start, end in itertools.pairwise(bounds)] == everything


# ── latest events ────────────────────────────────────────────────────────────────────────

PIECES = st.lists(PAIRS, min_size=1, max_size=5)


@given(PIECES, st.lists(st.integers(-1, 7), max_size=6), st.integers(1, 6), st.data())
def test_the_latest_events_are_those_of_a_slow_search(
    pieces: list[Pairs], users: list[int], length: int, data: st.DataObject
) -> None:
    history, events = known(*pieces), list(itertools.chain(*pieces))
    limits = st.integers(0, len(events) + 1)
    before = data.draw(st.none() | st.lists(limits, min_size=len(users), max_size=len(users)))
    moments = None if before is None else rows(*before)
    found, counts = history.latest(rows(*users), length, moments)
    assert history.n_events_of(rows(*users), moments).tolist() == counts.tolist()
    places, _ = history.latest_positions(rows(*users), length, None if before is None else rows(*before))
    for b, user in enumerate(users):
        limit = len(events) if before is None else before[b]
        expected = [at for at, (owner, _) in enumerate(events[:limit]) if owner == user]
        assert counts[b] == len(expected)
        padding = [-1] * (length - len(expected[-length:]))
        assert places[b].tolist() == [*padding, *expected[-length:]]
        assert found[b].tolist() == [*padding, *(events[at][1] for at in expected[-length:])]


@given(PIECES, st.data())
def test_columns_at_positions_are_the_columns_there(pieces: list[Pairs], data: st.DataObject) -> None:
    history, events = known(*pieces), list(itertools.chain(*pieces))
    chosen = sorted(data.draw(st.sets(st.sampled_from(range(len(events)))) if events else st.just(set())))
    assert history.users_at(rows(*chosen)).tolist() == [events[at][0] for at in chosen]
    assert history.items_at(rows(*chosen)).tolist() == [events[at][1] for at in chosen]
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(events)), st.integers(0, len(events)))))
    assert history.users_at(range(start, stop)).tolist() == [user for user, _ in events[start:stop]]
    assert history.items_at(range(start, stop)).tolist() == [item for _, item in events[start:stop]]


def slow_first_interactions(history: History, chosen: Rows) -> Rows:
    """The definition: list for each event all earlier events of its user, and look for its item among them."""
    bounds, earlier = history.items_of(history.users_at(chosen), chosen)
    had = np.repeat(history.items_at(chosen), np.diff(bounds)) == earlier
    return chosen[np.bincount(np.repeat(np.arange(len(chosen)), np.diff(bounds)), had, len(chosen)) == 0]


@given(PIECES, st.data())
def test_first_events_are_those_of_a_slow_search(pieces: list[Pairs], data: st.DataObject) -> None:
    history = known(*pieces)
    chosen = rows(*sorted(data.draw(st.sets(st.integers(0, max(0, len(history) - 1)))))) if len(history) else rows()
    assert np.asarray(history.first_interactions(chosen)).tolist() == slow_first_interactions(history, chosen).tolist()
    start = data.draw(st.integers(0, len(history)))
    positions = np.arange(start, len(history))
    assert (
        list(history.first_interactions(range(start, len(history))))
        == slow_first_interactions(history, positions).tolist()
    )


@given(PIECES)
def test_the_ends_of_the_periods_are_kept(pieces: list[Pairs]) -> None:
    assert known(*pieces).ends == tuple(itertools.accumulate(len(piece) for piece in pieces))


@given(PIECES, st.sets(st.integers(0, 5)), st.sets(st.integers(0, 20)))
def test_without_some_users_and_events_it_is_as_if_they_had_not_been(
    pieces: list[Pairs], gone: set[int], old: set[int]
) -> None:
    history = known(*pieces)
    gone = {user for user in gone if user < history.n_users}
    before, events = facts(history), list(itertools.chain(*pieces))
    kept = [at for at, (user, _) in enumerate(events) if user not in gone and at not in old]
    shorter = history.keep(rows(*kept), rows(*sorted(gone)))
    row = {user: at for at, user in enumerate(user for user in range(history.n_users) if user not in gone)}
    places = itertools.count()
    left = [[(row[user], item) for user, item in piece if next(places) in kept] for piece in pieces]
    expected = known(*left)
    assert shorter.users.tolist() == expected.users.tolist()
    assert shorter.items.tolist() == expected.items.tolist()
    assert shorter.seen.keys.tolist() == expected.seen.keys.tolist()
    assert shorter.ends == expected.ends
    assert (shorter.n_users, shorter.n_items) == (len(row), history.n_items)  # items stay known
    assert shorter.n_items_before == history.n_items_before
    assert facts(history) == before


# ── popularity ───────────────────────────────────────────────────────────────────────────


@given(PAIRS)
def test_popularity_is_that_of_a_slow_computation(pairs: Pairs) -> None:
    history = known(pairs)
    expected = slow_popularity([item for _, item in pairs])
    popularity = history.recent_popularity
    assert popularity.dtype == np.float64
    assert popularity.tolist() == pytest.approx([expected.get(item, 0.0) for item in range(history.n_items)])


@given(PAIRS.filter(lambda pairs: len(pairs) > 1), st.data())
def test_recent_events_count_more(pairs: Pairs, data: st.DataObject) -> None:
    """Of two neighbouring events the item of the later one gains by its place."""
    at = data.draw(st.integers(0, len(pairs) - 2))
    (_, earlier), (_, later) = pairs[at : at + 2]
    assume(earlier != later)
    swapped = [*pairs[:at], pairs[at + 1], pairs[at], *pairs[at + 2 :]]
    gain = known(pairs).recent_popularity - known(swapped).recent_popularity
    assert gain[later] > 0
    assert gain[earlier] < 0
    assert gain[later] == pytest.approx(-gain[earlier])
    others = np.delete(gain, [earlier, later])
    assert others == pytest.approx(np.zeros(len(others)))


@given(PAIRS.filter(bool))
def test_who_had_an_item_does_not_matter_to_its_popularity(pairs: Pairs) -> None:
    anonymous = [(0, item) for _, item in pairs]
    assert known(anonymous).recent_popularity.tolist() == known(pairs).recent_popularity.tolist()


def test_a_tenth_of_the_log_is_the_half_life() -> None:
    popularity = known([(0, item) for item in range(100)]).recent_popularity
    assert popularity[[99, 89, 79, 0]] == pytest.approx([1, 1 / 2, 1 / 4, 2**-9.9])


@given(st.lists(PAIRS, min_size=1, max_size=6))
def test_popularity_is_summed_in_the_order_of_the_events(pieces: list[Pairs]) -> None:
    """To the last bit: a fallback that depended on how the events came in would not repeat."""
    items = np.array([item for piece in pieces for _, item in piece], dtype=np.int64)
    age = np.arange(len(items) - 1, -1, -1, dtype=np.float64)
    expected = np.bincount(items, np.exp2(-age / max(1.0, 0.1 * len(items))))
    assert known(*pieces).recent_popularity.tolist() == expected.tolist()


@given(st.lists(PAIRS, min_size=1, max_size=3), st.data())
def test_firsts_are_the_events_before_which_the_user_had_not_had_the_item(pieces: list[Pairs], data: Any) -> None:
    history, pairs = known(*pieces), [pair for piece in pieces for pair in piece]
    chosen = sorted(data.draw(st.sets(st.integers(0, len(pairs) - 1)))) if pairs else []
    expected = [at for at in chosen if pairs[at] not in pairs[:at]]
    assert list(history.first_interactions(np.array(chosen, dtype=np.int64))) == expected


def test_an_event_that_is_repeated_once_is_no_first() -> None:
    history = known([(0, 3), (1, 3), (0, 3)], [(0, 3), (1, 2)])
    assert list(history.first_interactions(np.arange(5))) == [0, 1, 4]
    assert list(history.first_interactions(np.array([2, 3, 4]))) == [4]


def test_observed_events_count_fully_until_they_are_one_percent_of_the_log() -> None:
    items = np.arange(1000) % 7
    before = History.of(np.arange(1000), items)
    popularity = before.recent_popularity
    assert popularity.tolist() == before.decayed_counts().tolist()
    history, expected = before, popularity
    for _ in range(10):
        history, expected = history.after(np.array([2000]), np.array([3]), ends_period=False), expected.copy()
        expected[3] += 1
        np.testing.assert_allclose(history.recent_popularity, expected)
    history = history.after(np.array([2000]), np.array([3]), ends_period=False)  # the eleventh
    assert history.recent_popularity.tolist() == history.decayed_counts().tolist()


@given(st.lists(st.integers(0, 40), max_size=6), st.lists(st.booleans(), min_size=6, max_size=6))
def test_recent_popularity_does_not_depend_on_when_it_was_asked_for(sizes: list[int], is_asked: list[bool]) -> None:
    asked = plain = History.of(np.arange(150), np.arange(150) % 11)
    for n, ask in zip(sizes, is_asked, strict=False):
        if ask:
            _ = asked.recent_popularity
        users, items = np.arange(n), np.arange(n) % 13
        asked, plain = (one.after(users, items, ends_period=False) for one in (asked, plain))
    assert asked.recent_popularity.tolist() == plain.recent_popularity.tolist()
    again = History.of(plain.users, plain.items, n_items=plain.n_items, ends=plain.ends)
    assert again.recent_popularity.tolist() == plain.recent_popularity.tolist()
