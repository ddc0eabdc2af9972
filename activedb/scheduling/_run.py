"""A program over a stream of events, punctuation by punctuation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from activedb.events import Occurrence
from activedb.scheduling._program import Program
from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import State

__all__ = ["ProgramRun", "Refusal", "Results"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that no s-transaction was made of, and why."""

    event: Occurrence
    reason: str
    error: Exception | None = None


@dataclass(slots=True)
class Results:
    """What a feed has brought.

    Attributes
    ----------
    transactions : list of STransaction
        Those that ended, in the serial order, with their outcomes.
    outputs : list
        What post-processing made of them, in that order, without None.
    refused : list of Refusal
        Events for the dead letters: of an unknown type, too late, or such that pre-processing or
        the state access raised.
    dropped : int
        How many events pre-processing dropped.
    """

    transactions: list[STransaction] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    dropped: int = 0


class ProgramRun:
    """Runs a program: events in any order, and punctuations.

    Parameters
    ----------
    program : Program
    scheduler : Scheduler
    state : State, optional
        What to go on with; by default all tables are as at the beginning.

    Not thread-safe.
    """

    def __init__(self, program: Program, scheduler: Scheduler, state: State | None = None):
        self.program = program
        self.scheduler = scheduler
        self.state = State(program.tables) if state is None else state
        self.punctuation_us: int | None = None
        self._waiting: list[STransaction] = []
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        """How many s-transactions wait for a punctuation."""
        return len(self._waiting)

    def feed(self, events: Iterable[Occurrence], punctuation_us: int | None = None) -> Results:
        """Take events; run those that a punctuation has passed.

        Parameters
        ----------
        events : iterable of Occurrence
            In any order.
        punctuation_us : int, optional
            No event before it comes any more.

        Returns
        -------
        Results
        """
        results = Results()
        for event in events:
            self._take(event, results)
        if punctuation_us is not None and (
            self.punctuation_us is None or punctuation_us > self.punctuation_us
        ):
            self.punctuation_us = punctuation_us
            passed = [t for t in self._waiting if t.at.us < punctuation_us]
            self._waiting = [t for t in self._waiting if t.at.us >= punctuation_us]
            self._run(passed, results)
            self.state.trim(At(punctuation_us, "", 0))
        return results

    def finish(self) -> Results:
        """The end of the stream: run all that waits."""
        results = Results()
        passed, self._waiting = self._waiting, []
        self._run(passed, results)
        return results

    def _take(self, event: Occurrence, results: Results) -> None:
        if event.name not in self.program.types:
            known = ", ".join(self.program.types)
            reason = f"program {self.program.name} has no state access for it, only for {known}"
            results.refused.append(Refusal(event, reason))
            return
        if self.punctuation_us is not None and event.us < self.punctuation_us:
            reason = f"it came too late: its time is before the punctuation {self.punctuation_us}"
            results.refused.append(Refusal(event, reason))
            return
        try:
            params = self.program.parameters(event.name, event.params)
            if params is None:
                results.dropped += 1
                return
            operations = self.program.operations(event.name, params)
        except Exception as error:  # whatever the user's functions raise
            missing = isinstance(error, KeyError) and error.args
            reason = (
                f"it lacks {error.args[0]!r}" if missing else f"{type(error).__name__}: {error}"
            )
            results.refused.append(Refusal(event, reason, error))
            return
        self._arrivals += 1
        at = At(event.us, event.id or "", self._arrivals)
        self._waiting.append(STransaction(at, event.name, params, operations))

    def _run(self, passed: list[STransaction], results: Results) -> None:
        for transaction in passed:
            self.scheduler.add(transaction)
        self.scheduler.run(self.state)
        passed.sort(key=lambda t: t.at)
        for t in passed:
            assert t.outcome is not None
            results.transactions.append(t)
            output = self.program.output(t.type, t.params, t.outcome)
            if output is not None:
                results.outputs.append(output)
