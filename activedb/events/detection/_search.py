"""Search for the candidates of a sequence that a constituent or the end of a window completes.

README.md, "Search", explains it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any

from activedb.events.detection._entry import Candidate, Entry, leaves
from activedb.events.detection._skips import covers
from activedb.events.detection._viability import Viability

__all__ = ["Search"]

_LEAVE = object()
_MISSING = object()


class Search(Viability):
    """Depth-first search in one group; see `Viability` for its parameters."""

    # -- candidates --------------------------------------------------------------------------

    def candidates(self, first: Entry | None = None) -> Iterator[Candidate]:
        """Yield the candidates in the order of preference.

        The search is depth first and only visits viable entries. Without predicates and bounds of
        Kleene parts, no step is wasted.

        Parameters
        ----------
        first : Entry, optional
            Restrict the search to candidates with this first constituent.
        """
        if not self.prepare():
            return
        layout, last = self.layout, self.last
        judged = not layout.predicates.is_empty
        path: list[tuple[int, Entry]] = []
        parts: dict[str, Any] = {}
        self._path, self._parts = path, parts
        begun: set[int] = set()
        ends: set[tuple[int, int]] = set()
        # Each frame: its options, the stage, the number of constituents in it, whether an entry was
        # placed to get there, and the old values to restore in the parts.
        frames: list[tuple[Iterator[Any], int, int, bool, list[tuple[str, Any]]]] = [
            (self._options(0, 0, first), 0, 0, False, [])
        ]
        while frames:
            options, number, count, placed, old = frames[-1]
            option = next(options, None)
            if option is None:
                frames.pop()
                if placed:
                    path.pop()
                self._put_back(old)
                continue
            if option is _LEAVE:
                changed: list[tuple[str, Any]] = []
                if judged:
                    if not count:
                        name = layout.stages[number].name
                        changed.append((name, parts.get(name, _MISSING)))
                        parts[name] = ()
                    if not layout.predicates.leaves(number, parts):
                        self._put_back(changed)
                        continue
                frames.append((self._options(number + 1, 0, first), number + 1, 0, False, changed))
                continue
            entry: Entry = option
            if not path and self.one_per_first and entry[2] in begun:
                continue
            if entry is last:
                if self.one_per_ends:
                    both = (path[0][1][2], path[-1][1][2])
                    if both in ends:
                        continue
                found = self._complete(number, count)
                if found is None:
                    continue
                if self.one_per_ends:
                    ends.add(both)
                begun.add(path[0][1][2] if path else last[2])
                yield found
                if self.one_per_first:
                    # Continue with the next first constituent.
                    while path:
                        _, _, _, was_placed, old = frames.pop()
                        if was_placed:
                            path.pop()
                        self._put_back(old)
                continue
            changed = []
            if judged:
                changed = self._place(number, entry, count)
                if not layout.predicates.joins(number, count + 1, parts):
                    self._put_back(changed)
                    continue
            path.append((number, entry))
            if layout.stages[number].kleene:
                frames.append(
                    (self._options(number, count + 1, first), number, count + 1, True, changed)
                )
            else:
                frames.append((self._options(number + 1, 0, first), number + 1, 0, True, changed))

    def _put_back(self, changed: list[tuple[str, Any]]) -> None:
        for name, value in reversed(changed):
            if value is _MISSING:
                self._parts.pop(name, None)
            else:
                self._parts[name] = value

    def _place(self, number: int, entry: Entry, count: int) -> list[tuple[str, Any]]:
        """Put an entry into the parts; return the old values."""
        parts, stage = self._parts, self.layout.stages[number]
        if stage.kleene:
            before = parts.get(stage.name, _MISSING)
            parts[stage.name] = (*(before if count else ()), entry[3])
            return [(stage.name, before)]
        if entry[4] is None:
            before = parts.get(stage.name, _MISSING)
            parts[stage.name] = entry[3]
            return [(stage.name, before)]
        changed = [(name, parts.get(name, _MISSING)) for name in entry[4]]
        parts.update(entry[4])
        return changed

    # -- all candidates at once ----------------------------------------------------------------

    def latest(self) -> Iterator[Candidate]:
        """Yield the candidate with the latest constituents, if the layout `is_simple`.

        Complexity: O(m log m), while the number of candidates may be m to the power of the stages.
        """
        reached = self._reached()
        if reached is None:
            return
        chosen = [self.last]
        for entries in reached[-2::-1]:
            # Some of them can be before it; of those the latest one has the fewest obstacles.
            place = bisect_left(entries, (chosen[-1][3].low_us,))
            chosen.append(entries[place - 1])
        yield tuple(reversed(chosen))

    def cumulated(self) -> Iterator[Candidate]:
        """Yield one candidate with all constituents by stage, if the layout `is_simple`."""
        reached = self._reached()
        if reached is not None:
            yield tuple(map(tuple, reached))

    def _reached(self) -> list[list[Entry]] | None:
        """Return the entries of candidates by stage; None if there are no candidates."""
        if not self.prepare():
            return None
        reached = [[entry for entry in self.viable[0] if self._begins(0, entry)]]
        for number in range(1, self.stage + 1):
            before, found = reached[-1], []
            for entry, floor_us in zip(self.viable[number], self._floors[number], strict=True):
                place = bisect_left(before, (entry[3].low_us,))
                if place and before[place - 1][0] >= floor_us:
                    found.append(entry)
            reached.append(found)
        return reached if reached[-1] else None

    # -- options -----------------------------------------------------------------------------

    def _options(self, number: int, count: int, first: Entry | None) -> Iterator[Any]:
        """Yield what may come next in a stage with `count` constituents, preferred first."""
        path = self._path
        before = path[-1] if path else None
        if number == self.stage and self.at_end:
            if before is not None and self._reaches_end(before):
                yield self.last
            return
        stage = self.layout.stages[number]
        if not stage.kleene:
            yield from self._entries(number, 0, before, first)
            return
        may_leave = count >= stage.minimum and number < self.stage
        if may_leave and not stage.greedy:
            yield _LEAVE
        if stage.maximum is None or count < stage.maximum:
            yield from self._entries(number, count, before, first)
        if may_leave and stage.greedy:
            yield _LEAVE

    def _entries(
        self, number: int, count: int, before: tuple[int, Entry] | None, first: Entry | None
    ) -> Iterator[Entry]:
        layout = self.layout
        only_last = number == self.stage and not layout.stages[number].kleene
        if before is None:
            for entry in self.viable[number]:
                if (first is None or entry[2] == first[2]) and self._begins(number, entry):
                    yield entry
            return
        if layout.is_next and not layout.next_is_local[number]:
            yield from self._first_eligible(number, count, before)
            return
        high_us = before[1][3].high_us
        inner = count > 0
        viable, lows = self.viable[number], self._lows[number]
        floors = self._inner_floors[number] if inner else self._floors[number]
        skips = number > before[0] + 1
        exact, strict = layout.is_exact[number], layout.is_strict
        start = bisect_right(lows, high_us) if exact else 0
        for place in range(start, len(viable)):
            entry = viable[place]
            if lows[place] <= high_us or (only_last and entry is not self.last):
                continue
            if floors[place] > high_us:
                if exact:
                    return  # the floors increase
                continue
            if skips and self._is_barred(before[0], number, high_us, lows[place]):
                continue
            if strict and not self._is_next_to(before[1], entry):
                continue
            yield entry

    def _begins(self, number: int, entry: Entry) -> bool:
        """Return whether an entry can be the first constituent, judging by the entry alone."""
        o = entry[3]
        layout = self.layout
        if self.begin_us is not None and o.low_us != self.begin_us:
            return False
        if self.start_us is not None and o.low_us < self.start_us:
            return False
        if self.skipped and covers(self.skipped, entry[:3]):
            return False
        if self.at_end:
            return True  # negations before it are evaluated with the last constituent
        return not layout.begins_negated or not self._negated_before(number, o, self.start_us)

    def _negated_before(self, number: int, o: Any, start_us: int | None) -> bool:
        """Return whether a negated event lies in the window before the first constituent."""
        for place_number in range(number + 1):
            forbidden = self.group.forbidden[place_number]
            if forbidden:
                place = 0 if start_us is None else bisect_left(forbidden, (start_us,))
                if place < len(forbidden) and forbidden[place][0] < o.low_us:
                    return True
        return False

    def _is_next_to(self, before: Entry, entry: Entry) -> bool:
        """Return whether no foreign event lies between two neighbours, by place."""
        entries = self.group.all
        low = bisect_right(entries, before[:3], key=_place_of)
        high = bisect_left(entries, entry[:3])
        if low >= high:
            return True
        own = {*leaves(before[3]), *leaves(entry[3])}
        for _, other in self._path:
            own.update(leaves(other[3]))
        return all(id(other[3]) in own for other in entries[low:high])

    def _reaches_end(self, before: tuple[int, Entry]) -> bool:
        if not self._may_close(before[0]):
            return False
        if not self.negated_end:
            return bool(before[1][3].high_us < self.last[3].low_us)
        low_us, high_us = self.last[3].low_us, before[1][3].high_us
        if high_us >= low_us:
            return False
        for number in range(before[0] + 1, len(self.group.forbidden)):
            forbidden = self.group.forbidden[number]
            place = bisect_left(forbidden, (low_us,))
            if place and forbidden[place - 1][0] > high_us:
                return False
        return True

    # -- eligibility for the selection next ------------------------------------------------------

    def _first_eligible(
        self, number: int, count: int, before: tuple[int, Entry]
    ) -> Iterator[Entry]:
        """Yield the first eligible entry after `before`, if it is viable; then the last one.

        Eligibility is evaluated with the current path. This handles predicates and intervals, for
        which a look at neighbours does not suffice.
        """
        last = self.last
        stage = self.layout.stages[number]
        entries = self.group.taken[number]
        limit = last[:3]
        is_last_stage = number == self.stage and not self.at_end
        intermediate: Entry | None = None
        blocked = False
        for entry in entries[bisect_right(entries, (before[1][3].high_us,), key=_us_of) :]:
            if entry[:3] >= limit:
                break
            if not self._is_eligible(number, count, before, entry):
                continue
            if intermediate is None and not (is_last_stage and not stage.kleene):
                intermediate = entry
                if not is_last_stage:
                    break
            if is_last_stage and not blocked:
                blocked = self._is_eligible_last(number, count, before, entry)
            if blocked and (intermediate is not None or not stage.kleene):
                break
        if intermediate is not None and intermediate[2] in {e[2] for e in self.viable[number]}:
            yield intermediate
        if is_last_stage and not blocked and self._is_eligible(number, count, before, last):
            yield last

    def _is_eligible(
        self, number: int, count: int, before: tuple[int, Entry], entry: Entry
    ) -> bool:
        layout = self.layout
        high_us, low_us = before[1][3].high_us, entry[3].low_us
        if low_us <= high_us or (
            entry is not self.last and entry[3].high_us > self.last[3].high_us
        ):
            return False
        if layout.gap_us is not None and low_us - high_us > layout.gap_us:
            return False
        if (
            layout.window_us is not None
            and entry[3].high_us - self._path[0][1][3].low_us > layout.window_us
        ):
            return False
        if count == 0:
            for between in range(before[0] + 1, number + 1):
                forbidden = self.group.forbidden[between]
                place = bisect_left(forbidden, (low_us,))
                if place and forbidden[place - 1][0] > high_us:
                    return False
        if layout.predicates.are_staged:
            changed = self._place(number, entry, count)
            holds = layout.predicates.joins(number, count + 1, self._parts)
            self._put_back(changed)
            return holds
        return True

    def _is_eligible_last(
        self, number: int, count: int, before: tuple[int, Entry], entry: Entry
    ) -> bool:
        """Return whether an eligible entry could be the last constituent."""
        layout = self.layout
        stage = layout.stages[number]
        if stage.kleene and count + 1 < stage.minimum:
            return False
        first_number, first = self._path[0]
        window_us = layout.window_us
        if layout.begins_negated and self._negated_before(
            first_number,
            first[3],
            None if window_us is None else entry[3].high_us - window_us,
        ):
            return False
        if layout.predicates.is_empty:
            return True
        changed = self._place(number, entry, count)
        holds = self._judge_complete(number, self._parts)
        self._put_back(changed)
        return holds

    # -- completion --------------------------------------------------------------------------

    def _complete(self, number: int, count: int) -> Candidate | None:
        """Return the candidate of the path and the last constituent; None if a condition fails."""
        layout, last, path = self.layout, self.last, self._path
        if self.at_end:
            if layout.begins_negated and not self.is_prefix:
                assert layout.window_us is not None
                start_us = path[-1][1][3].high_us - layout.window_us
                if self._negated_before(path[0][0], path[0][1][3], start_us):
                    return None
            if self.is_prefix:
                return self._candidate(path)
            if not layout.predicates.completes(self._parts, self.moment, layout.index):
                return None
            return self._candidate(path)
        stage = layout.stages[number]
        if stage.kleene and count + 1 < stage.minimum:
            return None
        path.append((number, last))
        changed: list[tuple[str, Any]] = []
        try:
            if self._is_closed(number):
                return None
            if not layout.predicates.is_empty:
                changed = self._place(number, last, count)
                if not layout.predicates.joins(number, count + 1, self._parts):
                    return None
                if not self._judge_complete(number, self._parts):
                    return None
            return self._candidate(path)
        finally:
            path.pop()
            self._put_back(changed)

    def _judge_complete(self, number: int, parts: dict[str, Any]) -> bool:
        predicates = self.layout.predicates
        if not predicates.leaves(number, parts):
            return False
        whole = dict(parts)
        for later in range(number + 1, len(self.layout.stages)):
            whole[self.layout.stages[later].name] = ()
            if not predicates.leaves(later, whole):
                return False
        return predicates.completes(whole, self.moment, self.layout.index)

    def _is_closed(self, number: int) -> bool:
        """Return whether a negated event lies between the last constituent and the window's end."""
        if self.end_us is None or self.at_end:
            return False
        high_us = self.last[3].high_us
        for later in range(number + 1, len(self.group.forbidden)):
            forbidden = self.group.forbidden[later]
            place = bisect_left(forbidden, (self.end_us + 1,))
            if place and forbidden[place - 1][0] > high_us:
                return True
        return False

    def _candidate(self, path: list[tuple[int, Entry]]) -> Candidate:
        stages = self.layout.stages
        count = self.stage if self.is_prefix else len(stages)
        bound: list[Any] = [[] if stage.kleene else None for stage in stages[:count]]
        for number, entry in path:
            if entry is self.last and self.at_end:
                continue
            if stages[number].kleene:
                bound[number].append(entry)
            else:
                bound[number] = entry
        return tuple([tuple(b) if type(b) is list else b for b in bound])


def _place_of(entry: Entry) -> tuple[int, str, int]:
    return entry[:3]


def _us_of(entry: Entry) -> tuple[int]:
    return entry[:1]
