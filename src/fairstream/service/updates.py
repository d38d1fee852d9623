"""Updates as rows: any process requests one, one process at a time runs one, and each row has its outcome.

Any number of services and machines check whether an update is due; the database decides, and one of them gets the
row. If a row is running while no process holds the updating lock, its process has died.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, and_, func, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from fairstream.errors import FairstreamError, WorkspaceError
from fairstream.service import replay, schema
from fairstream.service.alerts import alert
from fairstream.service.database import now_of, reading, writing
from fairstream.service.event_store import is_full, last_seq
from fairstream.service.records import UnknownIdError, Update, UpdateState
from fairstream.service.registry import n_unpromoted, newest_first, running_experiment
from fairstream.service.settings import Every, Limits
from fairstream.service.workspace import Workspace

_SECOND = 1_000_000
_START_WITHIN = 60 * _SECOND  # a queued update that no process has started by then has failed
_FIRST_RETRY, _LONGEST_RETRY = 60 * _SECOND, 3600 * _SECOND
_log = logging.getLogger(__name__)
_LOCK_SECONDS = 60.0  # how long an update waits for a forgetting to end
_OPEN = ("queued", "running")
_rows = schema.updates
_newest = select(_rows).where(_rows.c.state != "interrupted").order_by(_rows.c.number.desc())


class UpdateRunning(WorkspaceError):  # noqa: N818 (a state, reported with 409)
    """Another update is queued or running; `update_id` names it."""

    def __init__(self, update_id: str) -> None:
        super().__init__(f"update {update_id} is queued or running already; wait until it has ended")
        self.update_id = update_id


def request(workspace: Workspace, by: str) -> Update:
    """Queue an update; raises `UpdateRunning` if one has not ended."""
    fail_dead(workspace)
    with writing(workspace.engine) as connection:
        return _request(connection, by, "queued")


def request_if_due(workspace: Workspace, every: Every, by: str) -> Update | None:
    """Queue an update if the schedule asks for one now; of many processes one gets it."""
    engine, limits = workspace.engine, workspace.config.limits
    with reading(engine) as connection:
        is_open, is_due = _open_id(connection) is not None, _is_due(connection, every, limits)
    if is_open:
        fail_dead(workspace)
    elif is_due:
        with suppress(UpdateRunning), writing(engine) as connection:
            refuse_if_open(connection)
            if _is_due(connection, every, limits):
                return _insert(connection, by, "queued")
    return None


def get(engine: Engine, update_id: str) -> Update:
    """One update."""
    with reading(engine) as connection:
        return _get(connection, update_id)


def _get(connection: Connection, update_id: str) -> Update:
    row = connection.execute(select(_rows).where(_rows.c.id == update_id)).mappings().first()
    if row is None:
        raise UnknownIdError(f"there is no update {update_id[:64]!r}; GET /v1/updates lists all of them")
    return Update(**row)


def listed(engine: Engine, before: str | None = None, limit: int = 50) -> list[Update]:
    """Up to `limit` updates, the newest first; `before` is the id of the last one on the page before."""
    return [Update(**row) for row in newest_first(engine, _rows, _rows.c.number, before, limit)]


def run(
    workspace: Workspace,
    update_id: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    *,
    by: str = "command line",
    afresh: bool = False,
) -> Update:
    """Run a queued update, or a new one, which raises `UpdateRunning` if another one has not ended.

    If it closes a period of imported history, further updates follow until the history has been replayed.
    """
    done = _run_one(workspace, update_id, say, by=by, afresh=afresh)
    while done.state in ("promoted", "rejected"):
        with reading(workspace.engine) as connection:
            if not replay.goes_on(connection):
                break
        try:
            done = _run_one(workspace, None, say, by=done.requested_by)
        except UpdateRunning:  # another process continues the replay
            break
    return done


def _run_one(
    workspace: Workspace, update_id: str | None, say: Callable[[str], None], *, by: str, afresh: bool = False
) -> Update:
    from fairstream.service.updater import Outcome  # noqa: PLC0415 (loads torch)
    from fairstream.service.updater import update as close_period  # noqa: PLC0415

    own = None if update_id is None else get(workspace.engine, update_id)
    if own is None:
        _refuse_at_once(workspace)
    elif own.state != "queued":
        raise WorkspaceError(f"update {own.id} is not queued any more; request another one")
    try:
        with workspace.updating(_LOCK_SECONDS):
            # A new row is inserted as running, under the lock: if this process is killed, any other process sees that
            # nobody holds the lock, and need not wait whether somebody starts the update.
            running = own = _begin(workspace.engine, own, by)

            def end(connection: Connection, outcome: Outcome) -> None:
                about = {"reason": outcome.reason, "t": outcome.t, "model": outcome.model}
                _end(connection, _rows.c.id == running.id, outcome.kind, **about)

            close_period(workspace, say, end, afresh=afresh)
    except KeyboardInterrupt:
        if own is not None:
            close_left(workspace, own.id, "interrupted", "it was interrupted; the next update begins again")
        raise
    except (FairstreamError, OSError, MemoryError, SQLAlchemyError) as error:
        if own is None:  # it has not begun
            raise
        return _alert(workspace, _failed(workspace, own, error))
    return _alert(workspace, get(workspace.engine, running.id))


def close_left(workspace: Workspace, update_id: str, state: UpdateState, reason: str) -> None:
    """End an update that its process has left open; one that has ended stays as it is."""
    with suppress(FairstreamError), writing(workspace.engine) as connection:
        _end(connection, and_(_rows.c.id == update_id, _rows.c.state.in_(_OPEN)), state, reason=reason)


def fail_dead(workspace: Workspace) -> None:
    """Mark updates as failed that a dead process has left running, or that no process has started."""
    engine = workspace.engine
    with reading(engine) as connection:
        at = now_of(connection)
        # An update dated ahead was requested by a machine with a wrong clock.
        is_late = ~_rows.c.requested.between(at - _START_WITHIN, at + _START_WITHIN)
        never_started = and_(_rows.c.state == "queued", is_late)
        states = set(connection.scalars(select(_rows.c.state).where(or_(_rows.c.state == "running", never_started))))
    if "queued" in states:
        with writing(engine) as connection:
            _end(connection, never_started, "failed", reason="no process started it within 60 seconds")
    if "running" in states:
        with suppress(WorkspaceError), workspace.updating(), writing(engine) as connection:
            _fail_running(connection)


def _alert(workspace: Workspace, done: Update) -> Update:
    """Alert of a promotion, and of every `alerts.after`-th update in a row that promoted nothing; return the update."""
    n = 1
    with suppress(FairstreamError):
        n = max(1, n_unpromoted(workspace.engine))
    if done.state == "promoted":
        alert(workspace, "promoted", f"update {done.id} promoted model {done.model}: {done.reason}", update=done.id)
    elif done.state in ("rejected", "failed", "skipped"):
        sentence = f"update {done.id} {done.state}, {n} in a row without a promotion: {done.reason}"
        if n % workspace.config.alerts.after == 0:
            alert(workspace, done.state, sentence, update=done.id, in_a_row=n)
        else:
            _log.warning("%s", sentence)
    return done


def _failed(workspace: Workspace, queued: Update, error: Exception) -> Update:
    """Store that an update failed, and why; if the database fails, too, only the caller learns it."""
    reason = _sentence(error)
    close_left(workspace, queued.id, "failed", reason)
    with suppress(FairstreamError):
        return get(workspace.engine, queued.id)
    return queued.model_copy(update={"state": "failed", "reason": reason})


def _sentence(error: Exception) -> str:
    if isinstance(error, FairstreamError):
        return str(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory for an update"
    if isinstance(error, OSError):
        return f"{error.filename or 'the workspace'} cannot be written or read: {error.strerror or error}"
    return f"the database cannot be used: {str(getattr(error, 'orig', error)).splitlines()[0]}"


def _open_id(connection: Connection) -> str | None:
    return connection.scalar(select(_rows.c.id).where(_rows.c.state.in_(_OPEN)).limit(1))


def refuse_if_open(connection: Connection) -> None:
    """Raise `UpdateRunning` if an update has not ended; none is queued before the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE updates IN SHARE ROW EXCLUSIVE MODE")
    if (other := _open_id(connection)) is not None:
        raise UpdateRunning(other)


def _refuse_at_once(workspace: Workspace) -> None:
    """Raise `UpdateRunning` before waiting for the lock, which the other update may hold for long."""
    fail_dead(workspace)
    with reading(workspace.engine) as connection:
        if (other := _open_id(connection)) is not None:
            raise UpdateRunning(other)


def _request(connection: Connection, by: str, state: UpdateState) -> Update:
    refuse_if_open(connection)
    if (experiment := running_experiment(connection)) is not None:
        raise WorkspaceError(f"experiment {experiment} is running, and an update may change an arm; end it first")
    return _insert(connection, by, state)


def _insert(connection: Connection, by: str, state: UpdateState) -> Update:
    number = select(func.coalesce(func.max(_rows.c.number), 0) + 1).scalar_subquery()
    now, last, update_id = now_of(connection), last_seq(connection), f"u-{secrets.token_hex(8)}"
    times = {"requested": now, "started": now if state == "running" else None}
    values = {"id": update_id, "state": state, "number": number, "requested_by": by[:128], "last_seq": last, **times}
    connection.execute(insert(_rows).values(**values))
    return _get(connection, update_id)


def _begin(engine: Engine, queued: Update | None, by: str) -> Update:
    """Store that a queued update, or a new one, is running."""
    with writing(engine) as connection:
        _fail_running(connection)  # the holder of the lock knows that no other is running
        if queued is None:
            return _request(connection, by, "running")
        own = update(_rows).where(_rows.c.id == queued.id, _rows.c.state == "queued")
        if connection.execute(own.values(state="running", started=now_of(connection))).rowcount == 0:
            raise WorkspaceError(f"update {queued.id} is not queued any more; request another one")
    return queued


def _fail_running(connection: Connection) -> None:
    _end(connection, _rows.c.state == "running", "failed", reason="the process ended before the update did")


def _end(connection: Connection, those: ColumnElement[bool], state: UpdateState, **values: Any) -> None:
    """Store how updates have ended now."""
    connection.execute(update(_rows).where(those).values(state=state, finished=now_of(connection), **values))


def _is_due(connection: Connection, every: Every, limits: Limits) -> bool:
    at = now_of(connection)
    if running_experiment(connection) is not None:
        return False
    closed = select(func.coalesce(func.max(schema.periods.c.last_seq), 0), func.max(schema.periods.c.closed))
    (last_closed_seq, last_closed), latest = connection.execute(closed).one(), last_seq(connection)
    if latest <= last_closed_seq:
        return False
    before = connection.execute(_newest).first()
    if before is not None and before.state == "failed":
        longest = every.n * _SECOND if every.unit == "seconds" else _LONGEST_RETRY
        wait = min(longest, _FIRST_RETRY * 2 ** (_n_failed(connection) - 1))
        return not 0 <= at - before.finished < wait  # a time ahead is that of a wrong clock
    # The end of a history may have too few users to judge by; then it waits for more events.
    is_replaying = replay.goes_on(connection) and (before is None or before.state != "skipped")
    # A full period refuses events, so that a schedule of events would never be due.
    if is_replaying or is_full(latest - last_closed_seq, limits):
        return True
    if every.unit == "events":
        tried = before.last_seq if before is not None and before.state == "skipped" else 0
        return bool(latest - max(last_closed_seq, tried) >= every.n)
    created = select(func.min(schema.audit.c.time))
    since = before.requested if before is not None else last_closed or connection.scalar(created) or 0
    return since > at + _START_WITHIN or since <= every.latest(at / _SECOND) * _SECOND


def _n_failed(connection: Connection) -> int:
    """How many of the newest updates have failed in a row, up to ten."""
    states = list(connection.scalars(_newest.with_only_columns(_rows.c.state).limit(10)))
    return next((n for n, state in enumerate(states) if state != "failed"), len(states))
