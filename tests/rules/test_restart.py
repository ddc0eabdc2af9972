"""Rules after a restart of the process, and as another process sees them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import ServerUnreachable
from tests.databases import place
from tests.patience import PATIENCE_S
from tests.rules.listing import listed, row, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Database, Occurrence, Transaction
    from tests.databases import Place


@pytest.fixture
def where(postgres_url: str) -> Iterator[Place]:
    """A schema on Postgres: memory keeps nothing."""
    with place(postgres_url) as opened:
        yield opened


def act(t: Transaction, o: Occurrence) -> None:
    """The action of the rules here."""


def other_act(t: Transaction, o: Occurrence) -> int:
    """Another one."""
    return 2


def define(db: Database, name: str = "r", action: Any = act, **options: Any) -> None:
    """Define a rule, as the code of an application does at each start."""
    db.rule(**{"on": adb.event("A"), "name": name, **options})(action)


def test_restart_takes_over_version_and_what_was_switched_and_changed(where: Place) -> None:
    with where.open() as db:
        define(db)
        define(db, "q")
        define(db, "s", priority=3)
        db.rules.disable("r")
        db.rules.change("q", priority=9, coupling="deferred", on_abort="rule")
    with where.open() as db:
        assert listed(db) == {}  # until the code defines them
        define(db)
        define(db, "q")
        define(db, "s", priority=3)
        assert listed(db) == stored(db)
        assert listed(db) == {"r": (2, False, None), "q": (2, True, 9), "s": (1, True, 3)}
        q = db.rules["q"]
        assert (q.coupling, q.on_abort) == ("deferred", "rule")
        # Nothing was written for that.
        assert db.admin.counters().get("transactions_committed", 0) == 0
        db.rules.enable("r")
    with where.open() as db:
        define(db)
        assert listed(db)["r"] == (3, True, None)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 1},
        {"coupling": "deferred"},
        {"on_abort": "rule"},
        {"on": adb.event("B")},
        {"on": adb.event("A", where=lambda o: True)},
        {"when": lambda t, o: True},
        {"action": other_act},
        {"action": lambda t, o, limit=1: None, "params": {"limit": 2}},
    ],
)
def test_restart_with_another_definition_makes_a_version_and_stays_switched_off(
    where: Place, options: dict[str, Any]
) -> None:
    with where.open() as db:
        define(db)
        db.rules.disable("r")
        before = row(db, "r")
    with where.open() as db:
        define(db, **options)
        assert db.rules["r"].version == 3
        assert not db.rules["r"].enabled
        after = row(db, "r")
        assert after["version"] == 3
        assert after["fingerprint"] != before["fingerprint"]
        assert after["changed_at"] > before["changed_at"]
    with where.open() as db:
        define(db, **options)
        assert db.rules["r"].version == 3


def test_restart_after_a_change_of_functions_has_those_of_the_code_again(where: Place) -> None:
    with where.open() as db:
        define(db)
        db.rules.change("r", action=other_act)
    with where.open() as db:
        define(db)
        assert db.rules["r"].version == 3
        assert db.rules["r"].rule.action is act


def test_deleted_rule_that_code_defines_again_is_a_new_one(where: Place) -> None:
    with where.open() as db:
        define(db)
        db.rules.disable("r")
        db.rules.delete("r")
        assert stored(db) == {}
        define(db)
        assert listed(db) == stored(db) == {"r": (1, True, None)}


def test_definition_inside_a_transaction_takes_over_too(where: Place) -> None:
    with where.open() as db:
        define(db)
        db.rules.disable("r")
    with where.open() as db:
        with db.transaction():
            define(db)
            assert listed(db) == {"r": (2, False, None)}
        assert listed(db) == stored(db) == {"r": (2, False, None)}


def test_change_of_another_process_is_seen_after_a_refresh_and_when_connecting(
    where: Place,
) -> None:
    one, other = where.open(), where.open()
    for db in (one, other):
        define(db)
        define(db, "gone")
        define(db, "q")
    one.rules.disable("r")
    one.rules.change("q", priority=4)
    one.rules.delete("gone")
    assert listed(other)["r"] == (1, True, None)
    other.rules.refresh()
    assert listed(other) == listed(one) == {"r": (2, False, None), "q": (2, True, 4)}
    third = where.open()
    define(third)
    assert listed(third) == {"r": (2, False, None)}


def test_refresh_in_a_transaction_is_undone_with_it(where: Place) -> None:
    one, other = where.open(), where.open()
    define(one)
    define(other)
    one.rules.disable("r")
    with other.transaction() as t:
        other.rules.refresh()
        assert listed(other) == {"r": (2, False, None)}
        t.abort()
    assert listed(other) == {"r": (1, True, None)}


def test_change_of_a_rule_that_another_process_has_changed_loses_nothing(where: Place) -> None:
    one, other = where.open(), where.open()
    define(one)
    define(other)
    one.rules.disable("r")
    changed = other.rules.change("r", priority=4)
    assert (changed.version, changed.enabled, changed.priority) == (3, False, 4)
    assert stored(one) == {"r": (3, False, 4)}
    assert one.rules.enable("r").priority == 4
    assert listed(one) == stored(one) == {"r": (4, True, 4)}


def test_change_of_a_rule_that_another_process_has_deleted_writes_it_again(where: Place) -> None:
    one, other = where.open(), where.open()
    define(one)
    define(other)
    one.rules.delete("r")
    other.rules.disable("r")
    assert stored(other) == listed(other) == {"r": (2, False, None)}


PROGRAM = """
import sys
import activedb as adb

def act(t, o):
    "Closures, sets of names and constants, which hashes put in another order in each process."
    if o.name in {"alpha", "beta", "gamma", "delta"}:
        return [(lambda: (x, "inner"))() for x in (1, 2.5, None)]

with adb.connect(sys.argv[1]) as db:
    db.rule(on=adb.event("A", where=lambda o: o.params["n"] in {"x", "y", "z"}), name="r",
            when=lambda t, o, **p: True, params={"b": {"u", "v", "w"}, "a": object})(act)
    print(db.rules["r"].version, db.rules["r"].enabled)
    db.rules.disable("r")
"""


@pytest.mark.long
def test_program_that_is_started_again_finds_its_rule_as_it_left_it(database_url: str) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM, database_url],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert told == ["1 True", "2 False"]


def test_definition_that_the_server_does_not_take_leaves_the_catalog_as_it_was(
    where: Place,
) -> None:
    db = where.open()
    define(db, "q")
    before = db.rules.list()

    def trigger(point: str) -> None:
        if point == "inside flush":
            raise ServerUnreachable("gone")

    db._store.trigger = trigger
    with pytest.raises(ServerUnreachable):
        define(db)
    with pytest.raises(ServerUnreachable):
        db.rules.disable("q")
    db._store.trigger = lambda point: None
    assert db.rules.list() == before
    assert stored(db) == {"q": (1, True, None)}
    define(db)
