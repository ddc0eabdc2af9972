"""Tables that `benchmarks.nested` works on, and their server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy import Column, Integer, Table, make_url
from sqlalchemy.exc import ArgumentError

import activedb
from activedb.store.server import EmbeddedServer

__all__ = ["Server", "open_server", "rows_of"]


def rows_of(db: activedb.Database, name: str, count: int) -> Table:
    """Create a table ``name (id, balance)`` with ids 0 to `count` - 1 and balances of 0."""
    rows = Table(
        name,
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("balance", Integer, nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        t.get_many(rows, range(count), for_update=True)  # one round trip instead of one per row
        for number in range(count):
            t.insert(rows, {"id": number, "balance": 0})
    return rows


@dataclass(frozen=True, slots=True)
class Server:
    """A Postgres with a schema for this run.

    Attributes
    ----------
    url, schema : str
    description : str
        Version of the server and whether it waits for the disk.
    """

    url: str
    schema: str
    description: str

    def database(self, threads: int) -> activedb.Database:
        """Open the schema with activedb."""
        return activedb.connect(self.url, db_schema=self.schema, threads=threads)

    def connection(self) -> psycopg.Connection:
        """Open a plain connection that finds the tables of the schema."""
        connection = psycopg.connect(_conninfo(self.url))
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(self.schema)))
        connection.commit()
        return connection


@contextmanager
def open_server() -> Iterator[Server]:
    """Yield the server of ``ACTIVEDB_URL``, else an embedded one in a temporary folder.

    The schema is created, and dropped at the end.

    Raises
    ------
    SystemExit
        If the server cannot be used.
    """
    named = os.environ.get("ACTIVEDB_URL", "")
    if named and named != "memory://":
        with _schema(named, "server of ACTIVEDB_URL") as server:
            yield server
        return
    with tempfile.TemporaryDirectory(prefix="activedb-bench-") as folder:
        # As root, the embedded server runs as another user, which needs access.
        Path(folder).chmod(0o755)
        with (
            EmbeddedServer.start(Path(folder) / ".activedb") as embedded,
            _schema(embedded.url, "embedded server") as server,
        ):
            yield server


@contextmanager
def _schema(url: str, kind: str) -> Iterator[Server]:
    schema = f"activedb_bench_{os.getpid()}"
    name = sql.Identifier(schema)
    with _connected(url, kind) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        version, fsync, synchronous = (
            connection.execute(sql.SQL("SHOW {}").format(sql.Identifier(setting))).fetchone()
            for setting in ("server_version", "fsync", "synchronous_commit")
        )
        assert version is not None
        assert fsync is not None
        assert synchronous is not None
        try:
            yield Server(
                url,
                schema,
                f"{kind}, PostgreSQL {version[0]}, fsync {fsync[0]}, "
                f"synchronous_commit {synchronous[0]}",
            )
        finally:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(name))


def _connected(url: str, kind: str) -> psycopg.Connection:
    try:
        return psycopg.connect(_conninfo(url), autocommit=True)
    except (psycopg.OperationalError, ArgumentError) as error:
        raise SystemExit(
            f"cannot measure on the {kind}: {' '.join(str(error).split())}; without ACTIVEDB_URL "
            f"an embedded server is measured"
        ) from None


def _conninfo(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
