"""Feeds that are cut off leave nothing of the batch, and it may be fed again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from activedb.errors import BadEvent
from activedb.events import Occurrence, event, many, occurrence, seq
from activedb.scheduling import Access, Outcome, Program, ProgramRun, SharedTable, View
from activedb.scheduling._scheduler import wait_for
from tests.patience import PATIENCE_S
from tests.scheduling.test_schedulers import SCHEDULERS

WHERE = ("iterable", "pre", "access", "operation", "rule", "post")
EVENTS = [
    occurrence("COUNT", timestamp=n, key="ab"[n % 2], id=f"{n:02}")
    for n in (3, 1, 0, 2, *range(4, 10))
]


class Cut:
    """Cut that raises once, at the call with the number that is set, if any."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.where = ""
        self._latch = threading.Lock()  # several threads of a scheduler may be here at once

    def here(self, where: str) -> None:
        with self._latch:
            if self.left is not None and where == self.where:
                self.left -= 1
                if self.left == 0:
                    self.left = None
                    raise KeyboardInterrupt(where)


def program_of(cut: Cut) -> tuple[Program, SharedTable]:
    counts = SharedTable("counts", key=str, initial=0, history=100)
    program = Program("counting", [counts])

    def plus_one(n: int) -> int:
        cut.here("operation")
        return n + 1

    @program.pre_process
    def pre(type_: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        cut.here("pre")
        return params

    @program.on("COUNT")
    def count(e: Mapping[str, Any], access: Access) -> None:
        cut.here("access")
        access.write(counts[e["key"]], plus_one)

    @program.post_process
    def post(type_: str, params: Mapping[str, Any], outcome: Outcome) -> Any:
        cut.here("post")
        return outcome.results

    pair = seq(event("COUNT", alias="one"), event("COUNT", alias="two")).same("key")
    for name, expression in (
        ("plain", pair.within(3)),
        ("chronicle", pair.context("chronicle")),
        ("skipping", pair.skipping("past_last")),
        ("runs", seq(many(event("COUNT", alias="some"), 2, 3), event("COUNT")).within(4)),
        ("silence", seq(event("COUNT"), ~event("COUNT")).same("key").within(1.5)),
    ):

        def writes(o: Occurrence, name: str = name) -> list[Any]:
            return [counts[name]]

        @program.rule(expression, name=name, writes=writes)
        def matched(t: View, o: Occurrence, name: str = name) -> None:
            cut.here("rule")
            t.write(counts[name], t.read(counts[name]) + 1)

    return program, counts


def shown(run: ProgramRun, table: SharedTable, results: list[Any]) -> Any:
    return (
        run.state.of(table).all(),
        run.waiting,
        run.punctuation_us,
        [
            [(t.at, t.type, repr(t.outcome)) for each in results for t in each.transactions],
            [repr(output) for each in results for output in each.outputs],
            [refusal.reason for each in results for refusal in each.refused],
        ],
    )


@pytest.mark.long
@pytest.mark.parametrize("name", [*SCHEDULERS])
@pytest.mark.parametrize("where", WHERE)
def test_feed_that_is_cut_off_has_taken_nothing_and_may_be_repeated(name: str, where: str) -> None:
    cut = Cut()
    program, table = program_of(cut)
    whole = ProgramRun(program, SCHEDULERS[name](2))
    again = ProgramRun(program, SCHEDULERS[name](2))
    told: list[Any] = []
    for run in (whole, again):
        results = [run.feed(EVENTS[:4], 2_000_000)]
        if run is again:
            before = shown(run, table, [])
            cut.left, cut.where = (4 if where == "operation" else 3), where

            def coming() -> Iterator[Occurrence]:
                for number, each in enumerate(EVENTS[4:]):
                    if number == 3:
                        cut.left = 1 if where == "iterable" else cut.left
                        cut.here("iterable")
                    yield each

            with pytest.raises(KeyboardInterrupt, match=where):
                run.feed(coming(), 7_000_000)
            assert shown(run, table, []) == before
        results.append(run.feed(EVENTS[4:], 7_000_000))
        if run is again:
            before = shown(run, table, [])
            if where in ("operation", "rule", "post"):
                cut.left, cut.where = 2, where
                with pytest.raises(KeyboardInterrupt, match=where):
                    run.finish()
                assert shown(run, table, []) == before
        results.append(run.finish())
        told.append(shown(run, table, results))
    assert told[0] == told[1]


def test_feed_of_what_is_no_occurrence_takes_nothing() -> None:
    program, _table = program_of(Cut())
    run = ProgramRun(program, SCHEDULERS["serial"](1))
    with pytest.raises(BadEvent, match="occurrences, not 7"):
        run.feed([EVENTS[0], 7], 10_000_000)  # type: ignore[list-item]
    assert (run.waiting, run.punctuation_us) == (0, None)


@pytest.mark.parametrize(
    ("given", "us"),
    [
        ({"punctuation_us": 5_000_000}, 5_000_000),
        ({"punctuation_us": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)}, 5_000_000),
        ({"punctuation": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)}, 5_000_000),
        ({"punctuation": 5}, 5_000_000),
        ({"punctuation": 5.25}, 5_250_000),
        ({}, None),
    ],
)
def test_punctuation_is_what_a_database_takes(given: dict[str, Any], us: int | None) -> None:
    program, _ = program_of(Cut())
    run = ProgramRun(program, SCHEDULERS["serial"](1))
    run.feed(EVENTS, **given)
    assert run.punctuation_us == us
    assert run.waiting == (len(EVENTS) if us is None else sum(e.us >= us for e in EVENTS))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"punctuation_us": 2.5}, "whole microseconds"),
        ({"punctuation_us": True}, "whole microseconds"),
        ({"punctuation_us": "soon"}, "whole microseconds"),
        ({"punctuation_us": datetime(2026, 1, 1)}, "naive"),
        ({"punctuation": float("nan")}, "years 1 to 9999"),
        ({"punctuation": "soon"}, "of type str"),
        ({"punctuation": 1, "punctuation_us": 1}, "once"),
    ],
)
def test_punctuation_that_is_no_time_is_refused(given: dict[str, Any], says: str) -> None:
    program, _ = program_of(Cut())
    run = ProgramRun(program, SCHEDULERS["serial"](1))
    with pytest.raises(BadEvent, match=says):
        run.feed(EVENTS, **given)
    assert (run.waiting, run.punctuation_us) == (0, None)


class Interrupting(threading.Thread):
    """A thread; the first attempts to wait for it are interrupted."""

    left = 2

    def join(self, timeout: float | None = None) -> None:
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt
        super().join(timeout)


def test_wait_for_threads_ends_with_the_last_however_often_it_is_interrupted() -> None:
    go_on = threading.Event()
    seen: list[BaseException] = []
    workers = [
        kind(target=go_on.wait, args=(PATIENCE_S,)) for kind in (Interrupting, threading.Thread)
    ]
    never_started = threading.Thread(target=go_on.wait)

    def stop(error: BaseException) -> None:
        seen.append(error)
        if len(seen) == 2:
            go_on.set()

    for worker in workers:
        worker.start()
    wait_for([*workers, never_started], stop)
    assert [type(each) for each in seen] == [KeyboardInterrupt] * 2
    assert not any(worker.is_alive() for worker in workers)
