"""Atomic batches of a stream: order, late and dead events, restart, replay."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Integer, func, literal, select

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    BadEvent,
    BatchFailed,
    CheckpointMismatch,
    SerializationConflict,
)
from activedb.streams import AtomicBatch
from tests.ledger import EPOCH, Rows, at, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb import Occurrence, Stream, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


def follow(ledger: Ledger, *kinds: str) -> None:
    """Write down the events of some types as they are processed."""

    def define(kind: str) -> None:
        @ledger.db.rule(on=adb.event(kind), name=f"follow {kind}")
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"{kind}{o.params.get('n', '')}")

    for kind in kinds:
        define(kind)


def batch(
    stream: Stream,
    batch_id: int,
    events: Sequence[Occurrence],
    punctuation: float | None = None,
    query_id: str = "q1",
) -> AtomicBatch:
    """Return the batch that a feed hands over."""
    us = None if punctuation is None else event("A", punctuation).us
    return AtomicBatch(stream.name, query_id, batch_id, Rows(events), us)


def test_feed_processes_events_in_event_time_order(ledger: Ledger) -> None:
    follow(ledger, "A", "B")
    stream = declare(ledger.db)
    events = [event("A", 3, n=3), event("B", 1, n=1), event("A", 2, n=2), event("B", 4, n=4)]
    stream.feed(events)
    assert ledger.lines() == ["B1", "A2", "A3", "B4"]


def test_feed_breaks_ties_by_id_and_then_by_arrival(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    ids = ["9", "10", None, "b", "a", None]
    stream.feed([event("A", 1, id, n=n) for n, id in enumerate(ids)])
    assert ledger.lines() == ["A2", "A5", "A1", "A0", "A4", "A3"]


def test_feed_keeps_events_from_the_punctuation_on_waiting(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    run = stream.run
    stream.feed([event("A", s, n=s) for s in (5, 1, 3)], punctuation=at(3))
    assert ledger.lines() == ["A1"]
    assert run.waiting == 2
    stream.feed([event("A", s, n=s) for s in (4, 3.5)], punctuation=at(5))
    assert ledger.lines() == ["A1", "A3", "A3.5", "A4"]
    stream.feed([])
    assert ledger.lines() == ["A1", "A3", "A3.5", "A4", "A5"]
    assert run.waiting == 0
    assert run.totals() == {"events": 5, "late": 0, "dead": 0}


def test_feed_records_late_events_and_does_not_process_them(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1)], punctuation=at(10))
    stream.feed([event("A", 9.999999, "late", n=2), event("A", 10, n=3)], punctuation=at(11))
    assert ledger.lines() == ["A1", "A3"]
    (late,) = ledger.late()
    assert (late["type"], late["event_id"], late["us"]) == ("A", "late", event("A", 9.999999).us)
    assert "before the punctuation" in late["reason"]
    run = stream.run
    assert [a.occurrence.params for a in run.late_events()] == [{"n": 2}]
    assert run.totals() == {"events": 2, "late": 1, "dead": 0}


def test_feed_with_an_older_punctuation_does_not_go_back(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([], punctuation=at(10))
    stream.feed([event("A", 7, n=7)], punctuation=at(5))
    assert ledger.lines() == []
    assert len(ledger.late()) == 1
    run = stream.run
    assert run.punctuation_us == event("A", 10).us


def test_event_that_cannot_be_understood_goes_to_the_dead_letters(ledger: Ledger) -> None:
    follow(ledger, "A", "N")
    stream = declare(ledger.db, N=("n",))
    stream.feed(
        [
            event("A", 1, n=1),
            event("WHAT", 2, n=2),
            event("N", 3, m=3),
            event("N", 4, n=None),
            event("N", 5, n=5),
        ],
    )
    assert ledger.lines() == ["A1", "N5"]
    letters = ledger.letters()
    assert [(x["source"], x["kind"], x["error"]) for x in letters] == [
        ("input", "event", "BadEvent")
    ] * 3
    assert "unknown event type 'WHAT'" in letters[0]["reason"]
    assert "event N lacks n" in letters[1]["reason"]
    assert stream.run.totals() == {"events": 2, "late": 0, "dead": 3}


def test_event_with_a_parameter_that_cannot_be_kept_goes_to_the_dead_letters(
    ledger: Ledger,
) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("A", 2, n=(1, 2)), event("A", 3, n=3)])
    assert ledger.lines() == ["A1", "A3"]
    assert len(ledger.letters()) == 1


def stumble_at(ledger: Ledger, how: Any, **options: Any) -> None:
    """Define a rule on A that fails for n == 2 after it has written something."""

    @ledger.db.rule(on=adb.event("A"), **options)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"A{o.params['n']}")
        with t.subtransaction() as s:
            s.insert(ledger.facts, {"name": f"f{o.params['n']}", "value": o.params["n"]})
        if o.params["n"] == 2:
            how(t, o)


def divide_on_the_server(ledger: Ledger, t: Transaction) -> None:
    none = select(func.count()).select_from(ledger.accounts).scalar_subquery()
    t.query(select(literal(1, Integer) / (none * 0)))


FAILURES: dict[str, Any] = {
    "an error of its own": lambda ledger, t, o: 1 / 0,
    "an abort": lambda ledger, t, o: t.abort("no"),
    "a row that exists": lambda ledger, t, o: t.insert(ledger.facts, {"name": "f1", "value": 9}),
    "a row that is missing": lambda ledger, t, o: t.delete(ledger.accounts, 77),
    "a missing value": lambda ledger, t, o: t.insert(ledger.facts, {"name": "z"}),
    "a unique constraint": lambda ledger, t, o: t.insert(ledger.facts, {"name": "z", "value": 1}),
    "a constraint inside the batch": lambda ledger, t, o: t.insert(
        ledger.facts, {"name": "z", "value": 2}
    ),
    "a message with NUL": lambda ledger, t, o: (_ for _ in ()).throw(ValueError("a\0b")),
    "a message with half a pair": lambda ledger, t, o: (_ for _ in ()).throw(ValueError("\udc80")),
    "a very long message": lambda ledger, t, o: (_ for _ in ()).throw(ValueError("x" * 10**6)),
}
SERVER_FAILURES: dict[str, Any] = {
    "a value with NUL": lambda ledger, t, o: t.insert(ledger.facts, {"name": "a\0b", "value": 7}),
    "a key with NUL": lambda ledger, t, o: t.get(ledger.facts, "a\0b"),
    "a value with half a pair": lambda ledger, t, o: ledger.write(t, "\udc80"),
    "a value too long": lambda ledger, t, o: ledger.write(t, "x" * 5_001),
    "a value out of range": lambda ledger, t, o: t.update(ledger.facts, "f2", value=2**40),
    "a query the server refuses": lambda ledger, t, o: divide_on_the_server(ledger, t),
}


def check_that_only_the_offender_is_dropped(where: Place, failure: Any) -> None:
    ledger = open_ledger(where.open())
    stumble_at(ledger, lambda t, o: failure(ledger, t, o))
    stream = declare(ledger.db)
    stream.feed([event("A", n, n=n) for n in (1, 2, 3)])
    assert ledger.lines() == ["A1", "A3"]
    assert ledger.known() == {"f1": 1, "f3": 3}
    (letter,) = ledger.letters()
    assert (letter["source"], letter["kind"]) == ("input", "event")
    assert letter["payload"]["params"] == {"n": 2}
    assert stream.run.totals() == {"events": 3, "late": 0, "dead": 1}
    stream.feed([event("A", 9, n=9)])
    assert ledger.lines() == ["A1", "A3", "A9"]


@pytest.mark.parametrize("failure", FAILURES)
def test_event_whose_rule_fails_is_dropped_alone(where: Place, failure: str) -> None:
    check_that_only_the_offender_is_dropped(where, FAILURES[failure])


@pytest.mark.parametrize("failure", SERVER_FAILURES)
def test_event_whose_rows_the_server_refuses_is_dropped_alone(where: Place, failure: str) -> None:
    if where.is_memory:
        pytest.skip("SQLite takes it")
    check_that_only_the_offender_is_dropped(where, SERVER_FAILURES[failure])


def test_event_whose_id_the_server_cannot_keep_is_dropped_alone(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("A", 2, "a\0b", n=2), event("A", 3, n=3)])
    assert [x for x in ledger.lines() if x != "A2"] == ["A1", "A3"]
    if ledger.db.settings.url != "memory://":
        assert len(ledger.letters()) == 1


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
def test_rule_that_fails_alone_keeps_the_event(ledger: Ledger, coupling: str) -> None:
    follow(ledger, "A")
    ledger.db.rule(on=adb.event("A"), on_abort="rule", coupling=coupling, name="bad", priority=-1)(
        lambda t, o: 1 / 0
    )
    stream = declare(ledger.db)
    stream.feed([event("A", n, n=n) for n in (1, 2)])
    assert ledger.lines() == ["A1", "A2"]
    assert [x["source"] for x in ledger.letters()] == ["rule bad", "rule bad"]


def test_failed_event_takes_no_part_in_patterns(ledger: Ledger) -> None:
    stumble_at(ledger, lambda t, o: 1 / 0)

    @ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("C")).within(100))
    def pattern(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"A{o.parts['A'].params['n']} then C")

    stream = declare(ledger.db)
    stream.feed([event("A", n, n=n) for n in (1, 2, 3)], punctuation=at(5))
    stream.feed([event("C", 6)])
    assert sorted(ledger.lines()) == ["A1", "A1 then C", "A3", "A3 then C"]


def test_s_transaction_is_one_event_whatever_else_is_in_the_batch(ledger: Ledger) -> None:
    """Immediate and deferred rules of an event end before the next event begins."""
    ledger.db.rule(on=adb.event("A"), coupling="deferred", name="deferred")(
        lambda t, o: ledger.write(t, f"deferred {o.params['n']}")
    )
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([event("A", n, n=n) for n in (2, 1)])
    assert ledger.lines() == ["A1", "deferred 1", "A2", "deferred 2"]


def test_rule_time_is_event_time(ledger: Ledger) -> None:
    times: list[object] = []
    ledger.db.rule(on=adb.event("A"), name="r")(
        lambda t, o: t.insert(ledger.accounts, {"id": 9, "balance": 0})
    )
    ledger.db.rule(on=adb.inserted(ledger.accounts), name="s")(
        lambda t, o: times.append((o.timestamp, t.timestamp))
    )
    declare(ledger.db).feed([event("A", 5)])
    assert times == [(at(5), at(5))]


@pytest.mark.parametrize("kind", ["fails", "unknown"])
def test_fail_fast_leaves_nothing_behind_and_the_stream_goes_on_afterwards(
    ledger: Ledger, kind: str
) -> None:
    stumble_at(ledger, lambda t, o: 1 / 0)
    matches: list[object] = []
    ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("C")), name="pattern")(
        lambda t, o: matches.append(o.parts["A"].params["n"])
    )
    stream = declare(ledger.db)
    run = stream.run
    run.fail_fast = True
    bad = event("A", 2, n=2) if kind == "fails" else event("WHAT", 2)
    with pytest.raises(BatchFailed, match="stream input"):
        stream.feed([event("A", 1, n=1), bad, event("C", 3)], punctuation=at(10))
    assert ledger.lines() == []
    assert ledger.letters() == []
    assert ledger.known() == {}
    assert run.totals() == {"events": 0, "late": 0, "dead": 0}
    assert run.waiting == 0
    matches.clear()
    stream.feed([event("A", 1, n=5), event("C", 3)], punctuation=at(10))
    assert ledger.lines() == ["A5"]
    assert matches == [5]


@pytest.mark.parametrize("batch_events_max", [1, 2, 3, 7])
def test_parts_give_the_same_result_as_one_big_batch(where: Place, batch_events_max: int) -> None:
    ledger = open_ledger(where.open(batch_events_max=batch_events_max), {1: 0})

    @ledger.db.rule(on=adb.event("A"))
    def count(t: Transaction, o: Occurrence) -> None:
        row = t.get(ledger.accounts, 1, for_update=True)
        assert row is not None
        t.update(ledger.accounts, 1, balance=row["balance"] * 2 + o.params["n"])

    @ledger.db.rule(
        on=adb.seq(adb.event("A", alias="x"), ~adb.event("B"), adb.event("C")).within(3)
    )
    def pattern(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.parts['x'].params['n']} {o.parts['C'].params['n']}")

    stream = declare(ledger.db)
    times = [1, 2, 2, 2, 3, 4, 5, 6, 7, 7, 8]
    kinds = "AACABCAACAC"
    events = [
        event(kind, time, str(n), n=n)
        for n, (kind, time) in enumerate(zip(kinds, times, strict=True))
    ]
    stream.feed(events[::-1], punctuation=at(7))
    stream.feed([])
    balance = 0
    for n, kind in enumerate(kinds):
        if kind == "A":
            balance = balance * 2 + n
    assert ledger.balances() == {1: balance}
    assert ledger.lines() == ["0 2", "6 8", "7 8", "6 10", "7 10", "9 10"]
    run = stream.run
    assert run.totals() == {"events": len(events), "late": 0, "dead": 0}


def test_replayed_batch_changes_nothing(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    run = stream.run
    first = batch(stream, 0, [event("A", 1, n=1), event("WHAT", 2), event("A", 8, n=8)], 5)
    second = batch(stream, 1, [event("A", 6, n=6), event("A", 0, n=0)], 7)
    run.apply(first)
    run.apply(first)
    run.apply(second)
    before = (ledger.lines(), ledger.letters(), ledger.late(), run.totals(), run.waiting)
    run.apply(first)
    run.apply(second)
    assert before == (ledger.lines(), ledger.letters(), ledger.late(), run.totals(), run.waiting)
    assert ledger.lines() == ["A1", "A6"]
    assert run.totals() == {"events": 2, "late": 1, "dead": 1}


def test_batch_of_another_query_or_after_a_gap_is_refused(ledger: Ledger) -> None:
    stream = declare(ledger.db)
    run = stream.run
    with pytest.raises(CheckpointMismatch, match="seen none of its batches"):
        run.apply(batch(stream, 3, [event("A", 1)]))
    run.apply(batch(stream, 0, [event("A", 1)]))
    with pytest.raises(CheckpointMismatch, match="fed by query q1 so far, and this is query q2"):
        run.apply(batch(stream, 1, [event("A", 1)], query_id="q2"))
    with pytest.raises(CheckpointMismatch):
        run.apply(batch(stream, 2, [event("A", 1)]))
    run.apply(batch(stream, 1, [event("A", 1)]))


def reopen(where: Place, ledger: Ledger) -> Ledger:
    """Close a database and open its place again, as a new process would."""
    ledger.db.close()
    return open_ledger(where.open())


def test_restart_continues_where_the_stream_stopped(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    ledger = open_ledger(where.open())
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.run.apply(
        batch(stream, 0, [event("A", 4, n=4), event("A", 1, n=1), event("A", 2, n=2)], 2)
    )
    ledger = reopen(where, ledger)
    follow(ledger, "A")
    stream = declare(ledger.db)
    run = stream.run
    assert run.waiting == 2
    run.apply(batch(stream, 0, [event("A", 4, n=4), event("A", 1, n=1), event("A", 2, n=2)], 2))
    run.apply(batch(stream, 1, [event("A", 3, n=3), event("A", 1.5, n=0)], 4))
    run.finish()
    assert ledger.lines() == ["A1", "A2", "A3", "A4"]
    assert run.totals() == {"events": 4, "late": 1, "dead": 0}
    with pytest.raises(CheckpointMismatch):
        run.apply(batch(stream, 2, [], query_id="other"))


@pytest.mark.parametrize("restart_after", [1, 2, 3])
def test_restart_keeps_the_state_of_patterns(where: Place, restart_after: int) -> None:
    """SEQ(A, !B, C) whose events lie on both sides of a restart."""
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    batches = [
        ([event("A", 1, k=1, n=1), event("A", 1, k=2, n=2), event("A", -200, k=1, n=0)], 2),
        ([event("B", 3, k=2), event("B", 90, k=1)], 4),
        ([event("A", 5, k=1, n=3), event("C", 6, k=1), event("C", 6, k=2)], 7),
        ([event("C", 50, k=1), event("C", 95, k=1)], 100),
    ]
    ledger = open_ledger(where.open())

    def prepare(ledger: Ledger) -> Stream:
        pattern = adb.seq(adb.event("A"), ~adb.event("B"), adb.event("C")).same("k").within(60)

        @ledger.db.rule(on=pattern, name="pattern")
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"{o.params['k']}: A{o.parts['A'].params['n']}")

        return declare(ledger.db)

    stream = prepare(ledger)
    for number, (events, punctuation) in enumerate(batches):
        if number == restart_after:
            ledger = reopen(where, ledger)
            stream = prepare(ledger)
        stream.feed(events, punctuation=at(punctuation))
    assert ledger.lines() == ["1: A1", "1: A3", "1: A1", "1: A3"]


@pytest.mark.parametrize("restart_after", [1, 2, 3])
def test_restart_keeps_late_events_in_the_state_of_patterns(
    where: Place, restart_after: int
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    batches = [
        ([event("A", 5, n=5)], 6),
        ([event("A", 1, n=1), event("B", 7)], 8),
        ([event("A", 2, n=2)], 9),
        ([event("B", 10)], 11),
    ]
    ledger = open_ledger(where.open())

    def prepare(ledger: Ledger) -> Stream:
        stream = declare(ledger.db)

        @ledger.db.rule(on=adb.seq(adb.late(stream.name, alias="late"), adb.event("B")))
        def pattern(t: Transaction, o: Occurrence) -> None:
            late = o.parts["late"].us / 1_000_000 - EPOCH.timestamp()
            ledger.write(t, f"late {late:g}, B{o.us / 1_000_000 - EPOCH.timestamp():g}")

        return stream

    stream = prepare(ledger)
    for number, (events, punctuation) in enumerate(batches):
        if number == restart_after:
            ledger = reopen(where, ledger)
            stream = prepare(ledger)
        stream.feed(events, punctuation=at(punctuation))
    assert ledger.lines() == ["late 6, B7", "late 6, B10", "late 8, B10"]


def test_two_databases_cannot_both_feed_a_stream(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory belongs to one process")
    ledgers = [open_ledger(where.open(retries_max=0)) for _ in range(2)]
    runs = []
    for ledger in ledgers:
        follow(ledger, "A")
        stream = declare(ledger.db)
        runs.append((stream.run, stream))
    for run, stream in runs[:1]:
        run.apply(batch(stream, 0, [event("A", 1, n=1)], 5))
    run, stream = runs[1]
    with pytest.raises(ActiveDBError):
        run.apply(batch(stream, 0, [event("A", 1, n=1)], 5))
    assert ledgers[0].lines() == ["A1"]


def test_detached_rules_of_a_stream_run_once_although_its_batch_is_tried_twice(
    ledger: Ledger,
) -> None:
    tries: list[int] = []

    @ledger.db.rule(on=adb.event("A"), coupling="detached")
    def detached(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"detached {o.params['n']}")

    @ledger.db.rule(on=adb.event("B"))
    def once(t: Transaction, o: Occurrence) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise SerializationConflict("again")

    stream = declare(ledger.db)
    stream.feed([event("A", 1, n=1), event("A", 2, n=2), event("B", 3)])
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["detached 1", "detached 2"]
    assert len(tries) == 2
    assert ledger.pending() == []


def test_stream_with_two_consumers_of_different_windows_keeps_the_longer(ledger: Ledger) -> None:
    seen: list[str] = []
    for name, seconds in (("short", 2), ("long", 50)):
        ledger.db.rule(
            on=adb.seq(adb.event("A"), adb.event("C")).within(timedelta(seconds=seconds)), name=name
        )(lambda t, o, name=name: seen.append(name))
    stream = declare(ledger.db)
    stream.feed([event("A", 1)], punctuation=at(20))
    stream.feed([event("C", 30)], punctuation=at(40))
    assert seen == ["long"]


# -- what is fed from Python -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "given"),
    [
        (3, "it was given 3, of type int"),
        (None, "it was given None, of type NoneType"),
        (event("A", 1), "of type Occurrence"),
        ([{}], "item 0 of what it was given is {}, of type dict"),
        ("A", "item 0 of what it was given is 'A', of type str"),
        ([event("A", 1), 3], "item 1 of what it was given is 3, of type int"),
    ],
)
def test_feed_of_no_events_is_refused_and_takes_nothing(
    ledger: Ledger, events: Any, given: str
) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    with pytest.raises(BadEvent, match="is fed a list of events, such as ") as refused:
        stream.feed(events)
    assert given in str(refused.value)
    run = stream.run
    assert (run.batches, run.waiting, ledger.letters(), ledger.lines()) == (0, 0, [], [])
    stream.feed([event("A", 1, n=1)])
    assert (run.batches, ledger.lines()) == (1, ["A1"])


@pytest.mark.parametrize("crashes_after", ["nothing", "waiting", "all"])
def test_batches_tell_after_a_crash_whether_a_feed_was_taken(
    where: Place, crashes_after: str
) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    ledger = open_ledger(where.open())
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([event("A", 1, "a", n=1)])
    run = stream.run
    before = run.batches
    events = [event("A", 2, "b", n=2), event("A", 3, "c", n=3)]
    if crashes_after != "nothing":
        run.feed(events)  # the first commit of stream.feed, with which all of them are taken
    if crashes_after == "all":
        run.finish()
    ledger = reopen(where, ledger)
    follow(ledger, "A")
    stream = declare(ledger.db)
    taken = stream.run.batches > before
    assert taken == (crashes_after != "nothing")
    stream.feed([] if taken else events)
    assert ledger.lines() == ["A1", "A2", "A3"]
    assert ledger.late() == []


def test_events_fed_again_are_other_events_whatever_their_ids(ledger: Ledger) -> None:
    follow(ledger, "A")
    stream = declare(ledger.db)
    stream.feed([event("A", 1, "a", n=1), event("A", 5, "b", n=5)], at(3))
    stream.feed([event("A", 1, "a", n=1), event("A", 5, "b", n=5)], at(6))
    assert ledger.lines() == ["A1", "A5", "A5"], "one that waited, and the same once more"
    assert [late["event_id"] for late in ledger.late()] == ["a"], "the punctuation had passed it"
