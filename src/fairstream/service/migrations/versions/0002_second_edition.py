"""Immutable model folders, updates as rows, withdrawn items, models in PostgreSQL; names of the second edition."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Change the tables, keeping every row."""
    connection = op.get_bind()
    with op.batch_alter_table("periods") as table:
        table.alter_column("judgement", new_column_name="evaluation", existing_type=sa.Text)
        table.add_column(sa.Column("split_time", sa.BigInteger))
        table.add_column(sa.Column("split_seq", sa.BigInteger))
    _set_splits(connection)
    with op.batch_alter_table("periods") as table:
        table.alter_column("split_time", existing_type=sa.BigInteger, nullable=False)
        table.alter_column("split_seq", existing_type=sa.BigInteger, nullable=False)
        table.drop_column("n_learnable")
    with op.batch_alter_table("models") as table:
        table.add_column(sa.Column("folder", sa.String(64)))
        table.add_column(sa.Column("training_seconds", sa.Float))
    connection.execute(sa.text("UPDATE models SET folder = id, training_seconds = seconds / 1000000.0"))
    connection.execute(sa.text("UPDATE models SET state = 'rejected' WHERE state = 'held'"))
    _rename_evaluations(connection)
    with op.batch_alter_table("models") as table:
        table.alter_column("folder", existing_type=sa.String(64), nullable=False)
        table.alter_column("training_seconds", existing_type=sa.Float, nullable=False)
        table.drop_column("seconds")
    with op.batch_alter_table("forgotten") as table:
        table.alter_column("time", new_column_name="until", existing_type=sa.BigInteger)
        table.add_column(sa.Column("requested", sa.BigInteger))
        table.add_column(sa.Column("completed", sa.BigInteger))
    connection.execute(sa.text("UPDATE forgotten SET requested = until, completed = until"))
    with op.batch_alter_table("forgotten") as table:
        table.alter_column("requested", existing_type=sa.BigInteger, nullable=False)
    op.create_table(
        "model_files",
        sa.Column("folder", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "items",
        sa.Column("item_id", sa.Text, primary_key=True),
        sa.Column("available", sa.Boolean, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "updates",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("requested", sa.BigInteger, nullable=False),
        sa.Column("requested_by", sa.String(128), nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("started", sa.BigInteger),
        sa.Column("finished", sa.BigInteger),
        sa.Column("t", sa.Integer),
        sa.Column("model", sa.String(32)),
    )
    op.create_index("updates_by_time", "updates", ["requested"])


def _set_splits(connection: sa.Connection) -> None:
    """The first event that was held out, in place of how many were not."""
    text = sa.text
    rows = connection.execute(text("SELECT t, first_seq, last_seq, n_events, n_learnable FROM periods")).all()
    for t, first_seq, last_seq, n_events, n_learnable in rows:
        where = {"first": first_seq, "last": last_seq}
        n_left = connection.execute(
            text("SELECT count(*) FROM events WHERE seq BETWEEN :first AND :last"), where
        ).scalar_one()
        split = connection.execute(
            text(
                "SELECT time, seq FROM events WHERE seq BETWEEN :first AND :last ORDER BY time, seq "
                "LIMIT 1 OFFSET :skipped"
            ),
            {**where, "skipped": max(0, n_learnable - (n_events - n_left))},
        ).first()
        time, seq = (split.time, split.seq) if split else (2**62, last_seq + 1)
        connection.execute(
            text("UPDATE periods SET split_time = :time, split_seq = :seq WHERE t = :t"),
            {"time": time, "seq": seq, "t": t},
        )


def _rename_evaluations(connection: sa.Connection) -> None:
    for row in connection.execute(sa.text("SELECT id, about FROM models")).all():
        about = json.loads(row.about)
        if "judgement" in about:
            about["evaluation"] = about.pop("judgement")
            text = json.dumps(about, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            connection.execute(
                sa.text("UPDATE models SET about = :about WHERE id = :id"), {"about": text, "id": row.id}
            )


def downgrade() -> None:
    """Models that were written by this version have no name in the first one."""
    raise RuntimeError("a workspace of the second edition cannot be used by the first; restore a backup instead")
