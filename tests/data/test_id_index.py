"""An id is found where it is, whatever its key; strings whose keys collide are told apart."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data.id_index import IndexedIds

STRINGS = st.text(max_size=4)
INTEGERS = st.integers(-3, 8) | st.integers(-(2**63), 2**63 - 1)


def distinct(ids: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(ids, max_size=30, unique=True)


def places(known: list, asked: list) -> list[int]:
    return [known.index(one) if one in known else -1 for one in asked]


@pytest.mark.parametrize("key_bits", [1, 3, 64])
@given(known=distinct(STRINGS), asked=st.lists(STRINGS, max_size=30))
def test_strings_are_found_by_their_bytes_and_not_by_their_keys(
    key_bits: int, known: list[str], asked: list[str]
) -> None:
    asked = [*asked, *known, ""]
    index = IndexedIds(pa.array(known, pa.large_string()), key_bits=key_bits)
    assert index.find(pa.array(asked, pa.large_string())).tolist() == places(known, asked)
    assert [index.find_text(text) for text in asked] == index.find(pa.array(asked, pa.large_string())).tolist()


@pytest.mark.parametrize("key_bits", [1, 3, 64])
@given(known=distinct(INTEGERS), asked=st.lists(INTEGERS, max_size=30))
def test_integers_are_found_by_what_they_are(key_bits: int, known: list[int], asked: list[int]) -> None:
    asked = [*asked, *known]
    index = IndexedIds(pa.array(known, pa.int64()), key_bits=key_bits)
    assert index.find(pa.array(asked, pa.int64())).tolist() == places(known, asked)


@pytest.mark.parametrize("key_bits", [1, 64])
@given(known=distinct(STRINGS), data=st.data())
def test_two_behind_each_other_are_as_one(key_bits: int, known: list[str], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(known)))
    parts = [IndexedIds(pa.array(ids, pa.large_string()), key_bits=key_bits) for ids in (known[:cut], known[cut:])]
    for part in parts:  # with an index or without, as it happens
        if data.draw(st.booleans()):
            part.find(pa.array(["a"], pa.large_string()))
    both = parts[0].followed_by(parts[1])
    assert both.ids.to_pylist() == known
    assert both.find(pa.array(known, pa.large_string())).tolist() == list(range(len(known)))
    assert both.find(pa.array(["stranger"], pa.large_string())).tolist() == [-1]


@given(distinct(STRINGS), st.integers(0, 30), st.integers(0, 30))
def test_a_slice_of_an_arrow_array_is_read_where_it_lies(known: list[str], start: int, length: int) -> None:
    whole = pa.array(known, pa.large_string())
    part = whole.slice(start, length)
    assert IndexedIds(part).find(part).tolist() == list(range(len(part)))
    assert IndexedIds(whole).find(part).tolist() == list(range(len(known)))[start : start + length]
