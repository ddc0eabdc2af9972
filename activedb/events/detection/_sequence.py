"""Node of a sequence, with a fast search for the simplest sequences (README, "Search").

README.md, "Search", explains floors and viability.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import merge
from sys import maxsize
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent
from activedb.events._choices import Context
from activedb.events._expressions import Sequence
from activedb.events.detection._backtracking import Backtracking
from activedb.events.detection._choice import Chooser, Span, covers
from activedb.events.detection._combination import Children, CombinationNode, Item
from activedb.events.detection._entry import Candidate, Entry, Possible, constituents
from activedb.events.detection._forgetting import Forgetting
from activedb.events.detection._group import EntryGroup
from activedb.events.detection._journal import Journal, assign
from activedb.events.detection._moment import Moment
from activedb.events.detection._predicates import attribute
from activedb.events.detection._search import Search
from activedb.events.detection._traits import SequenceLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Sequence as Sequence_

    from activedb.events._occurrence import Occurrence
    from activedb.events.detection._node import DetectorState
    from activedb.events.detection._state import StateReader

__all__ = ["SequenceNode", "ways"]


_NEVER = -(2**200)


def ways(
    layout: SequenceLayout, group: EntryGroup, last: Entry, most: int | None = None
) -> list[tuple[Entry, ...]]:
    """Return the candidates that end with an entry, in the order of preference.

    With `most`, return at most `most` + 1 of them. Each beginning of a candidate leads to at least
    one, so no more beginnings are needed.

    Results are those of `Search.candidates`, in the same order, if the layout `is_straight` and all
    kept events are exact: then the only question is which entries may be neighbours.

    Complexity: O(m log m) for m entries within the window, plus the candidates.
    """
    limit = maxsize if most is None else most
    last_us = last[0]
    start_us = None if layout.window_us is None else last_us - layout.window_us
    final = len(layout.stages) - 1
    # By stage, last stage first: viable entries, their times and floors.
    viable: list[list[Entry]] = [[last]]
    times: list[list[int]] = [[last_us]]
    floors: list[list[int]] = [_floors(layout, group, final, viable[0])] if final else [[]]
    for number in range(final - 1, -1, -1):
        entries = group.taken[number]
        low = 0 if start_us is None else bisect_left(entries, (start_us,))
        later_us, later_floors = times[-1], floors[-1]
        place = len(later_us)
        found: list[Entry] = []
        for at in range(bisect_left(entries, (later_us[-1],)) - 1, low - 1, -1):
            us = entries[at][0]
            if us < later_floors[0]:
                break  # before all possible predecessors of the next constituents
            while place and later_us[place - 1] > us:
                place -= 1
            if later_floors[place] <= us:
                found.append(entries[at])
        if not found:
            return []
        found.reverse()
        viable.append(found)
        times.append([entry[0] for entry in found])
        floors.append(_floors(layout, group, number, found) if number else [])
    candidates: list[tuple[Entry, ...]] = [(entry,) for entry in viable[-1]]
    for number in range(final - 1, -1, -1):
        options, options_us, options_floors = viable[number], times[number], floors[number]
        longer: list[tuple[Entry, ...]] = []
        for candidate in candidates:
            if len(longer) > limit:
                break
            us = candidate[-1][0]
            for place in range(bisect_right(options_us, us), len(options)):
                if options_floors[place] > us:
                    break  # the floors increase
                longer.append((*candidate, options[place]))
        candidates = longer
    del candidates[limit + 1 :]
    return candidates


def _floors(
    layout: SequenceLayout, group: EntryGroup, number: int, entries: list[Entry]
) -> list[int]:
    """Return the earliest times of the predecessors of each of the entries of a stage."""
    gap_us, forbidden = layout.gap_us, group.forbidden[number]
    found: list[int] = []
    for entry in entries:
        us = entry[0]
        floor_us = _NEVER if gap_us is None else us - gap_us
        if forbidden:
            place = bisect_left(forbidden, (us,))
            if place and forbidden[place - 1][0] > floor_us:
                floor_us = forbidden[place - 1][0]
        found.append(floor_us)
    return found


# -- node of a sequence ----------------------------------------------------------------------------


_NO_MOMENT = Moment(None, None, [], {})
"""Placeholder on the fast path, which evaluates no readings."""


class SequenceNode(CombinationNode):
    """Node of a sequence.

    Attributes
    ----------
    layout : SequenceLayout
    is_memoryless : bool
        True if its state does not depend on the matches made, so that removing an event from the
        lists withdraws it.
    is_plain : bool
        True if `feed` can replace `evaluate`: every part is a single primitive event, and there are
        no selection, context, skip, readings, or matches completed by time.
    """

    __slots__ = (
        "_unconditional",
        "forgetting",
        "is_memoryless",
        "is_plain",
        "keeps_last",
        "last_stage",
        "layout",
        "sets_timer",
    )

    def __init__(
        self,
        expression: Sequence,
        children: Children,
        shared: DetectorState,
        index: int,
        horizon_us: int | None,
    ):
        self.layout = layout = SequenceLayout(expression, index)
        self.stages = layout.stages
        self.predicates = layout.predicates
        chooser = Chooser(expression.consumption, expression.skip, layout.stages)
        super().__init__(
            expression,
            layout.parts,
            layout.negated,
            children,
            chooser,
            shared,
            index,
            horizon_us,
        )
        self.last_stage = len(layout.stages) - 1
        self.needs_used = layout.is_picky
        self.keeps_last = False
        self.times_out = False
        # Events that a match uses up or skips may leave others that no match can need.
        forgets = chooser.uses_up or chooser.skips
        self.forgetting = Forgetting(self, layout) if forgets else None
        # By stage, whether its entries set a timer for the end of the window.
        self.sets_timer = [layout.is_closed_by_time and begins for begins in layout.may_begin]
        self.is_memoryless = (
            chooser.is_plain
            and not children.nodes
            and not children.clocks
            and not layout.is_closed_by_time
        )
        self.is_plain = (
            self.is_memoryless
            and not layout.is_picky
            and not layout.predicates.readings
            and not any(stage.kleene for stage in layout.stages)
            and not any(self.named_by_event)
            and not any(
                primitive.reading is not None
                for listeners in self.dispatch.values()
                for primitive, _, _ in listeners
            )
        )

        # For keys whose events are all taken: stages, forbidden places, and whether one is last.
        self._unconditional = {
            key: (
                [n for _, n, forbids in listeners if not forbids and n < self.last_stage],
                [n for _, n, forbids in listeners if forbids],
                any(n == self.last_stage and not forbids for _, n, forbids in listeners),
            )
            for key, listeners in self.dispatch.items()
            if not self.predicates.required
            and all(p.predicate is None and not p.columns for p, _, _ in listeners)
        }

    # -- the general path ----------------------------------------------------------------------

    def evaluate(self, moment: Moment) -> list[Entry]:
        if moment.index == self.index:
            return self._end_windows(moment)
        items = self.items(moment)
        if self.layout.is_strict:
            self.stand_in_between(moment, items)
        taken = self.take_in(items, moment)
        if self.shared.is_inexact:
            return self._evaluate_inexact(taken, moment)
        completed = [(group, self.completed(group, own, moment)) for group, own in taken]
        made = self.make(completed, moment)
        for group, _ in taken:
            self.settle(group, moment.journal)
        return made

    def take_in(self, items: list[Item], moment: Moment) -> list[tuple[EntryGroup, list[Item]]]:
        """Keep the items; return them by group."""
        by_key: dict[tuple[object, ...], list[Item]] = {}
        for item in items:
            by_key.setdefault(self.key_of(item[0][3]), []).append(item)
        found: list[tuple[EntryGroup, list[Item]]] = []
        for key, own in by_key.items():
            group = self.group(key, moment.journal)
            for item in own:
                self._keep(group, item, moment)
            found.append((group, own))
        return found

    def completed(
        self, group: EntryGroup, items: list[Item], moment: Moment, *, one_per_first: bool = False
    ) -> Iterable[Candidate]:
        """Return the candidates that the items complete, in the order of preference."""
        layout, picky = self.layout, self.layout.is_picky
        # Under next and strict, used-up entries still count; otherwise they can be ignored.
        without = frozenset[int]() if picky else group.used
        searches = [
            Search(
                layout,
                group,
                moment,
                stage,
                entry,
                without=without,
                one_per_first=one_per_first or self.chooser.one_per_first,
                skipped=group.spans,
            )
            for entry, stages, _ in items
            for stage in stages
            if layout.completes[stage]
        ]
        if len(searches) < 2:
            return self._found(searches[0]) if searches else ()
        found = merge(*[search.candidates() for search in searches], key=self.order)
        return _one_per_ends(found) if picky else found

    def _found(self, search: Search) -> Iterator[Candidate]:
        """Return the candidates to choose from, no more than the context needs."""
        chooser = self.chooser
        if self.layout.is_simple and not chooser.skips and not self.times_out:
            if chooser.context is Context.RECENT:
                return search.latest()
            if chooser.context is Context.CUMULATIVE:
                return search.cumulated()
        return search.candidates()

    # -- uncertain order -----------------------------------------------------------------------

    def _evaluate_inexact(
        self, taken: list[tuple[EntryGroup, list[Item]]], moment: Moment
    ) -> list[Entry]:
        completed = [(group, list(self.possible(group, own, moment))) for group, own in taken]
        completed += [(group, []) for group in self.reopened([group for group, _ in taken])]
        made = self.judge(completed, moment)
        for group, _ in taken:
            self.settle(group, moment.journal)
        return made

    def possible(self, group: EntryGroup, items: list[Item], moment: Moment) -> Iterator[Possible]:
        """Return the candidates that the items complete, if the order may be uncertain."""
        last, policy = self.last_stage, self.shared.policy
        for entry, stages, _ in items:
            if any(stage < last for stage in stages) and policy.misses(entry, self.ended_us):
                self.shared.misses = True
        found = self._search(group, moment).completed([(e, stages) for e, stages, _ in items])
        return self.shared.bound.taken(found, self.name, is_sorted=False)

    def _search(
        self, group: EntryGroup, moment: Moment, *, is_trial: bool = False, upto: int | None = None
    ) -> Backtracking:
        contends = self.ledger.exclusion.contends
        return Backtracking(
            self.layout,
            group,
            moment,
            self.shared,
            self.keys,
            name=self.name,
            waiting=self.waiting(group) if contends else (),
            is_trial=is_trial,
            upto=upto,
            without_used=not self.layout.is_picky and not self.shared.policy.doubts,
        )

    def judged(self, group: EntryGroup, possible: Possible, moment: Moment) -> Possible | None:
        path = [
            (number, entry)
            for number, bound in enumerate(possible.candidate)
            for entry in constituents((bound,))
        ]
        return self._search(group, moment).judged(path, is_closed=possible.is_closed)

    def unfed(
        self,
        group: EntryGroup,
        moment: Moment,
        found: Sequence_[Possible],
        start_us: int | None,
    ) -> list[Possible]:
        is_asked = found or any(not each.is_made for each in group.possible)
        if not is_asked or not self.ledger.exclusion.contends or not self.shared.policy.doubts:
            return []
        layout, relation = self.layout, self.shared.policy.relation
        search = self._search(group, moment, is_trial=True)
        waiting = self.waiting(group)
        unfed = list(search.completed(waiting)) if waiting else []
        if layout.is_closed_by_time:
            firsts: list[tuple[int, Entry]] = []
            for number, begins in enumerate(layout.may_begin):
                entries = [*group.taken[number], *(e for e, stages in waiting if number in stages)]
                firsts += [
                    (number, entry)
                    for entry in entries
                    if begins and (start_us is None or relation.begins(entry[3])[1] > start_us)
                ]
            unfed += search.closed(firsts)
        return unfed

    def preferred(self, candidates: list[Candidate]) -> Iterable[Candidate]:
        return _one_per_ends(candidates) if self.layout.is_picky else candidates

    def _keep(self, group: EntryGroup, item: Item, moment: Moment) -> None:
        entry, stages, places = item
        layout = self.layout
        lists = [group.place(place) for place in places]
        keeps_last = layout.keeps_last or self.keeps_last or self.shared.keeps_ends
        begins = not (group.spans and self._forgets_skipped and covers(group.spans, entry[:3]))
        lists += [
            group.stage(stage)
            for stage in stages
            if (stage < self.last_stage or keeps_last) and (stage or begins)
        ]
        if not keeps_last and self.last_stage in stages and entry[0] > self.ended_us:
            self.ended_us = entry[0]
        if layout.is_strict and moment.index < 0 and entry[3] is moment.o:
            lists.append(group.between())
        if lists:
            self.keep(group, lists, entry, moment.journal)
            if self.forgetting is not None:
                self.forgetting.note_kept(group, entry)
        if layout.window_us is not None and any(self.sets_timer[stage] for stage in stages):
            due_us = self._begins_us(entry[3]) + layout.window_us
            self.shared.timers.set((due_us, self.index, group.key), moment.journal)
        if group.decided and layout.window_us is not None:
            # The entry is late: windows that have ended are evaluated again.
            least_us, most_us = self._when(entry)
            for start_us in group.decided:
                if start_us <= most_us and least_us <= start_us + layout.window_us:
                    timer = (start_us + layout.window_us, self.index, group.key)
                    self.shared.timers.set(timer, moment.journal)

    def _when(self, entry: Entry) -> tuple[int, int]:
        """Return the first and the last moment at which an entry may lie in a window."""
        if not self.shared.is_inexact:
            return entry[0], entry[0]
        least_us, most_us = self.shared.policy.relation.ends(entry[3])
        return least_us, most_us + self.shared.spread_us

    def _begins_us(self, o: Occurrence) -> int:
        """Return the start of the window of a match that begins with `o`."""
        return self.shared.policy.relation.begins(o)[1] if self.shared.is_inexact else o.low_us

    # -- skips ---------------------------------------------------------------------------------

    @property
    def _forgets_skipped(self) -> bool:
        """True if the first stage need not keep events that begin no match.

        With intervals for timestamps all events are kept, as the order may turn out differently.
        """
        return self.layout.begins_alone and not self.shared.keeps_ends and not self.times_out

    def skip(self, group: EntryGroup, span: Span, journal: Journal) -> None:
        low, high, closed = span
        forgetting = self.forgetting
        if forgetting is not None:
            forgetting.note(group, low)
        if self._forgets_skipped:
            entries = group.taken[0]
            begin = bisect_left(entries, low)
            while begin < len(entries) and (
                (place := entries[begin][:3]) < high or (closed and place == high)
            ):
                self.let_go(group, [(0, entries.pop(begin))], journal)
                if forgetting is not None:
                    forgetting.note(group, place)
            if low == high:
                return  # no other event has the same place
        if forgetting is not None:
            forgetting.note_span(group, high)
        super().skip(group, span, journal)

    # -- changes that may let entries be forgotten ---------------------------------------------

    def use_up(self, group: EntryGroup, entry: Entry, journal: Journal) -> None:
        super().use_up(group, entry, journal)
        if self.forgetting is not None:
            self.forgetting.note(group, entry[:3])

    def drop(self, entry: Entry, journal: Journal) -> bool:
        held = super().drop(entry, journal)
        if self.forgetting is not None:
            group = self.groups.by_key.get(self.key_of(entry[3]))
            if group is not None:
                self.forgetting.note(group, entry[:3])
        return held

    def trim(self, before_us: int) -> None:
        if self.horizon_us is not None:
            before_us -= self.horizon_us + self.shared.spread_us
            for group in self.groups.forget(before_us):
                if self.forgetting is not None:
                    self.forgetting.note(group, (before_us, "", -1))

    def become_exact(self, journal: Journal) -> None:
        super().become_exact(journal)
        if self.forgetting is not None:
            self.forgetting.note_all()

    def read(self, data: Any, state: StateReader) -> None:
        super().read(data, state)
        if self.forgetting is not None:
            self.forgetting.note_all()

    def _uncount_kept(self, group: EntryGroup, entry: Entry) -> None:
        super()._uncount_kept(group, entry)
        if self.forgetting is not None:
            self.forgetting.note(group, entry[:3])

    def _keep_again(self, group: EntryGroup, held: list[tuple[int, Entry]]) -> None:
        super()._keep_again(group, held)
        if self.forgetting is not None:
            self.forgetting.note_kept(group, held[0][1])

    def stand_in_between(self, moment: Moment, items: list[Item]) -> None:
        """Add an event that no part takes as an item, as it must not lie between neighbours."""
        o = moment.o
        if o is None or moment.index >= 0 or any(entry[3] is o for entry, _, _ in items):
            return
        try:
            self.key_of(o)
        except BadEvent:
            return  # an event without the attributes does not count
        items.append(((*moment.place(self.shared.arrivals), o, None), [], []))

    def _end_windows(self, moment: Moment) -> list[Entry]:
        """Return the matches that the end of a window completes."""
        assert self.layout.window_us is not None
        start_us = moment.us - self.layout.window_us
        groups = [
            group
            for key in moment.called
            if isinstance(key, tuple) and (group := self.groups.by_key.get(key)) is not None
        ]
        if self.shared.is_inexact:
            possible = []
            for group in groups:
                closing = self.possibly_closed(group, moment, group.decided.get(start_us, -1))
                found = self.shared.bound.taken(closing, self.name, is_sorted=False)
                possible.append((group, list(found)))
            made = self.judge(possible, moment, start_us)
        else:
            completed = [
                (group, self.closed(group, moment, group.decided.get(start_us, -1)))
                for group in groups
            ]
            made = self.make(completed, moment, moment.us)
        for group in groups:
            assign(group.own_decided(), start_us, next(self.shared.arrivals), moment.journal)
        return made

    def possibly_closed(
        self, group: EntryGroup, moment: Moment, since: int = -1
    ) -> Iterator[Possible]:
        """Yield the candidates that the end of a window completes, if the order is uncertain."""
        relation, layout = self.shared.policy.relation, self.layout
        assert layout.window_us is not None
        begin_us = moment.us - layout.window_us
        firsts = [
            (number, entry)
            for number, entries in enumerate(group.taken)
            if layout.may_begin[number]
            for entry in entries
            if relation.begins(entry[3])[1] == begin_us
        ]
        return self._search(group, moment).closed(firsts, since)

    def closed(self, group: EntryGroup, moment: Moment, since: int = -1) -> Iterable[Candidate]:
        """Return the candidates that the end of a window completes, in the order of preference.

        If an earlier end has decided the window, `since` is the arrival of the next entry then.
        """
        layout = self.layout
        if layout.is_local:
            return Search(
                layout,
                group,
                moment,
                len(self.stages),
                None,
                moment.us,
                without=frozenset() if layout.is_picky else group.used,
                one_per_first=self.chooser.one_per_first,
                skipped=group.spans,
                since=since,
            ).candidates()
        # Predicates on a complete candidate count at the place of its last constituent, so there is
        # one search for each possible last constituent.
        assert layout.window_us is not None
        searches = []
        for number, closes in enumerate(layout.closes):
            if closes:
                entries = group.taken[number]
                low = bisect_left(entries, (moment.us - layout.window_us,))
                high = bisect_left(entries, (moment.us + 1,))
                searches += [
                    Search(
                        layout, group, moment, number, entry, moment.us, since=since
                    ).candidates()
                    for entry in entries[low:high]
                ]
        return _one_per_ends(merge(*searches, key=self.order))

    # -- the fast path -------------------------------------------------------------------------

    def feed(self, o: Occurrence) -> list[Occurrence]:
        """Process `o`, if the node `is_plain`; the search precedes all changes.

        The result is the same, as no event strictly follows or precedes itself.
        """
        unconditional = self._unconditional.get(o.key)
        if unconditional is None:
            stages, places, completes = self._taking(o)
            if not (stages or places or completes):
                return []
        else:
            stages, places, completes = unconditional
        attributes = self.attributes
        key: tuple[object, ...]
        if len(attributes) == 1:
            key = (attribute(o, attributes[0]),)
        else:
            key = tuple([attribute(o, name) for name in attributes])
        group = self.groups.by_key.get(key)
        entry: Entry = (o.us, o.id or "", next(self.shared.arrivals), o, None)
        made: list[Occurrence] = []
        if completes:
            if entry[0] > self.ended_us:
                self.ended_us = entry[0]
            if group is not None:
                if self._may_complete(group, entry):
                    made = [self.occurrence(found)[3] for found in self._ending(group, entry)]
            elif not self.last_stage:
                made = [
                    self.occurrence(found)[3] for found in self._ending(EntryGroup(key, 1), entry)
                ]
        if stages or places:
            groups = self.groups
            if group is None:
                group = groups.by_key[key] = EntryGroup(key, self.last_stage + 1)
            for number in stages:
                insort(group.stage(number), entry)
            for number in places:
                insort(group.place(number), entry)
            groups.count += 1
            if not group.is_in_heap or entry[0] < group.due_us:
                groups.expire_at(group, entry[0])
            if self.shared.fresh is not None:
                self.shared.fresh.append((entry, self))
        return made

    def _ending(self, group: EntryGroup, last: Entry) -> Iterable[Candidate]:
        """Return the candidates that end with an entry, in the order of preference."""
        layout, bound = self.layout, self.shared.bound
        if not layout.is_straight:
            found = Search(layout, group, _NO_MOMENT, self.last_stage, last).candidates()
            return bound.taken(found, self.name)
        some = ways(layout, group, last, bound.most)
        if bound.most is None or len(some) <= bound.most:
            return some
        return bound.taken(some, self.name)

    def _taking(self, o: Occurrence) -> tuple[list[int], list[int], bool]:
        """Return the stages and places that take `o`, and whether the last stage does."""
        stages: list[int] = []
        places: list[int] = []
        for primitive, number, forbids in self.dispatch[o.key]:
            if primitive.takes(o):
                (places if forbids else stages).append(number)
                if not forbids and self.predicates.required:
                    self.predicates.check(o, primitive.name)
        completes = self.last_stage in stages
        if completes:
            stages.remove(self.last_stage)
        return stages, places, completes

    def _may_complete(self, group: EntryGroup, last: Entry) -> bool:
        """Return whether every stage has an event in the window before the last: a quick test."""
        last_us, window_us = last[0], self.window_us
        start_us = last_us if window_us is None else last_us - window_us
        for number in range(self.last_stage):
            entries = group.taken[number]
            if not entries or entries[0][0] >= last_us:
                return False
            if window_us is not None and entries[-1][0] < start_us:
                return False
        return True

    def withdraw(self, o: Occurrence) -> None:
        """Undo the last feed of `o`, if the node `is_memoryless`."""
        if o.key not in self.keys:
            return
        try:
            key = self.key_of(o)
        except BadEvent:  # then it was never fed successfully
            return
        group = self.groups.by_key.get(key)
        if group is None or not group.remove(o, o.us):
            return
        self.groups.count -= 1
        if group.oldest_us() is None:
            del self.groups.by_key[key]


def _one_per_ends(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the most preferred of the candidates with the same first and last constituents."""
    found: set[tuple[int, int]] = set()
    for candidate in candidates:
        entries = constituents(candidate)
        ends = (entries[0][2], entries[-1][2])
        if ends not in found:
            found.add(ends)
            yield candidate
