"""Readers of two tables: the lists of any recommender, and the users' later events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairstream.data import Columns, Rows, Vocabulary
from fairstream.data.log import distinct_pair_keys, pair_keys
from fairstream.data.reading import combined, to_table
from fairstream.errors import DataError
from fairstream.evaluation.lists import Floats, ItemLists, Lists, Mask

_RANK_NAMES = ("rank", "position")
_SCORE_NAMES = ("score", "prediction", "predicted_score", "predicted_rating")


@dataclass(frozen=True, eq=False)
class TruthTable:
    """The users to test, and the items of each that count as hits."""

    table: pa.Table
    users: Vocabulary
    items: Vocabulary  # grows with the items of the lists
    positives: ItemLists
    notes: tuple[str, ...]

    @classmethod
    def read(cls, source: Any, columns: Columns, rating_above: float | None) -> TruthTable:
        """Read a table with one row for each relevant item of a user; raise a `DataError` if it is not one."""
        what = "the truth"
        table = events = to_table(source, what=what)
        notes: tuple[str, ...] = ()
        rating = columns.find_optional("rating", table, what=what)
        if rating is not None and rating_above is not None:
            events = table.filter(pc.greater(_floats(table, rating, what=what), rating_above))
            notes += (f"{len(events)} of {len(table)} rows of the truth have {rating} > {rating_above:g} and count",)
        elif rating is not None:
            notes += (f"every row of the truth counts, whatever its {rating}; rating_above keeps only high ones",)
        elif rating_above is not None:
            raise DataError(f"rating_above needs a rating column, but {what} has {', '.join(table.column_names)}")
        users, items = Vocabulary(), Vocabulary()
        user_rows, item_rows = _ids(events, columns, users, items, what=what)
        if not len(users):
            raise DataError("the truth has no rows that count; at least one user needs a relevant item")
        keys = distinct_pair_keys(user_rows, item_rows)
        if n_repeated := len(user_rows) - len(keys):
            notes += (f"{n_repeated} repeated (user, item) pair(s) of the truth count once",)
        bounds = np.searchsorted(keys, np.arange(len(users) + 1) << 32)
        return cls(table, users, items, ItemLists(bounds, keys & 0xFFFFFFFF), notes)


@dataclass(frozen=True, eq=False)
class ReadLists:
    """The lists of one system for the users of a truth."""

    lists: Lists
    has_list: Mask  # (U,) whether the user has a list; else it is empty
    notes: tuple[str, ...]

    @classmethod
    def read(
        cls,
        source: Any,
        truth: TruthTable,
        columns: Columns,
        rank: str | None,
        score: str | None,
        depth: int,
        *,
        what: str,
    ) -> ReadLists:
        """Read the first `depth` items of each list; a relevant item comes after others of the same rank or score."""
        table = to_table(source, what=what)
        name, sign = _order_column(table, rank, score, what=what)
        known = truth.users.copy()
        user_rows, item_rows = _ids(table, columns, known, truth.items, what=what)
        n_users = len(truth.users)
        is_tested = user_rows < n_users
        if not is_tested.any():
            raise DataError(
                f"{what}: none of their users is in the truth, {known.ids[n_users].as_py()!r} for one; "
                f"are the ids the same in both?"
                if len(known) > n_users
                else f"{what} have no rows"
            )
        order_by = sign * _numbers(table, name, what=what)
        scores = order_by if score is None else _numbers(table, score, what=what)
        keys = pair_keys(user_rows, item_rows)
        _check_distinct(keys[is_tested], truth, what=what)
        is_hit = np.isin(keys, pair_keys(truth.positives.positions, truth.positives.items))
        order = np.lexsort((is_hit, -order_by, user_rows))
        order = order[is_tested[order]]
        user_rows, order_by, is_hit = user_rows[order], order_by[order], is_hit[order]
        lengths = np.bincount(user_rows, minlength=n_users)
        place = np.arange(len(user_rows)) - (np.cumsum(lengths) - lengths)[user_rows]  # of each row in its list
        is_above = place < depth
        at = (user_rows[is_above], place[is_above])
        lists = Lists(
            np.full((n_users, depth), -1, np.int64),
            np.full((n_users, depth), -np.inf),
            np.zeros((n_users, depth), np.bool_),
        )
        for column, values in ((lists.items, item_rows[order]), (lists.scores, scores[order]), (lists.hits, is_hit)):
            column[at] = values[is_above]
        is_tied = (
            (np.diff(user_rows) == 0) & (np.diff(order_by) == 0) & (is_hit[1:] & ~is_hit[:-1]) & (place[:-1] < depth)
        )
        notes = []
        if len(known) > n_users:
            notes.append(f"{len(known) - n_users} user(s) with a list have nothing in the truth and are not tested")
        if lengths.max() < depth:
            notes.append(f"no list has more than {lengths.max()} item(s), fewer than the cut-off {depth}")
        if is_tied.any():
            n_tied = len(np.unique(user_rows[1:][is_tied]))
            notes.append(
                f"in {n_tied} list(s) a relevant item shares its {name} with others and counts as ranked behind them"
            )
        return cls(lists, lengths > 0, tuple(notes))


def _ids(table: pa.Table, columns: Columns, users: Vocabulary, items: Vocabulary, *, what: str) -> tuple[Rows, Rows]:
    """The rows of the users and of the items; new ids extend the vocabularies."""
    names = [columns.find(role, table, what=what) for role in ("user", "item")]
    for name in names:
        if missing := table[name].null_count:
            raise DataError(f"{what}: every row needs an id, but {missing} of {len(table)} are missing in {name!r}")
    try:
        return users.extend(combined(table[names[0]])), items.extend(combined(table[names[1]]))
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


def _order_column(table: pa.Table, rank: str | None, score: str | None, *, what: str) -> tuple[str, float]:
    """The column that orders the lists, and +1 if the highest value comes first, −1 if the lowest does."""
    for given in (rank, score):
        if given is not None and given not in table.column_names:
            raise DataError(f"{what} have no column {given!r}; their columns are {', '.join(table.column_names)}")
    if rank is not None or score is not None:
        return (rank, -1.0) if rank is not None else (score or "", 1.0)
    by_lower_case = {name.lower(): name for name in reversed(table.column_names)}
    for usual, sign in (*((name, -1.0) for name in _RANK_NAMES), *((name, 1.0) for name in _SCORE_NAMES)):
        if usual in by_lower_case:
            return by_lower_case[usual], sign
    raise DataError(
        f"{what} need a rank or a score column ({_RANK_NAMES[0]}, {', '.join(_SCORE_NAMES[:2])} …), but have only "
        f"{', '.join(table.column_names) or 'no columns'}; name it with rank_column or score_column "
        f"(on the command line: --rank-column, --score-column)"
    )


def _numbers(table: pa.Table, name: str, *, what: str) -> Floats:
    """Return the column as numbers; a missing number is an error, because its row has no place in a list."""
    numbers: Floats = _floats(table, name, what=what).to_numpy()
    if missing := int(np.isnan(numbers).sum()):
        raise DataError(f"{what}: every row needs a number in {name!r}, but {missing} of {len(table)} have none")
    return numbers


def _floats(table: pa.Table, name: str, *, what: str) -> pa.ChunkedArray:
    try:
        return table[name].cast(pa.float64())
    except pa.ArrowException:
        raise DataError(f"{what}: {name!r} must hold numbers, but holds {table[name].type}; convert it first") from None


def _check_distinct(keys: Rows, truth: TruthTable, *, what: str) -> None:
    ordered = np.sort(keys)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        user, item = truth.users.ids[int(twice[0]) >> 32], truth.items.ids[int(twice[0]) & 0xFFFFFFFF]
        raise DataError(
            f"{what}: a list holds an item once, but that of user {user.as_py()!r} holds {item.as_py()!r} more than "
            f"once ({len(twice)} such rows); keep one of them"
        )
