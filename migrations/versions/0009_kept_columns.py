"""State that the parts of a stream that are processed in columns leave behind."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "activedb_kept_columns",
        sa.Column("stream", sa.String(200), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("piece", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last_us", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    # It is small already, and deleted soon: to compress it would take longer than to write it.
    op.execute("ALTER TABLE activedb_kept_columns ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("activedb_kept_columns")
