"""Events of several producers: what is stable, who is silent, late or too many, and restarts."""

from __future__ import annotations

import os
import random
from concurrent.futures import wait
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import (
    BadEvent,
    BatchFailed,
    ConfigurationError,
    DefinitionError,
    ProducerSilent,
    SerializationConflict,
    StreamFull,
    UncertainOrder,
)
from activedb.events import AccuracyInterval, Detector, LocalClock, Occurrence
from tests.databases import in_thread, place, until
from tests.events import simulation
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from activedb import Expression, Stream, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
START_US = 1_700_000_000_000_000
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
A, B, N = adb.event("A"), adb.event("B"), adb.event("N")


def stamp(
    node: str, low: int, high: int, local: int | None = None, boot: str = "boot"
) -> AccuracyInterval:
    """A timestamp so many microseconds after the start."""
    clock = None if local is None else LocalClock(f"{boot} {node}")
    us = [START_US + each for each in ((low + high) // 2, low, high)]
    return AccuracyInterval(us[0], us[1], us[2], node=node, local_us=local, local_clock=clock)


def sent(text: str, node: str, low: int, high: int, local: int | None = None) -> Occurrence:
    """An event of a producer; its type is the first letter of its name."""
    return Occurrence(text[0], stamp(node, low, high, local), {"n": text[1:]})


def declare(ledger: Ledger, membership: Any = "atomic", **options: Any) -> Stream:
    """A stream of producers."""
    return ledger.db.stream(
        "sensors", types={"A": (), "B": (), "N": ()}, membership=membership, **options
    )


def name_of(o: Occurrence) -> str:
    """An event as it was named."""
    return f"{o.name}{o.params['n']}"


def text_of(o: Occurrence) -> str:
    """A match, by its constituents."""
    return "-".join(name_of(c) for c in (o.constituents or (o,)))


def log(ledger: Ledger, on: Expression, name: str = "log", **options: Any) -> None:
    """Write down what a rule is triggered by."""

    @ledger.db.rule(on=on, name=name, **options)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, text_of(o))


def register(ledger: Ledger, stream: Stream, **types: str) -> None:
    """Register producers with the event types that they send."""
    for node, sends in types.items():
        stream.producers.register(node, sends)


def reopened(where: Place, ledger: Ledger, **options: Any) -> Ledger:
    """The place, as a new process would open it."""
    ledger.db.close()
    return open_ledger(where.open(**options))


# -- stable sets -----------------------------------------------------------------------------


def test_conjunction_of_three_producers_is_made_only_when_it_is_stable(ledger: Ledger) -> None:
    """The scenario of the paper's figures 2 and 3, with two B that do not overlap."""
    log(ledger, adb.all_of(A, B).context("chronicle"))
    stream = declare(ledger)
    register(ledger, stream, PA="A", P1="B", P2="B")
    steps = [
        (sent("A0", "PA", 0, 10), []),
        (sent("B10", "P1", 12, 22), []),  # t1: another A may be on its way
        (sent("A1", "PA", 30, 40), []),  # t2: A0 is the oldest one, but P2 has told nothing
        (sent("B11", "P1", 44, 50), []),
        (sent("B20", "P2", 24, 28), ["A0-B10"]),  # t3: nothing from P2 precedes B10
        (sent("B21", "P2", 60, 66), ["A0-B10"]),
        (sent("A2", "PA", 70, 80), ["A0-B10", "A1-B20"]),
    ]
    for o, lines in steps:
        stream.feed([o])
        assert ledger.lines() == lines, o
    assert ledger.letters() == []


def test_event_is_processed_when_all_sync_points_are_beyond_its_end(ledger: Ledger) -> None:
    log(ledger, A)
    stream = declare(ledger)
    register(ledger, stream, P="A", Q="A")
    producers = stream.producers
    stream.feed([sent("A1", "P", 0, 10)])
    producers.heartbeat(stamp("P", 50, 60))
    assert (ledger.lines(), producers.waiting) == ([], 1)
    producers.heartbeat(stamp("Q", 10, 20))
    assert ledger.lines() == [], "an event of Q may still touch it"
    assert producers.stable_us is None
    producers.heartbeat(stamp("Q", 11, 20))
    assert (ledger.lines(), producers.waiting) == (["A1"], 0)
    assert producers.stable_us == START_US + 11
    assert ledger.db.admin.counters()["events_waiting"] == 0


def test_events_are_processed_in_an_order_that_extends_both_orders(ledger: Ledger) -> None:
    """The order extends that by reference time, and that by the local clock.

    The local clock matters where an interval lies within another.
    """
    log(ledger, adb.any_of(A, B), "each")
    log(ledger, adb.seq(A, B), "sequence", on_uncertain="certain")
    stream = declare(ledger)
    for node in "PQ":
        stream.producers.register(node)
    stream.feed([sent("A2", "P", 20, 90, 1_000), sent("B3", "P", 20, 30, 2_000)])
    stream.feed([sent("A1", "Q", 0, 5, 7), sent("B4", "Q", 95, 99, 500)])
    for node in "PQ":
        stream.producers.heartbeat(stamp(node, 100, 100))
    lines = ledger.lines()
    assert [line for line in lines if "-" not in line] == ["A1", "A2", "B3", "B4"]
    assert [line for line in lines if "-" in line] == ["A1-B3", "A2-B3", "A1-B4", "A2-B4"]
    assert set(lines[5:]) == {"B4", "A1-B4", "A2-B4"}  # rules on one event run beside each other


def test_time_goes_on_with_heartbeats_alone(ledger: Ledger) -> None:
    log(ledger, adb.seq(A, ~B).within(100e-6))
    stream = declare(ledger)
    register(ledger, stream, P="A", Q="B")
    producers = stream.producers
    stream.feed([sent("A1", "P", 0, 10)])
    for node in "PQ":
        producers.heartbeat(stamp(node, 100, 110))
    assert ledger.lines() == []
    for node in "PQ":
        producers.heartbeat(stamp(node, 111, 120))
    assert ledger.lines() == ["A1"]


# -- uncertain order -------------------------------------------------------------------------


def choose_last(error: UncertainOrder) -> list[Any]:
    """A callback: the last one of what is possible."""
    return [error.candidates[-1]]


@pytest.mark.parametrize(
    ("policy", "lines"),
    [
        ("raise", ["A1-B3"]),
        ("certain", ["A1-B3"]),
        ("possible", ["A1-B3", "A2-B3"]),
        ("reading", ["A1-B3", "A2-B3"]),
        (choose_last, ["A1-B3", "A2-B3"]),
        (lambda error: (), ["A1-B3"]),
    ],
    ids=["raise", "certain", "possible", "reading", "callback", "callback that chooses nothing"],
)
def test_uncertain_order_is_handled_as_the_rule_says(
    ledger: Ledger, policy: Any, lines: list[str]
) -> None:
    log(ledger, adb.seq(A, B), on_uncertain=policy)
    stream = declare(ledger)
    register(ledger, stream, P="A", Q="B")
    events = [sent("A1", "P", 0, 5), sent("A2", "P", 10, 20), sent("B3", "Q", 15, 25)]
    stream.feed(events)
    for node in "PQ":
        stream.producers.heartbeat(stamp(node, 50, 60))
    assert ledger.lines() == lines
    letters = ledger.letters()
    opened = [decision.rule for decision in ledger.db.decisions]
    assert opened == (["log"] if policy in ("raise", "certain") else [])
    if policy != "raise":
        assert letters == []
        return
    (letter,) = letters
    assert (letter["source"], letter["kind"]) == ("rule log", "event")
    assert letter["error"] == "UncertainOrder"
    assert letter["payload"]["params"] == {"n": "3"}
    candidates = letter["reason"].split("; candidates: ")[1].split("; ")
    assert len(candidates) == 2
    assert "'n': '1'" in candidates[0]
    assert candidates[0].endswith("(certain)")
    assert "'n': '2'" in candidates[1]
    assert "certain" not in candidates[1]


def test_uncertainty_with_an_event_that_still_waits_is_found(ledger: Ledger) -> None:
    """N may be between A and B, though it is not stable when B is."""
    log(ledger, adb.seq(A, ~N, B).within(1), "raising", on_uncertain="raise")
    log(ledger, adb.seq(A, ~N, B).within(1), "possible", on_uncertain="possible")
    stream = declare(ledger)
    register(ledger, stream, P="A", Q="B", R="N")
    stream.feed([sent("A1", "P", 0, 5), sent("B2", "Q", 20, 30)])
    stream.feed([sent("N3", "R", 25, 60)])
    for node in "PQR":
        stream.producers.heartbeat(stamp(node, 40, 45))
    assert stream.producers.waiting == 1
    (letter,) = ledger.letters()
    assert letter["error"] == "UncertainOrder"
    assert "'n': '1'" in letter["reason"]
    assert ledger.lines() == ["A1-B2"], "one rule's uncertainty is its own"


SILENCE = adb.seq(A, ~N).same("k").within(100e-6)


def keyed(text: str, node: str, low: int, high: int, k: int) -> Occurrence:
    """An event of a producer with a key."""
    return Occurrence(text[0], stamp(node, low, high), {"n": text[1:], "k": k})


def feed_silences(ledger: Ledger, stream: Stream) -> None:
    """Feed silences, one of which is uncertain.

    It is unknown whether N4 is after A1. It is not after A3, and has another key than A2.
    """
    events = [keyed("A1", "P", 0, 10, 1), keyed("A2", "P", 0, 10, 2), keyed("A3", "P", 50, 60, 1)]
    stream.feed([*events, keyed("N4", "Q", 5, 15, 1), sent("B5", "P", 130, 135)])


def test_end_of_a_window_that_is_uncertain_costs_that_decision_alone(where: Place) -> None:
    ledger = open_ledger(where.open())
    log(ledger, SILENCE, on_uncertain="raise")
    tries: list[str] = []

    @ledger.db.rule(on=B, name="again")
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(name_of(o))
        ledger.write(t, name_of(o))
        if len(tries) == 1:
            raise SerializationConflict("the whole part is done again")

    stream = declare(ledger)
    for node in "PQ":
        stream.producers.register(node)
    feed_silences(ledger, stream)
    producers = stream.producers
    for node in "PQ":
        producers.heartbeat(stamp(node, 140, 145))
    assert ledger.lines() == ["A2", "B5"]
    assert tries == ["B5", "B5"]
    (letter,) = ledger.letters()
    assert (letter["error"], letter["payload"]["rule"]) == ("UncertainOrder", "log")
    assert "the end of a window" in letter["reason"]
    assert "'n': '1'" in letter["reason"]
    if not where.is_memory:
        ledger = reopened(where, ledger)
        log(ledger, SILENCE, on_uncertain="raise")
        stream = declare(ledger)
        producers = stream.producers
    for node in "PQ":
        producers.heartbeat(stamp(node, 300, 305))
    assert ledger.lines() == ["A2", "B5", "A3"], "what the detector keeps has not been given up"
    assert len(ledger.letters()) == 1


def test_rule_that_fails_beside_an_uncertain_end_of_a_window_has_a_letter_too(
    ledger: Ledger,
) -> None:
    ledger.db.rule(on=SILENCE, name="fails", on_uncertain="raise")(lambda t, o: 1 / 0)
    stream = declare(ledger)
    for node in "PQ":
        stream.producers.register(node)
    feed_silences(ledger, stream)
    for node in "PQ":
        stream.producers.heartbeat(stamp(node, 140, 145))
    errors = [letter["error"] for letter in ledger.letters()]
    assert sorted(errors) == ["UncertainOrder", "ZeroDivisionError"]


def test_end_of_a_window_with_what_cannot_be_written_costs_all_that_is_kept(
    ledger: Ledger,
) -> None:
    def raises_of_the_first(parts: Any) -> bool:
        return bool(1 / (parts["A"].params["n"] != "1"))

    log(ledger, adb.seq(A, ~N).where(raises_of_the_first).within(100e-6))

    @ledger.db.rule(on=B, name="signals")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("A", n="s", what=object())

    stream = declare(ledger)
    for node in "PQ":
        stream.producers.register(node)
    events = [sent("A1", "P", 0, 10), sent("A3", "P", 50, 60)]
    stream.feed([*events, sent("B5", "P", 70, 75), sent("A6", "P", 200, 210)])
    for node in "PQ":
        stream.producers.heartbeat(stamp(node, 900, 905))
    assert [letter["error"] for letter in ledger.letters()] == ["ZeroDivisionError"]
    assert ledger.lines() == ["A6"]


def test_chronicle_that_cannot_tell_the_oldest_raises(ledger: Ledger) -> None:
    """Figure 3 as drawn raises: B10 and B20 overlap, so it is unknown which B is the oldest."""
    log(ledger, adb.all_of(A, B).context("chronicle"), on_uncertain="raise")
    stream = declare(ledger)
    register(ledger, stream, PA="A", P1="B", P2="B")
    stream.feed([sent("A0", "PA", 0, 10), sent("B10", "P1", 12, 22)])
    stream.feed([sent("B20", "P2", 16, 28)])
    for node in ("PA", "P1", "P2"):
        stream.producers.heartbeat(stamp(node, 25, 30))
    (letter,) = ledger.letters()
    assert letter["error"] == "UncertainOrder"
    assert "'n': '10'" in letter["reason"]
    assert ledger.lines() == []


# -- membership ------------------------------------------------------------------------------


def test_atomic_membership_refuses_events_of_others(ledger: Ledger) -> None:
    log(ledger, adb.any_of(A, B))
    stream = declare(ledger)
    register(ledger, stream, P="A")
    exact = adb.occurrence("A", timestamp=1, n=9)
    events = [sent("A1", "P", 0, 1), sent("A2", "Q", 0, 1), sent("B3", "P", 2, 3), exact]
    stream.feed(events)
    stream.producers.heartbeat(stamp("P", 10, 11))
    assert ledger.lines() == ["A1"]
    reasons = [letter["reason"] for letter in ledger.letters()]
    assert len(reasons) == 3
    assert "'Q', which is not registered" in reasons[0]
    assert "not registered for ('event', 'B')" in reasons[1]
    assert "has no stamp" in reasons[2]
    with pytest.raises(BadEvent, match="not registered"):
        stream.producers.heartbeat(stamp("Q", 0, 1))


def test_joiner_is_waited_for_from_what_was_stable_on(ledger: Ledger) -> None:
    log(ledger, A)
    stream = declare(ledger)
    producers = stream.producers
    assert producers.register("P") is None
    stream.feed([sent("A1", "P", 0, 1), sent("A2", "P", 10, 11)])
    assert ledger.lines() == ["A1"]
    assert producers.register("Q") == START_US + 10
    stream.feed([sent("A3", "P", 20, 21)])
    assert ledger.lines() == ["A1"], "Q may send something from then on"
    stream.feed([sent("A4", "Q", 15, 16)])
    assert ledger.lines() == ["A1", "A2"]
    producers.remove("Q")
    assert ledger.lines() == ["A1", "A2", "A4"]
    assert list(producers) == ["P"]


def test_producer_in_any_order_is_stable_by_what_it_is_told_alone(ledger: Ledger) -> None:
    log(ledger, A)
    stream = declare(ledger)
    producers = stream.producers
    producers.register("P", in_order=False)
    stream.feed([sent("A3", "P", 30, 31), sent("A1", "P", 10, 11)])
    stream.feed([sent("A2", "P", 20, 21)])
    assert ledger.lines() == []
    producers.sync("P", (START_US + 25) / 1e6)
    assert ledger.lines() == ["A1", "A2"]


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": 5}, "5 is not a name for a producer: use a text"),
        ({"name": None}, "None is not a name for a producer"),
        ({"name": ["P"]}, "is not a name for a producer"),
        ({"name": ""}, "'' is not a name for a producer"),
        ({"types": 5}, "types must be names of event types, not 5"),
        ({"types": [5, ["A"]]}, "has no event types 5, .'A'., but A, B, N"),
        ({"types": "C"}, "has no event types 'C'"),
        *(
            ({"silent_after": wrong}, f"silent_after must be {said}")
            for wrong, said in (
                (NAN, "positive and finite, not nan"),
                (INF, "positive and finite, not inf"),
                (1e308, "positive and finite"),
                (0, "positive and finite, not 0"),
                (timedelta(0), "positive and finite"),
                (1e-9, "at least a microsecond, not 1e-09"),
                ("x", "seconds or a timedelta, not 'x'"),
                (True, "seconds or a timedelta, not True"),
            )
        ),
    ],
)
def test_producer_that_cannot_be_registered_is_refused(
    ledger: Ledger, given: dict[str, Any], said: str
) -> None:
    producers = declare(ledger).producers
    with pytest.raises(ConfigurationError, match=said):
        producers.register(**{"name": "P", **given})
    assert list(producers) == []


@pytest.mark.parametrize("wrong", [NAN, INF, 1e308, 0, 1e-9, "x"])
def test_silence_that_cannot_be_measured_is_refused(ledger: Ledger, wrong: Any) -> None:
    with pytest.raises(DefinitionError, match="stream 'sensors': silent_after must be"):
        declare(ledger, silent_after=wrong)


@pytest.mark.parametrize("membership", ["atomic", "weak"])
def test_message_that_is_not_of_a_producer_is_refused(ledger: Ledger, membership: str) -> None:
    producers: Any = declare(ledger, membership).producers
    for wrong in (5, None, "P", START):
        with pytest.raises(BadEvent, match="a heartbeat is a stamp of its producer"):
            producers.heartbeat(wrong)
    for name in (5, None, ["P"], ""):
        with pytest.raises(BadEvent, match="is not a name for a producer"):
            producers.sync(name, 1.0)
    assert list(producers) == []


def test_weak_joiner_whose_event_comes_too_late_is_kept_and_offered(ledger: Ledger) -> None:
    log(ledger, A)

    @ledger.db.rule(on=adb.late("sensors"))
    def late(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"late {o.params['type']}{o.params['params']['n']}")

    stream = declare(ledger, "weak")
    stream.feed([sent("A1", "P", 0, 5), sent("A2", "P", 20, 25)])
    assert ledger.lines() == ["A1"]
    stream.feed([sent("A3", "Q", 10, 15), sent("A4", "Q", 22, 24)])
    assert ledger.lines() == ["A1", "late A3"]
    assert list(stream.producers) == ["P", "Q"]
    run = stream.run
    assert run.totals() == {"events": 1, "late": 1, "dead": 0}
    (kept,) = run.late_events()
    assert kept.occurrence.stamp == stamp("Q", 10, 15)
    for node in "PQ":
        stream.producers.heartbeat(stamp(node, 50, 51))
    assert ledger.lines() == ["A1", "late A3", "A2", "A4"]


# -- silence ---------------------------------------------------------------------------------


def test_silent_producer_is_raised_and_can_be_removed(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    log(ledger, A)
    stream = declare(ledger, silent_after=10)
    register(ledger, stream, P="A", Q="A")
    stream.feed([sent("A1", "P", 0, 1)])  # the first look
    clock.advance(8)
    stream.feed([sent("A2", "P", 10, 11)])
    clock.advance(8)
    with pytest.raises(ProducerSilent) as caught:
        stream.feed([sent("A3", "P", 20, 21)])
    assert caught.value.producer == "Q"
    assert stream.producers.waiting == 2, "nothing of the feed was taken"
    stream.producers.remove("Q")
    assert ledger.lines() == ["A1"]
    stream.feed([sent("A3", "P", 20, 21)])
    assert ledger.lines() == ["A1", "A2"]
    assert ledger.db.admin.counters()["producers_silent"] == 1


def test_producer_that_speaks_again_is_not_silent(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    stream = declare(ledger, silent_after=10)
    register(ledger, stream, P="A")
    producers = stream.producers
    for second in range(3):
        producers.heartbeat(stamp("P", second, second))
        clock.advance(100)
    stream.feed([sent("A1", "P", 10, 11)])
    clock.advance(100)
    with pytest.raises(ProducerSilent, match="'P' has been silent"):
        producers.check()


def test_callback_for_silence_may_remove_the_producer(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    log(ledger, A)
    told: list[str] = []

    def on_silent(error: ProducerSilent) -> None:
        told.append(error.producer)
        stream.producers.remove(error.producer)

    stream = declare(ledger, silent_after=10, on_silent=on_silent)
    register(ledger, stream, P="A", Q="A")
    stream.feed([sent("A1", "P", 0, 1)])
    stream.producers.check()
    with stream.run.latch:  # so that no other thread finds P silent, too, before it is heard
        clock.advance(11)
        stream.feed([sent("A2", "P", 10, 11)])
    assert told == ["Q"]
    assert ledger.lines() == ["A1"]
    assert stream.producers.waiting == 1


def test_silence_is_found_by_the_clock_and_told_once_though_nobody_feeds(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    log(ledger, A)
    told: list[str] = []

    def on_silent(error: ProducerSilent) -> None:
        told.append(error.producer)
        if error.producer == "Q":
            stream.producers.remove("Q")

    stream = declare(ledger, silent_after=10, on_silent=on_silent)
    register(ledger, stream, P="A", Q="A")
    clock.advance(6)
    stream.feed([sent("A1", "P", 0, 1), sent("A2", "P", 10, 11)])
    clock.advance(4)
    ledger.db.wait_idle()
    assert told == [], "not before it has been silent for longer than it may"
    clock.advance(0.1)
    ledger.db.wait_idle()
    assert told == ["Q"]
    assert ledger.lines() == ["A1"], "nothing waits for what has gone"
    for _ in range(3):
        clock.advance(20)
        ledger.db.wait_idle()
    assert told == ["Q", "P"]
    stream.producers.heartbeat(stamp("P", 20, 21))
    clock.advance(11)
    ledger.db.wait_idle()
    assert told == ["Q", "P", "P"], "it was heard in between"
    assert ledger.db.admin.counters()["producers_silent"] == 3


def test_silence_is_told_once_though_others_are_heard_until_its_end(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    log(ledger, A)
    told: list[str] = []
    stream = declare(ledger, silent_after=10, on_silent=lambda error: told.append(error.producer))
    register(ledger, stream, P="A", Q="A")
    producers = stream.producers

    def go_on(first_s: int) -> None:
        for second in range(first_s, first_s + 40, 4):
            clock.advance(4)
            ledger.db.wait_idle()
            stream.feed([sent(f"A{second}", "P", second, second + 1)])
            producers.heartbeat(stamp("P", second, second + 1))
            producers.check()

    go_on(0)
    assert told == ["Q"]
    assert producers.waiting == 10, "what P sends still waits for it"
    producers.heartbeat(stamp("Q", 100, 101))
    assert producers.waiting == 1
    go_on(40)
    assert told == ["Q", "Q"]
    assert ledger.db.admin.counters()["producers_silent"] == 2


def test_callback_for_silence_that_raises_hides_no_other_producer(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    told: list[str] = []

    def on_silent(error: ProducerSilent) -> None:
        told.append(error.producer)
        raise LookupError("no pager")

    stream = declare(ledger, silent_after=10, on_silent=on_silent)
    register(ledger, stream, P="A", Q="A", R="A")
    stream.producers.heartbeat(stamp("R", 0, 1))
    with stream.run.latch:  # so that no other thread finds them
        clock.advance(11)
        for _ in range(2):
            with pytest.raises(LookupError, match="no pager"):
                stream.producers.heartbeat(stamp("R", 0, 1))
        stream.producers.heartbeat(stamp("R", 0, 1))
    assert told == ["P", "Q"]
    assert ledger.db.admin.counters()["producers_silent"] == 2


def test_silence_that_nobody_was_told_of_is_raised_by_the_next_feed_once(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    stream = declare(ledger, silent_after=10)
    register(ledger, stream, P="A", Q="A", R="A")
    clock.advance(11)
    ledger.db.wait_idle()
    assert ledger.db.admin.counters()["producers_silent"] == 3
    stream.producers.remove("R")
    with pytest.raises(ProducerSilent) as caught:
        stream.feed([sent("A1", "P", 0, 1)])
    assert caught.value.producer == "Q"
    stream.feed([sent("A1", "P", 0, 1)])
    assert ledger.db.admin.counters()["producers_silent"] == 3


def test_silence_is_found_though_another_thread_has_just_cancelled_the_check(where: Place) -> None:
    clock = SimulatedClock(START)
    ledger = open_ledger(where.open(clock=clock))
    told: list[str] = []
    stream = declare(ledger, silent_after=10, on_silent=lambda error: told.append(error.producer))
    register(ledger, stream, P="A")
    watch = stream.run._watch
    others = []

    def watch_late(*asked: Any) -> None:
        if asked[1] is None:  # no producer is left that can be silent
            stream.run._watch = watch
            others.append(in_thread(stream.producers.register, "Q", "A"))
            until(lambda: "Q" in stream.producers)
            wait(others, timeout=0.5)
        watch(*asked)

    stream.run._watch = watch_late
    stream.producers.remove("P")
    others[0].result()
    clock.advance(11)
    ledger.db.wait_idle()
    assert told == ["Q"]


def test_silence_is_found_with_the_real_clock(ledger: Ledger) -> None:
    told: list[str] = []
    stream = declare(ledger, silent_after=0.05, on_silent=lambda error: told.append(error.producer))
    register(ledger, stream, P="A")
    until(lambda: told)
    assert told == ["P"]


# -- bounds ----------------------------------------------------------------------------------


def test_feed_beyond_what_may_wait_is_refused_as_a_whole(ledger: Ledger) -> None:
    log(ledger, A)
    stream = declare(ledger, waiting_max=2)
    register(ledger, stream, P="A", Q="A")
    producers = stream.producers
    stream.feed([sent("A1", "P", 0, 1), sent("A2", "P", 10, 11)])
    more = [sent("A3", "P", 20, 21), sent("A4", "P", 30, 31)]
    with pytest.raises(StreamFull, match="4 events would have to wait"):
        stream.feed(more)
    assert producers.waiting == 2
    producers.heartbeat(stamp("Q", 35, 36))
    assert ledger.lines() == ["A1"], "the sync point of P has not been moved by what was refused"
    stream.feed(more)
    assert ledger.lines() == ["A1", "A2", "A3"]
    many = [sent(f"A{n}", "P", n, n) for n in range(40, 50)]
    stream.feed([*many, sent("A50", "Q", 49, 50)])
    assert producers.waiting == 2, "what is stable at once does not wait"


def test_feed_with_what_is_no_event_moves_no_sync_point(ledger: Ledger) -> None:
    stream = declare(ledger, "weak")
    events: list[Any] = [sent("A1", "P", 1, 2), {}]
    with pytest.raises(BadEvent, match="item 1 of what it was given is"):
        stream.feed(events)
    producers = stream.producers
    assert (len(producers), producers.waiting) == (0, 0)


# -- restart ---------------------------------------------------------------------------------


def test_restart_keeps_events_stamps_producers_and_sync_points(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")

    def opened(ledger: Ledger) -> tuple[Ledger, Stream]:
        log(ledger, adb.seq(A, B), on_uncertain="certain")
        return ledger, declare(ledger)

    ledger, stream = opened(open_ledger(where.open()))
    register(ledger, stream, P="A", Q="B", R="B")
    stream.producers.remove("R")
    events = [sent("A1", "P", 0, 5, 10), sent("A2", "P", 12, 50, 2_000)]
    stream.feed([*events, sent("B3", "Q", 14, 16, 5), sent("A4", "P", 14, 70, 9_000)])
    assert stream.producers.stable_us == START_US + 14

    ledger, stream = opened(reopened(where, ledger))
    producers = stream.producers
    assert list(producers) == ["P", "Q"]
    assert producers.stable_us == START_US + 14
    assert producers.waiting == 3
    with pytest.raises(ConfigurationError, match="registered already"):
        producers.register("P")
    stream.feed([Occurrence("A", stamp("P", 80, 81, 1, boot="again"), {"n": 0})])
    assert "was restarted" in ledger.letters()[0]["reason"]
    stream.feed([sent("A5", "P", 80, 81, 9_500)])
    stream.feed([sent("A6", "P", 90, 91, 9_900)])
    assert ledger.lines() == []
    producers.heartbeat(stamp("Q", 100, 101, 99_999))
    assert ledger.lines() == ["A1-B3"]

    ledger, stream = opened(reopened(where, ledger))
    producers = stream.producers
    producers.register("S", "A")
    stream.feed([sent("B7", "Q", 200, 201, 100_000)])
    for node in "PQS":
        producers.heartbeat(stamp(node, 300, 301))
    assert ledger.lines()[1:] == [f"A{n}-B7" for n in (1, 2, 4, 5, 6)]


def test_feed_that_fails_has_moved_no_sync_point(ledger: Ledger) -> None:
    @ledger.db.rule(on=A)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, name_of(o))
        if o.params["n"] == "2" and stumbles:
            raise ValueError("on purpose")

    stumbles = True
    stream = declare(ledger, "weak")
    run, producers = stream.run, stream.producers
    run.fail_fast = True
    stream.feed([sent("A1", "P", 0, 1)])
    events = [sent("A2", "P", 10, 11), sent("A3", "Q", 20, 21), sent("A4", "P", 30, 31)]
    with pytest.raises(BatchFailed):
        stream.feed(events)
    assert (list(producers), producers.waiting, producers.stable_us) == (["P"], 1, START_US)
    assert ledger.lines() == []
    stumbles = False
    stream.feed(events)
    assert (list(producers), producers.waiting) == (["P", "Q"], 2)
    assert ledger.lines() == ["A1", "A2"]


# -- declarations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"membership": "loose"}, "atomic"),
        ({"silent_after": 0}, "positive"),
        ({"silent_after": "1"}, "seconds"),
        ({"membership": None, "silent_after": 1}, "membership"),
        ({"waiting_max": 0}, "at least 1"),
        ({"on_silent": 7}, "function"),
        ({"source": adb.Files("csv")}, "stamped from Python"),
    ],
)
def test_declaration_without_meaning_is_refused(
    ledger: Ledger, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        declare(ledger, **{"membership": "atomic", **options})


def test_stream_of_producers_takes_neither_punctuation_nor_batches(ledger: Ledger) -> None:
    stream = declare(ledger)
    with pytest.raises(ConfigurationError, match="no punctuation"):
        stream.feed([], punctuation=1)
    with pytest.raises(ConfigurationError, match=r"stream\.feed"):
        stream.run.apply(
            adb.AtomicBatch("sensors", "q", 0, None, None)  # type: ignore[arg-type]
        )
    plain = ledger.db.stream("plain", type="k", timestamp="t", types={"X": ()})
    with pytest.raises(ConfigurationError, match="no producers"):
        _ = plain.producers
    with pytest.raises(ConfigurationError, match="no event types 'X'"):
        stream.producers.register("P", ["X"])


# -- any world, in any order of arrival --------------------------------------------------------

PATTERNS: dict[str, tuple[Expression, str]] = {
    "certain": (adb.seq(A, B).within(2), "certain"),
    "possible": (adb.seq(A, B).within(2), "possible"),
    "reading": (adb.seq(A, B).within(2), "reading"),
    "negated": (adb.seq(A, ~B, adb.event("A", alias="then")).within(2), "certain"),
    "chronicle": (adb.all_of(A, B).context("chronicle"), "possible"),
    "recent": (adb.seq(A, B).context("recent"), "certain"),
}


def ideal(events: Iterable[Occurrence]) -> dict[str, list[str]]:
    """Return what each pattern makes of all events, if they are known from the beginning."""

    def place_of(o: Occurrence) -> Any:
        assert o.stamp is not None
        return (o.low_us, o.stamp.node, o.stamp.local_us, o.us)

    ordered = sorted(events, key=place_of)
    found: dict[str, list[str]] = {}
    for name, (pattern, policy) in PATTERNS.items():
        detector = Detector(pattern, on_uncertain=policy)
        lines = found[name] = []
        for number, o in enumerate(ordered):
            others = [x for x in ordered[number + 1 :] if x.low_us < o.high_us]
            lines += [f"{name} {text_of(match)}" for match in detector.feed(o, None, others)]
    return found


def check_world(url: str | None, seed: int, *, restarts: bool) -> None:
    draw = random.Random(seed)
    world = simulation.World(
        seed=seed,
        events=draw.randint(5, 25),
        gap_us=draw.choice((200, 2_000)),
        error_us=draw.choice((10, 1_000)),
        detection_delay_us=draw.choice((0, 300)),
    )
    happenings = simulation.run(world)
    arrivals = simulation.deliver(happenings, draw)
    nodes = sorted({happening.stamp.node or "" for happening in happenings})
    with place(url) as where:

        def opened() -> tuple[Ledger, Stream]:
            ledger = open_ledger(where.open(batch_events_max=draw.choice((1, 3, 2_000))))
            for name, (pattern, policy) in PATTERNS.items():
                log_named(ledger, name, pattern, policy)
            return ledger, declare(ledger)

        ledger, stream = opened()
        for node in nodes:
            stream.producers.register(node)
        batch: list[Occurrence] = []
        for arrival in arrivals:
            if arrival.event is not None:
                batch.append(arrival.event)
            if arrival.event is None or draw.random() < 0.4:
                stream.feed(batch)
                batch = []
                if arrival.event is None:
                    stream.producers.heartbeat(arrival.stamp)
            if restarts and draw.random() < 0.15:
                ledger.db.close()
                ledger, stream = opened()
        stream.feed(batch)
        for node in nodes:
            stream.producers.remove(node)
        lines = ledger.lines()
        expected = ideal(a.event for a in arrivals if a.event is not None)
        for name in PATTERNS:
            own = [line for line in lines if line.startswith(f"{name} ")]
            assert own == expected[name], (name, seed)
        assert ledger.letters() == []
        assert ledger.late() == []


def log_named(ledger: Ledger, name: str, pattern: Expression, policy: str) -> None:
    """Write down what a pattern makes, under its name."""

    @ledger.db.rule(on=pattern, name=name, on_uncertain=policy)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{name} {text_of(o)}")


WORLDS = settings(
    max_examples=20 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.long
@WORLDS
@given(seed=st.integers(0, 2**32))
def test_any_world_in_any_order_of_arrival_fires_as_one_ideal_feed(seed: int) -> None:
    check_world(None, seed, restarts=False)


@pytest.mark.long
@settings(WORLDS, max_examples=4 * SCALE)
@given(seed=st.integers(0, 2**32))
def test_restarts_in_between_change_nothing(postgres_url: str, seed: int) -> None:
    check_world(postgres_url, seed, restarts=True)
