"""Run of a program over a stream of events, punctuation by punctuation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter, index
from types import FrameType
from typing import Any

from activedb.errors import BadEvent
from activedb.events import Occurrence
from activedb.functions import typed_text
from activedb.scheduling._detection import Detection, OpenChoice
from activedb.scheduling._operations import At, STransaction
from activedb.scheduling._program import Program
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import SharedState

__all__ = ["FailedOutput", "ProgramRun", "Refusal", "Results", "build_s_transaction", "time_us"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Event without an s-transaction, and the reason."""

    event: Occurrence
    reason: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class FailedOutput:
    """s-transaction that has ended without an output because post-processing raised."""

    transaction: STransaction
    error: Exception


@dataclass(slots=True)
class Results:
    """Results of one feed.

    Attributes
    ----------
    transactions : list of STransaction
        The s-transactions that ended, in the serial order, with their outcomes.
    outputs : list
        The outputs of post-processing, in the same order, without None.
    failed_outputs : list of FailedOutput
        The s-transactions for which post-processing raised.
    refused : list of Refusal
        Events for the dead letters: of an unknown type, too late, or for which pre-processing, the
        state access or a rule's pattern raised.
    dropped : int
        Number of events that pre-processing dropped.
    undecided : list of OpenChoice
        Choices that rules have left open, each listed once, with the rule's name: possible matches
        that the timestamps do not decide. `ProgramRun.undecided` has all open choices.
    """

    transactions: list[STransaction] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    failed_outputs: list[FailedOutput] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    dropped: int = 0
    undecided: list[OpenChoice] = field(default_factory=list)


def build_s_transaction(
    program: Program, event: Occurrence, at: At
) -> STransaction | Refusal | None:
    """Return the s-transaction of an event of one of the program's types.

    None if pre-processing drops the event; a refusal if pre-processing or the state access raises.
    """
    try:
        params = program.parameters(event.name, event.params)
        if params is None:
            return None
        operations = program.operations(event.name, params)
    except Exception as error:  # any error of the user's functions
        return Refusal(event, _reason(error), error)
    return STransaction(at, event.name, params, operations, program)


def _reason(error: Exception) -> str:
    missing = isinstance(error, KeyError) and error.args
    return f"it lacks {error.args[0]!r}" if missing else typed_text(error)


class ProgramRun:
    """Run of a program over events in any order, and punctuations.

    Parameters
    ----------
    program : Program
    scheduler : Scheduler
    state : SharedState, optional
        State to continue with; by default all tables are initial.
    punctuation_us : int or datetime, optional
        Time up to which the program has run already: earlier events are refused.

    Not thread-safe.
    """

    def __init__(
        self,
        program: Program,
        scheduler: Scheduler,
        state: SharedState | None = None,
        punctuation_us: int | datetime | None = None,
    ):
        self.program = program
        self.scheduler = scheduler
        self.state = SharedState(program.tables) if state is None else state
        self.punctuation_us = time_us(punctuation_us, None)
        self._waiting: list[STransaction] = []
        self._ends_us: dict[At, int] = {}  # for events whose times are intervals
        self._arrivals = self.state.last_arrival()
        self._detection = Detection(program.rules, program.check) if program.rules else None

    @property
    def waiting(self) -> int:
        """Number of s-transactions that wait for a punctuation."""
        return len(self._waiting)

    @property
    def undecided(self) -> tuple[OpenChoice, ...]:
        """Choices that rules have left open, and that no later event has decided."""
        return () if self._detection is None else self._detection.undecided

    def feed(
        self,
        events: Iterable[Occurrence],
        punctuation_us: int | datetime | None = None,
        *,
        punctuation: datetime | float | None = None,
    ) -> Results:
        """Take events; run the events that a punctuation has passed.

        All or nothing: if the call raises (Ctrl-C, or a function raised something other than an
        `Exception`), it has no effect and may be repeated; unless `punctuation_us` has moved: then
        everything has taken effect, and only the results are lost. Ctrl-C is delayed until
        detection ends. A second Ctrl-C is not delayed; during the undoing of changes, it may leave
        them half undone.

        Parameters
        ----------
        events : iterable of Occurrence
            In any order.
        punctuation_us : int or datetime, optional
            No earlier event arrives any more: microseconds since the epoch, or an aware datetime.
        punctuation : datetime or seconds, optional
            The same, in the form that `Stream.feed` takes.

        Returns
        -------
        Results

        Raises
        ------
        BadEvent
            If one of the events is not an occurrence, or the punctuation is not a time.
        """
        until_us = time_us(punctuation_us, punctuation)
        known_us = self.punctuation_us
        if until_us is not None and known_us is not None and until_us <= known_us:
            until_us = None
        return self._step(events, until_us, is_last=False)

    def finish(self) -> Results:
        """End the stream and run all waiting s-transactions; all or nothing, as `feed`."""
        return self._step((), None, is_last=True)

    def _step(
        self, events: Iterable[Occurrence], until_us: int | None, *, is_last: bool
    ) -> Results:
        results = Results()
        undo = _Undo(self.scheduler, self.state, self._waiting, self._detection)
        known_us = self.punctuation_us
        passed: list[STransaction] = []
        try:
            waiting, ends_us = list(self._waiting), dict(self._ends_us)
            arrivals = self._arrivals
            for event in events:
                made = self._taken(event, arrivals + 1, results)
                if made is not None:
                    arrivals += 1
                    waiting.append(made)
                    if event.high_us > event.low_us:
                        ends_us[made.at] = event.high_us
            if is_last:
                passed, waiting = waiting, []
                if passed:  # later events must have a later time
                    last_us = max(ends_us.get(t.at, t.at.us) for t in passed)
                    known_us = max(last_us + 1, known_us or last_us + 1)
            elif until_us is not None:
                # Stop at the first event that may be after the punctuation: events
                # yet to come may precede it.
                stop = min(
                    (t.at for t in waiting if ends_us.get(t.at, t.at.us) >= until_us), default=None
                )
                passed = [t for t in waiting if stop is None or t.at < stop]
                waiting = [t for t in waiting if stop is not None and t.at >= stop]
                known_us = until_us
                until_us = until_us if stop is None else min(until_us, stop.us)
            for t in passed:
                ends_us.pop(t.at, None)
            if is_last or until_us is not None:
                self._run(passed, results, until_us, undo)
            done = known_us, waiting, arrivals, ends_us
            # In one line, so that Ctrl-C comes either before all assignments or after.
            self.punctuation_us, self._waiting, self._arrivals, self._ends_us = done
        except BaseException:
            with defer_sigint():
                undo()
            raise
        if until_us is not None:
            with defer_sigint():
                if self._detection is not None:
                    self._detection.trim(until_us)
                self.state.trim(At(until_us, "", 0))
        return results

    def _taken(self, event: Occurrence, arrival: int, results: Results) -> STransaction | None:
        """Return the s-transaction of an event; None, noted in the results, if there is none."""
        if not isinstance(event, Occurrence):
            raise BadEvent(
                f"a program is fed occurrences, not {event!r}: make them with "
                "activedb.occurrence(name, timestamp=…, …)"
            )
        is_for_rules = self._detection is not None and self._detection.accepts(event)
        if event.name not in self.program.types and not is_for_rules:
            known = ", ".join(self.program.types)
            reason = f"program {self.program.name} has no state access for it, only for {known}"
            results.refused.append(Refusal(event, reason))
            return None
        if self.punctuation_us is not None and event.low_us < self.punctuation_us:
            reason = f"it came too late: its time is before the punctuation {self.punctuation_us}"
            results.refused.append(Refusal(event, reason))
            return None
        at = At(event.low_us, event.id or "", arrival)
        made = build_s_transaction(self.program, event, at)
        if made is None:
            results.dropped += 1
            return None
        if isinstance(made, Refusal):
            results.refused.append(made)
            return None
        if self._detection is not None and is_for_rules:
            self._detection.take(at, event)
        return made

    def _run(
        self,
        passed: list[STransaction],
        results: Results,
        punctuation_us: int | None,
        undo: _Undo,
    ) -> None:
        if self._detection is not None:
            with defer_sigint():
                detected = self._detection.run(passed, punctuation_us)
            passed = detected.transactions
            results.refused += [
                Refusal(event, _reason(error), error) for event, error in detected.refused
            ]
            results.undecided += detected.undecided
        undo.passed = passed
        for transaction in passed:
            self.scheduler.add(transaction)
        self.scheduler.run(self.state)
        ended = sorted(passed, key=attrgetter("at"))
        results.transactions += ended
        for t in ended if self.program.post_processes else ():
            assert t.outcome is not None
            try:
                output = self.program.output(t.type, t.params, t.outcome)
            except Exception as error:  # from the user's function; the s-transaction has ended
                results.failed_outputs.append(FailedOutput(t, error))
                continue
            if output is not None:
                results.outputs.append(output)


class _Undo:
    """Undo of the changes that an interrupted step of a run has made.

    Attributes
    ----------
    passed : list of STransaction
        The s-transactions that were given to the scheduler.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        state: SharedState,
        waiting: list[STransaction],
        detection: Detection | None,
    ):
        self.passed: list[STransaction] = []
        self._scheduler = scheduler
        self._state = state
        self._detection = detection
        self._mark = None if detection is None else detection.mark()
        # Detection adds operations to waiting s-transactions.
        self._operations = [] if detection is None else [(t, t.operations) for t in waiting]

    def __call__(self) -> None:
        self._scheduler.discard()
        if self.passed:
            self._state.take_back_all({transaction.at for transaction in self.passed})
        for transaction in self.passed:
            transaction.outcome = None
        for transaction, operations in self._operations:
            transaction.operations = operations
        if self._detection is not None and self._mark is not None:
            self._detection.undo(self._mark)


def time_us(punctuation_us: Any, punctuation: Any) -> int | None:
    """Return a punctuation in microseconds; it may be given in the forms of `Stream.feed` too.

    Raises
    ------
    BadEvent
        If it is neither microseconds nor a datetime nor seconds, naive, not within the years 1 to
        9999, or given twice.
    """
    if punctuation is not None and punctuation_us is not None:
        raise BadEvent("a punctuation is given once: as punctuation_us, or as punctuation")
    if punctuation is not None:
        return Occurrence("punctuation", punctuation).us
    if punctuation_us is None:
        return None
    if isinstance(punctuation_us, datetime):
        return Occurrence("punctuation", punctuation_us).us
    if type(punctuation_us) is not int and not hasattr(punctuation_us, "dtype"):
        raise BadEvent(
            "punctuation_us takes whole microseconds or an aware datetime, not "
            f"{punctuation_us!r}: give seconds as punctuation="
        )
    try:
        return index(punctuation_us)
    except TypeError:
        raise BadEvent(
            f"punctuation_us takes whole microseconds, not {punctuation_us!r}: give seconds as "
            "punctuation="
        ) from None


# -- deferral of Ctrl-C over blocks that must not be interrupted halfway ---------------------------


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Delay a first Ctrl-C until the end of the block; a second one is not delayed.

    Only a SIGINT handler set by Python code is delayed, and only in the main thread: it runs in no
    other.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(came) == 1:
            handler(signal.SIGINT, came[0])
