"""Observers hear of each transaction, in order, and can do no harm."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import SerializationConflict, WrongThread
from activedb.transactions import Observer, State, TransactionNode
from tests.databases import PATIENCE_S, in_thread
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Occurrence, Transaction


class Witness(Observer):
    """Observer that records what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def began(self, t: TransactionNode) -> None:
        self.heard.append(f"began {t.label if t.parent else 'top'}")

    def entered(self, t: TransactionNode) -> None:
        self.heard.append(f"entered {t.label if t.parent else 'top'}")

    def left(self, t: TransactionNode) -> None:
        assert t.state.is_final
        self.heard.append(f"left {t.label if t.parent else 'top'}")

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None:
        self.heard.append(f"spawned {firing.rpartition('.')[2]} {coupling}")

    def carried(self, t: TransactionNode) -> str | None:
        return f"of {t.id}"

    def committing(self, t: TransactionNode) -> None:
        assert t.state is State.COMMITTING
        self.heard.append(f"committing {t.label if t.parent else 'top'}")

    def failing(self, t: TransactionNode, error: BaseException | None) -> None:
        assert not t.state.is_final
        self.heard.append(f"failing {t.label if t.parent else 'top'} {type(error).__name__}")

    def ended(self, t: TransactionNode) -> None:
        self.heard.append(f"{t.state} {t.label if t.parent else 'top'}")


def test_observer_hears_of_each_step_in_order(db: adb.Database) -> None:
    witness = Witness()
    db._forest.observe(witness)
    with db.transaction() as t:
        with t.subtransaction():
            pass
        with pytest.raises(ValueError, match="no"), t.subtransaction():
            raise ValueError("no")
    assert witness.heard == [
        *("began top", "entered top", "began 1", "entered 1", "committing 1", "committed 1"),
        *("left 1", "began 2", "entered 2", "failing 2 ValueError", "aborted 2", "left 2"),
        *("committing top", "committed top", "left top"),
    ]


def test_observer_hears_of_each_try(db: adb.Database) -> None:
    witness = Witness()
    db._forest.observe(witness)
    tries = []

    def work(t: Transaction) -> None:
        tries.append(node_of(t).hierarchy.run.tries)
        if len(tries) == 1:
            raise SerializationConflict("as the server would say")

    db.run(work)
    assert tries == [1, 2]
    assert [what for what in witness.heard if not what.startswith(("entered", "left"))] == [
        *("began top", "failing top SerializationConflict", "aborted top"),
        *("began top", "committing top", "committed top"),
    ]


def test_observer_hears_of_firings_which_carry_its_word(db: adb.Database) -> None:
    found: list[tuple[str | None, ...]] = []

    @db.rule(on=adb.event("E"), coupling="sequential")
    def rule(t: Transaction, o: Occurrence) -> None:
        run = node_of(t).hierarchy.run
        found.append((t.rule, node_of(t).coupling, run.origin))

    witness = Witness()
    db._forest.observe(witness)
    with db.transaction() as t:
        db.signal("E")
    db.wait_idle()
    assert found == [("rule", "sequential", f"of {t.id}")]
    assert any(re.fullmatch("spawned rule~[0-9a-f]{16} sequential", what) for what in witness.heard)


def test_firing_carries_nothing_while_nobody_watches(db: adb.Database) -> None:
    found = []

    @db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        found.append(node_of(t).hierarchy.run.origin)

    db.signal("E")
    db.wait_idle()
    assert found == [None]


def test_observer_hears_of_whole_hierarchies_alone(db: adb.Database) -> None:
    witness = Witness()
    with db.transaction() as t:
        db._forest.observe(witness)
        with t.subtransaction():
            pass
    assert witness.heard == []
    with db.transaction() as t:
        db._forest.unobserve(witness)
        with t.subtransaction():
            pass
    assert witness.heard[-2:] == ["committed top", "left top"]
    assert db._forest.observer is None


def test_kind_of_observer_is_made_once(db: adb.Database) -> None:
    first = db._forest.observed_by(Witness)
    db._forest.observe(Observer())
    assert db._forest.observed_by(Witness) is first


class _Broken(Observer):
    def began(self, t: TransactionNode) -> None:
        raise RuntimeError("broken")

    ended = left = began


def test_observer_hears_of_the_end_of_a_block_that_ends_on_another_thread(db: adb.Database) -> None:
    witness = Witness()
    db._forest.observe(witness)

    def block() -> Iterator[None]:
        with db.transaction():
            yield

    blocks = block()
    next(blocks)
    with pytest.raises(WrongThread):
        in_thread(next, blocks, None).result(PATIENCE_S)
    assert witness.heard == [
        *("began top", "entered top", "failing top WrongThread", "aborted top", "left top"),
    ]


def test_observer_that_raises_is_logged_once_and_hurts_nobody(
    db: adb.Database, caplog: pytest.LogCaptureFixture
) -> None:
    witness = Witness()
    db._forest.observe(_Broken())
    db._forest.observe(witness)
    with caplog.at_level(logging.ERROR):
        db.run(lambda t: None)
    assert witness.heard == [
        *("began top", "entered top", "committing top", "committed top", "left top"),
    ]
    (record,) = caplog.records
    assert record.getMessage().endswith("_Broken.began has failed, and may again")


def test_coupling_is_that_of_the_rule_that_runs(db: adb.Database) -> None:
    found: dict[str, str | None] = {}

    def define(coupling: str) -> None:
        @db.rule(on=adb.event("E"), coupling=coupling, name=coupling)
        def rule(t: Transaction, o: Occurrence) -> None:
            found[coupling] = node_of(t).coupling
            with t.subtransaction() as s:
                assert node_of(s).coupling is None

    for coupling in ("immediate", "deferred", "detached", "causal", "sequential"):
        define(coupling)
    with db.transaction() as t:
        db.signal("E")
        assert node_of(t).coupling is None
    db.wait_idle()
    assert len(found) == 5
    assert all(coupling == name for name, coupling in found.items())
