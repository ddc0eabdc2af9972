"""Positions of a stream's source after each batch, so that a lost checkpoint can be replaced."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.add_column("activedb_ledger", sa.Column("position", sa.JSON))


def downgrade() -> None:
    op.drop_column("activedb_ledger", "position")
