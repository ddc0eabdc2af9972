"""Alembic migrations, run from the source tree or from an installed package."""

from __future__ import annotations

import ast
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection, Engine, column, inspect, select, table, text
from sqlalchemy.exc import ProgrammingError

from activedb.errors import ConfigurationError
from activedb.store.server._driver_errors import translate_errors
from activedb.store.server._quoting import literal, quoted

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["Migrations", "migration_sql", "migrations", "upgrade"]

T = TypeVar("T")

_VERSION_TABLE = "activedb_version"
_DIGITS = 4  # length of the version, with which the names of migrations begin
_RIGHT_MISSING = "42501"
_LOCK_TIMEOUT = text("SELECT set_config('lock_timeout', :limit, true)")
_LATCH = 0x61637469_76656462 >> 1  # advisory lock: one migration at a time


@dataclass(frozen=True, slots=True)
class Migrations:
    """Version of activedb's tables, and the migrations still to be run.

    Attributes
    ----------
    found : str or None
        Version of the tables; None if there are none.
    newest : str
        Version to which this activedb migrates them.
    due : tuple of (str, str)
        Version and purpose of each pending migration, in order.
    """

    found: str | None
    newest: str
    due: tuple[tuple[str, str], ...]

    @property
    def are_newer(self) -> bool:
        """True if a newer activedb has made the tables."""
        return self.found is not None and self.found > self.newest


def migrations(connection: Connection | None) -> Migrations:
    """Return the effect of `upgrade`; None: on a new database. One or two round trips."""
    found = None if connection is None else _version(connection)
    due = tuple(
        (path.name[:_DIGITS], _purpose(path))
        for path in _files()
        if found is None or path.name[:_DIGITS] > found
    )
    return Migrations(found, _files()[-1].name[:_DIGITS], due)


def migration_sql(found: str | None, *, schema: str | None = None) -> str:
    """Return the migrations after a version as an SQL script; None: all migrations.

    Needs no connection. The script does the same as `upgrade`, in one transaction. It works in
    `schema`, which it creates if that is missing; None: in the schema of the search path.

    Raises
    ------
    ValueError
        If there is no such version.
    """
    from alembic import command

    known = [path.name[:_DIGITS] for path in _files()]
    if found is not None and found not in known:
        raise ValueError(f"there is no version {found!r}; there are {', '.join(known)}")
    script = io.StringIO()
    config = _config()
    config.output_buffer = script
    config.attributes["first"] = () if schema is None else _to_schema(schema)
    command.upgrade(config, f"{found or 'base'}:head", sql=True)
    return script.getvalue()


def _to_schema(schema: str) -> tuple[str, str]:
    """Return the statements that begin a script in a schema; its owner may be unable to make it."""
    name = quoted(schema)
    is_missing = f"pg_catalog.to_regnamespace({literal(name)}) IS NULL"
    make = f"DO $$ BEGIN IF {is_missing} THEN CREATE SCHEMA {name}; END IF; END $$"
    return make, f"SET LOCAL search_path TO {name}"


def upgrade(engine: Engine) -> None:
    """Migrate activedb's own tables to the newest version; cheap if they are up to date.

    Safe when several processes start at once. O(1) round trips when there is nothing to do.

    Raises
    ------
    ConfigurationError
        If a newer activedb has made them, or the role may not make or read them.
    """
    newest = _files()[-1].name[:_DIGITS]
    with translate_errors("migrate activedb's tables"), engine.begin() as connection:
        found = _allowed(connection, newest, _version)
        if found == newest:
            return
        if found is not None and found > newest:
            raise ConfigurationError(
                f"activedb's tables are of version {found}, and this activedb knows those up to "
                f"{newest}: install the newer activedb that has made them"
            )
        _allowed(connection, newest, _upgrade)


def _allowed(connection: Connection, newest: str, do: Callable[[Connection], T]) -> T:
    """Call `do`; if the role lacks a right, raise an error that says which role can do it."""
    try:
        return do(connection)
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != _RIGHT_MISSING:
            raise
        reason = " ".join(str(error.orig).split())
        raise ConfigurationError(
            f"activedb's tables are to be of version {newest}, and this role may not see to that "
            f"({reason}): run activedb migrate as the role that owns them, and grant this one "
            f"what it needs (activedb roles --sql prints it)"
        ) from error


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    return connection.scalar(select(column("version_num")).select_from(table(_VERSION_TABLE)))


def _upgrade(connection: Connection) -> None:
    from alembic import command  # slower to import than the lookups before it

    # Without a limit: another migration may take long, but its own lock waits are limited.
    limit = connection.scalar(text("SELECT current_setting('lock_timeout')"))
    connection.execute(_LOCK_TIMEOUT, {"limit": "0"})
    connection.execute(text("SELECT pg_advisory_xact_lock(:latch)"), {"latch": _LATCH})
    connection.execute(_LOCK_TIMEOUT, {"limit": limit})
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config()
    config.set_main_option("script_location", str(_folder()))
    config.attributes["version_table"] = _VERSION_TABLE
    return config


def _files() -> list[Path]:
    """Return the migrations in order: their names begin with their versions."""
    return sorted((_folder() / "versions").glob("[0-9]*.py"))


def _purpose(path: Path) -> str:
    """Return the first line of a migration's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def _folder() -> Path:
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "migrations", here.parents[3] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError("activedb's migrations are missing; reinstall the package")
