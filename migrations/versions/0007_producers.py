"""Producers of streams, and the accuracy intervals of the events that they send."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_STAMPED = ("activedb_stream_events", "activedb_late_events")


def upgrade() -> None:
    op.create_table(
        "activedb_producers",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("known", sa.JSON, nullable=False),
    )
    for table in _STAMPED:
        op.add_column(table, sa.Column("stamp", sa.JSON))


def downgrade() -> None:
    for table in _STAMPED:
        op.drop_column(table, "stamp")
    op.drop_table("activedb_producers")
