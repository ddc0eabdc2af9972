"""Alembic's entry: migrations of activedb's own tables.

They run on the connection handed in; without one they are written as a script.
"""

from alembic import context

attributes = context.config.attributes
options = {"version_table": attributes["version_table"], "transactional_ddl": True}
if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, **options)
    with context.begin_transaction():
        for statement in attributes["first"]:
            context.execute(statement)
        context.run_migrations()
else:
    context.configure(connection=attributes["connection"], **options)
    context.run_migrations()
