"""The log: chronological, one event a pair, rows in the order of first appearance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fairstream import DataError, EventLog, Groups, read_events
from fairstream.data.log import first_of_each, pair_keys

Event = tuple[int, str, int]

EVENTS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abcde"), st.integers(0, 9)), min_size=1, max_size=40)


def make_log(events: list[Event]) -> EventLog:
    users, items, times = zip(*events, strict=True)
    return EventLog.from_columns(pa.array(users), pa.array(items), np.array(times))


def told_by(log: EventLog) -> list[Event]:
    """The events of a log, with their ids again."""
    users, items = log.user_ids.ids.to_pylist(), log.item_ids.ids.to_pylist()
    return [(users[u], items[i], t) for u, i, t in zip(log.users, log.items, log.times.tolist(), strict=True)]


def oracle(events: list[Event]) -> list[Event]:
    """By time, ties as given; of each pair the first."""
    kept: dict[tuple[int, str], Event] = {}
    for event in sorted(events, key=lambda event: event[2]):
        kept.setdefault(event[:2], event)
    return list(kept.values())


@given(EVENTS)
def test_the_log_is_chronological_stable_and_keeps_the_first_event_of_a_pair(events: list[Event]) -> None:
    log = make_log(events)
    assert told_by(log) == oracle(events)
    assert len(log) == len(oracle(events))


@given(EVENTS)
def test_notes_say_what_was_moved_and_how_many_were_left_out(events: list[Event]) -> None:
    log = make_log(events)
    times = [time for _, _, time in events]
    n_repeated = len(events) - len(log)
    assert any("sorted by time" in note for note in log.notes) == (times != sorted(times))
    assert any(note.startswith(f"{n_repeated} repeated") for note in log.notes) == (n_repeated > 0)
    assert len(log.notes) == (times != sorted(times)) + (n_repeated > 0)


@given(EVENTS)
def test_rows_come_in_the_order_of_first_appearance(events: list[Event]) -> None:
    log = make_log(events)
    told = told_by(log)
    assert log.user_ids.ids.to_pylist() == list(dict.fromkeys(user for user, _, _ in told))
    assert log.item_ids.ids.to_pylist() == list(dict.fromkeys(item for _, item, _ in told))
    for n in range(len(log) + 1):
        assert log.n_users_after(n) == len({user for user, _, _ in told[:n]})
        assert log.n_items_after(n) == len({item for _, item, _ in told[:n]})
    assert (log.n_users, log.n_items) == (log.n_users_after(len(log)), log.n_items_after(len(log)))


@given(EVENTS, st.integers(0, 40))
def test_the_past_of_a_log_does_not_depend_on_its_future(events: list[Event], n: int) -> None:
    events = oracle(events)
    n = min(max(n, 1), len(events))
    past, whole = make_log(events[:n]), make_log(events)
    assert past.users.tolist() == whole.users[:n].tolist()
    assert past.items.tolist() == whole.items[:n].tolist()


@given(EVENTS)
def test_the_first_of_each_pair_against_a_set(events: list[Event]) -> None:
    users = np.array([user for user, _, _ in events])
    items = np.array([ord(item) for _, item, _ in events])
    seen: set[tuple[int, int]] = set()
    first = []
    for position, pair in enumerate(zip(users.tolist(), items.tolist(), strict=True)):
        if pair not in seen:
            first.append(position)
        seen.add(pair)
    assert first_of_each(pair_keys(users, items)).tolist() == first


def test_a_log_without_events_is_refused() -> None:
    with pytest.raises(DataError, match=r"\A[^\n]*no events[^\n]*\Z"):
        EventLog.from_columns(pa.array([], pa.int64()), pa.array([], pa.int64()), np.array([], dtype=np.int64))


@given(EVENTS)
def test_equal_logs_have_equal_fingerprints(events: list[Event]) -> None:
    log, again = make_log(events), make_log(oracle(events))
    assert log.fingerprint() == again.fingerprint()
    assert replace(log, notes=("read elsewhere",)).fingerprint() == log.fingerprint()


@given(EVENTS, st.integers(0, 39), st.tuples(st.integers(0, 12), st.sampled_from("abcdefgh"), st.integers(0, 12)))
def test_a_changed_event_changes_the_fingerprint(events: list[Event], at: int, changed: Event) -> None:
    other = list(events)
    other[at % len(events)] = changed
    assume(oracle(events) != oracle(other))
    assert make_log(events).fingerprint() != make_log(other).fingerprint()


@given(EVENTS, st.integers(1, 5))
def test_other_times_in_the_same_order_change_the_fingerprint(events: list[Event], later: int) -> None:
    shifted = [(user, item, time + later) for user, item, time in events]
    assert make_log(events).users.tolist() == make_log(shifted).users.tolist()
    assert make_log(events).fingerprint() != make_log(shifted).fingerprint()


@given(EVENTS, st.integers(0, 39))
def test_a_lost_event_changes_the_fingerprint(events: list[Event], n: int) -> None:
    events = oracle(events)
    fewer = events[: n % len(events)]
    assume(fewer)
    assert make_log(events).fingerprint() != make_log(fewer).fingerprint()


@given(EVENTS, st.integers(0, 38))
def test_the_order_of_simultaneous_events_counts(events: list[Event], at: int) -> None:
    events = [(user, item, 0) for user, item, _ in oracle(events)]
    assume(len(events) > 1)
    at %= len(events) - 1
    swapped = [*events[:at], events[at + 1], events[at], *events[at + 2 :]]
    assert make_log(events).fingerprint() != make_log(swapped).fingerprint()


PAIRS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), min_size=1, max_size=3, unique=True)


@given(PAIRS, PAIRS)
@example([(1, 23)], [(12, 3)])
@example([(1, 34), (2, 5)], [(1, 4), (23, 5)])
def test_ids_do_not_run_into_each_other_in_the_fingerprint(one: list[tuple[int, int]], other: list[tuple[int, int]]):
    assume(one != other)
    logs = [
        EventLog.from_columns(pa.array([u for u, _ in pairs]), pa.array([i for _, i in pairs]), np.arange(len(pairs)))
        for pairs in (one, other)
    ]
    assert logs[0].fingerprint() != logs[1].fingerprint()


@pytest.mark.parametrize(("one", "other"), [(("a", "b"), ("ab", "")), (("a", "b\nc"), ("ab\n", "c"))])
def test_strings_do_not_run_into_each_other_in_the_fingerprint(one: tuple[str, str], other: tuple[str, str]) -> None:
    logs = [EventLog.from_columns(pa.array([u]), pa.array([i]), np.array([0])) for u, i in (one, other)]
    assert logs[0].fingerprint() != logs[1].fingerprint()


NAMES = ("x", "y", "z")
VALUE = st.sampled_from([*NAMES, None])


def groups_of(values: list[str | None], attribute: str = "g", advantaged: str | None = None) -> Groups:
    return Groups.from_values(attribute, values, possible=NAMES, advantaged=advantaged)


@given(st.lists(VALUE, min_size=4, max_size=4), st.integers(0, 3), VALUE)
def test_a_changed_group_changes_the_fingerprint(values: list[str | None], at: int, value: str | None) -> None:
    assume(values[at] != value)
    log = make_log([(user, "a", user) for user in range(4)])
    changed = [*values[:at], value, *values[at + 1 :]]
    renamed = {"x": "y", "y": "z", "z": "x", None: None}
    prints = [
        log.fingerprint(),
        replace(log, groups=groups_of(values)).fingerprint(),
        replace(log, groups=groups_of(changed)).fingerprint(),
        replace(log, groups=groups_of(values, attribute="h")).fingerprint(),
    ]
    assert len(set(prints)) == 4
    others = replace(log, groups=groups_of([renamed[value] for value in values])).fingerprint()
    assert (others == prints[1]) == (set(values) == {None})


@given(st.lists(VALUE, min_size=4, max_size=4), st.none() | st.sampled_from(NAMES))
def test_whose_advantage_is_looked_at_does_not_change_the_fingerprint(
    values: list[str | None], advantaged: str | None
) -> None:
    log = make_log([(user, "a", user) for user in range(4)])
    prints = {
        replace(log, groups=groups).fingerprint()
        for groups in (
            groups_of(values),
            groups_of(values, advantaged=advantaged),
        )
    }
    assert len(prints) == 1


@given(st.lists(VALUE, min_size=2, max_size=2))
def test_needed_groups_are_two_at_least_or_a_sentence_says_how_to_get_them(values: list[str | None]) -> None:
    log = make_log([(1, "a", 1), (2, "a", 2)])
    with pytest.raises(DataError, match=r"\A[^\n]*no groups[^\n]*group=COLUMN[^\n]*--group[^\n]*\Z"):
        log.require_groups()
    groups = groups_of(values, attribute="gender")
    there = set(values) - {None}
    if len(there) == 2:
        assert replace(log, groups=groups).require_groups() is groups
    else:
        found = repr(*there) if there else "no value is known"
        with pytest.raises(
            DataError, match=rf"\A[^\n]*gender does not differ[^\n]*{found}; use events of at least two groups"
        ):
            replace(log, groups=groups).require_groups()


def test_numbers_after_unix_times_are_noted() -> None:
    log = read_events(pa.table({"user": [1, 2], "item": [1, 2], "time": [3, 9]}))
    (note,) = log.notes_after(np.int64(1_700_000_000))
    assert "earlier times look like seconds since 1970, these like no unit" in note
