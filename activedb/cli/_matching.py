"""Patterns over the rows of a file, in time order; an ordered file is read a row at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, islice, pairwise
from typing import TypeAlias

from activedb.cli._events import ColumnOptions, EventConverter, EventFile, Row, RowRefusal
from activedb.errors import BadEvent, FeedFailed
from activedb.events import Detector, Expression, Occurrence

__all__ = ["Figures", "FileMatching", "Progress"]

_FIRST_ROWS = 100  # rows from which the columns are inferred
_TRIM_EVERY = 1_000  # events, and moments at which time completes something
_TELL_EVERY = 1_000  # rows

Progress: TypeAlias = Callable[[str], None]
_Rows: TypeAlias = Iterator[tuple[int, Row | RowRefusal]]


@dataclass(slots=True)
class Figures:
    """Figures of a run so far.

    Attributes
    ----------
    rows : int
    refused : dict of str to (int, int, str)
        Reason to the number of rows, the first one's number, and its detail.
    unheard : Counter of str
        Events of types that no pattern names.
    seen : Counter of str
        Events that were fed, by type.
    matches : Counter of str
        By query; each has an entry.
    taken : int
        Number of events that queries have taken; an event counts once for each query.
    first_us, last_us : int or None
        Times of the first and last event that were fed.
    is_sorted : bool
        Whether the events had to be sorted.
    is_cut : bool
        Whether the run ended at the limit.
    """

    rows: int = 0
    refused: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    unheard: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    matches: Counter[str] = field(default_factory=Counter)
    taken: int = 0
    first_us: int | None = None
    last_us: int | None = None
    is_sorted: bool = False
    is_cut: bool = False

    def refuse(self, number: int, refusal: RowRefusal, *, fail_fast: bool) -> None:
        """Count a refused row.

        Raises
        ------
        FeedFailed
            If `fail_fast`.
        """
        if fail_fast:
            detail = f" ({refusal.detail})" if refusal.detail else ""
            raise FeedFailed(f"row {number} is refused: {refusal.reason}{detail}")
        count, first, detail = self.refused.get(refusal.reason, (0, number, refusal.detail))
        self.refused[refusal.reason] = (count + 1, first, detail)

    def check_taken(self, title: str) -> None:
        """Check that not all rows, or all events that queries wait for, were refused.

        Raises
        ------
        FeedFailed
            With the reason and the first row of the most frequent refusal.
        """
        is_about_others = self.unheard and not self.seen
        if self.taken or not self.refused or is_about_others:
            return
        reason, (_, first, detail) = max(self.refused.items(), key=lambda item: item[1][0])
        shown = f" ({detail})" if detail else ""
        what = "event that the queries wait for" if self.unheard else "row"
        raise FeedFailed(f"every {what} of {title} was refused: {reason}; first row {first}{shown}")


class FileMatching:
    """A run of patterns over a file.

    Parameters
    ----------
    file : EventFile
    queries : mapping of str to Expression
        Patterns by the name that their matches are reported with.
    said : ColumnOptions
    is_ordered : bool
        Whether the file must be in time order: a row before its predecessor is refused. Otherwise a
        file that is not in order is read into memory and sorted.
    fail_fast : bool
        Whether a refused row ends the run.
    until : str or None
        Time up to which the clock advances after the last event, written as times in the file are;
        None: not at all.
    """

    def __init__(
        self,
        file: EventFile,
        queries: Mapping[str, Expression],
        said: ColumnOptions,
        *,
        is_ordered: bool = False,
        fail_fast: bool = False,
        until: str | None = None,
    ):
        self._file = file
        self._said = said
        self._is_ordered = is_ordered
        self._fail_fast = fail_fast
        self._until = until
        self._detectors = {name: Detector(queries[name], name=name) for name in queries}
        self._since_trim = 0
        self._listening: dict[tuple[str, str], list[tuple[str, Detector]]] = {}
        for name, expression in queries.items():
            for key in expression.keys:
                self._listening.setdefault(key, []).append((name, self._detectors[name]))
        self.types = sorted(name for kind, name in self._listening if kind == "event")
        self.figures = Figures(matches=Counter(dict.fromkeys(queries, 0)))
        self.columns: EventConverter | None = None

    @property
    def partials(self) -> dict[str, int]:
        """Number of events that each query still keeps, for possible matches."""
        return {name: detector.partials for name, detector in self._detectors.items()}

    @property
    def unseen(self) -> list[str]:
        """Types that the patterns name but no event has."""
        return [name for name in self.types if name not in self.figures.seen]

    def run(self, tell: Progress, note: Progress) -> Iterator[tuple[str, Occurrence]]:
        """Yield each match with its query's name, in the order in which they are made.

        Parameters
        ----------
        tell, note : callable
            Receive the progress, and the guesses about the columns.

        Raises
        ------
        ConfigurationError, DefinitionError
            If the input does not fit the options.
        FeedFailed
            If the input cannot be read to its end, or a row is refused with `fail_fast`.
        """
        rows, first = self._rows()
        self.columns = EventConverter.of(
            first, self._said, self.types, has_texts=self._file.format == "csv"
        )
        for line in self.columns.notes:
            note(line)
        until_us = None if self._until is None else self.columns.moment_us(self._until, "--until")
        for name, match in self._completed(self._in_order(rows, tell), until_us):
            self.figures.matches[name] += 1
            yield name, match

    def _rows(self) -> tuple[_Rows, list[Row]]:
        """Return all rows, and the first ones."""
        rows = self._file.rows()
        # With a required order, each row may be awaited.
        head = list(islice(rows, 1 if self._is_ordered else _FIRST_ROWS))
        first = [row for _, row in head if not isinstance(row, RowRefusal)]
        if not first:
            if head:
                _, refusal = head[0]
                assert isinstance(refusal, RowRefusal)
                raise FeedFailed(
                    f"no row of {self._file.title} can be read: {refusal.reason} "
                    f"({refusal.detail}); check --format"
                )
            raise FeedFailed(f"{self._file.title} has no rows")
        return chain(head, rows), first

    def _in_order(self, rows: _Rows, tell: Progress) -> Iterator[tuple[int, Occurrence]]:
        """Return the events with their rows' numbers, in time order."""
        if self._is_ordered:
            return self._checked(self._events(rows, tell))
        if self._file.is_rereadable and self._is_in_order(tell):
            return self._events(rows, tell)
        events = list(self._events(rows, tell))
        us = [o.us for _, o in events]
        self.figures.is_sorted = any(a > b for a, b in pairwise(us))
        if self.figures.is_sorted:
            events.sort(key=lambda event: event[1].us)
        return iter(events)

    def _is_in_order(self, tell: Progress) -> bool:
        assert self.columns is not None
        last_us: int | None = None
        for number, row in self._file.rows():
            if number % _TELL_EVERY == 0:
                tell(f"{number:,} rows checked for their order")
            us = None if isinstance(row, RowRefusal) else self.columns.time_us(row)
            if us is not None:
                if last_us is not None and us < last_us:
                    return False
                last_us = us
        return True

    def _events(self, rows: _Rows, tell: Progress) -> Iterator[tuple[int, Occurrence]]:
        assert self.columns is not None
        figures, listening = self.figures, self._listening
        for number, row in rows:
            figures.rows += 1
            if figures.rows % _TELL_EVERY == 0:
                tell(f"{figures.rows:,} rows read, {figures.matches.total():,} matches")
            o = row if isinstance(row, RowRefusal) else self.columns.occurrence(row)
            if isinstance(o, RowRefusal):
                figures.refuse(number, o, fail_fast=self._fail_fast)
            else:
                if o.key not in listening:
                    figures.unheard[o.name] += 1
                yield number, o

    def _checked(
        self, events: Iterable[tuple[int, Occurrence]]
    ) -> Iterator[tuple[int, Occurrence]]:
        last_us: int | None = None
        for number, o in events:
            if last_us is not None and o.us < last_us:
                refusal = RowRefusal("it is earlier than the row before it", f"{o.timestamp}")
                self.figures.refuse(number, refusal, fail_fast=self._fail_fast)
                continue
            last_us = o.us
            yield number, o

    def _completed(
        self, events: Iterable[tuple[int, Occurrence]], until_us: int | None
    ) -> Iterator[tuple[str, Occurrence]]:
        figures = self.figures
        for us, together in groupby(events, key=lambda event: event[1].us):
            if figures.first_us is None:
                figures.first_us = us
                for detector in self._detectors.values():
                    detector.advance(us)  # from here on clock events occur
            figures.last_us = us
            yield from self._advance(us)
            for number, o in sorted(together, key=lambda event: event[1].id or ""):
                yield from self._feed(number, o)
                self._since_trim += 1
            self._trim_at_times(us)
        if figures.last_us is not None:
            end_us = figures.last_us if until_us is None else until_us
            yield from self._advance(end_us + 1)
            self._trim(end_us)

    def _feed(self, number: int, o: Occurrence) -> Iterator[tuple[str, Occurrence]]:
        listening = self._listening.get(o.key, ())
        if listening:
            self.figures.seen[o.name] += 1
        for name, detector in listening:
            try:
                found = detector.feed(o)
            except BadEvent as error:
                refusal = RowRefusal(f"query {name} cannot evaluate it", str(error))
                self.figures.refuse(number, refusal, fail_fast=self._fail_fast)
                continue
            self.figures.taken += 1
            yield from ((name, match) for match in found)

    def _advance(self, us: int) -> Iterator[tuple[str, Occurrence]]:
        """Yield the matches that time completes before `us`, in time order.

        Each moment by itself: between two events there may be any number of them.
        """
        due = {}
        for name, detector in self._detectors.items():
            due_us = detector.due_us
            if due_us is not None and due_us < us:
                due[name] = due_us
        while due:
            moment_us = min(due.values())
            for name in [name for name, due_us in due.items() if due_us == moment_us]:
                detector = self._detectors[name]
                yield from ((name, match) for match in detector.advance(moment_us + 1))
                next_us = detector.due_us
                if next_us is not None and next_us < us:
                    due[name] = next_us
                else:
                    del due[name]
            self._since_trim += 1
            self._trim_at_times(moment_us)

    def _trim_at_times(self, us: int) -> None:
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            self._trim(us)

    def _trim(self, us: int) -> None:
        for detector in self._detectors.values():
            detector.trim(us - (detector.horizon_us or 0))
