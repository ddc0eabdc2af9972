"""Run state of a stream, and its recovery after a failure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from activedb.columns import Arrival
from activedb.errors import CheckpointMismatch
from activedb.events import Occurrence
from activedb.firing import Launcher, Triggering
from activedb.rules import Rule, event_fingerprint
from activedb.spelling import listed
from activedb.store.journals import (
    ColumnJournal,
    ColumnNote,
    LedgerEntry,
    Repeated,
    StreamJournal,
)
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._membership import Membership
from activedb.streams._stream_programs import StreamPrograms
from activedb.streams._time import StreamTime
from activedb.transactions import Forest

if TYPE_CHECKING:
    from activedb.streams.columns import ColumnProgram, ColumnRules, WaitingColumns

__all__ = ["OF_COLUMNS", "OF_PYTHON", "EventTimeBuffer", "Refusals", "StreamState"]


class Refusals:
    """Events that a single rule of a stream has refused, recorded with the part that did.

    A detector rebuilt later, without the state at that time, cannot tell that it would refuse the
    event; and the letters that report the refusal may have been deleted. A rule whose expression
    has changed has refused nothing.

    Not thread-safe: used only by the thread that feeds the stream.
    """

    def __init__(self) -> None:
        self._of_part: dict[tuple[str, str], None] = {}
        self._last_us = 0
        self._noted: dict[str, set[str]] = {}
        self._has_notes = False

    def read(self, notes: Iterable[bytes]) -> None:
        """Load the stored refusals."""
        self._noted = {}
        for note in notes:
            for who, identity in json.loads(note):
                self._noted.setdefault(who, set()).add(identity)
        self._has_notes = bool(self._noted)

    def of(self, rule: Rule) -> set[str]:
        """Return the arrival identities of events that a rule had refused at the last `read`."""
        return self._noted.get(_who(rule), set()) if self._noted else set()

    def begin(self) -> None:
        """Discard the refusals recorded so far, as a part begins, possibly on a retry."""
        self._of_part.clear()

    def add(self, rule: Rule, identity: str, us: int) -> None:
        """Record a refusal in the current part; `identity` is the event's batch and position."""
        self._of_part[_who(rule), identity] = None
        self._last_us = us

    def write(
        self, connection: Any, journal: ColumnJournal, sequence: int, before_us: int | None
    ) -> None:
        """Write the refusals of the current part, and forget those of events before a time."""
        if self._has_notes and before_us is not None:
            journal.forget_notes(connection, ColumnNote.REFUSED, before_us=before_us)
        if self._of_part and (before_us is None or self._last_us >= before_us):
            data = json.dumps(list(self._of_part)).encode()
            journal.write(connection, sequence, [(data, self._last_us)], ColumnNote.REFUSED)
            self._has_notes = True


def _who(rule: Rule) -> str:
    return f"{rule.name} {event_fingerprint(rule)}"


OF_PYTHON = "Python"
"""Source kind of events that were fed with `Stream.feed`."""

OF_COLUMNS = (ColumnNote.USED, ColumnNote.DEAD, ColumnNote.RULES)
"""Notes that only rules in columns write."""

Position: TypeAlias = Mapping[str, Any]
_SHOWN_CHARS_MAX = 120
_RESUME = (
    "continue after the last batch of the database, with an empty checkpoint: activedb run "
    "--resume --checkpoint DIR, in Python SparkFeed(…, resume=run.positions())"
)


class StreamState:
    """Newest ledger entry of a stream, and the events that wait.

    The state agrees with the database, except while an exception propagates; it is then reloaded.

    Not thread-safe: used only by the thread that feeds the stream.

    Attributes
    ----------
    stream : StreamDeclaration
    buffer : EventTimeBuffer
        Events that the punctuation has not passed.
    columns : WaitingColumns or None
        The same for a stream in columns; `buffer` is then empty between parts.
    left_in_columns : list of Arrival
        Events that an earlier run has stored in columns; the next part must store them one by one.
    is_left_in_columns : bool
        True if an earlier run has stored anything in columns, which this run does not use.
    has_notes : bool
        True if an earlier run has stored notes of rules in columns.
    left_in_rows : bool
        True if an earlier run has stored events one by one, while this run uses columns.
    last : LedgerEntry or None
        Latest part processed.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        *,
        forest: Forest,
        triggering: Triggering,
        launcher: Launcher,
        journal: StreamJournal,
        time: StreamTime,
        refusals: Refusals,
        membership: Membership | None,
        programs: StreamPrograms | ColumnProgram | ColumnRules | None,
        columns: WaitingColumns | None = None,
    ):
        self.stream = stream
        self.buffer = EventTimeBuffer()
        self.columns = columns
        self.left_in_columns: list[Arrival] = []
        self.is_left_in_columns = self.left_in_rows = self.has_notes = False
        self.last: LedgerEntry | None = None
        self._is_torn = False  # True if a load was interrupted
        self._forest = forest
        self._triggering = triggering
        self._launcher = launcher
        self._journal = journal
        self._time = time
        self._refusals = refusals
        self._membership = membership
        self._programs = programs

    @property
    def punctuation_us(self) -> int | None:
        """Time before which every event has been processed; later arrivals before it are late."""
        return None if self.last is None else self.last.punctuation_us

    @property
    def waiting(self) -> int:
        """Number of events that wait for the punctuation."""
        return len(self.buffer) + (0 if self.columns is None else len(self.columns))

    def newest_us(self) -> int | None:
        """Return the latest end of the waiting events; None if there are none."""
        newest_us = self.buffer.newest_us()
        return newest_us if self.columns is None else self.columns.newest_us()

    @property
    def next_sequence(self) -> int:
        """Sequence number of the next part."""
        return _sequence(self.last) + 1

    def next_feed(self) -> tuple[str, int]:
        """Return query id and number of the next batch from Python."""
        last = self.last
        if last is None:
            return f"python-{self.stream.name}", 0
        return last.query_id, last.batch_id + 1

    def run_name(self, entry: LedgerEntry) -> str:
        """Return the name of the top-level transactions of a query's parts."""
        return f"{Repeated.STREAM.prefix}{self.stream.name}/{entry.query_id}"

    def reached_us(self, punctuation_us: int, count: int) -> int:
        """Return the time that no event after the first `count` waiting ones precedes."""
        lowest_us = self.buffer.lowest_us(count)
        return punctuation_us if lowest_us is None else min(punctuation_us, lowest_us)

    def is_awaited(self, punctuation_us: int | None) -> bool:
        """Return whether a punctuation has passed events, or a rule is due before it."""
        known_us = self.punctuation_us
        if punctuation_us is None or (known_us is not None and punctuation_us <= known_us):
            return False
        passed = self.buffer.passed(punctuation_us)
        return passed > 0 or self._time.is_due(self.reached_us(punctuation_us, 0))

    def load(self, *, begins: bool, is_cut: bool = False) -> None:
        """Load the state at which the stream stopped.

        Parameters
        ----------
        begins : bool
            True for the first load. Otherwise a failure occurred: detector states are kept, unless
            another process has fed the stream, or the commit succeeded after all.
        is_cut : bool
            True after Ctrl-C, which may come between any two steps: nothing in memory is kept.
        """
        before, was_torn, self._is_torn = self.last, self._is_torn, True
        if self._programs is not None:
            self._programs.take_back()
        self.buffer = EventTimeBuffer()
        self.last = self._journal.last()
        if begins:
            self._launcher.batch_firings.remember_done(
                f"{Repeated.STREAM.prefix}{self.stream.name}/"
            )
        renews = begins or was_torn or is_cut or _sequence(before) != _sequence(self.last)
        if begins:
            self._forest.run(self._time.begin)
        else:
            self._time.restore(renew=renews)
        if self._programs is not None and renews:
            processed_before = self._journal.totals()["events"]
            (self._programs.begin if begins else self._programs.load)(processed_before)
        self._load_waiting(renews=renews)
        passed_us = self.punctuation_us
        if passed_us is not None:
            processed, _ = self.buffer.first(passed_us, len(self.buffer))
            self.buffer.remove_first(len(processed))
            for arrival in processed if renews else ():
                self._absorb(arrival)
        if self._membership is not None:
            self._membership.load()
            self._membership.declared(passed_us)
        self._is_torn = False

    def mend(self) -> None:
        """Load again if the last load was interrupted; called before any other operation."""
        if self._is_torn:
            self.load(begins=False)

    def _load_waiting(self, *, renews: bool) -> None:
        """Load the waiting and the retained events, in whichever format they were stored."""
        journal, passed_us = self._journal.columns, self.punctuation_us
        arrivals = [Arrival.restore(record) for record in self._journal.kept_events()]
        kept, notes = journal.waiting(), journal.notes()
        self.left_in_columns, self.left_in_rows = [], bool(arrivals)
        self.has_notes = bool(notes)
        self._refusals.read(notes.get(ColumnNote.REFUSED, ()))
        has_own = any(note in notes for note in OF_COLUMNS)
        self.is_left_in_columns = self.columns is None and (bool(kept) or has_own)
        if self.columns is None and not self.is_left_in_columns:
            self.buffer.add(arrivals)
            return
        from activedb.columns.events import ColumnEvents, events_of_bytes, noted_places

        dead = [places for _, places in noted_places(notes.get(ColumnNote.DEAD, ()))]
        parts = [events_of_bytes(data) for data in kept]
        if ColumnNote.RULES not in notes:  # programs' events are not for rules
            parts = [part.since(passed_us) for part in parts]
        if self.columns is None:  # the stream was in columns before
            left = ColumnEvents.joined(parts)
            self.left_in_columns = left.take(~left.are_at(dead)).arrivals()
            self.buffer.add([*arrivals, *self.left_in_columns])
            return
        parts.append(ColumnEvents.of_exact(self.stream.name, arrivals).in_order())
        self.columns.restore(parts, passed_us)
        if renews and self._programs is not None:
            passed = ColumnEvents.joined([part.before(passed_us) for part in parts]).in_order()
            assert not isinstance(self._programs, StreamPrograms)
            self._programs.absorb(passed.take(~passed.are_at(dead)), notes)

    def check_continues(
        self, query_id: str | None, batch_id: int, continues: str | None = None
    ) -> None:
        """Check that a batch continues the ledger; see `StreamRun.check_continues`."""
        last = self.last
        name = self.stream.name
        if last is not None and last.query_id != query_id:
            if continues is not None:
                self._check_resumes(last, continues, batch_id)
                return
            raise CheckpointMismatch(
                f"stream {name} was fed by query {last.query_id} so far, and this is "
                f"{'a new query' if query_id is None else f'query {query_id}'}: its checkpoint is "
                f"new, or another one. Use the old checkpoint; or, if that is lost, {_RESUME}; or "
                f"start over with an empty database"
            )
        if last is not None and batch_id > last.batch_id + 1:
            raise CheckpointMismatch(
                f"stream {name}: the checkpoint is at batch {batch_id}, but this database stopped "
                f"at batch {last.batch_id}. Use the database that belongs to the checkpoint, as it "
                f"was last; or, if this is all there is of it, {_RESUME}"
            )
        if last is None and batch_id > 0:
            raise CheckpointMismatch(
                f"stream {name}: the checkpoint is at batch {batch_id}, but this database has "
                f"seen none of its batches. Use the old database, or remove the checkpoint to "
                f"start over"
            )

    def _check_resumes(self, last: LedgerEntry, continues: str, batch_id: int) -> None:
        if (continues, batch_id) != (last.query_id, last.batch_id + 1):
            raise CheckpointMismatch(
                f"stream {self.stream.name}: this checkpoint continues with batch {batch_id}, "
                f"after query {continues}, but this database stopped at batch {last.batch_id} of "
                f"query {last.query_id}. Use the checkpoint of that query; or, if it is lost, "
                f"{_RESUME}"
            )

    def check_same(self, query_id: str, batch_id: int, position: Position | None) -> None:
        """Check that a replayed batch equals the one that took effect.

        Raises
        ------
        CheckpointMismatch
            If it has different rows, which would be skipped.
        """
        is_there, recorded = self._journal.position(query_id, batch_id)
        if not is_there:
            raise CheckpointMismatch(
                f"stream {self.stream.name}: this database has not seen batch {batch_id} of query "
                f"{query_id}, but it has seen later ones: the checkpoint has lost where it began "
                f"(activedb.json). Restore it from a copy; or {_RESUME}"
            )
        if recorded is None or (position is None and recorded["source"]["kind"] != OF_PYTHON):
            return
        if position is not None and recorded["source"] == position["source"]:
            return
        raise CheckpointMismatch(
            f"stream {self.stream.name}: batch {batch_id} comes with other rows than those that "
            f"took effect: {_shown(recorded)} then, {_shown(position)} now. The checkpoint is an "
            f"older copy, or the stream was fed without it. Use the checkpoint as it was last; or, "
            f"if it is lost, {_RESUME}"
        )

    def _absorb(self, arrival: Arrival) -> None:
        """Feed the detectors an event that was processed before a restart."""
        o, identity = arrival.occurrence, f"{arrival.batch_id}.{arrival.position}"
        for subscription in self._triggering.catalog.concerned_by(o):
            if self._time.is_replayed(subscription):
                if identity in self._refusals.of(subscription.rule):
                    continue
                with suppress(Exception):  # raised by a predicate of a new rule
                    subscription.feed(o)


def _sequence(entry: LedgerEntry | None) -> int:
    return 0 if entry is None else entry.sequence


def _shown(position: Position | None) -> str:
    """Describe a batch's rows briefly; for files by their names."""
    if position is None:
        return "unknown ones"
    files = position["source"].get("files")
    if files is not None:
        return listed(PurePath(file).name for file in files)
    text = json.dumps(position["source"])
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}…"


# -- buffer of events that wait for the punctuation, in event-time order -----------------------

_ORDER = attrgetter("order")


class EventTimeBuffer:
    """Sorted buffer that releases events in event-time order once a punctuation has passed them.

    Adding k arrivals to n costs O((n + k) log k) at worst and is close to linear in practice,
    because the sort finds two runs.
    """

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._arrivals)

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Add arrivals in any order."""
        count = len(self._arrivals)
        self._arrivals += arrivals
        if len(self._arrivals) > count:
            self._arrivals.sort(key=_ORDER)

    def first(self, punctuation_us: int | None, count_max: int) -> tuple[list[Arrival], int | None]:
        """Return the first arrivals that the punctuation has passed, about `count_max` of them.

        Events with equal timestamps stay together, and so do events that overlap one that ends
        later, so that a punctuation can separate them from the rest. O(arrivals returned).

        Parameters
        ----------
        punctuation_us : int or None
            None: the end of the stream; all arrivals are passed.

        Returns
        -------
        arrivals : list of Arrival
        next_us : int or None
            Punctuation that has passed exactly these arrivals; None if they are all.
        """
        ends_us = -(2**63)
        for place, arrival in enumerate(self._arrivals):
            high_us = arrival.occurrence.high_us
            if punctuation_us is not None and high_us >= punctuation_us:
                return self._arrivals[:place], None
            if place >= count_max and high_us > ends_us:
                return self._arrivals[:place], high_us
            ends_us = max(ends_us, high_us)
        return self._arrivals[:], None

    def passed(self, punctuation_us: int | None, more: Iterable[Arrival] = ()) -> int:
        """Return the number of leading arrivals that a punctuation has passed.

        Counting stops at the first arrival not passed. O(arrivals passed).

        Parameters
        ----------
        punctuation_us : int or None
            None: unknown; no arrivals are passed.
        more : iterable of Arrival
            Arrivals to count as if they were in the buffer; O((n + k) log k).
        """
        arrivals = self._arrivals
        if more := list(more):
            arrivals = sorted([*arrivals, *more], key=_ORDER)
        if punctuation_us is None:
            return 0
        for place, arrival in enumerate(arrivals):
            if arrival.occurrence.high_us >= punctuation_us:
                return place
        return len(arrivals)

    def overlapping(self, place: int) -> list[Occurrence]:
        """Return the later events that may be before the event at `place`; O(events returned)."""
        o = self._arrivals[place].occurrence
        found = []
        for behind in range(place + 1, len(self._arrivals)):
            other = self._arrivals[behind].occurrence
            if other.low_us >= o.high_us:
                break
            found.append(other)
        return found

    def behind(self, count: int) -> list[Occurrence]:
        """Return the events after the first `count` that may be before one of these; O(count)."""
        ends_us = max((a.occurrence.high_us for a in self._arrivals[:count]), default=-(2**63))
        later = (self._arrivals[place].occurrence for place in range(count, len(self._arrivals)))
        return list(takewhile(lambda o: o.low_us < ends_us, later))

    def lowest_us(self, place: int = 0) -> int | None:
        """Return the start of the first arrival from `place` on; None if there is none."""
        return self._arrivals[place].occurrence.low_us if place < len(self._arrivals) else None

    def remove_first(self, count: int) -> None:
        """Drop the first `count` arrivals, after they have been processed durably."""
        del self._arrivals[:count]

    def newest_us(self) -> int | None:
        """Return the latest end of all arrivals; None if the buffer is empty; O(arrivals)."""
        if not self._arrivals:
            return None
        return max([a.occurrence.high_us for a in self._arrivals])
