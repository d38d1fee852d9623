"""Time-to-Split's comparison (RecSys 2025, github.com/monkey0head/time-to-split): "successive", means of users' means.

All ratings of MovieLens-1M; users and items with fewer than five events and consecutive repeats are left out. Models
learn the events up to T, the 0.9 quantile of the times. For every later event they rank all items but those the user
has had, from the user's events before it, later ones included; nothing is updated. A user without events up to T is
tested from the second event on. NDCG@20 is the mean over users of the mean over a user's events.

The published models hold back part of the events up to T to choose the number of epochs; ours learn from all of them.
Where the folder holds neither `ratings.dat` nor `ml-1m.zip`, the same cut is made on `movielens-1m`, ratings of 3 and
more in their order: another data set, whose numbers cannot be compared with the published ones.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fairstream as fs
from fairstream.data import Rows
from fairstream.evaluation import UserResults
from fairstream.models import Model

K, QUANTILE, MIN_EVENTS = 20, 0.9, 5
PUBLISHED = {"SASRec+": (0.1337, 0.1323), "GRU4Rec": (0.1274, None), "BERT4Rec": (0.1255, None)}
"""NDCG@20 of the best of about a hundred settings, chosen on the test itself, and chosen on validation by time."""
PUBLISHED_COUNTS = {
    "events": "999,611",
    "users": "6,040",
    "items": "3,416",
    "users with two events or more up to T": "6,011",
    "users with events after T": "1,209",
    "events after T of such a user": "82.68",
}
MODELS = ("recent-popularity", "item-item", "sasrec", "blend")


class Ratings(NamedTuple):
    """Events, and the gender of each user."""

    users: Rows
    items: Rows
    times: Rows
    people: pa.Table
    are_all: bool
    """Whether these are the ratings as published."""


class Split(NamedTuple):
    """Places of events, in chronological order."""

    learned: Rows
    later: Rows


def read(folder: Path) -> Ratings:
    """The ratings as GroupLens publishes them if the folder has them, else those of the prepared folder."""
    for path in (*folder.rglob("ratings.dat"), *folder.rglob("ml-1m.zip")):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                ratings, people = (archive.read(f"ml-1m/{name}.dat") for name in ("ratings", "users"))
        else:
            ratings, people = path.read_bytes(), path.with_name("users.dat").read_bytes()
        users, items, _, times = np.array(ratings.replace(b"::", b" ").split(), np.int64).reshape(-1, 4).T
        ids, genders = zip(*(line.split("::")[:2] for line in people.decode("latin-1").splitlines()), strict=True)
        return Ratings(users, items, times, pa.table({"user_id": map(int, ids), "gender": genders}), are_all=True)
    events = pq.read_table(folder / "movielens-1m" / "interactions.parquet")
    users, items, times = (events[name].to_numpy().astype(np.int64) for name in ("user_id", "item_id", "order"))
    return Ratings(users, items, times, pq.read_table(folder / "movielens-1m" / "users.parquet"), are_all=False)


def core(users: Rows, items: Rows, times: Rows, min_events: int = MIN_EVENTS) -> Rows:
    """The places of the events that count, user by user; equal times keep their order."""
    kept = _without_repeats(np.lexsort((times, users)), users, items)
    n_before = -1
    while len(kept) != n_before:
        n_before = len(kept)
        for column in (users, items):
            values = column[kept]
            kept = kept[np.bincount(values)[values] >= min_events]
        kept = _without_repeats(kept, users, items)
    return kept


def _without_repeats(kept: Rows, users: Rows, items: Rows) -> Rows:
    repeats = (np.diff(users[kept]) == 0) & (np.diff(items[kept]) == 0)
    return kept[np.append(True, ~repeats)] if len(kept) else kept


def split(kept: Rows, times: Rows) -> Split:
    """The events up to T, and those after it."""
    order = kept[np.argsort(times[kept], kind="stable")]
    is_learned = times[order] <= np.quantile(times[order], QUANTILE)
    return Split(order[is_learned], order[~is_learned])


def counts(ratings: Ratings, parts: Split) -> dict[str, str]:
    """The numbers that are published, for these ratings."""
    kept = np.concatenate(parts)
    n_learned = np.unique(ratings.users[parts.learned], return_counts=True)[1]
    n_later = np.unique(ratings.users[parts.later], return_counts=True)[1]
    numbers = (len(kept), *(len(np.unique(column[kept])) for column in (ratings.users, ratings.items)))
    return dict(
        zip(
            PUBLISHED_COUNTS,
            (*(f"{n:,}" for n in (*numbers, (n_learned > 1).sum(), len(n_later))), f"{n_later.mean():.2f}"),
            strict=True,
        )
    )


def quality(model: str | Model, ratings: Ratings, parts: Split) -> tuple[float, dict[str, float]]:
    """NDCG@20 of a model that learns the first part: the mean over the users tested, and by gender."""
    learned, later = (
        pa.table(
            {"user_id": ratings.users[part], "item_id": ratings.items[part], "order": np.arange(len(part)) + first}
        )
        for part, first in ((parts.learned, 0), (parts.later, len(parts.learned)))
    )
    log = fs.read_events(learned, users=ratings.people, group="gender", advantaged="M", repeats="all")
    rec = fs.FairRecommender(model, target=None).fit(log)
    evaluation = rec.evaluate(
        later,
        users=ratings.people,
        task="event",
        k=K,
        metrics=("ndcg",),
        n_resamples=0,
        at_levels=False,
        keep_lists=True,
    )
    test = evaluation.lists
    assert test is not None
    assert test.n_earlier is not None
    rest = test.n_earlier > 0  # the fallback serves first events
    lists, truth = test.lists.where(rest), test.truth.where(rest)
    tested = UserResults.of(lists, truth, test.codes[rest], test.is_cold[rest], (), 2, 1)
    values = tested.values_of(test.metrics[0])
    return float(values.mean()), {name: float(values[tested.codes == code].mean()) for code, name in enumerate("MF")}


def rows(folder: Path, models: Mapping[str, str | Model] | None = None) -> Iterator[str]:
    """The lines of the table."""
    ratings = read(folder)
    parts = split(core(ratings.users, ratings.items, ratings.times), ratings.times)
    found = counts(ratings, parts)
    yield "Time-to-Split, successive, NDCG@20\n\n| | here | published |\n| --- | --- | --- |"
    for name, published in PUBLISHED_COUNTS.items():
        yield f"| {name} | {found[name]} | {published} |"
    if not ratings.are_all:
        yield "\nNOT the published data set: ratings of 3 and more only. The published rows are no comparison."
    elif found != PUBLISHED_COUNTS:
        yield "\nThe counts differ from the published ones: this is not the published split."
    yield "\n| | everyone | men | women |\n| --- | --- | --- | --- |"
    for name, (best, validated) in PUBLISHED.items():
        chosen = "" if validated is None else f" (chosen on validation {validated:.4f})"
        yield f"| published: {name}, best on the test | {best:.4f}{chosen} | | |"
    for name, model in (models or dict(zip(MODELS, MODELS, strict=True))).items():
        everyone, by_gender = quality(model, ratings, parts)
        yield f"| {name} | {everyone:.4f} | {by_gender['M']:.4f} | {by_gender['F']:.4f} |"
