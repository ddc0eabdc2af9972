"""A job that is killed: the file named by JOB, with SIGKILL at the point named by KILL_AT.

KILL_AT is ``<point>:<n>``, the n-th time the process comes to the point:

- ``event``: within an s-transaction, before its rules have run
- ``ledger``: a batch's effects are written, its ledger row is not
- ``flushed``: everything of a batch is written, nothing is committed
- ``committed``: a batch is committed, Spark does not know yet
- ``detached``: a detached rule is about to commit
- ``never``
"""

from __future__ import annotations

import os
import runpy
import signal
import threading
from typing import Any
from unittest import mock

import sqlalchemy

from activedb.store.journals import StreamJournal

POINT, _, COUNT = os.environ["KILL_AT"].partition(":")
_latch = threading.Lock()
_reached = 0
_in_batch = threading.local()


def reach(point: str) -> None:
    """Reach a point; end the process if it is the chosen one."""
    global _reached
    if point == POINT:
        with _latch:
            _reached += 1
            if _reached == int(COUNT):
                os.kill(os.getpid(), signal.SIGKILL)


def before_statement(*arguments: Any) -> None:
    statement = arguments[2]
    if statement.startswith("INSERT INTO activedb_pending_firings") and "DO UPDATE" in statement:
        reach("detached")


_write = StreamJournal.write


def write(journal: StreamJournal, *arguments: Any, **named: Any) -> None:
    _in_batch.yes = True
    reach("ledger")
    _write(journal, *arguments, **named)


def before_commit(connection: Any) -> None:
    if getattr(_in_batch, "yes", False):
        reach("flushed")


def after_return_to_pool(*arguments: Any) -> None:
    # The connection that wrote a ledger row comes back: its commit is done.
    if getattr(_in_batch, "yes", False):
        _in_batch.yes = False
        reach("committed")


# SQLAlchemy reports no statement here, since the driver inserts the ledger row itself.
mock.patch.object(StreamJournal, "write", write).start()
sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", before_statement)
sqlalchemy.event.listen(sqlalchemy.Engine, "commit", before_commit)
sqlalchemy.event.listen(sqlalchemy.pool.Pool, "checkin", after_return_to_pool)

globals().update(runpy.run_path(os.environ["JOB"]))

for _stream in globals()["db"].streams:
    for _name in _stream.types:

        @globals()["db"].rule(  # type: ignore[untyped-decorator]
            on=globals()["adb"].event(_name), priority=1_000, name=f"kill_at_{_name}"
        )
        def kill_at(t: Any, o: Any) -> None:
            reach("event")
