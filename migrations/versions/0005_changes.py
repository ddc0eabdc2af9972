"""Followers: how far the changes that a replication slot reports have been taken."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "activedb_followers",
        sa.Column("slot", sa.String(63), primary_key=True),
        sa.Column("lsn", sa.BigInteger),
        sa.Column(
            "since", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )


def downgrade() -> None:
    op.drop_table("activedb_followers")
