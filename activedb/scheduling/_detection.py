"""Detection: which events of a stream, and which moments, trigger the rules of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from activedb.errors import BadEvent, PatternError
from activedb.events import Detector, Occurrence
from activedb.scheduling._operations import Operation
from activedb.scheduling._rules import Reactions, Rule, Triggered
from activedb.scheduling._s_transactions import At, STransaction

__all__ = ["MOMENT", "Detection", "Mark"]

MOMENT: Final = "moment"
"""The type of s-transactions that no event triggers but time: the end of a window, a clock."""

_AFTER_EVENTS: Final = "\U0010ffff"
"""In place of an id: a moment comes after all events of its time."""


class Mark(NamedTuple):
    """State of a `Detection`: its detectors, with their marks, and what waits."""

    detectors: list[tuple[Rule, Detector]]
    marks: list[object]
    events: dict[At, Occurrence]
    has_begun: bool


class Detection:
    """The detectors of a program's rules: fed in the serial order, once a punctuation has passed.

    Only what completes a match gets operations, and so locks: that is the accepting event of
    algorithm 1 (Wang et al., appendix B), and more exact, as its pattern has been matched already.
    Time begins with the first event.

    Parameters
    ----------
    rules : iterable of Rule
    check : callable
        Raises if an operation may not access what it names.

    Not thread-safe.
    """

    def __init__(self, rules: Iterable[Rule], check: Callable[[Operation], None]):
        self._detectors = [
            (rule, rule.detector()) for rule in sorted(rules, key=lambda rule: -rule.priority)
        ]
        self._check = check
        self._events: dict[At, Occurrence] = {}
        self._has_begun = False
        # Since the mark, if there is one: what detectors were fed that keep no log.
        self._fed: list[tuple[Detector, Occurrence]] | None = None

    def accepts(self, event: Occurrence) -> bool:
        """Whether a rule listens to events like this one."""
        return any(detector.accepts(event) for _, detector in self._detectors)

    def take(self, at: At, event: Occurrence) -> None:
        """Keep an event until its place is passed."""
        self._events[at] = event

    def run(
        self, passed: Iterable[STransaction], until_us: int | None
    ) -> tuple[list[STransaction], list[tuple[Occurrence, Exception]]]:
        """Detect in what a punctuation has passed.

        Parameters
        ----------
        passed : iterable of STransaction
            One for each event, with the operations of its own state access, perhaps none.
        until_us : int, optional
            No event before it comes any more; by default what time completes is not looked for
            beyond the last event.

        Returns
        -------
        transactions : list of STransaction
            In the serial order: those of events with operations, the rules' behind their own; and
            one for each moment at which time alone has completed matches.
        refused : list of (Occurrence, Exception)
            Events that a pattern cannot understand; no detector has seen them, and they have no
            s-transaction.
        """
        transactions: list[STransaction] = []
        refused: list[tuple[Occurrence, Exception]] = []
        for transaction in sorted(passed, key=lambda t: t.at):
            self._has_begun = True
            transactions += self._moments(transaction.at.us)
            event = self._events.pop(transaction.at, None)
            if event is not None:
                try:
                    triggered = self._feed(event)
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
        return transactions, refused

    def trim(self, until_us: int) -> None:
        """Forget what no match ending at or after a time can need; no `mark` holds any more."""
        for _, detector in self._detectors:
            detector.trim(until_us)

    def mark(self) -> Mark:
        """Mark the present state, for `undo`."""
        self._fed = []
        detectors = list(self._detectors)
        marks = [detector.mark() for _, detector in detectors]
        return Mark(detectors, marks, dict(self._events), self._has_begun)

    def undo(self, mark: Mark) -> None:
        """Be again as when it was marked. REQUIRES: that was the last mark; no `trim` since."""
        for detector, event in reversed(self._fed or ()):
            detector.withdraw(event)
        self._fed = None
        for (_, detector), last in zip(mark.detectors, mark.marks, strict=True):
            detector.undo(last)
        self._detectors = list(mark.detectors)
        self._events = dict(mark.events)
        self._has_begun = mark.has_begun

    def state(self) -> dict[str, Any]:
        """What the detectors keep, by rule, for JSON; not the events that wait.

        Raises
        ------
        BadEvent
            If an occurrence cannot be encoded.
        """
        detectors = {rule.name: detector.state() for rule, detector in self._detectors}
        return {"has_begun": self._has_begun, "detectors": detectors}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a `state`. REQUIRES: nothing was run yet.

        Rules that it has not, or whose expression is another one now, begin anew.

        Raises
        ------
        BadEvent
            If it cannot be read.
        """
        self._has_begun = state["has_begun"]
        for rule, detector in self._detectors:
            if rule.name in state["detectors"]:
                with suppress(PatternError):  # it is on something else now
                    detector.restore(state["detectors"][rule.name])

    def _feed(self, event: Occurrence) -> list[Triggered]:
        """What an event completes; if it raises, no detector has taken it."""
        triggered: list[Triggered] = []
        fed: list[Detector] = []
        try:
            for rule, detector in self._detectors:
                triggered += [(rule, o) for o in detector.feed(event)]
                fed.append(detector)
                if self._fed is not None and not detector.keeps_log:
                    self._fed.append((detector, event))
        except Exception:
            for detector in fed:
                detector.withdraw(event)
                if self._fed is not None and not detector.keeps_log:
                    self._fed.remove((detector, event))
            raise
        return triggered

    def _moments(self, before_us: int) -> list[STransaction]:
        """What time completes before a time: an s-transaction for each moment."""
        if not self._has_begun:  # clocks start at the first event, wherever punctuations are
            return []
        found: dict[int, list[Triggered]] = {}
        failed: dict[int, Exception] = {}
        for number, (rule, detector) in enumerate(self._detectors):
            if not detector.is_timed:
                continue
            while (due_us := detector.due_us) is not None and due_us < before_us:
                try:
                    completed = detector.advance(due_us + 1)
                except Exception as error:  # what a predicate raises
                    failed.setdefault(due_us, error)
                    detector = _passed_over(rule, detector, due_us + 1)
                    self._detectors[number] = (rule, detector)
                    continue
                for o in completed:
                    found.setdefault(o.us, []).append((rule, o))
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


def _passed_over(rule: Rule, detector: Detector, before_us: int) -> Detector:
    """A detector like one that cannot decide what time completes, but behind that.

    It keeps all else; or nothing, if what it keeps cannot be written.
    """
    behind = rule.detector()
    with suppress(BadEvent):
        forgiving = rule.detector()
        forgiving.forgive()
        forgiving.restore(detector.state())
        forgiving.advance(before_us)
        behind.restore(forgiving.state())
    return behind
