"""The columnar detector: batches of events in, matches out."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from activedb.columns._event_table import EventTable
from activedb.columns.detect._columns import EventColumns, Ints
from activedb.columns.detect._contexts import CHRONICLE, CONTINUOUS, CUMULATIVE
from activedb.columns.detect._engines import Found, engine_for
from activedb.columns.detect._filter import EventFilter
from activedb.columns.detect._keys import KeyNumbers
from activedb.columns.detect._matches import Chunk, Matches
from activedb.columns.detect._plan import Plan, plan_of
from activedb.compiler import check_compiler
from activedb.errors import BadEvent
from activedb.events import MATCHES_MAX
from activedb.events.detection._bound import Bound, too_many

if TYPE_CHECKING:
    from activedb.events import Expression

__all__ = ["ColumnarDetector", "checked_place"]

_KEYS_MIN = 1024
_KEPT_ROWS_MIN = 65_536


class ColumnarDetector:
    """Finds the matches of one sequence in batches of events in columns.

    It gives the matches that a `Detector` gives that is fed the same events one by one, those of
    each batch in the order of their places. What it keeps from batch to batch is bounded by the
    events within the window, in memory that grows and then is used again.

    Not thread-safe. REQUIRES, of every method: the caller holds whatever latch guards the detector.

    Parameters
    ----------
    expression : Expression
        What to look for: one for which `supports` has no reason why not.
    name : str, optional
        The name of the composite occurrences; by default the query's, or the expression's repr.
    matches_max : int, optional
        As for `Detector`: how many matches one event completes at most, 10,000 by default; None:
        any number. More are refused.

    Raises
    ------
    PatternError
        If the matches of `expression` cannot be found in columns, with the reason; or if
        `matches_max` is no number from 1.
    ConfigurationError
        If numba is not installed.

    Attributes
    ----------
    expression : Expression
        As given.
    horizon_us : int or None
        How far before the end of a match its events reach: the window.
    rows : int
        How many events it has been fed; the next one has this row.
    """

    def __init__(
        self,
        expression: Expression,
        *,
        name: str | None = None,
        matches_max: int | None = MATCHES_MAX,
    ):
        self._plan: Plan = plan_of(expression)
        self._most = Bound(matches_max).most
        check_compiler("detection in columns", "detector_for()")
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
        self._kept_rows = 0  # of all of them

    @property
    def partials(self) -> int:
        """The number of events retained because a later match may need them."""
        return self._engine.partials

    def feed(self, events: EventColumns | EventTable) -> Matches:
        """Take a batch and return the matches that its events complete.

        Parameters
        ----------
        events : EventColumns, or a pyarrow table as that of an atomic batch
            In any order within the batch, but none before an event of an earlier one.

        Raises
        ------
        MatchesExceeded
            If an event completes more than `matches_max` matches. The events before it have been
            taken, and their matches are lost: who may have to take a batch back feeds it to a copy.
        BadEvent
            If an event is before one of an earlier batch, by time and id, or lacks an attribute of
            ``same`` or of a term, or its value cannot be compared; what a predicate of one event
            raises passes through. Nothing has changed then. What a function over several events
            raises passes through, too, but the batch has been taken.

        Notes
        -----
        Complexity: O(n) for n events in order, else O(n log n); each event that may complete a
        match looks at those of its key that are within the window; and O(k) for k constituents.
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
        """Take a batch that another detector of the expression was fed, and match nothing.

        So that this one goes on where that one stands, it absorbs the events that reach back to
        the horizon, before it is fed any, and then `use_up` tells what matches have used up.

        Raises
        ------
        BadEvent
            As `feed`; nothing has changed then.
        """
        _, _, chunk = self._take(events, absorbs=True)
        self._keep(chunk)

    def use_up(self, rows: Ints) -> None:
        """Take the events of these rows, and no others, for used up by matches made before."""
        self._engine.use_up(rows)

    @property
    def uses_up(self) -> bool:
        """Whether matches use up their constituents: what is kept depends on what was made."""
        return self._plan.context in (CHRONICLE, CONTINUOUS, CUMULATIVE)

    def copy(self) -> ColumnarDetector:
        """Another detector that goes on from the same state; O(what is kept)."""
        made = copy(self)
        made._keys, made._engine = self._keys.copy(), self._engine.copy()
        made._chunks = list(self._chunks)
        return made

    def _take(self, columns: EventColumns, *, absorbs: bool) -> tuple[Found, Ints, Chunk]:
        """Let the engine take a batch; what it finds, the rows that completed it, and the batch."""
        order = columns.order()
        last = checked_place(columns, order, self._last)
        masks = self._masks(columns)
        rows = np.flatnonzero(masks) if order is None else order[masks[order] != 0]
        self._engine.prepare(columns, rows, masks[rows])
        keys_of = self._keys.number(columns, rows)
        self._engine.grow(len(self._keys))
        chunk = Chunk(np.arange(self.rows, self.rows + len(columns)), columns)
        # What functions refuse counts for nothing, and they are asked in the end.
        most = -1 if self._most is None or absorbs or self._plan.filters else self._most
        found = self._engine.run(
            columns.us[rows], rows + self.rows, keys_of, masks[rows], most, absorbs=absorbs
        )
        self.rows += len(columns)
        self._last = last
        return found, rows[found.at], chunk

    def advance(self, us: int) -> Matches:
        """Tell that no event before `us` is fed any more; time alone completes none of its matches.

        As `trim`, and returns none.
        """
        self.trim(us)
        none = np.empty(0, np.int64)
        return Matches(self._plan.names, self._name, none, none, none, None, self._tuples, [])

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

    # -- what a batch is made of -----------------------------------------------------------

    def _masks(self, columns: EventColumns) -> Ints:
        """Per row which parts take it, positive and negated ones."""
        by_code = np.zeros(len(columns.keys), np.int64)
        for listener in self._plan.listeners:
            if listener not in self._filters and listener.primitive.key in columns.keys:
                by_code[columns.keys.index(listener.primitive.key)] |= 1 << listener.bit
        masks: Ints = by_code[columns.codes]
        for listener, taking in self._filters.items():
            masks[taking.rows(columns)] |= 1 << listener.bit
        return masks

    # -- what is kept ----------------------------------------------------------------------

    def _keep(self, chunk: Chunk) -> None:
        """Keep what later matches may need of a batch."""
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
        """Drop the batches before that of the oldest event in the ring."""
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
        """Forget the keys that have no event within the window."""
        assert self._last is not None
        assert self.horizon_us is not None
        kept = self._engine.living(len(self._keys), self._last[0] - self.horizon_us)
        self._keys.keep(kept)
        self._engine.keep(kept)
        self._keys_max = max(_KEYS_MIN, 2 * len(kept))


def _most_together(at: Ints) -> int:
    """Return the largest number of matches that one event has completed."""
    return int(np.unique(at, return_counts=True)[1].max(initial=0))


def checked_place(
    columns: EventColumns, order: Ints | None, last: tuple[int, str] | None
) -> tuple[int, str] | None:
    """The place, time and id, of the latest event of a batch; `last` if it has none.

    Parameters
    ----------
    order : array of int64 or None
        As `EventColumns.order` gives it.
    last : (int, str) or None
        The place of the latest event of the batches before.

    Raises
    ------
    BadEvent
        If an event of the batch is before that.
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
