"""Check a split into training and test events for leaks across time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairstream.data.events import EventParser
from fairstream.data.log import note_on_ties, tied_events
from fairstream.data.reading import SUFFIXES, Columns, find_file, to_table
from fairstream.data.vocabulary import Rows, Vocabulary
from fairstream.errors import DataError
from fairstream.periods import UNIT_NAMES, readable_times, seconds_of, unix_unit
from fairstream.text import percent, text_table

Kind = Literal["none", "across users", "within users", "random"]
_RANDOM = (0.4, 0.6)  # the share of later pairs in a random split: 0.5, give or take the noise of a small test


@dataclass(frozen=True)
class SplitPart:
    """The size and the time span of one part of a split."""

    n_events: int
    n_users: int
    n_items: int
    first_time: str
    last_time: str


@dataclass(frozen=True)
class TimeLeak:
    """Training events that come after test events: all of them, or those of the same user or the same item."""

    train_after_test: float
    """The share of training events that are later than the first test event."""
    test_before_train: float
    """The share of test events that have a later training event."""
    later_pairs: float | None
    """Of all pairs of a training and a test event, the share in which the training event is the later one; equal
    times count half. A split by time has 0, a split at random 0.5. None: there is no such pair."""


@dataclass(frozen=True)
class LeakReport:
    """The result of `leakcheck`: prints as a sentence and three tables."""

    kind: Kind
    """The leak: none, other users' future, also the users' own future, or a split that looks random."""
    train: SplitPart
    test: SplitPart
    everyone: TimeLeak
    """Any training event and any test event."""
    same_user: TimeLeak
    """Events of the same user."""
    same_item: TimeLeak
    """Events of the same item."""
    overlap: float
    """The share of the test period (from the first test event to the last) that lies before the last training event."""
    n_future_users: int
    """Users of the test whose training events are all later than their first test event: newcomers at that moment."""
    n_future_items: int
    """Items of the test whose training events are all later than their first test event: unknown at that moment."""
    n_new_users: int
    """Users of the test without any training event."""
    n_new_items: int
    """Items of the test without any training event."""
    n_duplicates: int
    """Test events that are training events too: the same user, item and time."""
    n_repeated_pairs: int
    """Test events whose user and item occur together in training, at any time."""
    n_tied: int | None
    """Test events with the same time as the user's previous event, which may be a training event. None if there are
    none and the times are numbers that only order the events."""

    @property
    def leaks(self) -> bool:
        """Whether a training event is later than a test event, or a test event is a training event too."""
        return self.kind != "none" or self.n_duplicates > 0

    @property
    def verdict(self) -> str:
        """One sentence: what leaks, and how much."""
        own, everyone = self.same_user, self.everyone
        sentence = {
            "none": "No leak across time: no training event is later than a test event",
            "across users": (
                f"Leaks across users: of a training and a test event the training event is the later one in "
                f"{percent(everyone.later_pairs)} of all pairs (split by time 0 %), so a model learns from other "
                f"people's future" + ("" if own.later_pairs is None else ", though each user's own order is kept")
            ),
            "within users": (
                f"Leaks within users: for {percent(own.test_before_train)} of the test events training holds later "
                f"events of the same user"
            ),
            "random": (
                f"Looks like a random split: of a user's training and test events the training event is the later one "
                f"in {percent(own.later_pairs)} of the pairs (at random 50 %, split by time 0 %)"
            ),
        }[self.kind]
        if self.n_duplicates:
            sentence += f"; {self.n_duplicates:,} of {self.test.n_events:,} test events are in the training events too"
        return f"{sentence}."

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with `verdict` and `leaks`."""
        return {"verdict": self.verdict, "leaks": self.leaks, **asdict(self)}

    def __str__(self) -> str:
        scopes = (self.everyone, self.same_user, self.same_item)

        def of(n: int, total: int) -> str:
            return f"{n:,} of {total:,} ({percent(n / total)})"

        parts = [
            [name, f"{part.n_events:,}", f"{part.n_users:,}", f"{part.n_items:,}", part.first_time, part.last_time]
            for name, part in (("training", self.train), ("test", self.test))
        ]
        shares = [
            ["training events after the first test event", *(percent(scope.train_after_test) for scope in scopes)],
            ["test events before the last training event", *(percent(scope.test_before_train) for scope in scopes)],
            ["pairs in which the training event is later", *(percent(scope.later_pairs) for scope in scopes)],
        ]
        counts = [
            ["test period before the last training event", percent(self.overlap)],
            ["test users known from later events only", of(self.n_future_users, self.test.n_users)],
            ["test items known from later events only", of(self.n_future_items, self.test.n_items)],
            ["test users without training events", of(self.n_new_users, self.test.n_users)],
            ["test items without training events", of(self.n_new_items, self.test.n_items)],
            ["test events that are training events too", of(self.n_duplicates, self.test.n_events)],
            ["test events with a pair known from training", of(self.n_repeated_pairs, self.test.n_events)],
        ]
        ties = []
        if self.n_tied is not None:
            counts.append(["test events with the time of the user's previous one", of(self.n_tied, self.test.n_events)])
            ties = [f"{note_on_ties(self.n_tied, self.test.n_events, 'test events')}."] if self.n_tied else []
        return "\n\n".join(
            [
                self.verdict,
                text_table(["", "events", "users", "items", "from", "to"], parts),
                text_table(["", "all", "same user", "same item"], shares),
                text_table(["in the test", ""], counts),
                *ties,
            ]
        )

    __repr__ = __str__


def leakcheck(
    train: Any,
    test: Any = None,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
) -> LeakReport:
    """Show what leaks across time in a split into training and test events.

    A recommender that is tested on an event may know earlier events and no later ones. A random split, or one that
    keeps each user's last event for the test, breaks that: training then holds the user's own future, or that of other
    users (what will be popular, which new item goes with which). Nothing is trained.

    Parameters
    ----------
    train, test
        The events of each part: a table (pandas, Polars, DuckDB, Arrow) or a file, with a user, an item and a time
        column. Ratings are ignored: every event counts. Without `test`, `train` is a folder with the files
        `train` and `test`.
    user_column, item_column, time_column
        Names of the columns; usual names are recognised.

    Returns
    -------
    LeakReport
        The shares and counts, and `verdict`, one sentence; it prints as tables.

    Raises
    ------
    DataError
        If a part cannot be read, has no events, or lacks a column, or the times of the two are of different kinds.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from fairstream import leakcheck
    >>> events = pa.table({"user": ["a", "a", "b", "b"], "item": [1, 2, 2, 3], "time": [1, 2, 3, 4]})
    >>> last_of_each = leakcheck(events.take([0, 2]), events.take([1, 3]))
    >>> print(last_of_each.verdict)
    Leaks across users: of a training and a test event the training event is the later one in 25.0 % of all pairs
    (split by time 0 %), so a model learns from other people's future, though each user's own order is kept.
    >>> leakcheck(events.slice(0, 3), events.slice(3)).leaks
    False

    """
    columns = Columns(user=user_column, item=item_column, time=time_column)
    if test is None:
        train, test = _parts_of(train)
    users, items = Vocabulary(), Vocabulary()
    known = _Part.read(train, columns, users, items, what="the training events")
    tested = _Part.read(test, columns, users, items, what="the test events")
    kinds = [_kind(part.times) for part in (known, tested)]
    if kinds[0] != kinds[1] and ("timestamps" in kinds or "numbers" not in kinds):
        raise DataError(
            f"times must be of one kind in both parts: the training events have {kinds[0]}, the test events "
            f"{kinds[1]}; convert one of the columns"
        )
    moments, ranks = np.unique(np.concatenate([known.times, tested.times]), return_inverse=True)
    before, after = ranks[: len(known.times)], ranks[len(known.times) :]
    everyone, _, _ = _compare(np.zeros_like(before), before, np.zeros_like(after), after, len(moments))
    same_user, n_future_users, n_new_users = _compare(known.users, before, tested.users, after, len(moments))
    same_item, n_future_items, n_new_items = _compare(known.items, before, tested.items, after, len(moments))
    pairs = np.unique(
        np.concatenate([part.users * len(items) + part.items for part in (known, tested)]), return_inverse=True
    )[1]
    events = pairs * len(moments) + ranks
    n = len(before)
    in_order = np.argsort(ranks, kind="stable")
    is_tied = tied_events(np.concatenate([known.users, tested.users])[in_order], ranks[in_order])
    n_tied = int(is_tied[in_order >= n].sum())
    return LeakReport(
        kind=_kind_of_leak(everyone, same_user),
        train=known.describe(),
        test=tested.describe(),
        everyone=everyone,
        same_user=same_user,
        same_item=same_item,
        overlap=_overlap(known.times, tested.times),
        n_future_users=n_future_users,
        n_future_items=n_future_items,
        n_new_users=n_new_users,
        n_new_items=n_new_items,
        n_duplicates=int(np.isin(events[n:], events[:n]).sum()),
        n_repeated_pairs=int(np.isin(pairs[n:], pairs[:n]).sum()),
        n_tied=None if n_tied == 0 and seconds_of(moments) is None else n_tied,
    )


@dataclass(frozen=True, eq=False)
class _Part:
    """The events of one part, in any order."""

    users: Rows
    items: Rows
    times: np.ndarray[Any, Any]

    @classmethod
    def read(cls, source: Any, columns: Columns, users: Vocabulary, items: Vocabulary, *, what: str) -> _Part:
        table = to_table(source, what=what)
        try:
            rating = columns.find_optional("rating", table, what=what)
            parser = EventParser(table if rating is None else table.drop_columns([rating]), columns)
            user_ids, item_ids, times, _ = parser.parse(table)
            parser.notes()
            if len(times) == 0:
                raise DataError("there are none; at least one is needed")
            return cls(users.extend(user_ids), items.extend(item_ids), times)
        except DataError as error:
            raise DataError(f"{what}: {error}") from None

    def describe(self) -> SplitPart:
        first, last = readable_times(np.array([self.times.min(), self.times.max()]))
        return SplitPart(len(self.times), len(np.unique(self.users)), len(np.unique(self.items)), first, last)


def _parts_of(folder: Any) -> tuple[Path, Path]:
    if not isinstance(folder, str | Path):
        raise DataError("give the training events and the test events, or one folder that holds both")
    path = Path(folder)
    files = [find_file(path, stem) for stem in ("train", "test")]
    if files[0] is None or files[1] is None:
        raise DataError(
            f"{path} must be a folder with the files train and test ({SUFFIXES}); "
            f"else give the training events and the test events"
        )
    return files[0], files[1]


def _compare(train: Rows, train_ranks: Rows, test: Rows, test_ranks: Rows, n_ranks: int) -> tuple[TimeLeak, int, int]:
    """Compare the times of events with the same key (a user's row, an item's row, or 0 for all events).

    Ranks are those of the times among all distinct times. Returns the leak, the number of test keys that occur
    in training only after their first test event, and the number that do not occur in training.
    """
    n_keys = int(max(train.max(), test.max())) + 1
    ordered = np.sort(train * n_ranks + train_ranks)
    at = test * n_ranks + test_ranks
    first, below = np.searchsorted(ordered, test * n_ranks), np.searchsorted(ordered, at)
    upto, last = np.searchsorted(ordered, at, side="right"), np.searchsorted(ordered, (test + 1) * n_ranks)
    n_later, n_tied, n_pairs = last - upto, upto - below, last - first
    first_test, first_train = np.full((2, n_keys), n_ranks)
    np.minimum.at(first_test, test, test_ranks)
    np.minimum.at(first_train, train, train_ranks)
    is_tested, is_known = first_test < n_ranks, first_train < n_ranks
    total = int(n_pairs.sum())
    leak = TimeLeak(
        train_after_test=float((train_ranks > first_test[train]).mean()),
        test_before_train=float((n_later > 0).mean()),
        later_pairs=float((n_later.sum() + 0.5 * n_tied.sum()) / total) if total else None,
    )
    n_future = int((is_tested & is_known & (first_train > first_test)).sum())
    return leak, n_future, int((is_tested & ~is_known).sum())


def _kind_of_leak(everyone: TimeLeak, same_user: TimeLeak) -> Kind:
    if everyone.train_after_test == 0:
        return "none"
    if same_user.later_pairs is None or same_user.train_after_test == 0:
        return "across users"
    return "random" if _RANDOM[0] <= same_user.later_pairs <= _RANDOM[1] else "within users"


def _overlap(train: np.ndarray[Any, Any], test: np.ndarray[Any, Any]) -> float:
    begin, end, last = test.min(), test.max(), train.max()
    if last <= begin:
        return 0.0
    return 1.0 if last >= end else float((last - begin) / (end - begin))


def _kind(times: np.ndarray[Any, Any]) -> str:
    if times.dtype.kind == "M":
        return "timestamps"
    unit = unix_unit(np.median(times, keepdims=True))
    return "numbers" if unit is None else f"{UNIT_NAMES[unit]} since 1970"
