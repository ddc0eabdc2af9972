"""Many threads change the catalog and raise events at once."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from tests.databases import PATIENCE_S, in_thread
from tests.rules.listing import listed, stored

if TYPE_CHECKING:
    from activedb import Database

SEED = int(os.environ["ACTIVEDB_TEST_SEED"])


class OnPurposeError(Exception):
    """Raised inside a transaction that is to end so."""


@pytest.mark.long
def test_changes_of_many_threads_count_every_commit_once(db: Database, scale: int) -> None:
    threads, rounds = 4, 8 * scale
    db.rule(on=adb.event("A"), name="shared")(lambda t, o: None)

    def work(number: int) -> int:
        chance = random.Random(f"{SEED}/{number}")
        own, committed = f"own{number}", 0
        db.rule(on=adb.event("A"), name=own)(lambda t, o: None)
        for priority in range(1, rounds + 1):
            aborts = chance.random() < 0.3

            def change(t: adb.Transaction, priority: int = priority, aborts: bool = aborts) -> None:
                with t.subtransaction():
                    db.rules.change("shared", priority=number * 1_000 + priority)
                db.rules.change(own, priority=priority)
                assert db.rules[own].priority == priority
                if aborts:
                    raise OnPurposeError

            try:
                db.run(change)
                committed += 1
            except OnPurposeError:
                pass
        return committed

    counts = [f.result(PATIENCE_S * scale) for f in [in_thread(work, n) for n in range(threads)]]
    found = listed(db)
    assert found == stored(db)
    assert found["shared"][0] == 1 + sum(counts)
    assert [found[f"own{n}"][0] for n in range(threads)] == [1 + count for count in counts]
    assert not db._catalog.drafts


@pytest.mark.long
def test_rules_swapped_by_one_commit_are_never_both_on_or_both_off(
    db: Database, scale: int
) -> None:
    ran = threading.local()
    for name in ("left", "right"):
        db.rule(on=adb.event("A"), name=name, params={"me": name})(
            lambda t, o, me: ran.names.append(me)
        )
    db.rules.disable("right")
    stop = threading.Event()

    def look() -> int:
        looks = 0
        while not stop.is_set() or looks == 0:
            ran.names = []
            db.signal("A")
            assert len(ran.names) == 1, ran.names
            looks += 1
        return looks

    watchers = [in_thread(look) for _ in range(2)]
    for turn in range(20 * scale):
        on, off = ("right", "left") if turn % 2 == 0 else ("left", "right")
        with db.transaction():
            db.rules.disable(off)
            db.rules.enable(on)
    stop.set()
    assert all(w.result(PATIENCE_S) > 0 for w in watchers)
    assert {name: version for name, (version, *_) in listed(db).items()} == {
        "left": 1 + 20 * scale,
        "right": 2 + 20 * scale,
    }
