"""Random trees of operations against nested transactions as copies of a dictionary."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Column, Integer, String, Table, delete, func, insert, select
from sqlalchemy import update as sql_update

import activedb as adb
from activedb.errors import RowExists, RowNotFound
from tests.databases import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(
    max_examples=60 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLOW = settings(QUICK, max_examples=15 * SCALE)

KEYS = st.tuples(st.integers(0, 2), st.sampled_from("xy"))
NUMBERS = st.none() | st.integers(-3, 3)


@dataclass(frozen=True)
class Operation:
    """One operation with its arguments."""

    name: str
    key: tuple[int, str] = (0, "x")
    number: int | None = None


@dataclass(frozen=True)
class Subtransaction:
    """A child, the steps in it, and how it ends."""

    steps: tuple[Any, ...]
    ending: str


OPERATIONS = st.builds(
    Operation,
    st.sampled_from(
        [
            "get",
            "get_many",
            "insert",
            "update",
            "delete",
            "query",
            "aggregate",
            "update where",
            "delete where",
            "copy",
        ]
    ),
    KEYS,
    NUMBERS,
)
STEPS = st.recursive(
    OPERATIONS,
    lambda inner: st.builds(
        Subtransaction,
        st.lists(inner, max_size=5).map(tuple),
        st.sampled_from(["commit", "commit", "commit", "abort", "raise"]),
    ),
    max_leaves=25,
)
TRANSACTIONS = st.lists(
    st.builds(
        Subtransaction,
        st.lists(STEPS, max_size=8).map(tuple),
        st.sampled_from(["commit", "commit", "abort", "raise"]),
    ),
    min_size=1,
    max_size=4,
)
State = dict[tuple[int, str], int | None]


class OnPurposeError(Exception):
    """Raised inside a transaction that is to end so."""


def model(step: Any, state: State, seen: list[Any]) -> None:
    """Apply a step to `state`; a subtransaction works on a copy."""
    if isinstance(step, Subtransaction):
        copy = dict(state)
        for inner in step.steps:
            model(inner, copy, seen)
        if step.ending == "commit":
            state.clear()
            state.update(copy)
        return
    key, number = step.key, step.number
    numbers = [n for n in state.values() if n is not None]
    match step.name:
        case "get":
            seen.append((key in state, state.get(key)))
        case "get_many":
            seen.append({k: state.get(k, "absent") for k in [(0, "x"), (1, "y"), key]})
        case "insert":
            seen.append("exists" if key in state else "ok")
            state.setdefault(key, number)
        case "update":
            seen.append("ok" if key in state else "missing")
            if key in state:
                state[key] = number
        case "delete":
            seen.append("ok" if key in state else "missing")
            state.pop(key, None)
        case "query":
            seen.append(sorted(((*k, n) for k, n in state.items()), key=repr))
        case "aggregate":
            seen.append((len(state), len(numbers), sum(numbers) if numbers else None))
        case "update where":
            hit = [k for k, n in state.items() if n is not None and n >= (number or 0)]
            seen.append(len(hit))
            for k in hit:
                state[k] = state[k] + 1  # type: ignore[operator]  # never None here
        case "delete where":
            hit = [k for k, n in state.items() if n == number] if number is not None else []
            seen.append(len(hit))
            for k in hit:
                del state[k]
        case "copy":
            copies = {(k[0] + 10, k[1]): n for k, n in state.items() if k[0] < 3}
            if copies.keys() & state.keys():
                seen.append("skipped")
            else:
                seen.append(len(copies))
                state.update(copies)


def real(step: Any, t: Transaction, table: Table, seen: list[Any]) -> None:
    """Apply a step to the database."""
    if isinstance(step, Subtransaction):
        run(step, t.subtransaction(), table, seen)
        return
    key, number, c = step.key, step.number, table.c
    try:
        match step.name:
            case "get":
                row = t.get(table, key)
                seen.append((row is not None, None if row is None else row["n"]))
            case "get_many":
                rows = t.get_many(table, [(0, "x"), (1, "y"), key])
                seen.append({k: "absent" if r is None else r["n"] for k, r in rows.items()})
            case "insert":
                t.insert(table, {"a": key[0], "b": key[1], "n": number})
                seen.append("ok")
            case "update":
                t.update(table, key, n=number)
                seen.append("ok")
            case "delete":
                t.delete(table, key)
                seen.append("ok")
            case "query":
                seen.append(sorted((tuple(row) for row in t.query(select(table))), key=repr))
            case "aggregate":
                seen.append(tuple(t.query(select(func.count(), func.count(c.n), func.sum(c.n)))[0]))
            case "update where":
                change = sql_update(table).where(c.n >= (number or 0)).values(n=c.n + 1)
                seen.append(t.execute(change))
            case "delete where":
                seen.append(
                    t.execute(delete(table).where(c.n == number)) if number is not None else 0
                )
            case "copy":
                rows_there = {(r.a, r.b) for r in t.query(select(c.a, c.b))}
                if any((a + 10, b) in rows_there for a, b in rows_there if a < 3):
                    seen.append("skipped")
                else:
                    chosen = select(c.a + 10, c.b, c.n).where(c.a < 3)
                    seen.append(t.execute(insert(table).from_select(["a", "b", "n"], chosen)))
    except RowExists:
        seen.append("exists")
    except RowNotFound:
        seen.append("missing")


def run(step: Subtransaction, t: Transaction, table: Table, seen: list[Any]) -> None:
    """Run a (sub)transaction to the end it is to have."""
    try:
        with t:
            for inner in step.steps:
                real(inner, t, table, seen)
            if step.ending == "abort":
                t.abort()
            if step.ending == "raise":
                raise OnPurposeError
    except OnPurposeError:
        assert step.ending == "raise"


@pytest.fixture(scope="module")
def databases(postgres_url: str) -> Iterator[dict[str, tuple[adb.Database, Table]]]:
    """One database of each kind for all examples; each example starts by emptying the table."""
    with place(None) as memory, place(postgres_url) as postgres:
        opened = {}
        for name, where in (("memory", memory), ("postgres", postgres)):
            db = where.open()
            table = Table(
                "pairs",
                db.metadata,
                Column("a", Integer, primary_key=True),
                Column("b", String(5), primary_key=True),
                Column("n", Integer),
            )
            db.create_all()
            opened[name] = (db, table)
        yield opened


def check(db: adb.Database, table: Table, transactions: list[Subtransaction]) -> None:
    with db.transaction() as t:
        t.execute(delete(table))
    state: State = {}
    for transaction in transactions:
        expected: list[Any] = []
        seen: list[Any] = []
        model(transaction, state, expected)
        run(transaction, db.transaction(), table, seen)
        assert seen == expected
        with db.transaction() as t:
            assert {(r.a, r.b): r.n for r in t.query(select(table))} == state
    assert db._forest.locks.dump().count("held") == 0


@pytest.mark.long
@given(TRANSACTIONS)
@QUICK
def test_nested_transactions_on_memory_agree_with_the_model(
    databases: dict[str, tuple[adb.Database, Table]], transactions: list[Subtransaction]
) -> None:
    check(*databases["memory"], transactions)


@pytest.mark.long
@given(TRANSACTIONS)
@SLOW
def test_nested_transactions_on_postgres_agree_with_the_model(
    databases: dict[str, tuple[adb.Database, Table]], transactions: list[Subtransaction]
) -> None:
    check(*databases["postgres"], transactions)
