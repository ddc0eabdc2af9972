"""The search where the order of events may be unknown: plain backtracking, for every selection.

Each candidate is found with whether it is certain, that is, fulfils the definition for every order
that is possible, or only for some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import Candidate, Entry, leaves
from activedb.events.detection._predicates import parts_of
from activedb.events.detection._uncertain import is_exact

if TYPE_CHECKING:
    from activedb.events.detection._group import Group
    from activedb.events.detection._layout import Layout
    from activedb.events.detection._node import Moment
    from activedb.events.detection._uncertain import Relation

__all__ = ["Backtracking"]

Path = list[tuple[int, Entry]]


class Backtracking:
    """One search in one group.

    Complexity: the number of combinations in which neighbours may follow each other.
    """

    def __init__(self, layout: Layout, group: Group, moment: Moment, relation: Relation):
        self.layout = layout
        self.group = group
        self.moment = moment
        self.relation = relation
        self._contemporaries = self._forbidding()

    # -- what is looked for ------------------------------------------------------------------

    def completed(self, items: list[tuple[Entry, list[int]]]) -> Iterator[tuple[Candidate, bool]]:
        """Yield the candidates that have one of the new entries, once each.

        One that is certainly before the last constituent completes nothing: it comes late.
        """
        for new, stages in items:
            for stage in stages:
                for path, certain in self._paths_through(stage, new):
                    last = path[-1][1]
                    if not self.layout.completes[path[-1][0]] or (
                        last is not new and self.relation.precedes(new[3], last[3])
                    ):
                        continue
                    found = self._judge(path, certain, None)
                    if found is not None:
                        yield found

    def closed(self, end_us: int) -> Iterator[tuple[Candidate, bool]]:
        """Yield the candidates that the end of a window completes."""
        assert self.layout.window_us is not None
        begin_us = end_us - self.layout.window_us
        firsts = [
            (number, entry)
            for number, entries in enumerate(self.group.taken)
            if self.layout.may_begin[number]
            for entry in entries
            if self.relation.low_us(entry[3]) == begin_us
        ]
        for first in firsts:
            for path, certain in self._onwards([first], True):
                if not self.layout.closes[path[-1][0]]:
                    continue
                found = self._judge(path, certain, end_us)
                if found is not None:
                    yield found

    # -- paths -------------------------------------------------------------------------------

    def _paths_through(self, stage: int, new: Entry) -> Iterator[tuple[Path, bool]]:
        """Yield all ways through the stages that have the new entry at this one."""
        for before, certain in self._backwards([(stage, new)], True):
            yield from self._onwards(before, certain)

    def _backwards(self, path: Path, certain: bool) -> Iterator[tuple[Path, bool]]:
        """Yield what `path` is when it is completed at its beginning."""
        number, after = path[0]
        if self.layout.may_begin[number]:
            yield path, certain
        stages = self.layout.stages
        new = path[-1][1][3]
        for earlier in range(number if stages[number].kleene else number - 1, -1, -1):
            for entry in self._usable(earlier, path):
                o = entry[3]
                if (
                    all(self.relation.may_precede(o, other[3]) for _, other in path)
                    and self._is_near(o, new)
                    and self._is_close(o, after[3])
                ):
                    still = certain and self.relation.precedes(o, after[3])
                    yield from self._backwards([(earlier, entry), *path], still)
            if earlier < number and stages[earlier].minimum:
                return

    def _onwards(self, path: Path, certain: bool) -> Iterator[tuple[Path, bool]]:
        """Yield what `path` is when it is completed at its end."""
        number, before = path[-1]
        if self.layout.may_end[number]:
            yield path, certain
        stages = self.layout.stages
        first = path[0][1][3]
        for later in range(number if stages[number].kleene else number + 1, len(stages)):
            for entry in self._usable(later, path):
                o = entry[3]
                if (
                    all(self.relation.may_precede(other[3], o) for _, other in path)
                    and self._is_near(first, o)
                    and self._is_close(before[3], o)
                ):
                    still = certain and self.relation.precedes(before[3], o)
                    yield from self._onwards([*path, (later, entry)], still)
            if later > number and stages[later].minimum:
                return

    def _usable(self, number: int, path: Path) -> Iterator[Entry]:
        used = frozenset[int]() if self.layout.is_picky else self.group.used
        for entry in self.group.taken[number]:
            if entry[2] not in used and all(entry[2] != other[2] for _, other in path):
                yield entry

    def _has_bounds(self, path: Path) -> bool:
        """Whether each Kleene part has as many elements as it may."""
        for number, stage in enumerate(self.layout.stages):
            count = sum(at == number for at, _ in path)
            if count < stage.minimum or (stage.maximum is not None and count > stage.maximum):
                return False
        return True

    def _spans(self, first: Occurrence, last: Occurrence) -> bool:
        window_us = self.layout.window_us
        return (
            window_us is None
            or self.relation.high_us(last) - self.relation.low_us(first) <= window_us
        )

    def _is_near(self, before: Occurrence, after: Occurrence) -> bool:
        """Whether a candidate with both can be in the window: others may be its first and last."""
        window_us = self.layout.window_us
        return (
            window_us is None
            or self.relation.low_us(after) - self.relation.high_us(before) <= window_us
        )

    def _is_close(self, before: Occurrence, after: Occurrence) -> bool:
        gap_us = self.layout.gap_us
        return gap_us is None or (
            self.relation.low_us(after) - self.relation.high_us(before) <= gap_us
        )

    # -- judgement ---------------------------------------------------------------------------

    def _judge(
        self, path: Path, certain: bool, end_us: int | None
    ) -> tuple[Candidate, bool] | None:
        """The candidate of a path and whether it is certain; None if it is impossible."""
        if not self._has_bounds(path) or not self._spans(path[0][1][3], path[-1][1][3]):
            return None
        negated = self._negated(path, end_us)
        if negated is None:
            return None
        certain = certain and negated
        if self.layout.is_picky:
            between = self._between(path)
            if between is None:
                return None
            certain = certain and between
        candidate = self._candidate(path)
        if not self._holds(candidate, path):
            return None
        return candidate, certain

    def _negated(self, path: Path, end_us: int | None) -> bool | None:
        """Whether nothing forbidden can lie where it must not; None: something does."""
        chain = [entry[3] for _, entry in path]
        certain = True
        for x, gaps in self._gaps(path, end_us):
            may_lie, may_lie_elsewhere = self._may_lie(x, chain, gaps)
            if not may_lie_elsewhere:
                return None
            certain = certain and not may_lie
        return certain

    def _gaps(self, path: Path, end_us: int | None) -> Iterable[tuple[Occurrence, set[int]]]:
        """What is forbidden, and behind how many of the constituents."""
        relation, layout = self.relation, self.layout
        last = path[-1][1][3]
        # None of its own: each stands at its place in the path, hence nowhere in between.
        own = {leaf for _, entry in path for leaf in leaves(entry[3])}
        gaps = [(0, path[0][0], 0)]
        for count, ((number, _), (follower, _)) in enumerate(pairwise(path), 1):
            if number != follower:
                gaps.append((number + 1, follower, count))
        if end_us is not None:
            gaps.append((path[-1][0] + 1, len(self.group.forbidden) - 1, len(path)))
        found: dict[int, tuple[Occurrence, set[int]]] = {}
        for low, high, count in gaps:
            for number in range(low, high + 1):
                for x in self._forbidden(number):
                    if id(x) in own:
                        continue
                    if (
                        count == 0
                        and layout.window_us is not None
                        and relation.high_us(x) < relation.high_us(last) - layout.window_us
                    ):
                        continue
                    if count == len(path) and end_us is not None and relation.low_us(x) > end_us:
                        continue
                    found.setdefault(id(x), (x, set()))[1].add(count)
        return found.values()

    def _may_lie(self, x: Occurrence, chain: list[Occurrence], gaps: set[int]) -> tuple[bool, bool]:
        """Whether an event may lie in one of these gaps of a chain, and whether it may elsewhere.

        All of the chain is asked: neighbours may leave it a place that others do not.
        """
        relation, count = self.relation, len(chain)
        ahead = [relation.may_precede(o, x) for o in chain]
        behind = [relation.may_precede(x, o) for o in chain]
        places = {n for n in range(count + 1) if all(ahead[:n]) and all(behind[n:])}
        at_once = any(
            all(ahead[:n])
            and all(behind[n + 1 :])
            and not relation.precedes(chain[n], x)
            and not relation.precedes(x, chain[n])
            for n in range(count)
        )
        return not places.isdisjoint(gaps), at_once or not places <= gaps

    def _between(self, path: Path) -> bool | None:
        """Whether nothing that the selection forbids can lie between neighbours; None: it does."""
        relation, layout = self.relation, self.layout
        certain = True
        own = {leaf for _, entry in path for leaf in leaves(entry[3])}
        for place in range(1, len(path)):
            (_, before), (number, after) = path[place - 1], path[place]
            others = self.group.all if layout.is_strict else self.group.taken[number]
            for x in others:
                if id(x[3]) in own or any(x[2] == entry[2] for _, entry in path):
                    continue
                if layout.is_strict:
                    surely, perhaps = self._by_place(before, x)
                else:
                    surely = relation.precedes(before[3], x[3])
                    perhaps = relation.may_precede(before[3], x[3])
                surely_before, perhaps_before = self._by_place(x, after)
                if not (perhaps and perhaps_before):
                    continue
                if not layout.is_strict and not self._is_eligible(path[:place], number, x):
                    continue
                if surely and surely_before:
                    return None
                certain = False
        return certain

    def _by_place(self, a: Entry, b: Entry) -> tuple[bool, bool]:
        """Whether one comes before another by place, for certain and perhaps."""
        if is_exact(a[3]) and is_exact(b[3]):
            return a[:3] < b[:3], a[:3] < b[:3]
        return self.relation.precedes(a[3], b[3]), self.relation.may_precede(a[3], b[3])

    def _is_eligible(self, prefix: Path, number: int, entry: Entry) -> bool:
        if not self._spans(prefix[0][1][3], entry[3]) or not self._is_close(
            prefix[-1][1][3], entry[3]
        ):
            return False
        path = [*prefix, (number, entry)]
        predicates = self.layout.predicates
        if not predicates.are_staged:
            return True
        parts = parts_of(self._candidate(path), self.layout.stages)
        count = sum(stage == number for stage, _ in path)
        return predicates.joins(number, count, parts)

    def _holds(self, candidate: Candidate, path: Path) -> bool:
        predicates, stages = self.layout.predicates, self.layout.stages
        if predicates.is_empty:
            return True
        counts = [0] * len(stages)
        for place, (number, _) in enumerate(path):
            counts[number] += 1
            parts = parts_of(self._candidate(path[: place + 1]), stages)
            if not predicates.joins(number, counts[number], parts):
                return False
        whole = parts_of(candidate, stages)
        if not all(predicates.leaves(number, whole) for number in range(len(stages))):
            return False
        return predicates.completes(whole, self.moment, self.layout.index)

    # -- what there is -----------------------------------------------------------------------

    def _candidate(self, path: Path) -> Candidate:
        bound: list[Any] = [[] if stage.kleene else None for stage in self.layout.stages]
        for number, entry in path:
            if self.layout.stages[number].kleene:
                bound[number].append(entry)
            else:
                bound[number] = entry
        return tuple([tuple(b) if type(b) is list else b for b in bound])

    def _forbidden(self, number: int) -> Iterator[Occurrence]:
        for entry in self.group.forbidden[number]:
            yield entry[3]
        yield from self._contemporaries[number]

    def _forbidding(self) -> list[list[Occurrence]]:
        """By place, the events that are not fed yet and would be forbidden there."""
        found: list[list[Occurrence]] = []
        for parts in self.layout.negated:
            found.append(
                [
                    o
                    for o in self.moment.contemporaries
                    if any(
                        primitive.takes(o) and self._has_key(o)
                        for part in parts
                        for primitive in part.alternatives
                    )
                ]
            )
        return found

    def _has_key(self, o: Occurrence) -> bool:
        names = self.layout.attributes
        return all(name in o.params for name in names) and self.group.key == tuple(
            [o.params[name] for name in names]
        )
