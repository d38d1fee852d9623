"""Where the data sets live, and what their homes say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """One data set as its home gives it away."""

    name: str
    url: str
    md5: str | None
    """The checksum that the home publishes, where it does."""
    terms: str
    """What may be done with the data, in a sentence."""
    group: str
    """The users' column that the paper, or for want of one we, take the groups from."""
    advantaged: str
    members: Mapping[str, str] = field(default_factory=dict)
    """Of a zip archive, the members to read and what they are called in the raw folder; none: the file is the data."""

    @property
    def file_name(self) -> str:
        """What the file is called at its home."""
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
            {"ml-1m/ratings.dat": "ratings.dat", "ml-1m/users.dat": "users.dat"},
        ),
        Source(
            "movielens-100k",
            f"{_MOVIELENS}/ml-100k.zip",
            "0e33842e24a9c977be4e0107933c0723",
            _MOVIELENS_TERMS,
            "gender",
            "M",
            {"ml-100k/u.data": "u.data", "ml-100k/u.user": "u.user"},
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
    """The data set of this name, or a sentence with the names that there are.

    >>> find_source("modcloth").file_name
    'df_modcloth.csv'
    """
    if name not in SOURCES:
        raise DataError(f"the data sets that can be fetched are {', '.join(SOURCES)}, got {name!r}")
    return SOURCES[name]
