"""Each rule on an event fires as if it were alone: what one cannot take is its affair alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.store.system import kept_columns
from tests.ledger import at, declare, event, open_ledger, read

if TYPE_CHECKING:
    from activedb import Occurrence, Stream, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

A, B, C = adb.event("A"), adb.event("B"), adb.event("C")


def shown(o: Occurrence) -> str:
    """An occurrence, by the numbers of its events."""
    return "-".join(f"{c.name}{c.params['n']}" for c in (o.constituents or (o,)))


def log(ledger: Ledger, name: str, on: Any, **options: Any) -> None:
    """Write down which rule was triggered by what."""

    @ledger.db.rule(on=on, name=name, **options)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{name} {shown(o)}")


def broken(o: Occurrence) -> bool:
    """A predicate of a rule that fails."""
    return bool(1 / o.params["divisor"])


def feed(ledger: Ledger, stream: Stream, *events: Occurrence) -> None:
    """Feed events, and let time go on behind them."""
    stream.feed(list(events), punctuation=at(1_000))


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_predicate_that_raises_of_a_rule_that_fails_alone_costs_that_rule_alone(
    ledger: Ledger, columns: bool
) -> None:
    pair = adb.seq(A, B).within(60)
    log(ledger, "before", pair)
    log(ledger, "alone", adb.seq(adb.event("A", broken), B).within(60), on_abort="rule")
    log(ledger, "after", A)
    types = {"A": ("n", "divisor"), "B": ("n", "divisor")}
    stream = ledger.db.stream("input", type="kind", timestamp="at", types=types, columns=columns)
    first = [event("A", 1, n=1, divisor=0), event("A", 2, n=2, divisor=1)]
    feed(ledger, stream, *first, event("B", 3, n=3, divisor=1))
    assert sorted(ledger.lines()) == [
        "after A1",
        "after A2",
        "alone A2-B3",
        "before A1-B3",
        "before A2-B3",
    ]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule alone", "ZeroDivisionError")
    assert letter["payload"]["params"]["n"] == 1


def test_predicate_that_raises_of_a_rule_that_aborts_takes_the_event(ledger: Ledger) -> None:
    log(ledger, "strict", adb.event("A", broken))
    log(ledger, "other", A)
    stream = declare(ledger.db)
    feed(ledger, stream, event("A", 1, n=1, divisor=0), event("A", 2, n=2, divisor=1))
    assert sorted(ledger.lines()) == ["other A2", "strict A2"]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("input", "ZeroDivisionError")


def test_pattern_that_keeps_no_more_refuses_for_itself_alone(ledger: Ledger) -> None:
    log(ledger, "full", adb.seq(A, B), partials_max=1, on_full="refuse")
    log(ledger, "free", adb.seq(A, B))
    stream = declare(ledger.db)
    feed(ledger, stream, event("A", 1, n=1), event("A", 2, n=2), event("B", 3, n=3))
    assert sorted(ledger.lines()) == ["free A1-B3", "free A2-B3", "full A1-B3"]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule full", "PartialsExceeded")


def test_signal_that_a_rule_that_fails_alone_cannot_take_reaches_all_others(
    ledger: Ledger,
) -> None:
    log(ledger, "alone", adb.event("A", broken), on_abort="rule")
    log(ledger, "other", A)
    with ledger.db.transaction() as t:
        ledger.db.signal("A", n=1, divisor=0)
        ledger.db.signal("A", n=2, divisor=0)
        ledger.write(t, "body")
    assert ledger.lines() == ["other A1", "other A2", "body"]
    assert [letter["source"] for letter in ledger.letters()] == ["rule alone"] * 2


def doubles(where: Place, *, columns: bool) -> tuple[Ledger, Stream]:
    """A stream with a rule that refuses the third A within ten seconds, and one that does not."""
    ledger = open_ledger(where.open())
    pair = adb.seq(adb.event("A", alias="first"), adb.event("A", alias="second")).within(10)
    log(ledger, "narrow", pair, matches_max=1)
    log(ledger, "wide", pair)
    types = {"A": ("n",)}
    stream = ledger.db.stream("input", type="kind", timestamp="at", types=types, columns=columns)
    return ledger, stream


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("changes", [False, True], ids=["same", "changes"])
def test_event_that_a_rule_has_refused_is_not_shown_to_it_again(
    where: Place, columns: bool, changes: bool
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    ledger, stream = doubles(where, columns=columns)
    stream.feed([event("A", n, n=n) for n in (1, 2, 3)], punctuation=at(12))
    (refused,) = ledger.letters()
    assert (refused["source"], refused["error"]) == ("rule narrow", "MatchesExceeded")
    for _ in range(2):  # what has been read is written on
        ledger.db.close()
        columns = columns is not changes
        ledger, stream = doubles(where, columns=columns)
        stream.feed([], punctuation=at(12.25))
    stream.feed([event("A", 12.5, n=4)], punctuation=at(13))
    assert sorted(ledger.lines()) == [
        "narrow A1-A2",
        "wide A1-A2",
        "wide A1-A3",
        "wide A2-A3",
        "wide A3-A4",
    ]
    stream.feed([], punctuation=at(100))
    assert " refused" not in {row["name"] for row in read(ledger.db, kept_columns)}
