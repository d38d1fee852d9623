"""The only home of the polarity: 0 advantaged, 1, 2 … the others by appearance, −1 not known."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import DataError, Groups
from fairstream.data.groups import encode_groups, intersection

Values = list[str | None]

NAMES = ["w", "x", "y", "z"]
ANY = st.lists(st.sampled_from([*NAMES, None]), max_size=20)
VALUES = ANY.filter(lambda values: len(set(values) - {None}) >= 2)


@st.composite
def declared(draw: st.DrawFn) -> tuple[Values, str]:
    """Values of several groups, and one of them."""
    values = draw(VALUES)
    return values, draw(st.sampled_from(sorted(set(values) - {None})))


def told(groups: Groups) -> Values:
    """The value of each user row again."""
    return [None if code < 0 else groups.names[code] for code in groups.codes.tolist()]


def same(one: Groups, other: Groups) -> bool:
    return (one.attribute, one.names, one.codes.tolist(), one.choice) == (
        other.attribute,
        other.names,
        other.codes.tolist(),
        other.choice,
    )


# ── names and codes ──────────────────────────────────────────────────────────────────────


@given(declared())
def test_the_advantaged_come_first_and_the_others_as_they_appear(case: tuple[Values, str]) -> None:
    values, advantaged = case
    groups = Groups.from_values("g", values, advantaged=advantaged)
    others = [value for value in dict.fromkeys(values) if value not in (None, advantaged)]
    assert groups.names == (advantaged, *others)
    code = {None: -1, **{name: at for at, name in enumerate(groups.names)}}
    assert groups.codes.tolist() == [code[value] for value in values]
    assert groups.codes.dtype == np.int16
    assert groups.choice == "declared"


@given(VALUES)
def test_the_advantaged_group_is_the_larger_one_unless_said_otherwise(values: Values) -> None:
    larger = Groups.from_values("g", values)
    sizes = [values.count(name) for name in larger.names]
    assert sizes[0] == max(sizes)
    assert larger.choice == "larger"
    assert larger.names == Groups.from_values("g", values, advantaged=larger.names[0]).names
    assert told(larger) == values


@given(VALUES)
def test_which_of_two_equally_large_groups_it_is_does_not_depend_on_the_order_of_the_users(values: Values) -> None:
    assert Groups.from_values("g", values).names[0] == Groups.from_values("g", values[::-1]).names[0]


@given(declared())
def test_putting_another_group_in_front_is_naming_it(case: tuple[Values, str]) -> None:
    values, advantaged = case
    groups = Groups.from_values("g", values, advantaged=advantaged)
    for other in groups.names:
        turned = groups.with_advantaged(other)
        assert same(turned, Groups.from_values("g", values, advantaged=other))
        assert same(turned.with_advantaged(advantaged), groups)


@given(st.lists(st.sampled_from(["x", "y", None])).filter(lambda values: {"x", "y"} <= set(values)))
def test_of_two_groups_the_other_in_front_swaps_their_codes(values: Values) -> None:
    groups = Groups.from_values("g", values)
    turned = groups.with_advantaged(groups.names[1])
    assert turned.names == groups.names[::-1]
    assert turned.codes.tolist() == [code if code < 0 else 1 - code for code in groups.codes.tolist()]


@given(ANY, st.lists(st.sampled_from([*NAMES, None])), st.none() | st.sampled_from(NAMES))
def test_groups_that_nobody_is_in_yet_come_last(values: Values, possible: Values, advantaged: str | None) -> None:
    possible = [*possible, *NAMES]
    groups = Groups.from_values("g", values, possible=possible, advantaged=advantaged)
    assert told(groups) == values
    assert sorted(groups.names) == NAMES
    others = sorted(groups.names[1:], key=lambda name: (values.index(name) if name in values else len(values), name))
    assert list(groups.names[1:]) == others
    assert groups.n_occurring() == len(set(values) - {None})
    assert groups.names == Groups.from_values("g", values, possible=NAMES[::-1], advantaged=groups.names[0]).names


@pytest.mark.parametrize(
    ("values", "advantaged", "words"),
    [
        (["M", "F"], "m", ["gender = 'm'", "'F', 'M'"]),
        (["M", "F", "X"], 3, ["gender = '3'", "'F', 'M', 'X'"]),
        (["M", "M", None], None, ["groups are compared", "'gender'", "1 value", "'M'", "more values"]),
        ([None, None], None, ["groups are compared", "0 value", "none"]),
        ([], None, ["groups are compared", "0 value", "none"]),
        ([f"{n:03}" for n in range(101)], None, ["at most 100 groups", "101 value", "'000'", "'007' …", "coarser"]),
    ],
    ids=["another case", "a stranger", "one", "nothing known", "nobody", "too many"],
)
def test_what_makes_no_groups_is_refused_in_one_sentence(values: Values, advantaged: object, words: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        Groups.from_values("gender", values, advantaged=advantaged)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_hundred_groups_are_not_too_many() -> None:
    groups = Groups.from_values("g", list(range(100)), advantaged=99)
    assert groups.codes.tolist() == [*range(1, 100), 0]


# ── what is known after some users ───────────────────────────────────────────────────────


@given(declared(), st.integers(0, 20))
def test_the_past_of_declared_groups_does_not_depend_on_their_future(case: tuple[Values, str], n: int) -> None:
    values, advantaged = case
    whole = Groups.from_values("g", values, advantaged=advantaged)
    past = Groups.from_values("g", values[:n], advantaged=advantaged, possible=values)
    assert past.codes.tolist() == whole.codes[:n].tolist()
    n_known = whole.n_groups_among(n)
    assert past.n_groups_among(n) == n_known
    assert past.names[:n_known] == whole.names[:n_known]


@given(declared(), st.integers(0, 20))
def test_the_names_known_after_some_users_are_those_they_have_shown(case: tuple[Values, str], n: int) -> None:
    values, advantaged = case
    groups = Groups.from_values("g", values, advantaged=advantaged)
    shown = set(values[:n]) - {None}
    assert set(groups.names[: groups.n_groups_among(n)]) == (shown | {advantaged} if shown else set())


@given(
    ANY.filter(lambda past: set(past) != {None} and past),
    st.tuples(VALUES, VALUES),
)
def test_as_of_some_users_the_larger_group_is_theirs(past: Values, futures: tuple[Values, Values]) -> None:
    """Whatever comes later: two futures, one answer."""
    ours, theirs = (Groups.from_values("g", past + future).as_of(len(past)) for future in futures)
    first = ours.names[0]
    assert first == theirs.names[0]
    assert past.count(first) == max(past.count(name) for name in NAMES)
    assert told(ours) == past + futures[0]
    assert ours.codes[: len(past)].tolist() == theirs.codes[: len(past)].tolist()
    assert same(ours.as_of(len(ours.codes)), Groups.from_values("g", past + futures[0]))


@given(declared(), st.integers(0, 20))
def test_as_of_any_moment_the_declared_group_stays(case: tuple[Values, str], n: int) -> None:
    values, advantaged = case
    groups = Groups.from_values("g", values, advantaged=advantaged)
    assert same(groups.as_of(n), groups)


@given(declared(), st.integers(0, 4))
def test_signs_are_plus_for_the_advantaged_group_alone(case: tuple[Values, str], n: int) -> None:
    values, advantaged = case
    groups = Groups.from_values("g", values, advantaged=advantaged, possible=NAMES)
    assert groups.signs(n) == [1.0, -1.0, -1.0, -1.0][:n]


# ── more users ───────────────────────────────────────────────────────────────────────────


@st.composite
def newcomers(draw: st.DrawFn) -> tuple[Values, Values, list[int]]:
    """Our users' values, theirs, and the row among ours that each of theirs has: new ones follow."""
    ours, theirs = draw(VALUES), draw(ANY.map(lambda values: [*values, "u", "v"]))
    return ours, theirs, draw(st.permutations(range(len(ours) + len(theirs))))[: len(theirs)]


@given(newcomers(), st.sampled_from(["u", "v", None]))
def test_who_is_known_keeps_the_group_and_who_is_not_brings_one(
    case: tuple[Values, Values, list[int]], advantaged: str | None
) -> None:
    ours, theirs, rows = case
    mine, other = Groups.from_values("g", ours), Groups.from_values("g", theirs, advantaged=advantaged)
    n_rows = len(ours) + len(theirs)
    expected = ours + [None] * len(theirs)
    for row, value in zip(rows, theirs, strict=True):
        expected[row] = expected[row] or value
    joined = mine.merge(np.array(rows), n_rows, other)
    assert told(joined) == expected
    assert joined.names[: len(mine.names)] == mine.names
    assert sorted(joined.names) == sorted({*mine.names, *other.names})
    assert joined.codes.dtype == np.int16
    assert (joined.attribute, joined.choice) == (mine.attribute, mine.choice)
    assert told(mine) == ours  # and is left as it was


@given(VALUES, st.lists(ANY, max_size=4))
def test_groups_that_come_late_stand_in_the_order_in_which_they_came(first: Values, later: list[Values]) -> None:
    groups, values = Groups.from_values("g", first), list(first)
    for newcomers in later:
        names, codes = encode_groups(newcomers, groups.names)
        rows = np.arange(len(values), len(values) + len(newcomers))
        groups = groups.merge(rows, len(values) + len(newcomers), replace(groups, names=names, codes=codes))
        values += newcomers
    appeared = [value for value in dict.fromkeys(values) if value is not None]
    assert list(groups.names[1:]) == [value for value in appeared if value != groups.names[0]]
    assert told(groups) == values


@given(VALUES, st.integers(0, 5))
def test_newcomers_who_bring_no_groups_are_not_known(values: Values, n_new: int) -> None:
    joined = Groups.from_values("g", values).merge(np.arange(3), len(values) + n_new, None)
    assert told(joined) == values + [None] * n_new


def test_groups_of_another_attribute_do_not_join() -> None:
    mine, other = Groups.from_values("gender", ["M", "F"]), Groups.from_values("sex", ["M", "F"])
    with pytest.raises(DataError, match=r"\Agroups must stay the same: expected 'gender', got 'sex'\Z"):
        mine.merge(np.array([2, 3]), 4, other)


@given(VALUES, ANY)
def test_later_values_are_encoded_in_the_names_that_are_there_and_new_ones_follow(first: Values, later: Values) -> None:
    names = Groups.from_values("g", first).names
    extended, codes = encode_groups(later, names)
    new = [value for value in dict.fromkeys(later) if value is not None and value not in names]
    assert extended == (*names, *new)
    assert [None if code < 0 else extended[code] for code in codes.tolist()] == later


@given(newcomers())
def test_changed_groups_are_counted_and_noted(case: tuple[Values, Values, list[int]]) -> None:
    ours, theirs, rows = case
    mine, other = Groups.from_values("g", ours), Groups.from_values("g", theirs)
    known = [(ours[row], value) for row, value in zip(rows, theirs, strict=True) if row < len(ours)]
    n_changed = sum(before is not None and value is not None and before != value for before, value in known)
    notes = mine.notes_on_merge(np.array(rows), other)
    changed = [note for note in notes if note.startswith(f"{n_changed} known user(s) came with another g than before")]
    new = sorted({value for value in theirs if value is not None} - set(ours))
    appeared = [f"new value(s) of g, each a group from now on: {', '.join(map(repr, new[:8]))}"] if new else []
    assert list(notes) == changed + appeared
    assert len(changed) == (n_changed > 0)
    assert mine.notes_on_merge(np.array(rows), None) == ()


@given(declared(), st.data())
def test_a_group_without_users_no_longer_counts(case: tuple[Values, str], data: st.DataObject) -> None:
    values, advantaged = case
    groups = Groups.from_values("g", values, advantaged=advantaged)
    left = list(values)
    while left:
        row = data.draw(st.integers(0, len(left) - 1))
        groups = groups.without(row)
        del left[row]
        occurring = set(left) - {None}
        assert told(groups) == left
        assert groups.names[0] == advantaged
        assert set(groups.names[: groups.n_groups_among(len(left))]) == (
            occurring | {advantaged} if occurring else set()
        )


# ── intersections ────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.sampled_from(["F", "M", None]), st.sampled_from([18, 25, None])), min_size=1))
def test_an_intersection_is_one_value_for_each_combination(rows: list[tuple[str | None, int | None]]) -> None:
    genders, ages = (list(column) for column in zip(*rows, strict=True))
    expected = [None if None in row else f"{row[0]},{row[1]}" for row in rows]
    assert intersection([genders, ages]).to_pylist() == expected
    assert intersection([pa.chunked_array([genders, []], pa.string()), ages]).to_pylist() == expected
    swapped = [None if None in row else f"{row[1]},{row[0]}" for row in rows]
    assert intersection([ages, genders]).to_pylist() == swapped


@given(ANY)
def test_one_column_alone_is_its_own_intersection(values: Values) -> None:
    assert intersection([values]).to_pylist() == values


# ── what may hold the values ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "advantaged"),
    [
        ([0, 1, 2, None], 0),
        ([False, True, True, None], False),
        ([0.0, 1.0, 2.0, None], 0.0),
        (np.array([0.0, 1.0, 2.0, np.nan]), 0),
        ([0.5, 2.5, 3.5, None], 0.5),
    ],
    ids=["integers", "booleans", "floats", "NaN is missing", "fractions"],
)
def test_the_advantaged_value_is_given_as_the_column_holds_it(values: object, advantaged: object) -> None:
    groups = Groups.from_values("g", values, advantaged=advantaged)
    assert groups.codes.tolist() == [0, 1, len(groups.names) - 1, -1]


@pytest.mark.parametrize(
    "values",
    [
        pa.chunked_array([["M"], ["F", None]]),
        pa.array(["M", "F", None], pa.string_view()),
        pa.array(["M", "F", None]).dictionary_encode(),
        pd.Series(["M", "F", None]),
        pd.Series(["M", "F", None], dtype="category"),
        pl.Series(["M", "F", None]),
    ],
    ids=["chunked", "views", "dictionary", "pandas", "pandas category", "Polars"],
)
def test_whatever_holds_the_values_gives_the_same_codes(values: object) -> None:
    assert Groups.from_values("gender", values, advantaged="M").codes.tolist() == [0, 1, -1]


@pytest.mark.parametrize("values", [["M", 1], [["M"], 1]], ids=["mixed", "partly nested"])
def test_values_of_no_plain_kind_are_refused_in_one_sentence(values: list[object]) -> None:
    with pytest.raises(DataError, match=r"\A[^\n]+\Z"):
        Groups.from_values("gender", values)


def test_a_hundred_groups_are_all_that_later_events_can_make() -> None:
    first = Groups.from_values("zip", [str(n) for n in range(60)])
    later = Groups.from_values("zip", [str(n) for n in range(50, 110)])
    with pytest.raises(DataError, match="at most 100 groups"):
        first.merge(np.arange(60, 120), 120, later)


def test_values_with_commas_are_quoted_so_that_no_two_groups_become_one() -> None:
    values = ["a", "a,b", 'a"', 'a",b', '"a"', "b,c"]
    pairs = [(one, other) for one in values for other in values]
    combined = intersection([[one for one, _ in pairs], [other for _, other in pairs]]).to_pylist()
    assert len(set(combined)) == len(pairs)
    assert [tuple(row) for row in csv.reader(combined)] == pairs
    assert intersection([["a,b", "a"]]).to_pylist() == ["a,b", "a"]
