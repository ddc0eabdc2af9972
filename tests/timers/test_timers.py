"""Time outside of streams, on a clock that the tests drive."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from tests.databases import PATIENCE_S, in_thread, lock_waits, until
from tests.ledger import EPOCH, at, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Expression, Occurrence, SimulatedClock, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


class Timed:
    """A ledger with a clock; `on` defines a rule that writes down when its event occurs."""

    def __init__(self, where: Place, clock: SimulatedClock, **settings: Any):
        self.clock = clock
        self.ledger: Ledger = open_ledger(where.open(clock=clock, **settings))
        self.db = self.ledger.db

    def on(self, name: str, on: Expression, **options: Any) -> None:
        @self.db.rule(on=on, name=name, **options)
        def rule(t: Transaction, o: Occurrence) -> None:
            self.ledger.write(t, f"{name} at {o.us / 1_000_000 - EPOCH.timestamp():g}")

    def go_on(self, seconds: float) -> list[str]:
        """Let time pass, and what is due happen; return the lines so far."""
        self.db.wait_idle()
        self.clock.advance(seconds)
        self.db.wait_idle()
        return self.ledger.lines()

    @property
    def thread(self) -> Any:
        return self.db._timekeeper._thread


@pytest.fixture
def clock() -> SimulatedClock:
    return adb.SimulatedClock(EPOCH)


@pytest.fixture
def timed(where: Place, clock: SimulatedClock) -> Timed:
    return Timed(where, clock)


@pytest.fixture
def again(where: Place, clock: SimulatedClock) -> Callable[[], Timed]:
    """Opens the place as a new process, after the last one has ended."""
    if where.is_memory:
        pytest.skip("memory keeps nothing")

    def open_again() -> Timed:
        for db in where._opened:
            db.close()
        return Timed(where, clock)

    return open_again


def test_rule_without_time_needs_no_thread(timed: Timed) -> None:
    timed.on("plain", adb.event("A"))
    timed.on("pair", adb.seq(adb.event("A"), adb.event("B")))
    timed.db.signal("A")
    assert timed.thread is None


def test_clock_events_occur_when_they_are_due(timed: Timed) -> None:
    timed.on("every", adb.every(10, offset=3))
    timed.on("at", adb.at(at(12)))
    timed.on("cron", adb.cron("* * * * *"))
    assert timed.go_on(2) == []
    assert timed.go_on(1) == ["every at 3"]
    assert timed.go_on(9) == ["every at 3", "at at 12"]
    assert timed.go_on(1) == ["every at 3", "at at 12", "every at 13"]
    more = timed.go_on(47)[3:]
    assert [line for line in more if line != "cron at 60"] == [
        f"every at {s}" for s in (23, 33, 43, 53)
    ]
    assert "cron at 60" in more


def test_thread_waits_and_wakes_by_itself(timed: Timed) -> None:
    timed.on("every", adb.every(10))
    timed.db.wait_idle()
    until(lambda: timed.clock.waiting)
    timed.clock.advance(10)
    until(lambda: timed.ledger.lines() == ["every at 10"])
    thread = timed.thread
    timed.db.close()
    assert not thread.is_alive()


def test_delay_silence_time_out_and_ticks_follow_the_clock(timed: Timed) -> None:
    a, b = adb.event("A"), adb.event("B")
    timed.on("later", a.after(4))
    timed.on("silence", adb.seq(a, ~b).within(5))
    timed.on("out", adb.seq(a, b).within(6).timed_out())
    timed.on("tick", adb.periodic(a, 3, b))
    timed.go_on(1)
    timed.db.signal("A")
    timed.go_on(1)
    assert timed.go_on(2) == ["tick at 4"]
    assert timed.go_on(1) == ["tick at 4", "later at 5"]
    assert timed.go_on(1) == ["tick at 4", "later at 5", "silence at 6"]
    assert timed.go_on(1)[3:] == ["out at 7", "tick at 7"] or timed.ledger.lines()[3:] == [
        "tick at 7",
        "out at 7",
    ]
    timed.db.signal("B")
    assert timed.go_on(100)[5:] == []


def test_event_in_time_keeps_silence_from_occurring(timed: Timed) -> None:
    timed.on("silence", adb.seq(adb.event("A"), ~adb.event("B")).same("k").within(5))
    timed.db.signal("A", k=1)
    timed.db.signal("A", k=2)
    timed.go_on(4)
    timed.db.signal("B", k=1)
    assert timed.go_on(4) == ["silence at 5"]


def test_event_of_an_aborted_transaction_is_followed_by_no_time(timed: Timed) -> None:
    timed.on("later", adb.event("A").after(4))
    with timed.db.transaction() as t:
        timed.db.signal("A")
        t.abort()
    assert timed.go_on(10) == []


def test_time_does_not_decide_about_an_event_before_its_transaction_has_ended(
    timed: Timed,
) -> None:
    timed.on("later", adb.event("A").after(4))
    with timed.db.transaction() as t:
        timed.db.signal("A")
        timed.clock.advance(10)
        until(lambda: timed.db._forest.locks.counters.waits)
        t.abort()
    timed.db.wait_idle()
    assert timed.ledger.lines() == []


def test_data_changes_start_timers_too(timed: Timed) -> None:
    timed.on("unpaid", adb.seq(adb.inserted(timed.ledger.accounts), ~adb.event("PAID")).within(5))
    with timed.db.transaction() as t:
        t.insert(timed.ledger.accounts, {"id": 7, "balance": 0})
    assert timed.go_on(5) == ["unpaid at 5"]


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential", "causal"])
def test_rule_runs_once_in_each_coupling_mode_when_time_triggers_it(
    timed: Timed, coupling: str
) -> None:
    timed.on("every", adb.every(10), coupling=coupling)
    assert timed.go_on(10) == ["every at 10"]
    assert sorted(timed.go_on(20)) == ["every at 10", "every at 20", "every at 30"]
    assert timed.ledger.letters() == []


def test_rule_that_time_triggers_and_that_fails_leaves_a_letter_each_time(timed: Timed) -> None:
    timed.on("every", adb.every(10))
    timed.db.rule(on=adb.every(10), name="fails")(lambda t, o: 1 / 0)
    timed.db.rule(on=adb.every(10), name="alone", on_abort="rule")(lambda t, o: 1 / 0)
    assert timed.go_on(20) == ["every at 10", "every at 20"]
    letters = timed.db.dead_letters.list()
    assert sorted(x.source for x in letters) == ["rule alone"] * 2 + ["rule fails"] * 2
    assert {x.error for x in letters} == {"ZeroDivisionError"}


def _zero_fails(parts: Any) -> bool:
    return bool(1 / parts["A"].params["x"])


@pytest.mark.parametrize(
    ("predicate", "value", "error"),
    [
        (_zero_fails, 0, "ZeroDivisionError"),
        (adb.part("A").x > 0, "a text", "BadEvent"),
    ],
    ids=["function", "term"],
)
def test_predicate_that_fails_when_time_completes_leaves_a_letter_and_the_rule_goes_on(
    timed: Timed, predicate: Any, value: object, error: str
) -> None:
    silence = adb.seq(adb.event("A"), ~adb.event("B")).where(predicate).within(5)
    timed.on("silence", silence)
    timed.db.signal("A", x=value)
    assert timed.go_on(10) == []
    (letter,) = timed.db.dead_letters.list()
    assert (letter.source, letter.kind, letter.error) == ("rule silence", "event", error)
    assert letter.payload["us"] == (EPOCH + timedelta(seconds=5)).timestamp() * 1_000_000
    timed.db.signal("A", x=1)
    assert timed.go_on(10) == ["silence at 15"]
    assert len(timed.db.dead_letters.list()) == 1


def test_predicate_that_fails_when_time_completes_costs_only_what_it_was_asked_about(
    timed: Timed,
) -> None:
    silence = adb.seq(adb.event("A"), ~adb.event("B"))
    timed.on("silence", silence.where(lambda parts: 1 / parts["A"].params["x"]).within(5))
    timed.db.signal("A", x=0)
    timed.db.signal("A", x=1)  # due at the same moment
    timed.go_on(1)
    timed.db.signal("A", x=2)
    assert timed.go_on(10) == ["silence at 5", "silence at 6"]
    assert len(timed.db.dead_letters.list()) == 1


def test_reading_is_judged_when_time_completes(timed: Timed) -> None:
    def is_low(t: Transaction, parts: Any) -> bool:
        row = t.get(timed.ledger.accounts, 1)
        return row is not None and row["balance"] < 50

    timed.on("low", adb.seq(adb.event("A"), ~adb.event("B")).within(5).reading(is_low))
    with timed.db.transaction() as t:
        t.insert(timed.ledger.accounts, {"id": 1, "balance": 90})
    timed.db.signal("A")
    timed.go_on(3)
    timed.db.signal("A")
    assert timed.go_on(3) == []
    with timed.db.transaction() as t:
        t.update(timed.ledger.accounts, 1, balance=10)
    assert timed.go_on(3) == ["low at 8"]


def test_rule_that_is_disabled_or_deleted_is_not_due_any_more(timed: Timed) -> None:
    timed.on("every", adb.every(10))
    timed.on("other", adb.every(10))
    timed.on("third", adb.every(10))
    timed.db.rules.disable("every")
    timed.db.rules.delete("other")
    assert timed.go_on(10) == ["third at 10"]
    timed.db.rules.enable("every")
    assert sorted(timed.go_on(10)[1:]) == ["every at 20", "third at 20"]


def test_rule_defined_in_a_transaction_follows_the_clock_from_its_commit_on(
    timed: Timed,
) -> None:
    with timed.db.transaction():
        timed.on("every", adb.every(10))
        timed.clock.advance(15)
    assert timed.go_on(5) == ["every at 20"]


def test_rule_on_a_stream_does_not_follow_the_clock(timed: Timed) -> None:
    timed.on("silence", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
    stream = timed.db.stream(
        "s", type="t", timestamp="at", types={"A": (), "B": ()}, delay=timedelta(1)
    )
    stream.feed([adb.occurrence("A", timestamp=at(1))], punctuation=at(2))
    assert timed.go_on(1_000) == []
    stream.feed([], punctuation=at(7))
    assert timed.ledger.lines() == ["silence at 6"]


def test_what_came_due_between_two_processes_occurs_once(again: Callable[[], Timed]) -> None:
    def define(timed: Timed) -> Timed:
        timed.on("at", adb.at(at(12)))
        timed.on("every", adb.every(10))
        timed.on("silence", adb.seq(adb.event("A"), ~adb.event("B")).within(5))
        timed.db.wait_idle()
        return timed

    timed = define(again())
    timed.go_on(1)
    timed.db.signal("A")
    timed.db.close()
    timed.clock.advance(30)
    timed = define(again())
    expected = ["at at 12", "every at 10", "every at 20", "every at 30", "silence at 6"]
    assert sorted(timed.ledger.lines()) == expected
    timed = define(again())
    assert sorted(timed.go_on(8)) == expected


def test_partial_matches_expire_when_no_event_comes(timed: Timed) -> None:
    timed.on("pair", adb.seq(adb.event("A"), adb.event("B")).within(10))
    timed.db.signal("A")
    timed.go_on(5)
    timed.db.signal("A")
    assert timed.db.rules["pair"].partials == 2
    timed.go_on(6)  # something newer has come since the first was kept
    timed.go_on(11)
    assert timed.db.rules["pair"].partials == 0
    timed.db.signal("A")
    timed.go_on(9)
    timed.db.signal("B")
    assert timed.go_on(0) == ["pair at 31"]


def test_partial_matches_with_timestamps_long_past_do_not_expire_at_once(timed: Timed) -> None:
    timed.on("pair", adb.seq(adb.event("A"), adb.event("B")).within(10))
    timed.db.signal("A", timestamp=1)
    timed.go_on(9)
    timed.db.signal("B", timestamp=9)
    assert len(timed.ledger.lines()) == 1


def test_rule_on_events_of_two_streams_follows_the_clock(timed: Timed) -> None:
    for name in ("s1", "s2"):
        timed.db.stream(
            name, type="t", timestamp="at", types={f"A{name}": ()}, delay=timedelta(days=1)
        )
    timed.on("both", adb.seq(adb.event("As1"), ~adb.event("As2")).within(5))
    stream = timed.db.streams["s1"]
    stream.feed([adb.occurrence("As1", timestamp=at(1))], punctuation=at(100))
    assert timed.go_on(5) == []
    assert timed.go_on(1) == ["both at 6"]


def test_query_gives_its_name_and_output_to_the_rule(timed: Timed) -> None:
    seen: list[Any] = []
    pattern = adb.seq(adb.event("A"), ~adb.event("B")).same("k").within(5)
    q1 = adb.query("Q1", pattern, {"key": adb.part("A").k})
    timed.db.rule(on=q1, name="r")(lambda t, o: seen.append((o.name, dict(o.params))))
    timed.db.signal("A", k=7)
    timed.go_on(5)
    assert seen == [("Q1", {"key": 7})]


class FailingClock(adb.SimulatedClock):
    """Clock that raises an error the first times that other threads read it from now on."""

    failures = 0
    is_for_timekeeper = True  # or for the threads of the pool

    def now(self) -> datetime:
        name = threading.current_thread().name
        is_timekeeper = name == "activedb-timekeeper"
        if (
            self.failures
            and name.startswith("activedb-")
            and is_timekeeper == self.is_for_timekeeper
        ):
            self.failures -= 1
            raise OSError("no time to be had")
        return super().now()


def test_thread_goes_on_after_an_unexpected_error(
    where: Place, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FailingClock(EPOCH)
    timed = Timed(where, clock)
    timed.on("every", adb.every(10))
    timed.db.wait_idle()
    clock.failures = 1
    clock.advance(10)
    until(lambda: timed.ledger.lines() or not timed.thread.is_alive())
    assert timed.ledger.lines() == ["every at 10"]
    assert any("tried again" in record.message for record in caplog.records)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_rule_keeps_its_time_though_the_clock_fails_while_it_runs(
    where: Place, failures: int
) -> None:
    clock = FailingClock(EPOCH)
    timed = Timed(where, clock)
    timed.on("every", adb.every(10))
    timed.db.wait_idle()
    clock.is_for_timekeeper = False
    clock.failures = failures
    clock.advance(10)
    until(lambda: not clock.failures)
    for _ in range(failures):
        timed.db.wait_idle()
        clock.advance(2)
    until(timed.ledger.lines)
    assert timed.ledger.lines() == ["every at 10"]


def test_unexpected_error_of_one_rule_keeps_no_other_from_its_time(
    timed: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = ["bad"]
    keeper = timed.db._timekeeper
    start = keeper._start

    def fail_once(subscription: Any, due_us: int) -> None:
        if due_us > EPOCH.timestamp() * 1_000_000 and subscription.rule.name in failing:
            failing.clear()
            raise OSError("no thread to be had")
        start(subscription, due_us)

    timed.on("bad", adb.every(10))
    timed.on("good", adb.every(10))
    timed.db.wait_idle()
    monkeypatch.setattr(keeper, "_start", fail_once)
    timed.clock.advance(10)
    until(lambda: not failing)
    timed.db.wait_idle()
    assert timed.ledger.lines() == ["good at 10"]
    timed.clock.advance(2)
    until(lambda: len(timed.ledger.lines()) == 2 or not timed.thread.is_alive())
    assert sorted(timed.ledger.lines()) == ["bad at 10", "good at 10"]


def test_database_closes_while_a_rule_cannot_keep_up_with_its_clock(timed: Timed) -> None:
    """Each tick takes longer than until the next one."""

    @timed.db.rule(on=adb.every(1))
    def slow(t: Transaction, o: Occurrence) -> None:
        timed.clock.advance(2)

    until(lambda: timed.clock.waiting)
    timed.clock.advance(1)
    until(lambda: timed.db.admin.counters().get("rules_fired", 0) > 3)
    timed.db.close()
    assert not timed.thread.is_alive()


def test_predicate_that_waits_for_a_row_stops_no_clock_and_no_figures(timed: Timed) -> None:
    """The expiry of what its detector keeps is due meanwhile."""
    db, a = timed.db, timed.ledger.accounts

    def is_low(t: Transaction, parts: Any) -> bool:
        row = t.get(a, 1)
        return row is not None and row["balance"] < 50

    timed.on("pair", adb.seq(adb.event("A"), adb.event("B")).within(10).reading(is_low))
    timed.on("every", adb.every(20))
    with db.transaction() as t:
        t.insert(a, {"id": 1, "balance": 90})
    timed.go_on(1)
    db.signal("A")
    timed.go_on(1)
    with db.transaction() as t:
        t.update(a, 1, balance=10)
        waiting = in_thread(db.signal, "B")
        until(lambda: lock_waits(db))
        timed.clock.advance(30)
        until(lambda: db.admin.counters().get("rules_fired"))
        db.wait_idle()
    waiting.result(PATIENCE_S)
    assert sorted(timed.go_on(0)) == ["every at 20", "pair at 2"]
    timed.go_on(20)  # the first look notices that B has come
    timed.go_on(20)
    until(lambda: db.rules["pair"].partials == 0)
