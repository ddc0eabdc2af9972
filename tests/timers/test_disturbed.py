"""Moments of the clock whose transactions conflict: the outcome is that of an undisturbed run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import SerializationConflict
from activedb.events import AccuracyInterval
from activedb.transactions import current_transaction
from tests.databases import until
from tests.drawing import drawn
from tests.ledger import EPOCH, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Database, Occurrence, SimulatedClock, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

A, B = adb.event("A"), adb.event("B")
COUPLINGS = ("immediate", "deferred", "detached", "sequential", "causal", "exclusive")
POINTS = ("before flush", "inside flush", "before commit")
END_S = 31


def around(second: float) -> AccuracyInterval:
    """A time that is known to within a second."""
    us = round((EPOCH.timestamp() + second) * 1_000_000)
    return AccuracyInterval(us, us - 1_000_000, us + 1_000_000, node=str(second))


class Conflicts:
    """Conflicts where threads of the database reach a point.

    Parameters
    ----------
    point : str
    number : int or None
        The time at which there is a conflict, from 1 on; None: the first one of each transaction.
    """

    def __init__(self, point: str, number: int | None):
        self.reached = 0
        self._point, self._number = point, number
        self._latch, self._here = threading.Lock(), threading.current_thread()
        self._met: set[str] = set()

    def trigger(self, point: str) -> None:
        """Raise a conflict if this is the point."""
        t = current_transaction()
        if point != self._point or t is None or threading.current_thread() is self._here:
            return
        with self._latch:
            self.reached += 1
            is_now = self.reached == self._number
            if self._number is None:
                is_now = t.hierarchy.run.name not in self._met
                self._met.add(t.hierarchy.run.name)
        if is_now:
            raise SerializationConflict("in between")


def define(ledger: Ledger) -> None:
    """Define rules of each kind that the clock completes, in each mode."""

    def fire(name: str, on: adb.Expression, **options: Any) -> None:
        @ledger.db.rule(on=on, name=name, **options)
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"{name} at {o.us / 1_000_000 - EPOCH.timestamp():g}")
            if name == "fails":
                raise ValueError(name)

    for coupling in COUPLINGS:
        fire(f"tick {coupling}", adb.every(15), coupling=coupling)
    fire("fails", adb.every(30))
    fire("below", adb.inserted(ledger.facts), coupling="detached")
    fire("instead", adb.inserted(ledger.facts), coupling="exclusive")
    fire("silence", adb.seq(A, ~B).within(5), coupling="detached")
    for policy in ("certain", "raise", "possible"):
        fire(f"open {policy}", adb.seq(A, ~adb.event("N")).within(5), on_uncertain=policy)
    raising = adb.seq(A, ~B).where(lambda parts: 1 / parts["A"].params["x"]).within(7)
    fire("predicate", raising, coupling="sequential")

    @ledger.db.rule(on=adb.every(25), name="writes")
    def writes(t: Transaction, o: Occurrence) -> None:
        t.insert(ledger.facts, {"name": "kept", "value": 1})
        with t.subtransaction() as s:
            s.insert(ledger.facts, {"name": "dropped", "value": 2})
            s.abort()


def play(where: Place, conflicts: Conflicts, **settings: Any) -> dict[str, Any]:
    """Let time pass over the rules; return everything that is to be seen afterwards."""
    clock = adb.SimulatedClock(EPOCH)
    db = where.open(clock=clock, restart_pause_ms=1, restart_pause_ms_max=1, **settings)
    ledger = open_ledger(db)
    define(ledger)
    db.wait_idle()
    db.signal("A", timestamp=around(2), x=1)
    db.signal("N", timestamp=around(2.5))
    db.signal("A", timestamp=around(9), x=0)
    db._store.trigger = conflicts.trigger

    def rests() -> bool:
        with db._launcher._idle:
            return not db._launcher._left()

    def is_over() -> bool:
        clock.advance(0.001)  # what was given up for now is tried again; no later moment is due
        db.recover()
        # Looked at twice: work may begin meanwhile.
        return rests() and nothing_is_due() and rests()

    def nothing_is_due() -> bool:
        return all(
            not s.pending and (s.due_us is None or s.due_us > clock.now().timestamp() * 1_000_000)
            for entry in map(db._catalog.entry, [rule.name for rule in db._catalog])
            for s in ([] if entry is None else [entry.subscription])
        )

    pass_time(clock, END_S)
    until(is_over)
    db.wait_idle()
    db._store.trigger = lambda point: None
    return {
        "lines": sorted(ledger.lines()),
        "facts": ledger.known(),
        "letters": sorted((x.source, x.kind, x.error, x.reason) for x in db.dead_letters),
        "choices": sorted((x.rule, x.us, x.status) for x in db.decisions.list()),
        "undecided": {rule.name: db.rules[rule.name].undecided for rule in db._catalog},
        "pending": ledger.pending(),
    }


def pass_time(clock: SimulatedClock, seconds: float) -> None:
    """Let the clock pass each second."""
    for _ in range(int(seconds)):
        clock.advance(1)


@pytest.mark.long
@pytest.mark.parametrize("retries_max", [0, 10])
@pytest.mark.parametrize("point", POINTS)
def test_moments_of_the_clock_with_a_conflict_have_the_outcome_of_undisturbed_ones(
    where: Place, point: str, retries_max: int
) -> None:
    undisturbed = Conflicts(point, 0)
    with where.another() as other:
        expected = play(other, undisturbed)
    assert {each[0] for each in expected["choices"]} >= {"open certain", "open raise"}
    assert {each[0] for each in expected["letters"]} >= {
        "rule fails",
        "rule open raise",
        "rule predicate",
    }
    assert expected["pending"] == []
    rng = drawn("conflicts", point, retries_max, where.is_memory)
    for number in (None, *rng.sample(range(1, undisturbed.reached + 1), 4)):
        with where.another() as other:
            found = play(other, Conflicts(point, number), retries_max=retries_max)
        assert found == expected, (point, number)


@pytest.mark.parametrize("cut_off", ["the process", "one process of two"])
@pytest.mark.parametrize("depth", ["tick", "rule of a tick", "rule of a rule of a tick"])
def test_detached_rule_of_a_moment_that_was_cut_off_takes_effect_once(
    there: Place, depth: str, cut_off: str
) -> None:
    """A rule that has ended, of a moment not committed, which another process repeats."""
    clock = adb.SimulatedClock(EPOCH)

    def begin() -> Ledger:
        db = there.open(clock=clock, retries_max=0)
        ledger = open_ledger(db)
        on: adb.Expression = adb.every(60)
        if depth == "rule of a tick":
            db.rule(on=on, name="first")(lambda t, o: db.signal("NEXT"))
            on = adb.event("NEXT")
        elif depth == "rule of a rule of a tick":
            db.rule(on=on, name="first", coupling="detached")(lambda t, o: db.signal("NEXT"))
            on = adb.event("NEXT")
        db.rule(on=on, name="tick", coupling="detached")(lambda t, o: ledger.write(t, "tick"))
        db.wait_idle()
        return ledger

    def cut(db: Database) -> Callable[..., None]:
        def write_state(t: object, subscription: object) -> None:
            assert db._launcher is not None
            take = db._triggering.feeding.take

            def after(*args: Any) -> None:
                take(*args)
                until(lambda: "tick" in first.lines())
                raise SerializationConflict("the process ends here")

            db._triggering.feeding.take = after  # type: ignore[method-assign,assignment]
            real(t, subscription)  # type: ignore[arg-type]

        real = db._triggering.kept.write_state
        return write_state

    first = begin()
    other = begin() if cut_off == "one process of two" else None
    first.db._triggering.kept.write_state = cut(first.db)  # type: ignore[method-assign]
    clock.advance(60)
    first.db.wait_idle()
    if other is not None:
        other.db.wait_idle()
    first.db.close()
    clock.advance(1)
    again = begin()
    again.db.recover()
    again.db.wait_idle()
    assert again.lines() == ["tick"] * (1 if other is None else 2)
    # A rule below a rule may leave a row, which goes with the next moment.
    assert [row for row in again.pending() if not row["done"]] == []
