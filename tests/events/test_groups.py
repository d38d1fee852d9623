"""The only home of the polarity: 0 advantaged, 1 disadvantaged, −1 not known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import DataError, Groups
from fairstream.events.groups import ADVANTAGED, DISADVANTAGED, UNKNOWN, encode_groups

TWO_VALUED = st.lists(st.sampled_from(["x", "y", None]), min_size=2, max_size=30).filter(lambda v: {"x", "y"} <= set(v))


def same(one: Groups, other: Groups) -> bool:
    return (one.attribute, one.names, one.codes.tolist()) == (other.attribute, other.names, other.codes.tolist())


@given(TWO_VALUED, st.sampled_from(["x", "y"]))
def test_codes_say_who_is_advantaged_and_who_is_not_known(values: list[str | None], advantaged: str) -> None:
    groups = Groups.from_values("g", values, advantaged=advantaged)
    assert groups.names[0] == advantaged
    assert set(groups.names) == {"x", "y"}
    code = {advantaged: ADVANTAGED, groups.names[1]: DISADVANTAGED, None: UNKNOWN}
    assert groups.codes.tolist() == [code[value] for value in values]
    assert groups.both_occur()


@given(TWO_VALUED)
def test_the_advantaged_group_is_the_larger_one_unless_said_otherwise(values: list[str | None]) -> None:
    groups = Groups.from_values("g", values)
    sizes = [values.count(name) for name in groups.names]
    assert sizes[0] >= sizes[1]


@given(TWO_VALUED)
def test_the_default_polarity_does_not_depend_on_the_order_of_the_users(values: list[str | None]) -> None:
    assert Groups.from_values("g", values).names == Groups.from_values("g", values[::-1]).names


@given(TWO_VALUED)
def test_swapped_twice_is_where_we_were(values: list[str | None]) -> None:
    groups = Groups.from_values("g", values)
    swapped = groups.swapped()
    assert same(swapped.swapped(), groups)
    assert swapped.names == groups.names[::-1]
    assert ((swapped.codes == UNKNOWN) == (groups.codes == UNKNOWN)).all()
    known = groups.codes != UNKNOWN
    assert (swapped.codes[known] + groups.codes[known] == 1).all()


@given(TWO_VALUED)
def test_swapping_is_naming_the_other_group(values: list[str | None]) -> None:
    groups = Groups.from_values("g", values, advantaged="x")
    assert same(groups.swapped(), Groups.from_values("g", values, advantaged="y"))


@given(TWO_VALUED, TWO_VALUED)
def test_recoded_codes_are_in_our_polarity_whatever_theirs(ours: list[str | None], theirs: list[str | None]) -> None:
    mine = Groups.from_values("g", ours, advantaged="x")
    expected = Groups.from_values("g", theirs, advantaged="x").codes.tolist()
    for advantaged in ("x", "y"):
        other = Groups.from_values("g", theirs, advantaged=advantaged)
        assert mine.recoded(other).tolist() == expected


@pytest.mark.parametrize(
    "other",
    [Groups.from_values("sex", ["M", "F"]), Groups.from_values("gender", ["M", "X"])],
    ids=["another attribute", "another value"],
)
def test_groups_of_another_kind_cannot_be_recoded(other: Groups) -> None:
    mine = Groups.from_values("gender", ["M", "F"])
    with pytest.raises(DataError, match=r"\Agroups must stay the same: expected 'gender'[^\n]*\Z"):
        mine.recoded(other)


def test_other_codes_keep_attribute_and_polarity() -> None:
    groups = Groups.from_values("g", ["x", "y"], advantaged="y").with_codes(np.array([1, 1], dtype=np.int8))
    assert (groups.attribute, groups.names, groups.codes.tolist()) == ("g", ("y", "x"), [1, 1])
    assert not groups.both_occur()


@pytest.mark.parametrize(
    ("values", "advantaged", "words"),
    [
        (["M", "F"], "m", ["gender = 'm'", "'F', 'M'"]),
        (["M", "M"], "F", ["gender = 'F'", "'M'"]),
        (["M", "M", None], None, ["two groups", "'gender'", "1 value", "'M'"]),
        (["M", "M"], "M", ["two groups", "1 value"]),
        (["M", "F", "X"], None, ["two groups", "3 value", "'F', 'M', 'X'"]),
        (["M", "F", "X"], "M", ["two groups", "3 value"]),
        (list("abcdefghijkl"), None, ["two groups", "12 value"]),
        ([None, None], None, ["two groups", "0 value", "none"]),
        ([], None, ["two groups", "0 value", "none"]),
    ],
    ids=str,
)
def test_anything_but_two_values_is_refused_in_one_sentence(
    values: list[str | None], advantaged: str | None, words: list[str]
) -> None:
    with pytest.raises(DataError) as caught:
        Groups.from_values("gender", values, advantaged=advantaged)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_third_value_that_comes_later_is_refused() -> None:
    names = Groups.from_values("gender", ["M", "F"]).names
    assert encode_groups("gender", ["F", None, "M"], ("M", "F")).tolist() == [1, -1, 0]
    with pytest.raises(DataError, match=r"\A'gender' must be '[MF]' or '[MF]', got 'X'\Z"):
        encode_groups("gender", ["M", "X", "F"], names)


@pytest.mark.parametrize(
    ("values", "advantaged"),
    [
        ([0, 1, 1, None], 0),
        ([False, True, True, None], False),
        ([0.0, 1.0, 1.0, None], 0.0),
        (np.array([0.0, 1.0, 1.0, np.nan]), 0),
        ([0.5, 2.5, 2.5, None], 0.5),
    ],
    ids=["integers", "booleans", "floats", "NaN is missing", "fractions"],
)
def test_the_advantaged_value_is_given_as_the_column_holds_it(values: object, advantaged: object) -> None:
    assert Groups.from_values("g", values, advantaged=advantaged).codes.tolist() == [0, 1, 1, -1]


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


@pytest.mark.parametrize("values", [["M", 1], [["M"], ["F"]]], ids=["mixed", "nested"])
def test_values_of_no_plain_kind_are_refused_in_one_sentence(values: list[object]) -> None:
    with pytest.raises(DataError, match=r"\A[^\n]+\Z"):
        Groups.from_values("gender", values)
