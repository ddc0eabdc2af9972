"""Search where the order of events may be uncertain: plain backtracking, for every selection.

Each candidate comes with the doubts on which it depends. It is certain, that is, it satisfies the
definition for all possible orders and distances, if there are none.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import (
    YET_TO_BE_FED,
    Candidate,
    Doubt,
    Entry,
    Possible,
    leaves,
)
from activedb.events.detection._predicates import parts_of

if TYPE_CHECKING:
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._moment import Moment
    from activedb.events.detection._node import DetectorState
    from activedb.events.detection._traits import SequenceLayout

__all__ = ["Backtracking"]

Path = list[tuple[int, Entry]]
Waiting = tuple[Entry, list[int]]
"""An event yet to be fed, and the stages that would take it."""


class Backtracking:
    """One search in one group, where the order of events may be uncertain.

    Parameters
    ----------
    keys : container
        The keys of the events that the expression takes.
    name : str
        Name of the expression, for the error.
    waiting : sequence of Waiting
        Events yet to be fed.
    is_trial : bool
        True if those events may be constituents, as if they had been fed; used to find matches that
        may exclude others.
    without_used : bool
        True if used-up entries must not be constituents.
    upto : int, optional
        The number of stages of a prefix; None: search whole candidates.

    Complexity: the number of combinations in which neighbours may follow each other. Events that
    overlap may do so in every order, so that number is bounded by `matches_max`, too.

    Raises
    ------
    MatchesExceeded
        From each iterator, if there are more tries than the bound allows.
    """

    def __init__(
        self,
        layout: SequenceLayout,
        group: EntryGroup,
        moment: Moment,
        shared: DetectorState,
        keys: Container[tuple[str, str]],
        *,
        name: str,
        waiting: Sequence[Waiting] = (),
        is_trial: bool = False,
        without_used: bool = False,
        upto: int | None = None,
    ):
        self.layout = layout
        self.group = group
        self.moment = moment
        self.shared = shared
        self.keys = keys
        self.relation = shared.policy.relation
        self.count = len(layout.stages) if upto is None else upto
        self.is_prefix = upto is not None
        self._waiting = waiting
        self._is_trial = is_trial
        self._without = group.used if without_used else frozenset[int]()
        self._contemporaries = self._forbidding()
        self._name = name
        self._tries = 0

    # -- kinds of candidates -----------------------------------------------------------------

    def completed(self, items: Iterable[Waiting]) -> Iterator[Possible]:
        """Yield the candidates that contain one of the new entries, once each.

        A new entry that is certainly before the last constituent completes nothing: it is late. An
        entry that time made may be in time nevertheless, as time waits for contemporaries; that
        candidate is open.
        """
        seen: set[tuple[tuple[int, int], ...]] = set()
        for new, stages in items:
            for stage in stages:
                for path in self._paths_through(stage, new):
                    last = path[-1][1]
                    is_late = (
                        last is not new
                        and not self._is_trial
                        and self.relation.precedes(new[3], last[3])
                    )
                    if not self.layout.completes[path[-1][0]] or (
                        is_late and (self.moment.index < 0 or not self.shared.policy.doubts)
                    ):
                        continue
                    key = tuple([(number, entry[2]) for number, entry in path])
                    if key in seen:
                        continue
                    seen.add(key)
                    found = self.judged(path, is_closed=False)
                    if found is not None:
                        if is_late:
                            found.is_certain = False
                            found.doubts = (*found.doubts, (new[3], last[3]))
                        yield found

    def closed(self, firsts: Iterable[tuple[int, Entry]], since: int = -1) -> Iterator[Possible]:
        """Yield the candidates with these first constituents that the end of a window completes.

        One of their constituents has arrived at `since` or later.
        """
        for first in firsts:
            for path in self._onwards([first]):
                if not self.layout.closes[path[-1][0]]:
                    continue
                if since >= 0 and all(entry[2] < since for _, entry in path):
                    continue
                found = self.judged(path, is_closed=True)
                if found is not None:
                    yield found

    def prefixes(self, first: Entry) -> Iterator[Possible]:
        """Yield the bindings of the first `upto` stages that begin with `first`."""
        for path in self._onwards([(0, first)]):
            found = self.judged(path, is_closed=False)
            if found is not None:
                yield found

    # -- paths -------------------------------------------------------------------------------

    def _paths_through(self, stage: int, new: Entry) -> Iterator[Path]:
        """Yield all paths through the stages that have the new entry at `stage`."""
        for before in self._backwards([(stage, new)]):
            yield from self._onwards(before)

    def _backwards(self, path: Path) -> Iterator[Path]:
        """Yield `path` with all possible beginnings."""
        self._try()
        number, after = path[0]
        if self.layout.may_begin[number]:
            yield path
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
                    yield from self._backwards([(earlier, entry), *path])
            if earlier < number and stages[earlier].minimum:
                return

    def _onwards(self, path: Path) -> Iterator[Path]:
        """Yield `path` with all possible ends."""
        self._try()
        number, before = path[-1]
        stages = self.layout.stages
        if not any(stage.minimum for stage in stages[number + 1 : self.count]):
            yield path
        first = path[0][1][3]
        for later in range(number if stages[number].kleene else number + 1, self.count):
            for entry in self._usable(later, path):
                o = entry[3]
                if (
                    all(self.relation.may_precede(other[3], o) for _, other in path)
                    and self._is_near(first, o)
                    and self._is_close(before[3], o)
                ):
                    yield from self._onwards([*path, (later, entry)])
            if later > number and stages[later].minimum:
                return

    def _try(self) -> None:
        self._tries += 1
        self.shared.bound.tried(self._tries, self._name)

    def _usable(self, number: int, path: Path) -> Iterator[Entry]:
        used, gone = self._without, self.shared.gone
        for entry in self.group.taken[number]:
            if (
                entry[2] not in used
                and entry[2] not in gone
                and all(entry[2] != other[2] for _, other in path)
            ):
                yield entry
        for entry, stages in self._waiting if self._is_trial else ():
            if number in stages and all(entry[2] != other[2] for _, other in path):
                yield entry

    def _has_bounds(self, path: Path) -> bool:
        """Return whether each Kleene part has an allowed number of elements."""
        for number, stage in enumerate(self.layout.stages[: self.count]):
            count = sum(at == number for at, _ in path)
            if count < stage.minimum or (stage.maximum is not None and count > stage.maximum):
                return False
        return True

    def _is_near(self, before: Occurrence, after: Occurrence) -> bool:
        """Return whether the window allows both, which need not be the first and the last."""
        window_us = self.layout.window_us
        return window_us is None or self._least_us(before, after) <= window_us

    def _least_us(self, first: Occurrence, last: Occurrence) -> int:
        """Return the least distance from the beginning of `first` to the end of `last`."""
        return self.relation.ends(last)[0] - self.relation.begins(first)[1]

    def _most_us(self, first: Occurrence, last: Occurrence) -> int:
        """Return the greatest distance from the beginning of `first` to the end of `last`."""
        if first is last and not first.parts:
            return 0  # a primitive event has no duration, however wide its interval
        return self.relation.ends(last)[1] - self.relation.begins(first)[0]

    def _is_close(self, before: Occurrence, after: Occurrence) -> bool:
        gap_us = self.layout.gap_us
        return gap_us is None or (
            self.relation.begins(after)[0] - self.relation.ends(before)[1] <= gap_us
        )

    def _is_surely_close(self, before: Occurrence, after: Occurrence) -> bool:
        gap_us = self.layout.gap_us
        return gap_us is None or (
            self.relation.begins(after)[1] - self.relation.ends(before)[0] <= gap_us
        )

    # -- evaluation --------------------------------------------------------------------------

    def judged(self, path: Path, *, is_closed: bool) -> Possible | None:
        """Return the candidate of a path with its doubts, or None if it is impossible."""
        layout, relation = self.layout, self.relation
        if not self._has_bounds(path):
            return None
        first, last = path[0][1][3], path[-1][1][3]
        doubts: list[Doubt] = []
        if layout.window_us is not None:
            if self._least_us(first, last) > layout.window_us:
                return None
            if self._most_us(first, last) > layout.window_us:
                doubts.append((first, last))
        for (_, a), (_, b) in pairwise(path):
            if not (relation.precedes(a[3], b[3]) and self._is_surely_close(a[3], b[3])):
                doubts.append((a[3], b[3]))
        parts = [(layout.stages[number], entry) for number, entry in path]
        growing = self.shared.growing(parts)
        negated = self._negated(path, is_closed=is_closed, growing=growing)
        if negated is None:
            return None
        doubts += negated
        if layout.is_picky:
            between = self._between(path, growing)
            if between is None:
                return None
            doubts += between
        candidate = self._candidate(path)
        holds = self._holds(candidate, path)
        if not holds and not self.shared.is_unsettled(parts):
            return None
        is_certain = holds and not doubts
        return Possible(
            candidate,
            is_certain=is_certain,
            doubts=dict.fromkeys(doubts),
            is_closed=is_closed,
            is_early=bool(growing) and not is_certain,
        )

    def _negated(
        self, path: Path, *, is_closed: bool, growing: Container[tuple[str, str]]
    ) -> list[Doubt] | None:
        """Return the doubts about forbidden events in the path; None: one lies there for sure.

        An event of the keys in `growing` may turn out to be in a constituent.
        """
        chain = [entry[3] for _, entry in path]
        found: list[Doubt] = []
        for x, gaps, is_reached in self._gaps(path, is_closed=is_closed):
            may_lie, may_lie_elsewhere, at = self._may_lie(x, chain, gaps)
            if not may_lie_elsewhere and is_reached and x.key not in growing:
                return None
            if may_lie:
                found.append((x, chain[at]))
        return found

    def _gaps(self, path: Path, *, is_closed: bool) -> Iterable[tuple[Occurrence, set[int], bool]]:
        """Return forbidden events, each with its gaps and whether the window certainly reaches it.

        A gap is the number of constituents before it. Events negated at the start or the end are
        forbidden only within the window.
        """
        relation, layout = self.relation, self.layout
        window_us = layout.window_us
        first, last = path[0][1][3], path[-1][1][3]
        # Skip the path's own events: each has its place in the path, hence none in between.
        own = {leaf for _, entry in path for leaf in leaves(entry[3])}
        gaps = [(0, path[0][0], 0)]
        for count, ((number, _), (follower, _)) in enumerate(pairwise(path), 1):
            if number != follower:
                gaps.append((number + 1, follower, count))
        if is_closed:
            gaps.append((path[-1][0] + 1, len(self.group.forbidden) - 1, len(path)))
        found: dict[int, tuple[Occurrence, set[int], bool]] = {}
        for low, high, count in gaps:
            for number in range(low, high + 1):
                for x in self._forbidden(number):
                    if id(x) in own:
                        continue
                    is_reached = True
                    if count == 0 and window_us is not None:
                        # A prefix may begin if its first constituent alone may.
                        least, most = relation.ends(first if self.is_prefix else last)
                        if relation.ends(x)[1] < least - window_us:
                            continue
                        is_reached = relation.ends(x)[0] >= most - window_us
                    if count == len(path) and is_closed and window_us is not None:
                        least, most = relation.begins(first)
                        if relation.begins(x)[0] > most + window_us:
                            continue
                        is_reached = relation.begins(x)[1] <= least + window_us
                    known = found.setdefault(id(x), (x, set(), True))
                    known[1].add(count)
                    found[id(x)] = (x, known[1], known[2] and is_reached)
        return found.values()

    def _may_lie(
        self, x: Occurrence, chain: list[Occurrence], gaps: set[int]
    ) -> tuple[bool, bool, int]:
        """Return whether an event may lie in one of these gaps of a chain, and whether elsewhere.

        The whole chain matters: neighbours may allow a place that others exclude. An event without
        any place shares its microsecond with several constituents that a clock orders. The third
        result is the index of a constituent next to such a gap.
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
        lying = places & gaps
        at = min(lying, default=0)
        beside = at if at < count and not relation.precedes(x, chain[at]) else max(at - 1, 0)
        return bool(lying), at_once or not places or not places <= gaps, beside

    def _between(self, path: Path, growing: Container[tuple[str, str]]) -> list[Doubt] | None:
        """Return the doubts about events between neighbours; None: one lies there for sure.

        An event of the keys in `growing` may turn out to be in a constituent.
        """
        relation, layout = self.relation, self.layout
        found: list[Doubt] = []
        own = {leaf for _, entry in path for leaf in leaves(entry[3])}
        for place in range(1, len(path)):
            (_, before), (number, after) = path[place - 1], path[place]
            is_last = not self.is_prefix and place == len(path) - 1
            for x in self._others(number):
                if id(x[3]) in own or any(x[2] == entry[2] for _, entry in path):
                    continue
                # Skip events that are certainly not between; `surely`: certainly between.
                if layout.is_strict:
                    if relation.is_behind(x, before):
                        continue
                    surely = relation.is_behind(before, x)
                else:
                    if not relation.may_precede(before[3], x[3]):
                        continue
                    surely = relation.precedes(before[3], x[3])
                if relation.is_behind(after, x):
                    continue
                surely = surely and relation.is_behind(x, after)
                if not layout.is_strict:
                    may, is_sure = self._is_eligible(path[:place], number, x, is_last)
                    if not may:
                        continue
                    surely = surely and is_sure
                is_decided = x[2] < YET_TO_BE_FED and x[2] not in self.shared.doubtful
                if surely and is_decided and x[3].key not in growing:
                    return None
                found.append((x[3], before[3] if not surely else after[3]))
        return found

    def _others(self, number: int) -> Iterator[Entry]:
        """Yield events that must not lie between neighbours, including those yet to be fed."""
        if not self.layout.is_strict:
            yield from (e for e in self.group.taken[number] if e[2] not in self.shared.gone)
            for entry, stages in self._waiting:
                if number in stages:
                    yield entry
            return
        yield from self.group.all
        for place, o in enumerate(self.shared.awaited):
            if o.key in self.keys and self._has_key(o):
                yield (o.us, o.id or "", YET_TO_BE_FED + place, o, None)

    def _is_eligible(
        self, prefix: Path, number: int, entry: Entry, is_last: bool
    ) -> tuple[bool, bool]:
        """Return whether an entry may extend a prefix, and whether it certainly does.

        Predicates that read are not evaluated: they don't decide which event is the next one.
        """
        first, before, o = prefix[0][1][3], prefix[-1][1][3], entry[3]
        window_us, layout = self.layout.window_us, self.layout
        if window_us is not None and self._least_us(first, o) > window_us:
            return False, False
        if not self._is_close(before, o):
            return False, False
        surely = self._is_surely_close(before, o) and (
            window_us is None or self._most_us(first, o) <= window_us
        )
        predicates = layout.predicates
        path = [*prefix, (number, entry)]
        if is_last and layout.begins_negated:
            growing = self.shared.growing((layout.stages[n], each) for n, each in path)
            negated = self._negated(path, is_closed=False, growing=growing)
            if negated is None:
                return False, False
            surely = surely and not negated
        if not (predicates.are_staged or (is_last and predicates.final)):
            return True, surely
        stages = self.layout.stages[: self.count]
        parts = parts_of(self._candidate(path), stages)
        count = sum(stage == number for stage, _ in path)
        try:
            holds = predicates.joins(number, count, parts)
            if holds and is_last:
                left = all(predicates.leaves(each, parts) for each in range(number, self.count))
                holds = left and predicates.holds_finally(parts)
            return holds, surely
        except Exception:
            if entry[2] < YET_TO_BE_FED:
                raise
            return True, False  # an event yet to be fed may lack an attribute

    def _holds(self, candidate: Candidate, path: Path) -> bool:
        predicates = self.layout.predicates
        if predicates.is_empty:
            return True
        if not self._is_trial:
            return self._fulfils(candidate, path)
        try:
            return self._fulfils(candidate, path)
        except Exception:
            return True  # an event yet to be fed may lack an attribute

    def _fulfils(self, candidate: Candidate, path: Path) -> bool:
        predicates, stages = self.layout.predicates, self.layout.stages[: self.count]
        counts = [0] * len(stages)
        for place, (number, _) in enumerate(path):
            counts[number] += 1
            parts = parts_of(self._candidate(path[: place + 1]), stages)
            if not predicates.joins(number, counts[number], parts):
                return False
        whole = parts_of(candidate, stages)
        if not all(predicates.leaves(number, whole) for number in range(self.count)):
            return False
        if self.is_prefix:
            return True
        if self._is_trial and predicates.readings:
            return predicates.holds_finally(whole)
        return predicates.completes(whole, self.moment, self.layout.index)

    # -- candidates and forbidden events -----------------------------------------------------

    def _candidate(self, path: Path) -> Candidate:
        bound: list[Any] = [[] if stage.kleene else None for stage in self.layout.stages]
        for number, entry in path:
            if self.layout.stages[number].kleene:
                bound[number].append(entry)
            else:
                bound[number] = entry
        found = [tuple(b) if type(b) is list else b for b in bound]
        return tuple(found[: self.count])

    def _forbidden(self, number: int) -> Iterator[Occurrence]:
        for entry in self.group.forbidden[number]:
            yield entry[3]
        yield from self._contemporaries[number]

    def _forbidding(self) -> list[list[Occurrence]]:
        """Return, by place, the events yet to be fed that would be forbidden there."""
        found: list[list[Occurrence]] = []
        for parts in self.layout.negated:
            found.append(
                [
                    o
                    for o in self.shared.awaited
                    if any(
                        primitive.takes(o) and self._has_key(o)
                        for part in parts
                        for primitive in part.alternatives
                    )
                ]
            )
        return found

    def _has_key(self, o: Occurrence) -> bool:
        return self.group.has_key(o, self.layout.attributes)
