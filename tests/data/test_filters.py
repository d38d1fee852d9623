"""A filter passes exactly the items that Python's own operators pass, and says where it cannot be read."""

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data.catalogue import Catalogue
from fairstream.data.filters import Filter, Kind
from fairstream.errors import DataError

KINDS: dict[str, Kind] = {"brand": "text", "tags": "texts", "price": "number", "new": "boolean", "since": "time"}
TEXTS = st.sampled_from(["a", "b", 'quo"te', "nö", ""])
NUMBERS = st.sampled_from([-1, 0, 0.5, 2, 1e9])
ITEMS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "brand": TEXTS,
            "tags": st.lists(TEXTS, max_size=3),
            "price": NUMBERS,
            "new": st.booleans(),
            "since": NUMBERS,
        },
    ),
    max_size=8,
)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _comparison(name: str, sign: str, value: Any) -> tuple[str, Any]:
    signs = {"=": "==", "has": None}
    literal = quoted(value) if isinstance(value, str) else str(value).lower()

    def passes(item: dict[str, Any]) -> bool:
        if name not in item:
            return False
        if sign == "has":
            return value in item[name]
        return bool(eval(f"found {signs.get(sign, sign)} value", {"found": item[name], "value": value}))

    return f"{name} {sign} {literal}", passes


def _within(name: str, values: list[Any]) -> tuple[str, Any]:
    literals = ", ".join(quoted(value) if isinstance(value, str) else str(value) for value in values)
    return f"{name} in [{literals}]", lambda item: item.get(name) in values and name in item


ORDER = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
LEAVES = st.one_of(
    st.builds(_comparison, st.sampled_from(["price", "since"]), ORDER, NUMBERS),
    st.builds(_comparison, st.just("brand"), st.sampled_from(["=", "!="]), TEXTS),
    st.builds(_comparison, st.just("new"), st.sampled_from(["=", "!="]), st.booleans()),
    st.builds(_comparison, st.just("tags"), st.just("has"), TEXTS),
    st.builds(_within, st.just("brand"), st.lists(TEXTS, min_size=1, max_size=3)),
    st.builds(_within, st.just("price"), st.lists(NUMBERS, min_size=1, max_size=3)),
)


def _joined(parts: tuple[tuple[str, Any], tuple[str, Any]], word: str) -> tuple[str, Any]:
    (a, first), (b, second) = parts
    join = any if word == "or" else all
    return f"({a}) {word} {b}" if word == "or" else f"({a}) and ({b})", lambda i: join([first(i), second(i)])


FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda each: (f"not ({each[0]})", lambda item: not each[1](item))),
        st.builds(_joined, st.tuples(inner, LEAVES), st.sampled_from(["and", "or"])),
    ),
    max_leaves=6,
)


@given(ITEMS, ITEMS, FILTERS)
def test_a_filter_passes_what_python_would(items: list[Any], later: list[Any], wanted: tuple[str, Any]) -> None:
    """Also after items were changed and added: `later` overwrites the first items, and may add some."""
    text, passes = wanted
    where = text
    shop = Catalogue.of(KINDS)
    for version in (items, later):
        shop = shop.updated([f"i{n}" for n in range(len(version))], [True] * len(version), version)
        shop.mask(where)  # a mask in the cache must not survive a change
    now = [*later, *items[len(later) :], {}]
    assert shop.mask(where).tolist() == [passes(item) for item in now]


@given(ITEMS, ITEMS)
def test_an_earlier_catalogue_stays_as_it_was(items: list[Any], later: list[Any]) -> None:
    where = 'price < 1 or tags has "a" or brand = "b"'
    shop = Catalogue.of(KINDS).updated([f"i{n}" for n in range(len(items))], [True] * len(items), items)
    before, available = shop.mask(where).tolist(), shop.available.tolist()
    shop.updated([f"i{n}" for n in range(len(later))], [False] * len(later), later)
    assert (shop.mask(where).tolist(), shop.available.tolist()) == (before, available)


def test_a_filter_may_name_many_values() -> None:
    items = [{"price": n, "brand": f"b{n}"} for n in range(-5, 300)] + [{}]
    shop = Catalogue.of(KINDS).updated([f"i{n}" for n in range(len(items))], [True] * len(items), items)
    for n_values in (1, 2, 100, 200):
        numbers, brands = range(0, 2 * n_values, 2), [f"b{n}" for n in range(0, 2 * n_values, 2)]
        for text in (f"price in {[*numbers]}", f"brand in [{', '.join(map(quoted, brands))}]"):
            expected = [item.get("price", 0.5) in numbers for item in items]
            assert shop.mask(text).tolist() == [*expected, False], text


def test_not_binds_closest_then_and_then_or() -> None:
    shop = Catalogue.of(KINDS).updated(["i"], [True], [{"price": 1}])
    for text, expected in (
        ("price = 1 or price = 1 and price = 2", True),
        ("(price = 1 or price = 1) and price = 2", False),
        ("not price = 2 and price = 1", True),
        ("not price = 1 or price = 1", True),
        ("not (price = 1 or price = 1)", False),
        ("not not price=1", True),
    ):
        assert shop.mask(text).tolist()[0] is expected, text


def test_times_are_iso_8601_or_seconds() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    shop = Catalogue.of(KINDS).updated(["i", "j"], [True, True], [{"since": noon}, {"since": noon + 0.5}])
    for literal in ('"2026-01-31T12:00:00Z"', '"2026-01-31 13:00+01:00"', str(int(noon))):
        assert shop.mask(f"since > {literal}").tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "character 1: expected the name of a property, not, or (, found the end"),
        ("price <", "character 8: expected a number, found the end"),
        ("price < and", "character 9: expected a number, found 'and'"),
        ("colour = 1", "character 1: 'colour' is not a property; the properties are brand, tags, price, new, since"),
        ('price = 1 and colour = "x"', "character 15: 'colour' is not a property"),
        ('brand < "x"', "character 7: expected =, !=, in after brand, whose type is text, found '<'"),
        ('tags = "x"', "character 6: expected has after tags, whose type is texts, found '='"),
        ("brand = shoes", "character 9: expected a text in double quotes, found 'shoes'"),
        ("brand = 'shoes'", "character 9: this is not a name, number, text in double quotes or operator"),
        ("price == 1", "character 8: expected a number, found '='"),
        ("new = 1", "character 7: expected true or false, found '1'"),
        ('since > "soon"', "character 9: expected seconds since 1970 or a time"),
        ("price in [1, 2", "character 15: expected ], found the end"),
        ("price in []", "character 11: expected a number, found ']'"),
        ("(price = 1", "character 11: expected ), found the end"),
        ("price = 1 price = 2", "character 11: expected and, or, or the end, found 'price'"),
        ('brand = "\\q"', "character 9: this text has an escape or character that JSON does not have"),
        ("not " * 60 + "price = 1", "more than 50 levels"),
        ("(" * 60, "more than 50 levels"),
        ("price = 1 or " * 1000, "at most 8000 characters"),
        ('brand = "open', "character 9: this text has no closing quote"),
        ("and = 1", "character 1: expected the name of a property"),
    ],
)
def test_a_filter_that_cannot_be_read_is_refused_with_its_position(text: str, sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        Filter.parse(text, KINDS)
    assert sentence in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    with suppress(DataError):
        assert Filter.parse(text, KINDS).text == text


def test_a_value_of_another_type_than_declared_is_missing() -> None:
    odd = [{"price": "5", "brand": 5, "new": 1, "tags": "a", "since": True}, {"price": math.nan}]
    shop = Catalogue.of(KINDS).updated(["i", "j"], [True, True], odd)
    for text in ("price >= 0", 'brand != "x"', "new != false", 'tags has "a"', "since >= 0"):
        assert not shop.mask(text).any(), text


def test_a_change_of_one_property_keeps_the_masks_of_the_others() -> None:
    shop = Catalogue.of(KINDS).updated(["i", "j"], [True, True], [{"price": 1, "brand": "a"}, {"brand": "b"}])
    brand, price = 'brand = "a"', "price = 1"
    masks = shop.mask(brand), shop.mask(price)
    later = shop.updated(["i"], [True], [{"price": 2, "brand": "a"}])
    assert later.mask(brand) is masks[0]
    assert later.mask(price).tolist() == [False, False, False]
    assert shop.mask(price).tolist() == [True, False, False]
