"""Figures of rules: the outcomes of each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import Deadlock, RuleFailed
from tests.databases import PATIENCE_S, in_thread

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from activedb.firing._rule_listeners import RuleFigure


def figure(db: adb.Database, rule: str = "rule") -> RuleFigure:
    return db._triggering.figures.of_rules()[rule]


def test_rule_that_never_was_triggered_has_no_figure(db: adb.Database) -> None:
    db.rule(on=adb.event("E"), name="rule")(lambda t, o: None)
    assert db._triggering.figures.of_rules() == {}


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential", "causal"])
def test_rule_that_fires_is_counted_and_timed(db: adb.Database, coupling: str) -> None:
    db.rule(on=adb.event("E"), coupling=coupling, name="rule")(lambda t, o: None)
    for _ in range(3):
        db.signal("E")
    db.wait_idle()
    found = figure(db)
    assert (found.matched, found.fired, found.latencies.count) == (3, 3, 3)
    assert found.last_fired_s > 0
    assert sum(found.outcomes().values()) == 3
    assert db.admin.counters()["rules_fired"] == 3
    assert db.admin.rule_latency_s(0.5) > 0


def test_condition_that_is_false_is_counted_and_not_timed(db: adb.Database) -> None:
    for mode in ("immediate", "sequential"):
        db.rule(on=adb.event("E"), when=lambda t, o: False, condition_action=mode, name=mode)(
            lambda t, o: None
        )
    db.signal("E")
    for mode in ("immediate", "sequential"):
        found = figure(db, mode)
        assert (found.conditions_false, found.fired, found.latencies.count) == (1, 0, 0)


@pytest.mark.parametrize("mode", ["deferred", "detached"])
def test_action_that_runs_later_is_a_run_of_its_own(db: adb.Database, mode: str) -> None:
    db.rule(on=adb.event("E"), when=lambda t, o: True, condition_action=mode, name="rule")(
        lambda t, o: None
    )
    db.signal("E")
    db.wait_idle()
    assert (figure(db).actions_later, figure(db).fired) == (1, 1)


def test_failure_of_the_rule_and_of_what_is_around_it_are_told_apart(db: adb.Database) -> None:
    errors = [Deadlock("as the lock manager would say"), None, ValueError("its own")]

    @db.rule(on=adb.event("E"))
    def rule(t: Transaction, o: Occurrence) -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    db.signal("E")
    with pytest.raises(RuleFailed):
        db.signal("E")
    found = figure(db)
    assert (found.aborted, found.fired, found.failed, found.matched) == (1, 1, 1, 2)


def test_figures_of_many_threads_lose_nothing(db: adb.Database) -> None:
    start = threading.Barrier(3)
    for name in ("one", "other"):
        db.rule(on=adb.event("E"), name=name)(lambda t, o: None)

    def work() -> None:
        start.wait(PATIENCE_S)
        for _ in range(20):
            db.signal("E")

    for end in [in_thread(work) for _ in range(3)]:
        end.result(PATIENCE_S)
    assert [figure(db, name).fired for name in ("one", "other")] == [60, 60]
    assert db._triggering.figures.latencies().count == 120
