"""Running the Alembic migrations, from the source tree or from an installed package."""

from __future__ import annotations

import logging
from pathlib import Path

from sqlalchemy import Connection, Engine, column, inspect, select, table, text

from activedb.errors import ConfigurationError
from activedb.store._faults import translated

__all__ = ["upgrade"]

_VERSION_TABLE = "activedb_version"
_DIGITS = 4  # what names of migrations, and versions, begin with
_LATCH = 0x61637469_76656462 >> 1  # one migration at a time, on an advisory lock of its own


def upgrade(engine: Engine) -> None:
    """Bring activedb's own tables to the newest version; cheap when they are there already.

    Safe when several processes start at once. O(1) round trips when there is nothing to do.

    Raises
    ------
    ConfigurationError
        If a newer activedb has made them.
    """
    newest = max(path.name[:_DIGITS] for path in (_folder() / "versions").glob("[0-9]*.py"))
    with translated("migrate activedb's tables"), engine.begin() as connection:
        found = _version(connection)
        if found == newest:
            return
        if found is not None and found > newest:
            raise ConfigurationError(
                f"activedb's tables are of version {found}, and this activedb knows those up to "
                f"{newest}: install the newer activedb that has made them"
            )
        _upgrade(connection)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    return connection.scalar(select(column("version_num")).select_from(table(_VERSION_TABLE)))


def _upgrade(connection: Connection) -> None:
    from alembic import command  # takes longer to import than all there is to look up
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    connection.execute(text("SELECT pg_advisory_xact_lock(:latch)"), {"latch": _LATCH})
    config = Config()
    config.set_main_option("script_location", str(_folder()))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = _VERSION_TABLE
    command.upgrade(config, "head")


def _folder() -> Path:
    here = Path(__file__).resolve()
    for folder in (here.parent / "migrations", here.parents[2] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError("activedb's migrations are missing; reinstall the package")
