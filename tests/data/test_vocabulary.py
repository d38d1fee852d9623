"""Ids get rows once and for all, in the order in which they are first seen."""

from __future__ import annotations

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import DataError
from fairstream.data.vocabulary import Vocabulary

SMALL_OR_HUGE = st.integers(-3, 8) | st.integers(-(2**63), 2**63 - 1)
ID_LISTS = st.lists(SMALL_OR_HUGE, max_size=30) | st.lists(st.text(max_size=3), max_size=30)


@st.composite
def ids_in_pieces(draw: st.DrawFn) -> list[list[int] | list[str]]:
    """One sequence of ids, cut at random places; some pieces are empty."""
    ids = draw(ID_LISTS)
    cuts = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    return [ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


def oracle_rows(ids: list[int] | list[str]) -> dict[int | str, int]:
    rows: dict[int | str, int] = {}
    for one in ids:
        rows.setdefault(one, len(rows))
    return rows


@given(ids_in_pieces())
def test_rows_are_those_of_a_dict_however_the_sequence_is_cut(pieces: list[list[int]]) -> None:
    known = oracle_rows([one for piece in pieces for one in piece])
    vocabulary = Vocabulary()
    for piece in pieces:
        assert vocabulary.extend(piece).tolist() == [known[one] for one in piece]
    assert len(vocabulary) == len(known)
    assert vocabulary.ids.to_pylist() == list(known)


@given(ids_in_pieces())
def test_a_row_once_given_never_changes(pieces: list[list[int]]) -> None:
    vocabulary = Vocabulary()
    for piece in pieces:
        before = vocabulary.ids.to_pylist()
        vocabulary.extend(piece)
        assert vocabulary.ids.to_pylist()[: len(before)] == before
        assert vocabulary.lookup(before).tolist() == list(range(len(before)))


@given(known=st.lists(st.integers(0, 20), max_size=20), asked=st.lists(st.integers(0, 20), max_size=20))
def test_lookup_answers_minus_one_for_strangers_and_learns_nothing(known: list[int], asked: list[int]) -> None:
    vocabulary, rows = Vocabulary(known), oracle_rows(known)
    assert vocabulary.lookup(asked).tolist() == [rows.get(one, -1) for one in asked]
    assert vocabulary.ids.to_pylist() == list(rows)


@given(ID_LISTS, ID_LISTS)
def test_a_copy_goes_its_own_way(first: list[int], later: list[int]) -> None:
    original = Vocabulary(first)
    twin = original.copy()
    if first and later and type(first[0]) is not type(later[0]):
        later = first[::-1]
    twin.extend(later)
    assert original.ids.to_pylist() == list(oracle_rows(first))
    assert twin.ids.to_pylist() == list(oracle_rows([*first, *later]))


@given(st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=12), st.data())
def test_copies_that_are_extended_in_any_order_are_independent(pieces: list[list[int]], data: st.DataObject) -> None:
    """Each vocabulary stands beside its own list of ids; all share what they can underneath."""
    family: list[tuple[Vocabulary, list[int]]] = [(Vocabulary(), [])]
    for piece in pieces:
        vocabulary, told = data.draw(st.sampled_from(family))
        if data.draw(st.booleans()):
            vocabulary, told = vocabulary.copy(), list(told)
            family.append((vocabulary, told))
        if data.draw(st.booleans()):
            vocabulary.indexed()
        vocabulary.extend(piece)
        told += piece
    for vocabulary, told in family:
        rows = oracle_rows(told)
        assert vocabulary.ids.to_pylist() == list(rows)
        assert vocabulary.lookup(range(61)).tolist() == [rows.get(one, -1) for one in range(61)]


@given(ID_LISTS)
def test_distinct_ids_make_the_vocabulary_that_they_came_from(ids: list[int]) -> None:
    original = Vocabulary(ids)
    again = Vocabulary.of_distinct(original.ids)
    assert again.ids.to_pylist() == original.ids.to_pylist()
    assert again.extend(ids).tolist() == original.lookup(ids).tolist()


@pytest.mark.parametrize(
    "ids",
    [
        np.array([7, 3, 7]),
        np.array([7, 3, 7], dtype=np.uint8),
        pa.array([7, 3, 7], pa.int16()),
        pa.chunked_array([[7], [3, 7]]),
        pa.array([7, 3, 7]).dictionary_encode(),
        pd.Series([7, 3, 7]),
        pl.Series([7, 3, 7]),
    ],
    ids=lambda ids: f"{type(ids).__module__.split('.')[0]} {getattr(ids, 'type', getattr(ids, 'dtype', ''))}",
)
def test_whatever_holds_integers_gives_the_same_rows(ids: object) -> None:
    vocabulary = Vocabulary()
    assert vocabulary.extend(ids).tolist() == [0, 1, 0]
    assert vocabulary.ids.equals(pa.array([7, 3]))


@pytest.mark.parametrize(
    "ids",
    [
        np.array(["é", "b", "é"]),
        np.array(["é", "b", "é"], dtype=object),
        pa.array(["é", "b", "é"]),
        pa.array(["é", "b", "é"], pa.string_view()),
        pa.chunked_array([["é"], ["b", "é"]], pa.large_string()),
        pa.array(["é", "b", "é"]).dictionary_encode(),
        pd.Series(["é", "b", "é"], dtype="category"),
        pl.Series(["é", "b", "é"]),
    ],
    ids=lambda ids: f"{type(ids).__module__.split('.')[0]} {getattr(ids, 'type', getattr(ids, 'dtype', ''))}",
)
def test_whatever_holds_strings_gives_the_same_rows(ids: object) -> None:
    vocabulary = Vocabulary(["é"])
    assert vocabulary.extend(ids).tolist() == [0, 1, 0]
    assert vocabulary.ids.to_pylist() == ["é", "b"]


@pytest.mark.parametrize(
    "empty", [[], np.array([], dtype=np.int64), pa.array([], pa.string()), pa.array([], pa.null())]
)
@pytest.mark.parametrize("known", [[], [1, 2], ["a"]], ids=["nothing", "integers", "strings"])
def test_no_ids_are_of_every_kind(empty: object, known: list[int]) -> None:
    vocabulary = Vocabulary(known)
    assert vocabulary.lookup(empty).tolist() == []
    assert vocabulary.extend(empty).tolist() == []
    assert vocabulary.ids.to_pylist() == known


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, None, None], ["2 of 3", "missing"]),
        (["a", None], ["1 of 2", "missing"]),
        ([None], ["1 of 1", "missing"]),
        ([1.5, 2.0], ["integers or strings", "1.5 for one"]),
        ([float("nan")], ["must not be missing", "1 of 1"]),
        ([True, False], ["integers or strings", "bool"]),
        ([b"raw"], ["integers or strings", "binary"]),
        ([[1], [2]], ["integers or strings", "list"]),
        ([1, "a"], ["all integers or all strings", "'a'"]),
        (["a", 1], ["all integers or all strings", "int"]),
    ],
    ids=str,
)
def test_what_is_no_id_is_refused_in_one_sentence(ids: list[object], words: list[str]) -> None:
    vocabulary = Vocabulary()
    for ask in (vocabulary.extend, vocabulary.lookup):
        with pytest.raises(DataError) as caught:
            ask(ids)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in words), message
    assert len(vocabulary) == 0


@pytest.mark.parametrize("ids", [[2**70], np.array([2**63], dtype=np.uint64), ["\ud800"], 5], ids=repr)
def test_ids_that_arrow_cannot_hold_are_refused_in_one_sentence(ids: object) -> None:
    with pytest.raises(DataError, match=r"\A[^\n]*ids must be[^\n]*\Z"):
        Vocabulary(ids)


@pytest.mark.parametrize(
    ("known", "other", "words"),
    [([1, 2], ["7"], ["holds integers", "got strings", "'7'"]), (["a"], [7], ["holds strings", "got integers", "7"])],
    ids=["strings to integers", "integers to strings"],
)
def test_the_kind_of_the_ids_stays(known: list[int], other: list[str], words: list[str]) -> None:
    vocabulary = Vocabulary(known)
    for ask in (vocabulary.extend, vocabulary.lookup):
        with pytest.raises(DataError) as caught:
            ask(other)
        message = str(caught.value)
        assert "\n" not in message
        assert all(word in message for word in ["one kind", *words]), message
    assert vocabulary.ids.to_pylist() == known


@pytest.mark.parametrize("ids", [["a", "b", "c"], [7, 3, 9]], ids=["strings", "integers"])
@pytest.mark.parametrize("indexed", [False, True])
def test_one_id_is_looked_up_as_many_are(ids: list[int], indexed: bool) -> None:
    vocabulary = Vocabulary(ids[:2])
    if indexed:
        vocabulary.indexed()
    vocabulary.extend(ids)
    assert [vocabulary.row_of(one) for one in ids] == [0, 1, 2]
    assert vocabulary.row_of("z") == vocabulary.row_of(-5) == -1


@pytest.mark.parametrize("again", [copy.deepcopy, copy.copy, lambda vocabulary: pickle.loads(pickle.dumps(vocabulary))])
def test_a_pickled_or_copied_vocabulary_has_the_same_rows_and_grows_alone(again) -> None:
    vocabulary = Vocabulary(["a", "b"]).indexed()
    vocabulary.extend(["c"])
    twin = again(vocabulary)
    assert twin.extend(["d", "b", "c"]).tolist() == [3, 1, 2]
    assert vocabulary.lookup(["d", "c"]).tolist() == [-1, 2]


def test_a_vocabulary_is_read_while_copies_of_it_are_extended() -> None:
    """Readers of one vocabulary see its rows and no others, whatever happens to its copies in other threads."""
    names = [f"user {n}" for n in range(3000)]
    known, later = names[:2000], [names[n : n + 50] for n in range(2000, 3000, 50)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for start in (Vocabulary(known), Vocabulary(known).indexed()):

            def extend_copies(start: Vocabulary = start) -> list[str]:
                vocabulary = start.copy()
                for part in later:
                    vocabulary = vocabulary.copy()
                    vocabulary.extend(part)
                return vocabulary.ids.to_pylist()

            def read(start: Vocabulary = start) -> bool:
                rows = start.lookup(names).tolist()
                return rows == [*range(2000), *[-1] * 1000] and start.row_of(names[-1]) == -1 and len(start) == 2000

            with ThreadPoolExecutor(4) as pool:
                writers = [pool.submit(extend_copies) for _ in range(4)]
                readers = [pool.submit(read) for _ in range(40)]
                assert all(reader.result() for reader in readers)
                assert all(writer.result() == names for writer in writers)
    finally:
        sys.setswitchinterval(switch)


def test_a_copy_of_a_large_vocabulary_shares_its_index() -> None:
    """What a copy and its extension cost must follow the new ids, not the known ones."""
    vocabulary = Vocabulary(np.arange(100_000)).indexed()
    twin = vocabulary.copy()
    twin.extend(np.arange(99_990, 100_010))
    assert twin._index is vocabulary._index
    assert len(twin._recent) == 10
    assert twin.ids.to_pylist() == list(range(100_010))
