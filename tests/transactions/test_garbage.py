"""Transactions leave nothing to the garbage collector: what one needs is freed when it ends."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pytest
from sqlalchemy import select

from activedb import Transaction, updated
from tests.databases import Place

from .bank import Bank, open_bank

TIMES = 5
OURS = ("activedb", "lockmgr")


class Refused(Exception):
    pass


def _abort(bank: Bank) -> None:
    with suppress(Refused), bank.db.transaction() as t:
        t.update(bank.accounts, 1, balance=3)
        raise Refused


def _abort_child(bank: Bank) -> None:
    with bank.db.transaction() as t, suppress(Refused), t.subtransaction() as s:
        s.update(bank.accounts, 1, balance=3)
        raise Refused


def _insert_and_delete(bank: Bank) -> None:
    with bank.db.transaction() as t:
        assert t.get(bank.accounts, 9) is None
        t.insert(bank.accounts, {"id": 9, "balance": 0})
    with bank.db.transaction() as t:
        t.delete(bank.accounts, 9)


def _query(bank: Bank) -> None:
    rows, balance = bank.accounts, bank.accounts.c.balance
    with bank.db.transaction() as t:
        assert t.query(select(rows).where(rows.c.id == 1))
        t.query(select(rows).where(balance > 5))
        t.query(select(rows))


def _children(bank: Bank) -> None:
    with bank.db.transaction() as t:
        for key in (1, 2):
            t.spawn(_read, bank, key)


def _read(s: Transaction, bank: Bank, key: int) -> None:
    s.get(bank.accounts, key)


def _nested(bank: Bank) -> None:
    with bank.db.transaction() as t, t.subtransaction() as s:
        s.update(bank.accounts, 1, balance=gc.get_count()[0])


WORKS: list[Callable[[Bank], object]] = [
    _abort,
    _abort_child,
    _children,
    _insert_and_delete,
    _nested,
    _query,
    lambda bank: bank.db.run(lambda t: t.update(bank.accounts, 1, balance=7)),
]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__.strip("_<>"))
def test_transaction_leaves_nothing_to_the_garbage_collector(
    bank: Bank, work: Callable[[Bank], object]
) -> None:
    bank.db.rule(on=updated(bank.accounts), name="look")(lambda t, _: t.get(bank.accounts, 2))
    assert _left_by(lambda: work(bank)) == []


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.__name__.strip("_<>"))
def test_transaction_beside_another_one_leaves_nothing_to_the_garbage_collector(
    where: Place, work: Callable[[Bank], object]
) -> None:
    bank = open_bank(where.open(), {1: 10, 2: 20})
    with where.another() as elsewhere, elsewhere.open().transaction():
        assert _left_by(lambda: work(bank)) == []


def _left_by(work: Callable[[], object]) -> list[str]:
    """Return the kinds of our objects that calls of `work` leave in cycles, each time."""
    for _ in range(TIMES):
        work()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(TIMES):
            work()
        gc.collect()
        left = Counter(map(_kind, gc.garbage))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    # A single object may come from another thread.
    return [kind for kind, count in left.items() if count >= TIMES and kind.startswith(OURS)]


def _kind(one: object) -> str:
    if isinstance(one, FrameType):
        return f"{one.f_globals.get('__name__')}.{one.f_code.co_name}"
    return f"{type(one).__module__}.{type(one).__name__}"
