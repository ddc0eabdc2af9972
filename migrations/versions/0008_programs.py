"""Programs over shared tables: versions that windows still need, outputs, rules' detectors."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "activedb_versions",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("arrival", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.JSON),
        sa.Column("removed", sa.Boolean, nullable=False),
    )
    op.create_table(
        "activedb_outputs",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("program", sa.String(200), primary_key=True),
        sa.Column("us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("arrival", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("output", sa.JSON),
        sa.Column("reason", sa.Text),
    )
    op.create_table(
        "activedb_program_states",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("program", sa.String(200), primary_key=True),
        sa.Column("state", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("activedb_program_states")
    op.drop_table("activedb_outputs")
    op.drop_table("activedb_versions")
