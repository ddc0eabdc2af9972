"""The incremental evaluator of one event expression."""

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
from activedb.events._conjunction import Conjunction
from activedb.events._disjunction import Disjunction
from activedb.events._expression import Expression, Reader
from activedb.events._kleene import Kleene
from activedb.events._occurrence import Occurrence
from activedb.events._primitives import Negation, Primitive
from activedb.events._query import Query
from activedb.events._sequence import Sequence as Sequence_
from activedb.events._undecided import (
    Rivals,
    Undecided,
    decode_undecided,
    encode_undecided,
    identity_of,
    same_candidate,
    text_of,
)
from activedb.events._witnesses import Decision, Witnesses, leaves
from activedb.events.detection._bound import MATCHES_MAX, Bound
from activedb.events.detection._build import Builder
from activedb.events.detection._clocks import Clocks
from activedb.events.detection._combination import CombinationNode
from activedb.events.detection._entry import YET_TO_BE_FED, Entry
from activedb.events.detection._journal import Journal, add, assign, delete, roll_back
from activedb.events.detection._network import Network, SharedNode
from activedb.events.detection._node import DECISION, Moment, Node, Shared
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
"""Bound on the open choices; beyond it the oldest is forgotten, and counted."""
_DECIDED_MAX = 1_000
_DROPPING_MAX = 10_000
"""Bound on the events of which a plain detector knows what was dropped for them."""
_WORLD_MATCHES_MAX = 1_000
"""Bound on the matches that an event completes in a world that is tried."""


class _Choice:
    """Open choice, with the occurrences that its candidates make."""

    __slots__ = ("entries", "undecided")

    def __init__(self, undecided: Undecided, entries: tuple[tuple[int, Occurrence], ...]):
        self.undecided = undecided
        self.entries = entries  # by the numbers of the candidates: arrivals and occurrences


class _Mark(NamedTuple):
    """State of a detector that `Detector.undo` restores, beside what the log undoes."""

    last: _Record | None
    has_begun: bool
    is_inexact: bool
    keeps_ends: bool


class _Record:
    """A step that can be undone: an event that was fed, an advance of time, a decision."""

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
        self.is_idle = False  # an advance at which nothing was due


class Detector:
    """Finds the matches of one expression in events fed one at a time (README, "Semantics").

    Not thread-safe. REQUIRES, of every method: the caller holds whatever latch guards the
    detector.

    Parameters
    ----------
    expression : Expression
        What to look for.
    name : str, optional
        The name of the composite occurrences; by default the expression's repr, or the query's
        name.
    on_uncertain : {"certain", "raise", "possible", "reading"} or callable
        What to do if the order of events, or how far they are apart, is not known: make what is
        certain, and remember what is open (see `undecided`); the same, and raise `UncertainOrder`
        after the step; make what is possible; take the readings for exact; ask a function, which
        is given an `UncertainOrder` and returns those of its `candidates` that are made.
    partials_max : int, optional
        How many occurrences may be kept.
    on_full : {"drop_oldest", "refuse"}
        What to do if there are more.
    matches_max : int, optional
        How many matches one event may complete; 10,000 by default, None: any number. It holds for
        each part of the expression that is composite, too, and for what a context chooses from.
    on_many : {"refuse", "truncate"}
        What to do if it would complete more: refuse the event, or make the most preferred ones. At
        the end of a window, where there is no event, these are made.
    network : Network, optional
        With whose detectors it shares common subexpressions.

    Raises
    ------
    PatternError
        If `expression` cannot stand on its own, or an option has no meaning.

    Attributes
    ----------
    expression : Expression
        As given.
    horizon_us : int or None
        How far before the end of a match its events reach; None: without bound; 0 if nothing is
        kept.
    is_stateful : bool
        Whether it keeps anything at all.
    is_timed : bool
        Whether time alone can produce matches, so that `advance` has to be called.
    is_replayable : bool
        Whether what it keeps follows from feeding the events of the last horizon again.
    reads : bool
        Whether predicates read the shared store, so that `feed` and `advance` need a reader.
    dropped : int
        How many occurrences were forgotten because there were too many.
    truncated : int
        How often matches were left out because one event completed too many.
    forgotten : int
        How many open choices were, likewise.
    """

    __slots__ = (
        "__weakref__",
        "_advanced_us",
        "_clocks",
        "_decisions",
        "_durations_us",
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
        "_single",
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
        self._partials_max = partials_max
        self._refuses = on_full == "refuse"
        self._shared = Shared(
            Policy.of(on_uncertain), Bound(matches_max, truncates=on_many == "truncate")
        )
        if self._shared.keeps_ends:
            network = None  # what is shared does not
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
        # Of an expression that is one event, which needs no more than that.
        self._single: Primitive | None = None
        if isinstance(expression, Primitive) and not self.is_timed and not self.reads:
            self._single = expression
        self._told_us: int | None = None
        self._start: Journal = []  # undoes the start of the clocks
        self._log: deque[_Record] = deque()
        self._is_marked = False
        self._trimmed_us: int | None = None
        self._open: dict[str, _Choice] = {}
        self._handed_out: set[str] = set()
        self._advanced_us = -(2**62)
        # Whether nothing that is made keeps anything else from being made.
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
        self._seen = 0  # of what nodes have decided, how much was looked at
        # Where one choice among plain sequences or conjunctions is all, the nodes know enough. What
        # reads the shared store would read something else in a world.
        is_simple = isinstance(expression, Sequence_ | Conjunction) and (
            all(isinstance(e, Primitive | Disjunction | Negation) for e in tree[1:])
            and not is_timed(expression)
        )
        self._tries_worlds = not (is_simple or self._is_free or self.reads) and (
            self._shared.policy.doubts
        )
        # What a world is known not to make, though nodes hold it for certain: its arrivals.
        self._refuted: set[int] = set()
        self._durations_us = durations_of(expression)
        # What was open, and is certain since: the arrivals of what was returned of open choices.
        self._returned: set[int] = set()
        self._decisions: dict[int, Decision] = {}
        # Events that nodes have forgotten, and that decide about what is doubtful still.
        self._remembered: list[tuple[int, Occurrence]] = []
        self.forgotten = 0
        # What is to be dropped first: a heap, from when the bound is reached for the first time.
        self._oldest: list[tuple[int, str, int, int, Entry, Node]] = []

    # -- what it is --------------------------------------------------------------------------

    @property
    def partials(self) -> int:
        """The number of occurrences kept because a later match may need them."""
        return sum([node.partials for node in self._nodes])

    @property
    def kept_events(self) -> int:
        """Another number whenever `feed` has made it keep, or forget, something.

        `partials` does not tell: what is shared others may have been fed before.
        """
        if type(self._plain) is SequenceNode:
            return self.dropped + self._plain.groups.count
        return self.dropped + sum([node.kept_events for node in self._nodes])

    @property
    def truncated(self) -> int:
        return self._shared.bound.truncated

    @property
    def is_sharing(self) -> bool:
        """Whether it has parts that other detectors of the network may share."""
        return any(isinstance(node, SharedNode) for node in self._nodes)

    @property
    def due_us(self) -> int | None:
        """When time alone will produce or decide something next: `advance` beyond it does."""
        timer = self._shared.timers.first()
        return None if timer is None else timer[0]

    @property
    def memory_us(self) -> int | None:
        """How far back what is kept may reach, by its readings; None: without bound.

        That is the horizon, and how far the timestamps of what is kept may be off.
        """
        return None if self.horizon_us is None else self.horizon_us + self._shared.spread_us

    def accepts(self, o: Occurrence) -> bool:
        """Whether the expression listens to events like `o`; if not, feeding it does nothing."""
        return o.key in self._root.keys

    def expect_intervals(self) -> None:
        """Tell that there may be timestamps that are intervals, before any is fed.

        Then events with exact timestamps that can only be the last of a match are kept, too, as an
        interval may be fed later that possibly precedes them. Without it the policy "raise" tells
        of such an interval, and cannot list what it may complete. The first timestamp that is an
        `AccuracyInterval` tells as much, and so do the policies that make what is possible.
        """
        self._shared.keeps_ends = True

    def forgive(self) -> None:
        """Take predicates over several events that raise for predicates that do not hold."""
        for node in self._nodes:
            if isinstance(node, CombinationNode):
                node.predicates.forgive()

    # -- events and time -----------------------------------------------------------------------

    def feed(
        self,
        o: Occurrence,
        reader: Reader = None,
        contemporaries: Sequence[Occurrence] = (),
    ) -> list[Occurrence]:
        """Take `o` in and return the matches that it completes.

        Parameters
        ----------
        o : Occurrence
            Of any key and time; but see `trim`.
        reader : object, optional
            What predicates that read the shared store read through: a transaction.
        contemporaries : sequence of Occurrence
            Events that are yet to be fed but may lie before `o` for all that their timestamps
            tell. They are remembered until they are fed, or trimmed.

        Returns
        -------
        list of Occurrence
            Of a primitive event `o` itself, of others composite occurrences, in the order of
            preference; then what has been open before and has become certain.

        Raises
        ------
        UncertainOrder
            Under the policy "raise", if something is left open. The step was taken then as under
            "certain": `o` is kept, and what is certain is in the error's `made`.
        BadEvent
            If `o` lacks an attribute of ``same`` or of a term, or its value cannot be compared;
            `PartialsExceeded`, `MatchesExceeded` as the policies say. What a predicate raises
            passes through. Nothing has changed then.

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
                if bound is not None and (shared.fresh or plain.groups.count > bound):
                    self._bound_plain(plain, o)
                return found
        if self._single is not None:
            return [o] if self._single.takes(o) else []
        shared = self._shared
        if contemporaries or not is_exact(o):
            if not shared.is_inexact:
                self._become_inexact()
            shared.late_us = max(shared.late_us, o.high_us - o.us)
            shared.reach_us = max(shared.reach_us, shared.late_us, o.us - o.low_us)
        elif o.stamp is not None:
            shared.keeps_ends = True  # whose clock stamps intervals, too
        accepted = o.key in self._root.keys
        if not accepted and not (self._clocks and self._told_us is None):
            return []
        record = _Record(o, o.us, [], {}, tuple(contemporaries))
        made = self._do(record, reader)
        self._remember(record)
        return self._told(made, record)

    def advance(self, us: int, reader: Reader = None) -> list[Occurrence]:
        """Tell that no event before `us` is fed any more; return what time completes before it.

        Raises
        ------
        ActiveDBError
            As `feed`.
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
            and record.is_idle  # done again together, two steps might leave one choice
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
        """Expect from now on that the order of events is not known."""
        shared = self._shared
        shared.is_inexact = shared.keeps_ends = True
        for node in self._nodes:
            for entry in node.kept():
                shared.latest_us = max(shared.latest_us, entry[3].high_us)

    def _do(self, record: _Record, reader: Reader, *, refuses: bool = True) -> list[Entry]:
        self._shared.misses = False
        self._shared.step += 1
        record.step = self._shared.step
        # What was taken already is not refused when it is done again, nor is the end of a window.
        self._shared.bound.must_truncate = record.o is None or not refuses
        try:
            made = self._steps(record, reader)
            if self._shared.is_inexact or record.chosen is not None:
                made = self._judge(made, record, reader)
            if self._partials_max is not None:
                self._bound(record.journal, refuses=refuses)
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
        """Start the clocks at the first time that the detector is told; only `undo` resets it."""
        self._told_us = us
        self._clocks.start(us, self._shared.timers, self._start)

    def detach(self) -> None:
        """Share nothing any more: what others are fed from now on this one need not be fed."""
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.detach()

    def _evaluate(self, moment: Moment) -> list[Entry]:
        root = self._root
        return root.evaluate(moment) if root.concerns(moment) else []

    # -- what is open ------------------------------------------------------------------------

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The choices that are open: what may have been made, and is not certain.

        One disappears when nothing of it is open any more: it was resolved, or what was made since
        excludes it or has made it certain. Age alone does not end it; but of more than 10,000 the
        oldest is forgotten (counted in `forgotten`).
        """
        if not self._open or self._shared.policy.name == "possible":
            return ()
        return tuple([choice.undecided for choice in self._open.values()])

    def take_undecided(self) -> list[Undecided]:
        """Return the open choices that it has not returned before."""
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
        """Decide an open choice, and return what is made: the chosen, then what follows.

        The other candidates of the choice are not made. What only this choice had kept from being
        certain is decided with it.

        Parameters
        ----------
        identity : str
            Of one of `undecided`.
        chosen : iterable of int or mapping
            The numbers of those of its `candidates` that are made, or these themselves; perhaps
            none.
        reader : object, optional
            What predicates that read the shared store read through.

        Raises
        ------
        BadEvent
            If no such choice is open, or one of the chosen is not among its candidates, is
            excluded already, or by another one of the chosen. Nothing has changed then.
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
        """Take the candidates with these numbers for made, the others for not made."""
        choice = self._open.get(identity)
        if choice is None:
            return []  # done again without the event that it depended on
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
        """Decide what only such worlds did not make as are no longer possible."""
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
        """Take note of what is yet to be fed, now that `o` is, and of how late it may be."""
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
        """Return what is made of what the root has passed on, and remember what is open."""
        shared = self._shared
        # What one moment has left open, a later one of the same step may have excluded.
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

    def _witnesses(self, record: _Record) -> Callable[[], Witnesses]:
        """Return the worlds of all that is kept and awaited, made when they are asked for."""
        found: list[Witnesses] = []

        def witnesses() -> Witnesses:
            if not found:
                found.append(self._worlds(record))
            return found[0]

        return witnesses

    def _worlds(self, record: _Record, match: Occurrence | None = None) -> Witnesses:
        """Return the worlds of all that decides what is made; or of what decides about a match."""
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
            # Others of their clocks may leave less of their intervals.
            clocks = {_clock_of(o) for o in events if id(o) in decisive} - {None}
            events = [o for o in events if id(o) in decisive or _clock_of(o) in clocks]
        return Witnesses(
            self.expression,
            events,
            self._told_us,
            self._advanced_us if record.o is not None else max(record.us, self._advanced_us),
            tuple(self._decisions.values()),
            self._alone,
            is_sound=not self._tries_worlds,
        )

    def _known_events(self) -> dict[int, tuple[int, Occurrence]]:
        """Return the primitive events of all that is kept or remembered, with their arrivals."""
        found = {id(leaf): (arrival, leaf) for arrival, leaf in self._remembered}
        kept = [entry for node in self._nodes for entry in node.kept()]
        for entry in sorted(kept, key=itemgetter(2)):
            for leaf in leaves(entry[3]):
                if leaf.key in self._root.keys:
                    found.setdefault(id(leaf), (entry[2], leaf))
        return found

    def _remember_deciding(self, known: Mapping[int, tuple[int, Occurrence]]) -> None:
        """Go on remembering events that decide about what is doubtful: those near to it.

        `known` is what was known before something was forgotten.
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
        """Return a detector of the expression that does not look for worlds."""
        found = Detector(self.expression, matches_max=_WORLD_MATCHES_MAX, on_many="truncate")
        found._tries_worlds = False
        return found

    def _is_possible(
        self, match: Occurrence, record: _Record, witnesses: Callable[[], Witnesses]
    ) -> bool:
        """Return whether a match that may be made is made in some order for certain."""
        if self.reads:
            return self._is_free
        # What nothing else excludes is decided by its own events, and those that it forbids.
        asked = self._worlds(record, match) if self._is_free else witnesses()
        return asked.prove(match)

    def _refuted_of(self, made: Iterable[Entry], witnesses: Callable[[], Witnesses]) -> list[Entry]:
        """Return what is held for certain, and is not made in a world that was found."""
        if not self._tries_worlds:
            return []
        # A world of which nothing is known refutes all, but not what was chosen by who knows.
        return [
            entry
            for entry in made
            if entry[3].parts and entry[2] not in self._decisions and witnesses().refute(entry[3])
        ]

    def _refute(self, entry: Entry, journal: Journal) -> None:
        """Take for open what nodes have made."""
        self._shared.doubt(entry[2], Rivals(), journal)
        add(self._refuted, entry[2], journal)

    def _decided(self, journal: Journal, witnesses: Callable[[], Witnesses]) -> list[Entry]:
        """Return what was open and is certain now; forget the choices of which nothing is open."""
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
        """Return what a step has made; raise if the policy is to raise, and something is open."""
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
        """Undo the feeding of `o` (this very object), as if it had never been fed.

        Fed more than once, its last feeding is undone. Nothing happens if it was never fed, or is
        beyond the horizon of what was trimmed (without a horizon, and if what is kept depends on
        what was made: before what was trimmed). Matches already produced are the caller's to take
        back. What readings said is not asked again; one that would have been asked only without
        `o` is asked through `reader`.

        Complexity: O(log n) for a sequence of primitive events without selection, context and
        skip, until the first timestamp that is an interval; else what was fed since `o` is undone
        and done again.
        """
        log = self._log
        number = next((n for n in range(len(log) - 1, -1, -1) if log[n].o is o), -1)
        if number < 0 and self._memoryless is None:
            return
        later = []
        while len(log) > max(number, 0):
            record = log.pop()
            roll_back(record.journal)
            later.append(record)
        if number >= 0:
            later.pop()
        elif self._memoryless is not None:
            self._memoryless.withdraw(o)  # it was fed before all that is in the log
        self._remembered = [each for each in self._remembered if each[1] is not o]
        for record in reversed(later):
            self._do(record, reader, refuses=False)
            self._remember(record)
        self._handed_out &= self._open.keys()
        if (later or number >= 0) and self._trimmed_us is not None:
            for node in self._nodes:
                node.trim(self._trimmed_us)  # undoing has brought back what was forgotten since

    @property
    def keeps_log(self) -> bool:
        """Return whether `mark` and `undo` suffice; else feeds are withdrawn one by one."""
        return self.is_stateful and self._memoryless is None

    def mark(self) -> object:
        """Mark the present step for `undo`; until then it must not be trimmed."""
        self._is_marked = True  # no advance is taken together with one before
        shared, last = self._shared, self._log[-1] if self._log else None
        return _Mark(last, self._told_us is not None, shared.is_inexact, shared.keeps_ends)

    def undo(self, mark: object) -> None:
        """Undo the feeds and advances since `mark`, if it `keeps_log`."""
        assert isinstance(mark, _Mark)
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
        # What is open does not follow from the events that are kept.
        if self.keeps_log or self._shared.keeps_ends:
            self._log.append(record)

    # -- bounds ------------------------------------------------------------------------------

    def trim(self, before_us: int) -> None:
        """Forget what no match ending at or after `before_us` can need.

        The caller promises that every event fed from now on is at or after `before_us`
        (microseconds since the epoch). What is due before is kept until `advance` has decided it.

        Complexity: O(log g) for each of the groups with an expired entry, among g; the others are
        not visited. After an event whose timestamp is an interval, or that came with
        contemporaries: O(n) for n partials, until none such is kept any more, and the search is as
        fast again as for exact ones.
        """
        due_us = self.due_us
        if due_us is not None and due_us < before_us:
            before_us = due_us
        log = self._log
        until_us = before_us - (self.horizon_us or 0)
        while log and log[0].us < until_us:
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
        if len(oldest) > 1_000 and len(oldest) > 4 * self.partials:
            # Most of it is gone: it is made again when the bound is reached again.
            self._collect(None)
        log = self._log
        until_us = before_us - (self.horizon_us or 0)
        while log and log[0].us < until_us:
            log.popleft()
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

    def _forget_decided(self) -> None:
        """Forget what is known of occurrences that nothing refers to any more."""
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
        """Whether the order of anything that is kept, or may be fed once more, is not known."""
        return (
            bool(self._shared.awaited)
            or any(node.is_doubtful for node in self._nodes)
            or any(
                record.contemporaries or (record.o is not None and not is_exact(record.o))
                for record in self._log
            )
            or any(
                not is_exact(entry[3])
                # An event that lasts, as only something composite does, is not searched for so.
                or (entry[4] is None and entry[3].low_us != entry[3].high_us)
                # What is open, or was not made after all, the exact search would take for made.
                or entry[2] in self._shared.doubtful
                or entry[2] in self._shared.gone
                for node in self._nodes
                for entry in node.kept()
            )
        )

    def _bound(self, journal: Journal, *, refuses: bool = True) -> None:
        """Hold the bound on the number of partials.

        What is oldest is looked for only from when there are too many, and nothing is shared any
        more then: what this one drops the others would miss.
        """
        assert self._partials_max is not None
        for entry, node in self._shared.fresh or ():
            heappush(self._oldest, (entry[0], entry[1], entry[2], node.index, entry, node))
        if self.partials <= self._partials_max:
            return
        if self._shared.fresh is None:
            for node in self._nodes:
                if isinstance(node, SharedNode):
                    node.part_for_good()
        while self.partials > self._partials_max:
            if self._refuses and not refuses:
                return  # it was taken already, and is done again
            if self._refuses:
                raise PartialsExceeded(
                    f"{self._root.name} keeps {self.partials} occurrences, more than "
                    f"{self._partials_max}: shorten its window, raise partials_max, or let it "
                    'drop the oldest with on_full="drop_oldest"'
                )
            if self._shared.fresh is None or not self._oldest:
                self._collect([])
            item = heappop(self._oldest)
            journal.append((self._keep_again, (item,)))
            if item[5].drop(item[4], journal):
                self.dropped += 1
                journal.append((self._undrop, ()))

    def _collect(self, fresh: list[tuple[Entry, Node]] | None) -> None:
        """Put all that is kept into the heap, and hear of what is new; None: stop doing so."""
        self._shared.fresh = fresh
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.hear(fresh)
        self._oldest = (
            []
            if fresh is None
            else [
                (entry[0], entry[1], entry[2], node.index, entry, node)
                for node in self._nodes
                for entry in node.kept()
            ]
        )
        heapify(self._oldest)

    def _keep_again(self, item: tuple[int, str, int, int, Entry, Node]) -> None:
        if self._shared.fresh is not None:
            heappush(self._oldest, item)

    def _undrop(self) -> None:
        self.dropped -= 1

    def _bound_plain(self, plain: SequenceNode | SharedNode, o: Occurrence) -> None:
        journal: Journal = [(plain.withdraw, (o,))]
        try:
            self._bound(journal)
        except PartialsExceeded:
            roll_back(journal)
            raise
        finally:
            if self._shared.fresh is not None:
                self._shared.fresh.clear()
        # What was dropped for `o` comes back with its withdrawal.
        self._log.append(_Record(o, o.us, journal, {}, ()))
        if len(self._log) > _DROPPING_MAX:
            self._log.popleft()

    # -- state -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that it keeps as a JSON-able dict, for `restore`.

        Raises
        ------
        BadEvent
            If an occurrence that it keeps cannot be encoded.
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
        """Take up a `state` of a detector of an equal expression; of a detector that is new.

        It goes on as that one would. What was fed before can no longer be withdrawn.

        Raises
        ------
        PatternError
            If it is the state of another expression.
        BadEvent
            If it cannot be read.
        """
        text = decode_params({"text": state["expression"]})["text"]
        if text != repr(self.expression):
            raise PatternError(
                f"the state is one of {text}, and cannot be restored into {self.expression!r}"
            )
        reader = StateReader(state["occurrences"])
        # States of early versions lack it: what they keep shows it, but for contemporaries.
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
        """Take up what is open."""
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
        # A choice may be open of which something is decided already.
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
    """A match as a mapping of part names."""
    return o.parts or {o.name: o}


def _clock_of(o: Occurrence) -> object:
    """The local clock that has stamped an event; None if there is none."""
    stamp = o.stamp
    return None if stamp is None or stamp.local_clock is None else (stamp.node, stamp.local_clock)


def _is_again(a: Occurrence, b: Occurrence) -> bool:
    """Return whether two objects are one event, as one of them has come back from a state."""
    return a is b or (a.key == b.key and a.timestamp == b.timestamp and text_of(a) == text_of(b))


def _listed(called: Any) -> Any:
    return list(called) if isinstance(called, tuple) else called


def _tupled(called: Any) -> Hashable:
    return tuple(called) if isinstance(called, list) else called
