"""A program over a stream of events, punctuation by punctuation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from activedb.events import Occurrence
from activedb.scheduling._detection import Detection
from activedb.scheduling._program import Program
from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import State

__all__ = ["FailedOutput", "ProgramRun", "Refusal", "Results", "s_transaction_of"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An event that no s-transaction was made of, and why."""

    event: Occurrence
    reason: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class FailedOutput:
    """An s-transaction that has ended, but post-processing raised: it has no output."""

    transaction: STransaction
    error: Exception


@dataclass(slots=True)
class Results:
    """What a feed has brought.

    Attributes
    ----------
    transactions : list of STransaction
        Those that ended, in the serial order, with their outcomes.
    outputs : list
        What post-processing made of them, in that order, without None.
    failed_outputs : list of FailedOutput
        Those of which it made none, as it raised.
    refused : list of Refusal
        Events for the dead letters: of an unknown type, too late, or such that pre-processing, the
        state access or a rule's pattern raised.
    dropped : int
        How many events pre-processing dropped.
    """

    transactions: list[STransaction] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    failed_outputs: list[FailedOutput] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    dropped: int = 0


def s_transaction_of(program: Program, event: Occurrence, at: At) -> STransaction | Refusal | None:
    """What a program makes of an event of one of its types; None: pre-processing drops it.

    A refusal, if pre-processing or the state access raises.
    """
    try:
        params = program.parameters(event.name, event.params)
        if params is None:
            return None
        operations = program.operations(event.name, params)
    except Exception as error:  # whatever the user's functions raise
        return Refusal(event, _reason(error), error)
    return STransaction(at, event.name, params, operations, program)


def _reason(error: Exception) -> str:
    missing = isinstance(error, KeyError) and error.args
    return f"it lacks {error.args[0]!r}" if missing else f"{type(error).__name__}: {error}"


class ProgramRun:
    """Runs a program: events in any order, and punctuations.

    Parameters
    ----------
    program : Program
    scheduler : Scheduler
    state : State, optional
        What to go on with; by default all tables are as at the beginning.
    punctuation_us : int, optional
        Up to where it has been run already: no event before it is taken.

    Not thread-safe.
    """

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        state: State | None = None,
        punctuation_us: int | None = None,
    ):
        self.program = program
        self.scheduler = scheduler
        self.state = State(program.tables) if state is None else state
        self.punctuation_us = punctuation_us
        self._waiting: list[STransaction] = []
        self._arrivals = self.state.last_arrival()
        self._detection = Detection(program.rules, program.check) if program.rules else None

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
            self._run(passed, results, punctuation_us)
            self.state.trim(At(punctuation_us, "", 0))
        return results

    def finish(self) -> Results:
        """The end of the stream: run all that waits."""
        results = Results()
        passed, self._waiting = self._waiting, []
        if passed:  # what is not later comes too late from now on
            last_us = max(t.at.us for t in passed)
            self.punctuation_us = max(last_us + 1, self.punctuation_us or last_us + 1)
        self._run(passed, results, None)
        return results

    def _take(self, event: Occurrence, results: Results) -> None:
        is_for_rules = self._detection is not None and self._detection.accepts(event)
        if event.name not in self.program.types and not is_for_rules:
            known = ", ".join(self.program.types)
            reason = f"program {self.program.name} has no state access for it, only for {known}"
            results.refused.append(Refusal(event, reason))
            return
        if self.punctuation_us is not None and event.us < self.punctuation_us:
            reason = f"it came too late: its time is before the punctuation {self.punctuation_us}"
            results.refused.append(Refusal(event, reason))
            return
        at = At(event.us, event.id or "", self._arrivals + 1)
        made = s_transaction_of(self.program, event, at)
        if made is None:
            results.dropped += 1
        elif isinstance(made, Refusal):
            results.refused.append(made)
        else:
            self._arrivals += 1
            self._waiting.append(made)
            if self._detection is not None and is_for_rules:
                self._detection.take(at, event)

    def _run(
        self, passed: list[STransaction], results: Results, punctuation_us: int | None
    ) -> None:
        if self._detection is not None:
            passed, refused = self._detection.run(passed, punctuation_us)
            results.refused += [Refusal(event, _reason(error), error) for event, error in refused]
        for transaction in passed:
            self.scheduler.add(transaction)
        self.scheduler.run(self.state)
        passed.sort(key=lambda t: t.at)
        for t in passed:
            assert t.outcome is not None
            results.transactions.append(t)
            try:
                output = self.program.output(t.type, t.params, t.outcome)
            except Exception as error:  # the user's function; the s-transaction has ended
                results.failed_outputs.append(FailedOutput(t, error))
                continue
            if output is not None:
                results.outputs.append(output)
