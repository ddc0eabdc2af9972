"""Nodes of single events: primitive events, clock events, disjunctions and named queries."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from activedb.events._expressions import Disjunction, Periodic, Primitive, Query, walk
from activedb.events._occurrence import Occurrence
from activedb.events._undecided import Rivals
from activedb.events.detection._entry import Entry, entry_parts, leaves, timestamp_at
from activedb.events.detection._moment import Moment
from activedb.events.detection._node import DetectorNode
from activedb.events.detection._uncertain import is_exact, moments
from activedb.functions import checked_result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from activedb.events.detection._journal import Journal
    from activedb.events.detection._moment import Timers
    from activedb.events.detection._node import DetectorState

__all__ = ["Clocks", "DisjunctionNode", "PrimitiveNode", "QueryNode", "takes"]


class Clocks:
    """Clock events of a detector, by number; their timers use the same numbers."""

    def __init__(self, nodes: Iterable[DetectorNode]):
        self._primitives: dict[int, Primitive] = {}
        for node in nodes:
            self._primitives.update(node.clocks)

    def __bool__(self) -> bool:
        return bool(self._primitives)

    def start(self, us: int, timers: Timers, journal: Journal) -> None:
        """Set the timers of the first moments after `us`."""
        for index in self._primitives:
            self._set(index, us, timers, journal)

    def tick(self, index: int, us: int, timers: Timers, journal: Journal) -> Occurrence | None:
        """Return the clock event with this number and set its next timer; None: no clock event."""
        primitive = self._primitives.get(index)
        if primitive is None:
            return None
        self._set(index, us, timers, journal)
        return Occurrence(primitive.key[1], timestamp_at(us, None), kind="clock")

    def _set(self, index: int, after_us: int, timers: Timers, journal: Journal) -> None:
        schedule = self._primitives[index].schedule
        us = None if schedule is None else schedule.next_us(after_us)
        if us is not None:
            timers.set((us, index, None), journal)


def takes(primitive: Primitive, o: Occurrence, moment: Moment) -> bool:
    """Return whether the primitive takes `o`; its reading is evaluated once and remembered."""
    if not primitive.takes(o):
        return False
    if primitive.reading is None:
        return True
    key = (primitive, o)  # not its id(), which another one may have once it is gone
    said = moment.said.get(key)
    if said is None:
        found = primitive.reading(moment.reader, o)
        said = moment.said[key] = bool(checked_result(found, "a reading"))
    return said


class PrimitiveNode(DetectorNode):
    """Node of a primitive event."""

    def __init__(self, expression: Primitive, shared: DetectorState, index: int):
        clocks = {} if expression.schedule is None else {index: expression}
        super().__init__(expression, (), expression.keys, shared, index, clocks)
        self.primitive = expression

    def evaluate(self, moment: Moment) -> list[Entry]:
        o = moment.o
        if o is None or (moment.index < 0 and not takes(self.primitive, o, moment)):
            return []
        return [(*moment.place(self.shared.arrivals), o, {self.primitive.name: o})]


class DisjunctionNode(DetectorNode):
    """Node of a disjunction: any of several events, each occurrence once.

    Two occurrences of the same primitive events are one; the ticks that a periodic event collects
    are none of these.
    """

    __slots__ = ("_collected",)

    def __init__(
        self,
        expression: Disjunction,
        children: tuple[DetectorNode, ...],
        shared: DetectorState,
        index: int,
    ):
        keys = frozenset[tuple[str, str]]().union(*(child.keys for child in children))
        super().__init__(expression, children, keys, shared, index)
        periodic = [each for each in walk(expression) if isinstance(each, Periodic)]
        self._collected = frozenset([each.alias for each in periodic if each.collected])

    def evaluate(self, moment: Moment) -> list[Entry]:
        found: dict[object, Entry] = {}
        for child in self.children:
            if child.concerns(moment):
                name = child.name if isinstance(child, QueryNode) else None
                own: set[object] = set()
                for entry in child.evaluate(moment):
                    key = (frozenset(leaves(entry[3], self._collected)), name)
                    known = found.setdefault(key, entry)
                    if known is entry:
                        own.add(key)
                    else:
                        self._unite(found, key, entry, moment, is_first=key not in own)
        return list(found.values())

    def _unite(
        self,
        found: dict[object, Entry],
        key: object,
        entry: Entry,
        moment: Moment,
        *,
        is_first: bool,
    ) -> None:
        """Merge two occurrences of the same events: keep the one that is certainly the first.

        If that is doubtful, or its being the first, both stay, and both are doubtful.

        Parameters
        ----------
        is_first : bool
            True if the known one comes first in every order: it is of an earlier part.
        """
        doubtful, known = self.shared.doubtful, found[key]
        if dict(known[3].parts) == dict(entry[3].parts):
            if known[2] in doubtful:
                both = entry[2] in doubtful
                found[key] = self._either(known, entry, moment.journal) if both else entry
            return
        if known[2] in doubtful:
            why = doubtful[known[2]]
        elif not is_first and self._may_be_swapped(known[3]):
            unordered = tuple(combinations(moments(known[3]), 2))
            why = doubtful.get(entry[2], Rivals(unordered))
        else:
            return
        if not is_first:
            found[key] = self._alternative(known, why, moment.journal)
        found[(key, entry[2])] = self._alternative(entry, why, moment.journal)

    def _either(self, known: Entry, entry: Entry, journal: Journal) -> Entry:
        """Return a doubtful occurrence that is made if one of two that are alike is."""
        us, id_, arrival, o, parts = known
        found = (us, id_, next(self.shared.arrivals), o, parts)
        self.shared.doubt(found[2], self.shared.doubtful[arrival], journal)
        needed = self.shared.needs.get(arrival, [arrival])
        self.shared.need(found[2], [*needed, entry[2]], journal)
        return found

    def _alternative(self, entry: Entry, why: Rivals, journal: Journal) -> Entry:
        """Return a doubtful occurrence: the part has made it, but perhaps not the disjunction."""
        us, id_, arrival, o, parts = entry
        found = (us, id_, next(self.shared.arrivals), o, parts)
        self.shared.doubt(found[2], self.shared.doubtful.get(arrival, why), journal)
        self.shared.need(found[2], [arrival], journal)
        return found

    def _may_be_swapped(self, o: Occurrence) -> bool:
        """Return whether the order of the events in an occurrence may not be that of readings."""
        if not (self.shared.is_inexact and self.shared.policy.doubts) or is_exact(o):
            return False
        precedes = self.shared.policy.relation.precedes
        return not all(
            precedes(*sorted(pair, key=lambda event: event.us))
            for pair in combinations(moments(o), 2)
        )


class QueryNode(DetectorNode):
    """Node of a named pattern with an output."""

    def __init__(self, expression: Query, child: DetectorNode, shared: DetectorState, index: int):
        super().__init__(expression, (child,), child.keys, shared, index)
        self.query = expression
        self.pattern_name = expression.pattern.names[0]
        self.name = expression.name

    def evaluate(self, moment: Moment) -> list[Entry]:
        child = self.children[0]
        if not child.concerns(moment):
            return []
        found: list[Entry] = []
        for entry in child.evaluate(moment):
            output = self.output(entry)
            self.shared.follow(output[2], entry[2], moment.journal)
            found.append(output)
        return found

    def output(self, entry: Entry) -> Entry:
        """Return the output for an occurrence of the pattern."""
        o = entry[3]
        parts = entry_parts(entry, self.pattern_name)
        params = o.params
        if self.query.returns:
            params = {name: term.evaluate(parts, o) for name, term in self.query.returns}
        named = Occurrence(self.name, o.timestamp, params, parts=parts)
        return (named.us, "", next(self.shared.arrivals), named, {self.query.name: named})
