"""Who belongs to which group, and which group is the advantaged one.

This is the only place that knows the polarity. Everywhere else a group is a code:
0 = advantaged (the paper's a = 0), 1 = disadvantaged (a = 1), −1 = not known, and a disparity
is the value of code 0 minus the value of code 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.errors import DataError

ADVANTAGED, DISADVANTAGED, UNKNOWN = 0, 1, -1

Codes = np.ndarray[Any, np.dtype[np.int8]]


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each user row, by one attribute with two values.

    >>> groups = Groups.from_values("gender", ["M", "F", "M", None], advantaged="M")
    >>> groups.names, groups.codes.tolist()
    (('M', 'F'), [0, 1, 0, -1])
    >>> groups.swapped().codes.tolist()
    [1, 0, 1, -1]
    """

    attribute: str
    names: tuple[str, str]
    """(advantaged, disadvantaged)"""
    codes: Codes
    """One code per user row."""

    @classmethod
    def from_values(cls, attribute: str, values: Any, *, advantaged: object = None) -> Groups:
        """Read the groups off the attribute's value of each user row (null: not known)."""
        names = name_groups(attribute, values, advantaged=advantaged)
        return cls(attribute, names, encode_groups(attribute, values, names))

    def both_occur(self) -> bool:
        """Whether there is anyone in either group."""
        return bool((self.codes == ADVANTAGED).any() and (self.codes == DISADVANTAGED).any())

    def recoded(self, other: Groups) -> Codes:
        """The codes of `other`, which may name its groups in the other order, in this polarity."""
        if other.attribute != self.attribute or set(other.names) != set(self.names):
            raise DataError(
                f"groups must stay the same: expected {self.attribute!r} with {self.names}, "
                f"got {other.attribute!r} with {other.names}"
            )
        return other.codes if other.names == self.names else other.swapped().codes

    def with_codes(self, codes: Codes) -> Groups:
        """The same attribute and polarity for another table of users."""
        return replace(self, codes=codes)

    def swapped(self) -> Groups:
        """The same users with the polarity turned around; every disparity changes its sign."""
        swapped = np.where(self.codes == UNKNOWN, UNKNOWN, 1 - self.codes).astype(np.int8)
        return Groups(self.attribute, (self.names[1], self.names[0]), swapped)


def name_groups(attribute: str, values: Any, *, advantaged: object = None) -> tuple[str, str]:
    """(advantaged, disadvantaged) among the two values that occur.

    Without `advantaged` the more frequent value is taken, as the paper does for both of its data
    sets.
    """
    counted = pc.value_counts(_labels(values))
    found = {entry["values"].as_py(): entry["counts"].as_py() for entry in counted}
    found.pop(None, None)
    shown = ", ".join(repr(name) for name in sorted(found)[:8]) or "none"
    declared = None if advantaged is None else _labels([advantaged])[0].as_py()
    if declared is not None and declared not in found:
        raise DataError(f"no user has {attribute} = {declared!r}; the values that occur are {shown}")
    if len(found) != 2:
        raise DataError(
            f"two groups are compared, but {attribute!r} takes {len(found)} value(s) ({shown}); "
            f"choose a column with two values"
        )
    first = max(sorted(found), key=found.__getitem__) if declared is None else declared
    (second,) = set(found) - {first}
    return first, second


def encode_groups(attribute: str, values: Any, names: tuple[str, str]) -> Codes:
    """The code of each value; null is UNKNOWN, a third value is an error."""
    labels = _labels(values)
    codes = pc.index_in(labels, value_set=pa.array(names))
    strangers = labels.filter(pc.and_(pc.is_null(codes), pc.is_valid(labels)))
    if len(strangers):
        raise DataError(f"{attribute!r} must be {names[0]!r} or {names[1]!r}, got {strangers[0].as_py()!r}")
    encoded: Codes = pc.fill_null(codes, UNKNOWN).to_numpy(zero_copy_only=False).astype(np.int8)
    return encoded


def _labels(values: Any) -> pa.Array:
    """The values as strings, null where nothing is known."""
    try:
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        if pa.types.is_floating(array.type):
            array = pc.if_else(pc.is_nan(array), None, array)
        return pc.cast(array, pa.string())
    except (pa.ArrowException, TypeError):
        raise DataError(
            "the values of a group must be strings, numbers or booleans; convert the column first"
        ) from None
