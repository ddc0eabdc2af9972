"""A database with an owner and a runner, made by the statements that activedb prints."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import make_url

from activedb.store.server import role_statements
from tests.servers import fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "shop"


@dataclass(frozen=True)
class TwoRoles:
    """The URLs of three accounts of one database."""

    owner: str
    runner: str
    superuser_url: str

    @property
    def owner_url(self) -> str:
        """Return where the owner connects."""
        return as_role(self.superuser_url, self.owner)

    @property
    def runner_url(self) -> str:
        """Return where the runner connects."""
        return as_role(self.superuser_url, self.runner)

    def grant(self, schema: str = SCHEMA) -> None:
        """Run the printed statements, as an administrator would."""
        statements = role_statements(schema=schema, owner=self.owner, runner=self.runner)
        run(self.superuser_url, statements)


@contextlib.contextmanager
def two_roles(server_url: str) -> Iterator[TwoRoles]:
    """Yield a new database with both roles; database and roles are dropped afterwards."""
    mark = secrets.token_hex(4)
    names = f"owner-{mark}", f"runner-{mark}"
    try:
        with fresh_database(server_url) as url:
            roles = TwoRoles(*names, url)
            roles.grant()
            yield roles
    finally:
        run(server_url, *(f'DROP ROLE IF EXISTS "{name}"' for name in names))


def as_role(url: str, role: str) -> str:
    """Return the URL of another account; the embedded server needs no password on its socket."""
    return make_url(url).set(username=role).render_as_string(hide_password=False)


def run(url: str, *statements: str) -> None:
    """Run statements by themselves, as psql would."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())
