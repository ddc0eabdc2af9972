"""Processes taken for dead: a firing that two of them run at once takes effect once."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

import activedb as adb
from tests.databases import PATIENCE_S, in_thread, until
from tests.ledger import declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

_HOLDERS = (
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND mode = 'ExclusiveLock' AND (classid::bigint << 32) | objid::bigint = :number"
)


def taken_over(ours: Ledger, other: Ledger) -> int:
    """Let a process take over the firings of one that stays alive; return how many it started.

    The lease is lost with its connection. The process takes it again with whatever it records, so
    it may have to be cut more than once.
    """
    number = {"number": ours.db._store.lease.number}

    def holder() -> Any:
        with ours.db._store.short() as connection:
            return connection.scalar(text(_HOLDERS), number)

    def cut() -> None:
        pid = holder()
        if pid is not None:
            with ours.db._store.short() as connection:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            until(lambda: holder() != pid)

    taken = 0
    while not taken:
        cut()
        taken = other.db.recover()
    return taken


@dataclass
class Process:
    """Process with the rules of a test, and gates before the end of its firings of one rule."""

    ledger: Ledger
    at_gate: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    has_begun: threading.Event = field(default_factory=threading.Event)

    def rule(
        self,
        name: str,
        on: str,
        coupling: str = "detached",
        raises: str = "",
        *,
        is_gated: bool = False,
        begins_gated: bool = False,
        fails: bool = False,
    ) -> None:
        """Define a rule that writes its name, and may wait, raise an event, wait, and fail."""

        def wait() -> None:
            self.at_gate.set()
            assert self.gate.wait(PATIENCE_S)

        @self.ledger.db.rule(on=adb.event(on), coupling=coupling, name=name)
        def rule(t: Transaction, o: Occurrence) -> None:
            if begins_gated:
                self.has_begun.set()
                wait()
            self.ledger.write(t, name)
            if raises:
                self.ledger.db.signal(raises)
            if is_gated:
                wait()
            if fails:
                raise ValueError("as it must")

    def end(self) -> None:
        """Let the firings at the gate end, and wait for all."""
        self.gate.set()
        self.ledger.db.wait_idle()


def end(began: Any, first: Process, second: Process) -> None:
    """Let two processes end, one after the other, and what began it all."""
    for process in (first, second):
        process.end()
    began.result(PATIENCE_S)
    for process in (first, second):
        process.end()


def feed(process: Process, name: str, second: float) -> None:
    """Feed a stream with one event, to its end."""
    db = process.ledger.db
    stream = db.streams["input"] if "input" in db.streams else declare(db)
    stream.feed([event(name, second)])


def of_stream(process: Process) -> Any:
    """Feed a stream, whose part triggers the first rule."""
    return in_thread(feed, process, "A", 1)


def of_workflow(process: Process) -> Any:
    """Feed a workflow, whose program triggers the first rule."""
    db = process.ledger.db
    workflow = db.workflow("flow", sources="calls")

    @workflow.program(reads="calls")
    def signal(t: Transaction, batch: Any) -> None:
        db.signal("A")

    return in_thread(db.workflows.open("flow").feed, "calls", [{"n": 1}])


def of_signal(process: Process) -> Any:
    """Raise the event of the first rule outside of transactions."""
    return in_thread(process.ledger.db.signal, "A")


def of_open_work(process: Process) -> Any:
    """Raise it in a transaction that commits only after the gate."""

    def work(t: Transaction) -> None:
        process.ledger.db.signal("A")
        assert process.gate.wait(PATIENCE_S)

    return in_thread(process.ledger.db.run, work)


CHAINS: dict[str, tuple[Callable[[Process], Any], tuple[str, ...], int]] = {
    "second rule below a stream": (of_stream, ("detached", "detached"), 1),
    "first rule of a signal": (of_signal, ("detached",), 0),
    "second rule of a signal": (of_signal, ("detached", "detached"), 1),
    "rule above another one": (of_signal, ("detached", "detached"), 0),
    "rule above two": (of_signal, ("detached", "detached", "detached"), 0),
    "rule below a causal one begun early": (of_open_work, ("causal", "detached"), 1),
    "rule below a causal one of a rule": (of_signal, ("detached", "causal", "detached"), 2),
    "rule above a causal one": (of_signal, ("detached", "causal", "detached"), 0),
    "rule above two causal ones": (of_signal, ("detached", "causal", "causal", "detached"), 0),
}
"""Chains by name: what begins one, the modes of its rules, and the number of the gated one."""


@pytest.mark.long
@pytest.mark.parametrize("length", [1, 190])
@pytest.mark.parametrize("first", ["the process taken for dead", "the one that took over"])
@pytest.mark.parametrize("chain", CHAINS)
def test_firing_in_two_processes_at_once_takes_effect_once(
    there: Place, chain: str, first: str, length: int
) -> None:
    begin, modes, gated = CHAINS[chain]
    ours, other = (Process(open_ledger(there.open(threads=8))) for _ in range(2))
    names = [f"{number}{'x' * length}" for number in range(len(modes))]
    for process in (ours, other):
        for number, mode in enumerate(modes):
            on, raises = "A" if number == 0 else f"E{number}", f"E{number + 1}"
            is_gated = number == gated
            process.rule(names[number], on, mode, raises, is_gated=is_gated)
    began = begin(ours)
    assert ours.at_gate.wait(PATIENCE_S)
    ended = {
        name
        for name, mode in list(zip(names, modes, strict=True))[gated + 1 :]
        if mode == "detached"
    }
    if ended:
        until(lambda: ended <= set(other.ledger.lines()))
    taken_over(ours.ledger, other.ledger)
    assert other.at_gate.wait(PATIENCE_S)
    end(began, *((ours, other) if first == "the process taken for dead" else (other, ours)))
    assert sorted(ours.ledger.lines()) == names
    assert ours.ledger.letters() == []
    for process in (ours, other):
        process.ledger.db.recover()
    feed(ours, "B", 9)
    assert ours.ledger.pending() == []


@pytest.mark.long
@pytest.mark.parametrize("late", ["the process taken for dead", "the one that took over"])
@pytest.mark.parametrize(
    ("begin", "mode"),
    [
        (of_signal, "detached"),
        (of_signal, "causal"),
        (of_stream, "detached"),
        (of_workflow, "detached"),
    ],
)
def test_what_a_firing_triggers_after_another_process_has_ended_it_takes_effect_once(
    there: Place, begin: Callable[[Process], Any], mode: str, late: str
) -> None:
    ours, other = (Process(open_ledger(there.open(threads=8))) for _ in range(2))
    is_ours_late = late == "the process taken for dead"
    for process in (ours, other):
        is_late = is_ours_late is (process is ours)
        process.rule("0", "A", mode, "B", is_gated=not is_late, begins_gated=is_late)
        process.rule("1", "B")
    if is_ours_late:
        other.gate.set()
    began = begin(ours)
    assert ours.at_gate.wait(PATIENCE_S)
    if not is_ours_late:
        until(lambda: other.ledger.lines() == ["1"])
    until(lambda: any(row["rule"] == "0" for row in ours.ledger.pending()))
    taken_over(ours.ledger, other.ledger)
    assert other.at_gate.wait(PATIENCE_S)
    end(began, *((other, ours) if is_ours_late else (ours, other)))
    assert sorted(ours.ledger.lines()) == ["0", "1"]
    assert ours.ledger.letters() == []
    feed(ours, "C", 9)
    assert ours.ledger.pending() == []


@pytest.mark.long
@pytest.mark.parametrize("late", ["the process taken for dead", "the one that took over"])
@pytest.mark.parametrize("begin", [of_signal, of_stream, of_workflow])
def test_what_an_early_rule_triggers_after_the_end_of_its_cause_elsewhere_takes_effect_once(
    there: Place, begin: Callable[[Process], Any], late: str
) -> None:
    """A causal rule begins beside the firing that triggers it."""
    ours, other = (Process(open_ledger(there.open(threads=8))) for _ in range(2))
    is_ours_late = late == "the process taken for dead"
    for process in (ours, other):
        is_late = is_ours_late is (process is ours)
        process.rule("0", "A", "detached", "B", is_gated=True)
        process.rule("1", "B", "causal", "C", begins_gated=is_late)
        process.rule("2", "C")
    if is_ours_late:
        other.gate.set()
    began = begin(ours)
    if is_ours_late:
        assert ours.has_begun.wait(PATIENCE_S)
    else:
        assert ours.at_gate.wait(PATIENCE_S)
        until(lambda: other.ledger.lines() == ["2"])
    until(lambda: any(row["rule"] == "0" for row in ours.ledger.pending()))
    taken_over(ours.ledger, other.ledger)
    if not is_ours_late:
        assert other.has_begun.wait(PATIENCE_S)
    end(began, *((other, ours) if is_ours_late else (ours, other)))
    assert sorted(ours.ledger.lines()) == ["0", "1", "2"]
    assert ours.ledger.letters() == []
    feed(ours, "D", 9)
    assert ours.ledger.pending() == []


@pytest.mark.long
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("begin", [of_stream, of_workflow])
def test_firing_is_ended_elsewhere_before_its_process_knows_that_its_batch_has_committed(
    there: Place, begin: Callable[[Process], Any], fails: bool
) -> None:
    """The process stands still between the commit and the next step."""
    ours, other = (Process(open_ledger(there.open(threads=8))) for _ in range(2))
    for process in (ours, other):
        process.rule("rule", "A", is_gated=True, fails=fails)
    firings = ours.ledger.db._launcher.batch_firings
    has_committed, go_on = threading.Event(), threading.Event()
    committed, end_of = firings.committed, firings.end_of

    def late(run: Any, **how: Any) -> None:
        has_committed.set()
        assert go_on.wait(PATIENCE_S)
        committed(run, **how)

    def early(firing: str) -> Any:
        try:
            return end_of(firing)
        finally:
            go_on.set()

    firings.committed, firings.end_of = late, early  # type: ignore[method-assign]
    began = begin(ours)
    assert ours.at_gate.wait(PATIENCE_S)
    assert has_committed.wait(PATIENCE_S)
    taken_over(ours.ledger, other.ledger)
    other.end()
    ours.gate.set()
    began.result(PATIENCE_S)
    ours.end()
    assert ours.ledger.lines() == ([] if fails else ["rule"])
    assert len(ours.ledger.letters()) == fails
    assert ours.ledger.pending() == []


@pytest.mark.long
@pytest.mark.parametrize("depth", [1, 3, 16, 60])
@pytest.mark.parametrize("length", [1, 60, 190])
def test_rule_that_triggers_itself_and_is_taken_over_at_any_depth_takes_each_step_once(
    there: Place, depth: int, length: int
) -> None:
    name, steps = "r" * length, depth + 2
    ours, other = (Process(open_ledger(there.open(threads=4))) for _ in range(2))
    other.gate.set()

    def define(process: Process) -> None:
        @process.ledger.db.rule(on=adb.event("E"), coupling="detached", name=name)
        def rule(t: Transaction, o: Occurrence) -> None:
            step = o.params["step"]
            process.ledger.write(t, f"{step:03}")
            if step < steps:
                process.ledger.db.signal("E", step=step + 1)
            if step == depth:
                process.at_gate.set()
                assert process.gate.wait(PATIENCE_S)

    for process in (ours, other):
        define(process)
    ours.ledger.db.signal("E", step=0)
    assert ours.at_gate.wait(PATIENCE_S)
    until(lambda: ours.ledger.db._launcher.running == 1)  # what it has triggered has ended
    assert taken_over(ours.ledger, other.ledger) == 1
    other.end()
    ours.end()
    assert sorted(other.ledger.lines()) == [f"{step:03}" for step in range(steps + 1)]
    for process in (ours, other):
        process.ledger.db.recover()
    assert ours.ledger.pending() == []
