"""The same behaviour on a server over TCP with a password."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, select, text

import activedb as adb
from activedb.errors import RuleFailed, StoreError
from tests.databases import place
from tests.ledger import Ledger, at, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Occurrence, Transaction


@pytest.fixture
def ledger(plain_postgres_url: str) -> Iterator[Ledger]:
    """Accounts 1 and 2 with balances 10 and 20."""
    with place(plain_postgres_url) as where:
        yield open_ledger(where.open(), {1: 10, 2: 20})


def test_rules_in_every_coupling_mode_run_on_a_plain_server(ledger: Ledger) -> None:
    for coupling in ("immediate", "deferred", "detached"):

        @ledger.db.rule(on=adb.updated(ledger.accounts), coupling=coupling, name=coupling)
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"{t.rule} {o.new['balance']}")

    @ledger.db.rule(on=adb.updated(ledger.accounts), when=lambda t, o: o.new["balance"] < 0)
    def overdraft(t: Transaction, o: Occurrence) -> None:
        t.abort("overdrawn")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
        ledger.db.wait_idle()
    with pytest.raises(RuleFailed, match="overdrawn"), ledger.db.transaction() as t:
        t.update(ledger.accounts, 2, balance=-1)
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["deferred 11", "detached -1", "detached 11", "immediate 11"]
    assert ledger.balances() == {1: 11, 2: 20}


def test_spawned_children_run_on_a_plain_server(ledger: Ledger) -> None:
    with ledger.db.transaction() as t:
        children = [
            t.spawn(lambda s, key: s.insert(ledger.accounts, {"id": key, "balance": 0}), key)
            for key in range(3, 9)
        ]
        assert [child.result()["id"] for child in children] == list(range(3, 9))
        assert len(t.query(select(ledger.accounts))) == 8
    assert len(ledger.balances()) == 8


def test_stream_runs_on_a_plain_server(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("A"))
    def rule(t: Transaction, o: Occurrence) -> None:
        t.insert(ledger.facts, {"name": f"f{o.params['n']}", "value": o.params["v"]})

    stream = declare(ledger.db)
    events = [event("A", n, n=n, v=v) for n, v in ((3, 30), (1, 10), (2, 10))]
    stream.feed(events, punctuation=at(3))
    stream.feed([])
    assert ledger.known() == {"f1": 10, "f3": 30}
    assert [x["error"] for x in ledger.letters()] == ["UniqueViolation"]


def test_existing_tables_are_declared_or_the_lost_connection_is_told(
    plain_postgres_url: str,
) -> None:
    with place(plain_postgres_url) as where:
        open_ledger(where.open(), {1: 10})
        db = where.open()
        plain = create_engine(plain_postgres_url, isolation_level="AUTOCOMMIT")
        with plain.connect() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND application_name LIKE 'activedb%'"
                )
            )
        plain.dispose()
        while "accounts" not in {table.name for table in db.metadata.tables.values()}:
            with contextlib.suppress(StoreError):
                db.admin.declare_existing()
