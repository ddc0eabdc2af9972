"""Data that Spark queries stage and publish: rows, batches, and the progress of each query."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "activedb_sinks",
        sa.Column("kind", sa.String(10), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("query_id", sa.String(100), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, nullable=False),
        sa.Column("known", sa.JSON),
        sa.Column(
            "published_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )
    op.create_table(
        "activedb_staged_batches",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("query_id", sa.String(100), nullable=False),
        sa.Column("rows", sa.BigInteger, nullable=False),
        sa.Column(
            "published_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )
    op.create_table(
        "activedb_staged_rows",
        sa.Column("query_id", sa.String(100), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("writer", sa.String(32), primary_key=True),
        sa.Column("piece", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("place", sa.Integer),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    # It is deleted soon: to compress it would take longer than to write it.
    op.execute("ALTER TABLE activedb_staged_rows ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("activedb_staged_rows")
    op.drop_table("activedb_staged_batches")
    op.drop_table("activedb_sinks")
