"""Whatever waits for a row, an operator can look at everything meanwhile."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.scheduling import Program, SharedTable
from tests.databases import PATIENCE_S, in_thread, until, waits_at_the_server
from tests.ledger import EPOCH, at, event
from tests.monitor.conftest import Watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.databases import Place

READS = adb.seq(adb.event("A"), adb.event("B"))


def takes(watched: Watched) -> Callable[..., Any]:
    """Return an action, or the function of a program, that waits for account 1."""

    def take(t: adb.Transaction, *args: Any) -> Any:
        t.update(watched.accounts, 1, balance=0)

    return take


def by_signal(watched: Watched, **options: Any) -> Callable[[], Any]:
    watched.db.rule(on=adb.event("B"), name="rule", **options)(takes(watched))
    return lambda: watched.db.signal("B")


def by_predicate(watched: Watched) -> Callable[[], Any]:
    def is_low(t: adb.Transaction, parts: Any) -> bool:
        row = t.get(watched.accounts, 1)
        return row is not None and row["balance"] < 5

    watched.db.rule(on=READS.reading(is_low), name="rule")(lambda t, o: None)
    watched.db.signal("A")
    clock_of(watched).advance(1)
    return lambda: watched.db.signal("B")


def by_predicate_of_a_stream(watched: Watched) -> Callable[[], Any]:
    stream = watched.db.stream("events", types={"A": (), "B": ()})
    by_predicate(watched)
    stream.feed([event("A", 1)], punctuation=at(2))
    return lambda: stream.feed([event("B", 3)], punctuation=at(4))


def by_timed_predicate(watched: Watched) -> Callable[[], Any]:
    def is_low(t: adb.Transaction, parts: Any) -> bool:
        row = t.get(watched.accounts, 1)
        return row is not None and row["balance"] < 5

    absent = adb.seq(adb.event("A"), ~adb.event("C")).within(5).reading(is_low)
    watched.db.rule(on=absent, name="rule")(lambda t, o: None)
    watched.db.signal("A")
    return lambda: clock_of(watched).advance(10)


def by_clock(watched: Watched) -> Callable[[], Any]:
    watched.db.rule(on=adb.every(10), name="rule")(takes(watched))
    watched.db.wait_idle()
    return lambda: clock_of(watched).advance(10)


def by_stream(watched: Watched) -> Callable[[], Any]:
    stream = watched.db.stream("events", types={"B": ()})
    watched.db.rule(on=adb.event("B"), name="rule")(takes(watched))
    return lambda: stream.feed([event("B", 1)])


def by_workflow(watched: Watched) -> Callable[[], Any]:
    workflow = watched.db.workflow("flow", sources="calls")
    workflow.program(reads="calls")(takes(watched))
    run = watched.db.workflows.open("flow")
    return lambda: run.feed("calls", [{"n": 1}])


def by_program(watched: Watched) -> Callable[[], Any]:
    """Wait at the commit, for a writer that does not know of activedb."""
    totals = SharedTable("totals", key=int, initial=0)
    program = Program("adding", [totals])

    @program.on("B")
    def add(e: Any, access: Any) -> None:
        access.write(totals[1], lambda total: total + 1)

    stream = watched.db.stream("events", types={"B": ()})
    stream.program(program, tables={totals: watched.accounts})
    stream.feed([event("B", 1)])
    return lambda: stream.feed([event("B", 2)])


KINDS: dict[str, Callable[[Watched], Callable[[], Any]]] = {
    **{
        mode: partial(by_signal, coupling=mode)
        for mode in ("immediate", "deferred", "detached", "causal", "sequential")
    },
    "predicate": by_predicate,
    "predicate of a stream": by_predicate_of_a_stream,
    "predicate and time": by_timed_predicate,
    "clock": by_clock,
    "stream": by_stream,
    "workflow": by_workflow,
}


def clock_of(watched: Watched) -> SimulatedClock:
    clock = watched.db._forest.clock
    assert isinstance(clock, SimulatedClock)
    return clock


def looks(watched: Watched) -> dict[str, Callable[[], Any]]:
    """Return what can be looked at, by name."""
    db, monitor = watched.db, watched.monitor
    return {
        "state": monitor.state,
        "stories": lambda: [
            monitor.transaction(node["id"]) for node in monitor.state()["forest"]["shown"]
        ],
        "batches": monitor.batches,
        "letters": monitor.letters,
        "monitor's decisions": monitor.decisions,
        "pending": monitor.pending,
        "counters": db.admin.counters,
        "locks": lambda: db.admin.locks().text(),
        "row counts": db.admin.row_counts,
        "latency": lambda: db.admin.rule_latency_s(0.5),
        "pending firings": db.admin.pending_firings,
        "rules": lambda: [
            (rule.partials, rule.dropped, rule.truncated, rule.undecided)
            for rule in db.rules.list()
        ],
        "analysis": db.rules.analyze,
        "dead letters": db.dead_letters.list,
        "decisions": db.decisions.list,
        "refresh": db.rules.refresh,
        "signal": lambda: db.signal("other"),
        "new rule": lambda: db.rule(on=adb.event("other"), name="other")(lambda t, o: None),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_everything_can_be_seen_while_something_waits_for_a_row(
    where: Place, tmp_path: Path, kind: str
) -> None:
    watched = Watched(where, tmp_path, clock=SimulatedClock(EPOCH))
    wait = KINDS[kind](watched)
    with watched.db.transaction() as t:
        t.update(watched.accounts, 1, balance=1)
        waiting = in_thread(wait)
        until(lambda: watched.db.admin.locks().queue)
        look_at_everything(watched)
    waiting.result(PATIENCE_S)
    watched.db.wait_idle()
    assert not watched.db.admin.locks().queue


@pytest.mark.parametrize("kind", [by_signal, by_predicate, by_stream, by_workflow, by_program])
def test_everything_can_be_seen_while_something_waits_at_the_server(
    there: Place, tmp_path: Path, kind: Callable[[Watched], Callable[[], Any]]
) -> None:
    watched = Watched(there, tmp_path, clock=SimulatedClock(EPOCH))
    wait = kind(watched)
    accounts = watched.accounts
    with watched.db._store.engine.begin() as other:  # as another program would
        other.execute(update(accounts).where(accounts.c.id == 1).values(balance=1))
        waiting = in_thread(wait)
        until(lambda: waits_at_the_server(watched.db))
        look_at_everything(watched)
    waiting.result(PATIENCE_S)


def look_at_everything(watched: Watched) -> None:
    for name, look in looks(watched).items():
        found = in_thread(look)
        until(found.done)
        assert found.exception() is None, name
