"""Events that come after the punctuation: counted, kept, and an event of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import activedb as adb
from tests.ledger import at, declare, event

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger


def watch_late(ledger: Ledger, **options: object) -> None:
    """Write down late events."""

    @ledger.db.rule(on=adb.late("input"), **options)  # type: ignore[arg-type]
    def note(t: Transaction, o: Occurrence) -> None:
        p = o.params
        assert t.timestamp == o.timestamp or t.parent is None
        ledger.write(t, f"{o.name} {p['type']} {p['id']} {p['params']} {p['timestamp']} {o.us}")


def test_late_event_occurs_at_the_punctuation_it_has_missed(ledger: Ledger) -> None:
    watch_late(ledger)
    ledger.db.rule(on=adb.event("A"), name="A")(lambda t, o: ledger.write(t, f"A{o.params['n']}"))
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)], punctuation=at(10))
    late = [event("A", 9, "x", n=2), event("B", 3, n=3), event("A", 10, n=4)]
    stream.feed(late, punctuation=at(11))
    us = event("A", 10).us
    assert ledger.lines() == [
        "A1",
        f"input A x {{'n': 2}} {at(9)} {us}",
        f"input B None {{'n': 3}} {at(3)} {us}",
        "A4",
    ]
    assert stream.run.totals() == {"events": 2, "late": 2, "dead": 0}
    assert len(ledger.late()) == 2


def test_detached_rule_on_late_events_runs_once(ledger: Ledger) -> None:
    watch_late(ledger, coupling="sequential")
    stream = declare(ledger.db)
    stream.feed([], punctuation=at(10))
    stream.feed([event("A", 9, n=1)], punctuation=at(12))
    ledger.db.wait_idle()
    assert len(ledger.lines()) == 1
    assert ledger.pending() == []


def test_late_events_are_parts_of_patterns_of_the_stream(ledger: Ledger) -> None:
    pattern = adb.seq(adb.late("input", alias="late"), ~adb.event("B"), adb.event("A")).within(5)

    @ledger.db.rule(on=pattern)
    def note(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.parts['late'].params['params']['n']} {o.parts['A'].params['n']}")

    stream = declare(ledger.db)
    stream.feed([], punctuation=at(10))
    stream.feed([event("A", 2, n=2), event("A", 11, n=11)], punctuation=at(12))
    stream.feed([event("B", 13), event("A", 14, n=14)], punctuation=at(20))
    assert ledger.lines() == ["2 11"]


def test_rule_on_late_events_that_fails_leaves_a_letter_and_the_late_event(
    ledger: Ledger,
) -> None:
    ledger.db.rule(on=adb.late("input"), name="fails")(lambda t, o: 1 / 0)
    stream = declare(ledger.db)
    stream.feed([], punctuation=at(10))
    stream.feed([event("A", 9, n=1)], punctuation=at(12))
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("input", "ZeroDivisionError")
    assert letter["payload"]["params"] == {"n": 1}
    assert len(ledger.late()) == 1
    assert stream.run.totals() == {"events": 0, "late": 1, "dead": 1}
