"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_PEOPLE = "people"
_NO_CHANGE = "the audit record can only be added to"


def upgrade() -> None:
    """Make everything."""
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    if not is_sqlite:
        op.execute(f"CREATE SCHEMA IF NOT EXISTS {_PEOPLE}")
    big = sa.Integer() if is_sqlite else sa.BigInteger()
    op.create_table(
        "events",
        sa.Column("seq", big, primary_key=True, autoincrement=True),
        sa.Column("event_id", sa.Text, nullable=False, unique=True),
        sa.Column("user_id", sa.Text, nullable=False),
        sa.Column("item_id", sa.Text, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("events_of_user", "events", ["user_id"])
    op.create_table(
        "attributes",
        sa.Column("user_id", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
        schema=_PEOPLE,
    )
    op.create_table(
        "periods",
        sa.Column("t", sa.Integer, primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("first_seq", "last_seq", "closed")),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("n_events", "n_users", "n_late", "n_learnable")),
        sa.Column("judgement", sa.Text),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("t", sa.Integer, sa.ForeignKey("periods.t"), nullable=False),
        sa.Column("parent", sa.String(32)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("seconds", sa.BigInteger, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("about", sa.Text, nullable=False),
    )
    op.create_table(
        "service",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("model", sa.String(32), sa.ForeignKey("models.id"), nullable=False),
        sa.Column("since", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
    )
    op.create_table(
        "api_keys",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("revoked", sa.BigInteger),
    )
    op.create_table(
        "forgotten",
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("time", sa.BigInteger, nullable=False),
    )
    _guard_audit(is_sqlite)


def _guard_audit(is_sqlite: bool) -> None:
    if is_sqlite:
        for action in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{action.lower()} BEFORE {action} ON audit "
                f"BEGIN SELECT RAISE(ABORT, '{_NO_CHANGE}'); END"
            )
        return
    op.execute(
        f"CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_NO_CHANGE}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_guard()"
    )


def downgrade() -> None:
    """There is nothing before the first tables."""
    raise RuntimeError("there is nothing before the first tables; remove the workspace instead")
