"""The data sets that can be fetched: their addresses, their counts in the paper, and their folders."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fairstream.data.log import EventLog
from fairstream.data.reading import find_file
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
    md5: str | None  # the published checksum, if there is one
    terms: str  # the terms of use, in a sentence
    group: str  # the users' column that makes the groups
    advantaged: str
    members: tuple[str, ...] = ()  # the files to extract from a zip archive; empty: the file is the data
    counts: tuple[int, ...] = ()
    """Events, users and items in the paper, by which the data set is recognised; empty: the paper does not use it."""
    pretrain_ratio: float = 0.6  # the paper's share of pre-training data

    @property
    def file_name(self) -> str:
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
            (836_478, 6_039, 3_628),
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
            (),
            (83_147, 37_142, 1_014),
            0.7,
        ),
    )
}

PUBLISHED = [source for source in SOURCES.values() if source.counts]  # the data sets of the paper


def find_source(name: str) -> Source:
    """Return the data set of this name; raise DataError if there is none."""
    if name not in SOURCES:
        raise DataError(f"the data sets that can be fetched are {', '.join(SOURCES)}, got {name!r}")
    return SOURCES[name]


def recognise(log: EventLog) -> Source | None:
    """Return the paper's data set with the counts of this log, if any."""
    counts = (len(log), log.n_users, log.n_items)
    return next((source for source in PUBLISHED if source.counts == counts), None)


def nearest(*counts: int) -> Source | None:
    """Return the paper's data set whose counts differ from these by at most a fifth each.

    >>> nearest(800_000, 6_000, 3_600).name
    'movielens-1m'
    """
    for source in PUBLISHED:
        if all(abs(n - paper) <= paper / 5 for n, paper in zip(counts, source.counts, strict=True)):
            return source
    return None


def difference_from_paper(name: str, *counts: int) -> str | None:
    """Return a sentence with both counts if those of the paper differ."""
    source = next((source for source in PUBLISHED if source.name == name), None)
    if source is None or source.counts == counts:
        return None
    paper, here = ("{:,} events, {:,} users and {:,} items".format(*part) for part in (source.counts, counts))
    return f"the paper's {name} has {paper}, but this has {here}: it is not the data of the paper"


def data_home() -> Path:
    """Return the folder for data sets: $FAIRSTREAM_DATA, else `fairstream` in $XDG_DATA_HOME or ~/.local/share."""
    if named := os.environ.get("FAIRSTREAM_DATA"):
        return Path(named)
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The XDG specification ignores a relative path.
    return (given if given.is_absolute() else Path.home() / ".local" / "share") / "fairstream"


def locate(name: str, folder: Path | None = None) -> Path:
    """Return the folder of a prepared data set: in `folder`, by default in `data_home()`."""
    find_source(name)
    place = data_home() if folder is None else folder
    if find_file(place / name, "interactions") is None:
        raise DataError(
            f"{name} is not in {place}; fetch it with `fairstream data get {name}`, or let FAIRSTREAM_DATA name the "
            f"folder that holds the folder {name}"
        )
    return place / name
