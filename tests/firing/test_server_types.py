"""Rules of every mode see values of PostgreSQL's own types as the triggering transaction does."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.dialects.postgresql import Range

import activedb as adb
from coupling import Coupling
from tests.databases import PATIENCE_S, in_thread

if TYPE_CHECKING:
    from tests.databases import Place

NOON = datetime(2024, 5, 6, 12, tzinfo=UTC)
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "inet": (pg.INET, [IPv4Address("10.0.0.1"), IPv4Interface("10.0.0.1/24"), IPv6Address("::1")]),
    "cidr": (pg.CIDR, [IPv4Network("10.0.0.0/8")]),
    "macaddr": (pg.MACADDR, ["08:00:2b:01:02:03"]),
    "int4range": (pg.INT4RANGE, [Range(1, 5), Range(None, 3), Range(empty=True)]),
    "numrange": (pg.NUMRANGE, [Range(Decimal("0.10"), Decimal(2), bounds="(]")]),
    "tstzrange": (pg.TSTZRANGE, [Range(NOON, None), Range(NOON, NOON, bounds="[]")]),
    "int4multirange": (pg.INT4MULTIRANGE, [[Range(1, 2), Range(5, 9)], []]),
    "bit": (pg.BIT(3), ["101"]),
    "varbit": (pg.BIT(5, varying=True), ["10101", ""]),
    "inets": (pg.ARRAY(pg.INET), [[IPv4Address("10.0.0.1"), None]]),
    "ranges": (pg.ARRAY(pg.INT4RANGE), [[Range(1, 5)]]),
    "hstore": (pg.JSONB, [{"a": [1, None]}]),
}


@pytest.mark.parametrize("name", VALUES)
def test_rules_see_values_of_server_types(there: Place, name: str) -> None:
    kind, values = VALUES[name]
    db = there.open()
    table = Table(
        "typed",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("n", Integer),
        Column("v", kind),
    )
    db.create_all()
    seen: dict[str, list[Any]] = {}
    rows: list[Any] = []
    modes = [mode for mode in Coupling if mode is not Coupling.EXCLUSIVE]
    for mode in modes:

        def see(t: adb.Transaction, o: adb.Occurrence, mode: Coupling = mode) -> None:
            seen.setdefault(mode, []).append((o.new["id"], o.old["v"], o.new["v"]))

        db.rule(on=adb.updated(table, "n"), coupling=mode, name=mode)(see)

    @db.rule(on=adb.updated(table, "n"), coupling=Coupling.EXCLUSIVE)
    def instead(t: adb.Transaction, o: adb.Occurrence) -> None:
        seen.setdefault(Coupling.EXCLUSIVE, []).append((o.new["id"], o.old["v"], o.new["v"]))

    with db.transaction() as t:
        for number, value in enumerate([*values, None]):
            t.insert(table, {"id": number, "n": 0, "v": value})
    for number in range(len(values) + 1):
        with db.transaction() as t:
            row = t.get(table, number)
            assert row is not None
            rows.append((number, row["v"], row["v"]))
            t.update(table, number, n=1)
    in_thread(db.wait_idle).result(PATIENCE_S)
    assert db.dead_letters.list() == []
    for found in seen.values():  # the order of rules in transactions of their own is open
        found.sort(key=itemgetter(0))
    assert seen == dict.fromkeys(modes, rows)
    assert [type(old) for _, old, _ in seen[Coupling.DETACHED]] == [type(v) for _, v, _ in rows]
    del seen[Coupling.DETACHED]
    with pytest.raises(ZeroDivisionError), db.transaction() as t:
        t.update(table, 0, n=2)
        raise ZeroDivisionError
    in_thread(db.wait_idle).result(PATIENCE_S)
    assert seen[Coupling.EXCLUSIVE] == rows[:1]
    assert db.dead_letters.list() == []
