"""The incremental evaluator of one event expression."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from activedb.errors import PartialsExceeded, PatternError
from activedb.events._codec import decode_params, encode_params
from activedb.events._disjunction import Disjunction
from activedb.events._expression import Expression, Reader
from activedb.events._occurrence import Occurrence
from activedb.events._primitives import Primitive
from activedb.events._query import Query
from activedb.events._undecided import decode_undecided, encode_undecided
from activedb.events.detection._build import Builder
from activedb.events.detection._clocks import Clocks
from activedb.events.detection._combination import CombinationNode
from activedb.events.detection._entry import Entry
from activedb.events.detection._journal import Journal, roll_back
from activedb.events.detection._network import Network, SharedNode
from activedb.events.detection._node import Moment, Node, Shared
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._state import StateReader, StateWriter
from activedb.events.detection._traits import horizon_of, is_timed, reads, remembers, walk
from activedb.events.detection._uncertain import Policy, is_exact

__all__ = ["Detector", "Network"]


class _Record:
    """A step that can be undone: an event that was fed, or an advance of time."""

    __slots__ = ("contemporaries", "journal", "o", "said", "us")

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
    on_uncertain : {"raise", "certain", "possible", "reading"} or callable
        What to do if the order of events is not known.
    partials_max : int, optional
        How many occurrences may be kept.
    on_full : {"drop_oldest", "refuse"}
        What to do if there are more.

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
    """

    def __init__(
        self,
        expression: Expression,
        *,
        name: str | None = None,
        on_uncertain: str | Callable[..., Any] = "raise",
        partials_max: int | None = None,
        on_full: str = "drop_oldest",
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
        self.expression = expression
        self.dropped = 0
        self._partials_max = partials_max
        self._refuses = on_full == "refuse"
        self._shared = Shared(Policy.of(on_uncertain))
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
        self._told_us: int | None = None
        self._log: deque[_Record] = deque()
        self._trimmed_us: int | None = None
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
    def is_sharing(self) -> bool:
        """Whether it has parts that other detectors of the network may share."""
        return any(isinstance(node, SharedNode) for node in self._nodes)

    @property
    def due_us(self) -> int | None:
        """When time alone will produce or decide something next: `advance` beyond it does."""
        timer = self._shared.timers.first()
        return None if timer is None else timer[0]

    def accepts(self, o: Occurrence) -> bool:
        """Whether the expression listens to events like `o`; if not, feeding it does nothing."""
        return o.key in self._root.keys

    def expect_intervals(self) -> None:
        """Tell that there may be timestamps that are intervals, before any is fed.

        Then events with exact timestamps that can only be the last of a match are kept, too, as an
        interval may be fed later that possibly precedes them. Without it such an interval is
        refused under the policy "raise". The first timestamp that is an `AccuracyInterval` tells
        as much, and so do the policies that make what is possible.
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
            tell.

        Returns
        -------
        list of Occurrence
            Of a primitive event `o` itself, of others composite occurrences, in the order of
            preference.

        Raises
        ------
        BadEvent
            If `o` lacks an attribute of ``same`` or of a term, or its value cannot be compared;
            `UncertainOrder`, `PartialsExceeded` as the policies say. What a predicate raises
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
                made = plain.feed(o)
                bound = self._partials_max
                if bound is not None and (shared.fresh or plain.groups.count > bound):
                    self._bound_plain(plain, o)
                return made
        if contemporaries or o.low_us != o.high_us:
            self._shared.is_inexact = self._shared.keeps_ends = True
        elif o.stamp is not None:
            self._shared.keeps_ends = True  # whose clock stamps intervals, too
        accepted = o.key in self._root.keys
        if not accepted and not (self._clocks and self._told_us is None):
            return []
        record = _Record(o, o.us, [], {}, tuple(contemporaries))
        made = self._do(record, reader)
        self._remember(record)
        return made

    def advance(self, us: int, reader: Reader = None) -> list[Occurrence]:
        """Tell that no event before `us` is fed any more; return what time completes before it.

        Raises
        ------
        ActiveDBError
            As `feed`; nothing has changed then.
        """
        if not self.is_timed:
            return []
        record = _Record(None, us, [], {}, ())
        made = self._do(record, reader)
        last = self._log[-1] if self._log else None
        if last is not None and last.o is None and last.us <= us:
            last.us = us
            last.journal += record.journal
            last.said.update(record.said)
        else:
            self._remember(record)
        return made

    def _do(self, record: _Record, reader: Reader, *, refuses: bool = True) -> list[Occurrence]:
        try:
            made = self._steps(record, reader)
            if self._partials_max is not None:
                self._bound(record.journal, refuses=refuses)
            return made
        except BaseException:
            roll_back(record.journal)
            raise
        finally:
            if self._shared.fresh is not None:
                self._shared.fresh.clear()

    def _steps(self, record: _Record, reader: Reader) -> list[Occurrence]:
        journal, o, timers = record.journal, record.o, self._shared.timers
        if self._told_us is None and self._clocks:
            self._tell(record.us)
        if o is not None:
            moment = Moment(o, reader, journal, record.said, contemporaries=record.contemporaries)
            return self._evaluate(moment)
        made: list[Occurrence] = []
        while due := timers.take_first(record.us, journal):
            us, index, _ = due[0]
            tick = self._clocks.tick(index, us, timers, journal)
            called = tuple([timer[2] for timer in due])
            moment = Moment(tick, reader, journal, record.said, index=index, us=us, called=called)
            made += self._evaluate(moment)
        return made

    def _tell(self, us: int) -> None:
        """Take the time for the first that the detector is told of; that is never undone."""
        self._told_us = us
        self._clocks.start(us, self._shared.timers, [])

    @property
    def undecided(self) -> tuple[Any, ...]:
        return tuple(self._shared.open.values())

    def take_undecided(self) -> list[Any]:
        if not self._shared.new:
            return []
        found = list(self._shared.new.values())
        self._shared.new = {}
        return found

    def resolve(self, identity: str, chosen: Any, reader: Reader = None) -> list[Occurrence]:
        from activedb.errors import BadEvent

        u = self._shared.open.pop(identity, None)
        if u is None:
            raise BadEvent("no such open choice")
        made = []
        for n in chosen:
            parts = u.candidates[n]
            last = max(parts.values(), key=lambda o: o.us)
            params: dict[str, Any] = {}
            for o in parts.values():
                params |= o.params
            made.append(Occurrence(self._root.name, last.timestamp, params, parts=parts))
        return made

    def detach(self) -> None:
        """Share nothing any more: what others are fed from now on this one need not be fed."""
        for node in self._nodes:
            if isinstance(node, SharedNode):
                node.detach()

    def _evaluate(self, moment: Moment) -> list[Occurrence]:
        root = self._root
        return [entry[3] for entry in root.evaluate(moment)] if root.concerns(moment) else []

    # -- undoing -----------------------------------------------------------------------------

    def withdraw(self, o: Occurrence, reader: Reader = None) -> None:
        """Undo the feeding of `o` (this very object), as if it had never been fed.

        Fed more than once, its last feeding is undone. Nothing happens if it was never fed, or is
        beyond the horizon of what was trimmed (without a horizon, and if what is kept depends on
        what was made: before what was trimmed). Matches already produced are the caller's to take
        back. What readings said is not asked again; one that would have been asked only without
        `o` is asked through `reader`.

        Complexity: O(log n) for a sequence of primitive events without selection, context and
        skip; else what was fed since `o` is undone and done again.
        """
        if self._memoryless is not None:
            self._memoryless.withdraw(o)
            return
        log = self._log
        number = next((n for n in range(len(log) - 1, -1, -1) if log[n].o is o), None)
        if number is None:
            return
        later = []
        while len(log) > number:
            record = log.pop()
            roll_back(record.journal)
            later.append(record)
        for record in reversed(later[:-1]):
            self._do(record, reader, refuses=False)
            self._remember(record)
        if self._trimmed_us is not None:
            for node in self._nodes:
                node.trim(self._trimmed_us)  # undoing has brought back what was forgotten since

    def _remember(self, record: _Record) -> None:
        if self.is_stateful and self._memoryless is None:
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
        for node in self._nodes:
            node.trim(before_us)
        self._trimmed_us = before_us
        oldest = self._oldest
        if len(oldest) > 1_000 and len(oldest) > 4 * self.partials:
            # Most of it is gone: it is made again when the bound is reached again.
            self._collect(None)
        log = self._log
        until_us = before_us - (self.horizon_us or 0)
        while log and log[0].us < until_us:
            log.popleft()
        if self._shared.is_inexact and not self._has_inexact():
            self._shared.is_inexact = False

    def _has_inexact(self) -> bool:
        """Whether the order of anything that is kept, or may be fed once more, is not known."""
        return (
            any(node.is_doubtful for node in self._nodes)
            or any(
                record.contemporaries or (record.o is not None and not is_exact(record.o))
                for record in self._log
            )
            or any(
                not is_exact(entry[3])
                # An event that lasts, as only something composite does, is not searched for so.
                or (entry[4] is None and entry[3].low_us != entry[3].high_us)
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
        journal: Journal = []
        try:
            self._bound(journal)
        except PartialsExceeded:
            plain.withdraw(o)
            raise
        finally:
            if self._shared.fresh is not None:
                self._shared.fresh.clear()

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
            "arrival": arrival,
            "dropped": self.dropped,
            "nodes": nodes,
            "timers": [
                [us, index, encode_params({"called": _listed(called)})["called"]]
                for us, index, called in self._shared.timers.in_order()
            ],
            "occurrences": writer.occurrences,
            "undecided": [encode_undecided(u) for u in self.undecided],
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
        self._shared.is_inexact = not all(map(is_exact, reader.occurrences))
        if any(o.stamp is not None for o in reader.occurrences):
            self._shared.keeps_ends = True
        for node, data in zip(self._nodes, state["nodes"], strict=True):
            if data is not None:
                node.read(data, reader)
        self._shared.open = {d["identity"]: decode_undecided(d) for d in state["undecided"]}
        self._told_us = state["told_us"]
        self._shared.arrivals = count(state["arrival"])
        self.dropped = state["dropped"]
        for us, index, called in state["timers"]:
            name = _tupled(decode_params({"called": called})["called"])
            self._shared.timers.set((us, index, name), [])


def _listed(called: Any) -> Any:
    return list(called) if isinstance(called, tuple) else called


def _tupled(called: Any) -> Hashable:
    return tuple(called) if isinstance(called, list) else called
