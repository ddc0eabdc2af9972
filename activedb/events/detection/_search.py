"""Search for the candidates of a sequence that a constituent or the end of a window completes.

README.md, "Search", explains it.

README.md, "Search", explains floors and viability.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from activedb.events.detection._choice import covers
from activedb.events.detection._entry import Candidate, Entry, leaves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb.events.detection._choice import Span
    from activedb.events.detection._group import EntryGroup
    from activedb.events.detection._moment import Moment
    from activedb.events.detection._traits import SequenceLayout

__all__ = ["Search", "Viability"]


_NEVER = -(2**200)


class _WindowEnd:
    """Pseudo-occurrence at the end of a window; it comes after everything at that time."""

    __slots__ = ("high_us", "low_us")

    def __init__(self, us: int):
        self.low_us = self.high_us = us + 1


class Viability:
    """Viable entries of one group, which lead to a last constituent or the end of a window.

    Parameters
    ----------
    layout : SequenceLayout
        The layout of the sequence.
    group : EntryGroup
    moment : Moment
    stage : int
        The stage of the last constituent; for the end of a window, the number of stages before it.
    last : Entry or None
        The last constituent; None for the end of a window.
    end_us : int, optional
        The end of the window. It is given together with `last` if a negation may follow; the first
        constituent must then be at the beginning of that window.
    negated_end : bool
        True if the negated parts up to the end of the window count; False for a prefix.
    without : set of int
        Arrivals of entries that must not be constituents.
    one_per_first : bool
        True if the most preferred candidate for each first constituent suffices.
    skipped : sequence of Span
        The spans in which no candidate may begin.
    since : int
        Least arrival that some constituent must have: earlier ends of this window have decided the
        other candidates.
    """

    def __init__(
        self,
        layout: SequenceLayout,
        group: EntryGroup,
        moment: Moment,
        stage: int,
        last: Entry | None,
        end_us: int | None = None,
        *,
        negated_end: bool = True,
        without: set[int] | frozenset[int] = frozenset(),
        one_per_first: bool = False,
        skipped: Sequence[Span] = (),
        since: int = -1,
    ):
        self.layout = layout
        self.group = group
        self.moment = moment
        self.stage = stage
        self.at_end = last is None
        self.negated_end = negated_end
        self.end_us = end_us
        if last is None:
            assert end_us is not None
            last = (end_us + 1, "", 0, _WindowEnd(end_us), None)
        self.last: Entry = last
        self.without = without
        self.skipped = skipped
        self.since = since
        # Under next and strict, only the most preferred candidate with the same ends counts. At the
        # end of a window the last constituents differ.
        self.one_per_ends = layout.is_picky and self.at_end
        self.one_per_first = one_per_first if self.at_end else layout.is_picky
        if self.one_per_ends:
            self.one_per_first = False
        elif one_per_first:
            self.one_per_first = True
        window_us = layout.window_us
        # Start of the window that the last constituent ends, and required time of the first one.
        self.start_us = self.begin_us = None
        if window_us is not None:
            self.start_us = last[3].high_us - window_us
            if end_us is not None:
                self.begin_us = end_us - window_us
                if self.at_end:
                    self.start_us = self.begin_us
        # Time of the earliest entry with which any candidate may begin, if known.
        self._first_us: int | None = None
        # Viable entries by stage: some chain of them leads to the last constituent.
        self.viable: list[list[Entry]] = []
        self._lows: list[list[int]] = []
        self._floors: list[list[int]] = []
        self._inner_floors: list[list[int]] = []

    @property
    def is_prefix(self) -> bool:
        return self.at_end and not self.negated_end

    def _may_close(self, number: int) -> bool:
        return self.is_prefix or self.layout.closes[number]

    # -- viability ---------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Determine the viable entries; return whether there can be a candidate at all.

        Complexity: O(m log m) for m entries of the group within reach.
        """
        stages, stage, last = self.layout.stages, self.stage, self.last
        count = stage + 1
        if stage and self.layout.begins_alone:
            if not self.group.taken[0]:
                return False
            self._first_us = self.group.taken[0][0][0]
        self.viable = [[] for _ in range(count)]
        self._lows = [[] for _ in range(count)]
        self._floors = [[] for _ in range(count)]
        self._inner_floors = [[] for _ in range(count)]
        for number in range(stage, -1, -1):
            if number == stage:
                found = [last]
                if not self.at_end and stages[stage].kleene:
                    found = [*self._leading(number, found), last]
            else:
                found = self._leading(number, [])
                if not found and stages[number].minimum:
                    return False
            self.viable[number] = found
            self._lows[number] = [entry[3].low_us for entry in found]
            self._floors[number] = [self._floor(number, entry) for entry in found]
            if number < len(stages) and stages[number].kleene:
                self._inner_floors[number] = [self._inner_floor(number, e) for e in found]
        return True

    def _leading(self, number: int, found: list[Entry]) -> list[Entry]:
        """Return the entries of a stage from which a chain leads to the last constituent.

        `found` has the viable entries of the same stage that are known already.
        """
        stages = self.layout.stages
        last_low_us, start_us, without = self.last[3].low_us, self.start_us, self.without
        entries = self.group.taken[number]
        low = 0 if start_us is None else bisect_left(entries, (start_us,))
        if number and self._first_us is not None:
            low = bisect_left(entries, (self._first_us,), low)  # skip those before any first one
        high = bisect_left(entries, (last_low_us,))
        repeats = stages[number].kleene and stages[number].maximum != 1
        followers: list[int] = []
        for follower in range(number + 1, self.stage + 1):
            if self.viable[follower]:
                followers.append(follower)
            if follower == self.stage or stages[follower].minimum:
                break
        # An entry that ends before the floors of all followers is not viable, nor are older ones.
        least_us = min((us for each in followers for us in self._floors[each]), default=None)
        leading: list[Entry] = []
        # Elements of the same Kleene part: the nearest later viable element, and the viable element
        # at the time of the current entry, to which only earlier entries can lead.
        nearest: Entry | None = found[0] if found else None
        level: Entry | None = None
        for place in range(high - 1, low - 1, -1):
            entry = entries[place]
            if without and entry[2] in without:
                continue
            o = entry[3]
            if start_us is not None and o.low_us < start_us:
                continue
            if level is not None and level[0] > entry[0]:
                nearest, level = level, None
            if (least_us is None or o.high_us < least_us) and not (
                repeats
                and any(
                    later is not None and self._inner_floor(number, later) <= o.high_us
                    for later in (nearest, level)
                )
            ):
                break
            if (repeats and nearest is not None and self._repeats(number, entry, nearest)) or any(
                self._leads(number, entry, follower) for follower in followers
            ):
                leading.append(entry)
                level = entry
        leading.reverse()
        return leading

    def _repeats(self, number: int, entry: Entry, nearest: Entry) -> bool:
        high_us = entry[3].high_us
        return bool(high_us < nearest[3].low_us and self._inner_floor(number, nearest) <= high_us)

    def _leads(self, number: int, entry: Entry, follower: int) -> bool:
        """Return whether some viable entry of a later stage can be the next constituent."""
        if follower == self.stage and self.at_end and not self._may_close(number):
            return False
        high_us = entry[3].high_us
        lows, floors = self._lows[follower], self._floors[follower]
        # The open places at the end of a prefix are not evaluated.
        skips = follower > number + 1 and not (self.is_prefix and follower == self.stage)
        if self.layout.is_exact[follower]:
            places = range(bisect_right(lows, high_us), len(lows))
        else:
            places = range(len(lows))
        for place in places:
            if lows[place] <= high_us:
                continue
            if floors[place] <= high_us and not (
                skips and self._is_barred(number, follower, high_us, lows[place])
            ):
                return True
            if self.layout.is_exact[follower] and not skips:
                return False  # the floors increase
        return False

    def _floor(self, number: int, entry: Entry) -> int:
        """Return the earliest end of the constituent before the first one of a stage."""
        low_us = entry[3].low_us
        floor_us = _NEVER
        if not self.at_end or number < self.stage:
            floor_us = self._inner_floor(number, entry)
            forbidden = self.group.forbidden[number]
            if forbidden:
                place = bisect_left(forbidden, (low_us,))
                if place and forbidden[place - 1][0] > floor_us:
                    floor_us = forbidden[place - 1][0]
        elif self.negated_end:
            for number_after in range(self.stage, len(self.group.forbidden)):
                forbidden = self.group.forbidden[number_after]
                place = bisect_left(forbidden, (low_us,))
                if place and forbidden[place - 1][0] > floor_us:
                    floor_us = forbidden[place - 1][0]
        return floor_us

    def _inner_floor(self, number: int, entry: Entry) -> int:
        """Return the floor for neighbours in a Kleene part, between which nothing is negated."""
        layout = self.layout
        floor_us = _NEVER
        if layout.gap_us is not None:
            floor_us = entry[3].low_us - layout.gap_us
        if layout.is_next and layout.next_is_local[number]:
            # An earlier entry of this stage would have been the next constituent.
            entries = self.group.taken[number]
            place = bisect_left(entries, entry[:3])
            if place and entries[place - 1][0] > floor_us:
                floor_us = entries[place - 1][0]
        elif layout.is_strict and layout.is_exact[number]:
            entries = self.group.all
            place = bisect_left(entries, entry[:3])
            if place and entries[place - 1][0] > floor_us:
                floor_us = entries[place - 1][0]
        return floor_us

    def _is_barred(self, number: int, follower: int, high_us: int, low_us: int) -> bool:
        """Return whether a forbidden event lies between, at a place next to empty parts."""
        for between in range(number + 1, follower):
            forbidden = self.group.forbidden[between]
            place = bisect_left(forbidden, (low_us,))
            if place and forbidden[place - 1][0] > high_us:
                return True
        return False


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
        holds = self._holds(number, self._parts) is not None
        self._put_back(changed)
        return holds

    # -- completion --------------------------------------------------------------------------

    def _complete(self, number: int, count: int) -> Candidate | None:
        """Return the candidate of the path and the last constituent; None if a condition fails."""
        layout, last, path = self.layout, self.last, self._path
        if self.since >= 0 and not self._is_new():
            return None
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
                whole = self._holds(number, self._parts)
                if whole is None:
                    return None
                if not layout.predicates.reads_true(whole, self.moment, layout.index):
                    return None
            return self._candidate(path)
        finally:
            path.pop()
            self._put_back(changed)

    def _is_new(self) -> bool:
        """Return whether a constituent has arrived since the end of the window was decided."""
        arrivals = [entry[2] for _, entry in self._path]
        if not self.at_end:
            arrivals.append(self.last[2])
        return max(arrivals) >= self.since

    def _holds(self, number: int, parts: dict[str, Any]) -> dict[str, Any] | None:
        """Return the parts with the empty ones after the last constituent; None: not a match.

        Predicates that read are not evaluated.
        """
        predicates, stages = self.layout.predicates, self.layout.stages
        if not predicates.leaves(number, parts):
            return None
        whole = dict(parts)
        for later in range(number + 1, len(stages)):
            whole[stages[later].name] = ()
            if not predicates.leaves(later, whole):
                return None
        return whole if predicates.holds_finally(whole) else None

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
