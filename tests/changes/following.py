"""Followed changes: rules that record what they hear, and a writer without rules."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, text

import activedb as adb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from activedb import Occurrence, Transaction
    from activedb.changes import Follower
    from tests.ledger import Ledger


class Somebody:
    """A program without activedb."""

    def __init__(self, url: str):
        self._engine = create_engine(url)

    def run(self, *statements: str, **values: Any) -> None:
        """Run statements in one transaction."""
        with self.transaction() as connection:
            for statement in statements:
                connection.execute(text(statement), values)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection; commit at the end."""
        with self._engine.begin() as connection:
            yield connection

    def value(self, statement: str, **values: Any) -> Any:
        """The one value of a query."""
        with self._engine.connect() as connection:
            return connection.scalar(text(statement), values)

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()


@contextlib.contextmanager
def somebody(url: str) -> Iterator[Somebody]:
    """Yield a program without activedb."""
    program = Somebody(url)
    try:
        yield program
    finally:
        program.close()


def told(o: Occurrence) -> str:
    """A change in a few words: ``update 1: 10 to 11``."""
    kind, _ = o.key
    if kind == "update":
        return f"update {o.new['id']}: {o.old.get('balance', '?')} to {o.new['balance']}"
    row = o.new if kind == "insert" else o.old
    return f"{kind} {row['id']}: {row.get('balance', '?')}"


def hear(ledger: Ledger, coupling: str = "detached", name: str = "hear") -> None:
    """Define a rule that writes down every change of an account."""
    accounts = ledger.accounts

    @ledger.db.rule(
        on=adb.any_of(adb.inserted(accounts), adb.updated(accounts), adb.deleted(accounts)),
        coupling=coupling,
        name=name,
    )
    def write_down(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, told(o))


def take(follower: Follower, ledger: Ledger) -> list[str]:
    """Take all there is and let the rules end; return what they have written so far, sorted."""
    while follower.step():
        pass
    ledger.db.wait_idle()
    return sorted(ledger.lines())
