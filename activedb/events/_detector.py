"""The incremental evaluator of one event expression."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent, PatternError
from activedb.events._expressions import Disjunction, Expression, Negation, Primitive, Sequence
from activedb.events._history import Entry, History
from activedb.events._occurrence import Occurrence

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Detector"]


class Detector:
    """Finds the matches of one expression in events fed one at a time.

    Every combination of events that fulfils the expression is a match (context unrestricted,
    selection any match). Matches are produced only when the event of the last part is fed, and
    only against what has been fed, and neither withdrawn nor trimmed, by then: an event fed late
    takes its place in the history, but changes no match that was produced before.

    Not thread-safe. REQUIRES, of every method: the caller holds whatever latch guards the
    detector.

    Parameters
    ----------
    expression : Expression
        What to look for.
    name : str, optional
        The name of the composite occurrences; the expression's repr by default.

    Raises
    ------
    PatternError
        If `expression` cannot stand on its own.

    Attributes
    ----------
    expression : Expression
        As given.
    horizon_us : int or None
        How far before the end of a match its events reach: the window. None without a window;
        0 for a primitive expression and a disjunction of some, which retain nothing.
    """

    def __init__(self, expression: Expression, *, name: str | None = None):
        if isinstance(expression, Expression):
            expression.check()
        self._sequence: Sequence | None = None
        if isinstance(expression, Sequence):
            self._sequence = expression
            parts: tuple[Primitive | Negation, ...] = expression.parts
            self.horizon_us = expression.window_us
        elif isinstance(expression, Primitive):
            parts = (expression,)
            self.horizon_us = 0
        elif isinstance(expression, Disjunction):
            parts = expression.parts
            self.horizon_us = 0
        else:
            raise PatternError(
                f'a detector takes an event expression, such as event("EXIT"), not {expression!r}'
            )
        self.expression: Expression = expression
        self._name = name or repr(expression)
        self._names: list[str] = []  # of the positive parts: one per stage
        # By event key: the primitive, its stage, and whether it is negated (right before) there.
        self._listeners: dict[tuple[str, str], list[tuple[Primitive, int, bool]]] = {}
        for part in parts:
            negated = isinstance(part, Negation)
            primitive = part.operand if isinstance(part, Negation) else part
            listeners = self._listeners.setdefault(primitive.key, [])
            listeners.append((primitive, len(self._names), negated))
            if not negated:
                self._names.append(primitive.name)
        self._histories: dict[tuple[object, ...], History] = {}
        # Never filled: what the first event of an equivalence key meets.
        self._no_history = History((), len(self._names))
        # (time, serial, history): every history stands here once at its due_us, which is no later
        # than its oldest event; an entry at another time is a leftover.
        self._expiry: list[tuple[int, int, History]] = []
        self._serials = count()
        self._partials = 0

    @property
    def partials(self) -> int:
        """The number of events retained because a later match may need them."""
        return self._partials

    def accepts(self, o: Occurrence) -> bool:
        """Whether the expression listens to events like `o`; if not, feeding it does nothing."""
        return o.key in self._listeners

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Take `o` into the history and return the matches that it completes.

        Parameters
        ----------
        o : Occurrence
            Of any key; of any time, but the caller has promised with `trim` that no match ends
            before the trimmed time any more.

        Returns
        -------
        list of Occurrence
            For a primitive expression or a disjunction ``[o]`` or nothing. For a sequence its
            composite occurrences, ordered by the (time, id, arrival) of their first parts, then of
            their second parts, and so on. Each has the timestamp of `o`, the constituents as
            ``parts``, and their parameters merged in time order, later ones winning.

        Raises
        ------
        BadEvent
            If `o` lacks an attribute of ``same`` or its value cannot be compared, or an update
            lacks a column. What a predicate raises passes through. Nothing has changed then.

        Notes
        -----
        Complexity: see `History.completed_by`; O(log n) to find the place of `o` among n
        retained events of its equivalence key (and a memory move if it is not the latest).
        """
        taken: set[int] = set()
        forbidden: set[int] = set()
        for primitive, stage, negated in self._listeners.get(o.key, ()):
            if primitive.takes(o):
                (forbidden if negated else taken).add(stage)
        if not taken and not forbidden:
            return []
        if self._sequence is None:
            return [o]
        key = self._equivalence_key(o)
        entry = (o.us, o.id or "", next(self._serials), o)
        # The search comes before the insertion, so that an error leaves the history as it was;
        # its result is the same, as no event follows or precedes itself strictly.
        matches: list[Occurrence] = []
        last_stage = len(self._names) - 1
        if last_stage in taken:
            taken.remove(last_stage)
            history = self._histories.get(key, self._no_history)
            found = history.completed_by(entry, self.horizon_us)
            matches = [c for s in found if (c := self._composite(s)) is not None]
        if taken or forbidden:
            self._retain(key, entry, taken, forbidden)
        return matches

    def withdraw(self, o: Occurrence) -> None:
        """Undo the feeding of `o` (this very object), as if it had never been fed.

        Fed more than once, its last feeding is undone. Nothing happens if `o` is not retained:
        never fed, trimmed, or of no use to a later match. Matches already produced are the
        caller's to take back.

        Complexity: that of finding `o` in the history of its equivalence key.
        """
        if self._sequence is None or o.key not in self._listeners:
            return
        try:
            key = self._equivalence_key(o)
        except BadEvent:  # then no feeding of it ever succeeded
            return
        history = self._histories.get(key)
        if history is None or not history.remove(o):
            return
        self._partials -= 1
        if history.oldest_us() is None:
            del self._histories[key]

    def trim(self, before_us: int) -> None:
        """Forget the events that no match ending at or after `before_us` can need.

        The caller promises that every accepting event fed from now on is at or after `before_us`
        (microseconds since the epoch). Without a window nothing can be forgotten.

        Complexity: O(log h) for each of the histories with an expired event, among h; the other
        histories are not visited.
        """
        if self.horizon_us is None:
            return
        cutoff_us = before_us - self.horizon_us
        while self._expiry and self._expiry[0][0] < cutoff_us:
            us, _, history = heappop(self._expiry)
            if us != history.due_us or self._histories.get(history.key) is not history:
                continue
            self._partials -= history.forget(cutoff_us)
            oldest_us = history.oldest_us()
            if oldest_us is None:
                del self._histories[history.key]
            else:
                self._expire(history, oldest_us)

    def _equivalence_key(self, o: Occurrence) -> tuple[object, ...]:
        attributes = () if self._sequence is None else self._sequence.attributes
        return tuple([_attribute(o, name) for name in attributes])

    def _retain(
        self, key: tuple[object, ...], entry: Entry, taken: Iterable[int], forbidden: Iterable[int]
    ) -> None:
        history = self._histories.get(key)
        new = history is None
        if history is None:
            history = self._histories[key] = History(key, len(self._names))
        history.add(entry, taken, forbidden)
        self._partials += 1
        if self.horizon_us is not None and (new or entry[0] < history.due_us):
            self._expire(history, entry[0])

    def _expire(self, history: History, due_us: int) -> None:
        history.due_us = due_us
        heappush(self._expiry, (due_us, next(self._serials), history))

    def _composite(self, entries: tuple[Entry, ...]) -> Occurrence | None:
        """Return the composite occurrence of `entries`, None if a predicate does not hold."""
        parts = {name: entry[3] for name, entry in zip(self._names, entries, strict=True)}
        if self._sequence is not None and self._sequence.predicates:
            shown = MappingProxyType(parts)
            if not all(predicate(shown) for predicate in self._sequence.predicates):
                return None
        params: dict[str, Any] = {}
        for part in parts.values():
            params.update(part.params)
        return Occurrence(self._name, entries[-1][3].timestamp, params, parts=parts)


def _attribute(o: Occurrence, name: str) -> object:
    """Return the parameter `name` of `o` as part of an equivalence key."""
    try:
        value = o.params[name]
    except KeyError:
        raise BadEvent(
            f"{o!r} has no parameter {name!r}, which must be the same in all parts of the pattern"
        ) from None
    try:
        hash(value)
        # A dictionary takes an object to be equal to itself, which NaN is not.
        comparable = bool(value == value)
    except TypeError:
        comparable = False
    if not comparable:
        raise BadEvent(
            f"parameter {name!r} of {o!r} must be the same in all parts of the pattern, but its "
            "value cannot be compared: use a hashable value that is equal to itself"
        )
    return value
