"""Detection of the events of a stream, and the moments, that trigger the rules of a program."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple

from activedb.errors import BadEvent, PatternError
from activedb.events import Detector, Occurrence, Undecided, same_candidate
from activedb.scheduling._operations import At, Operation, STransaction
from activedb.scheduling._rules import ProgramRule, Reactions, Triggered

__all__ = ["DECISION", "MOMENT", "Detected", "Detection", "DetectionMark", "OpenChoice"]

MOMENT: Final = "moment"
"""Type of s-transactions triggered by time instead of an event: the end of a window, a clock."""

DECISION: Final = "decision"
"""Type of s-transactions of choices that were left open and then resolved by a caller."""

_AFTER_EVENTS: Final = "\U0010ffff"
"""Placeholder for an id that sorts a moment after all events of its time."""


class OpenChoice(NamedTuple):
    """Choice that a rule's detector leaves open because the order of the events is unknown."""

    rule: str
    undecided: Undecided


class Detected(NamedTuple):
    """Result of detecting over the events up to a punctuation.

    Attributes
    ----------
    transactions : list of STransaction
        In the serial order: one for each event with operations, its own state access followed by
        the rules', and one for each moment at which time alone has completed matches.
    refused : list of (Occurrence, Exception)
        Events for which a pattern raised; no detector has taken them, and they have no
        s-transaction.
    undecided : list of OpenChoice
        Choices that are open now, and were not before.
    decided : list of (OpenChoice, list of int)
        Choices that were open before and are decided now, with the numbers of the candidates
        accepted.
    """

    transactions: list[STransaction]
    refused: list[tuple[Occurrence, Exception]]
    undecided: list[OpenChoice]
    decided: list[tuple[OpenChoice, list[int]]]


class DetectionMark(NamedTuple):
    """Saved state of a `Detection`: detectors with their marks, waiting events, open choices."""

    detectors: list[tuple[ProgramRule, Detector]]
    marks: list[object]
    events: dict[At, Occurrence]
    has_begun: bool
    open: dict[tuple[str, str], OpenChoice]


class Detection:
    """Detectors of a program's rules, fed in the serial order once a punctuation has passed.

    Only events that complete a match get operations, and so locks. These are the accepting events
    of algorithm 1 (Wang et al., appendix B), determined more exactly since the pattern has been
    matched already. Time begins with the first event.

    Parameters
    ----------
    rules : iterable of ProgramRule
    check : callable
        Raises if an operation may not access one of its references.

    Not thread-safe.
    """

    def __init__(self, rules: Iterable[ProgramRule], check: Callable[[Operation], None]):
        self._detectors = [
            (rule, rule.detector()) for rule in sorted(rules, key=lambda rule: -rule.priority)
        ]
        self._check = check
        self._events: dict[At, Occurrence] = {}
        self._has_begun = False
        # Choices already reported, by rule and identity, and the matches made since then.
        self._open: dict[tuple[str, str], OpenChoice] = {}
        self._made: list[Triggered] = []
        # Events fed since the mark, if any, to detectors that keep no log.
        self._fed: list[tuple[Detector, Occurrence]] | None = None

    def accepts(self, event: Occurrence) -> bool:
        """Return whether a rule listens to events like this one."""
        return any(detector.accepts(event) for _, detector in self._detectors)

    def take(self, at: At, event: Occurrence) -> None:
        """Store an event until a punctuation passes its place."""
        self._events[at] = event

    @property
    def undecided(self) -> tuple[OpenChoice, ...]:
        """Choices that were open after the last run."""
        return tuple(self._open.values())

    def run(
        self,
        passed: Iterable[STransaction],
        until_us: int | None,
        behind: Sequence[Occurrence] = (),
    ) -> Detected:
        """Detect over the events that a punctuation has passed.

        Parameters
        ----------
        passed : iterable of STransaction
            One for each event, with the operations of its own state access, possibly none.
        until_us : int, optional
            The punctuation: no earlier event arrives any more. By default, time advances no further
            than the last event.
        behind : sequence of Occurrence
            Events not taken yet that may precede some of the events passed.
        """
        self._made.clear()
        places = self._inexact_places()
        transactions: list[STransaction] = []
        refused: list[tuple[Occurrence, Exception]] = []
        for transaction in sorted(passed, key=lambda t: t.at):
            self._has_begun = True
            transactions += self._moments(transaction.at.us)
            event = self._events.pop(transaction.at, None)
            if event is not None:
                try:
                    later = self._contemporaries(transaction.at, event, places, behind)
                    triggered = self._feed(event, later)
                except Exception as error:
                    refused.append((event, error))
                    continue
                if triggered:
                    reactions = Reactions(triggered, self._check)
                    transaction.operations = (*transaction.operations, reactions)
                elif not transaction.operations:
                    continue
            transactions.append(transaction)
        if until_us is not None:
            transactions += self._moments(until_us)
        undecided, decided = self._look()
        return Detected(transactions, refused, undecided, decided)

    def resolve(
        self, choice: OpenChoice, chosen: Sequence[int], at: At, until_us: int
    ) -> STransaction | None:
        """Resolve an open choice; return the s-transaction of its matches, None if there are none.

        Parameters
        ----------
        choice : OpenChoice
            One of `undecided`.
        chosen : sequence of int
            Numbers of the candidates to accept.
        at : At
            Place of the s-transaction, behind all that was run.
        until_us : int
            As in the last `run`: matches that the decision completes before this time belong to it.

        Raises
        ------
        BadEvent
            If the chosen candidates exclude each other, or are never made without others;
            nothing has changed then.
        """
        rule, detector = next(each for each in self._detectors if each[0].name == choice.rule)
        made = detector.resolve(choice.undecided.identity, chosen)
        made += detector.advance(until_us)
        del self._open[choice.rule, choice.undecided.identity]
        if not made:
            return None
        reactions = Reactions([(rule, o) for o in made], self._check)
        return STransaction(at, DECISION, {}, (reactions,))

    def trim(self, until_us: int) -> None:
        """Discard data that no match ending at or after a time needs; invalidates every `mark`."""
        for _, detector in self._detectors:
            detector.trim(until_us)

    def mark(self) -> DetectionMark:
        """Return a mark of the present state, for `undo`."""
        self._fed = []
        detectors = list(self._detectors)
        marks = [detector.mark() for _, detector in detectors]
        return DetectionMark(
            detectors, marks, dict(self._events), self._has_begun, dict(self._open)
        )

    def undo(self, mark: DetectionMark) -> None:
        """Restore the state of `mark`. REQUIRES: it is the latest mark; no `trim` since."""
        for detector, event in reversed(self._fed or ()):
            detector.withdraw(event)
        self._fed = None
        for (_, detector), last in zip(mark.detectors, mark.marks, strict=True):
            detector.undo(last)
        self._detectors = list(mark.detectors)
        self._events = dict(mark.events)
        self._has_begun = mark.has_begun
        self._open = dict(mark.open)

    def state(self) -> dict[str, Any]:
        """Return the detectors' state by rule, JSON-serialisable; without the waiting events.

        Raises
        ------
        BadEvent
            If an occurrence cannot be encoded.
        """
        detectors = {rule.name: detector.state() for rule, detector in self._detectors}
        state: dict[str, Any] = {"has_begun": self._has_begun, "detectors": detectors}
        if self._open:
            state["told"] = [list(key) for key in self._open]
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a `state`. REQUIRES: nothing was run yet.

        Rules that are missing in it, or whose expression has changed, start afresh.

        Raises
        ------
        BadEvent
            If it cannot be read.
        """
        self._has_begun = state["has_begun"]
        for rule, detector in self._detectors:
            if rule.name in state["detectors"]:
                with suppress(PatternError):  # the rule's expression has changed
                    detector.restore(state["detectors"][rule.name])
        told = {tuple(key) for key in state.get("told", ())}
        self._open = {key: each for key, each in self._found_open().items() if key in told}

    def _found_open(self) -> dict[tuple[str, str], OpenChoice]:
        """Return the choices that are open in the detectors."""
        return {
            (rule.name, undecided.identity): OpenChoice(rule.name, undecided)
            for rule, detector in self._detectors
            for undecided in detector.undecided
        }

    def _look(self) -> tuple[list[OpenChoice], list[tuple[OpenChoice, list[int]]]]:
        """Return the choices opened, and the choices decided, since the last call."""
        before, self._open = self._open, self._found_open()
        undecided = [each for key, each in self._open.items() if key not in before]
        decided = [
            (each, _numbers(each, self._made))
            for key, each in before.items()
            if key not in self._open
        ]
        return undecided, decided

    def _inexact_places(self) -> list[At]:
        """Return the places of all waiting events, in order, if the time of one is an interval."""
        if all(o.low_us == o.high_us for o in self._events.values()):
            return []
        return sorted(self._events)

    def _contemporaries(
        self, at: At, event: Occurrence, places: list[At], behind: Sequence[Occurrence]
    ) -> list[Occurrence]:
        """Return the events still to be fed that may precede this one."""
        if event.low_us == event.high_us:
            return []
        found = []
        for place in islice(places, bisect_right(places, at), None):
            if place.us >= event.high_us:
                break
            found.append(self._events[place])
        return found + [o for o in behind if o.low_us < event.high_us]

    def _feed(self, event: Occurrence, contemporaries: Sequence[Occurrence]) -> list[Triggered]:
        """Return the matches that an event completes; on an error, no detector has taken it."""
        triggered: list[Triggered] = []
        fed: list[Detector] = []
        try:
            for rule, detector in self._detectors:
                triggered += [(rule, o) for o in detector.feed(event, None, contemporaries)]
                fed.append(detector)
                if self._fed is not None and not detector.keeps_log:
                    self._fed.append((detector, event))
        except Exception:
            for detector in fed:
                detector.withdraw(event)
                if self._fed is not None and not detector.keeps_log:
                    self._fed.remove((detector, event))
            raise
        if self._open:
            self._made += triggered
        return triggered

    def _moments(self, before_us: int) -> list[STransaction]:
        """Return one s-transaction for each moment before a time that completes matches."""
        if not self._has_begun:  # clocks start at the first event, whatever the punctuations
            return []
        found: dict[int, list[Triggered]] = {}
        failed: dict[int, Exception] = {}
        for number, (rule, detector) in enumerate(self._detectors):
            if not detector.is_timed:
                continue
            while (due_us := detector.due_us) is not None and due_us < before_us:
                try:
                    completed = detector.advance(due_us + 1)
                except Exception as error:  # raised by a predicate
                    failed.setdefault(due_us, error)
                    detector = _passed_over(rule, detector, due_us + 1)
                    self._detectors[number] = (rule, detector)
                    continue
                for o in completed:
                    found.setdefault(o.us, []).append((rule, o))
                    if self._open:
                        self._made.append((rule, o))
            detector.advance(before_us)
        return [
            STransaction(
                At(us, _AFTER_EVENTS, 0),
                MOMENT,
                {},
                (Reactions(found.get(us, ()), self._check, failed.get(us)),),
            )
            for us in sorted({*found, *failed})
        ]


def _passed_over(rule: ProgramRule, detector: Detector, before_us: int) -> Detector:
    """Return a detector equivalent to one that cannot decide a moment, but advanced past it.

    It keeps all other state, or none if that state cannot be encoded.
    """
    behind = rule.detector()
    with suppress(BadEvent):
        forgiving = rule.detector()
        forgiving.treat_errors_as_false()
        forgiving.restore(detector.state())
        forgiving.advance(before_us)
        behind.restore(forgiving.state())
    return behind


def _numbers(choice: OpenChoice, made: Iterable[Triggered]) -> list[int]:
    """Return the numbers of the candidates that are among the matches made."""
    found = [o.parts for rule, o in made if rule.name == choice.rule]
    return [
        number
        for number, candidate in enumerate(choice.undecided.candidates)
        if any(same_candidate(parts, candidate) for parts in found)
    ]
