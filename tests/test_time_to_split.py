"""The protocol of the second yardstick on events that fit on a page."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.time_to_split import Split, core, quality, read, rows, split


def columns(*events: tuple[int, int, int]) -> Any:
    return np.array(events, np.int64).T


def test_the_core_is_what_is_left_when_nobody_and_nothing_is_rare() -> None:
    """Item 9 is rare; without it user 3 is; without user 3 item 4 is."""
    users, items, times = columns(
        (1, 4, 0), (1, 5, 1), (1, 6, 2), (2, 5, 3), (2, 6, 4), (3, 4, 5), (3, 9, 6),
    )  # fmt: skip
    assert core(users, items, times, 2).tolist() == [1, 2, 3, 4]


def test_of_consecutive_repeats_the_first_counts() -> None:
    """Consecutive among the user's own events, in chronological order; equal times keep the order of the file."""
    users, items, times = columns((1, 5, 7), (2, 5, 8), (1, 5, 9), (1, 6, 9), (1, 5, 10), (2, 6, 11), (2, 6, 2))
    assert core(users, items, times, 1).tolist() == [0, 3, 4, 6, 1, 5]


def test_events_at_the_quantile_are_learned() -> None:
    times = np.array([5, 1, 9, 2, 8, 3, 8, 4, 6, 7, 9], np.int64)
    parts = split(np.arange(11), times)
    assert parts.learned.tolist() == [1, 3, 5, 7, 0, 8, 9, 4, 6, 2, 10]  # the 0.9 quantile is the largest time
    parts = split(np.arange(10), times[:10])
    assert parts.later.tolist() == [2]
    assert parts.learned.tolist() == [1, 3, 5, 7, 0, 8, 9, 4, 6]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """MovieLens as GroupLens publishes it: users 1 to 3 by T = 21, then 2, 4 and 5."""
    raw = tmp_path / "ml-1m"
    raw.mkdir()
    genders = {1: "M", 2: "M", 3: "F", 4: "F", 5: "F"}
    (raw / "users.dat").write_text("".join(f"{user}::{gender}::1::10::x\n" for user, gender in genders.items()))
    events = [(1, 30, 10), (1, 20, 11), (1, 10, 12), (2, 20, 13), (2, 10, 14), (3, 10, 15)]
    events += [(2, 30, 30), (4, 10, 31), (4, 30, 32), (2, 90, 33), (4, 20, 34), (5, 20, 35)]
    lines = (f"{user}::{item}::1::{time}\n" for user, item, time in sorted(events))  # user by user, as published
    (raw / "ratings.dat").write_text("".join(lines))
    return tmp_path


def test_each_later_event_is_tested_from_the_second_of_a_newcomer_on(folder: Path) -> None:
    """User 2: first, then not in the list. User 4, a newcomer: second, then first. User 5 has no second event."""
    ratings = read(folder)
    order = np.argsort(ratings.times)
    everyone, by_gender = quality("popularity", ratings, Split(order[:6], order[6:]))
    assert by_gender == pytest.approx({"M": (1 + 0) / 2, "F": (1 / np.log2(3) + 1) / 2})
    assert everyone == pytest.approx(np.mean(list(by_gender.values())))


def test_the_archive_is_read_as_the_folder_is(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    packed = tmp_path_factory.mktemp("packed")
    shutil.make_archive(str(packed / "ml-1m"), "zip", folder, "ml-1m")
    one, other = read(folder), read(packed)
    assert one.are_all
    assert other.are_all
    assert one.people.equals(other.people)
    assert all(np.array_equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


def test_other_counts_than_the_published_ones_are_no_comparison(folder: Path) -> None:
    with (folder / "ml-1m" / "ratings.dat").open("a") as file:  # everything five times or more
        file.writelines(f"{user}::{item}::3::{10 * item + user}\n" for user in range(1, 6) for item in range(1, 9))
    text = "\n".join(rows(folder, {"recent-popularity": "recent-popularity"}))
    assert "| users | 5 | 6,040 |" in text
    assert "this is not the published split" in text
    assert "| recent-popularity | 1.0000 | 1.0000 | 1.0000 |" in text  # only the last item is left
