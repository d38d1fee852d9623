"""The paper's two data sets, read from their prepared folders and recognised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fairstream import EventLog, read_events
from fairstream.data.datasets.sources import PUBLISHED, recognise


@dataclass(frozen=True)
class Told:
    """What the README beside the data says."""

    name: str
    n_events: int
    n_users: int
    n_items: int
    attribute: str
    names: tuple[str, str]
    users_by_group: tuple[int, int]
    events_by_group: tuple[int, int]
    pretrain_ratio: float


TOLD = [
    Told("movielens-1m", 836_478, 6_039, 3_628, "gender", ("M", "F"), (4_330, 1_709), (627_933, 208_545), 0.6),
    Told("modcloth", 83_147, 37_142, 1_014, "body_shape", ("Small", "Large"), (28_374, 8_768), (66_663, 16_484), 0.7),
]


@pytest.fixture(scope="module", params=TOLD, ids=lambda told: told.name)
def told(request: pytest.FixtureRequest) -> Told:
    return request.param


@pytest.fixture(scope="module")
def published_log(told: Told, paper_data: Path) -> EventLog:
    return read_events(paper_data / told.name)


def test_the_counts_are_those_of_the_paper(published_log: EventLog, told: Told) -> None:
    assert (len(published_log), published_log.n_users, published_log.n_items) == (
        told.n_events,
        told.n_users,
        told.n_items,
    )
    assert published_log.notes == ()  # nothing had to be sorted or left out


def test_the_groups_are_found_without_being_named(published_log: EventLog, told: Told) -> None:
    groups = published_log.require_groups()
    assert (groups.attribute, groups.names) == (told.attribute, told.names)
    assert tuple(np.bincount(groups.codes, minlength=2)) == told.users_by_group
    assert tuple(np.bincount(groups.codes[published_log.users], minlength=2)) == told.events_by_group


def test_the_data_set_is_recognised(published_log: EventLog, told: Told) -> None:
    known = recognise(published_log)
    assert known is not None
    assert (known.name, known.pretrain_ratio) == (told.name, told.pretrain_ratio)


def test_rows_are_given_in_the_order_of_first_appearance(published_log: EventLog) -> None:
    for rows, n in ((published_log.users, published_log.n_users), (published_log.items, published_log.n_items)):
        _, first = np.unique(rows, return_index=True)
        assert len(first) == n
        assert (np.diff(first) > 0).all()


def test_another_log_is_not_recognised(published_log: EventLog, log: EventLog) -> None:
    cut = slice(0, len(published_log) - 1)
    columns = {name: getattr(published_log, name)[cut] for name in ("users", "items", "times")}
    assert recognise(replace(published_log, **columns)) is None
    assert recognise(log) is None


def test_what_is_known_of_the_published_data_is_what_the_paper_says() -> None:
    known = {(it.name, *it.counts, it.pretrain_ratio) for it in PUBLISHED}
    assert known == {(it.name, it.n_events, it.n_users, it.n_items, it.pretrain_ratio) for it in TOLD}
