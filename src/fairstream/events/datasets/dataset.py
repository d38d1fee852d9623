"""What every data set comes as: two tables."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table of events and, where there is one, a table of users."""

    events: pa.Table
    users: pa.Table | None
