"""The time of a stream: what it completes between events, in the right place, once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import BatchFailed
from activedb.events import Detector
from activedb.rules import Subscription
from tests.drawing import SCALE, Worlds
from tests.ledger import at, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Expression, Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

EPOCH_S = at(0).timestamp()


def second(o: Occurrence) -> float:
    """Time of an occurrence after the start."""
    return o.us / 1_000_000 - EPOCH_S


def follow(ledger: Ledger, name: str, on: Expression, **options: Any) -> None:
    """Write down what occurs, and when the transaction says that it is."""

    @ledger.db.rule(on=on, name=name, **options)
    def rule(t: Transaction, o: Occurrence) -> None:
        assert adb.occurrence("now", timestamp=t.timestamp).us == o.us
        parts = "".join(f"{p.params.get('n', '')}" for p in o.constituents) or o.params.get("n", "")
        ledger.write(t, f"{name}{parts} at {second(o):g}")


def test_trailing_negation_is_completed_by_the_next_event(ledger: Ledger) -> None:
    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
    follow(ledger, "C", adb.event("C"))
    stream = declare(ledger.db)
    events = [event("A", 1, n=1), event("A", 4, n=4), event("B", 8, n=8), event("C", 20, n=20)]
    stream.feed(events)
    assert ledger.lines() == ["none1 at 6", "C20 at 20"]


def test_trailing_negation_is_completed_by_a_punctuation_alone(ledger: Ledger) -> None:
    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)], punctuation=at(6))
    assert ledger.lines() == []
    stream.feed([], punctuation=at(6.000001))
    assert ledger.lines() == ["none1 at 6"]
    stream.feed([], punctuation=at(100))
    assert ledger.lines() == ["none1 at 6"]


def test_end_of_the_stream_does_not_decide_what_lies_beyond_it(ledger: Ledger) -> None:
    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)])
    assert ledger.lines() == []
    stream.feed([event("B", 3)])
    stream.feed([], punctuation=at(50))
    assert ledger.lines() == []


def test_delay_periodic_and_clock_events_take_their_places_among_the_events(ledger: Ledger) -> None:
    follow(ledger, "later", adb.event("A").after(2.5))
    follow(ledger, "tick", adb.periodic(adb.event("A"), 2, adb.event("B")))
    follow(ledger, "C", adb.event("C"))
    follow(ledger, "hand", adb.seq(adb.event("C"), adb.every(10, alias="e")).within(6))
    stream = declare(ledger.db)
    events = [event("A", 1, n=1), event("C", 4, n=4), event("B", 6, n=6), event("C", 11, n=11)]
    stream.feed(reversed(events))
    stream.feed([], punctuation=at(30))
    assert ledger.lines() == [
        "tick1 at 3",
        "later1 at 3.5",
        "C4 at 4",
        "tick1 at 5",
        "hand4 at 10",
        "C11 at 11",
    ]


def test_partial_match_that_times_out_is_an_event(ledger: Ledger) -> None:
    whole = adb.seq(adb.event("A"), adb.event("B"), adb.event("C")).within(10)
    follow(ledger, "out", whole.timed_out())
    follow(ledger, "whole", whole)
    stream = declare(ledger.db)
    events = [event("A", 1, n=1), event("B", 2, n=2), event("A", 30, n=3), event("B", 31, n=4)]
    stream.feed([*events, event("C", 32, n=5)], punctuation=at(60))
    assert ledger.lines() == ["out12 at 11", "whole345 at 32"]


def test_rule_that_time_triggers_sees_and_is_seen_in_the_order_of_time(ledger: Ledger) -> None:
    """A value set by time at 6 is read by the event at 7, not by that at 6."""
    stream = declare(ledger.db)
    silence = adb.seq(adb.event("A"), ~adb.event("B")).within(5)

    @ledger.db.rule(on=silence)
    def mark(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, 1, balance=99)

    @ledger.db.rule(on=adb.event("C"))
    def read(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{second(o):g} reads {t.get(ledger.accounts, 1)['balance']}")  # type: ignore[index]

    events = [event("C", s) for s in (7, 6, 5, 6.5)]
    stream.feed([*events, event("A", 1)])
    assert ledger.lines() == ["5 reads 10", "6 reads 10", "6.5 reads 99", "7 reads 99"]


def test_reading_of_what_time_completes_sees_that_time(ledger: Ledger) -> None:
    def is_poor(t: Transaction, parts: Any) -> bool:
        return bool(t.get(ledger.accounts, 1)["balance"] < 50)  # type: ignore[index]

    silence = adb.seq(adb.event("A"), ~adb.event("B")).within(5).reading(is_poor)
    follow(ledger, "poor", silence)
    stream = declare(ledger.db)

    @ledger.db.rule(on=adb.event("C"))
    def enrich(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, 1, balance=o.params["n"])

    events = [event("A", 1, n=1), event("C", 6.5, n=90), event("A", 3, n=2), event("C", 20, n=3)]
    stream.feed([*events, event("A", 18, n=4)])
    stream.feed([], punctuation=at(40))
    assert ledger.lines() == ["poor1 at 6", "poor4 at 23"]


def test_failure_of_a_rule_that_time_triggers_is_a_dead_letter_and_costs_it_alone(
    ledger: Ledger,
) -> None:
    silence = adb.seq(adb.event("A"), ~adb.event("B")).within(5)
    ledger.db.rule(on=silence, name="fails")(lambda t, o: 1 / 0)
    follow(ledger, "none", silence)
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("C", 20)])
    assert ledger.lines() == ["none1 at 6"]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["kind"]) == ("input", "event")
    assert letter["payload"] == {"rule": "fails", "us": event("A", 6).us}
    assert letter["error"] == "ZeroDivisionError"
    assert stream.run.totals() == {"events": 2, "late": 0, "dead": 1}


def test_failing_rule_of_time_ends_the_run_when_asked_to(ledger: Ledger) -> None:
    silence = adb.seq(adb.event("A"), ~adb.event("B")).within(5)
    ledger.db.rule(on=silence, name="fails")(lambda t, o: 1 / 0)
    stream = declare(ledger.db)
    stream.run.fail_fast = True
    with pytest.raises(BatchFailed, match="fails"):
        stream.feed([event("A", 1, n=1), event("C", 20)])
    assert stream.run.totals()["events"] == 0


def test_reading_that_fails_when_time_completes_costs_only_what_it_was_asked_about(
    ledger: Ledger,
) -> None:
    def fails(t: Transaction, parts: Any) -> bool:
        return bool(1 / (parts["A"].params["n"] - 1))

    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5).reading(fails))
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("A", 2, n=3), event("A", 20, n=2)])
    stream.feed([], punctuation=at(40))
    assert ledger.lines() == ["none3 at 7", "none2 at 25"]
    (letter,) = ledger.letters()
    assert letter["error"] == "ZeroDivisionError"


def test_event_that_fails_is_taken_back_from_what_it_had_used_up(ledger: Ledger) -> None:
    pairs = adb.seq(adb.event("A"), adb.event("B")).within(100).context("chronicle")
    follow(ledger, "pair", pairs)

    @ledger.db.rule(on=adb.event("B"), priority=-1)
    def refuse(t: Transaction, o: Occurrence) -> None:
        if o.params["n"] == 2:
            raise ValueError("no")

    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("B", 2, n=2), event("B", 3, n=3)])
    assert ledger.lines() == ["pair13 at 3"]
    assert len(ledger.letters()) == 1


def test_batch_that_is_tried_again_counts_its_events_once(where: Place) -> None:
    """A row that the server refuses makes the part run again, with what it had used up."""
    if where.is_memory:
        pytest.skip("SQLite takes it")
    ledger = open_ledger(where.open())
    pairs = adb.seq(adb.event("A"), adb.event("B")).within(100).context("chronicle")
    follow(ledger, "pair", pairs)
    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5))

    @ledger.db.rule(on=adb.event("C"))
    def refused(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "x" * 5_001)

    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("A", 2, n=2)])
    events = [event("B", 3, n=3), event("C", 4), event("A", 5, n=5), event("B", 20, n=6)]
    stream.feed([*events, event("B", 21, n=7)])
    stream.feed([event("B", 22, n=8)])
    assert ledger.lines() == ["pair13 at 3", "none5 at 10", "pair26 at 20", "pair57 at 21"]
    assert len(ledger.letters()) == 1


@pytest.mark.long
def test_rules_that_are_not_due_are_not_looked_at(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    advanced: list[str] = []
    advance = Subscription.advance

    def note(self: Subscription, us: int, reader: Any = None) -> Any:
        advanced.append(self.rule.name)
        return advance(self, us, reader)

    def is_number(n: int) -> Callable[[Occurrence], bool]:
        return lambda o: bool(o.params["n"] == n)

    stream = declare(ledger.db)
    monkeypatch.setattr(Subscription, "advance", note)
    with ledger.db.transaction():
        for number in range(200):
            on = adb.seq(adb.event("A", where=is_number(number)), ~adb.event("B"))
            ledger.db.rule(on=on.within(5), name=f"r{number}")(lambda t, o: None)
            ledger.db.rule(on=adb.event("C"), name=f"c{number}")(lambda t, o: None)
    events = [event("A", 10 * s, n=7 if s % 10 == 0 else 1_000) for s in range(30)]
    stream.feed(events)
    assert advanced == ["r7"] * 3


def silent(count: int) -> Expression:
    """An A that is not followed by a B."""
    return adb.seq(adb.event("A"), ~adb.event("B")).same("n").within(count)


def detected(on: Expression, events: list[Occurrence]) -> list[Occurrence]:
    """Return what is detected in all events, in the order of time."""
    detector = Detector(on)
    made: list[Occurrence] = []
    for o in events:
        made += detector.advance(o.us) + detector.feed(o)
    return made + detector.advance(event("A", 5 * len(events)).us)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5 * SCALE))
def test_disordered_stream_in_batches_gives_what_the_whole_in_order_gives(
    where: Place, seed: int
) -> None:
    rules: dict[str, Any] = {
        "silent": silent(7),
        "late": adb.event("C").after(3.5),
        "out": adb.seq(adb.event("B"), adb.event("C")).same("n").within(4).timed_out(),
        "tick": adb.periodic(adb.event("A"), 5, adb.event("B")).context("recent"),
        "pair": adb.seq(adb.event("A"), adb.event("C")).within(40).context("chronicle"),
        "three": adb.some_of(2, adb.event("A"), adb.event("B"), adb.event("C")).same("n").within(6),
        "skips": adb.seq(adb.event("A"), adb.event("B"))
        .within(20)
        .selecting("next")
        .skipping("past_last"),
    }
    count = 120
    worlds = Worlds(1, "event time", where.is_memory, seed, **dict.fromkeys(rules, 1))
    for chosen in worlds:
        times = sorted(chosen.sample(range(1, 4 * count), count))
        events = [event(chosen.choice("ABC"), s, f"{s:05}", n=chosen.randrange(3)) for s in times]
        worlds.met = Counter({name: len(detected(on, events)) for name, on in rules.items()})
    arrived = sorted(events, key=lambda o: o.us + chosen.randrange(60_000_000))
    db = where.open(batch_events_max=chosen.choice((5, 30, 2_000)))
    ledger = open_ledger(db)
    seen: dict[str, list[tuple[Any, ...]]] = {name: [] for name in rules}
    for name, on in rules.items():

        def note(t: Transaction, o: Occurrence, name: str = name) -> None:
            seen[name].append((o.us, [(c.us, c.id) for c in o.constituents]))

        db.rule(on=on, name=name)(note)
    stream = declare(ledger.db)
    run = stream.run
    end_us = event("A", 5 * count).us
    for start in range(0, count, 25):
        left = arrived[start + 25 :]
        run.feed(arrived[start : start + 25], min((o.us for o in left), default=end_us))
    assert db.dead_letters.list() == []
    for name, on in rules.items():
        expected = [(o.us, [(c.us, c.id) for c in o.constituents]) for o in detected(on, events)]
        assert seen[name] == expected, name


def test_signal_beside_the_stream_is_kept_by_rules_that_follow_it(ledger: Ledger) -> None:
    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
    pairs = adb.seq(adb.event("A"), adb.event("C")).context("chronicle")
    follow(ledger, "pair", pairs)
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)], punctuation=at(2))
    ledger.db.signal("A", timestamp=at(3), n=3)
    with pytest.raises(ZeroDivisionError), ledger.db.transaction():
        ledger.db.signal("A", timestamp=at(4), n=4)
        raise ZeroDivisionError
    stream.feed([event("C", 7, n=7), event("C", 10, n=10), event("C", 20, n=20)])
    assert ledger.lines() == ["none1 at 6", "pair17 at 7", "none3 at 8", "pair310 at 10"]


def test_signal_beside_the_stream_is_kept_over_a_restart(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")

    def opened() -> tuple[Ledger, adb.Stream]:
        ledger = open_ledger(where.open())
        pairs = adb.seq(adb.event("A"), adb.event("C")).context("chronicle")
        follow(ledger, "pair", pairs)
        return ledger, declare(ledger.db)

    ledger, stream = opened()
    stream.feed([event("A", 1, n=1)], punctuation=at(2))
    ledger.db.signal("A", timestamp=at(3), n=3)
    ledger.db.close()
    ledger, stream = opened()
    stream.feed([event("C", 7, n=7), event("C", 10, n=10)])
    assert ledger.lines() == ["pair17 at 7", "pair310 at 10"]


def change_all(ledger: Ledger, how: str) -> None:
    """Change all rules called "none" in one of three ways."""
    if how == "action":
        ledger.db.rules.change("none", action=lambda t, o: ledger.write(t, f"new at {second(o):g}"))
    elif how == "priority":
        ledger.db.rules.change("none", priority=9)
    else:
        ledger.db.rules.disable("none")


@pytest.mark.parametrize("is_within_part", [False, True], ids=["before", "within the part"])
@pytest.mark.parametrize("by_event", [True, False], ids=["next event", "punctuation"])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("action", ["other at 6", "new at 6"]),
        ("priority", ["none1 at 6", "other at 6"]),
        ("disable", ["other at 6"]),
    ],
)
def test_version_of_a_rule_that_time_triggers_is_the_one_at_that_time(
    ledger: Ledger, how: str, expected: list[str], by_event: bool, is_within_part: bool
) -> None:
    silence = adb.seq(adb.event("A"), ~adb.event("B")).within(5)

    @ledger.db.rule(on=silence, name="other", priority=5)
    def other(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"other at {second(o):g}")

    follow(ledger, "none", silence)
    if is_within_part:

        @ledger.db.rule(on=adb.event("C"), name="changer")
        def changer(t: Transaction, o: Occurrence) -> None:
            if o.params.get("n"):
                change_all(ledger, how)

    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)], punctuation=at(2))
    if is_within_part:
        events = [event("C", 3, n=1)]
    else:
        change_all(ledger, how)
        events = []
    if by_event:
        stream.feed([*events, event("C", 20)])
    else:
        stream.feed(events, punctuation=at(20))
    assert ledger.lines() == expected


def test_rule_disabled_in_a_try_that_aborts_is_still_triggered_by_time(where: Place) -> None:
    if where.is_memory:
        pytest.skip("SQLite takes it")
    ledger = open_ledger(where.open())
    follow(ledger, "none", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
    follow(ledger, "later", adb.event("A").after(6))
    tries = []

    @ledger.db.rule(on=adb.event("C"))
    def changer(t: Transaction, o: Occurrence) -> None:
        tries.append(o)
        if len(tries) == 1:
            ledger.db.rules.disable("none")
            ledger.db.rules.disable("later")

    @ledger.db.rule(on=adb.event("B"))
    def refused(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "x" * 5_001)

    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)], punctuation=at(2))
    stream.feed([event("C", 3), event("B", 20)])
    assert len(tries) > 1
    assert ledger.lines() == ["none1 at 6", "later1 at 7"]
