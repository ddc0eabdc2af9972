"""Firings with holders and intents, and rules in quarantine."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_FIRINGS = "activedb_pending_firings"


def upgrade() -> None:
    op.add_column(
        _FIRINGS, sa.Column("intent", sa.Boolean, server_default=sa.false(), nullable=False)
    )
    op.add_column(_FIRINGS, sa.Column("holder", sa.BigInteger))
    op.add_column(
        _FIRINGS,
        sa.Column(
            "recorded_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False
        ),
    )
    op.create_index(
        "activedb_pending_firings_free",
        _FIRINGS,
        ["recorded_at", "firing"],
        postgresql_where=sa.text("holder IS NULL AND NOT done"),
    )
    op.add_column("activedb_rules", sa.Column("quarantine", sa.Text))


def downgrade() -> None:
    op.drop_column("activedb_rules", "quarantine")
    op.drop_index("activedb_pending_firings_free", _FIRINGS)
    for name in ("recorded_at", "holder", "intent"):
        op.drop_column(_FIRINGS, name)
