"""SQLite finds a user's events by a table that is written batch by batch, in place of an index."""

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Put the table in place of the index, and see to it that an event leaves both."""
    if op.get_bind().dialect.name != "sqlite":
        return
    op.execute("DROP INDEX events_of_user")
    op.execute(
        "CREATE TABLE events_of_user (user_id TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (user_id, seq)) "
        "WITHOUT ROWID"
    )
    op.execute("INSERT INTO events_of_user SELECT user_id, seq FROM events ORDER BY user_id, seq")
    op.execute(
        "CREATE TRIGGER events_leave_their_user AFTER DELETE ON events BEGIN "
        "DELETE FROM events_of_user WHERE user_id = old.user_id AND seq = old.seq; END"
    )


def downgrade() -> None:
    """Put the index back."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER events_leave_their_user")
        op.execute("DROP TABLE events_of_user")
        op.execute("CREATE INDEX events_of_user ON events (user_id)")
