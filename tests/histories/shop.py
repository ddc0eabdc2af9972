"""A purchase: one transaction that writes three tables, in children; whole or not there.

As a program, ``python -m tests.histories.shop '{"url": …, "point": …, "count": …}'``, it makes
purchase 1, says so in its log, and is killed with SIGKILL when its next one comes to a named point
of its commit for the ``count``-th time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, ForeignKey, Integer, String, Table, text

import activedb as adb

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from activedb import Transaction

GOODS = 3
IN_STOCK = 1_000
LINES = 40


@dataclass(frozen=True)
class Shop:
    """Orders have lines, each for one piece of some goods; stock goes down by what is ordered."""

    db: adb.Database
    orders: Table
    lines: Table
    stock: Table

    def buy(self, number: int, between: Callable[[str], object] = lambda where: None) -> None:
        """Make purchase `number` and take back the one before it, in a top-level transaction.

        Parameters
        ----------
        between : callable
            Called with ``begun``, ``half`` and ``written`` when the transaction is so far.
        """
        self.db.run(self.purchase, number, between)

    def purchase(
        self, t: Transaction, number: int, between: Callable[[str], object] = lambda where: None
    ) -> None:
        t.insert(self.orders, {"id": number, "customer": f"customer {number}"})
        between("begun")
        with t.subtransaction() as s:
            for line in range(LINES):
                s.insert(self.lines, {"order_id": number, "line": line, "goods": line % GOODS})
        with t.subtransaction() as s:
            s.insert(self.orders, {"id": -number, "customer": "nobody"})
            s.abort("which leaves nothing")
        between("half")
        takers = [t.spawn(self._take, goods, number) for goods in range(GOODS)]
        if number > 1:
            with t.subtransaction() as s:
                self._take_back(s, number - 1)
        for taker in takers:
            taker.result()
        between("written")

    def _take(self, t: Transaction, goods: int, number: int) -> None:
        row = t.get(self.stock, goods, for_update=True)
        assert row is not None
        taken = len(range(goods, LINES, GOODS)) if number == 1 else 0
        t.update(self.stock, goods, pieces=row["pieces"] - taken, last_order=number)

    def _take_back(self, t: Transaction, number: int) -> None:
        for line in range(LINES):
            t.delete(self.lines, (number, line))
        t.delete(self.orders, number)


def open_shop(db: adb.Database) -> Shop:
    """Declare the tables, and fill them when they are new."""
    orders = Table(
        "orders",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("customer", String(40), nullable=False),
    )
    lines = Table(
        "order_lines",
        db.metadata,
        Column("order_id", ForeignKey("orders.id"), primary_key=True),
        Column("line", Integer, primary_key=True),
        Column("goods", Integer, nullable=False),
    )
    stock = Table(
        "stock",
        db.metadata,
        Column("goods", Integer, primary_key=True),
        Column("pieces", Integer, nullable=False),
        Column("last_order", Integer, nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        if t.get(stock, 0) is None:
            for goods in range(GOODS):
                t.insert(stock, {"goods": goods, "pieces": IN_STOCK, "last_order": 0})
    return Shop(db, orders, lines, stock)


def orders_found(connection: Connection) -> list[int]:
    """The orders that are there, as a plain connection sees them, after a look at everything.

    Fails when any part of a purchase is there without the rest of it.
    """
    orders = [number for (number,) in connection.execute(text("SELECT id FROM orders ORDER BY id"))]
    found = connection.execute(text("SELECT order_id, line, goods FROM order_lines"))
    lines = [(number, line, goods) for number, line, goods in found]
    stock = connection.execute(text("SELECT goods, pieces, last_order FROM stock ORDER BY goods"))
    left = [(goods, pieces, last) for goods, pieces, last in stock]
    last = orders[-1] if orders else 0
    assert sorted(lines) == [(n, line, line % GOODS) for n in orders for line in range(LINES)]
    ordered = Counter(goods for _, _, goods in lines)
    assert left == [(goods, IN_STOCK - ordered[goods], last) for goods in range(GOODS)]
    return orders


def main(given: dict[str, Any]) -> None:
    log = os.open(Path(given["log"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    left = given["count"]

    def trigger(point: str) -> None:
        nonlocal left
        if point == given["point"]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with adb.connect(given["url"]) as db:
        shop = open_shop(db)
        shop.buy(1)
        os.write(log, b"bought 1\n")
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger
        shop.buy(2)
        os.write(log, b"bought 2\n")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
