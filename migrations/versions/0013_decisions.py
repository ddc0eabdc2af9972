"""Choices that detectors leave open because the order of the events is unknown."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "activedb_decisions",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("stream", sa.String(200), nullable=False),
        sa.Column("holder", sa.BigInteger, nullable=False),
        sa.Column("identity", sa.String(64), nullable=False),
        sa.Column("us", sa.BigInteger, nullable=False),
        sa.Column("choice", sa.JSON, nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("chosen", sa.JSON),
        sa.Column("decided_by", sa.String(200)),
        sa.Column("decided_at", sa.DateTime(timezone=True)),
        sa.Column(
            "recorded_at",
            sa.DateTime(timezone=True),
            server_default=sa.func.now(),
            nullable=False,
        ),
    )
    op.create_index("activedb_decisions_rule", "activedb_decisions", ["rule", "status"])


def downgrade() -> None:
    op.drop_table("activedb_decisions")
