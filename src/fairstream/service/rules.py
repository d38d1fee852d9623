"""Rules that shape every list after ranking: boosts, at most n items per property value, and pins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from sqlalchemy import Connection, Engine, delete, insert, select

from fairstream.data.filters import Filter, FilterError, Kind
from fairstream.errors import DataError
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.database import bump, canonical, now, reading, writing

MAX_RULES = 100


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Pin(_Part):
    """Put items at a position of every list, in this order."""

    items: tuple[str, ...] = Field(min_length=1, max_length=100, examples=[["boot-42"]])
    """Items, in order."""
    position: int = Field(1, ge=1, le=1000)
    """Position of the first item; 1 is the top."""


class Boost(_Part):
    """Divide the rank of the items that pass a filter by a factor."""

    filter: str = Field(min_length=1, examples=['brand = "Acme"'])
    """A condition on the properties of items."""
    factor: float = Field(ge=0.01, le=100)
    """Above 1 moves items up, below 1 down: with 2 the item of rank 10 takes rank 5."""


class AtMost(_Part):
    """Show at most n items with the same value of a property."""

    n: int = Field(ge=1)
    """The most items with one value."""
    per: str = Field(examples=["category"])
    """A property of one value; items without it are not limited."""


class Rule(_Part):
    """One of `pin`, `boost` and `at_most`."""

    pin: Pin | None = Field(None, examples=[{"items": ["boot-42"], "position": 1}])
    """Items at fixed positions."""
    boost: Boost | None = Field(None, examples=[{"filter": "stock > 100", "factor": 2}])
    """Divide the rank of the items that pass a filter."""
    at_most: AtMost | None = Field(None, examples=[{"n": 3, "per": "category"}])
    """At most n items with the same value of a property."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(part is not None for part in (self.pin, self.boost, self.at_most)) != 1:
            raise ValueError("a rule has exactly one of pin, boost and at_most")
        return self


_RULES = TypeAdapter(list[Rule])


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules in force. No rule brings back an item that is withdrawn, filtered or excluded."""

    pins: Sequence[Pin] = ()
    boosts: Sequence[Boost] = ()
    limits: Sequence[AtMost] = ()

    @classmethod
    def of(cls, rules: Sequence[Rule], kinds: Mapping[str, Kind]) -> Self:
        """Check the filters and properties of rules; raise a `DataError` that names the wrong one."""
        for number, rule in enumerate(rules, start=1):
            try:
                if rule.boost is not None:
                    Filter.parse(rule.boost.filter, kinds)
            except FilterError as error:
                raise DataError(f"rule {number}: {error}") from None
            if rule.at_most is not None and kinds.get(rule.at_most.per, "texts") == "texts":
                single = ", ".join(name for name, kind in kinds.items() if kind != "texts")
                raise DataError(f"rule {number}: per must name a property of one value: {single or 'none is declared'}")
        return cls(
            [rule.pin for rule in rules if rule.pin],
            [rule.boost for rule in rules if rule.boost],
            [rule.at_most for rule in rules if rule.at_most],
        )

    @property
    def is_empty(self) -> bool:
        return not (self.pins or self.boosts or self.limits)

    @property
    def largest_boost(self) -> float:
        """The largest factor by which an item can rise."""
        return math.prod(max(1.0, boost.factor) for boost in self.boosts)

    def depth(self, k: int) -> int:
        """Return the least length of a ranking for a list of k items."""
        return math.ceil(k * self.largest_boost)


NO_RULES = Rules()


def rules_from_json(objects: Any, kinds: Mapping[str, Kind]) -> list[Rule]:
    """Check a JSON list of rules; raise a `DataError` of one sentence."""
    if not isinstance(objects, list) or len(objects) > MAX_RULES:
        raise DataError(f"expected a JSON list of at most {MAX_RULES} rules")
    try:
        rules = _RULES.validate_python(objects)
    except ValidationError as error:
        first = error.errors()[0]
        number, *parts = first["loc"]
        where = ".".join(map(str, parts))
        raise DataError(f"rule {int(number) + 1}: {where + ': ' if where else ''}{first['msg']}") from None
    Rules.of(rules, kinds)
    return rules


def store(engine: Engine, rules: Sequence[Rule], *, by: str) -> None:
    """Replace all rules; the audit record keeps them."""
    with writing(engine) as connection:
        replace_rules(connection, rules, by=by)


def replace_rules(connection: Connection, rules: Sequence[Rule], *, by: str) -> None:
    """The same in the caller's transaction."""
    content = [rule.model_dump(mode="json", exclude_none=True) for rule in rules]
    bump(connection, "rules")
    connection.execute(delete(schema.rules))
    connection.execute(insert(schema.rules).values(id=1, rules=canonical(content), changed=now()))
    record(connection, "rules", {"rules": content, "by": by})


def stored(engine: Engine) -> list[Rule]:
    """Return the rules in force."""
    with reading(engine) as connection:
        content = connection.scalar(select(schema.rules.c.rules))
    return [] if content is None else _RULES.validate_json(content)
