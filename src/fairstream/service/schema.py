"""The tables. Times are whole microseconds since 1970 (UTC)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    select,
)

from fairstream.service.database import Json

PEOPLE = "people"
"""Where the sensitive attribute is kept apart: a schema of PostgreSQL, people.sqlite with SQLite."""

metadata = MetaData()
_BIG = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only in a column of exactly this type

events = Table(
    "events",
    metadata,
    Column("seq", _BIG, primary_key=True, autoincrement=True, comment="the order of arrival"),
    Column("event_id", Text, nullable=False, unique=True),
    Column("user_id", Text, nullable=False),
    Column("item_id", Text, nullable=False),
    Column("time", BigInteger, nullable=False, comment="when it happened"),
    sqlite_autoincrement=True,
)
"""Every event, once."""
Index("events_of_user", events.c.user_id).ddl_if(dialect="postgresql")

events_of_user = Table(
    "events_of_user",
    MetaData(),
    Column("user_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True),
    sqlite_with_rowid=False,
)
"""Where each user's events are, on SQLite alone: an index is written all over for every batch, and so takes four times
as long as everything else; into this table each batch goes in its order."""

attributes = Table(
    "attributes",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("value", Text, nullable=False),
    schema=PEOPLE,
)
"""Who belongs to which group: read by updates alone."""

periods = Table(
    "periods",
    metadata,
    Column("t", Integer, primary_key=True),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("closed", BigInteger, nullable=False),
    Column("n_events", BigInteger, nullable=False),
    Column("n_users", BigInteger, nullable=False),
    Column("n_late", BigInteger, nullable=False, comment="events dated before the last one of the period before"),
    Column("split_time", BigInteger, nullable=False, comment="time and number of the first held-out event:"),
    Column("split_seq", BigInteger, nullable=False, comment="those before it, by both, were learned at once"),
    Column("evaluation", Json, comment="how the model in service did on it, before learning anything of it"),
)
"""Each closed period: which events it holds, and how they judged the model in service."""

models = Table(
    "models",
    metadata,
    Column("id", String(32), primary_key=True, comment="its name for people"),
    Column("t", Integer, ForeignKey("periods.t"), nullable=False),
    Column("parent", String(32), comment="the model that it was fine-tuned from"),
    Column("state", String(16), nullable=False, comment="promoted, rejected or failed"),
    Column("folder", String(64), nullable=False, comment="where its files are; none of them is ever changed"),
    Column("created", BigInteger, nullable=False),
    Column("training_seconds", Float, nullable=False),
    Column("decision", Json, nullable=False, comment="the gate's checks, each with its numbers"),
    Column("about", Json, nullable=False, comment="configuration, data hash, versions, sizes"),
)
"""Every candidate there ever was."""

service = Table(
    "service",
    metadata,
    Column("id", Integer, primary_key=True, comment="always 1"),
    Column("model", String(32), ForeignKey("models.id"), nullable=False),
    Column("since", BigInteger, nullable=False),
)
"""Which model answers: the one row that a promotion changes."""

audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("time", BigInteger, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("body", Text, nullable=False, comment="canonical JSON"),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, comment="SHA-256 of previous, seq, time, kind and body"),
)
"""Every update and decision; rows can be added and nothing else, triggers see to that."""

keys = Table(
    "api_keys",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("scope", String(16), nullable=False, comment="ingest, attributes, read or admin"),
    Column("digest", String(64), nullable=False, unique=True, comment="SHA-256 of a random key"),
    Column("created", BigInteger, nullable=False),
    Column("revoked", BigInteger),
)

forgotten = Table(
    "forgotten",
    metadata,
    Column("digest", String(64), primary_key=True, comment="HMAC of the user's id with the workspace's secret"),
    Column("until", BigInteger, nullable=False, comment="events dated up to then are not taken again"),
    Column("requested", BigInteger, nullable=False),
    Column("completed", BigInteger, comment="when the attribute and every model were without the person"),
)
"""Who was forgotten, so that a replayed stream does not bring them back."""

secret_check = Table(
    "secret_check",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("digest", String(64), nullable=False, comment="HMAC of a fixed text with the workspace's secret"),
)
"""Which secret the workspace was made with: with any other it does not open."""

model_files = Table(
    "model_files",
    metadata,
    Column("folder", String(64), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
)
"""The files of the models where the database is PostgreSQL, for any machine to serve; SQLite has a folder beside it."""

items = Table(
    "items",
    metadata,
    Column("item_id", Text, primary_key=True),
    Column("available", Boolean, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
"""Items whose availability was set; all others are available."""

updates = Table(
    "updates",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("state", String(16), nullable=False, comment="queued, running, promoted, rejected, skipped or failed"),
    Column("reason", Text),
    Column("requested", BigInteger, nullable=False),
    Column("requested_by", String(128), nullable=False),
    Column("last_seq", BigInteger, nullable=False, comment="the last event that there was then"),
    Column("started", BigInteger),
    Column("finished", BigInteger),
    Column("t", Integer, comment="the period that it closed"),
    Column("model", String(32), comment="the candidate that it made"),
    Index("updates_by_time", "requested"),
)
"""Every update that was asked for, and how it ended."""


def of_users(dialect: Dialect, user_ids: Collection[str]) -> ColumnElement[bool]:
    """The condition that an event is of one of these users, for a look at their events alone."""
    if dialect.name == "postgresql":
        return events.c.user_id.in_(user_ids)
    return events.c.seq.in_(select(events_of_user.c.seq).where(events_of_user.c.user_id.in_(user_ids)))
