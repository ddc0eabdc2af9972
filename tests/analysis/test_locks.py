"""Locks that `rules explain` lists for a rule, compared with those that a run of it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    func,
    or_,
    select,
    text,
    update,
)

import activedb as adb
from activedb.analysis import explain
from lockmgr import Mode, Predicate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Occurrence, Transaction

metadata = MetaData()
accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", Integer, nullable=False),
    Column("balance", Integer, nullable=False),
)
owners = Table(
    "owners",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("ward", String(5)),
    Column("level", Integer),
)


def by_get(t: Transaction, o: Occurrence) -> None:
    t.get(accounts, o.params["n"])


def by_get_to_write(t: Transaction, o: Occurrence) -> None:
    t.get(accounts, o.params["n"], for_update=True)


def by_update(t: Transaction, o: Occurrence) -> None:
    t.update(accounts, o.params["n"], balance=5)


def by_insert(t: Transaction, o: Occurrence) -> None:
    t.insert(owners, {"id": 9, "ward": "A", "level": 1})


def by_key(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts.c.balance).where(accounts.c.id == o.params["n"]))


def by_keys(t: Transaction, o: Occurrence) -> None:
    wanted = [o.params["n"], 2]
    t.query(select(accounts).where(accounts.c.id.in_(wanted), accounts.c.balance > 0))


def by_key_to_write(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).where(accounts.c.id == 1).with_for_update())


def by_two_conditions(t: Transaction, o: Occurrence) -> None:
    t.query(select(owners.c.id).where((owners.c.ward == "A") & (owners.c.level >= 3)))


def by_range(t: Transaction, o: Occurrence) -> None:
    t.query(select(func.count()).where(and_(owners.c.level.between(1, 2))))


def by_join(t: Transaction, o: Occurrence) -> None:
    joined = select(owners, accounts).join(accounts, accounts.c.owner == owners.c.id)
    t.query(joined.where(accounts.c.id == 1))


def by_nothing(t: Transaction, o: Occurrence) -> None:
    t.query(select(func.sum(accounts.c.balance)))


def by_either(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).where(or_(accounts.c.id == 1, accounts.c.balance == 2)))


def by_operator(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).where((accounts.c.id == 1) | (accounts.c.owner == 2)))


def by_negation(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).where(~(accounts.c.id == 1)))


def by_function(t: Transaction, o: Occurrence) -> None:
    t.query(select(owners).where(func.lower(owners.c.ward) == "a"))


def by_union(t: Transaction, o: Occurrence) -> None:
    first = select(owners.c.id).where(owners.c.id == 1)
    t.query(first.union_all(select(owners.c.id)))


def by_get_to_read(t: Transaction, o: Occurrence) -> None:
    t.get(accounts, o.params["n"], for_update=False)


def by_a_column_that_compares(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts.c.id == 1, accounts.c.balance))


def by_an_order_that_compares(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).order_by(accounts.c.id == 1))


def by_a_count_that_compares(t: Transaction, o: Occurrence) -> None:
    t.query(select(func.count().filter(accounts.c.balance > 5)))


def by_outer_join(t: Transaction, o: Occurrence) -> None:
    both = and_(owners.c.id == 1, owners.c.id == accounts.c.owner)
    t.query(select(owners.c.id, accounts.c.id).join(accounts, both, isouter=True))


def by_filter(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).filter(accounts.c.id == 1))


def by_null(t: Transaction, o: Occurrence) -> None:
    t.query(select(accounts).where(accounts.c.owner == None))  # noqa: E711  # IS NULL


def by_subquery(t: Transaction, o: Occurrence) -> None:
    rich = select(accounts.c.owner).where(accounts.c.balance > 5)
    t.query(select(owners).where(owners.c.id.in_(rich)))


def by_used_update(t: Transaction, o: Occurrence) -> None:
    row = t.update(accounts, 1, balance=6)
    assert row is not None


def by_join_from_a_predicate(t: Transaction, o: Occurrence) -> None:
    joined = select(owners, accounts).join(accounts, accounts.c.owner == owners.c.id)
    t.query(joined.where(accounts.c.balance >= 5))


def by_text(t: Transaction, o: Occurrence) -> None:
    t.query(text("SELECT balance FROM accounts WHERE id = 1"))


def by_statement(t: Transaction, o: Occurrence) -> None:
    t.execute(update(accounts).where(accounts.c.owner == 1).values(balance=0))


Claim = tuple[str, str, bool, tuple[str, ...]]
CLAIMS: dict[Callable[..., None], list[Claim]] = {
    by_get: [("accounts", "rows", False, ("id",))],
    by_get_to_write: [("accounts", "rows", True, ("id",))],
    by_update: [("accounts", "rows", True, ("id",))],
    by_insert: [("owners", "rows", True, ("id",))],
    by_key: [("accounts", "rows", False, ("id",))],
    by_keys: [("accounts", "rows", False, ("id",))],
    by_key_to_write: [("accounts", "rows", True, ("id",))],
    by_two_conditions: [("owners", "predicate", False, ("level", "ward"))],
    by_range: [("owners", "predicate", False, ("level",))],
    by_join: [("accounts", "rows", False, ("id",)), ("owners", "rows", False, ("id",))],
    by_nothing: [("accounts", "table", False, ())],
    by_either: [("accounts", "unknown", False, ())],
    by_operator: [("accounts", "unknown", False, ())],
    by_negation: [("accounts", "unknown", False, ())],
    by_function: [("owners", "unknown", False, ())],
    by_union: [("owners", "unknown", False, ())],
    by_get_to_read: [("accounts", "rows", False, ("id",))],
    by_a_column_that_compares: [("accounts", "table", False, ())],
    by_an_order_that_compares: [("accounts", "table", False, ())],
    by_a_count_that_compares: [("accounts", "unknown", False, ())],
    by_outer_join: [("accounts", "unknown", False, ()), ("owners", "unknown", False, ())],
    by_filter: [("accounts", "unknown", False, ())],
    by_used_update: [("accounts", "rows", True, ("id",))],
    by_join_from_a_predicate: [
        ("accounts", "predicate", False, ("balance",)),
        ("owners", "rows", False, ("id",)),
    ],
    by_null: [("accounts", "unknown", False, ())],
    by_subquery: [("accounts", "unknown", False, ()), ("owners", "unknown", False, ())],
    by_text: [("accounts", "unknown", False, ())],
    by_statement: [("accounts", "predicate", True, ("owner",))],
}


@pytest.fixture
def database() -> Iterator[adb.Database]:
    db = adb.connect("memory://")
    for table in metadata.tables.values():
        table.to_metadata(db.metadata)
    db.create_all()
    with db.transaction() as t:
        for key in (1, 2):
            t.insert(owners, {"id": key, "ward": "A", "level": key})
            t.insert(accounts, {"id": key, "owner": key, "balance": 10})
    yield db
    db.close()


def coarsest(db: adb.Database) -> dict[str, tuple[str, bool]]:
    """The coarsest locks that are held on each table, and whether any of them is for writing."""
    found: dict[str, tuple[str, bool]] = {}
    ranks = ["rows", "predicate", "table"]
    for lock in db._forest.locks.snapshot().locks:
        table, *inside = lock.resource
        writes = lock.mode in (Mode.X, Mode.SIX)
        grain = "rows"
        if not inside:
            grain = "table" if lock.mode in (Mode.S, Mode.SIX, Mode.X) else "rows"
        elif isinstance(inside[0], Predicate):
            grain = "predicate"
        before = found.get(str(table), ("rows", False))
        worse = max(before[0], grain, key=ranks.index)
        found[str(table)] = (worse, before[1] or writes)
    return found


@pytest.mark.parametrize("action", CLAIMS, ids=lambda action: action.__name__)
def test_locks_that_are_told_are_those_that_a_run_takes(
    database: adb.Database, action: Callable[..., Any]
) -> None:
    database.rule(on=adb.event("GO"))(action)
    (step,) = explain(database.rules.analyze(), "GO").steps
    told = [(lock.table, lock.grain, lock.is_write, lock.columns) for lock in step.locks]
    assert told == CLAIMS[action]
    with database.transaction():
        database.signal("GO", n=1)
        taken = coarsest(database)
    assert taken.keys() == {table for table, *_ in told}
    for table, grain, is_write, _ in told:
        assert taken[table][1] == is_write
        if grain != "unknown":
            assert taken[table][0] == grain


def test_locks_of_declared_tables_are_as_coarse_as_their_statements(
    database: adb.Database,
) -> None:
    database.rule(on=adb.event("GO"), reads=["owners"], writes=["accounts"], raises=[])(by_nothing)
    (step,) = explain(database.rules.analyze(), "GO").steps
    assert [str(lock) for lock in step.locks] == [
        "locks rows, or the whole, of accounts, to write",
        "locks rows, or the whole, of owners, to read",
    ]
