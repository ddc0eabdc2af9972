"""Small programs of nested transactions, a line and mostly a thread for each transaction::

    1: X a; offer; spawn 2 3; S a; commit
    2 in 1: S a; X b within 1; commit
    3 in 1: try X b; abort
    4 by 1: X a; await 1; commit
    5: X t/7; cancel 1; commit
    6: S t/x=1; write t/8 x=2; commit

A path is locked in a mode, for ever, *within* some virtual seconds, or at once if at all (*try*,
which goes on without it). *write* locks a row, declares what it becomes, and locks the predicates
that this meets. *spawn* begins children and runs them beside the parent, *run* runs
them one by one on the parent's own thread; *trigger* begins top-level transactions that causally
depend on this one; all other top-level ones have begun before anything runs. *abort* may name an
heir. *for* takes a step of another transaction, on this thread. Whoever commits joins its children
first; whoever is denied, cancelled or out of time cancels and joins those whose fate hangs on its
own, and aborts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import cleandoc
from typing import NamedTuple, TypeAlias

from lockmgr import Deadlock, LockManager, LockTimeout, Mode, WaitCancelled
from tests.lockmgr.judge import Judged
from tests.lockmgr.scheduler import Choose, Scheduler
from tests.lockmgr.wording import path, row

Outcome: TypeAlias = frozenset[str]
"""Ends of all transactions of a run: ``2 denied``."""


class Script(NamedTuple):
    """Steps of one transaction, and whose child (*in*) or dependent (*by*) it is."""

    tie: str
    superior: int
    steps: list[list[str]]


class Program:
    """Program that can run again and again, each time with a manager of its own."""

    def __init__(self, text: str):
        self.text = cleandoc(text)
        self.scripts: dict[int, Script] = {}
        for line in self.text.splitlines():
            head, steps = line.split(": ")
            tid, tie, superior = (*head.split(), "", "0")[:3]
            taken = [step.split() for step in steps.split("; ")]
            self.scripts[int(tid)] = Script(tie, int(superior), taken)

    def ends(self) -> Outcome:
        """Return how everybody means to end."""
        verbs = {"commit": "committed", "abort": "aborted"}
        return frozenset(f"{tid} {verbs[s.steps[-1][0]]}" for tid, s in self.scripts.items())

    def run(
        self, choose: int | Choose, new_manager: Callable[[Scheduler], LockManager] | None = None
    ) -> Outcome:
        """Run one interleaving; fail unless everybody ends, is judged right and leaves nothing."""
        scheduler = Scheduler(choose)
        manager = (new_manager or judged)(scheduler)
        # Its own latch would let no other worker in between two sections that it guards.
        object.__setattr__(manager, "_latch", scheduler.new_latch())
        run = _Run(self.scripts, scheduler, manager)
        try:
            for tid, script in self.scripts.items():
                if not script.tie:
                    manager.begin(tid)
                    run.start(tid)
            scheduler.run()
        except BaseException as error:
            error.add_note(f"{self.text}\n{manager.dump()}")
            raise
        assert manager.dump() == "empty"
        assert not manager._sleepers
        assert not manager._cancelled
        return frozenset(f"{tid} {end}" for tid, end in run.ends.items())


def judged(scheduler: Scheduler, victim: str = "requester") -> LockManager:
    """Return a manager whose table is judged after every call."""
    return LockManager(Judged(victim), new_waiter=scheduler.new_waiter, clock=scheduler.clock)


class _Run:
    """One run: which transactions were started, and how those ended that have."""

    def __init__(self, scripts: dict[int, Script], scheduler: Scheduler, manager: LockManager):
        self.ends: dict[int, str] = {}
        self._scripts = scripts
        self._scheduler = scheduler
        self._manager = manager
        self._joins: dict[int, Callable[[], None]] = {}

    def start(self, tid: int) -> None:
        """Start the worker of a transaction that has begun."""
        self._joins[tid] = self._scheduler.start(partial(self._live, tid))

    def _live(self, tid: int) -> None:
        try:
            for step in self._scripts[tid].steps:
                self._take(tid, step)
        except Deadlock:
            self._give_up(tid, "denied")
        except LockTimeout:
            self._give_up(tid, "timed out")
        except WaitCancelled:
            self._give_up(tid, "cancelled")
        assert tid in self.ends, f"{tid} neither commits nor aborts"

    def _take(self, tid: int, step: list[str]) -> None:
        manager = self._manager
        match step:
            case ["spawn", *children]:
                for child in map(int, children):
                    manager.begin(child, tid)
                    self.start(child)
            case ["run", *children]:
                for child in map(int, children):
                    manager.begin(child, tid, inline=True)
                    self._live(child)
            case ["trigger", *dependents]:
                for dependent in map(int, dependents):
                    manager.begin(dependent, causes=(tid,))
                    self.start(dependent)
            case ["for", other, *other_step]:
                self._take(int(other), other_step)
            case ["await", other]:
                manager.await_end(tid, int(other))
            case ["cancel", other]:
                manager.cancel(int(other))
            case ["offer"]:
                manager.offer(tid)
            case ["downgrade", resource, mode]:
                manager.downgrade(tid, path(resource), None if mode == "none" else Mode[mode])
            case ["write", resource, columns]:
                self._acquire(tid, resource, "X", None)
                table = path(resource)[:-1]
                while predicate := manager.declare(tid, table, [row(columns)]):
                    manager.acquire(tid, (*table, predicate), Mode.IX)
            case ["join"]:
                self._join(tid, ("in",))
            case ["commit"]:
                self._join(tid, ("in",))
                manager.commit(tid)
                self.ends[tid] = "committed"
            case ["abort", *heir]:
                self._give_up(tid, "aborted", *map(int, heir))
            case ["try", mode, resource]:
                self._acquire(tid, resource, mode, 0, give_up=False)
            case [mode, resource, "within", timeout_s]:
                self._acquire(tid, resource, mode, float(timeout_s))
            case [mode, resource]:
                self._acquire(tid, resource, mode, None)
            case _:
                raise AssertionError(f"not a step: {' '.join(step)}")

    def _acquire(
        self, tid: int, resource: str, mode: str, timeout_s: float | None, give_up: bool = True
    ) -> None:
        """Acquire, and ask the table itself, between two turns, whether it agrees."""
        table, wanted = self._manager._table, (path(resource), Mode[mode])
        had = table.holds(tid, *wanted)
        try:
            self._manager.acquire(tid, *wanted, timeout_s)
        except LockTimeout:
            assert table.holds(tid, *wanted) == had, f"{tid} timed out and holds {resource}"
            if give_up:
                raise
        else:
            assert table.holds(tid, *wanted), f"{tid} was granted {resource} and does not hold it"

    def _give_up(self, tid: int, end: str, heir: int | None = None) -> None:
        sphere = {tid}
        for other, script in self._scripts.items():
            if script.superior in sphere:
                sphere.add(other)
                if other in self._joins and other not in self.ends:
                    self._manager.cancel(other)
        self._join(tid, ("in", "by"))
        self._manager.abort(tid, heir)
        self.ends[tid] = end

    def _join(self, tid: int, ties: tuple[str, ...]) -> None:
        """Join the workers that are tied to a transaction or to one of its children."""
        for other, script in self._scripts.items():
            if script.superior == tid and script.tie in ties:
                if "by" in ties:
                    self._join(other, ties)
                if other in self._joins:
                    self._joins[other]()
