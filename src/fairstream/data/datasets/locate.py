"""Where prepared data sets are kept, and where one of them is."""

from __future__ import annotations

import os
from pathlib import Path

from fairstream.data.datasets.sources import find_source
from fairstream.data.tables import find_file
from fairstream.errors import DataError


def data_home() -> Path:
    """The user's folder for data sets: `fairstream` in $XDG_DATA_HOME, by default ~/.local/share."""
    asked = Path(os.environ.get("XDG_DATA_HOME", ""))
    base = asked if asked.is_absolute() else Path.home() / ".local" / "share"  # a relative one is to be ignored
    return base / "fairstream"


def locate(name: str, folder: Path | None = None) -> Path:
    """The prepared data set of this name: in `folder`, else in $FAIRSTREAM_DATA or the user's folder for data sets.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "modcloth").mkdir()
    ...     (Path(folder) / "modcloth" / "interactions.csv").touch()
    ...     locate("modcloth", Path(folder)) == Path(folder) / "modcloth"
    True
    """
    find_source(name)
    named = os.environ.get("FAIRSTREAM_DATA")
    places = [folder] if folder is not None else [*([Path(named)] if named else []), data_home()]
    for place in places:
        if find_file(place / name, "interactions") is not None:
            return place / name
    looked = ", ".join(map(str, dict.fromkeys(places)))
    raise DataError(f"{name} is not in {looked}; fetch it with `fairstream data get {name}`, or say where it is")
