"""Which row of what was sent a complaint is about."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fairstream.errors import DataError


class Rows(NamedTuple):
    """How rows are named: "event 1" is the first."""

    noun: str = "event"
    first: int = 1

    def error(self, row: int, said: str) -> DataError:
        return DataError(f"{self.noun} {self.first + row}: {said}")

    def refuse_any(self, bad: np.ndarray[Any, np.dtype[np.bool_]], said: str) -> None:
        """Raise for the first row that is bad, if one is."""
        if bad.any():
            raise self.error(int(bad.argmax()), said)


def kind_of(value: object) -> str:
    """What a JSON value is, in words; never the value itself, which may say who somebody is."""
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
