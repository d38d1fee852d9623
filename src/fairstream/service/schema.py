"""The tables. Times are whole microseconds since 1970 (UTC)."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import Column

PEOPLE = "people"  # where the sensitive attribute is kept apart: a schema of PostgreSQL, people.sqlite with SQLite

metadata = sa.MetaData()
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite counts up only in a column of exactly this type

events = sa.Table(  # every event, once
    "events",
    metadata,
    Column("seq", _BIG, primary_key=True, autoincrement=True, comment="the order of arrival"),
    Column("event_id", sa.Text, nullable=False, unique=True),
    Column("user_id", sa.Text, nullable=False),
    Column("item_id", sa.Text, nullable=False),
    Column("time", sa.BigInteger, nullable=False, comment="when it happened"),
    Column("kind", sa.Text, nullable=False, server_default="event", comment="one of [events] kinds"),
    sqlite_autoincrement=True,
)
sa.Index("events_of_user", events.c.user_id).ddl_if(dialect="postgresql")

events_of_user = sa.Table(
    "events_of_user",
    sa.MetaData(),
    Column("user_id", sa.Text, primary_key=True),
    Column("seq", sa.Integer, primary_key=True),
    sqlite_with_rowid=False,
)
"""Where each user's events are, only on SQLite: it gets each batch in order, where an index would be written in many
places and take four times as long as everything else."""

attributes = sa.Table(  # the group of each user, in the schema of people
    "attributes",
    sa.MetaData(),
    Column("user_id", sa.Text, primary_key=True),
    Column("value", sa.Text, nullable=False),
)

periods = sa.Table(  # closed periods: their events, and how these judged the model in service
    "periods",
    metadata,
    Column("t", sa.Integer, primary_key=True, autoincrement=False),
    Column("first_seq", sa.BigInteger, nullable=False),
    Column("last_seq", sa.BigInteger, nullable=False),
    Column("closed", sa.BigInteger, nullable=False),
    Column("n_events", sa.BigInteger, nullable=False),
    Column("n_users", sa.BigInteger, nullable=False),
    Column("n_late", sa.BigInteger, nullable=False, comment="events dated before the last one of the period before"),
    Column("latest_time", sa.BigInteger, nullable=False, comment="of its events, by their own time"),
    Column("held_out", sa.Float, nullable=False, comment="the share of its users whose latest events were held out"),
    Column("max_of_user", sa.BigInteger, nullable=False, comment="events of one user from this number on do not count"),
    Column("replay_until", sa.BigInteger, comment="the last event of the history that is replayed, if one is"),
    Column("evaluation", sa.JSON(none_as_null=True), comment="of the model in service, before it learned the period"),
)

models = sa.Table(  # every candidate
    "models",
    metadata,
    Column("id", sa.String(32), primary_key=True, comment="its name for people"),
    Column("t", sa.Integer, sa.ForeignKey("periods.t"), nullable=False),
    Column("parent", sa.String(32), comment="the model that it was fine-tuned from"),
    Column("state", sa.String(16), nullable=False, comment="promoted, rejected or failed"),
    Column("folder", sa.String(64), nullable=False, comment="where its files are; none of them is ever changed"),
    Column("created", sa.BigInteger, nullable=False),
    Column("training_seconds", sa.Float, nullable=False),
    Column("decision", sa.JSON, nullable=False, comment="the gate's checks, each with its numbers"),
    Column("about", sa.JSON, nullable=False, comment="configuration, data hash, versions, sizes"),
)

service = sa.Table(  # the model in service: the one row that a promotion changes
    "service",
    metadata,
    Column("id", sa.Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("model", sa.String(32), sa.ForeignKey("models.id"), nullable=False),
    Column("since", sa.BigInteger, nullable=False),
)

audit = sa.Table(  # every update and decision; triggers let nobody change or delete a row
    "audit",
    metadata,
    Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    Column("time", sa.BigInteger, nullable=False),
    Column("kind", sa.String(32), nullable=False),
    Column("body", sa.Text, nullable=False, comment="canonical JSON"),
    Column("previous", sa.String(64), nullable=False),
    Column("hash", sa.String(64), nullable=False, comment="SHA-256 of previous, seq, time, kind and body"),
)

keys = sa.Table(
    "api_keys",
    metadata,
    Column("name", sa.String(64), primary_key=True),
    Column("scope", sa.String(16), nullable=False, comment="ingest, attributes, read or admin"),
    Column("digest", sa.String(64), nullable=False, unique=True, comment="SHA-256 of a random key"),
    Column("created", sa.BigInteger, nullable=False),
    Column("revoked", sa.BigInteger),
)

forgotten = sa.Table(  # who was forgotten, so that a replayed stream does not bring them back
    "forgotten",
    metadata,
    Column("digest", sa.String(64), primary_key=True, comment="HMAC of the user's id with the workspace's secret"),
    Column("user_id", sa.Text, comment="the id, until the request is completed"),
    Column("until", sa.BigInteger, nullable=False, comment="events dated up to then are rejected"),
    Column("requested", sa.BigInteger, nullable=False),
    Column("completed", sa.BigInteger, comment="when the attribute and every model were without the person"),
)

secret_check = sa.Table(  # the workspace opens with no other secret
    "secret_check",
    metadata,
    Column("id", sa.Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("digest", sa.String(64), nullable=False, comment="HMAC of a fixed text with the workspace's secret"),
)

model_files = sa.Table(  # the files of the models, with PostgreSQL: any machine can serve them
    "model_files",
    metadata,
    Column("folder", sa.String(64), primary_key=True),
    Column("name", sa.String(128), primary_key=True),
    Column("part", sa.Integer, primary_key=True, autoincrement=False),
    Column("content", sa.LargeBinary, nullable=False),
)

items = sa.Table(  # the catalogue; an item that is not in it has no properties and is available
    "items",
    metadata,
    Column("item_id", sa.Text, primary_key=True),
    Column("available", sa.Boolean, nullable=False),
    Column("properties", sa.Text, nullable=False, comment="a JSON object"),
    Column("changed", sa.BigInteger, nullable=False),
    Column("version", sa.BigInteger, nullable=False, comment="of `changes` for items when the row was written"),
    sa.Index("items_by_version", "version", "item_id"),
)

changes = sa.Table(  # how often something has changed: processes poll these few rows instead of whole tables
    "changes",
    metadata,
    Column("name", sa.String(32), primary_key=True, comment="items, rules, forgotten or experiment"),
    Column("version", sa.BigInteger, nullable=False),
)

rules = sa.Table(  # what shapes every list after ranking: one row
    "rules",
    metadata,
    Column("id", sa.Integer, primary_key=True, autoincrement=False, comment="always 1"),
    Column("rules", sa.Text, nullable=False, comment="a JSON list"),
    Column("changed", sa.BigInteger, nullable=False),
)

updates = sa.Table(  # every update that was requested, and how it ended
    "updates",
    metadata,
    Column("id", sa.String(32), primary_key=True),
    Column("number", sa.BigInteger, nullable=False, unique=True, comment="the order of the requests"),
    Column("state", sa.String(16), nullable=False, comment="queued, running, or how it ended"),
    Column("reason", sa.Text),
    Column("requested", sa.BigInteger, nullable=False),
    Column("requested_by", sa.String(128), nullable=False),
    Column("last_seq", sa.BigInteger, nullable=False, comment="the last event that there was then"),
    Column("started", sa.BigInteger),
    Column("finished", sa.BigInteger),
    Column("t", sa.Integer, comment="the period that it closed"),
    Column("model", sa.String(32), comment="the candidate that it made"),
)

impressions = sa.Table(  # lists that people saw: a row for each list, for reports and off-policy estimates
    "impressions",
    metadata,
    Column("seq", _BIG, primary_key=True, autoincrement=True, comment="the order of arrival"),
    Column("id", sa.String(64), nullable=False, unique=True, comment="a list that is sent again is stored once"),
    Column("user_id", sa.Text, nullable=False),
    Column("time", sa.BigInteger, nullable=False, comment="when it was shown"),
    Column("items", sa.JSON, nullable=False, comment="in the order of their positions"),
    Column("outcomes", sa.Text, nullable=False, comment="a digit for each item: 0 nothing, 1 clicked, 2 converted"),
    Column("list_id", sa.Text),
    Column("placement", sa.Text),
    Column("model", sa.String(32), nullable=False, comment="empty: popularity"),
    Column("experiment", sa.String(32), nullable=False, comment="empty: none"),
    Column("arms", sa.Text, nullable=False, comment="A or B; of an interleaved list a or b for each item"),
    Column("propensities", sa.JSON, nullable=False, comment="the probability that it was shown, for each item"),
    sa.Index("impressions_of_user", "user_id", "time"),
    sqlite_autoincrement=True,
)

impression_counts = sa.Table(  # the same by the hour: a report reads these few rows
    "impression_counts",
    metadata,
    Column("hour", sa.BigInteger, primary_key=True, autoincrement=False, comment="hours since 1970"),
    Column("experiment", sa.String(32), primary_key=True),
    Column("arm", sa.String(1), primary_key=True),
    Column("model", sa.String(32), primary_key=True),
    Column("what", sa.String(80), primary_key=True, comment="such as lists, shown, clicked or converted"),
    Column("n", sa.BigInteger, nullable=False),
)

experiments = sa.Table(  # experiments on people; at most one is running
    "experiments",
    metadata,
    Column("id", sa.String(32), primary_key=True),
    Column("state", sa.String(16), nullable=False, comment="running or ended"),
    Column("mode", sa.String(16), nullable=False, comment="split, interleave or shadow"),
    Column("a", sa.String(32), nullable=False, comment="the model in service when it started"),
    Column("b", sa.String(32), nullable=False),
    Column("options", sa.JSON, nullable=False),
    Column("share", sa.Float, nullable=False, comment="of the users who get B; as many are compared with them"),
    Column("started", sa.BigInteger, nullable=False),
    Column("step_since", sa.BigInteger, nullable=False, comment="when the share was last changed"),
    Column("looks", sa.JSON, nullable=False, comment="the latest results"),
    Column("ended", sa.BigInteger),
    Column("decision", sa.JSON(none_as_null=True)),
)

experiment_users = sa.Table(  # what each user of an experiment was shown, and did
    "experiment_users",
    metadata,
    Column("experiment", sa.String(32), primary_key=True),
    Column("user_id", sa.Text, primary_key=True),
    Column("arm", sa.String(1), nullable=False),
    Column("shown", sa.Integer, nullable=False, comment="items"),
    Column("clicked", sa.Integer, nullable=False),
    Column("converted", sa.Integer, nullable=False),
    Column("vote", sa.Integer, nullable=False, comment="of an interleaved list: 1 for B, -1 for A, 0 for neither"),
    sa.Index("experiment_users_by_user", "user_id"),
)

open_events = sa.Table(  # how many events of the open period each ingest key has sent
    "open_events",
    metadata,
    Column("key", sa.String(64), primary_key=True, comment="the name of the key"),
    Column("n", sa.BigInteger, nullable=False),
)


privacy_spent = sa.Table(  # what was published about groups, and what it cost of the privacy budget
    "privacy_spent",
    metadata,
    Column("seq", _BIG, primary_key=True, autoincrement=True),
    Column("time", sa.BigInteger, nullable=False),
    Column("what", sa.String(16), nullable=False, comment="sizes, report, gate or target"),
    Column("cost", sa.Float, nullable=False, comment="squared mu of Gaussian differential privacy: costs add up"),
    Column("published", sa.JSON, nullable=False, comment="of sizes: the size of each group, with noise"),
    sqlite_autoincrement=True,
)

tested_users = sa.Table(  # each user's last test since numbers of groups were published
    "tested_users",
    metadata,
    Column("user_id", sa.Text, primary_key=True),
    Column("t", sa.Integer, nullable=False, comment="the period"),
    Column("value", sa.Float, nullable=False, comment="NDCG"),
)

ended_sessions = sa.Table(  # sessions of the dashboard that were signed out of before their cookies end
    "ended_sessions",
    metadata,
    Column("digest", sa.String(64), primary_key=True, comment="SHA-256 of the session's token"),
    Column("until", sa.BigInteger, nullable=False, comment="when the cookie ends by itself"),
)


def of_users(dialect: sa.Dialect, user_ids: Collection[str]) -> sa.ColumnElement[bool]:
    """Return the condition that an event is of one of these users; it reads only their events."""
    if dialect.name == "postgresql":
        return events.c.user_id.in_(user_ids)
    return events.c.seq.in_(sa.select(events_of_user.c.seq).where(events_of_user.c.user_id.in_(user_ids)))
