"""Nodes completed by time: plus, periodic, and time-outs of partial matches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import combinations, permutations
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from activedb.events._accuracy import AccuracyInterval
from activedb.events._choices import Context
from activedb.events._expressions import Periodic, Plus, Sequence, TimedOut
from activedb.events._occurrence import Occurrence
from activedb.events._undecided import Rivals
from activedb.events.detection._choice import preference
from activedb.events.detection._entry import (
    Candidate,
    Entry,
    Possible,
    constituents,
    entry_parts,
    place_of,
    timestamp_at,
)
from activedb.events.detection._journal import add, assign, delete, put, take
from activedb.events.detection._moment import Moment
from activedb.events.detection._node import DetectorNode
from activedb.events.detection._predicates import merged, parts_of
from activedb.events.detection._search import Search
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._traits import horizon_of
from activedb.events.detection._uncertain import is_exact

if TYPE_CHECKING:
    from activedb.events.detection._combination import Children
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._node import DetectorState
    from activedb.events.detection._state import StateReader, StateWriter

__all__ = ["PeriodicNode", "PlusNode", "TimedOutNode"]


class PeriodicNode(DetectorNode):
    """Node of periodic events.

    It keeps the starts and the ends by place. At each tick it determines from them which start is
    open, so that starts and ends that are fed late count.

    Attributes
    ----------
    starts, ends : list of Entry
    closed : dict of int to Entry
        In the context chronicle: the end that closed each closed start, by the start's arrival. It
        is determined when the end is fed.
    """

    def __init__(
        self,
        expression: Periodic,
        start: DetectorNode,
        end: DetectorNode,
        shared: DetectorState,
        index: int,
    ):
        keys = start.keys | end.keys
        super().__init__(expression, (start, end), keys, shared, index)
        self.periodic = expression
        self.start, self.end = start, end
        self.start_name = expression.start.names[0]
        self.end_name = expression.end.names[0]
        self._end_reach_us = horizon_of(expression.end)
        self.starts: list[Entry] = []
        self.ends: list[Entry] = []
        self.closed: dict[int, Entry] = {}
        self.closed_us: int | None = None  # latest time at which a forgotten start was closed

    def evaluate(self, moment: Moment) -> list[Entry]:
        if moment.index == self.index:
            return self._ticks(moment)
        begun = self.start.evaluate(moment) if self.start.concerns(moment) else []
        ended = self.end.evaluate(moment) if self.end.concerns(moment) else []
        for entry in begun:
            put(self.starts, entry, moment.journal)
            if not self.periodic.collected:
                self._schedule(entry, self._counted_us(entry), moment)
        if self.shared.fresh is not None:
            self.shared.fresh.extend([(entry, self) for entry in (*begun, *ended)])
        made: list[Entry] = []
        if begun and self.periodic.collected and self._doubts:
            # An end that was fed before may be after it.
            for end in self.ends:
                collected = self._possibly_collect(end, begun)
                self._doubt(collected, moment)
                made += collected
        for entry in ended:
            closed = None
            if self.periodic.consumption is Context.CHRONICLE:
                closed = self._close(entry, moment.journal)
            if self.periodic.collected:
                if self._doubts and not self._is_count_known(entry):
                    collected = self._possibly_collect(entry, self.starts)
                    self._doubt(collected, moment)
                else:
                    collected = self._collect(entry, closed)
                made += collected
            put(self.ends, entry, moment.journal)
        return made

    # -- uncertain order -----------------------------------------------------------------------

    @property
    def _doubts(self) -> bool:
        return self.shared.is_inexact and self.shared.policy.doubts

    @property
    def is_vague(self) -> bool:
        """True if there may be other ticks than those made, or at other times."""
        return self._doubts and not all(is_exact(e[3]) for e in (*self.starts, *self.ends))

    def _counted_us(self, start: Entry) -> int:
        """Return the time from which ticks are scheduled; the latest possible, if uncertain."""
        return self.shared.policy.relation.ends(start[3])[1] if self._doubts else start[0]

    def _doubt(self, made: list[Entry], moment: Moment) -> None:
        why = Rivals(tuple(combinations([e[3] for e in (*self.starts, *self.ends)], 2)))
        for entry in made:
            self.shared.doubt(entry[2], why, moment.journal)

    def _is_known(self, entries: list[Entry]) -> bool:
        """Return whether these entries are certain, and so is their order."""
        relation, doubtful = self.shared.policy.relation, self.shared.doubtful
        return all(
            relation.precedes(a[3], b[3])
            or relation.precedes(b[3], a[3])
            or not (relation.may_precede(a[3], b[3]) or relation.may_precede(b[3], a[3]))
            for a, b in combinations(entries, 2)
        ) and doubtful.keys().isdisjoint(entry[2] for entry in entries)

    def _is_as_read(self, entries: list[Entry]) -> bool:
        """Return whether readings and intervals alone give the order of the local clocks."""
        precedes = self.shared.policy.relation.precedes
        return all(
            a[:3] < b[:3] and a[3].high_us < b[3].low_us
            for a, b in permutations(entries, 2)
            if precedes(a[3], b[3])
        )

    def _is_tick_known(self, low_us: int, high_us: int, entries: list[Entry]) -> bool:
        """Return whether it is certain which of these entries come after a tick."""
        ends = [self.shared.policy.relation.ends(entry[3]) for entry in entries]
        begins = [self.shared.policy.relation.begins(entry[3]) for entry in entries]
        return all(
            (high <= low_us and begun <= low_us) or (low > high_us and first > high_us)
            for (low, high), (first, begun) in zip(ends, begins, strict=True)
        )

    def _is_sure(self, start: Entry, since_us: int) -> bool:
        """Return whether there certainly is a tick of a start at this distance."""
        relation = self.shared.policy.relation
        low_us, high_us = relation.ends(start[3])
        others = list(self.ends)
        if self.periodic.consumption not in (Context.UNRESTRICTED, Context.CONTINUOUS):
            others += [each for each in self.starts if each is not start]
        others = [each for each in others if not relation.precedes(each[3], start[3])] + [
            each
            for each in others
            if relation.precedes(each[3], start[3])
            and self.periodic.consumption in (Context.CHRONICLE, Context.CUMULATIVE)
        ]
        return (
            self._is_known([start, *others])
            and self._is_as_read([start, *others])
            and self._is_tick_known(low_us + since_us, high_us + since_us, others)
        )

    def _is_count_known(self, end: Entry) -> bool:
        """Return whether the ticks that an end collects are certain; False if too many to look."""
        relation, period_us = self.shared.policy.relation, self.periodic.period_us
        if any(o.key in self.keys and relation.may_precede(o, end[3]) for o in self.shared.awaited):
            return False
        others = [*self.starts, *self.ends, end]
        if not (self._is_known(others) and self._is_as_read(others)):
            return False
        for start in self.starts:
            low_us, high_us = relation.ends(start[3])
            until_us = relation.begins(end[3])[1]
            rest = [each for each in others if each is not start]
            # Ticks at the very end do not count.
            ticks = range(low_us + period_us, until_us, period_us)
            most = self.shared.bound.most
            if (most is not None and len(ticks) > most) or not all(
                self._is_tick_known(tick_us, tick_us - low_us + high_us, rest) for tick_us in ticks
            ):
                return False
        return True

    # -- ticks -------------------------------------------------------------------------------

    def _schedule(self, start: Entry, us: int, moment: Moment) -> None:
        timer = (us + self.periodic.period_us, self.index, start[2])
        self.shared.timers.set(timer, moment.journal)

    def _ticks(self, moment: Moment) -> list[Entry]:
        us = moment.us
        called = frozenset(moment.called)
        if self._doubts:
            return self._possible_ticks(moment)
        waiting = [e for e in self.starts if e[2] in called and self._is_waiting(e, us)]
        for start in waiting:
            self._schedule(start, us, moment)
        return [
            self._occurrence(self._together(start, us), [us], None)
            for start in waiting
            if self._is_open(start, us)
        ]

    def _possible_ticks(self, moment: Moment) -> list[Entry]:
        """Return the ticks that are possible; uncertain ones are marked as doubtful."""
        called = frozenset(moment.called)
        relation, made = self.shared.policy.relation, list[Entry]()
        for start in [e for e in self.starts if e[2] in called]:
            low_us, high_us = relation.ends(start[3])
            since_us = moment.us - high_us
            if start[2] in self.shared.gone or self._is_over(start, low_us + since_us):
                continue
            self._schedule(start, moment.us, moment)
            if self._is_sure(start, since_us):
                us = start[0] + since_us
                if self._is_waiting(start, us) and self._is_open(start, us):
                    together = self._together(start, start[0] + since_us)
                    made.append(self._occurrence(together, [start[0] + since_us], None))
            else:
                doubtful = self._occurrence([start], [start[0] + since_us], None)
                self._doubt([doubtful], moment)
                made.append(doubtful)
        return made

    def _is_over(self, start: Entry, us: int) -> bool:
        """Return whether a start certainly has no ticks at this time or later."""
        relation = self.shared.policy.relation
        closing = [
            end
            for end in self.ends
            if end[3].high_us <= us
            and end[2] not in self.shared.doubtful
            and relation.precedes(start[3], end[3])
        ]
        if self.periodic.consumption is Context.CHRONICLE:
            # Each end closes one start: all are closed when there are as many ends as starts.
            return len(closing) >= len(self.starts)
        return bool(closing)

    def _is_waiting(self, start: Entry, us: int) -> bool:
        """Return whether a start may have ticks at this time or later."""
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
        return any(self._is_before(start, end) for end in self._until(self.ends, us))

    def _is_before(self, a: Entry, b: Entry) -> bool:
        """Return whether an entry is certainly before another, whatever local clocks say."""
        relation = self.shared.policy.relation
        return relation.ends(a[3])[1] < relation.begins(b[3])[0]

    def _is_closed(self, start: Entry, us: int) -> bool:
        """Return whether a start is closed at this time, in the context chronicle."""
        end = self.closed.get(start[2])
        return end is not None and end[0] <= us

    def _close(self, end: Entry, journal: Journal) -> Entry | None:
        """Close the oldest start before an end and return it, in the context chronicle."""
        precedes, closed = self.shared.policy.relation.precedes, self.closed
        for start in self.starts:
            if (
                start[2] not in closed
                and precedes(start[3], end[3])
                # The list has the order of readings; a local clock may give another.
                and not (
                    self._doubts
                    and any(precedes(e[3], start[3]) for e in self.starts if e[2] not in closed)
                )
            ):
                assign(closed, start[2], end, journal)
                return start
        return None

    def _together(self, start: Entry, us: int) -> list[Entry]:
        """Return the starts of an occurrence; if cumulative, all since the last end."""
        if self.periodic.consumption is not Context.CUMULATIVE:
            return [start]
        return [
            entry
            for entry in self._until(self.starts, us)
            if entry[:3] <= start[:3] and not self._closed_before(entry, us)
        ]

    # -- ends ----------------------------------------------------------------------------------

    def _collect(self, end: Entry, closed: Entry | None) -> list[Entry]:
        """Return the occurrence that an end makes of all ticks before it, for each start."""
        before = [entry for entry in self.starts if self._is_before(entry, end)]
        context = self.periodic.consumption
        earlier = [other for other in self.ends if other[:3] < end[:3]]
        from_us = None
        if context is Context.CHRONICLE:
            chosen = [] if closed is None else [closed]
            if closed is not None:
                # It has been open since the starts before it were closed.
                older = [entry for entry in self.starts if entry[:3] < closed[:3]]
                opened = [self.closed[e[2]][0] for e in older if e[2] in self.closed]
                from_us = max(opened, default=self.closed_us)
        else:
            chosen = [
                entry
                for entry in before
                if not any(self._is_before(entry, other) for other in earlier)
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
                    if not any(self._is_before(entry, other) for other in earlier)
                ]
            period_us = self.periodic.period_us
            until_us = end[0]
            if context in (Context.RECENT, Context.CUMULATIVE):
                newer = [entry[0] for entry in self.starts if entry[:3] > start[:3]]
                until_us = min([until_us, *newer])
            first = 1
            if from_us is not None:
                first = max(first, -((start[0] - from_us) // period_us))  # rounded up
            ticks = range(start[0] + first * period_us, until_us, period_us)
            moments = list(self.shared.bound.taken(ticks, self.name))
            made.append(self._occurrence(together, moments, end))
        return made

    def _possibly_collect(self, end: Entry, starts: list[Entry]) -> list[Entry]:
        """Return the possible matches of an end: each start, with each number of ticks."""
        relation, period_us = self.shared.policy.relation, self.periodic.period_us
        bound, until_us = self.shared.bound, relation.begins(end[3])[1]
        possible = (
            (start, count)
            for start in starts
            if relation.may_precede(start[3], end[3])
            for count in range(
                len(range(relation.ends(start[3])[0] + period_us, until_us, period_us)) + 1
            )
        )
        found: list[Entry] = []
        ticks = 0
        for start, count in bound.taken(possible, self.name, is_sorted=False):
            ticks += count
            bound.tried(ticks, self.name)
            moments = [start[0] + period_us * (number + 1) for number in range(count)]
            found.append(self._occurrence([start], moments, end))
        return found

    # -- occurrences ---------------------------------------------------------------------------

    def _occurrence(self, starts: list[Entry], ticks: list[int], end: Entry | None) -> Entry:
        periodic = self.periodic
        like = starts[-1][3].timestamp
        cumulative = periodic.consumption is Context.CUMULATIVE
        parts: dict[str, Any] = {}
        for start in starts:
            for name, value in entry_parts(start, self.start_name).items():
                more = value if type(value) is tuple else (value,)
                parts[name] = (*parts.get(name, ()), *more) if cumulative else value
        low_us, high_us = self.shared.policy.relation.ends(starts[-1][3])
        if low_us < high_us:
            start_us = starts[-1][0]
            stamps = [
                AccuracyInterval(us, us - start_us + low_us, us - start_us + high_us)
                for us in ticks
            ]
            made = tuple([Occurrence(periodic.alias, stamp) for stamp in stamps])
        else:
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

    # -- kept entries --------------------------------------------------------------------------

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
        """Forget starts that are closed or replaced before `before_us`, and earlier ends."""
        before_us -= 2 * self.shared.reach_us
        last = before_us - 1
        context = self.periodic.consumption
        if context is Context.CHRONICLE:
            gone = self._closed_first(last)
        else:
            gone = {e[2] for e in self.starts if self._closed_before(e, last)}
            if context is Context.RECENT:
                open_ = [e for e in self._until(self.starts, last) if e[2] not in gone]
                # A later end may have begun before the newest starts.
                reach_us = self._end_reach_us if self.periodic.collected else 0
                newest = [] if reach_us is None else self._until(open_, last - reach_us)
                replaced = newest[:-1]
                if self._doubts:
                    precedes = self.shared.policy.relation.precedes
                    replaced = [e for e in open_ if any(precedes(e[3], o[3]) for o in newest)]
                gone |= {entry[2] for entry in replaced}
        spent: set[int] = set()  # each end closes only one start
        for arrival in gone:
            end = self.closed.pop(arrival, None)
            if end is not None:
                spent.add(end[2])
                if self.closed_us is None or end[0] > self.closed_us:
                    self.closed_us = end[0]
        # In place: journals refer to these lists.
        self.starts[:] = [entry for entry in self.starts if entry[2] not in gone]
        may_precede = self.shared.policy.relation.may_precede
        self.ends[:] = [
            end
            for end in self.ends
            if end[2] not in spent
            and (end[0] >= before_us or any(may_precede(e[3], end[3]) for e in self.starts))
        ]

    def _closed_first(self, us: int) -> set[int]:
        """Return the closed starts before all open ones, in the context chronicle."""
        precedes = self.shared.policy.relation.precedes
        gone: set[int] = set()
        for number, start in enumerate(self.starts):
            if not self._is_closed(start, us):
                break
            if self._doubts and not all(
                precedes(start[3], e[3]) for e in self.starts[number + 1 :]
            ):
                break
            gone.add(start[2])
        return gone

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


class PlusNode(DetectorNode):
    """Node of plus: an event a fixed delay after each occurrence of its operand."""

    def __init__(self, expression: Plus, child: DetectorNode, shared: DetectorState, index: int):
        super().__init__(expression, (child,), child.keys, shared, index)
        self.delay_us = expression.delay_us
        self.part_name = expression.names[0]
        self.waiting: dict[int, Entry] = {}

    def evaluate(self, moment: Moment) -> list[Entry]:
        if moment.index == self.index:
            due = [self.waiting[arrival] for arrival in moment.called if arrival in self.waiting]
            for entry in due:
                delete(self.waiting, entry[2], moment.journal)
            found: list[Entry] = []
            for entry in sorted(due, key=itemgetter(2)):
                if entry[2] not in self.shared.gone:
                    delayed = self._delayed(entry)
                    self.shared.follow(delayed[2], entry[2], moment.journal)
                    found.append(delayed)
            return found
        child = self.children[0]
        if child.concerns(moment):
            for entry in child.evaluate(moment):
                assign(self.waiting, entry[2], entry, moment.journal)
                # Due once it has certainly happened, as the end of a window is.
                high_us = self.shared.policy.relation.ends(entry[3])[1]
                timer = (max(entry[0], high_us) + self.delay_us, self.index, entry[2])
                self.shared.timers.set(timer, moment.journal)
                if self.shared.fresh is not None:
                    self.shared.fresh.append((entry, self))
        return []

    def _delayed(self, entry: Entry) -> Entry:
        o, parts, us = entry[3], entry_parts(entry, self.part_name), entry[0] + self.delay_us
        timestamp = timestamp_at(us, o.timestamp)
        low_us, high_us = self.shared.policy.relation.ends(o)
        if low_us < high_us:
            timestamp = AccuracyInterval(us, low_us + self.delay_us, high_us + self.delay_us)
        delayed = Occurrence(self.name, timestamp, o.params, parts=parts)
        return (us, "", next(self.shared.arrivals), delayed, parts)

    @property
    def partials(self) -> int:
        return len(self.waiting)

    def kept(self) -> Iterator[Entry]:
        yield from self.waiting.values()

    def drop(self, entry: Entry, journal: Journal) -> bool:
        held = entry[2] in self.waiting
        delete(self.waiting, entry[2], journal)
        return held

    def write(self, state: StateWriter) -> Any:
        return [state.entry(entry) for entry in self.waiting.values()]

    def read(self, data: Any, state: StateReader) -> None:
        for item in data:
            entry = state.entry(item)
            self.waiting[entry[2]] = entry


class TimedOutNode(SequenceNode):
    """Node of time-outs: partial matches that are incomplete when their window ends.

    It keeps events as its sequence does, and marks the first constituents of all candidates,
    whether or not the sequence's context and skip would make them.
    """

    __slots__ = ()

    def __init__(
        self,
        expression: TimedOut,
        sequence: Sequence,
        children: Children,
        shared: DetectorState,
        index: int,
        horizon_us: int | None,
    ):
        super().__init__(sequence, children, shared, index, horizon_us)
        self.expression = expression
        self.name = repr(expression)
        self.is_plain = self.is_memoryless = False
        self.keeps_last = self.times_out = True
        self.forgetting = None  # contexts and skips do not matter
        self.sets_timer = [number == 0 for number in range(len(self.stages))]

    def evaluate(self, moment: Moment) -> list[Entry]:
        if moment.index == self.index:
            return self._time_out(moment)
        items = self.items(moment)
        if self.layout.is_strict:
            self.stand_in_between(moment, items)
        for group, own in self.take_in(items, moment):
            if self.shared.is_inexact:
                self._mark_possible(group, self.possible(group, own, moment), moment.journal)
                continue
            for candidate in self.completed(group, own, moment, one_per_first=True):
                self._mark(group, constituents(candidate)[0][2], moment.journal)
        return []

    def _mark(self, group: Any, arrival: int, journal: Journal) -> None:
        if arrival not in group.begun:
            begun = group.own_begun()
            begun.add(arrival)
            journal.append((begun.discard, (arrival,)))

    def _mark_possible(
        self, group: EntryGroup, found: Iterable[Possible], journal: Journal
    ) -> None:
        """Record the first constituents that have a candidate, or may have one."""
        for each in found:
            first = each.entries[0][2]
            if each.is_certain and self.shared.doubtful.keys().isdisjoint(each.arrivals):
                self._mark(group, first, journal)
            elif first not in group.doubted:
                add(group.own_doubted(), first, journal)

    def _time_out(self, moment: Moment) -> list[Entry]:
        if self.shared.is_inexact:
            return self._time_out_inexact(moment)
        due: list[tuple[Entry, EntryGroup]] = []
        window_us = self.layout.window_us
        assert window_us is not None
        for key in moment.called:
            assert isinstance(key, tuple)
            group = self.groups.by_key.get(key)
            if group is not None:
                if self.layout.is_closed_by_time:
                    for candidate in self.closed(group, moment):
                        self._mark(group, constituents(candidate)[0][2], moment.journal)
                low = bisect_left(group.taken[0], (moment.us - window_us,))
                due += [
                    (first, group)
                    for first in group.taken[0][low:]
                    if first[3].low_us + window_us == moment.us and first[2] not in group.begun
                ]
        found: list[Entry] = []
        for first, group in due:
            self._mark(group, first[2], moment.journal)  # each start is decided only once
        for first, group in sorted(due, key=lambda item: place_of(item[0])):
            prefix = self._longest_prefix(group, first, moment)
            if prefix is not None:
                entries = constituents(prefix)
                parts = parts_of(prefix, self.stages[: len(prefix)])
                timestamp = timestamp_at(moment.us, first[3].timestamp)
                made = Occurrence(self.name, timestamp, merged(entries), parts=parts)
                found.append((moment.us, "", next(self.shared.arrivals), made, parts))
        return found

    def _time_out_inexact(self, moment: Moment) -> list[Entry]:
        """Return the time-outs due, where the order of events may be uncertain."""
        shared, relation, window_us = self.shared, self.shared.policy.relation, self.window_us
        assert window_us is not None
        due: list[tuple[Entry, EntryGroup]] = []
        for key in moment.called:
            assert isinstance(key, tuple)
            group = self.groups.by_key.get(key)
            if group is None:
                continue
            if self.layout.is_closed_by_time:
                closed = self.possibly_closed(group, moment)
                self._mark_possible(group, closed, moment.journal)
            due += [
                (first, group)
                for first in group.taken[0]
                if relation.begins(first[3])[1] + window_us == moment.us
                and first[2] not in group.begun
                and first[2] not in shared.gone
            ]
        found: list[Entry] = []
        for first, group in sorted(due, key=lambda item: place_of(item[0])):
            self._mark(group, first[2], moment.journal)  # each start is decided only once
            prefixes = self._prefixes(group, first, moment)
            best = next((p for p in prefixes if self._is_sure(p, prefixes)), None)
            is_sure = best is not None and first[2] not in group.doubted
            if not shared.policy.doubts:
                if shared.policy.name == "reading" and first[2] in group.doubted:
                    continue
                prefixes = prefixes[:1]
            elif is_sure and best is not None:
                prefixes = [best]
            for prefix in prefixes:
                parts = parts_of(prefix.candidate, self.stages[: len(prefix.candidate)])
                us, stamp = self.window_end(first[3])
                timestamp = stamp or timestamp_at(us, first[3].timestamp)
                made = Occurrence(self.name, timestamp, merged(prefix.entries), parts=parts)
                entry = (made.us, "", next(shared.arrivals), made, parts)
                if not is_sure and shared.policy.doubts:
                    shared.doubt(entry[2], Rivals(prefix.doubts), moment.journal)
                found.append(entry)
        return found

    def _is_sure(self, prefix: Possible, others: list[Possible]) -> bool:
        is_better = self.ledger.exclusion.is_better
        return (
            prefix.is_certain
            and self.shared.doubtful.keys().isdisjoint(prefix.arrivals)
            and all(
                other is prefix
                or (len(other.entries) <= len(prefix.entries) and is_better(prefix, other))
                for other in others
            )
        )

    def _prefixes(self, group: EntryGroup, first: Entry, moment: Moment) -> list[Possible]:
        """Return the possible longest prefixes, in the order of preference."""
        found: list[Possible] = []
        for count in range(max(len(self.stages) - 1, 1), 0, -1):
            search = self._search(group, moment, upto=count)
            own = list(search.prefixes(first))
            order = preference(self.stages[:count])
            found += sorted(own, key=lambda each: order(each.candidate))
            if any(each.is_certain for each in own):
                break
        return found

    def _longest_prefix(self, group: EntryGroup, first: Entry, moment: Moment) -> Candidate | None:
        """Return the most preferred binding of the longest prefix that `first` begins.

        If there are several parts, the prefix does not have all of them.
        """
        o, layout = first[3], self.layout
        assert layout.window_us is not None
        start_us = o.high_us - layout.window_us
        if o.low_us < start_us or any(start_us <= x[0] < o.low_us for x in group.forbidden[0]):
            return None
        for count in range(max(len(self.stages) - 1, 1), 0, -1):
            search = Search(layout, group, moment, count, None, moment.us, negated_end=False)
            prefix = next(search.candidates(first), None)
            if prefix is not None:
                return prefix
        return None
