"""Choices that the order of events leaves open: rows, and what resolving them does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import (
    BadEvent,
    ConfigurationError,
    DecisionClosed,
    RowNotFound,
    RuleFailed,
    TransactionStateError,
)
from activedb.firing import MatchDecision
from tests.databases import until
from tests.ledger import open_ledger
from tests.streams.test_producers import (
    SILENCE,
    START_US,
    A,
    B,
    N,
    declare,
    feed_silences,
    log,
    register,
    reopened,
    sent,
    stamp,
    text_of,
)

if TYPE_CHECKING:
    from activedb import Occurrence, Stream, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

CHRONICLE = adb.all_of(A, B).context("chronicle")


def figure_3(ledger: Ledger, **types: str) -> Stream:
    """Feed figure 3 as drawn: B10 and B20 overlap, so it is unknown which B is the oldest."""
    stream = declare(ledger)
    register(ledger, stream, PA="A", P1="B", P2="B", **types)
    events = [sent("A0", "PA", 0, 10), sent("B10", "P1", 12, 22), sent("B20", "P2", 16, 28)]
    stream.feed(events)
    beat(ledger, stream, 90)
    return stream


def overlapping(ledger: Ledger) -> None:
    """Leave open whether A1 is before B2."""
    stream = declare(ledger)
    register(ledger, stream, P="A", Q="B")
    stream.feed([sent("A1", "P", 0, 20), sent("B2", "Q", 10, 30)])
    beat(ledger, stream, 90)


def beat(ledger: Ledger, stream: Stream, us: int) -> None:
    """Let all producers tell that they have sent what is before."""
    producers = stream.producers
    for node in list(producers):
        producers.heartbeat(stamp(node, us, us + 5))


def first(ledger: Ledger) -> MatchDecision:
    """The first decision that is open."""
    return ledger.db.decisions.list(open=True)[0]


def number_of(decision: MatchDecision, text: str) -> int:
    """The number of a candidate, by its constituents."""
    texts = [
        "-".join(f"{o.name}{o.params['n']}" for o in candidate.values())
        for candidate in decision.candidates
    ]
    return texts.index(text)


def shown(decision: MatchDecision) -> tuple[Any, ...]:
    """Return what a decision shows."""
    candidates = [
        {name: repr(o) for name, o in candidate.items()} for candidate in decision.candidates
    ]
    return decision.id, decision.rule, decision.status, decision.us, candidates


def test_open_choice_is_a_row_with_candidates_and_event(ledger: Ledger) -> None:
    log(ledger, CHRONICLE)
    figure_3(ledger)
    assert ledger.lines() == []
    assert ledger.letters() == [], "nothing has failed"
    decision = first(ledger)
    assert (decision.rule, decision.stream, decision.status) == ("log", "sensors", "open")
    assert decision.candidates[number_of(decision, "A0-B10")]["A"].params == {"n": "0"}
    assert (decision.chosen, decision.by, decision.decided_at) == (None, None, None)
    assert shown(ledger.db.decisions.get(decision.id)) == shown(decision)
    assert [d.id for d in ledger.db.decisions] == [d.id for d in ledger.db.decisions.list()]
    assert ledger.db.decisions.list("other") == ledger.db.decisions.list(open=False) == []
    assert ledger.db.admin.counters()["matches_undecided"] > 0
    assert ledger.db.decisions.open_by_rule()["log"] >= 1


def test_what_is_chosen_triggers_the_rule_once(ledger: Ledger) -> None:
    log(ledger, CHRONICLE)
    figure_3(ledger)
    decision = first(ledger)
    done = ledger.db.decisions.resolve(
        decision.id, [number_of(decision, "A0-B10")], by="the doctor"
    )
    assert (done.status, done.by, done.chosen) == ("resolved", "the doctor", (0,))
    assert done.decided_at is not None
    assert ledger.lines() == ["A0-B10"]
    with pytest.raises(DecisionClosed, match="was decided by the doctor") as caught:
        ledger.db.decisions.resolve(decision.id, [])
    assert caught.value.decision == decision.id
    assert ledger.lines() == ["A0-B10"]


def test_nothing_chosen_makes_nothing(ledger: Ledger) -> None:
    log(ledger, adb.seq(A, B))
    overlapping(ledger)
    decision = first(ledger)
    assert ledger.db.decisions.resolve(decision.id, []).chosen == ()
    assert ledger.lines() == []
    assert list(ledger.db.decisions) == []


def test_candidate_itself_may_be_given(ledger: Ledger) -> None:
    log(ledger, adb.seq(A, B))
    overlapping(ledger)
    decision = first(ledger)
    ledger.db.decisions.resolve(decision.id, decision.candidates)
    assert ledger.lines() == ["A1-B2"]


def test_choice_without_meaning_is_refused_and_stays_open(ledger: Ledger) -> None:
    log(ledger, CHRONICLE)
    figure_3(ledger)
    decision = first(ledger)
    for wrong in (7, -1, True, "0", {"A": 1}):
        with pytest.raises(ConfigurationError, match="is not a candidate"):
            ledger.db.decisions.resolve(decision.id, [wrong])  # type: ignore[list-item]
    with pytest.raises(RowNotFound, match="no decision 'none'"):
        ledger.db.decisions.resolve("none", [])
    with pytest.raises(RowNotFound):
        ledger.db.decisions.get("none")
    with ledger.db.transaction(), pytest.raises(TransactionStateError, match="inside"):
        ledger.db.decisions.resolve(decision.id, [0])
    assert shown(first(ledger)) == shown(decision)


def test_rule_that_raises_leaves_the_decision_and_the_detector_as_they_were(
    ledger: Ledger,
) -> None:
    fails = [True]

    @ledger.db.rule(on=CHRONICLE, name="log")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, text_of(o))
        if fails:
            raise ValueError("not now")

    figure_3(ledger)
    decision = first(ledger)
    with pytest.raises(RuleFailed, match="not now"):
        ledger.db.decisions.resolve(decision.id, [0])
    assert ledger.lines() == []
    assert shown(first(ledger)) == shown(decision)
    fails.clear()
    ledger.db.decisions.resolve(decision.id, [0])
    assert ledger.lines() == ["A0-B10"]


def test_end_of_a_window_can_be_decided(ledger: Ledger) -> None:
    log(ledger, SILENCE)
    stream = declare(ledger)
    for node in "PQ":
        stream.producers.register(node)
    feed_silences(ledger, stream)
    beat(ledger, stream, 140)
    assert ledger.lines() == ["A2"]
    decision = first(ledger)
    ledger.db.decisions.resolve(decision.id, [0])
    assert ledger.lines() == ["A2", "A1"]
    beat(ledger, stream, 300)
    assert ledger.lines() == ["A2", "A1", "A3"]


@pytest.mark.parametrize("on", [CHRONICLE, adb.seq(A, B)], ids=["chronicle", "sequence"])
def test_open_choice_survives_a_restart(where: Place, on: Any) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    ledger = open_ledger(where.open())
    log(ledger, on)
    stream = declare(ledger)
    register(ledger, stream, PA="A", P1="B")
    stream.feed([sent("A0", "PA", 0, 20), sent("B1", "P1", 10, 30)])
    beat(ledger, stream, 90)
    if on is CHRONICLE:
        stream.feed([sent("B2", "P1", 95, 99)])
        beat(ledger, stream, 200)
    before = [shown(decision) for decision in ledger.db.decisions.list()]
    ledger = reopened(where, ledger)
    log(ledger, on)
    assert [shown(decision) for decision in ledger.db.decisions.list()] == before
    stream = declare(ledger)
    _ = stream.producers
    for decision in ledger.db.decisions:
        ledger.db.decisions.resolve(decision.id, [0])
        with pytest.raises(DecisionClosed):
            ledger.db.decisions.resolve(decision.id, [0])
    assert ledger.lines()[:1] == ["A0-B1"] or on is CHRONICLE
    assert list(ledger.db.decisions) == []


TWO_ORDERS = adb.seq(A, adb.many(B, 2, 2), N)


def two_orders(ledger: Ledger) -> MatchDecision:
    stream = declare(ledger)
    register(ledger, stream, PA="A", P1="B", P2="B", PN="N")
    bs = [sent("B10", "P1", 12, 22), sent("B20", "P2", 16, 28)]
    stream.feed([sent("A0", "PA", 0, 10), *bs, sent("N40", "PN", 40, 44)])
    beat(ledger, stream, 90)
    (decision,) = ledger.db.decisions.list(open=True)
    assert len(decision.candidates) == 2
    return decision


@pytest.mark.parametrize("context", ["unrestricted", "recent"])
def test_candidates_that_exclude_each_other_are_refused_together(
    ledger: Ledger, context: str
) -> None:
    log(ledger, TWO_ORDERS.context(context))
    decision = two_orders(ledger)
    with pytest.raises(BadEvent, match="of matches that exclude each other only one can be chosen"):
        ledger.db.decisions.resolve(decision.id, [0, 1])
    assert ledger.lines() == []
    assert ledger.db.decisions.get(decision.id).status == "open"
    assert ledger.db.decisions.resolve(decision.id, [1]).status == "resolved"
    assert len(ledger.lines()) == 1


def test_what_excludes_each_other_is_open_again_if_it_was_chosen_elsewhere(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory belongs to one process")
    ledger = open_ledger(where.open())
    log(ledger, TWO_ORDERS)
    decision = two_orders(ledger)
    other = where.open()
    assert other.decisions.resolve(decision.id, [0, 1], by="another").status == "chosen"
    until(lambda: ledger.db.decisions.get(decision.id).status == "open")
    again = ledger.db.decisions.get(decision.id)
    assert (again.chosen, again.by, again.decided_at) == (None, None, None)
    assert ledger.lines() == []
    ledger.db.decisions.resolve(decision.id, [0])
    assert len(ledger.lines()) == 1


def test_process_without_the_detector_decides_for_the_one_that_has_it(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory belongs to one process")
    ledger = open_ledger(where.open())
    log(ledger, CHRONICLE)
    figure_3(ledger)
    decision = first(ledger)
    other = where.open()
    assert other.decisions.resolve(decision.id, [0], by="another").status == "chosen"
    with pytest.raises(DecisionClosed, match="another"):
        ledger.db.decisions.resolve(decision.id, [])
    until(lambda: ledger.db.decisions.get(decision.id).status == "resolved")
    assert ledger.lines() == ["A0-B10"]


def test_what_was_decided_while_nobody_had_the_detector_is_done_at_the_start(
    where: Place,
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    ledger = open_ledger(where.open())
    log(ledger, CHRONICLE)
    figure_3(ledger)
    decision = first(ledger)
    ledger.db.close()
    ledger = open_ledger(where.open())
    assert ledger.db.decisions.resolve(decision.id, [0]).status == "chosen"
    log(ledger, CHRONICLE)
    _ = declare(ledger).producers
    assert ledger.lines() == ["A0-B10"]
    assert ledger.db.decisions.get(decision.id).status == "resolved"


@pytest.mark.parametrize("decided", ["before the start", "after the start"])
def test_what_was_decided_for_a_rule_on_signals_is_done_by_the_next_process(
    where: Place, decided: str
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    ledger = open_ledger(where.open())
    log(ledger, adb.seq(A, B))
    ledger.db.signal("A", timestamp=stamp("P", 0, 20), n=0)
    ledger.db.signal("B", timestamp=stamp("Q", 10, 30), n=1)
    decision = first(ledger)
    ledger.db.close()
    other = where.open()
    if decided == "before the start":
        assert other.decisions.resolve(decision.id, [0]).status == "chosen"
    ledger = open_ledger(where.open())
    log(ledger, adb.seq(A, B))
    if decided == "after the start":
        assert other.decisions.resolve(decision.id, [0]).status == "chosen"
    until(lambda: ledger.db.decisions.get(decision.id).status == "resolved")
    assert ledger.lines() == ["A0-B1"]


@pytest.mark.parametrize("pattern", [adb.seq(A, B), adb.seq(A, B).context("chronicle")], ids=repr)
def test_signals_and_their_transaction(ledger: Ledger, pattern: adb.Expression) -> None:
    log(ledger, pattern)
    with pytest.raises(ZeroDivisionError), ledger.db.transaction():
        ledger.db.signal("A", timestamp=stamp("P", 0, 20), n=1)
        ledger.db.signal("B", timestamp=stamp("Q", 10, 30), n=2)
        raise ZeroDivisionError
    assert list(ledger.db.decisions) == [], "undone with its transaction"
    ledger.db.signal("A", timestamp=stamp("P", 0, 20), n=1)
    ledger.db.signal("B", timestamp=stamp("Q", 10, 30), n=2)
    (decision,) = ledger.db.decisions
    assert (decision.stream, decision.us) == (None, START_US + 20)
    ledger.db.decisions.resolve(decision.id, [0])
    assert ledger.lines() == ["A1-B2"]


def test_uncertainty_of_one_rule_costs_the_others_nothing(ledger: Ledger) -> None:
    log(ledger, adb.seq(A, B), "raises", on_uncertain="raise")
    log(ledger, B, "single")
    log(ledger, adb.seq(N, ~B, A), "without")
    for number in range(8):
        log(ledger, adb.seq(A, B), f"certain{number}")
    stream = declare(ledger)
    register(ledger, stream, P="A", Q="B", R="N")
    events = [sent("N1", "R", 0, 5), sent("B2", "Q", 20, 40), sent("A3", "P", 30, 50)]
    stream.feed([*events, sent("A4", "P", 60, 61), sent("B5", "Q", 80, 81)])
    beat(ledger, stream, 90)
    lines = ledger.lines()
    assert sorted(line for line in lines if line in ("B2", "B5")) == ["B2", "B5"]
    assert lines.count("A3-B5") == lines.count("A4-B5") == 9
    assert not [line for line in lines if line.startswith("N1")], "B2 forbids it"
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule raises", "UncertainOrder")
    assert {decision.rule for decision in ledger.db.decisions} >= {"raises", "certain0"}
