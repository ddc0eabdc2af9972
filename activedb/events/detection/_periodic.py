"""The node of ticks from one event to another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from activedb.events._choices import Context
from activedb.events._occurrence import Occurrence
from activedb.events._temporal import Periodic
from activedb.events.detection._entry import Entry, entry_parts, timestamp_at
from activedb.events.detection._journal import assign, put, take
from activedb.events.detection._node import Moment, Node
from activedb.events.detection._predicates import merged

if TYPE_CHECKING:
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._node import Shared
    from activedb.events.detection._state import StateReader, StateWriter

__all__ = ["PeriodicNode"]


class PeriodicNode(Node):
    """Ticks.

    It keeps the starts and the ends by place, and judges at each tick from them which start is
    open: so an end or a start that is fed late takes its place.

    Attributes
    ----------
    starts, ends : list of Entry
    closed : dict of int to Entry
        In the context chronicle, by arrival the starts that are closed, and by which end: that is
        decided when the end is fed.
    """

    def __init__(self, expression: Periodic, start: Node, end: Node, shared: Shared, index: int):
        keys = start.keys | end.keys
        super().__init__(expression, (start, end), keys, shared, index)
        self.periodic = expression
        self.start, self.end = start, end
        self.start_name = expression.start.names[0]
        self.end_name = expression.end.names[0]
        self.starts: list[Entry] = []
        self.ends: list[Entry] = []
        self.closed: dict[int, Entry] = {}
        self.closed_us: int | None = None  # when the last of those that are forgotten was closed

    def evaluate(self, moment: Moment) -> list[Entry]:
        if moment.index == self.index:
            return self._ticks(moment)
        begun = self.start.evaluate(moment) if self.start.concerns(moment) else []
        ended = self.end.evaluate(moment) if self.end.concerns(moment) else []
        for entry in begun:
            put(self.starts, entry, moment.journal)
            if not self.periodic.collected:
                self._schedule(entry, entry[0], moment)
        if self.shared.fresh is not None:
            self.shared.fresh.extend([(entry, self) for entry in (*begun, *ended)])
        made: list[Entry] = []
        for entry in ended:
            closed = None
            if self.periodic.consumption is Context.CHRONICLE:
                closed = self._close(entry, moment.journal)
            if self.periodic.collected:
                made += self._collect(entry, closed)
            put(self.ends, entry, moment.journal)
        return made

    # -- ticks -------------------------------------------------------------------------------

    def _schedule(self, start: Entry, us: int, moment: Moment) -> None:
        timer = (us + self.periodic.period_us, self.index, start[2])
        self.shared.timers.set(timer, moment.journal)

    def _ticks(self, moment: Moment) -> list[Entry]:
        us = moment.us
        called = frozenset(moment.called)
        waiting = [e for e in self.starts if e[2] in called and self._is_waiting(e, us)]
        for start in waiting:
            self._schedule(start, us, moment)
        return [
            self._occurrence(self._together(start, us), [us], None)
            for start in waiting
            if self._is_open(start, us)
        ]

    def _is_waiting(self, start: Entry, us: int) -> bool:
        """Whether a start may have ticks at this time or later, for all that is known."""
        context = self.periodic.consumption
        if context is Context.CHRONICLE:
            return not self._is_closed(start, us)
        if self._closed_before(start, us):
            return False
        if context in (Context.RECENT, Context.CUMULATIVE):
            return not any(entry[:3] > start[:3] for entry in self._until(self.starts, us))
        return True

    def _is_open(self, start: Entry, us: int) -> bool:
        if self.periodic.consumption is not Context.CHRONICLE:
            return True
        return next(e for e in self.starts if not self._is_closed(e, us)) is start

    def _until(self, entries: list[Entry], us: int) -> list[Entry]:
        return entries[: bisect_left(entries, (us + 1,))]

    def _closed_before(self, start: Entry, us: int) -> bool:
        high_us = start[3].high_us
        return any(high_us < end[3].low_us for end in self._until(self.ends, us))

    def _is_closed(self, start: Entry, us: int) -> bool:
        """In the context chronicle: whether it is closed at this time."""
        end = self.closed.get(start[2])
        return end is not None and end[0] <= us

    def _close(self, end: Entry, journal: Journal) -> Entry | None:
        """In the context chronicle: close the oldest start before an end, and return it."""
        for start in self.starts:
            if start[2] not in self.closed and start[3].high_us < end[3].low_us:
                assign(self.closed, start[2], end, journal)
                return start
        return None

    def _together(self, start: Entry, us: int) -> list[Entry]:
        """What an occurrence has the parts of; in the context cumulative all since the last end."""
        if self.periodic.consumption is not Context.CUMULATIVE:
            return [start]
        return [
            entry
            for entry in self._until(self.starts, us)
            if entry[:3] <= start[:3] and not self._closed_before(entry, us)
        ]

    # -- the end -------------------------------------------------------------------------------

    def _collect(self, end: Entry, closed: Entry | None) -> list[Entry]:
        """What an end makes of all ticks before it."""
        low_us = end[3].low_us
        before = [entry for entry in self.starts if entry[3].high_us < low_us]
        context = self.periodic.consumption
        earlier = [other for other in self.ends if other[:3] < end[:3]]
        from_us = None
        if context is Context.CHRONICLE:
            chosen = [] if closed is None else [closed]
            if closed is not None:
                # It is open since those before it were closed.
                older = [entry for entry in self.starts if entry[:3] < closed[:3]]
                opened = [self.closed[e[2]][0] for e in older if e[2] in self.closed]
                from_us = max(opened, default=self.closed_us)
        else:
            chosen = [
                entry
                for entry in before
                if not any(entry[3].high_us < other[3].low_us for other in earlier)
            ]
            if context in (Context.RECENT, Context.CUMULATIVE):
                chosen = chosen[-1:]
        made = []
        for start in chosen:
            together = [start]
            if context is Context.CUMULATIVE:
                together = [
                    entry
                    for entry in before
                    if not any(entry[3].high_us < other[3].low_us for other in earlier)
                ]
            period_us = self.periodic.period_us
            ticks = range(start[0] + period_us, end[0], period_us)
            until_us = None
            if context in (Context.RECENT, Context.CUMULATIVE):
                newer = [entry[0] for entry in self.starts if entry[:3] > start[:3]]
                until_us = min(newer, default=None)
            moments = [
                us
                for us in ticks
                if (from_us is None or us >= from_us) and (until_us is None or us < until_us)
            ]
            made.append(self._occurrence(together, moments, end))
        return made

    # -- what is made --------------------------------------------------------------------------

    def _occurrence(self, starts: list[Entry], ticks: list[int], end: Entry | None) -> Entry:
        periodic = self.periodic
        like = starts[-1][3].timestamp
        cumulative = periodic.consumption is Context.CUMULATIVE
        parts: dict[str, Any] = {}
        for start in starts:
            for name, value in entry_parts(start, self.start_name).items():
                more = value if type(value) is tuple else (value,)
                parts[name] = (*parts.get(name, ()), *more) if cumulative else value
        made = tuple([Occurrence(periodic.alias, timestamp_at(us, like)) for us in ticks])
        parts[periodic.alias] = made if periodic.collected else made[0]
        if end is None:
            timestamp = made[0].timestamp
            params = merged(starts)
        else:
            for name, value in entry_parts(end, self.end_name).items():
                parts[name] = value
            timestamp = end[3].timestamp
            params = merged([*starts, end])
        o = Occurrence(self.name, timestamp, params, parts=parts)
        return (o.us, "", next(self.shared.arrivals), o, parts)

    # -- what is kept --------------------------------------------------------------------------

    @property
    def partials(self) -> int:
        return len(self.starts) + len(self.ends)

    def kept(self) -> Iterator[Entry]:
        yield from self.starts
        yield from self.ends

    def drop(self, entry: Entry, journal: Journal) -> bool:
        before = self.partials
        take(self.starts, entry, journal)
        take(self.ends, entry, journal)
        return self.partials < before

    def trim(self, before_us: int) -> None:
        """Forget the starts that are closed or replaced by then, and the ends before."""
        last = before_us - 1
        context = self.periodic.consumption
        if context is Context.CHRONICLE:
            gone = {e[2] for e in self.starts if self._is_closed(e, last)}
        else:
            gone = {e[2] for e in self.starts if self._closed_before(e, last)}
            if context is Context.RECENT:
                replaced = [e for e in self._until(self.starts, last) if e[2] not in gone]
                gone |= {entry[2] for entry in replaced[:-1]}
        for arrival in gone:
            end = self.closed.pop(arrival, None)
            if end is not None and (self.closed_us is None or end[0] > self.closed_us):
                self.closed_us = end[0]
        self.starts = [entry for entry in self.starts if entry[2] not in gone]
        self.ends = [
            end
            for end in self.ends
            if end[0] >= before_us or any(e[3].high_us < end[3].low_us for e in self.starts)
        ]

    def write(self, state: StateWriter) -> Any:
        return {
            "starts": [state.entry(entry) for entry in self.starts],
            "ends": [state.entry(entry) for entry in self.ends],
            "closed_us": self.closed_us,
            "closed": [[arrival, state.entry(end)] for arrival, end in self.closed.items()],
        }

    def read(self, data: Any, state: StateReader) -> None:
        self.starts = [state.entry(item) for item in data["starts"]]
        self.ends = [state.entry(item) for item in data["ends"]]
        self.closed_us = data["closed_us"]
        self.closed = {arrival: state.entry(end) for arrival, end in data["closed"]}
