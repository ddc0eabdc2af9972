"""Incremental evaluator of one event expression."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from activedb.errors import PartialsExceeded, PatternError
from activedb.events._codec import decode_params, encode_params
from activedb.events._expressions import Disjunction, Expression, Primitive, Query, Reader, walk
from activedb.events._occurrence import Occurrence
from activedb.events._open_choices import OpenChoices
from activedb.events._possibility import Possibility
from activedb.events._undecided import Undecided, text_of
from activedb.events.detection._choice import MATCHES_MAX, Bound
from activedb.events.detection._combination import CombinationNode
from activedb.events.detection._entry import Entry
from activedb.events.detection._journal import Journal, Record, roll_back
from activedb.events.detection._moment import Moment
from activedb.events.detection._network import Builder, Network, SharedNode
from activedb.events.detection._node import DetectorNode, DetectorState
from activedb.events.detection._primitive import Clocks
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._state import StateReader, StateWriter
from activedb.events.detection._traits import horizon_of, is_timed, reads, remembers
from activedb.events.detection._uncertain import Policy, is_exact

__all__ = ["Detector", "Network", "may_be_together"]


_DROPPING_MAX = 10_000
"""Upper bound on the events for which `trim` keeps what a memoryless detector has dropped."""
_WORLD_MATCHES_MAX = 1_000
"""Upper bound on the matches that one event completes in a world that is tried."""


class _DetectorMark(NamedTuple):
    """State that `Detector.undo` restores in addition to what the log undoes."""

    last: Record | None
    has_begun: bool
    is_inexact: bool
    keeps_ends: bool


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
    keeps_log : bool
        True if `mark` and `undo` suffice; otherwise feeds are withdrawn one by one.
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
        "_ages",
        "_choices",
        "_clocks",
        "_expired",
        "_forgettings",
        "_is_marked",
        "_log",
        "_memoryless",
        "_nodes",
        "_oldest",
        "_partials_max",
        "_plain",
        "_refuses",
        "_root",
        "_shared",
        "_start",
        "_trimmed_us",
        "dropped",
        "expression",
        "horizon_us",
        "is_replayable",
        "is_stateful",
        "is_timed",
        "keeps_log",
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
        self._shared = DetectorState(
            Policy.of(on_uncertain), Bound(matches_max, truncates=on_many == "truncate")
        )
        if self._shared.keeps_ends:
            network = None  # shared nodes do not keep the ends
        self._root = root = Builder(self._shared, network).build(expression, is_root=True)
        if name is not None:
            root.name = name
        self._nodes = tuple(root.walk())
        self._forgettings = [
            node.forgetting
            for node in self._nodes
            if isinstance(node, SequenceNode) and node.forgetting is not None
        ]
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
        self.keeps_log = self.is_stateful and self._memoryless is None
        self.single: Primitive | None = None
        if isinstance(expression, Primitive) and not self.is_timed and not self.reads:
            self.single = expression
        self._start: Journal = []  # undoes the start of the clocks
        self._log: deque[Record] = deque()
        self._is_marked = False
        self._trimmed_us: int | None = None
        self._choices = OpenChoices(expression, root, self._nodes, self._shared, _alone)
        # Heap of the entries to drop first, or None if it must be rebuilt; see `_bound`.
        self._oldest: list[tuple[int, str, int, int, int, Entry, DetectorNode]] | None = None
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

    def detach(self) -> None:
        """Stop sharing nodes, so that this detector need not be fed what others are fed."""
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.detach()

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
        if not accepted and not (self._clocks and shared.told_us is None):
            return []
        record = Record(o, o.us, [], {}, tuple(contemporaries))
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
        record = Record(None, us, [], {}, ())
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

    def _do(self, record: Record, reader: Reader, *, refuses: bool = True) -> list[Entry]:
        self._shared.misses = False
        # Redoing a step never refuses an event, as it was accepted before; nor does a window's end.
        self._shared.bound.must_truncate = record.o is None or not refuses
        try:
            made = self._steps(record, reader)
            if self._shared.is_inexact or record.chosen is not None:
                made = self._choices.judge(made, record, reader)
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

    def _steps(self, record: Record, reader: Reader) -> list[Entry]:
        shared, journal, o = self._shared, record.journal, record.o
        if record.chosen is not None:
            return self._choices.choose(*record.chosen, record, reader)
        if o is None and record.us > shared.advanced_us:
            journal.append((setattr, (shared, "advanced_us", shared.advanced_us)))
            shared.advanced_us = record.us
        if o is not None and shared.is_inexact:
            self._await(o, record)
        possibility = self._choices.possibility
        if possibility.past is not None and o is not None and o.key in self._root.keys:
            possibility.note(o, journal)
        if o is not None and o.stamp is not None and o.key in self._root.keys:
            self._choices.clock_bounds.note(o, journal)
        if shared.told_us is None and self._clocks:
            self._tell(record.us)
        if o is not None:
            moment = Moment(o, reader, journal, record.said, contemporaries=record.contemporaries)
            return self._evaluate(moment)
        made: list[Entry] = []
        record.is_idle = True
        timers = shared.timers
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
        self._shared.told_us = us
        self._clocks.start(us, self._shared.timers, self._start)

    def _evaluate(self, moment: Moment) -> list[Entry]:
        root = self._root
        return root.evaluate(moment) if root.concerns(moment) else []

    def _await(self, o: Occurrence, record: Record) -> None:
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

    def _told(self, made: list[Entry], record: Record) -> list[Occurrence]:
        """Return the matches of a step; raise under the policy "raise" if something is open."""
        if self._shared.policy.name == "raise":
            self._choices.refuse_open(made, record)
        return [entry[3] for entry in made]

    # -- open choices ------------------------------------------------------------------------

    @property
    def undecided(self) -> tuple[Undecided, ...]:
        """The open choices: matches that are possible, but not certain.

        A choice ends when none of its candidates is open: it was resolved, or later matches exclude
        them or made them certain. Age does not end a choice, but beyond 10,000 choices the oldest
        is forgotten (counted in `forgotten`).
        """
        return tuple(self._choices.undecided()) if self._choices.open else ()

    def take_undecided(self) -> list[Undecided]:
        """Return the open choices that were not returned by an earlier call."""
        return self._choices.take() if self._choices.open else []

    @property
    def forgotten(self) -> int:
        return self._choices.forgotten

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
            excluded, by an earlier match or another chosen one; or if no world makes all that is
            chosen, or each that does makes other candidates as well. The state is unchanged.
        """
        us, numbers = self._choices.chosen(identity, chosen)
        record = Record(None, us, [], {}, ())
        record.chosen = (identity, numbers)
        made = self._do(record, reader)
        self._remember(record)
        return [entry[3] for entry in made]

    def check_chosen(self, identity: str, chosen: Iterable[int | Mapping[str, Any]]) -> None:
        """Raise `BadEvent` if no world makes just these candidates of an open choice.

        For a caller that makes them itself; `resolve` checks this, too.
        """
        us, numbers = self._choices.chosen(identity, chosen)
        self._choices.check(identity, numbers, Record(None, us, [], {}, ()))

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
        self._choices.forget(o)
        for record in reversed(later):
            self._do(record, reader, refuses=False)
            self._remember(record)
        self._choices.undone()
        if (later or number >= 0) and self._trimmed_us is not None:
            for node in self._nodes:
                node.trim(self._trimmed_us)  # undoing has brought back trimmed entries
            self._forget_needless(self._trimmed_us)

    @property
    def is_inexact(self) -> bool:
        """True if the order of events may be uncertain, so that choices may stay open."""
        return self._shared.is_inexact

    def mark(self) -> object:
        """Return a mark of the present step for `undo`; do not call `trim` before that."""
        self._is_marked = True  # the next advance must not be merged with an earlier one
        shared, last = self._shared, self._log[-1] if self._log else None
        return _DetectorMark(last, shared.told_us is not None, shared.is_inexact, shared.keeps_ends)

    def undo(self, mark: object) -> None:
        """Undo the feeds and advances since `mark`. REQUIRES: `keeps_log`."""
        assert isinstance(mark, _DetectorMark)
        self._oldest = None
        while self._log and self._log[-1] is not mark.last:
            roll_back(self._log.pop().journal)
        shared = self._shared
        if shared.told_us is not None and not mark.has_begun:
            roll_back(self._start)
            shared.told_us = None
        shared.keeps_ends = mark.keeps_ends
        if shared.is_inexact and not mark.is_inexact:
            shared.is_inexact = False
            shared.reach_us = shared.late_us = 0
        self._choices.undone()

    def _remember(self, record: Record) -> None:
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
        if self.keeps_log and self._is_past(until_us):
            self._choices.possibility.forget_all()
        self._choices.clock_bounds.trim(until_us)
        tries_worlds = self._choices.tries_worlds and self._shared.is_inexact
        known = self._choices.known_events() if tries_worlds else {}
        for node in self._nodes:
            node.trim(before_us)
        if known:
            self._choices.remember_deciding(known)
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
                self._choices.become_exact()
                journal: Journal = log[-1].journal if log else []
                for node in self._nodes:
                    node.become_exact(journal)
            self._choices.forget_decided()
        self._forget_needless(before_us)

    def _forget_needless(self, before_us: int, journal: Journal | None = None) -> None:
        """Forget what no match can need; this is undone with the last step in the log."""
        if journal is None:
            journal = self._log[-1].journal if self._log else []
        for forgetting in self._forgettings:
            forgetting.forget(before_us, journal)

    def _is_past(self, us: int) -> bool:
        """Return whether all events fed, if within the horizon, are before `us`.

        REQUIRES: what is before that is no longer in the log.
        """
        return (
            self.horizon_us is not None
            and self._shared.latest_us < us
            and not any(record.o is not None for record in self._log)
        )

    def _decided_us(self, us: int) -> int:
        """Return `us`, or the time of the next timer if that is before."""
        due_us = self.due_us
        return us if due_us is None else min(us, due_us)

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
        if not self._shared.is_inexact:
            before_us = self._decided_us(us)
            if self._may_have_expired(us):
                for node in self._nodes:
                    node.expire(before_us, journal)
            self._forget_needless(before_us, journal)
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
        fresh: list[tuple[Entry, DetectorNode]] = []
        self._shared.fresh = fresh
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.part_for_good()
                node.hear(fresh)

    def _age(
        self, entry: Entry, node: DetectorNode
    ) -> tuple[int, str, int, int, int, Entry, DetectorNode]:
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
        self._remember(Record(o, o.us, journal, {}, ()))

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
            "told_us": self._shared.told_us,
            "advanced_us": self._shared.advanced_us,
            "arrival": arrival,
            "dropped": self.dropped,
            "is_bounded": self._shared.fresh is not None,
            "nodes": nodes,
            "timers": [
                [us, index, encode_params({"called": _listed(called)})["called"]]
                for us, index, called in self._shared.timers.in_order()
            ],
            **self._choices.write(writer),
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
        shared = self._shared
        # States of early versions lack it; their kept entries show it, except for contemporaries.
        shared.is_inexact = state.get(
            "is_inexact",
            not all(map(is_exact, reader.occurrences))
            or any(state.get(name) for name in ("undecided", "doubtful", "awaited")),
        )
        shared.keeps_ends |= state.get("keeps_ends", False) or any(
            o.stamp is not None for o in reader.occurrences
        )
        for node, data in zip(self._nodes, state["nodes"], strict=True):
            if data is not None:
                node.read(data, reader)
        self._choices.read(state, reader)
        shared.awaited = [reader.occurrences[number] for number in state.get("awaited", ())]
        shared.reach_us, shared.late_us = state.get("reach_us", (0, 0))
        shared.latest_us = state.get("latest_us", shared.latest_us)
        shared.told_us = state["told_us"]
        shared.advanced_us = state.get("advanced_us", shared.advanced_us)
        shared.arrivals = count(state["arrival"])
        self.dropped = state["dropped"]
        if state.get("is_bounded") and self._partials_max is not None and shared.fresh is None:
            self._track()  # it forgets at once what is not needed any longer
        for us, index, called in state["timers"]:
            name = _tupled(decode_params({"called": called})["called"])
            shared.timers.set((us, index, name), [])


def _alone(expression: Expression) -> Detector:
    """Return a detector of the expression that does not try worlds, to be run in one."""
    found = Detector(expression, matches_max=_WORLD_MATCHES_MAX, on_many="truncate")
    found._choices.tries_worlds = False
    return found


def may_be_together(expression: Expression, matches: Sequence[Occurrence]) -> bool:
    """Return False if no world makes all these matches, to judge by their own events."""
    return Possibility(expression, _alone).may_hold(matches)


def _is_again(a: Occurrence, b: Occurrence) -> bool:
    """Return whether two objects are the same event, as one of them may come from `restore`."""
    return a is b or (a.key == b.key and a.timestamp == b.timestamp and text_of(a) == text_of(b))


def _listed(called: Any) -> Any:
    return list(called) if isinstance(called, tuple) else called


def _tupled(called: Any) -> Hashable:
    return tuple(called) if isinstance(called, list) else called
