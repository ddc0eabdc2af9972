"""Crossing waits, from local locks to the store, must not stall a process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from sqlalchemy import Column, ForeignKey, Integer, Table, select

import activedb as adb
from activedb.errors import LockTimeout, SerializationConflict
from tests.databases import PATIENCE_S, in_thread, until
from tests.ledger import declare, event, open_ledger

if TYPE_CHECKING:
    from concurrent.futures import Future

    from activedb import Occurrence, Transaction
    from tests.databases import Place


def test_batch_checked_event_by_event_does_not_stall_beside_a_reader(where: Place) -> None:
    """Once a row is refused, the server checks the batch event by event.

    Its rows are at the server by then, while it still takes locks here. A reader that has a lock
    here and wants the row from the server must not wait for the batch that wants its lock.
    """
    ledger = open_ledger(where.open(), {1: 10, 2: 20})
    tries: list[int] = []
    readers: list[Future[object]] = []

    @ledger.db.rule(on=adb.event("A"))
    def rule(t: Transaction, o: Occurrence) -> None:
        n = o.params["n"]
        t.insert(ledger.facts, {"name": f"f{n}", "value": min(n, 2)})  # the third one is refused
        if n == 1:
            tries.append(n)
        if n == 2 and len(tries) == 2:
            reader = in_thread(ledger.db.run, lambda u: u.get(ledger.accounts, 1))
            readers.append(reader)
            until(lambda: reader.done() or "accounts/(1,): held" in ledger.db._forest.locks.dump())
            t.update(ledger.accounts, 1, balance=0)

    stream = declare(ledger.db)
    events = [event("A", n, n=n) for n in (1, 2, 3)]
    feeder = in_thread(stream.feed, events)
    feeder.result(PATIENCE_S)
    assert readers[0].result(PATIENCE_S) is not None
    assert len(tries) == 2
    assert ledger.balances()[1] == 0


def test_flush_that_waits_for_a_parent_row_does_not_stall(where: Place) -> None:
    """A foreign key is checked by the server, on a row of which the writer has no lock here.

    One has changed the parent; the other flushes a child of it and waits at the server, while
    the first waits here to scan the children. It has to end by an error that is retried.
    """
    db = where.open()
    parents = Table(
        "parents", db.metadata, Column("id", Integer, primary_key=True), Column("x", Integer)
    )
    children = Table(
        "children",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", ForeignKey("parents.id")),
    )
    db.create_all()
    db.run(lambda t: t.insert(parents, {"id": 1, "x": 0}))
    changed = threading.Event()

    def change_and_scan(t: Transaction) -> int:
        t.update(parents, 1, x=1)
        changed.set()
        until(lambda: writer.done() or lock_is_taken())
        return len(t.query(select(children)))

    def lock_is_taken() -> bool:
        return "children/(1,): held" in db._forest.locks.dump()

    def write() -> None:
        assert changed.wait(PATIENCE_S)
        db.run(lambda t: t.insert(children, {"id": 1, "parent": 1}))

    writer = in_thread(write)
    scanner = in_thread(db.run, change_and_scan)
    for worker in (scanner, writer):
        assert not isinstance(worker.exception(PATIENCE_S), LockTimeout | SerializationConflict)
        worker.result(0)
    assert db.admin.row_counts() == {"children": 1, "parents": 1}
