"""Nodes completed by time: plus, and time-outs of partial matches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from activedb.events._accuracy import AccuracyInterval
from activedb.events._occurrence import Occurrence
from activedb.events._sequence import Sequence
from activedb.events._temporal import Plus, TimedOut
from activedb.events._undecided import Rivals
from activedb.events.detection._choice import preference
from activedb.events.detection._entry import (
    Candidate,
    Entry,
    constituents,
    entry_parts,
    place_of,
    timestamp_at,
)
from activedb.events.detection._journal import add, assign, delete
from activedb.events.detection._node import Moment, Node
from activedb.events.detection._predicates import merged, parts_of
from activedb.events.detection._search import Search
from activedb.events.detection._sequence import SequenceNode

if TYPE_CHECKING:
    from activedb.events.detection._combination import Children
    from activedb.events.detection._group import Group
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._node import Shared
    from activedb.events.detection._possible import Possible
    from activedb.events.detection._state import StateReader, StateWriter

__all__ = ["PlusNode", "TimedOutNode"]


class PlusNode(Node):
    """Node of plus: an event a fixed delay after each occurrence of its operand."""

    def __init__(self, expression: Plus, child: Node, shared: Shared, index: int):
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
                    delayed = self._delayed(entry, moment.us)
                    self.shared.follow(delayed[2], entry[2], moment.journal)
                    found.append(delayed)
            return found
        child = self.children[0]
        if child.concerns(moment):
            for entry in child.evaluate(moment):
                assign(self.waiting, entry[2], entry, moment.journal)
                timer = (entry[0] + self.delay_us, self.index, entry[2])
                self.shared.timers.set(timer, moment.journal)
                if self.shared.fresh is not None:
                    self.shared.fresh.append((entry, self))
        return []

    def _delayed(self, entry: Entry, us: int) -> Entry:
        o, parts = entry[3], entry_parts(entry, self.part_name)
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
        shared: Shared,
        index: int,
        horizon_us: int | None,
    ):
        super().__init__(sequence, children, shared, index, horizon_us)
        self.expression = expression
        self.name = repr(expression)
        self.is_plain = self.is_memoryless = False
        self.keeps_last = self.times_out = True
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

    def _mark_possible(self, group: Group, found: Iterable[Possible], journal: Journal) -> None:
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
        due: list[tuple[Entry, Group]] = []
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
        due: list[tuple[Entry, Group]] = []
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

    def _prefixes(self, group: Group, first: Entry, moment: Moment) -> list[Possible]:
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

    def _longest_prefix(self, group: Group, first: Entry, moment: Moment) -> Candidate | None:
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
