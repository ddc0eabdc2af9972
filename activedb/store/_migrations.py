"""Running the Alembic migrations, from the source tree or from an installed package."""

from __future__ import annotations

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from activedb.errors import ConfigurationError
from activedb.store._faults import translated

__all__ = ["upgrade"]

_VERSION_TABLE = "activedb_version"
_LATCH = 0x61637469_76656462 >> 1  # one migration at a time, on an advisory lock of its own


def upgrade(engine: Engine) -> None:
    """Bring activedb's own tables to the newest version; cheap when they are there already.

    Safe when several processes start at once. O(1) round trips when there is nothing to do.
    """
    config = Config()
    config.set_main_option("script_location", str(_folder()))
    newest = ScriptDirectory.from_config(config).get_current_head()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    with translated("migrate activedb's tables"), engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": _VERSION_TABLE})
        if context.get_current_revision() == newest:
            return
        connection.execute(text("SELECT pg_advisory_xact_lock(:latch)"), {"latch": _LATCH})
        config.attributes["connection"] = connection
        config.attributes["version_table"] = _VERSION_TABLE
        command.upgrade(config, "head")


def _folder() -> Path:
    here = Path(__file__).resolve()
    for folder in (here.parent / "migrations", here.parents[2] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError("activedb's migrations are missing; reinstall the package")
