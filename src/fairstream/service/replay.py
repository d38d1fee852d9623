"""Imported history as periods: its first half makes the first model, the rest is replayed as if it had just happened.

An ordinary update closes each period. Every period of the history stores the history's last event, so that the next
update continues a replay that was killed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Engine, func, select

from fairstream.service import schema
from fairstream.service.database import reading, writing
from fairstream.service.event_store import last_seq, one_writer
from fairstream.service.records import Period
from fairstream.service.schema import events

PERIODS = 10  # after the first one
_DAY = 86_400_000_000
_BY_TIME = "SELECT seq AS old, row_number() OVER (ORDER BY time, seq) AS new FROM events"
_LATE = (
    "SELECT 1 FROM (SELECT time, lag(time) OVER (ORDER BY seq) AS before FROM events) AS pairs "
    "WHERE time < before LIMIT 1"
)


def ends(engine: Engine, periods: Sequence[Period], *, at_once: bool = False) -> Iterator[tuple[int, int | None]]:
    """Yield possible ends of the next period, each with the last event of the replayed history, if there is one.

    If a part of the history has too few users to judge by, the next part joins it.
    """
    until, first = None, periods[-1].last_seq + 1 if periods else 1
    if not at_once:
        until = periods[-1].replay_until if periods else _begin(engine)
    if until is not None and first <= until:
        of_history = select(events.c.seq).where(events.c.seq >= first, events.c.seq <= until).order_by(events.c.seq)
        n_parts = PERIODS - periods[-1].t if periods else 2  # the first one is a half
        with reading(engine) as connection:
            n = connection.scalar(select(func.count()).select_from(of_history.subquery())) or 0
            last = [n * part // n_parts - 1 for part in range(1, n_parts)]
            seqs = [connection.scalars(of_history.offset(at).limit(1)).one() for at in last if at >= 0]
        yield from ((end, until) for end in (*seqs, until))
    with reading(engine) as connection:
        yield last_seq(connection), None


def goes_on(connection: Connection) -> bool:
    """Whether a part of the history has not been replayed yet."""
    last = connection.execute(select(schema.periods).order_by(schema.periods.c.t.desc()).limit(1)).first()
    return last is not None and last.replay_until is not None and last.last_seq < last.replay_until


def _begin(engine: Engine) -> int | None:
    """Number the events by their time, if they span more than a day; return the last number, else None."""
    with reading(engine) as connection:
        earliest, latest = connection.execute(select(func.min(events.c.time), func.max(events.c.time))).one()
        if earliest is None or latest - earliest <= _DAY:
            return None
        if connection.exec_driver_sql(_LATE).first() is None:  # they are sorted
            return last_seq(connection)
    with writing(engine) as connection:
        one_writer(connection)
        # In two steps, because no two rows may have the same number in between.
        connection.exec_driver_sql(
            f"UPDATE events SET seq = -sorted.new FROM ({_BY_TIME}) AS sorted WHERE events.seq = sorted.old"  # noqa: S608
        )
        connection.exec_driver_sql("UPDATE events SET seq = -seq")
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("DELETE FROM events_of_user")
            connection.exec_driver_sql(
                "INSERT INTO events_of_user (user_id, seq) SELECT user_id, seq FROM events ORDER BY user_id, seq"
            )
        return last_seq(connection)
