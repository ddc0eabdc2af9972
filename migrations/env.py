"""Alembic's entry: migrations of activedb's own tables run on the connection handed in."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,
)
context.run_migrations()
