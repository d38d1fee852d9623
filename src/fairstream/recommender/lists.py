"""Lists of the best items for users: as one table, or for many users as Parquet files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from fairstream.data import Groups, History, Rows, Vocabulary, id_column
from fairstream.distributed import PROCESS_BYTES, current_cluster
from fairstream.errors import ConfigurationError
from fairstream.evaluation import best_items
from fairstream.evaluation.requests import n_bytes
from fairstream.files import new_folder
from fairstream.models import TASKS, ContextBuilder, Level, Scorer, Task, Tilt, tilts
from fairstream.periods import LATEST_SECONDS, readable_times
from fairstream.recommender.state import State

AUDIENCE_WEIGHT = 4.0  # how many times the events of an audience count in popularity (docs/lab-log.md)
_ROW_BYTES = 200  # memory per item of a list while it is ranked and written


@dataclass(frozen=True, eq=False)
class ListMaker:
    """Ranks lists of k items. It holds nothing else, so that a cluster can copy it."""

    model: Scorer
    history: History
    contexts: ContextBuilder
    item_ids: pa.Array
    k: int
    allowed: Rows | None  # the sorted rows of the allowed items; None: all of them

    @classmethod
    def of(
        cls, state: State, k: int, task: Task, *, exclude: Any, only: Any, at: Any = None, audience: Any = None
    ) -> ListMaker:
        """Rank with a recommender's state; the other options as for `FairRecommender.recommend`."""
        now = None if at is None else request_time(at, state.history.latest_time(), reads_times=state.model.reads_times)
        contexts = replace(state.contexts, task=check_task(task), now=now)
        if audience is not None:
            contexts = replace(contexts, tilt=_lean(state, audience))
        return cls(
            state.model,
            state.history,
            contexts,
            state.item_ids.ids,
            min(k, state.history.n_items),
            _allowed(state.item_ids, exclude, only),
        )

    def with_histories(self, histories: Any, item_ids: Vocabulary) -> tuple[ListMaker, Rows]:
        """Add people without an id by the items that they have had; also return their rows.

        Unknown items are left out, with a warning at the line that called `recommend`.
        """

        def is_list(value: Any) -> bool:
            return hasattr(value, "__len__") and not isinstance(value, str)

        if not is_list(histories) or not all(map(is_list, histories)):
            raise ConfigurationError("histories must be lists of item ids, one list for each person")
        rows = self.history.n_users + np.arange(len(histories))
        flat = [item for history in histories for item in history]
        users = np.repeat(rows, [len(history) for history in histories])
        items = item_ids.lookup(id_column(flat)) if flat else np.empty(0, np.int64)
        is_known = items >= 0
        if not is_known.all():
            n = int((~is_known).sum())
            warnings.warn(f"{n} of the {len(items)} items in histories are unknown and were ignored", stacklevel=3)
        history = self.history.after(users[is_known], items[is_known], ends_period=False)
        return replace(self, history=history, contexts=self.contexts.observing(history)), rows

    def table(self, column: str, ids: pa.Array, rows: Rows, fallback: Callable[[], Scorer]) -> pa.Table:
        """The lists of users with these ids and rows; `column` names the ids.

        `fallback` makes the model for users that this one cannot score, if there are any.
        """
        by_model = self.contexts.can_score(self.model, rows)
        scores, items = np.empty((len(rows), self.k)), np.empty((len(rows), self.k), np.int64)
        for chosen, is_fallback in ((by_model, False), (~by_model, True)):
            if chosen.any():
                scores[chosen], items[chosen] = best_items(
                    fallback() if is_fallback else self.model,
                    rows[chosen],
                    self.history,
                    contexts=self._newcomers if is_fallback else self.contexts,
                    k=self.k,
                    allowed=self.allowed,
                )
        is_item = np.isfinite(scores)
        row, rank = np.nonzero(is_item)
        return pa.table(
            {
                column: ids.take(row),
                "item_id": self.item_ids.take(items[is_item]),
                "rank": rank + 1,
                "score": scores[is_item].astype(np.float32),
                "source": pa.array(np.where(by_model, "model", "popularity")[row]),
            }
        )

    @property
    def _newcomers(self) -> ContextBuilder:
        return ContextBuilder(0, self.history, tilt=self.contexts.tilt)

    def write(self, folder: Path, ids: pa.Array, rows: Rows, fallback: Scorer, *, users_per_file: int) -> None:
        """Write the lists of users into a new folder; on a cluster, a task writes each file."""
        cluster = current_cluster()
        parts = [
            (number, ids.slice(start, users_per_file), rows[start : start + users_per_file])
            for number, start in enumerate(range(0, max(1, len(rows)), users_per_file))
        ]
        try:
            if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
                raise ConfigurationError(f"{folder} exists already; lists are written into a new folder: name another")
            with new_folder(folder) as temporary:
                shared = (self, fallback, temporary.absolute())
                if cluster is None or self.model.device.type != "cpu":
                    for part in parts:
                        _write_part(part, shared, None)
                    return
                table_bytes = _ROW_BYTES * self.k * len(parts[0][2])
                needed = PROCESS_BYTES + 2 * (n_bytes(self.model) + n_bytes(fallback)) + table_bytes
                cluster.check_memory(needed, "making the lists of a file")
                cluster.check_folder(temporary)
                self.contexts.index()  # once for all tasks
                cluster.run(_write_part, parts, shared=shared, memory=needed)
        except OSError as error:
            raise ConfigurationError(
                f"the lists could not be written to {folder}: {error.strerror or error}; choose another folder"
            ) from None


def _write_part(part: tuple[int, pa.Array, Rows], shared: tuple[ListMaker, Scorer, Path], _: object) -> None:
    (number, ids, rows), (maker, fallback, folder) = part, shared
    table = maker.table("user_id", ids, rows, lambda: fallback)
    pyarrow.parquet.write_table(table, folder / f"part-{number:05}.parquet")


def check_task(task: Task) -> Task:
    """Return the task; raise a ConfigurationError if it is unknown."""
    if task not in TASKS:
        raise ConfigurationError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    return task


def request_time(at: Any, latest: float, *, reads_times: bool) -> float:
    """Return the moment `at` in seconds since 1970; raise a ConfigurationError if no list can be requested then.

    `latest` is the time of the latest known event.
    """
    if not reads_times:
        raise ConfigurationError(
            "at is the time of the request, and this model does not read times; fit sasrec or blend on events with "
            "timestamps, or leave at out"
        )
    moment: Any = at
    if isinstance(at, datetime):
        with suppress(ValueError):  # pandas' missing time is a datetime without a timestamp
            moment = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    elif isinstance(at, np.datetime64):
        moment = at.astype("datetime64[us]").astype(np.int64) / 1e6
    is_number = isinstance(moment, int | float | np.integer | np.floating)
    if not is_number or isinstance(moment, bool | np.timedelta64) or not 0 <= moment < LATEST_SECONDS:
        raise ConfigurationError(
            f"at must be a datetime, a NumPy datetime64 or seconds since 1970, before 2100, got {at!r}"
        )
    if moment // 60 < latest // 60:
        known = readable_times(np.array([latest * 1e6]).astype("datetime64[us]"))[0]
        raise ConfigurationError(f"at must not be before the latest known event, {known} UTC, got {at!r}")
    return float(moment)


def _lean(state: State, audience: Any) -> Tilt:
    """The tilt of the level in force, plus that of popularity among some users."""
    rows = state.user_ids.lookup(id_or_ids(audience))
    is_in = np.zeros(max(state.history.n_users, len(state.user_ids)), np.int16)
    is_in[rows[rows >= 0]] = 1
    tilt = tilts(
        state.history, Groups("audience", ("others", "audience"), is_in), [Level("audience", AUDIENCE_WEIGHT)]
    )[0]
    if state.tilt is not None:
        tilt[: len(state.tilt)] += state.tilt
    return tilt


def _allowed(item_ids: Vocabulary, exclude: Any, only: Any) -> Rows | None:
    if exclude is None and only is None:
        return None
    is_allowed = np.full(len(item_ids), only is None)
    for ids, value in ((only, True), (exclude, False)):
        if ids is not None:
            is_allowed[_known_rows(item_ids, ids)] = value
    if not is_allowed.any():
        raise ConfigurationError("no item is left to recommend: only and exclude leave none of the known items")
    return np.flatnonzero(is_allowed)


def _known_rows(item_ids: Vocabulary, ids: Any) -> Rows:
    """The rows of one id or several; unknown ids have none, and ids of another kind are an error."""
    is_one = isinstance(ids, str | bytes) or not isinstance(ids, Iterable)
    rows = item_ids.lookup([ids] if is_one else ids if hasattr(ids, "__len__") else list(ids))
    return rows[rows >= 0]


def users_in(state: State, user_ids: Any) -> tuple[pa.Array, Rows]:
    """Ids as a column, and the users' rows; unknown users get a row without events."""
    ids = id_or_ids(user_ids)
    if len(ids) == 0:
        ids = state.user_ids.ids[:0]  # of the kind that the state knows
    rows = state.user_ids.lookup(ids)
    return ids, np.where(rows < 0, state.history.n_users, rows)


def id_or_ids(ids: Any) -> pa.Array:
    """One id or a list or column of ids, as a column."""
    return id_column([ids] if isinstance(ids, str | int | np.integer) else ids)
