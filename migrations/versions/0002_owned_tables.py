"""Tables that one process keeps in its memory."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "activedb_owned_tables",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column(
            "owned_since", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )
