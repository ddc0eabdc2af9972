"""The language of the scenario files: readable steps with what they cause, replayed.

A file has one step per line, ``->`` before what it causes, and whole dumps, indented. It begins
with comments that say what it shows; sections, rules and figures are those of (Saygin, Ulusoy,
Chakravarthy)::

    # A reader waits for the writer.
    # Serves rule 1 (section 3.1).

    begin 1 2
    1 asks X a/7 -> granted
    2 asks S a/7 -> blocked by 1 (held)
    dump
      1
      2 waits for 1 (held)
      a/7: held 1 X; queue 2 S
    1 commits -> 2 granted S a/7

The first step may be a header: ``table`` (which may be left out) or ``manager``, with options as
in ``table victim=smallest hierarchy escalate_at=3``. Another header further down starts afresh.

On both:

=================================  ===============================================================
``begin 1 2``                      top-level; ``begin 2 3 in 1``: children; ``begin 2 in 1 inline``;
                                   ``begin 5 causes 1 2``: causally dependent on 1 and 2
``1 commits``, ``1 aborts``        ``1 aborts for 9``: 9 is the heir
``1 offers``                       downgrades all it holds to none
``1 downgrades a/7 to S``          or ``to none``
``1 holds S a/7``                  yes or no: does it hold a mode that covers S?
``dump``                           forest, waits and locks
``counters``                       those that are not zero; no times
``report``                         the last deadlock report, or error of a call on a thread
=================================  ===============================================================

On a table, which answers at once: ``2 asks S a/7`` and ``2 asks S a/7 nowait`` (granted, blocked,
denied, busy), ``4 awaits 1``, ``2 cancels``, ``2 held``, ``2 retained``. What happens to others
follows: ``3 granted X a/7``, ``3 denied: ...``, ``4 resumed: 1 ended``.

On a manager each of ``2 acquires X a/7``, ``... nowait``, ``... within 5 s`` and ``4 awaits 1``
(with the same endings) is a call on a thread of its own. A step ends when every thread sleeps in
the `Waiter` seam or has come back: with ``granted``, ``timed out``, ``cancelled``, ``deadlock:
...``, or, having slept before, ``2 has X a/7``, ``2 timed out`` and so on. The clock moves by
``5 s pass`` only. ``2 is cancelled`` is the manager's `cancel`.

A call that the protocol refuses is ``-> error: <message>``; the dump must be the same before and
after, as for a busy reply. What would make a line too long is told on lines of its own.

To write the files anew with what happens now, run ``ACTIVEDB_REWRITE_SCENARIOS=1 pytest
tests/lockmgr/test_scenarios.py``, and then review the diff, line by line.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from lockmgr import (
    Blocked,
    Busy,
    Deadlock,
    DeadlockReport,
    Denial,
    Denied,
    Effects,
    Ended,
    Grant,
    LockManager,
    LockTimeout,
    LockUsageError,
    Mode,
    Reply,
    VerifyingLockTable,
    WaitCancelled,
)
from lockmgr._replies import resource_text
from tests.lockmgr import wording
from tests.lockmgr.stage import Stage, Worker
from tests.lockmgr.wording import path, told

__all__ = ["path", "replay"]

OPTION = re.compile(r"(\w+)=(.+?)(?= \w+=|$)")

Happened: TypeAlias = list[str]
"""Effects of a step, each to be written after ``->``."""


def replay(scenario: str) -> str:
    """Play the steps of a scenario; return it with what really happened."""
    script: Script = TableScript()
    lines: list[str] = []
    try:
        for number, line in enumerate(scenario.splitlines(), start=1):
            command = line.split(" -> ")[0].rstrip()
            if line.startswith("  "):
                continue  # what the step above was expected to cause
            if not command or command.startswith("#"):
                lines.append(line)
                continue
            try:
                if command.split()[0] in ("table", "manager"):
                    script.close()
                    script, happened = _open(command)
                    lines += told(command, happened)
                else:
                    lines += script.play(command)
            except Exception as error:
                error.add_note(f"line {number}: {line}")
                raise
    finally:
        script.close()
    return "\n".join(lines) + "\n"


def _open(header: str) -> tuple[Script, Happened]:
    """Start afresh as a header says; if that is refused, with a plain table."""
    kind, _, rest = header.partition(" ")
    options = {name: int(v) if v.isdigit() else v for name, v in OPTION.findall(rest)}
    try:
        return (TableScript if kind == "table" else ManagerScript)(**options), []
    except LockUsageError as error:
        return TableScript(), [f"error: {error}"]


class Script(ABC):
    """Player of steps one by one: those that the table and the manager share."""

    def __init__(self, target: VerifyingLockTable | LockManager):
        self.target = target
        self.report = "none"

    @abstractmethod
    def perform(self, words: list[str]) -> Happened:
        """Do what a step says and tell what happened."""

    @abstractmethod
    def settled(self, effects: Effects | None) -> Happened:
        """Tell what a call that ended did to others."""

    @abstractmethod
    def close(self) -> None:
        """End what still runs."""

    def play(self, command: str) -> list[str]:
        """Return a step's lines, as they should stand in the file."""
        if command in ("dump", "report"):
            text = self.target.dump() if command == "dump" else self.report
            return [command, *(f"  {line}" for line in text.splitlines())]
        before = self.target.dump()
        try:
            happened = self.perform(command.split())
        except LockUsageError as error:
            happened = [f"error: {error}"]
        if happened and happened[0].startswith(("error:", "busy:")):
            assert self.target.dump() == before, "a refused call changed the table"
        return told(command, happened)

    def share(self, words: list[str]) -> Happened:
        """Do a step that the table and the manager share."""
        target = self.target
        match words:
            case ["begin", *rest]:
                tids, parent, options = wording.newcomers(rest)
                for tid in tids:
                    target.begin(tid, parent, **options)
                return []
            case ["counters"]:
                return [wording.counts(target.counters)]
            case [tid, "holds", mode, resource]:
                return ["yes" if target.holds(int(tid), path(resource), Mode[mode]) else "no"]
            case [tid, "downgrades", resource, "to", mode]:
                weaker = None if mode == "none" else Mode[mode]
                return self.settled(target.downgrade(int(tid), path(resource), weaker))
            case [tid, "aborts", "for", heir]:
                return self.settled(target.abort(int(tid), int(heir)))
            case [tid, ("commits" | "aborts" | "offers") as verb]:
                return self.settled(getattr(target, verb.removesuffix("s"))(int(tid)))
        raise AssertionError(f"not a step: {' '.join(words)}")


class TableScript(Script):
    """Player of steps on a verifying table, which answers at once."""

    def __init__(self, **options: Any):
        self.table = VerifyingLockTable(**options)
        super().__init__(self.table)

    def close(self) -> None:
        pass

    def perform(self, words: list[str]) -> Happened:
        table = self.table
        match words:
            case [tid, "asks", mode, resource]:
                return self._reply(int(tid), table.request(int(tid), path(resource), Mode[mode]))
            case [tid, "asks", mode, resource, "nowait"]:
                return self._reply(
                    int(tid), table.request(int(tid), path(resource), Mode[mode], wait=False)
                )
            case [tid, "awaits", of]:
                return self._reply(int(tid), table.await_end(int(tid), int(of)))
            case [tid, "cancels"]:
                return self.settled(table.cancel(int(tid)))
            case [tid, "held"]:
                return [wording.locks(table.held(int(tid)))]
            case [tid, "retained"]:
                return [wording.locks(table.retained(int(tid)))]
        return self.share(words)

    def settled(self, effects: Effects | None) -> Happened:
        return [self._effect(effect) for effect in effects or ()]

    def _reply(self, tid: int, reply: Reply) -> Happened:
        if isinstance(reply, Busy):
            return [f"busy: {wording.waits(reply.edges)}"]
        if isinstance(reply, Blocked):
            own = f"blocked by {wording.waits(self.table.edges(tid))}"
        elif isinstance(reply, Denied):
            own = f"denied: {self._cycle(reply.report)}"
        else:
            own = "granted"
        return [own, *self.settled(reply.effects)]

    def _effect(self, effect: Grant | Denial | Ended) -> str:
        if isinstance(effect, Grant):
            return f"{effect.tid} granted {effect.mode.name} {resource_text(effect.resource)}"
        if isinstance(effect, Ended):
            return f"{effect.tid} resumed: {effect.of} ended"
        return f"{effect.tid} denied: {self._cycle(effect.report)}"

    def _cycle(self, report: DeadlockReport) -> str:
        self.report = report.text()
        return wording.cycle(report)


class ManagerScript(Script):
    """Player of steps on a manager, each blocking call on a thread of its own."""

    def __init__(self, **options: Any):
        self.stage = Stage()
        self.manager = LockManager(
            VerifyingLockTable(**options),
            new_waiter=self.stage.new_waiter,
            clock=self.stage.clock,
        )
        super().__init__(self.manager)
        self.away: dict[Worker, tuple[str, str]] = {}

    def close(self) -> None:
        self.stage.close()

    def perform(self, words: list[str]) -> Happened:
        manager = self.manager
        match words:
            case [tid, "acquires", mode, resource, *limit]:
                call = partial(
                    manager.acquire, int(tid), path(resource), Mode[mode], wording.timeout_s(limit)
                )
                return self._send(tid, call, f"has {mode} {resource}")
            case [tid, "awaits", of, *limit]:
                call = partial(manager.await_end, int(tid), int(of), wording.timeout_s(limit))
                return self._send(tid, call, "resumed")
            case [tid, "is", "cancelled"]:
                manager.cancel(int(tid))
                return self.settled(None)
            case [seconds, "s", "pass"]:
                self.stage.pass_time(float(seconds))
                return self.settled(None)
        return self.share(words)

    def settled(self, effects: Effects | None) -> Happened:
        self.stage.settle()
        back = [worker for worker in self.stage.ended if worker in self.away]
        away = ((worker, *self.away.pop(worker)) for worker in back)
        return [f"{tid} {self._outcome(worker, success)}" for worker, tid, success in away]

    def _send(self, tid: str, call: Callable[[], None], success: str) -> Happened:
        """Make a call on a thread of its own; tell how far it got, and what it did to others."""
        worker = self.stage.start(call)
        self.stage.settle()
        if worker.ended:
            own = self._outcome(worker, "granted")
        else:
            own = "waits"
            self.away[worker] = tid, success
        return [own, *self.settled(None)]

    def _outcome(self, worker: Worker, success: str) -> str:
        error = worker.error
        if error is None:
            return success
        if not isinstance(error, Deadlock | LockTimeout | WaitCancelled):
            raise error
        self.report = str(error)
        if isinstance(error, Deadlock):
            return f"deadlock: {wording.cycle(error.report)}"
        return "timed out" if isinstance(error, LockTimeout) else "cancelled"
