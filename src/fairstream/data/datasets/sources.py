"""The paper's data sets: where they are published, and where they are kept on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fairstream.data.inputs import find_file
from fairstream.errors import DataError

_MOVIELENS = "https://files.grouplens.org/datasets/movielens"
_MOVIELENS_TERMS = (
    "MovieLens is GroupLens' data for research: publications must acknowledge it, and without their permission "
    "it may not be passed on or used commercially"
)
_MODCLOTH_TERMS = (
    "ModCloth comes from the marketBias repository (Wan et al., WSDM 2020), whose page names no licence: "
    "cite the paper, and ask its authors before passing the data on"
)


@dataclass(frozen=True)
class Source:
    """One data set as it is published."""

    name: str
    url: str
    md5: str | None
    """The published checksum, if there is one."""
    terms: str
    """The terms of use, in a sentence."""
    group: str
    """The users' column that makes the groups."""
    advantaged: str
    members: tuple[str, ...] = ()
    """The files to extract from a zip archive; empty: the file is the data."""

    @property
    def file_name(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


SOURCES = {
    source.name: source
    for source in (
        Source(
            "movielens-1m",
            f"{_MOVIELENS}/ml-1m.zip",
            "c4d9eecfca2ab87c1945afe126590906",
            _MOVIELENS_TERMS,
            "gender",
            "M",
            ("ml-1m/ratings.dat", "ml-1m/users.dat"),
        ),
        Source(
            "movielens-100k",
            f"{_MOVIELENS}/ml-100k.zip",
            "0e33842e24a9c977be4e0107933c0723",
            _MOVIELENS_TERMS,
            "gender",
            "M",
            ("ml-100k/u.data", "ml-100k/u.user"),
        ),
        Source(
            "modcloth",
            "https://raw.githubusercontent.com/MengtingWan/marketBias/master/data/df_modcloth.csv",
            None,
            _MODCLOTH_TERMS,
            "body_shape",
            "Small",
        ),
    )
}


def find_source(name: str) -> Source:
    """Return the data set of this name; raise DataError where there is none.

    >>> find_source("modcloth").file_name
    'df_modcloth.csv'
    """
    if name not in SOURCES:
        raise DataError(f"the data sets that can be fetched are {', '.join(SOURCES)}, got {name!r}")
    return SOURCES[name]


def data_home() -> Path:
    """Return the folder for data sets: $FAIRSTREAM_DATA, else `fairstream` in $XDG_DATA_HOME or ~/.local/share."""
    if named := os.environ.get("FAIRSTREAM_DATA"):
        return Path(named)
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    base = (
        given if given.is_absolute() else Path.home() / ".local" / "share"
    )  # the specification ignores a relative one
    return base / "fairstream"


def locate(name: str, folder: Path | None = None) -> Path:
    """Return the folder of a prepared data set: in `folder`, by default in `data_home()`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "modcloth").mkdir()
    ...     (Path(folder) / "modcloth" / "interactions.csv").touch()
    ...     locate("modcloth", Path(folder)) == Path(folder) / "modcloth"
    True
    """
    find_source(name)
    place = data_home() if folder is None else folder
    if find_file(place / name, "interactions") is None:
        raise DataError(
            f"{name} is not in {place}; fetch it with `fairstream data get {name}`, or let FAIRSTREAM_DATA name the "
            f"folder that holds the folder {name}"
        )
    return place / name
