"""Alembic's way in: it is handed a connection, and migrates in one transaction."""

from alembic import context

from fairstream.service.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, include_schemas=True, transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
connection.commit()
