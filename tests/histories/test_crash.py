"""Committed work is there, other work is not, after an end at any point of a commit."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.store.session._store import TRIGGER_POINTS
from tests.databases import PATIENCE_S
from tests.histories.processes import Server, Worker
from tests.histories.shop import open_shop, orders_found

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import Place

AFTER = "after commit"
CHILD = "during a child's commit"


class Boom(Exception):
    """Error that a trigger raises."""


@pytest.mark.crash
@pytest.mark.parametrize(
    ("point", "count"), [*((point, 1) for point in TRIGGER_POINTS), (CHILD, 4), ("never", 1)]
)
def test_purchase_of_a_process_killed_at_a_point_is_there_whole_or_not_at_all(
    database_url: str, tmp_path: Path, point: str, count: int
) -> None:
    server = Server(database_url)
    task = {"url": database_url, "point": point, "count": count}
    with Worker("tests.histories.shop", task, tmp_path / "log") as worker:
        worker.wait_ready()
        assert server.look(orders_found) == [1]
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        reported = worker.lines()[-1]
    server.wait_idle()
    assert reported == ("bought 2" if point == "never" else "bought 1")
    expected = [2] if point in (AFTER, "never") else [1]
    assert server.look(orders_found) == expected
    # Nothing is left behind that would be in the way of the next process.
    with adb.connect(database_url) as db:
        shop = open_shop(db)
        shop.buy(expected[-1] + 1)
        assert db.admin.counters()["transactions_committed"] == 2
    assert server.look(orders_found) == [expected[-1] + 1]


@pytest.mark.parametrize("point", TRIGGER_POINTS)
def test_purchase_that_fails_at_a_point_is_there_whole_or_not_at_all(
    where: Place, point: str
) -> None:
    db = where.open()
    shop = open_shop(db)
    shop.buy(1)

    def trigger(reached: str) -> None:
        if reached == point:
            raise Boom(point)

    db._store.trigger = trigger
    with pytest.raises(Boom, match=point):
        shop.buy(2)
    db._store.trigger = lambda reached: None
    expected = [2] if point == AFTER else [1]
    with db._store.short() as connection:
        assert orders_found(connection) == expected
    shop.buy(expected[-1] + 1)
    with db._store.short() as connection:
        assert orders_found(connection) == [expected[-1] + 1]


def test_child_that_fails_as_it_commits_is_undone_alone(where: Place) -> None:
    db = where.open()
    shop = open_shop(db)

    def trigger(reached: str) -> None:
        if reached == CHILD:
            raise Boom(reached)

    with db.transaction() as t:
        t.insert(shop.orders, {"id": 1, "customer": "one"})
        db._store.trigger = trigger
        with pytest.raises(Boom), t.subtransaction() as s:
            s.insert(shop.orders, {"id": 2, "customer": "two"})
        child = t.spawn(lambda s: s.insert(shop.orders, {"id": 3, "customer": "three"}))
        with pytest.raises(Boom):
            child.result()
        db._store.trigger = lambda reached: None
        assert [t.get(shop.orders, n) is None for n in (1, 2, 3)] == [False, True, True]
        t.insert(shop.orders, {"id": 2, "customer": "another"})
    with db.transaction() as t:
        found = [t.get(shop.orders, n) for n in (1, 2, 3)]
    assert [row and row["customer"] for row in found] == ["one", "another", None]
