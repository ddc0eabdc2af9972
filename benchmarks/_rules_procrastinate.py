"""Peer of detached rules: procrastinate, a job queue on Postgres, if it is installed."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
from typing import Any

import psycopg
from psycopg import conninfo

from benchmarks._nested_rows import Server

__all__ = ["Procrastinate"]

_PATIENCE_S = 60.0
_POLL_S = 0.01  # of batches that take seconds


class Procrastinate:
    """A worker that runs jobs on a thread of this process, and a caller that defers them.

    Everything is at its default, except that a job that has succeeded is deleted, like a finished
    firing of ours, and that there are as many concurrent jobs as our pool has threads. A job is a
    coroutine, as procrastinate requires for concurrency, and inserts one row.

    Attributes
    ----------
    name : str
    """

    name = "procrastinate"

    def __init__(self, server: Server, workers: int, package: Any):
        self._workers = workers
        self._watching = server.connection()
        self._watching.autocommit = True
        self._watching.execute("CREATE TABLE jobs_done (number bigint NOT NULL)")
        where = _conninfo(self._watching, server.schema)
        app = package.App(
            connector=package.PsycopgConnector(
                conninfo=where, min_size=workers, max_size=workers + 4
            )
        )

        @app.task(name="work", pass_context=True)  # type: ignore[untyped-decorator]
        async def work(context: Any, number: int) -> None:
            await context.app.connector.execute_query_async(
                "INSERT INTO jobs_done (number) VALUES (%(number)s)", number=number
            )

        self._app = app
        # A separate app: with `with_connector` the tasks would keep the worker's connections, which
        # belong to the event loop of another thread.
        self._caller = package.App(connector=package.SyncPsycopgConnector(conninfo=where))
        self._caller.open()
        self._caller.schema_manager.apply_schema()
        self._deferrer = self._caller.configure_task("work")
        self._loop: asyncio.AbstractEventLoop
        self._running: asyncio.Task[None]
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), daemon=True)
        self._thread.start()
        assert self._is_open.wait(_PATIENCE_S)

    @classmethod
    def open(cls, server: Server, workers: int) -> Procrastinate | None:
        """Start the worker; without the package, print how to install it and return None."""
        try:
            package = importlib.import_module("procrastinate")
        except ImportError as error:
            print(
                f"no procrastinate to compare with ({error}); to have it: pip install '.[bench]'",
                file=sys.stderr,
            )
            return None
        return cls(server, workers, package)

    def close(self) -> None:
        """Stop the worker, close all connections."""
        self._loop.call_soon_threadsafe(self._running.cancel)
        self._thread.join(_PATIENCE_S)
        self._caller.close()
        self._watching.close()

    def run(self, jobs: int) -> None:
        """Defer `jobs` jobs, each in a separate transaction; return when all are done."""
        for number in range(jobs):
            self._deferrer.defer(number=number)
        self._await_all()

    def run_batch(self, jobs: int) -> None:
        """Defer `jobs` jobs in one transaction; return when all are done."""
        self._deferrer.batch_defer(*({"number": number} for number in range(jobs)))
        self._await_all()

    def done(self) -> int:
        """Return the number of jobs that have written their row."""
        return self._count("jobs_done")

    def _await_all(self) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while self._count("procrastinate_jobs"):
            assert time.monotonic() < until_s, "jobs of procrastinate are not done"
            time.sleep(_POLL_S)

    def _count(self, table: str) -> int:
        counted = self._watching.execute(
            psycopg.sql.SQL("SELECT count(*) FROM {}").format(psycopg.sql.Identifier(table))
        ).fetchone()
        assert counted is not None
        return int(counted[0])

    async def _work(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._app.open_async():
            self._running = self._loop.create_task(
                self._app.run_worker_async(
                    concurrency=self._workers,
                    delete_jobs="successful",
                    install_signal_handlers=False,
                )
            )
            self._is_open.set()
            await asyncio.gather(self._running, return_exceptions=True)


def _conninfo(connection: psycopg.Connection, schema: str) -> str:
    """Return the connection string of this connection, for a schema."""
    return conninfo.make_conninfo(
        connection.info.dsn,
        password=connection.info.password,
        options=f"-csearch_path={schema}",
    )
