"""Open choices of a detector: matches that are possible, but not certain (README, "Unknown order").

The nodes make doubtful occurrences (`DetectorState.doubtful`) and decide them as more becomes
known. Those of the root are the candidates of a choice, which the detector's caller may decide as
well. Where the nodes alone may be wrong, matches are verified in worlds (`_witnesses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

from activedb.errors import BadEvent, UncertainOrder
from activedb.events._choices import Selection
from activedb.events._clock_bounds import ClockBounds
from activedb.events._expressions import (
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Plus,
    Primitive,
    Query,
    Reader,
    walk,
)
from activedb.events._expressions import Sequence as Sequence_
from activedb.events._occurrence import Occurrence, leaves
from activedb.events._possibility import Possibility
from activedb.events._undecided import (
    Rivals,
    Undecided,
    decode_undecided,
    encode_undecided,
    identity_of,
    same_candidate,
)
from activedb.events._witnesses import Decision, ExactDetector, WorldChecker
from activedb.events.detection._entry import YET_TO_BE_FED, Entry
from activedb.events.detection._journal import Journal, Record, add, assign, delete
from activedb.events.detection._merging import Merged, merged_matches
from activedb.events.detection._moment import DECISION, Moment
from activedb.events.detection._node import DetectorNode, DetectorState
from activedb.events.detection._state import StateReader, StateWriter
from activedb.events.detection._traits import (
    durations_of,
    is_merging,
    is_timed,
    reads,
    remembers,
)
from activedb.functions import checked_result

__all__ = ["OpenChoices"]


_OPEN_MAX = 10_000
"""Upper bound on the open choices; beyond it the oldest is forgotten, and counted."""
_DECIDED_MAX = 1_000
_CHECKED_MAX = 256
"""Upper bound on the open matches of one step for which a world is sought; the rest stay open."""


class _Choice:
    """Open choice, with the occurrences that its candidates make."""

    __slots__ = ("entries", "undecided")

    def __init__(self, undecided: Undecided, entries: tuple[tuple[int, Occurrence], ...]):
        self.undecided = undecided
        self.entries = entries  # arrivals and occurrences, by the numbers of the candidates


class OpenChoices:
    """Open choices of one detector, by identity, and what decides them.

    Parameters
    ----------
    root : DetectorNode
        The node of the whole expression.
    alone : callable
        ``alone(expression)`` returns a new detector of it, which does not try worlds.

    Attributes
    ----------
    open : dict of str to _Choice
        In the order in which they were opened.
    tries_worlds : bool
        True if what the nodes hold for certain is verified in worlds.
    possibility : Possibility
        Tells which matches some world makes.
    clock_bounds : ClockBounds
        Fed events that bound the times of others.
    forgotten : int
        The number of open choices forgotten because there were too many.
    """

    __slots__ = (
        "_alone",
        "_decisions",
        "_durations_us",
        "_expression",
        "_handed_out",
        "_is_free",
        "_is_merging",
        "_nodes",
        "_reads",
        "_refuted",
        "_remembered",
        "_returned",
        "_root",
        "_seen",
        "_shared",
        "clock_bounds",
        "forgotten",
        "open",
        "possibility",
        "tries_worlds",
    )

    def __init__(
        self,
        expression: Expression,
        root: DetectorNode,
        nodes: Sequence[DetectorNode],
        shared: DetectorState,
        alone: Callable[[Expression], ExactDetector],
    ):
        self._expression = expression
        self._root = root
        self._nodes = nodes
        self._shared = shared
        self._alone = alone
        whole, *parts = walk(expression)
        is_flat = isinstance(whole, Sequence_ | Conjunction) and not is_timed(whole)
        self._reads = any(reads(e) for e in (whole, *parts))
        # True if no match can prevent another from being made.
        self._is_free = (
            is_flat
            and not remembers(whole)
            and not reads(whole)
            and all(isinstance(e, Primitive | Disjunction | Negation | Kleene) for e in parts)
            and not (isinstance(whole, Sequence_) and whole.selection is not Selection.ANY)
            and not any(node.clocks for node in nodes)
        )
        # For a single choice among plain sequences or conjunctions, and where each event makes its
        # matches by itself, the nodes alone are right. With predicates that read the shared store,
        # a world would see other data.
        is_simple = (
            is_flat and all(isinstance(e, Primitive | Disjunction | Negation) for e in parts)
        ) or all(isinstance(e, Primitive | Disjunction | Plus | Query) for e in (whole, *parts))
        self.tries_worlds = not (is_simple or self._is_free or self._reads) and (
            shared.policy.doubts
        )
        self._is_merging = is_merging(expression)
        self.possibility = Possibility(expression, alone)
        self.clock_bounds = ClockBounds()
        self.open: dict[str, _Choice] = {}
        self._handed_out: set[str] = set()
        self.forgotten = 0
        self._seen = 0  # number of the nodes' decisions that were handled so far
        # Arrivals of matches that nodes hold for certain, but that some world does not make.
        self._refuted: set[int] = set()
        # Arrivals of matches of open choices that became certain and were returned.
        self._returned: set[int] = set()
        self._decisions: dict[int, Decision] = {}
        # Events that nodes have forgotten, but on which doubtful matches still depend.
        self._remembered: list[tuple[int, Occurrence]] = []
        self._durations_us = durations_of(expression)

    # -- for the detector's caller -------------------------------------------------------------

    def undecided(self) -> list[Undecided]:
        """Return the open choices; none under the policy "possible", which leaves nothing open."""
        if self._shared.policy.name == "possible":
            return []
        return [choice.undecided for choice in self.open.values()]

    def take(self) -> list[Undecided]:
        """Return the open choices that were not returned by an earlier call."""
        found = [each for each in self.undecided() if each.identity not in self._handed_out]
        self._handed_out.update([each.identity for each in found])
        return found

    def chosen(
        self, identity: str, chosen: Iterable[int | Mapping[str, Any]]
    ) -> tuple[int, tuple[int, ...]]:
        """Return the time of a choice, and the numbers of these candidates of it.

        Raises
        ------
        BadEvent
            If no such choice is open, or a match is not among its candidates.
        """
        choice = self.open.get(identity)
        if choice is None:
            raise BadEvent(f"{self._root.name} has no open choice {identity!r}: see undecided")
        numbers = [_number_of(choice.undecided, each) for each in chosen]
        return choice.undecided.us, tuple(dict.fromkeys(numbers))

    def refuse_open(self, made: list[Entry], record: Record) -> None:
        """Raise `UncertainOrder` if the step has left something open."""
        opened = [
            choice.undecided
            for identity in record.opened
            if (choice := self.open.get(identity)) is not None
        ]
        if opened:
            raise _error(opened, made, record)
        if self._shared.misses:
            raise UncertainOrder(
                f"{record.o} may have happened before an event with an exact timestamp that "
                "was fed before, and is not kept as nothing exact could be last with it: call "
                "Detector.expect_intervals before, feed events in the order in which their "
                "intervals begin, or choose another policy with on_uncertain=",
                certain=tuple([_parts_of(entry[3]) for entry in made]),
                made=tuple([entry[3] for entry in made]),
            )

    # -- steps: what the nodes have made, and what was chosen ------------------------------------

    def judge(self, found: list[Entry], record: Record, reader: Reader) -> list[Entry]:
        """Return the root's matches that are made, and record those that are open."""
        shared = self._shared
        if shared.doubtful and shared.policy.name != "possible":
            found = self._without_impossible(found, record, reader)
        # A later moment of the same step may have excluded what an earlier one left open.
        decided = [entry for entry in found if entry[2] not in shared.doubtful]
        made = [entry for entry in decided if entry[2] not in shared.gone]
        witnesses = self._witnesses(record)
        for entry in self._refuted_of(made, witnesses):
            self._refute(entry, record.journal)
        opened = [entry for entry in found if entry[2] in shared.doubtful]
        made = [entry for entry in made if entry[2] not in shared.doubtful]
        if shared.decided != self._seen:
            made += self._decided(record.journal, witnesses)
        if opened and shared.policy.name == "possible":
            proved = [entry for entry in opened if self._is_possible(entry[3], record, witnesses)]
            opened = [entry for entry in opened if not any(entry is each for each in proved)]
            order = {entry[2]: place for place, entry in enumerate(found)}
            made = sorted([*made, *proved], key=lambda entry: order.get(entry[2], len(order)))
        if opened:
            choice = self._choice(opened, made, record)
            identity = choice.undecided.identity
            assign(self.open, identity, choice, record.journal)
            record.opened.append(identity)
            if len(self.open) > _OPEN_MAX:
                delete(self.open, next(iter(self.open)), record.journal)
                self.forgotten += 1
            call = shared.policy.call
            if call is not None:
                error = _error([choice.undecided], made, record)
                chosen = list(checked_result(call(error), "on_uncertain="))
                sure = error.certain
                numbers = {
                    _number_of(choice.undecided, each)
                    for each in chosen
                    if not any(each is other for other in sure)
                }
                order = {entry[2]: place for place, entry in enumerate(found)}
                made += self.choose(identity, tuple(sorted(numbers)), record, reader)
                made = [entry for entry in made if entry[2] not in shared.doubtful]
                if shared.decided != self._seen:
                    made += self._decided(record.journal, self._witnesses(record))
                made.sort(key=lambda entry: order.get(entry[2], len(order)))
        return made

    def _without_impossible(
        self, found: list[Entry], record: Record, reader: Reader
    ) -> list[Entry]:
        """Return the root's matches without the open ones that no world makes, as far as checked.

        What only these prevented is made.
        """
        shared, left, checked = self._shared, list(found), set[int]()
        kept: list[list[Occurrence]] = []

        def known() -> list[Occurrence]:
            if not kept:
                kept.append(self._known(record))
            return kept[0]

        while True:
            opened = [
                entry for entry in left if entry[2] in shared.doubtful and entry[2] not in checked
            ]
            del opened[max(_CHECKED_MAX - len(checked), 0) :]
            checked.update([entry[2] for entry in opened])
            out = [entry for entry in opened if not self._allow([entry[3]], record, known)]
            if not out:
                return left
            for entry in out:
                shared.decide(entry[2], record.journal, is_made=False)
            left += self._reconsider(record, reader)

    def _choice(self, opened: list[Entry], made: list[Entry], record: Record) -> _Choice:
        doubtful = self._shared.doubtful
        candidates = tuple([_parts_of(entry[3]) for entry in opened])
        us = max(entry[0] for entry in opened)
        identity = identity_of(self._root.name, candidates, us)
        number = 1
        while identity in self.open:
            number += 1
            identity = f"{identity.partition('-')[0]}-{number}"
        undecided = Undecided(
            identity,
            candidates,
            tuple([_parts_of(entry[3]) for entry in made]),
            tuple([doubtful[entry[2]] for entry in opened]),
            record.o,
            us,
        )
        return _Choice(undecided, tuple([(entry[2], entry[3]) for entry in opened]))

    def _decided(self, journal: Journal, witnesses: Callable[[], WorldChecker]) -> list[Entry]:
        """Return the matches that became certain; remove choices without open candidates."""
        doubtful, gone = self._shared.doubtful, self._shared.gone
        self._seen = self._shared.decided
        made: list[Entry] = []
        for identity, choice in list(self.open.items()):
            sure: list[Entry] = [
                (o.us, o.id or "", arrival, o, o.parts)
                for arrival, o in choice.entries
                if not (arrival in doubtful or arrival in gone or arrival in self._returned)
            ]
            for entry in self._refuted_of(sure, witnesses):
                self._refute(entry, journal)
            if not any(arrival in doubtful for arrival, _ in choice.entries):
                delete(self.open, identity, journal)
            for entry in sure:
                if entry[2] not in doubtful:
                    made.append(entry)
                    add(self._returned, entry[2], journal)
        return made

    def choose(
        self, identity: str, numbers: tuple[int, ...], record: Record, reader: Reader
    ) -> list[Entry]:
        """Decide a choice: candidates with these numbers are made, the others are not."""
        choice = self.open.get(identity)
        if choice is None:
            return []  # redone without the event that the choice depended on
        shared, journal = self._shared, record.journal
        delete(self.open, identity, journal)
        chosen: list[Entry] = []
        for number, (arrival, o) in enumerate(choice.entries):
            if number in numbers and arrival in shared.gone:
                raise BadEvent(
                    f"candidate {number} of {identity!r} is excluded by what was made since"
                )
            if number in numbers and arrival in shared.doubtful:
                chosen.append((o.us, o.id or "", arrival, o, o.parts))
        made = self._merged(chosen)
        if not record.is_accepted:
            self._check(identity, numbers, choice.entries, chosen, made, record)
            record.is_accepted = True  # also if it is done again without an event that is withdrawn
        for entry, arrivals in made:
            for arrival in {entry[2], *arrivals}:
                assign(self._decisions, arrival, (entry[3], True), journal)
        for number, (arrival, o) in enumerate(choice.entries):
            if arrival in shared.doubtful and number not in numbers:
                assign(self._decisions, arrival, (o, False), journal)
            shared.decide_all(arrival, journal, is_made=number in numbers)
        found = self._reconsider(record, reader)
        return [
            *(entry for entry, arrivals in made if shared.gone.isdisjoint(arrivals)),
            *found,
        ]

    def check(self, identity: str, numbers: tuple[int, ...], record: Record) -> None:
        """Raise `BadEvent` if no world makes just the candidates with these numbers."""
        entries = self.open[identity].entries
        chosen: list[Entry] = [
            (o.us, o.id or "", arrival, o, o.parts)
            for number, (arrival, o) in enumerate(entries)
            if number in numbers
        ]
        self._check(identity, numbers, entries, chosen, self._merged(chosen), record)

    def _check(
        self,
        identity: str,
        numbers: tuple[int, ...],
        entries: Sequence[tuple[int, Occurrence]],
        chosen: list[Entry],
        made: list[Merged],
        record: Record,
    ) -> None:
        candidates = [entry[3] for entry in chosen]
        whole = [entry[3] for entry, _ in made]
        others = {
            number: o
            for number, (arrival, o) in enumerate(entries)
            if number not in numbers and arrival in self._shared.doubtful
        }

        def allow(without: Sequence[Occurrence]) -> bool:
            return self._allow(candidates, record, lambda: self._known(record), whole, without)

        if not chosen or allow([*others.values()]):
            return
        if not allow(()):
            raise BadEvent(_refusal(identity, numbers))
        needed = [number for number, o in others.items() if not allow([o])]
        raise BadEvent(_incomplete(identity, numbers, needed))

    def _merged(self, chosen: list[Entry]) -> list[Merged]:
        """Return the matches that chosen candidates make, each with the arrivals of these.

        In the context cumulative, several may be one match; see `merged_matches`.
        """
        merged = merged_matches(self._root, [e[2] for e in chosen]) if self._is_merging else []
        parts = {arrival for _, arrivals in merged for arrival in arrivals}
        return [*merged, *((entry, [entry[2]]) for entry in chosen if entry[2] not in parts)]

    def _reconsider(self, record: Record, reader: Reader) -> list[Entry]:
        """Let all nodes decide what can be decided now."""
        found: list[Entry] = []
        before = -1
        while before != self._shared.decided:
            before = self._shared.decided
            moment = Moment(None, reader, record.journal, record.said, index=DECISION)
            found += self._root.evaluate(moment)
            if self._refuted:
                self._admit(record)
        return found

    def _admit(self, record: Record) -> None:
        """Make matches that were refuted only by worlds which are no longer possible."""
        witnesses = self._witnesses(record)
        for choice in self.open.values():
            for arrival, o in choice.entries:
                if (
                    arrival in self._refuted
                    and arrival in self._shared.doubtful
                    and not witnesses().refute(o)
                ):
                    self._shared.decide(arrival, record.journal, is_made=True)

    # -- verification in worlds ----------------------------------------------------------------

    def _witnesses(self, record: Record) -> Callable[[], WorldChecker]:
        """Return a function that builds the worlds of all kept and awaited events on demand."""
        found: list[WorldChecker] = []

        def witnesses() -> WorldChecker:
            if not found:
                found.append(self._worlds(record))
            return found[0]

        return witnesses

    def _worlds(self, record: Record, match: Occurrence | None = None) -> WorldChecker:
        """Return the worlds of all events that decide the matches, or those that decide `match`.

        If a match uses events up, what is kept would be a false past: it may lack the one event of
        a match and have the other, which another match could then use.
        """
        past = self.possibility.past
        events = [*(self._known(record) if past is None else past), *self._shared.awaited]
        if match is not None:
            events = self._decisive(events, [match])
        return WorldChecker(
            self._expression,
            events,
            *self._span(record),
            tuple(self._decisions.values()),
            lambda: self._alone(self._expression),
            is_sound=not self.tries_worlds,
            is_cumulative=self._is_merging,
        )

    def _known(self, record: Record) -> list[Occurrence]:
        """Return the events that are kept or fed in this step, in the order of arrival."""
        arrivals = self.known_events()
        if record.o is not None and record.o.key in self._root.keys:
            arrivals.setdefault(id(record.o), (YET_TO_BE_FED, record.o))
        return [o for _, o in sorted(arrivals.values(), key=itemgetter(0))]

    def _decisive(
        self, events: Sequence[Occurrence], matches: Sequence[Occurrence]
    ) -> list[Occurrence]:
        """Return the events that decide matches if no match can prevent another."""
        own = {id(o) for match in matches for o in leaves(match)}
        negated = {
            key
            for each in walk(self._expression)
            if isinstance(each, Negation)
            for key in each.keys
        }
        decisive = [o for o in events if id(o) in own or o.key in negated]
        chosen = {id(o) for o in (*decisive, *self.clock_bounds.bounding(decisive, events))}
        return [o for o in events if id(o) in chosen]

    def _span(self, record: Record) -> tuple[int | None, int]:
        """Return the first time that the detector was told, and the time it is advanced to."""
        shared = self._shared
        until_us = shared.advanced_us
        return shared.told_us, until_us if record.o is not None else max(record.us, until_us)

    def _allow(
        self,
        matches: Sequence[Occurrence],
        record: Record,
        known: Callable[[], list[Occurrence]],
        merged: Sequence[Occurrence] | None = None,
        without: Sequence[Occurrence] = (),
    ) -> bool:
        """Return False if no world makes these open matches, together and with those chosen."""
        awaited = self._shared.awaited
        matched = [o for match in (*matches, *without) for o in leaves(match)]

        def deciding() -> tuple[list[Occurrence], list[Occurrence]]:
            kept = known()
            have = {id(o) for o in kept}
            bounds = self.clock_bounds.bounding([*kept, *awaited, *matched], ())
            fed = [*(o for o in bounds if id(o) not in have), *kept]
            if not self._is_free:
                return fed, awaited
            decisive = {id(o) for o in self._decisive([*fed, *awaited], [*matches, *without])}
            return (
                [o for o in fed if id(o) in decisive],
                [o for o in awaited if id(o) in decisive],
            )

        return self.possibility.allow(
            matches,
            deciding,
            awaited,
            self._decisions.values(),
            self._span(record),
            merged=merged,
            without=without,
        )

    def _is_possible(
        self, match: Occurrence, record: Record, witnesses: Callable[[], WorldChecker]
    ) -> bool:
        """Return whether a possible match was proved: some world makes it."""
        if self._reads:
            return self._is_free
        # If nothing else can exclude a match, only its own events and negated ones decide it.
        asked = self._worlds(record, match) if self._is_free else witnesses()
        return asked.prove(match)

    def _refuted_of(
        self, made: Iterable[Entry], witnesses: Callable[[], WorldChecker]
    ) -> list[Entry]:
        """Return the matches that nodes hold for certain, but that some world does not make."""
        if not self.tries_worlds:
            return []
        # An unknown world refutes everything except what the caller of `resolve` chose.
        return [
            entry
            for entry in made
            if entry[3].parts and entry[2] not in self._decisions and witnesses().refute(entry[3])
        ]

    def _refute(self, entry: Entry, journal: Journal) -> None:
        """Mark a match that nodes have made as open."""
        self._shared.doubt(entry[2], Rivals(), journal)
        add(self._refuted, entry[2], journal)

    # -- memory ------------------------------------------------------------------------------

    def known_events(self) -> dict[int, tuple[int, Occurrence]]:
        """Return the primitive events of all kept or remembered entries, with their arrivals."""
        found = {id(leaf): (arrival, leaf) for arrival, leaf in self._remembered}
        kept = [entry for node in self._nodes for entry in node.kept()]
        for entry in sorted(kept, key=itemgetter(2)):
            for leaf in leaves(entry[3]):
                if leaf.key in self._root.keys:
                    found.setdefault(id(leaf), (entry[2], leaf))
        return found

    def remember_deciding(self, known: Mapping[int, tuple[int, Occurrence]]) -> None:
        """Update the remembered events: those that are near to something doubtful.

        `known` has the events known before entries were trimmed.
        """
        self._remembered = []
        kept = self.known_events()
        nodes, doubtful = self._nodes, self._shared.doubtful
        entries = [entry for node in nodes for entry in (*node.kept(), *node.open_entries())]
        near_us = [
            (entry[3].low_us - self._durations_us, entry[3].high_us + self._durations_us)
            for entry in entries
            if entry[2] in doubtful
        ]
        self._remembered = [
            (arrival, o)
            for number, (arrival, o) in known.items()
            if number not in kept
            and any(o.high_us >= low_us and o.low_us <= high_us for low_us, high_us in near_us)
        ]

    def forget_decided(self) -> None:
        """Forget the status of occurrences that nothing refers to any more."""
        shared = self._shared
        if shared.is_inexact and len(shared.doubtful) + len(shared.gone) < _DECIDED_MAX:
            return
        kept = {arrival for choice in self.open.values() for arrival, _ in choice.entries}
        if shared.is_inexact:
            kept.update(entry[2] for node in self._nodes for entry in node.kept())
            kept.update(entry[2] for node in self._nodes for entry in node.open_entries())
        shared.needs = {a: needed for a, needed in shared.needs.items() if a in kept}
        kept.update(*shared.needs.values())
        shared.doubtful = {a: why for a, why in shared.doubtful.items() if a in kept}
        shared.gone &= kept
        self._refuted &= kept
        self._returned &= kept
        self._decisions = dict(list(self._decisions.items())[-_DECIDED_MAX:])
        shared.follows = {
            arrival: others
            for arrival, others in shared.follows.items()
            if arrival in kept or not kept.isdisjoint(others)
        }

    def forget(self, o: Occurrence) -> None:
        """Forget an event that was withdrawn."""
        self._remembered = [each for each in self._remembered if each[1] is not o]
        self.clock_bounds.forget(o)

    def undone(self) -> None:
        """Note that steps were undone, and choices with them."""
        self._handed_out &= self.open.keys()

    def become_exact(self) -> None:
        """Forget what only uncertain order needs."""
        self._decisions.clear()
        self._remembered.clear()

    # -- state -------------------------------------------------------------------------------

    def write(self, writer: StateWriter) -> dict[str, Any]:
        """Return the open choices, and the fate of doubtful occurrences, as JSON."""
        doubtful, past = self._shared.doubtful, self.possibility.past
        return {
            "undecided": [
                {
                    **encode_undecided(replace(choice.undecided, candidates=())),
                    "entries": [[arrival, writer.occurrence(o)] for arrival, o in choice.entries],
                }
                for choice in self.open.values()
            ],
            "handed_out": sorted(self._handed_out & self.open.keys()),
            "doubtful": sorted(doubtful),
            "gone": sorted(self._shared.gone),
            "follows": sorted([key, value] for key, value in self._shared.follows.items()),
            "needs": sorted([key, value] for key, value in self._shared.needs.items()),
            "refuted": sorted(self._refuted & doubtful.keys()),
            "returned": sorted(
                arrival
                for choice in self.open.values()
                for arrival, _ in choice.entries
                if arrival in self._returned
            ),
            "decisions": [
                [arrival, writer.occurrence(o), is_made]
                for arrival, (o, is_made) in self._decisions.items()
            ],
            "clock_bounds": [[writer.occurrence(o), used] for o, used in self.clock_bounds.state],
            "remembered": [[arrival, writer.occurrence(o)] for arrival, o in self._remembered],
            "past": None if past is None else [writer.occurrence(o) for o in past],
        }

    def read(self, state: Mapping[str, Any], reader: StateReader) -> None:
        """Restore what `write` returned, from a whole state."""
        shared = self._shared
        rivals: dict[int, Rivals] = {}
        for data in state.get("undecided", ()):
            entries = tuple([(arrival, reader.occurrences[n]) for arrival, n in data["entries"]])
            candidates = tuple([_parts_of(o) for _, o in entries])
            undecided = replace(decode_undecided(data), candidates=candidates)
            self.open[undecided.identity] = _Choice(undecided, entries)
            arrivals = [arrival for arrival, _ in entries]
            rivals.update(zip(arrivals, undecided.rivals, strict=True))
        self._handed_out.update(state.get("handed_out", ()))
        # An open choice may have candidates that are already decided.
        for arrival in state.get("doubtful", rivals):
            shared.doubtful[arrival] = rivals.get(arrival, Rivals())
        shared.gone.update(state.get("gone", ()))
        self._refuted.update(state.get("refuted", ()))
        self._returned.update(state.get("returned", ()))
        for arrival, number, is_made in state.get("decisions", ()):
            self._decisions[arrival] = (reader.occurrences[number], is_made)
        self._remembered = [(a, reader.occurrences[n]) for a, n in state.get("remembered", ())]
        bounds = state.get("clock_bounds", ())
        self.clock_bounds.state = [(reader.occurrences[n], is_used) for n, is_used in bounds]
        shared.follows.update(dict(state.get("follows", ())))
        shared.needs.update(dict(state.get("needs", ())))
        past = state.get("past")  # states of earlier versions lack it
        self.possibility.past = None if past is None else [reader.occurrences[n] for n in past]


def _number_of(undecided: Undecided, chosen: int | Mapping[str, Any]) -> int:
    candidates = undecided.candidates
    if isinstance(chosen, int):
        if 0 <= chosen < len(candidates):
            return chosen
    else:
        for number, candidate in enumerate(candidates):
            if candidate is chosen or same_candidate(candidate, chosen):
                return number
    raise BadEvent(
        f"{chosen!r} is not among the {len(candidates)} candidates of {undecided.identity!r}"
    )


def _refusal(identity: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return (
            f"candidate {numbers[0]} of {identity!r} is made in no order of events that their "
            "timestamps allow, after what was fed and chosen since"
        )
    return (
        f"candidates {_listed(numbers)} of {identity!r} are made together in no order of events "
        "that their timestamps allow: of matches that exclude each other only one can be chosen"
    )


def _incomplete(identity: str, numbers: Sequence[int], needed: Sequence[int]) -> str:
    what = f"candidate{'s' * (len(numbers) > 1)} {_listed(numbers)}"
    also = _listed(needed) if needed else "some of the others"
    return (
        f"every order of events that makes {what} of {identity!r} makes others of its candidates "
        f"too: choose also {also}, or none at all"
    )


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _error(opened: Sequence[Undecided], made: Sequence[Entry], record: Record) -> UncertainOrder:
    candidates = tuple([c for each in opened for c in each.candidates])
    rivals: tuple[Rivals, ...] = tuple([r for each in opened for r in each.rivals])
    counted = (
        "a match that depends" if len(candidates) == 1 else f"{len(candidates)} matches that depend"
    )
    return UncertainOrder(
        f"{record.o if record.o is not None else 'the end of a window'} completes {counted} on "
        "an order or a distance of events which their timestamps do not tell: they are left "
        "open; decide with Detector.resolve, or choose a policy with on_uncertain=",
        candidates=candidates,
        certain=tuple([_parts_of(entry[3]) for entry in made]),
        made=tuple([entry[3] for entry in made]),
        rivals=rivals,
        undecided=tuple(opened),
    )


def _parts_of(o: Occurrence) -> Mapping[str, Any]:
    """Return a match as a mapping of part names to constituents."""
    return o.parts or {o.name: o}
