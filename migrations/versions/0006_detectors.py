"""Detectors: what they keep for later matches, so that it survives a restart."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "activedb_detector_states",
        sa.Column("rule", sa.String(200), primary_key=True),
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("holder", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("state", sa.JSON, nullable=False),
    )
    op.create_table(
        "activedb_partials",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("rule", sa.String(200), nullable=False),
        sa.Column("holder", sa.BigInteger, nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("us", sa.BigInteger, nullable=False),
        sa.Column("occurrence", sa.JSON, nullable=False),
    )
    op.create_index("activedb_partials_rule", "activedb_partials", ["rule", "holder", "us"])


def downgrade() -> None:
    op.drop_table("activedb_partials")
    op.drop_table("activedb_detector_states")
