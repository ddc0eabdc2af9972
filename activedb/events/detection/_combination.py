"""Base class of the nodes of sequences and conjunctions."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Sequence_
from itertools import chain
from typing import TYPE_CHECKING, Any

from activedb.events._accuracy import AccuracyInterval
from activedb.events._expressions import Conjunction, Expression, Primitive, Sequence
from activedb.events._occurrence import Occurrence
from activedb.events.detection._choice import (
    Chooser,
    Span,
    add_span,
    cumulated,
    preference,
    remove_span,
    unused,
)
from activedb.events.detection._entry import (
    YET_TO_BE_FED,
    Candidate,
    Entry,
    Possible,
    Stage,
    constituents,
    place_of,
    timestamp_at,
)
from activedb.events.detection._group import EntryGroup, Groups
from activedb.events.detection._journal import Journal, add, put
from activedb.events.detection._ledger import Ledger
from activedb.events.detection._moment import Moment
from activedb.events.detection._node import DetectorNode
from activedb.events.detection._predicates import Predicates, attribute, merged, parts_of
from activedb.events.detection._primitive import takes
from activedb.events.detection._traits import primitives_of
from activedb.events.detection._uncertain import is_exact

if TYPE_CHECKING:
    from activedb.events.detection._backtracking import Waiting
    from activedb.events.detection._node import DetectorState
    from activedb.events.detection._state import StateReader, StateWriter

__all__ = ["Children", "CombinationNode", "Item", "holds"]


class Children:
    """Sources of a combination other than the events fed to it.

    Attributes
    ----------
    nodes : dict of int to DetectorNode
        By stage, the nodes of the parts that are not primitive events.
    clocks : dict of int to (Primitive, int, bool)
        By number, the clock events, their stages or places, and whether they are negated.
    """

    __slots__ = ("clocks", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[int, DetectorNode] = {}
        self.clocks: dict[int, tuple[Primitive, int, bool]] = {}


Item = tuple[Entry, list[int], list[int]]
"""An entry, the stages that take it, and the places at which it is forbidden."""


class CombinationNode(DetectorNode):
    """Node with stages, groups, predicates, a context and optionally a skip.

    Parameters
    ----------
    children : Children
    horizon_us : int or None
        How far before the end of a match its constituents can lie; None: unbounded.
    """

    __slots__ = (
        "_clock_parts",
        "_ledger",
        "_negates_clock",
        "attributes",
        "chooser",
        "dispatch",
        "ended_us",
        "groups",
        "horizon_us",
        "named_by_event",
        "needs_used",
        "opened",
        "order",
        "predicates",
        "sources",
        "stages",
        "times_out",
        "window_us",
    )

    stages: list[Stage]
    predicates: Predicates

    def __init__(
        self,
        expression: Sequence | Conjunction,
        parts: list[Expression],
        negated: list[list[Any]],
        children: Children,
        chooser: Chooser,
        shared: DetectorState,
        index: int,
        horizon_us: int | None,
    ):
        self.dispatch: dict[tuple[str, str], list[tuple[Primitive, int, bool]]] = {}
        self.sources = list(children.nodes.items())
        self._clock_parts = children.clocks
        for number, part in enumerate(parts):
            if number not in children.nodes:
                self._listen(part, number, forbids=False)
        for number, group in enumerate(negated):
            for part in group:
                self._listen(part, number, forbids=True)
        nodes = tuple(children.nodes.values())
        keys = frozenset(chain(self.dispatch, *(child.keys for child in nodes)))
        clocks = {number: primitive for number, (primitive, _, _) in children.clocks.items()}
        super().__init__(expression, nodes, keys, shared, index, clocks)
        self.attributes = expression.attributes
        self.window_us = expression.window_us
        self.chooser = chooser
        self.needs_used = False
        self.times_out = False
        # Time of the latest event that completes matches and was not kept.
        self.ended_us = -(2**63)
        self.order = preference(self.stages)
        self.horizon_us = horizon_us
        self.groups = Groups(len(parts), is_windowed=horizon_us is not None)
        # Keys of the groups that may have open matches.
        self.opened: dict[tuple[object, ...], None] = {}
        self._ledger: Ledger | None = None
        self._negates_clock = any(negated for _, _, negated in children.clocks.values())
        # In a disjunction of primitive events, the event that occurred names the part.
        self.named_by_event = [
            number not in children.nodes and not stage.kleene and len(stage.names) > 1
            for number, stage in enumerate(self.stages)
        ]

    def _listen(self, part: Expression, number: int, *, forbids: bool) -> None:
        for primitive in primitives_of((part,)) or ():
            if primitive.schedule is None:
                self.dispatch.setdefault(primitive.key, []).append((primitive, number, forbids))

    # -- incoming entries --------------------------------------------------------------------

    def items(self, moment: Moment) -> list[Item]:
        """Return the new entries of a moment: the event itself, and those that children make."""
        found: list[Item] = []
        o = moment.o
        if o is not None:
            stages: list[int] = []
            places: list[int] = []
            named: dict[int, str] = {}
            if moment.index < 0:
                listeners = self.dispatch.get(o.key, [])
            else:
                clock = self._clock_parts.get(moment.index)
                listeners = [] if clock is None else [clock]
            for primitive, number, forbids in listeners:
                held = places if forbids else stages
                if number not in held and (moment.index >= 0 or takes(primitive, o, moment)):
                    held.append(number)
                    if not forbids:
                        if self.predicates.required:
                            self.predicates.check(o, self._part_name(number, primitive))
                        if self.named_by_event[number]:
                            named[number] = primitive.name
            if stages or places:
                place = (*moment.place(self.shared.arrivals), o)
                plain = [number for number in stages if number not in named]
                if plain or places:
                    found.append(((*place, None), plain, places))
                for number, name in named.items():
                    found.append(((*place, {name: o}), [number], []))
        for number, child in self.sources:
            if child.concerns(moment):
                found += [(entry, [number], []) for entry in child.evaluate(moment)]
        return found

    def _part_name(self, number: int, primitive: Primitive) -> str:
        return self.stages[number].name if self.stages[number].kleene else primitive.name

    def key_of(self, o: Occurrence) -> tuple[object, ...]:
        """Return the equivalence key of a constituent.

        Raises
        ------
        BadEvent
            If it lacks an attribute, or the value cannot be compared.
        """
        return tuple([attribute(o, name) for name in self.attributes])

    # -- kept entries ------------------------------------------------------------------------

    def group(self, key: tuple[object, ...], journal: Journal | None) -> EntryGroup:
        """Return the group of a key; create it if it does not exist."""
        group = self.groups.by_key.get(key)
        if group is None:
            group = self.groups.by_key[key] = EntryGroup(key, len(self.stages))
            if journal is not None:
                journal.append((self._drop_group, (group,)))
        return group

    def keep(
        self, group: EntryGroup, lists: list[list[Entry]], entry: Entry, journal: Journal
    ) -> None:
        """Insert an entry into lists of a group; other lists may have it already."""
        is_new = False
        for entries in group.lists:
            if entries:
                place = bisect_left(entries, entry[:3])
                if place < len(entries) and entries[place][2] == entry[2]:
                    break
        else:
            is_new = True
            self.groups.count += 1
            if self.shared.fresh is not None:
                self.shared.fresh.append((entry, self))
        for entries in lists:
            put(entries, entry, journal)
        if is_new:
            journal.append((self._uncount_kept, (group, entry)))
        self.groups.expire_at(group, entry[0])

    def _uncount_kept(self, group: EntryGroup, entry: Entry) -> None:
        # Runs before the removal from the lists; the entry may have been trimmed since.
        if any(holds(entries, entry) for entries in group.lists):
            self.groups.count -= 1

    def _drop_group(self, group: EntryGroup) -> None:
        if self.groups.by_key.get(group.key) is group:
            del self.groups.by_key[group.key]

    @property
    def partials(self) -> int:
        return self.groups.count

    @property
    def is_doubtful(self) -> bool:
        """True if a kept match is open, or its exclusion of others is uncertain."""
        return any(
            group.doubted
            or any(
                not (each.is_made and all(is_exact(entry[3]) for entry in each.entries))
                for each in group.possible
            )
            for group in self.groups.by_key.values()
        )

    def open_entries(self) -> Iterator[Entry]:
        for key in self.opened:
            group = self.groups.by_key.get(key)
            for each in () if group is None else group.possible:
                if each.entry is not None and not each.is_made:
                    yield each.entry

    def become_exact(self, journal: Journal) -> None:
        """Convert made matches into the form kept when the order of all events is certain."""
        for key in self.opened:
            group = self.groups.by_key.get(key)
            if group is None or not group.possible:
                continue
            journal.append((setattr, (group, "possible", group.possible)))
            for each in group.possible:
                for span in self.chooser.span(each.candidate):
                    self.skip(group, span, journal)
            group.possible = ()
            if not self.needs_used:
                for entry in group.kept().values():
                    if entry[2] in group.used:
                        self.take_up(group, entry, journal)
                self.settle(group, journal)
        self.opened.clear()

    @property
    def is_vague(self) -> bool:
        return self.chooser.cumulates and any(
            not each.is_made
            for key in self.opened
            for each in (self.groups.by_key[key].possible if key in self.groups.by_key else ())
        )

    def kept(self) -> Iterator[Entry]:
        for group in self.groups.by_key.values():
            yield from group.kept().values()

    def drop(self, entry: Entry, journal: Journal) -> bool:
        group = self.groups.by_key.get(self.key_of(entry[3]))
        if group is None:
            return False
        held: list[tuple[int, Entry]] = []
        for number, entries in enumerate(group.lists):
            place = bisect_left(entries, entry[:3])
            if place < len(entries) and entries[place][2] == entry[2]:
                held.append((number, entries.pop(place)))
        if held:
            self.groups.count -= 1
            journal.append((self._keep_again, (group, held)))
        return bool(held)

    def _keep_again(self, group: EntryGroup, held: list[tuple[int, Entry]]) -> None:
        # The group may be gone, as later entries were withdrawn or trimmed.
        group = self.groups.by_key.setdefault(group.key, group)
        if not any(holds(entries, held[0][1]) for entries in group.lists):
            self.groups.count += 1
        for number, entry in held:
            entries = group.list_at(number)
            entries.insert(bisect_left(entries, entry[:3]), entry)
        self.groups.expire_at(group, held[0][1][0])

    def expire(self, before_us: int, journal: Journal) -> None:
        if self.horizon_us is None:
            return
        before_us -= self.horizon_us + self.shared.spread_us
        if self.groups.is_due(before_us):
            for group in self.groups.expiring(before_us):
                for entry in group.before(before_us):
                    self.drop(entry, journal)

    def trim(self, before_us: int) -> None:
        if self.horizon_us is not None:
            self.groups.forget(before_us - self.horizon_us - self.shared.spread_us)

    # -- possible matches --------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """The ledger, which decides matches if the order of events is uncertain."""
        if self._ledger is None:
            self._ledger = Ledger(self)
        return self._ledger

    def waiting(self, group: EntryGroup) -> list[Waiting]:
        """Return the events yet to be fed that belong to the group, and the stages taking them."""
        found: list[Waiting] = []
        for place, o in enumerate(self.shared.awaited):
            if not group.has_key(o, self.attributes):
                continue
            stages = [
                number
                for primitive, number, forbids in self.dispatch.get(o.key, ())
                if not forbids and primitive.takes(o)
            ]
            if stages:
                found.append(((o.us, o.id or "", YET_TO_BE_FED + place, o, None), stages))
        return found

    def is_blind(self) -> bool:
        """Return whether its parts may make occurrences that it does not know of yet.

        They may make them of events yet to be fed, at times yet to come, or, in the context
        cumulative, of open matches.
        """
        if self.sources:
            for o in self.shared.awaited:
                if any(o.key in child.keys for _, child in self.sources):
                    return True
            if any(node.is_vague for _, child in self.sources for node in child.walk()):
                return True
        return self.is_expecting()

    def is_expecting(self) -> bool:
        """Return whether a timer of a clock or part may fire within the time already fed."""
        if not (self.sources or self.clocks):
            return False
        return self.shared.timers.is_any_before(
            self.shared.latest_us + 2 * self.shared.reach_us + 1, self.lowest, self.index
        )

    def judge(
        self,
        completed: Sequence_[tuple[EntryGroup, list[Possible]]],
        moment: Moment,
        start_us: int | None = None,
    ) -> list[Entry]:
        """Return what one moment makes, or may make, if the order of events is uncertain.

        Parameters
        ----------
        completed : sequence of (EntryGroup, list of Possible)
            The matches that the moment completes, by group.
        start_us : int, optional
            The beginning of the window of which the moment is the end.
        """
        found = [each for _, possible in completed for each in possible]
        if not self.shared.policy.doubts:
            candidates = [
                (group, self.preferred(sorted([e.candidate for e in possible], key=self.order)))
                for group, possible in completed
            ]
            is_closed = any(each.is_closed for each in found)
            return self.make(candidates, moment, moment.us if is_closed else None)
        is_kept = self._negates_clock or (self.needs_used and self.sources)
        if found and is_kept and self.is_blind():
            for each in found:
                each.is_certain, each.is_early = False, each.is_early or each.is_certain
        if len(found) > 1:
            for each in sorted(found, key=lambda each: self.order(each.candidate)):
                each.arrival = next(self.shared.arrivals)
        judged: list[tuple[Possible, Entry]] = []
        for group, possible in completed:
            unfed = self.unfed(group, moment, possible, start_us)
            judged += self.ledger.settle(group, possible, unfed, moment)
            if group.possible:
                self.opened[group.key] = None
        if len(completed) > 1:
            judged.sort(key=lambda item: self.order_of_judged(item[0].candidate))
        return [entry for _, entry in judged]

    def judged_again(
        self, group: EntryGroup, possible: Possible, moment: Moment
    ) -> Possible | None:
        """Return an early match, judged by all that is known now; None if it is impossible."""
        if self.predicates.readings:
            return possible  # they have read the store as it was
        found = self.judged(group, possible, moment)
        if found is None:
            return None
        found.is_early = not found.is_certain
        found.lost_rival = possible.lost_rival
        found.ends = possible.ends
        return found if possible.entry is None else found.at(possible.entry)

    @abstractmethod
    def judged(self, group: EntryGroup, possible: Possible, moment: Moment) -> Possible | None:
        """Return the candidate of a match, judged anew; None if it is impossible."""

    @abstractmethod
    def unfed(
        self,
        group: EntryGroup,
        moment: Moment,
        found: Sequence_[Possible],
        start_us: int | None,
    ) -> list[Possible]:
        """Return the candidates that events yet to be fed, or windows yet to end, may complete."""

    def preferred(self, candidates: list[Candidate]) -> Iterable[Candidate]:
        """Return the candidates that the selection leaves, in the given order of preference."""
        return candidates

    def reopened(self, but: Iterable[EntryGroup]) -> list[EntryGroup]:
        """Return the groups with open matches, except those in `but`."""
        if not self.opened or not self.shared.policy.doubts:
            return []
        others = {group.key for group in but}
        found: list[EntryGroup] = []
        for key in list(self.opened):
            group = self.groups.by_key.get(key)
            if group is None or not group.possible:
                del self.opened[key]
            elif key not in others:
                found.append(group)
        return found

    def order_of_judged(self, candidate: Candidate) -> Any:
        """Return the sort key of a candidate, comparable with merged (cumulative) ones."""
        merges = self.chooser.cumulates and not self.times_out
        return self.order(cumulated([candidate]) if merges else candidate)

    def occurrence_of(self, possible: Possible) -> Entry:
        """Return the composite occurrence of a possible match."""
        candidate = self._of_context(possible.candidate)
        end_us, stamp = None, None
        if possible.is_closed:
            end_us, stamp = self.window_end(possible.entries[0][3])
        return self.occurrence(candidate, end_us, stamp, possible.arrival)

    def _of_context(self, candidate: Candidate) -> Candidate:
        """Return a candidate as the context makes it; cumulative: with a tuple for each part.

        The order stays: it may not be that of the readings, as `cumulated` has it, and the last
        constituents decide about parameters and predicates.
        """
        if not self.chooser.cumulates:
            return candidate
        return tuple([tuple(constituents((bound,))) for bound in candidate])

    def window_end(self, first: Occurrence) -> tuple[int, AccuracyInterval | None]:
        """Return the end of the window that begins with an occurrence, and its interval."""
        assert self.window_us is not None
        low_us, high_us = self.shared.policy.relation.begins(first)
        if low_us == high_us:
            return low_us + self.window_us, None
        reading_us = min(max(first.us, low_us), high_us)
        reading_us += self.window_us
        stamp = AccuracyInterval(reading_us, low_us + self.window_us, high_us + self.window_us)
        return reading_us, stamp

    def parts_of(self, candidate: Candidate) -> dict[str, Any]:
        """Return the parts of the match that a candidate makes."""
        return self._parts(self._of_context(candidate))

    # -- made matches ------------------------------------------------------------------------

    def make(
        self,
        completed: Iterable[tuple[EntryGroup, Iterable[Candidate]]],
        moment: Moment,
        at_us: int | None = None,
    ) -> list[Entry]:
        """Choose among the candidates of each group and make occurrences of them.

        They occur at `at_us`; None: with their last constituent. The candidates of each group must
        be in the order of preference; the results of all groups are, too.
        """
        found: list[Candidate] = []
        count = 0
        for group, candidates in completed:
            bounded = self.shared.bound.taken(unused(candidates, group.used), self.name)
            made, used, spans = self.chooser.choose(bounded, group.spans)
            for entry in used:
                self.use_up(group, entry, moment.journal)
            for span in spans:
                self.skip(group, span, moment.journal)
            found += made
            count += 1
        if count > 1:
            found.sort(key=self.order)
        return [self.occurrence(candidate, at_us) for candidate in found]

    def use_up(self, group: EntryGroup, entry: Entry, journal: Journal) -> None:
        """Exclude an entry from later candidates.

        It is kept where it can still forbid matches. If the selection looks at events between
        neighbours, it is kept everywhere.
        """
        add(group.own_used(), entry[2], journal)
        if not self.needs_used and not self.shared.is_inexact:
            self.take_up(group, entry, journal)

    def take_up(self, group: EntryGroup, entry: Entry, journal: Journal) -> None:
        """Remove a used-up entry from the stages."""
        held: list[tuple[int, Entry]] = []
        for number, entries in enumerate(group.taken):
            place = bisect_left(entries, entry[:3])
            if place < len(entries) and entries[place][2] == entry[2]:
                held.append((number, entries.pop(place)))
        self.let_go(group, held, journal)

    def let_go(self, group: EntryGroup, held: list[tuple[int, Entry]], journal: Journal) -> None:
        """Record that an entry was removed from lists of a group."""
        if held:
            if not any(holds(entries, held[0][1]) for entries in group.lists):
                self.groups.count -= 1
            journal.append((self._keep_again, (group, held)))

    def skip(self, group: EntryGroup, span: Span, journal: Journal) -> None:
        """Prevent later matches from beginning within a span of places."""
        spans = group.own_spans()
        journal.append((remove_span, (spans, *add_span(spans, span))))

    def settle(self, group: EntryGroup, journal: Journal) -> None:
        """Clear the used-up arrivals if they are removed, and delete an empty group."""
        if not self.needs_used and group.used and not self.shared.is_inexact:
            used = group.own_used()
            journal.append((used.update, (frozenset(used),)))
            used.clear()
        if group.oldest_us() is None and self.groups.by_key.get(group.key) is group:
            del self.groups.by_key[group.key]
            journal.append((self._bring_back, (group,)))

    def _bring_back(self, group: EntryGroup) -> None:
        self.groups.by_key[group.key] = group
        group.is_in_heap = False
        self.groups.expire_at(group, group.due_us)

    def occurrence(
        self,
        candidate: Candidate,
        at_us: int | None = None,
        stamp: AccuracyInterval | None = None,
        arrival: int | None = None,
    ) -> Entry:
        """Return the composite occurrence of a candidate."""
        entries = constituents(candidate)
        parts = self._parts(candidate)
        timestamp = max(entries, key=place_of)[3].timestamp
        if at_us is not None:
            timestamp = timestamp_at(at_us, timestamp) if stamp is None else stamp
        o = Occurrence(self.name, timestamp, merged(entries), parts=parts)
        if arrival is None:
            arrival = next(self.shared.arrivals)
        return (o.us, "", arrival, o, parts)

    def _parts(self, candidate: Candidate) -> dict[str, Any]:
        if self.chooser.cumulates:
            return _cumulated_parts(candidate, self.stages)
        return parts_of(candidate, self.stages)

    def copy_groups(self, other: CombinationNode) -> None:
        """Copy the entries of another node of an equal expression."""
        for key, group in other.groups.by_key.items():
            own = self.group(key, None)
            own.put_all(group.lists)
            oldest_us = own.oldest_us()
            if oldest_us is not None:
                self.groups.expire_at(own, oldest_us)
        self.groups.count = other.groups.count
        self.opened = dict(other.opened)
        self.ended_us = other.ended_us

    # -- state -------------------------------------------------------------------------------

    def write(self, state: StateWriter) -> Any:
        return state.groups(self.groups)

    def read(self, data: Any, state: StateReader) -> None:
        state.read_groups(data, self.groups)
        for key, group in self.groups.by_key.items():
            if group.possible:
                self.opened[key] = None
                for each in group.possible:
                    self.ledger.exclusion.prepare(each)


def holds(entries: list[Entry], entry: Entry) -> bool:
    """Return whether an entry is in a list sorted by place."""
    place = bisect_left(entries, entry[:3])
    return place < len(entries) and entries[place][2] == entry[2]


def _cumulated_parts(candidate: Candidate, stages: list[Stage]) -> dict[str, Any]:
    """Return the parts of a cumulative match: all occurrences of each name, once, by place."""
    parts: dict[str, Any] = {}
    for stage, bound in zip(stages, candidate, strict=True):
        if stage.kleene:
            parts[stage.name] = ()
        for entry in bound or ():
            own = {stage.name: entry[3]} if entry[4] is None or stage.kleene else entry[4]
            for name, value in own.items():
                found = parts.get(name, ())
                known = {id(o) for o in found}
                more = value if type(value) is tuple else (value,)
                parts[name] = (*found, *(o for o in more if id(o) not in known))
    return parts
