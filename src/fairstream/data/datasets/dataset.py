"""What every data set comes as: events and users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """The events and, where they are told of, the users: each a table, or a file that has not been read yet."""

    events: Any
    users: Any = None
