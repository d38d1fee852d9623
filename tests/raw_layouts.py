"""Small data sets in the layouts in which their homes give them away."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path

Row = tuple[object, ...]

RATINGS: list[Row] = [  # user, item, rating, timestamp: by user, as GroupLens has them
    (1, 1193, 5, 978300760),
    (1, 661, 3, 978302109),
    (1, 914, 2, 978301968),
    (2, 1193, 4, 978298413),
    (2, 3068, 1, 978299000),
    (3, 661, 4, 978299001),
]
PEOPLE = [(1, "F", 1, 10, "48067"), (2, "M", 56, 16, "98107-2117"), (3, "M", 25, 15, "55117"), (4, "M", 45, 7, "02460")]


def lines(rows: Iterable[Row], delimiter: str) -> str:
    return "".join(delimiter.join(map(str, row)) + "\n" for row in rows)


def write_1m(folder: Path, ratings: Iterable[Row] = RATINGS, people: Iterable[Row] = PEOPLE) -> Path:
    (folder / "ratings.dat").write_text(lines(ratings, "::"))
    (folder / "users.dat").write_text(lines(people, "::"))
    (folder / "movies.dat").write_bytes("73::Misérables, Les (1995)::Drama|Musical\n".encode("latin-1"))
    (folder / "README").touch()
    return folder


def write_100k(folder: Path, ratings: Iterable[Row] = RATINGS, people: Iterable[Row] = PEOPLE) -> Path:
    (folder / "u.data").write_text(lines(ratings, "\t"))
    (folder / "u.user").write_text(lines([(u, age, sex, "writer", zip_) for u, sex, age, _, zip_ in people], "|"))
    (folder / "u.item").write_bytes("73|Misérables, Les (1995)|01-Jan-1995\n".encode("latin-1"))
    return folder


HEADER = "item_id,user_id,rating,timestamp,size,fit,user_attr,model_attr,category,brand,year,split"
REVIEWS: list[Row] = [  # item, user, rating, timestamp, user_attr
    (7443, "Alex", 4, "2010-01-21 08:00:00+00:00", "Small"),
    (7443, "carolyn.agan", 3, "2010-01-27 08:00:00+00:00", ""),
    (7443, "Robyn", 4, "2010-01-29 08:00:00+00:00", "Large"),
    (7443, '"De, Anna"', 2, "2010-02-13 08:00:00+00:00", "Small"),
    (11960, "Alex", 5, "2012-11-01 08:00:00+00:00", "Small"),
    (11960, "", 5, "2012-11-02 08:00:00+00:00", "Small"),
    (16411, '"De, Anna"', 5, "2019-06-27 00:20:52.125000+00:00", "Small"),
]


def write_modcloth(folder: Path, reviews: Iterable[Row] = REVIEWS) -> Path:
    rows = [
        (i, u, rating, time, 2.0, "", shape, "Small", "Dresses", "", 2012, 0) for i, u, rating, time, shape in reviews
    ]
    (folder / "df_modcloth.csv").write_text(HEADER + "\n" + lines(rows, ","))
    return folder / "df_modcloth.csv"


def zipped(members: Mapping[str, bytes]) -> bytes:
    """A zip archive in memory."""
    content = BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, inside in members.items():
            archive.writestr(name, inside)
    return content.getvalue()


def members_1m(ratings: Iterable[Row] = RATINGS, people: Iterable[Row] = PEOPLE) -> dict[str, bytes]:
    """What is in ml-1m.zip."""
    return _members("ml-1m", lambda folder: write_1m(folder, ratings, people))


def original(name: str) -> bytes:
    """The file that the home of the data set would send."""
    if name == "movielens-1m":
        return zipped(members_1m())
    if name == "movielens-100k":
        return zipped(_members("ml-100k", write_100k))
    return _members("", write_modcloth)["/df_modcloth.csv"]


def _members(prefix: str, write: Callable[[Path], Path]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return {f"{prefix}/{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}
