"""Running the Alembic migrations, from the source tree or from an installed package."""

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
from activedb.store.server._driver_errors import translated

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["Migrations", "migration_sql", "migrations", "upgrade"]

T = TypeVar("T")

_VERSION_TABLE = "activedb_version"
_DIGITS = 4  # what names of migrations, and versions, begin with
_RIGHT_MISSING = "42501"
_LOCK_TIMEOUT = text("SELECT set_config('lock_timeout', :limit, true)")
_LATCH = 0x61637469_76656462 >> 1  # one migration at a time, on an advisory lock of its own


@dataclass(frozen=True, slots=True)
class Migrations:
    """How far activedb's tables are, and what is still to be done to them.

    Attributes
    ----------
    found : str or None
        Their version; None if there are none.
    newest : str
        The version that this activedb makes of them.
    due : tuple of (str, str)
        Version and purpose of each migration that is to come, in order.
    """

    found: str | None
    newest: str
    due: tuple[tuple[str, str], ...]

    @property
    def are_newer(self) -> bool:
        """Whether a newer activedb has made the tables."""
        return self.found is not None and self.found > self.newest


def migrations(connection: Connection | None) -> Migrations:
    """What `upgrade` would do, with None in a new database; one round trip or two."""
    found = None if connection is None else _version(connection)
    due = tuple(
        (path.name[:_DIGITS], _purpose(path))
        for path in _files()
        if found is None or path.name[:_DIGITS] > found
    )
    return Migrations(found, _files()[-1].name[:_DIGITS], due)


def migration_sql(found: str | None) -> str:
    """The statements of the migrations behind a version, as a script; None: of all.

    Nothing is connected to. It is what `upgrade` does, in one transaction.

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
    command.upgrade(config, f"{found or 'base'}:head", sql=True)
    return script.getvalue()


def upgrade(engine: Engine) -> None:
    """Bring activedb's own tables to the newest version; cheap when they are there already.

    Safe when several processes start at once. O(1) round trips when there is nothing to do.

    Raises
    ------
    ConfigurationError
        If a newer activedb has made them, or the role may not make or read them.
    """
    newest = _files()[-1].name[:_DIGITS]
    with translated("migrate activedb's tables"), engine.begin() as connection:
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
    """Do it; if the role may not, say who may."""
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
    from alembic import command  # takes longer to import than all there is to look up

    # However long the others take: each of their own waits for a lock has a limit.
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
    """The migrations, in order: their names begin with their versions."""
    return sorted((_folder() / "versions").glob("[0-9]*.py"))


def _purpose(path: Path) -> str:
    """The first line of a migration's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def _folder() -> Path:
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "migrations", here.parents[3] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError("activedb's migrations are missing; reinstall the package")
