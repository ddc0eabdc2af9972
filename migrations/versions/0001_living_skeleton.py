"""Ledger, buffered and late stream events, dead letters, pending firings."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "activedb_ledger",
        sa.Column("query_id", sa.String(100), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("stream", sa.String(200), nullable=False),
        sa.Column("sequence", sa.BigInteger, nullable=False),
        sa.Column("punctuation_us", sa.BigInteger),
        sa.Column("complete", sa.Boolean, nullable=False),
        sa.Column("events", sa.BigInteger, nullable=False),
        sa.Column("late", sa.BigInteger, nullable=False),
        sa.Column("dead", sa.BigInteger, nullable=False),
        sa.Column(
            "committed_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
        sa.UniqueConstraint("stream", "sequence", name="activedb_ledger_sequence"),
    )
    op.create_table(
        "activedb_stream_events",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("us", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
    )
    op.create_table(
        "activedb_late_events",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("query_id", sa.String(100), primary_key=True),
        sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("us", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("params", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_table(
        "activedb_dead_letters",
        sa.Column("source", sa.String(200), primary_key=True),
        sa.Column("identity", sa.String(400), primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("payload", sa.JSON, nullable=False),
        sa.Column("error", sa.String(200), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_table(
        "activedb_pending_firings",
        sa.Column("firing", sa.String(400), primary_key=True),
        sa.Column("run", sa.String(400), nullable=False),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("occurrence", sa.JSON, nullable=False),
        sa.Column("keep", sa.Boolean, nullable=False),
        sa.Column("done", sa.Boolean, nullable=False),
    )
    op.create_index("activedb_pending_firings_run", "activedb_pending_firings", ["run"])


def downgrade() -> None:
    for table in (
        "activedb_pending_firings",
        "activedb_dead_letters",
        "activedb_late_events",
        "activedb_stream_events",
        "activedb_ledger",
    ):
        op.drop_table(table)
