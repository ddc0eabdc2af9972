"""Batches of workflows: what there is, which transactions made them, and what is due."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "activedb_workflows",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("forming", sa.JSON, nullable=False),
        sa.Column("due", sa.JSON, nullable=False),
        sa.Column("origins", sa.JSON, nullable=False),
    )
    op.create_table(
        "activedb_batches",
        sa.Column("workflow", sa.String(100), primary_key=True),
        sa.Column("id", sa.String(400), primary_key=True),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("stream", sa.String(100), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("producer", sa.String(400), nullable=False),
        sa.Column("reader", sa.String(100), nullable=False),
        sa.Column("pieces", sa.JSON, nullable=False),
        sa.Column("rows", sa.JSON),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("is_withdrawn", sa.Boolean, nullable=False),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.UniqueConstraint("workflow", "place", name="activedb_batches_place"),
    )
    op.create_table(
        "activedb_batch_transactions",
        sa.Column("workflow", sa.String(100), primary_key=True),
        sa.Column("id", sa.String(400), primary_key=True),
        sa.Column("place", sa.BigInteger, nullable=False),
        sa.Column("program", sa.String(100), nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.Column("output", sa.String(400), nullable=False),
        sa.Column("triggered_by", sa.JSON, nullable=False),
        sa.Column("arguments", sa.JSON),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.UniqueConstraint("workflow", "place", name="activedb_batch_transactions_place"),
    )
    op.create_table(
        "activedb_batch_edges",
        sa.Column("workflow", sa.String(100), primary_key=True),
        sa.Column("earlier", sa.String(400), primary_key=True),
        sa.Column("later", sa.String(400), primary_key=True),
    )
    op.create_index(
        "activedb_batch_edges_up", "activedb_batch_edges", ["workflow", "later", "earlier"]
    )


def downgrade() -> None:
    op.drop_table("activedb_batch_edges")
    op.drop_table("activedb_batch_transactions")
    op.drop_table("activedb_batches")
    op.drop_table("activedb_workflows")
