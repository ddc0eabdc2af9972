"""Rules on equal events have one detector's work done together, and nothing else in common."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.events import seq
from tests.databases import PATIENCE_S, in_thread
from tests.drawing import Worlds

if TYPE_CHECKING:
    from activedb import Database, Occurrence, Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def pair() -> Any:
    """The same one each time, made anew."""
    return seq(adb.event("A"), ~adb.event("N"), adb.event("B")).same("x").within(6)


class Board:
    """A database whose rules write down what fires them."""

    def __init__(self, db: Database, *, shares: bool = True):
        self.db = db
        self.fired: list[str] = []
        if not shares:
            db.rules._sharing = None  # type: ignore[assignment]

    def rule(self, name: str, on: Any = None, **options: Any) -> None:
        def note(t: Transaction, o: Occurrence) -> None:
            self.fired.append(f"{name}: {o.name} {[c.us // 1_000_000 for c in o.constituents]}")

        self.db.rules.create(note, on=pair() if on is None else on, name=name, **options)

    def signal(self, name: str, second: int, x: int = 0) -> None:
        self.db.signal(name, timestamp=second, x=x)

    def shared(self) -> int:
        """Return how many rules share with another what they keep."""
        found = [entry.subscription._detection for entry in self.db._catalog.entries()]
        return sum(
            detection.network is not None and detection.network.shared > 0 for detection in found
        )


def test_rules_on_equal_events_keep_them_once_and_fire_under_their_own_names() -> None:
    with adb.connect("memory://") as db:
        board = Board(db)
        for name in ("one", "two", "three"):
            board.rule(name)
        assert board.shared() == 3
        board.signal("A", 1)
        roots: list[Any] = [
            entry.subscription._detection.detector._root for entry in db._catalog.entries()
        ]
        nodes = {root.hub for root in roots}
        assert len(nodes) == 1
        board.signal("B", 2)
        assert sorted(board.fired) == [f"{name}: {name} [1, 2]" for name in ("one", "three", "two")]
        assert [db.rules[name].partials for name in ("one", "two")] == [1, 1]


def test_rule_that_is_defined_later_has_not_seen_what_came_before() -> None:
    with adb.connect("memory://") as db:
        board = Board(db)
        board.rule("first")
        board.signal("A", 1)
        board.rule("second")
        board.rule("third")
        assert board.shared() == 2
        board.signal("B", 2)
        assert board.fired == ["first: first [1, 2]"]
        board.signal("A", 3)
        board.signal("B", 4)
        assert sorted(board.fired[1:]) == ["first: first [1, 4]", "first: first [3, 4]"] + [
            f"{name}: {name} [3, 4]" for name in ("second", "third")
        ]


def test_definition_that_aborts_leaves_the_other_rule_as_it_was() -> None:
    with adb.connect("memory://") as db:
        board = Board(db)
        board.rule("stays")
        with db.transaction() as t:
            board.rule("goes")
            t.abort()
        for second, name in enumerate("AANBAB"):
            board.signal(name, second)
        assert board.shared() == 0
        assert board.fired == ["stays: stays [4, 5]"]


@dataclass
class NoHash:
    """A predicate that can be compared and has no hash."""

    least: int

    def __call__(self, o: Occurrence) -> bool:
        return bool(o.params["x"] >= self.least)


def test_predicates_without_a_hash_share_nothing() -> None:
    with adb.connect("memory://") as db:
        board = Board(db)
        for name in ("one", "two"):
            board.rule(name, seq(adb.event("A", where=NoHash(1)), adb.event("B")).within(5))
        board.signal("A", 1, x=1)
        board.signal("B", 2)
        assert board.shared() == 0
        assert sorted(board.fired) == ["one: one [1, 2]", "two: two [1, 2]"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6 * SCALE))
def test_rules_on_equal_events_fire_as_rules_that_share_nothing(seed: int) -> None:
    worlds = Worlds(1, "sharing", seed, fired=1)
    for world in worlds:
        drawn_from = world.getrandbits(32)
        sharing, alone = (fired(drawn_from, shares=shares) for shares in (True, False))
        assert sharing == alone
        worlds.met["fired"] = len(sharing)


def fired(drawn_from: int, *, shares: bool) -> list[str]:
    """Return what rules on equal events do, whether or not they share these."""
    chance = Random(drawn_from)
    with adb.connect("memory://") as db:
        board = Board(db, shares=shares)
        names = [f"r{number}" for number in range(5)]
        for number, name in enumerate(names):
            bound = chance.choice([None, None, 3])
            board.rule(name, coupling=chance.choice(["immediate", "deferred"]))
            if bound and number:
                db.rules.delete(name)
                board.rule(name, partials_max=bound)
        assert not shares or board.shared() > 1
        second = 0
        for _ in range(60):
            second += chance.randrange(3)
            event = (chance.choice("AABBN"), second)
            x, kind, name = chance.randrange(2), chance.randrange(20), chance.choice(names)
            with suppress(ZeroDivisionError), db.transaction():
                if kind == 0:
                    with db.rules.ignoring(name):
                        board.signal(*event, x)
                elif kind == 1:
                    board.signal(*event, x)
                    board.signal(*event, x)
                    raise ZeroDivisionError
                elif kind == 2 and db.rules[name].enabled:
                    db.rules.disable(name)
                elif kind == 2:
                    db.rules.enable(name)
                else:
                    board.signal(*event, x)
        return sorted(board.fired)  # equal ones fire in any order


def test_threads_that_define_and_feed_rules_on_equal_events_lose_nothing() -> None:
    with adb.connect("memory://", retries_max=50) as db:
        board = Board(db)
        board.rule("r0")

        def define() -> None:
            for number in range(1, 8):
                board.rule(f"r{number}")

        def feed(thread: int) -> None:
            for number in range(20):
                x = 100 * thread + number
                with db.transaction():
                    board.signal("A", 1, x)
                    board.signal("B", 2, x)

        for future in [in_thread(define), *(in_thread(feed, thread) for thread in range(3))]:
            future.result(PATIENCE_S)
        assert board.fired.count("r0: r0 [1, 2]") == 60
        board.fired.clear()
        for name in ("A", "B"):
            board.signal(name, 5 + (name == "B"), -1)
        assert sorted(board.fired) == [f"r{number}: r{number} [5, 6]" for number in range(8)]
