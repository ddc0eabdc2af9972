"""Detector that takes batches of events in columns and returns matches."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from activedb.columns._arrival import EventTable
from activedb.columns.detect._arrays import CHRONICLE, CONTINUOUS, CUMULATIVE
from activedb.columns.detect._engines import EngineMatches, engine_for
from activedb.columns.detect._keys import KeyNumbers
from activedb.columns.detect._matches import Chunk, Matches
from activedb.columns.detect._plan import SequencePlan, plan_of
from activedb.columns.detect._programs import CompiledCondition, CompiledConditions, why_no_program
from activedb.columns.events import EventColumns, Ints
from activedb.compiler import check_compiler
from activedb.errors import BadEvent
from activedb.events import MATCHES_MAX, Bound, Primitive, too_many
from activedb.events.terms import Term

if TYPE_CHECKING:
    from activedb.events import Expression

__all__ = [
    "ColumnarDetector",
    "EventFilter",
]


_KEYS_MIN = 1024
_KEPT_ROWS_MIN = 65_536


class ColumnarDetector:
    """Detector of one sequence in batches of events in columns.

    The matches are those of a `Detector` fed the same events one by one; within a batch they are in
    the order of their places. State kept between batches is bounded by the events within the
    window. The memory for it grows as needed and is then reused.

    Not thread-safe. REQUIRES, for every method: the caller holds the latch that guards the
    detector.

    Parameters
    ----------
    expression : Expression
        Pattern to detect; `supports` must return None for it.
    name : str, optional
        Name of the composite occurrences; by default the query's name, or the expression's repr.
    matches_max : int, optional
        Upper bound on the matches that one event may complete, 10,000 by default, as for
        `Detector`; None: unbounded. An event that exceeds it is refused.

    Raises
    ------
    PatternError
        If `expression` cannot be detected in columns (the message gives the reason), or if
        `matches_max` is not a number of at least 1.
    ConfigurationError
        If numba is not installed.

    Attributes
    ----------
    expression : Expression
        The expression as given.
    horizon_us : int or None
        Distance from the end of a match back to its earliest possible event: the window.
    rows : int
        Number of events fed so far; the next event gets this row number.
    """

    def __init__(
        self,
        expression: Expression,
        *,
        name: str | None = None,
        matches_max: int | None = MATCHES_MAX,
    ):
        self._plan: SequencePlan = plan_of(expression)
        self._most = Bound(matches_max).most
        check_compiler("detection in columns", "a Detector")
        self.expression = expression
        self.horizon_us = self._plan.expression.window_us
        self._name = name or self._plan.name
        self._keys = KeyNumbers(self._plan.expression.attributes)
        self._engine = engine_for(self._plan)
        self._filters = {
            listener: EventFilter(listener.primitive)
            for listener in self._plan.listeners
            if listener.primitive.predicate is not None
        }
        context = self._plan.context == CUMULATIVE
        self._tuples = [context or kleene for kleene in self._plan.kleene]
        self.rows = 0  # fed so far
        self._keys_max = _KEYS_MIN
        self._last: tuple[int, str] | None = None  # the place of the latest event
        self._chunks: list[Chunk] = []
        self._kept_rows = 0  # in all chunks

    @property
    def partials(self) -> int:
        """Number of events retained because a later match may need them."""
        return self._engine.partials

    def feed(self, events: EventColumns | EventTable) -> Matches:
        """Take a batch and return the matches that its events complete.

        Parameters
        ----------
        events : EventColumns, or a pyarrow table as that of an atomic batch
            In any order within the batch, but none before an event of an earlier batch.

        Raises
        ------
        MatchesExceeded
            If an event completes more than `matches_max` matches. The events before it have been
            taken and their matches are lost. A caller that may need to undo a batch feeds it to a
            copy.
        BadEvent
            If an event is before one of an earlier batch, by time and id, or lacks an attribute of
            ``same`` or of a term, or has a value that cannot be compared. An exception from a
            predicate of a single event propagates. In these cases the detector is unchanged. An
            exception from a function over several events also propagates, but by then the batch has
            been taken.

        Notes
        -----
        Complexity: O(n) for n events in order, else O(n log n). Each event that may complete a
        match also looks at the events of its key within the window. Building k constituents costs
        O(k).
        """
        columns = events if isinstance(events, EventColumns) else EventColumns.of_table(events)
        before = self.rows
        found, at, chunk = self._take(columns, absorbs=False)
        matches = Matches(
            self._plan.names,
            self._name,
            columns.us[at],
            at + before,
            found.rows,
            found.counts,
            self._tuples,
            [*self._chunks, chunk] if len(at) else [],
            self._plan.returns,
        )
        self._keep(chunk)
        if not found.is_whole:
            assert self._most is not None, "without a bound all events are taken"
            raise too_many(self._most, self._name)
        if self._plan.filters and len(matches):
            matches = matches.only(
                [all(judge(o.parts) for judge in self._plan.filters) for o in matches.occurrences()]
            )
            if self._most is not None and _most_together(matches.at) > self._most:
                raise too_many(self._most, self._name)
        return matches

    def absorb(self, events: EventColumns) -> None:
        """Take a batch that another detector of the same expression was fed, without matching.

        To continue from another detector's state, absorb the events that reach back to the horizon
        before feeding any; then pass `use_up` the rows of events that matches have consumed.

        Raises
        ------
        BadEvent
            As for `feed`; the detector is unchanged then.
        """
        _, _, chunk = self._take(events, absorbs=True)
        self._keep(chunk)

    def use_up(self, rows: Ints) -> None:
        """Mark the events of these rows, and no others, as consumed by earlier matches."""
        self._engine.use_up(rows)

    @property
    def uses_up(self) -> bool:
        """True if matches consume their constituents, so that past matches affect the state."""
        return self._plan.context in (CHRONICLE, CONTINUOUS, CUMULATIVE)

    def copy(self) -> ColumnarDetector:
        """Return an independent detector with the same state; O(size of the retained state)."""
        made = copy(self)
        made._keys, made._engine = self._keys.copy(), self._engine.copy()
        made._chunks = list(self._chunks)
        return made

    def _take(self, columns: EventColumns, *, absorbs: bool) -> tuple[EngineMatches, Ints, Chunk]:
        """Let the engine take a batch; return its matches, the completing rows, and the chunk."""
        order = columns.order()
        last = _checked_place(columns, order, self._last)
        masks = self._masks(columns)
        rows = np.flatnonzero(masks) if order is None else order[masks[order] != 0]
        keys_of = self._keys.number(columns, rows)
        self._engine.prepare(columns, rows, masks[rows])
        self._engine.grow(len(self._keys))
        chunk = Chunk(np.arange(self.rows, self.rows + len(columns)), columns)
        # Matches that functions reject don't count, and functions run last.
        most = -1 if self._most is None or absorbs or self._plan.filters else self._most
        found = self._engine.run(
            columns.us[rows], rows + self.rows, keys_of, masks[rows], most, absorbs=absorbs
        )
        self.rows += len(columns)
        self._last = last
        return found, rows[found.at], chunk

    def trim(self, before_us: int) -> None:
        """Forget the events that no match ending at or after `before_us` can need.

        The caller promises that every event fed from now on is at or after `before_us`
        (microseconds since the epoch). Without a window nothing can be forgotten.
        """
        if self._last is None or self._last[0] < before_us:
            self._last = (before_us, "")
        if self.horizon_us is None:
            return
        self._engine.forget(before_us - self.horizon_us)
        self._drop_chunks()

    # -- preparing a batch -----------------------------------------------------------------

    def _masks(self, columns: EventColumns) -> Ints:
        """Return per row the bit mask of the positive and negated parts that take it."""
        by_code = np.zeros(len(columns.keys), np.int64)
        for listener in self._plan.listeners:
            if listener not in self._filters and listener.primitive.key in columns.keys:
                by_code[columns.keys.index(listener.primitive.key)] |= 1 << listener.bit
        masks: Ints = by_code[columns.codes]
        for listener, taking in self._filters.items():
            masks[taking.rows(columns)] |= 1 << listener.bit
        return masks

    # -- retained state --------------------------------------------------------------------

    def _keep(self, chunk: Chunk) -> None:
        """Retain the events of a batch that later matches may need."""
        if len(chunk.rows):
            self._chunks.append(chunk)
            self._kept_rows += len(chunk.rows)
        self._drop_chunks()
        if self._kept_rows > 4 * self.partials + _KEPT_ROWS_MIN:
            rows = np.sort(self._engine.kept_rows())
            self._chunks = [c for chunk in self._chunks if len((c := chunk.only(rows)).rows)]
            self._kept_rows = len(rows)
        if self.horizon_us is not None and len(self._keys) > self._keys_max:
            self._forget_keys()

    def _drop_chunks(self) -> None:
        """Drop the chunks that end before the oldest event in the ring."""
        if not self._engine.partials:
            self._chunks.clear()
            self._kept_rows = 0
            return
        oldest = self._engine.oldest_row
        drop = 0
        while self._chunks[drop].rows[-1] < oldest:
            self._kept_rows -= len(self._chunks[drop].rows)
            drop += 1
        del self._chunks[:drop]

    def _forget_keys(self) -> None:
        """Forget the keys without an event within the window."""
        assert self._last is not None
        assert self.horizon_us is not None
        kept = self._engine.living(len(self._keys), self._last[0] - self.horizon_us)
        self._keys.keep(kept)
        self._engine.keep(kept)
        self._keys_max = max(_KEYS_MIN, 2 * len(kept))


def _most_together(at: Ints) -> int:
    """Return the largest number of matches that one event has completed."""
    return int(np.unique(at, return_counts=True)[1].max(initial=0))


def _checked_place(
    columns: EventColumns, order: Ints | None, last: tuple[int, str] | None
) -> tuple[int, str] | None:
    """Return the place (time, id) of the latest event of a batch; `last` if the batch is empty.

    Parameters
    ----------
    order : array of int64 or None
        The result of `EventColumns.order`.
    last : (int, str) or None
        Place of the latest event of the batches before.

    Raises
    ------
    BadEvent
        If an event of the batch is before `last`.
    """
    if not len(columns):
        return last
    first_row, last_row = (0, -1) if order is None else (int(order[0]), int(order[-1]))
    if last is not None and _place(columns, first_row) < last:
        raise BadEvent(
            f"a batch begins at {int(columns.us[first_row])} µs, before what was fed or trimmed, "
            f"at {last[0]} µs: order the events first, as streams do up to a punctuation"
        )
    return _place(columns, last_row)


def _place(columns: EventColumns, row: int) -> tuple[int, str]:
    id_ = None if columns.ids is None else columns.ids[row].as_py()
    return int(columns.us[row]), id_ or ""


# -- selection of the events in columns that a primitive event takes ---------------------------


class EventFilter:
    """Condition of one primitive event of a stream, evaluated on a whole column at once.

    A term is compiled. Functions, terms that cannot be compiled, and values that compiled code does
    not take are evaluated one by one, as in a `Detector`.

    Parameters
    ----------
    primitive : Primitive
        A primitive event that neither reads the store nor occurs by itself.
    """

    def __init__(self, primitive: Primitive):
        self.primitive = primitive
        self._compiled: CompiledConditions | None = None
        predicate = primitive.predicate
        if (
            isinstance(predicate, Term)
            and not predicate.part_names
            and why_no_program(predicate) is None
        ):
            self._compiled = CompiledConditions((CompiledCondition(predicate, 0),), ())

    def rows(self, columns: EventColumns) -> Ints:
        """Return the rows it takes, in ascending order; exceptions of its predicate propagate.

        Complexity: O(events) without a predicate or with a compiled one; otherwise one object per
        event of its type.
        """
        if self.primitive.key not in columns.keys:
            return np.empty(0, np.int64)
        rows = np.flatnonzero(columns.codes == columns.keys.index(self.primitive.key))
        return rows if self.primitive.predicate is None else rows[self._judged(columns, rows)]

    def _judged(self, columns: EventColumns, rows: Ints) -> npt.NDArray[np.bool_]:
        if self._compiled is not None:
            try:
                return self._compiled.hold(columns, rows)
            except BadEvent:
                pass
        taken: list[Any] = columns.take(rows).to_occurrences()
        return np.fromiter((self.primitive.takes(o) for o in taken), np.bool_, len(rows))
