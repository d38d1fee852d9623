"""All tables of 0.3. Before the first change of `schema`, write them out here: a migration must not change."""

from alembic import op
from sqlalchemy import MetaData

from fairstream.service.schema import attributes, events_of_user, metadata

revision = "0006"
down_revision = None

_NO_CHANGE = "the audit record can only be added to"
_SQLITE = (
    # An event leaves both tables.
    "CREATE TRIGGER events_leave_their_user AFTER DELETE ON events BEGIN "
    "DELETE FROM events_of_user WHERE user_id = old.user_id AND seq = old.seq; END",
    f"CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{_NO_CHANGE}'); END",
    f"CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, '{_NO_CHANGE}'); END",
)
_POSTGRES = (
    f"CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN RAISE EXCEPTION '{_NO_CHANGE}'; END $$",
    "CREATE TRIGGER audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
    "FOR EACH STATEMENT EXECUTE FUNCTION audit_guard()",
)


def upgrade() -> None:
    """Create everything."""
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    metadata.create_all(connection)
    attributes.to_metadata(MetaData(), schema=connection.get_execution_options()["people_schema"]).create(connection)
    if is_sqlite:
        events_of_user.create(connection)
    for statement in _SQLITE if is_sqlite else _POSTGRES:
        op.execute(statement)
