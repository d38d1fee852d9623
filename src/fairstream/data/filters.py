"""Filters over the properties of items: `category in ["shoes"] and price < 50 and stock > 0`.

    filter      =  comparison | "not" filter | filter "and" filter | filter "or" filter | "(" filter ")"
    comparison  =  NAME ("=" | "!=" | "<" | "<=" | ">" | ">=") value | NAME "in" "[" value, … "]" | NAME "has" TEXT

`not` binds closest, then `and`, then `or`. Texts stand in double quotes. A comparison with a missing property is false.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from fairstream.data.vocabulary import Rows
from fairstream.errors import DataError

Kind = Literal["text", "texts", "number", "boolean", "time"]
KINDS = get_args(Kind)
Mask = np.ndarray[Any, np.dtype[np.bool_]]
MISSING = -1  # the code of a missing text; no hash of Python is −1
MAX_CHARACTERS = 8_000
KEYWORDS = frozenset({"and", "or", "not", "in", "has", "true", "false"})
_MAX_DEPTH = 50
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
    r'|(?P<text>"(?:[^"\\]|\\.)*")|(?P<sign><=|>=|!=|[=<>()\[\],])|(?P<end>$))',
    re.ASCII,
)
_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EXPECTED = {
    "text": "a text in double quotes",
    "texts": "a text in double quotes",
    "number": "a number",
    "boolean": "true or false",
    "time": 'seconds since 1970 or a time such as "2026-01-31T12:00:00Z"',
}


class FilterError(DataError):
    """A filter that cannot be read; `position` counts its characters from 1."""

    def __init__(self, sentence: str, position: int) -> None:
        super().__init__(sentence)
        self.position = position


class Column(NamedTuple):
    """A property of all items.

    `values` are numbers (NaN: missing) or, of texts, hashes (MISSING: missing), one for each item. Of several texts an
    item has any number of values, and `rows` says which item has each.
    """

    values: np.ndarray[Any, Any]
    rows: Rows | None = None


Columns = Mapping[str, Column]
_Test = Callable[[Columns, int], Mask]


@dataclass(frozen=True, eq=False)
class Filter:
    """A parsed filter.

    >>> cheap = Filter.parse('price < 50 and not category = "toys"', {"price": "number", "category": "text"})
    >>> category = np.array([hash("shoes"), hash("toys"), MISSING])
    >>> columns = {"price": Column(np.array([20.0, 20.0, np.nan])), "category": Column(category)}
    >>> cheap.mask(columns, 3).tolist()
    [True, False, False]
    >>> Filter.parse("price <", {"price": "number"})
    Traceback (most recent call last):
    fairstream.data.filters.FilterError: the filter, character 8: expected a number, found the end
    """

    text: str
    names: frozenset[str]
    _test: _Test

    @classmethod
    def parse(cls, text: str, kinds: Mapping[str, Kind]) -> Filter:
        """Parse a filter over properties of these kinds; raise a `FilterError` that says where it is wrong."""
        if len(text) > MAX_CHARACTERS:
            raise FilterError(
                f"the filter must have at most {MAX_CHARACTERS} characters, got {len(text)}", MAX_CHARACTERS
            )
        parser = _Parser(text, kinds)
        test = parser.either()
        if parser.kind != "end":
            raise parser.error("expected and, or, or the end")
        return cls(text, frozenset(parser.names), test)

    def mask(self, columns: Columns, n_items: int) -> Mask:
        """(n_items,) whether each item passes."""
        return self._test(columns, n_items)


class _Parser:
    """Recursive descent; the current token is `value`, of this `kind`, which begins at `position`."""

    def __init__(self, text: str, kinds: Mapping[str, Kind]) -> None:
        self._text, self._kinds, self._end, self._depth = text, kinds, 0, 0
        self.names: set[str] = set()
        self._next()

    def _next(self) -> str:
        """Move on to the next token and return the one before."""
        before = getattr(self, "value", "")
        match = _TOKEN.match(self._text, self._end)
        if match is None:
            self.position = len(self._text) - len(self._text[self._end :].lstrip())
            self.kind, self.value = "", self._text[self.position]
            if self.value == '"':
                raise self.error("this text has no closing quote", self.position)
            raise self.error("this is not a name, number, text in double quotes or operator")
        assert match.lastgroup is not None
        self.kind, self.value = match.lastgroup, match[match.lastgroup]
        self.position, self._end = match.start(match.lastgroup), match.end()
        return before

    def error(self, sentence: str, position: int | None = None) -> FilterError:
        at = self.position if position is None else position
        found = "" if position is not None else f", found {'the end' if self.kind == 'end' else repr(self.value[:40])}"
        return FilterError(f"the filter, character {at + 1}: {sentence}{found}", at + 1)

    def _takes(self, word: str) -> bool:
        """Skip a keyword or sign if it comes next."""
        if self.kind not in ("name", "sign") or self.value != word:
            return False
        self._next()
        return True

    def _need(self, sign: str) -> None:
        if not self._takes(sign):
            raise self.error(f"expected {sign}")

    def either(self) -> _Test:
        return self._joined("or", np.logical_or, lambda: self._joined("and", np.logical_and, self._one))

    def _joined(self, word: str, join: np.ufunc, read: Callable[[], _Test]) -> _Test:
        tests = [read()]
        while self._takes(word):
            tests.append(read())
        if len(tests) == 1:
            return tests[0]
        return lambda columns, n: reduce(join, (test(columns, n) for test in tests))

    def _one(self) -> _Test:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} levels of not and parentheses", self.position)
        if self._takes("not"):
            inner = self._one()
            test: _Test = lambda columns, n: ~inner(columns, n)  # noqa: E731
        elif self._takes("("):
            test = self.either()
            self._need(")")
        else:
            test = self._comparison()
        self._depth -= 1
        return test

    def _comparison(self) -> _Test:
        at, name = self.position, self.value
        if self.kind != "name" or name in KEYWORDS:
            raise self.error("expected the name of a property, not, or (")
        if (kind := self._kinds.get(name)) is None:
            declared = ", ".join(self._kinds) or "none is declared"
            raise self.error(f"{name[:40]!r} is not a property; the properties are {declared}", at)
        self._next()
        self.names.add(name)
        allowed = {"text": ("=", "!=", "in"), "boolean": ("=", "!="), "texts": ("has",)}
        signs = allowed.get(kind, (*_ORDER, "!=", "in"))
        if self.value not in signs or self.kind not in ("name", "sign"):
            raise self.error(f"expected {', '.join(signs)} after {name}, whose type is {kind}")
        sign = self._next()
        if sign != "in":
            return _compare(name, kind, sign, [self._literal(kind)])
        self._need("[")
        values = [self._literal(kind)]
        while self._takes(","):
            values.append(self._literal(kind))
        self._need("]")
        return _compare(name, kind, sign, values)

    def _literal(self, kind: Kind) -> float:
        """A number, the seconds of a time, 0 or 1 of a boolean, or the hash of a text."""
        kind_of, value, at = self.kind, self.value, self.position
        if kind in ("number", "time") and kind_of == "number":
            self._next()
            return float(value)
        if kind == "boolean" and value in ("true", "false") and kind_of == "name":
            self._next()
            return float(value == "true")
        if kind in ("text", "texts", "time") and kind_of == "text":
            try:
                text = json.loads(value)
            except ValueError:
                raise self.error("this text has an escape or character that JSON does not have", at) from None
            seconds = seconds_since_1970(text) if kind == "time" else hash(text)
            if seconds is None:
                raise self.error(f"expected {_EXPECTED['time']}")
            self._next()
            return seconds
        raise self.error(f"expected {_EXPECTED[kind]}")


def seconds_since_1970(text: str) -> float | None:
    """Read a time in ISO 8601, in UTC if it names no zone; None if the text is something else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _compare(name: str, kind: Kind, sign: str, values: list[float]) -> _Test:
    def compare(columns: Columns, n: int) -> Mask:
        column, wanted = columns[name], values[0]
        if column.rows is not None:
            result = np.zeros(n, np.bool_)
            result[column.rows[column.values == wanted]] = True
            return result
        if sign == "in":
            # Of any number of values; np.isin sorts the column for more than 70, which takes 0.2 s for a million items.
            sorted_values = np.unique(np.array(values, column.values.dtype))
            places = np.searchsorted(sorted_values[1:], column.values, side="right")
            return sorted_values[places] == column.values
        if sign == "!=":
            is_there = column.values != MISSING if kind == "text" else ~np.isnan(column.values)
            return is_there & (column.values != wanted)
        return _ORDER[sign](column.values, wanted)

    return compare
