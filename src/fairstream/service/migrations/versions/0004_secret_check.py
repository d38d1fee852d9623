"""A check value of the workspace's secret, so that a wrong secret is refused."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table; `Workspace.upgrade`, which knows the secret, fills it."""
    op.create_table(
        "secret_check",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), nullable=False),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("secret_check")
