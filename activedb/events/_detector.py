"""Incremental evaluator of one event expression."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from activedb.errors import BadEvent, PartialsExceeded, PatternError, UncertainOrder
from activedb.events._choices import Selection
from activedb.events._codec import decode_params, encode_params
from activedb.events._expressions import (
    Conjunction,
    Disjunction,
    Expression,
    Kleene,
    Negation,
    Primitive,
    Query,
    Reader,
)
from activedb.events._expressions import Sequence as Sequence_
from activedb.events._occurrence import Occurrence
from activedb.events._undecided import (
    Rivals,
    Undecided,
    decode_undecided,
    encode_undecided,
    identity_of,
    same_candidate,
    text_of,
)
from activedb.events._witnesses import Decision, WorldChecker, leaves
from activedb.events.detection._build import Builder
from activedb.events.detection._choice import MATCHES_MAX, Bound
from activedb.events.detection._combination import CombinationNode
from activedb.events.detection._entry import YET_TO_BE_FED, Entry
from activedb.events.detection._journal import Journal, add, assign, delete, roll_back
from activedb.events.detection._moment import DECISION, Moment
from activedb.events.detection._network import Network, SharedNode
from activedb.events.detection._node import Node, Shared
from activedb.events.detection._primitive import Clocks
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._state import StateReader, StateWriter
from activedb.events.detection._traits import (
    durations_of,
    horizon_of,
    is_timed,
    reads,
    remembers,
    walk,
)
from activedb.events.detection._uncertain import Policy, is_exact
from activedb.functions import checked_result

__all__ = ["Detector", "Network"]


_OPEN_MAX = 10_000
"""Upper bound on the open choices; beyond it the oldest is forgotten, and counted."""
_DECIDED_MAX = 1_000
_DROPPING_MAX = 10_000
"""Upper bound on the events for which `trim` keeps what a memoryless detector has dropped."""
_WORLD_MATCHES_MAX = 1_000
"""Upper bound on the matches that one event completes in a world that is tried."""


class _Choice:
    """Open choice, with the occurrences that its candidates make."""

    __slots__ = ("entries", "undecided")

    def __init__(self, undecided: Undecided, entries: tuple[tuple[int, Occurrence], ...]):
        self.undecided = undecided
        self.entries = entries  # arrivals and occurrences, by the numbers of the candidates


class _Mark(NamedTuple):
    """State that `Detector.undo` restores in addition to what the log undoes."""

    last: _Record | None
    has_begun: bool
    is_inexact: bool
    keeps_ends: bool


class _Record:
    """Undoable step: a feed, an advance of time, or a decision."""

    __slots__ = (
        "chosen",
        "contemporaries",
        "is_idle",
        "journal",
        "o",
        "opened",
        "said",
        "step",
        "us",
    )

    def __init__(
        self,
        o: Occurrence | None,
        us: int,
        journal: Journal,
        said: dict[Hashable, bool],
        contemporaries: tuple[Occurrence, ...],
    ):
        self.o = o
        self.us = us
        self.journal = journal
        self.said = said
        self.contemporaries = contemporaries
        self.step = 0
        self.chosen: tuple[str, tuple[int, ...]] | None = None
        self.opened: list[str] = []
        self.is_idle = False  # True for an advance at which nothing was due


class Detector:
    """Incremental detector of the matches of one expression (README, "Semantics").

    Events are fed one at a time. Not thread-safe. REQUIRES, of every method: the caller holds the
    latch that guards the detector.

    Parameters
    ----------
    expression : Expression
        The expression to detect.
    name : str, optional
        The name of the composite occurrences; by default the expression's repr, or the query's
        name.
    on_uncertain : {"certain", "raise", "possible", "reading"} or callable
        Policy if the order of events, or their distance in time, is uncertain. "certain": make
        certain matches, and record the open choices (see `undecided`). "raise": the same, and raise
        `UncertainOrder` after the step. "possible": make possible matches. "reading": treat the
        readings as exact. A function is called with an `UncertainOrder` and returns those of its
        `candidates` that are to be made.
    partials_max : int, optional
        Upper bound on the occurrences kept.
    on_full : {"drop_oldest", "refuse"}
        Policy if there are more.
    matches_max : int, optional
        Upper bound on the matches that one event completes; 10,000 by default, None: unbounded. It
        also applies to each composite part of the expression, and to the candidates of a context.
    on_many : {"refuse", "truncate"}
        Policy if an event would complete more: refuse the event, or make only the most preferred
        matches. At the end of a window, where there is no event, the most preferred are made.
    network : Network, optional
        The network of detectors with which to share common subexpressions.

    Raises
    ------
    PatternError
        If `expression` cannot stand on its own, or an option is invalid.

    Attributes
    ----------
    expression : Expression
        As given.
    horizon_us : int or None
        How far before the end of a match its events reach; None: without bound; 0 if no events are
        kept.
    is_stateful : bool
        True if the detector keeps any state.
    is_timed : bool
        True if time alone can produce matches, so that `advance` must be called.
    is_replayable : bool
        True if feeding the events of the last horizon again restores the state.
    reads : bool
        True if predicates read the shared store, so that `feed` and `advance` need a reader.
    single : Primitive or None
        The expression, if it is a single event that is judged by the event alone.
    dropped : int
        The number of occurrences dropped because there were too many.
    truncated : int
        How often matches were left out because one event completed too many.
    forgotten : int
        The number of open choices forgotten because there were too many.
    """

    __slots__ = (
        "__weakref__",
        "_advanced_us",
        "_ages",
        "_clocks",
        "_decisions",
        "_durations_us",
        "_expired",
        "_handed_out",
        "_is_free",
        "_is_marked",
        "_log",
        "_memoryless",
        "_nodes",
        "_oldest",
        "_open",
        "_partials_max",
        "_plain",
        "_refuses",
        "_refuted",
        "_remembered",
        "_returned",
        "_root",
        "_seen",
        "_shared",
        "_start",
        "_told_us",
        "_tries_worlds",
        "_trimmed_us",
        "dropped",
        "expression",
        "forgotten",
        "horizon_us",
        "is_replayable",
        "is_stateful",
        "is_timed",
        "reads",
        "single",
    )

    def __init__(
        self,
        expression: Expression,
        *,
        name: str | None = None,
        on_uncertain: str | Callable[..., Any] = "certain",
        partials_max: int | None = None,
        on_full: str = "drop_oldest",
        matches_max: int | None = MATCHES_MAX,
        on_many: str = "refuse",
        network: Network | None = None,
    ):
        if not isinstance(expression, Expression):
            raise PatternError(
                f'a detector takes an event expression, such as event("EXIT"), not {expression!r}'
            )
        expression.check()
        if partials_max is not None and (
            isinstance(partials_max, bool) or not isinstance(partials_max, int) or partials_max < 1
        ):
            raise PatternError(f"partials_max takes a whole number from 1, not {partials_max!r}")
        if on_full not in ("drop_oldest", "refuse"):
            raise PatternError(f"on_full takes 'drop_oldest' or 'refuse', not {on_full!r}")
        if on_many not in ("refuse", "truncate"):
            raise PatternError(f"on_many takes 'refuse' or 'truncate', not {on_many!r}")
        self.expression = expression
        self.dropped = 0
        self._expired = 0  # how often `_bound` forgot what had expired; only ever grows
        self._partials_max = partials_max
        self._refuses = on_full == "refuse"
        self._shared = Shared(
            Policy.of(on_uncertain), Bound(matches_max, truncates=on_many == "truncate")
        )
        if self._shared.keeps_ends:
            network = None  # shared nodes do not keep the ends
        self._root = root = Builder(self._shared, network).build(expression, is_root=True)
        if name is not None:
            root.name = name
        self._nodes = tuple(root.walk())
        self._clocks = Clocks(self._nodes)
        tree = tuple(walk(expression))
        self.is_timed = bool(self._clocks) or any(is_timed(e) for e in tree)
        self.reads = any(reads(e) for e in tree)
        self.is_stateful = self.is_timed or not all(
            isinstance(e, Primitive | Disjunction | Query) for e in tree
        )
        self.horizon_us = horizon_of(expression)
        self.is_replayable = (
            not self.is_timed and not self.reads and not any(remembers(e) for e in tree)
        )
        self._plain: SequenceNode | SharedNode | None = None
        self._memoryless: SequenceNode | SharedNode | None = None
        if isinstance(root, SharedNode):
            self._plain = self._memoryless = root
        elif isinstance(root, SequenceNode):
            self._plain = root if root.is_plain else None
            self._memoryless = root if root.is_memoryless else None
        self.single: Primitive | None = None
        if isinstance(expression, Primitive) and not self.is_timed and not self.reads:
            self.single = expression
        self._told_us: int | None = None
        self._start: Journal = []  # undoes the start of the clocks
        self._log: deque[_Record] = deque()
        self._is_marked = False
        self._trimmed_us: int | None = None
        self._open: dict[str, _Choice] = {}
        self._handed_out: set[str] = set()
        self._advanced_us = -(2**62)
        # True if no match can prevent another from being made.
        self._is_free = isinstance(expression, Sequence_ | Conjunction) and (
            not remembers(expression)
            and not expression.readings
            and all(isinstance(e, Primitive | Disjunction | Negation | Kleene) for e in tree[1:])
            and not (
                isinstance(expression, Sequence_) and expression.selection is not Selection.ANY
            )
            and not is_timed(expression)
            and not self._clocks
        )
        self._seen = 0  # number of the nodes' decisions that were handled so far
        # For a single choice among plain sequences or conjunctions, the nodes alone are right. With
        # predicates that read the shared store, a world would see other data.
        is_simple = isinstance(expression, Sequence_ | Conjunction) and (
            all(isinstance(e, Primitive | Disjunction | Negation) for e in tree[1:])
            and not is_timed(expression)
        )
        self._tries_worlds = not (is_simple or self._is_free or self.reads) and (
            self._shared.policy.doubts
        )
        # Arrivals of matches that nodes hold for certain, but that some world does not make.
        self._refuted: set[int] = set()
        self._durations_us = durations_of(expression)
        # Arrivals of matches of open choices that became certain and were returned.
        self._returned: set[int] = set()
        self._decisions: dict[int, Decision] = {}
        # Events that nodes have forgotten, but on which doubtful matches still depend.
        self._remembered: list[tuple[int, Occurrence]] = []
        self.forgotten = 0
        # Heap of the entries to drop first, or None if it must be built anew; see `_bound`.
        self._oldest: list[tuple[int, str, int, int, int, Entry, Node]] | None = None
        self._ages = count()

    # -- properties --------------------------------------------------------------------------

    @property
    def partials(self) -> int:
        """The number of occurrences kept because a later match may need them."""
        return sum([node.partials for node in self._nodes])

    @property
    def kept_events(self) -> int:
        """A number that changes whenever `feed` makes the detector keep or forget an event.

        `partials` may stay the same: other detectors may have been fed the shared events before.
        """
        if type(self._plain) is SequenceNode:
            return self.dropped + self._expired + self._plain.groups.count
        return self.dropped + self._expired + sum([node.kept_events for node in self._nodes])

    @property
    def truncated(self) -> int:
        return self._shared.bound.truncated

    @property
    def is_sharing(self) -> bool:
        """True if it has parts that other detectors of the network may share."""
        return any(isinstance(node, SharedNode) for node in self._nodes)

    @property
    def due_us(self) -> int | None:
        """The time of the next timer: `advance` beyond it produces or decides something."""
        timer = self._shared.timers.first()
        return None if timer is None else timer[0]

    @property
    def memory_us(self) -> int | None:
        """Upper bound on how far back the readings of kept events reach; None: unbounded.

        That is the horizon plus the largest error of the timestamps of kept events.
        """
        return None if self.horizon_us is None else self.horizon_us + self._shared.spread_us

    def accepts(self, o: Occurrence) -> bool:
        """Return whether the expression takes events like `o`; if not, a feed has no effect."""
        return o.key in self._root.keys

    def expect_intervals(self) -> None:
        """Announce timestamps that are intervals before any is fed.

        The detector then keeps events with exact timestamps that can only be the last of a match,
        too, as an interval that possibly precedes them may be fed later. Without this call the
        policy "raise" reports such an interval, but cannot list the matches that it may complete.
        The first `AccuracyInterval`, and the policies that make possible matches, have the same
        effect.
        """
        self._shared.keeps_ends = True

    def treat_errors_as_false(self) -> None:
        """Treat predicates over several events as false if they raise."""
        for node in self._nodes:
            if isinstance(node, CombinationNode):
                node.predicates.treat_errors_as_false()

    # -- events and time -----------------------------------------------------------------------

    def feed(
        self,
        o: Occurrence,
        reader: Reader = None,
        contemporaries: Sequence[Occurrence] = (),
    ) -> list[Occurrence]:
        """Process `o` and return the matches that it completes.

        Parameters
        ----------
        o : Occurrence
            An event of any key and time; see `trim` for late events.
        reader : object, optional
            Transaction through which predicates read the shared store.
        contemporaries : sequence of Occurrence
            Events yet to be fed that may be before `o`, according to their timestamps. They are
            remembered until they are fed or trimmed.

        Returns
        -------
        list of Occurrence
            For a primitive event `o` itself; otherwise composite occurrences, in the order of
            preference, then matches that were open before and have become certain.

        Raises
        ------
        UncertainOrder
            Under the policy "raise", if something is left open. The step was taken as under
            "certain": `o` is kept, and the error's `made` has the certain matches.
        BadEvent
            If `o` lacks an attribute of ``same`` or of a term, or its value cannot be compared;
            `PartialsExceeded`, `MatchesExceeded` according to the policies. Exceptions of
            predicates propagate. The state is unchanged in these cases.

        Notes
        -----
        Complexity: see detection/README.md.
        """
        plain = self._plain
        if plain is not None:
            if o.key not in plain.dispatch:
                return []
            shared = self._shared
            if not (
                contemporaries or o.stamp is not None or o.low_us != o.high_us or shared.keeps_ends
            ):
                found = plain.feed(o)
                bound = self._partials_max
                if shared.fresh is not None or (bound is not None and plain.groups.count > bound):
                    self._bound_plain(plain, o)
                return found
        if self.single is not None:
            return [o] if self.single.takes(o) else []
        shared = self._shared
        if contemporaries or not is_exact(o):
            if not shared.is_inexact:
                self._become_inexact()
            shared.late_us = max(shared.late_us, o.high_us - o.us)
            shared.reach_us = max(shared.reach_us, shared.late_us, o.us - o.low_us)
        elif o.stamp is not None:
            shared.keeps_ends = True  # its clock also stamps intervals
        accepted = o.key in self._root.keys
        if not accepted and not (self._clocks and self._told_us is None):
            return []
        record = _Record(o, o.us, [], {}, tuple(contemporaries))
        made = self._do(record, reader)
        self._remember(record)
        return self._told(made, record)

    def advance(self, us: int, reader: Reader = None) -> list[Occurrence]:
        """Announce that no event before `us` follows; return what time completes before `us`.

        Raises
        ------
        ActiveDBError
            As for `feed`.
        """
        if not self.is_timed:
            return []
        record = _Record(None, us, [], {}, ())
        made = self._do(record, reader)
        last = self._log[-1] if self._log else None
        is_marked, self._is_marked = self._is_marked, False
        if (
            last is not None
            and last.is_idle
            and record.is_idle  # redoing two merged steps that were not might merge their choices
            and last.us <= us
            and not is_marked
        ):
            last.us = us
            last.journal += record.journal
            last.said.update(record.said)
        else:
            self._remember(record)
        return self._told(made, record)

    def _become_inexact(self) -> None:
        """Treat the order of events as uncertain from now on."""
        shared = self._shared
        shared.is_inexact = shared.keeps_ends = True
        for node in self._nodes:
            for entry in node.kept():
                shared.latest_us = max(shared.latest_us, entry[3].high_us)

    def _do(self, record: _Record, reader: Reader, *, refuses: bool = True) -> list[Entry]:
        self._shared.misses = False
        self._shared.step += 1
        record.step = self._shared.step
        # Redoing a step never refuses an event, as it was accepted before; nor does a window's end.
        self._shared.bound.must_truncate = record.o is None or not refuses
        try:
            made = self._steps(record, reader)
            if self._shared.is_inexact or record.chosen is not None:
                made = self._judge(made, record, reader)
            if self._partials_max is not None:
                self._bound(record.us, record.journal, refuses=refuses)
            return made
        except BaseException:
            roll_back(record.journal)
            raise
        finally:
            self._shared.bound.must_truncate = False
            if self._shared.fresh is not None:
                self._shared.fresh.clear()

    def _steps(self, record: _Record, reader: Reader) -> list[Entry]:
        journal, o, timers = record.journal, record.o, self._shared.timers
        if record.chosen is not None:
            return self._choose(*record.chosen, record, reader)
        if o is None and record.us > self._advanced_us:
            journal.append((setattr, (self, "_advanced_us", self._advanced_us)))
            self._advanced_us = record.us
        if o is not None and self._shared.is_inexact:
            self._await(o, record)
        if self._told_us is None and self._clocks:
            self._tell(record.us)
        if o is not None:
            moment = Moment(o, reader, journal, record.said, contemporaries=record.contemporaries)
            return self._evaluate(moment)
        made: list[Entry] = []
        record.is_idle = True
        while due := timers.take_first(record.us, journal):
            record.is_idle = False
            us, index, _ = due[0]
            tick = self._clocks.tick(index, us, timers, journal)
            called = tuple([timer[2] for timer in due])
            moment = Moment(tick, reader, journal, record.said, index=index, us=us, called=called)
            made += self._evaluate(moment)
        return made

    def _tell(self, us: int) -> None:
        """Start the clocks at the first known time; only `undo` resets it."""
        self._told_us = us
        self._clocks.start(us, self._shared.timers, self._start)

    def detach(self) -> None:
        """Stop sharing nodes, so that this detector need not be fed what others are fed."""
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.detach()

    def _evaluate(self, moment: Moment) -> list[Entry]:
        root = self._root
        return root.evaluate(moment) if root.concerns(moment) else []

    # -- open choices ------------------------------------------------------------------------

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The open choices: matches that are possible, but not certain.

        A choice ends when none of its candidates is open: it was resolved, or later matches exclude
        them or made them certain. Age does not end a choice, but beyond 10,000 choices the oldest
        is forgotten (counted in `forgotten`).
        """
        if not self._open or self._shared.policy.name == "possible":
            return ()
        return tuple([choice.undecided for choice in self._open.values()])

    def take_undecided(self) -> list[Undecided]:
        """Return the open choices that were not returned by an earlier call."""
        if not self._open or self._shared.policy.name == "possible":
            return []
        found = [
            choice.undecided
            for identity, choice in self._open.items()
            if identity not in self._handed_out
        ]
        self._handed_out.update([each.identity for each in found])
        return found

    def resolve(
        self,
        identity: str,
        chosen: Iterable[int | Mapping[str, Any]],
        reader: Reader = None,
    ) -> list[Occurrence]:
        """Decide an open choice; return the chosen matches, then those that follow from them.

        The other candidates of the choice are not made. Matches that only this choice had kept from
        being certain are decided with it.

        Parameters
        ----------
        identity : str
            The identity of one of `undecided`.
        chosen : iterable of int or mapping
            The candidates to make, by number or as the candidates themselves; possibly none.
        reader : object, optional
            Transaction through which predicates read the shared store.

        Raises
        ------
        BadEvent
            If no such choice is open, or a chosen match is not among its candidates or is
            excluded, by an earlier match or another chosen one. The state is unchanged.
        """
        choice = self._open.get(identity)
        if choice is None:
            raise BadEvent(f"{self._root.name} has no open choice {identity!r}: see undecided")
        numbers = [self._number_of(choice.undecided, each) for each in chosen]
        record = _Record(None, choice.undecided.us, [], {}, ())
        record.chosen = (identity, tuple(dict.fromkeys(numbers)))
        made = self._do(record, reader)
        self._remember(record)
        return [entry[3] for entry in made]

    def _number_of(self, undecided: Undecided, chosen: int | Mapping[str, Any]) -> int:
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

    def _choose(
        self, identity: str, numbers: tuple[int, ...], record: _Record, reader: Reader
    ) -> list[Entry]:
        """Decide a choice: candidates with these numbers are made, the others are not."""
        choice = self._open.get(identity)
        if choice is None:
            return []  # redone without the event that the choice depended on
        shared, journal = self._shared, record.journal
        made: list[Entry] = []
        delete(self._open, identity, journal)
        for number, (arrival, o) in enumerate(choice.entries):
            is_chosen = number in numbers
            if is_chosen and arrival in shared.gone:
                raise BadEvent(
                    f"candidate {number} of {identity!r} is excluded by what was made since"
                )
            if arrival in shared.doubtful:
                if is_chosen:
                    made.append((o.us, o.id or "", arrival, o, o.parts))
                assign(self._decisions, arrival, (o, is_chosen), journal)
            shared.decide_all(arrival, journal, is_made=is_chosen)
        found = self._reconsider(record, reader)
        return [*(entry for entry in made if entry[2] not in shared.gone), *found]

    def _reconsider(self, record: _Record, reader: Reader) -> list[Entry]:
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

    def _admit(self, record: _Record) -> None:
        """Make matches that were refuted only by worlds which are no longer possible."""
        witnesses = self._witnesses(record)
        for choice in self._open.values():
            for arrival, o in choice.entries:
                if (
                    arrival in self._refuted
                    and arrival in self._shared.doubtful
                    and not witnesses().refute(o)
                ):
                    self._shared.decide(arrival, record.journal, is_made=True)

    def _await(self, o: Occurrence, record: _Record) -> None:
        """Update the awaited events and the latest time after `o` was fed."""
        shared = self._shared
        before, latest_us = shared.awaited, shared.latest_us
        left = [other for other in before if other is not o and not _is_again(other, o)]
        known = {id(other) for other in left}
        left += [
            other
            for other in record.contemporaries
            if id(other) not in known
            and other.key in self._root.keys
            and not any(_is_again(other, each) for each in left)
        ]
        shared.awaited = left
        shared.latest_us = max(latest_us, o.high_us)
        record.journal.append((setattr, (shared, "awaited", before)))
        record.journal.append((setattr, (shared, "latest_us", latest_us)))

    def _judge(self, found: list[Entry], record: _Record, reader: Reader) -> list[Entry]:
        """Return the root's matches that are made, and record those that are open."""
        shared = self._shared
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
            assign(self._open, identity, choice, record.journal)
            record.opened.append(identity)
            if len(self._open) > _OPEN_MAX:
                delete(self._open, next(iter(self._open)), record.journal)
                self.forgotten += 1
            call = shared.policy.call
            if call is not None:
                error = self._error([choice.undecided], made, record)
                chosen = list(checked_result(call(error), "on_uncertain="))
                sure = error.certain
                numbers = {
                    self._number_of(choice.undecided, each)
                    for each in chosen
                    if not any(each is other for other in sure)
                }
                order = {entry[2]: place for place, entry in enumerate(found)}
                made += self._choose(identity, tuple(sorted(numbers)), record, reader)
                made = [entry for entry in made if entry[2] not in shared.doubtful]
                if shared.decided != self._seen:
                    made += self._decided(record.journal, self._witnesses(record))
                made.sort(key=lambda entry: order.get(entry[2], len(order)))
        return made

    def _witnesses(self, record: _Record) -> Callable[[], WorldChecker]:
        """Return a function that builds the worlds of all kept and awaited events on demand."""
        found: list[WorldChecker] = []

        def witnesses() -> WorldChecker:
            if not found:
                found.append(self._worlds(record))
            return found[0]

        return witnesses

    def _worlds(self, record: _Record, match: Occurrence | None = None) -> WorldChecker:
        """Return the worlds of all events that decide the matches, or those that decide `match`."""
        shared, arrivals = self._shared, self._known_events()
        keys = self._root.keys
        if record.o is not None and record.o.key in keys:
            arrivals.setdefault(id(record.o), (YET_TO_BE_FED, record.o))
        events = [o for _, o in sorted(arrivals.values(), key=itemgetter(0))] + shared.awaited
        if match is not None:
            own = set(map(id, leaves(match)))
            negated = {
                key
                for each in walk(self.expression)
                if isinstance(each, Negation)
                for key in each.keys
            }
            decisive = {id(o) for o in events if id(o) in own or o.key in negated}
            # Other events with the same clocks may restrict the intervals further.
            clocks = {_clock_of(o) for o in events if id(o) in decisive} - {None}
            events = [o for o in events if id(o) in decisive or _clock_of(o) in clocks]
        return WorldChecker(
            self.expression,
            events,
            self._told_us,
            self._advanced_us if record.o is not None else max(record.us, self._advanced_us),
            tuple(self._decisions.values()),
            self._alone,
            is_sound=not self._tries_worlds,
        )

    def _known_events(self) -> dict[int, tuple[int, Occurrence]]:
        """Return the primitive events of all kept or remembered entries, with their arrivals."""
        found = {id(leaf): (arrival, leaf) for arrival, leaf in self._remembered}
        kept = [entry for node in self._nodes for entry in node.kept()]
        for entry in sorted(kept, key=itemgetter(2)):
            for leaf in leaves(entry[3]):
                if leaf.key in self._root.keys:
                    found.setdefault(id(leaf), (entry[2], leaf))
        return found

    def _remember_deciding(self, known: Mapping[int, tuple[int, Occurrence]]) -> None:
        """Update the remembered events: those that are near to something doubtful.

        `known` has the events known before entries were trimmed.
        """
        self._remembered = []
        kept = self._known_events()
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

    def _alone(self) -> Detector:
        """Return a detector of the expression that does not try worlds."""
        found = Detector(self.expression, matches_max=_WORLD_MATCHES_MAX, on_many="truncate")
        found._tries_worlds = False
        return found

    def _is_possible(
        self, match: Occurrence, record: _Record, witnesses: Callable[[], WorldChecker]
    ) -> bool:
        """Return whether a possible match was proved: some world makes it."""
        if self.reads:
            return self._is_free
        # If nothing else can exclude a match, only its own events and negated ones decide it.
        asked = self._worlds(record, match) if self._is_free else witnesses()
        return asked.prove(match)

    def _refuted_of(
        self, made: Iterable[Entry], witnesses: Callable[[], WorldChecker]
    ) -> list[Entry]:
        """Return the matches that nodes hold for certain, but that some world does not make."""
        if not self._tries_worlds:
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

    def _decided(self, journal: Journal, witnesses: Callable[[], WorldChecker]) -> list[Entry]:
        """Return the matches that became certain; remove choices without open candidates."""
        doubtful, gone = self._shared.doubtful, self._shared.gone
        self._seen = self._shared.decided
        made: list[Entry] = []
        for identity, choice in list(self._open.items()):
            sure: list[Entry] = [
                (o.us, o.id or "", arrival, o, o.parts)
                for arrival, o in choice.entries
                if not (arrival in doubtful or arrival in gone or arrival in self._returned)
            ]
            for entry in self._refuted_of(sure, witnesses):
                self._refute(entry, journal)
            if not any(arrival in doubtful for arrival, _ in choice.entries):
                delete(self._open, identity, journal)
            for entry in sure:
                if entry[2] not in doubtful:
                    made.append(entry)
                    add(self._returned, entry[2], journal)
        return made

    def _choice(self, opened: list[Entry], made: list[Entry], record: _Record) -> _Choice:
        doubtful = self._shared.doubtful
        candidates = tuple([_parts_of(entry[3]) for entry in opened])
        us = max(entry[0] for entry in opened)
        identity = identity_of(self._root.name, candidates, us)
        number = 1
        while identity in self._open:
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

    def _error(
        self, opened: Sequence[Undecided], made: Sequence[Entry], record: _Record
    ) -> UncertainOrder:
        candidates = tuple([c for each in opened for c in each.candidates])
        rivals: tuple[Rivals, ...] = tuple([r for each in opened for r in each.rivals])
        counted = (
            "a match that depends"
            if len(candidates) == 1
            else f"{len(candidates)} matches that depend"
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

    def _told(self, made: list[Entry], record: _Record) -> list[Occurrence]:
        """Return the matches of a step; raise under the policy "raise" if something is open."""
        if self._shared.policy.name == "raise":
            opened = [
                choice.undecided
                for identity in record.opened
                if (choice := self._open.get(identity)) is not None
            ]
            if opened:
                raise self._error(opened, made, record)
            if self._shared.misses:
                raise UncertainOrder(
                    f"{record.o} may have happened before an event with an exact timestamp that "
                    "was fed before, and is not kept as nothing exact could be last with it: call "
                    "Detector.expect_intervals before, feed events in the order in which their "
                    "intervals begin, or choose another policy with on_uncertain=",
                    certain=tuple([_parts_of(entry[3]) for entry in made]),
                    made=tuple([entry[3] for entry in made]),
                )
        return [entry[3] for entry in made]

    # -- undoing -----------------------------------------------------------------------------

    def withdraw(self, o: Occurrence, reader: Reader = None) -> None:
        """Undo the feed of `o` (this very object), as if it had never been fed.

        If it was fed more than once, its last feed is undone. There is no effect if it was never
        fed or is older than the trimmed horizon. (Without a horizon, and if the state depends on
        the matches made, the limit is the time trimmed to.) The caller must take back matches
        already returned. Predicates that read are not evaluated again; one that would have been
        evaluated only without `o` is evaluated through `reader`.

        Complexity: O(log n) for a sequence of primitive events without selection, context and
        skip, until the first timestamp that is an interval. Otherwise all steps since `o` are
        undone and redone.
        """
        log = self._log
        number = next((n for n in range(len(log) - 1, -1, -1) if log[n].o is o), -1)
        if number < 0 and (self._memoryless is None or not self.accepts(o)):
            return
        later = []
        self._oldest = None  # undoing brings back entries
        while len(log) > max(number, 0):
            record = log.pop()
            roll_back(record.journal)
            later.append(record)
        if number >= 0:
            later.pop()
        elif self._memoryless is not None:
            self._memoryless.withdraw(o)  # it was fed before all steps in the log
        self._remembered = [each for each in self._remembered if each[1] is not o]
        for record in reversed(later):
            self._do(record, reader, refuses=False)
            self._remember(record)
        self._handed_out &= self._open.keys()
        if (later or number >= 0) and self._trimmed_us is not None:
            for node in self._nodes:
                node.trim(self._trimmed_us)  # undoing has brought back trimmed entries

    @property
    def keeps_log(self) -> bool:
        """True if `mark` and `undo` suffice; otherwise feeds are withdrawn one by one."""
        return self.is_stateful and self._memoryless is None

    def mark(self) -> object:
        """Return a mark of the present step for `undo`; do not call `trim` before that."""
        self._is_marked = True  # the next advance must not be merged with an earlier one
        shared, last = self._shared, self._log[-1] if self._log else None
        return _Mark(last, self._told_us is not None, shared.is_inexact, shared.keeps_ends)

    def undo(self, mark: object) -> None:
        """Undo the feeds and advances since `mark`. REQUIRES: `keeps_log`."""
        assert isinstance(mark, _Mark)
        self._oldest = None
        while self._log and self._log[-1] is not mark.last:
            roll_back(self._log.pop().journal)
        if self._told_us is not None and not mark.has_begun:
            roll_back(self._start)
            self._told_us = None
        shared = self._shared
        shared.keeps_ends = mark.keeps_ends
        if shared.is_inexact and not mark.is_inexact:
            shared.is_inexact = False
            shared.reach_us = shared.late_us = 0
        self._handed_out &= self._open.keys()

    def _remember(self, record: _Record) -> None:
        # Neither open choices nor what was dropped follow from the kept events.
        if self.keeps_log or self._shared.keeps_ends or self._shared.fresh is not None:
            self._log.append(record)

    # -- bounds ------------------------------------------------------------------------------

    def trim(self, before_us: int) -> None:
        """Forget the events that no match ending at or after `before_us` can need.

        The caller promises that every event fed from now on is at or after `before_us`
        (microseconds since the epoch). Events of timers due before are kept until `advance` has
        decided them.

        Complexity: O(log g) for each of the groups with an expired entry, among g; the others are
        not visited. If an interval was fed, or an event with contemporaries: O(n) for n partials,
        until no such event is kept any more. From then on, searches are as fast as for exact events
        again.
        """
        before_us = self._decided_us(before_us)
        log = self._log
        until_us = before_us - (self.horizon_us or 0)
        most = None if self.keeps_log or self._shared.keeps_ends else _DROPPING_MAX
        while log and (log[0].us < until_us or (most is not None and len(log) > most)):
            log.popleft()
        self._shared.undoable_step = log[0].step if log else self._shared.step + 1
        tells_worlds = self._tries_worlds and self._shared.is_inexact
        known = self._known_events() if tells_worlds else {}
        for node in self._nodes:
            node.trim(before_us)
        if known:
            self._remember_deciding(known)
        self._trimmed_us = before_us
        oldest = self._oldest
        if oldest is not None and len(oldest) > 1_000 and len(oldest) > 4 * self.partials:
            self._oldest = None  # most of its entries are gone
        shared = self._shared
        if shared.is_inexact:
            shared.awaited = [o for o in shared.awaited if o.high_us >= before_us]
            if not self._has_inexact():
                shared.is_inexact = False
                shared.reach_us = shared.late_us = 0
                self._decisions.clear()
                self._remembered.clear()
                journal: Journal = log[-1].journal if log else []
                for node in self._nodes:
                    node.become_exact(journal)
            self._forget_decided()

    def _decided_us(self, us: int) -> int:
        """Return `us`, or the time of the next timer if that is before."""
        due_us = self.due_us
        return us if due_us is None else min(us, due_us)

    def _forget_decided(self) -> None:
        """Forget the status of occurrences that nothing refers to any more."""
        shared = self._shared
        if shared.is_inexact and len(shared.doubtful) + len(shared.gone) < _DECIDED_MAX:
            return
        kept = {arrival for choice in self._open.values() for arrival, _ in choice.entries}
        if shared.is_inexact:
            kept.update(entry[2] for node in self._nodes for entry in node.kept())
            kept.update(entry[2] for node in self._nodes for entry in node.open_entries())
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

    def _has_inexact(self) -> bool:
        """Return whether anything kept, or that may be redone, has an uncertain order."""
        return (
            bool(self._shared.awaited)
            or any(node.is_doubtful for node in self._nodes)
            or any(
                record.contemporaries or (record.o is not None and not is_exact(record.o))
                for record in self._log
            )
            or any(
                not is_exact(entry[3])
                # The exact search does not handle primitive events that last.
                or (entry[4] is None and entry[3].low_us != entry[3].high_us)
                # The exact search would treat open and excluded occurrences as made.
                or entry[2] in self._shared.doubtful
                or entry[2] in self._shared.gone
                for node in self._nodes
                for entry in node.kept()
            )
        )

    def _bound(self, us: int, journal: Journal, *, refuses: bool = True) -> None:
        """Enforce the bound on the number of partials at time `us`.

        What has expired by then is forgotten first. Entries are tracked only once there were too
        many. From then on nothing is shared, as dropping an entry would affect the other detectors.
        """
        assert self._partials_max is not None
        if self._oldest is not None:
            for entry, node in self._shared.fresh or ():
                heappush(self._oldest, self._age(entry, node))
        before = kept = self.partials
        if kept <= self._partials_max:
            return
        if self._shared.fresh is None:
            self._track()
        if not self._shared.is_inexact and self._may_have_expired(us):
            before_us = self._decided_us(us)
            for node in self._nodes:
                node.expire(before_us, journal)
            kept = self.partials
            self._expired += before - kept
        if kept <= self._partials_max:
            return
        if self._refuses and not refuses:
            return  # the step was accepted before, and is redone
        if self._refuses:
            raise PartialsExceeded(
                f"{self._root.name} keeps {kept} occurrences, more than "
                f"{self._partials_max}: shorten its window, raise partials_max, or let it "
                'drop the oldest with on_full="drop_oldest"'
            )
        while self.partials > self._partials_max:
            if not self._oldest:
                self._oldest = [self._age(e, node) for node in self._nodes for e in node.kept()]
                heapify(self._oldest)
            entry, node = heappop(self._oldest)[-2:]
            if node.drop(entry, journal):
                self.dropped += 1
                journal.append((self._undrop, ()))

    def _may_have_expired(self, us: int) -> bool:
        """Return whether a kept entry may have expired by `us`; the heap excludes it quickly."""
        memory_us = self.memory_us
        if memory_us is None:
            return False
        if self._plain is None or not self._oldest:
            return True
        return self._oldest[0][0] < us - memory_us

    def _track(self) -> None:
        """Let the nodes report new entries, and the log contain all steps, from now on."""
        fresh: list[tuple[Entry, Node]] = []
        self._shared.fresh = fresh
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.part_for_good()
                node.hear(fresh)

    def _age(self, entry: Entry, node: Node) -> tuple[int, str, int, int, int, Entry, Node]:
        """Return an item of the heap; the number tells entries of one event in a node apart."""
        return *entry[:3], node.index, next(self._ages), entry, node

    def _undrop(self) -> None:
        self.dropped -= 1

    def _bound_plain(self, plain: SequenceNode | SharedNode, o: Occurrence) -> None:
        journal: Journal = [(plain.withdraw, (o,))]
        try:
            self._bound(o.us, journal)
        except PartialsExceeded:
            roll_back(journal)
            raise
        finally:
            if self._shared.fresh is not None:
                self._shared.fresh.clear()
        # Withdrawing `o` restores what was dropped for it.
        self._remember(_Record(o, o.us, journal, {}, ()))

    # -- state -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the whole state as a JSON-serialisable dict for `restore`.

        Raises
        ------
        BadEvent
            If a kept occurrence cannot be encoded.
        """
        writer = StateWriter()
        nodes = [node.write(writer) for node in self._nodes]
        arrival = next(self._shared.arrivals)
        self._shared.arrivals = count(arrival)
        return {
            "expression": encode_params({"text": repr(self.expression)})["text"],
            "told_us": self._told_us,
            "advanced_us": self._advanced_us,
            "arrival": arrival,
            "dropped": self.dropped,
            "nodes": nodes,
            "timers": [
                [us, index, encode_params({"called": _listed(called)})["called"]]
                for us, index, called in self._shared.timers.in_order()
            ],
            "undecided": [
                {
                    **encode_undecided(replace(choice.undecided, candidates=())),
                    "entries": [[arrival, writer.occurrence(o)] for arrival, o in choice.entries],
                }
                for choice in self._open.values()
            ],
            "handed_out": sorted(self._handed_out & self._open.keys()),
            "doubtful": sorted(self._shared.doubtful),
            "gone": sorted(self._shared.gone),
            "follows": sorted([key, value] for key, value in self._shared.follows.items()),
            "refuted": sorted(self._refuted & self._shared.doubtful.keys()),
            "returned": sorted(
                arrival
                for choice in self._open.values()
                for arrival, _ in choice.entries
                if arrival in self._returned
            ),
            "decisions": [
                [arrival, writer.occurrence(o), is_made]
                for arrival, (o, is_made) in self._decisions.items()
            ],
            "remembered": [[arrival, writer.occurrence(o)] for arrival, o in self._remembered],
            "awaited": [writer.occurrence(o) for o in self._shared.awaited],
            "is_inexact": self._shared.is_inexact,
            "keeps_ends": self._shared.keeps_ends,
            "reach_us": [self._shared.reach_us, self._shared.late_us],
            "latest_us": self._shared.latest_us,
            "occurrences": writer.occurrences,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state` of a detector of an equal expression. REQUIRES: this one is new.

        It continues as that detector would. Events fed before can no longer be withdrawn.

        Raises
        ------
        PatternError
            If the state is that of another expression.
        BadEvent
            If the state is invalid.
        """
        text = decode_params({"text": state["expression"]})["text"]
        if text != repr(self.expression):
            raise PatternError(
                f"the state is one of {text}, and cannot be restored into {self.expression!r}"
            )
        reader = StateReader(state["occurrences"])
        # States of early versions lack it; their kept entries show it, except for contemporaries.
        self._shared.is_inexact = state.get(
            "is_inexact",
            not all(map(is_exact, reader.occurrences))
            or any(state.get(name) for name in ("undecided", "doubtful", "awaited")),
        )
        self._shared.keeps_ends |= state.get("keeps_ends", False) or any(
            o.stamp is not None for o in reader.occurrences
        )
        for node, data in zip(self._nodes, state["nodes"], strict=True):
            if data is not None:
                node.read(data, reader)
        self._restore_open(state, reader)
        self._told_us = state["told_us"]
        self._advanced_us = state.get("advanced_us", self._advanced_us)
        self._shared.arrivals = count(state["arrival"])
        self.dropped = state["dropped"]
        for us, index, called in state["timers"]:
            name = _tupled(decode_params({"called": called})["called"])
            self._shared.timers.set((us, index, name), [])

    def _restore_open(self, state: Mapping[str, Any], reader: StateReader) -> None:
        """Restore the open choices."""
        shared = self._shared
        rivals: dict[int, Rivals] = {}
        for data in state.get("undecided", ()):
            entries = tuple([(arrival, reader.occurrences[n]) for arrival, n in data["entries"]])
            candidates = tuple([_parts_of(o) for _, o in entries])
            undecided = replace(decode_undecided(data), candidates=candidates)
            self._open[undecided.identity] = _Choice(undecided, entries)
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
        shared.follows.update(dict(state.get("follows", ())))
        shared.awaited = [reader.occurrences[number] for number in state.get("awaited", ())]
        shared.reach_us, shared.late_us = state.get("reach_us", (0, 0))
        shared.latest_us = state.get("latest_us", shared.latest_us)


def _parts_of(o: Occurrence) -> Mapping[str, Any]:
    """Return a match as a mapping of part names to constituents."""
    return o.parts or {o.name: o}


def _clock_of(o: Occurrence) -> object:
    """Return the local clock that stamped an event, or None if there is none."""
    stamp = o.stamp
    return None if stamp is None or stamp.local_clock is None else (stamp.node, stamp.local_clock)


def _is_again(a: Occurrence, b: Occurrence) -> bool:
    """Return whether two objects are the same event, as one of them may come from `restore`."""
    return a is b or (a.key == b.key and a.timestamp == b.timestamp and text_of(a) == text_of(b))


def _listed(called: Any) -> Any:
    return list(called) if isinstance(called, tuple) else called


def _tupled(called: Any) -> Hashable:
    return tuple(called) if isinstance(called, list) else called
