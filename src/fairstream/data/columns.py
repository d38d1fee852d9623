"""Which column is the user, the item, the time: named by the caller, or recognised."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from fairstream.errors import DataError

_USUAL_NAMES = {
    "user": ("user_id", "user", "userid", "uid", "customer_id", "member_id", "visitor_id"),
    "item": ("item_id", "item", "itemid", "iid", "movie_id", "movieid", "product_id", "article_id"),
    "time": ("timestamp", "time", "datetime", "date", "event_time", "created_at", "ts", "order"),
    "rating": ("rating", "stars"),
}


@dataclass(frozen=True)
class Columns:
    """How to read events: the names of the columns (None: recognise a usual one), and which ratings count."""

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    rating_above: float = 2.0

    def find(self, role: str, table: pa.Table, *, what: str) -> str:
        """The column of `table` that plays `role`, or one sentence that says how to name it."""
        found = self.find_optional(role, table, what=what)
        if found is None:
            usual = ", ".join(_USUAL_NAMES[role][:4])
            raise DataError(
                f"{what} needs {'an' if role == 'item' else 'a'} {role} column ({usual} …), "
                f"but has only {', '.join(table.column_names) or 'no columns'}; name it with {role}_column "
                f"(on the command line: --{role}-column)"
            )
        return found

    def find_optional(self, role: str, table: pa.Table, *, what: str) -> str | None:
        """As `find`, but None where no usual name is there."""
        asked: str | None = getattr(self, role)
        if asked is not None:
            if asked not in table.column_names:
                raise DataError(f"{what} has no column {asked!r}; its columns are {', '.join(table.column_names)}")
            return asked
        by_lower_case = {name.lower(): name for name in reversed(table.column_names)}
        return next((by_lower_case[usual] for usual in _USUAL_NAMES[role] if usual in by_lower_case), None)
