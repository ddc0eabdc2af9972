"""The rules of a stream in columns: their detectors, and one part after another of its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from activedb.clock import moment_of
from activedb.columns.detect import ColumnarDetector
from activedb.columns.events import (
    ColumnEvents,
    Ints,
    Mask,
    note_of_bytes,
    note_to_bytes,
    places_of_bytes,
    places_to_bytes,
)
from activedb.events import Detector, Occurrence, decode_timestamp
from activedb.firing import Letter, Triggered, is_systemic
from activedb.metrics import Counters
from activedb.rules import Catalog, Subscription
from activedb.store import Connection
from activedb.store.journals import ColumnJournal, ColumnNote, DetectorRows
from activedb.streams._declaration import Stream
from activedb.streams._s_transactions import Completed, STransactions
from activedb.streams.columns._detections import Detections, Found, event_columns, is_among
from activedb.transactions import Transaction

__all__ = ["ColumnRules", "dead_of"]

_PIECE_MAX = 131_072  # events that detectors are shown at once: their matches are objects


@dataclass(slots=True)
class _Part:
    """What the part at hand has come to.

    Attributes
    ----------
    detections : Detections
        As they are after it.
    dead : list of array of int64
        Places of the events that failed.
    ran : int
        How many s-transactions there were.
    ran_us, last_us : int
        The time of the last one, and of the last event that was taken.
    piece : int
        How many events are shown to the detectors at once.
    """

    detections: Detections
    piece: int
    dead: list[Ints] = field(default_factory=list)
    ran: int = 0
    ran_us: int = 0
    last_us: int = 0


@dataclass(frozen=True, slots=True)
class _Cut:
    """Why the events behind one of those shown to the detectors have to be shown again.

    Attributes
    ----------
    count : int
        So many of the events before that are as they were shown.
    letter : Letter or None
        Of the next event, which failed and is not among them.
    is_full : bool
        Whether the part ends here.
    """

    count: int
    letter: Letter | None = None
    is_full: bool = False


class ColumnRules:
    """Shows detectors the events of a stream in columns, and runs what they complete.

    Events are shown to the detectors many at once. What each of them completes is an s-transaction,
    one after another in event-time order, as event by event (`STransactions`). If one fails, the
    detectors go back to where they were, are shown the events before it, and go on behind it with
    fewer at once: so an event that fails costs O(what they keep) beside those that are shown again,
    about as many as there are between two that fail.

    Not thread-safe: used by the one thread that feeds the stream.

    Parameters
    ----------
    s_transactions_max : int
        In one part; what is of one time stays together.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        catalog: Catalog,
        s_transactions: STransactions,
        journal: ColumnJournal,
        rows: DetectorRows,
        counters: Counters,
        s_transactions_max: int,
    ):
        self._stream = stream
        self._catalog = catalog
        self._s_transactions = s_transactions
        self._journal = journal
        self._rows = rows
        self._counters = counters
        self._s_transactions_max = s_transactions_max
        self._keys = [("event", name) for name in stream.types]
        self._committed = Detections()  # never shown anything: parts work on what goes on from it
        self._part: _Part | None = None
        self._piece = _PIECE_MAX
        # What the database says of rules that use up events; None: nothing.
        self._known: dict[str, list[Any]] | None = None
        self._has_states = False  # whether it has states of detectors, from event by event

    # -- where it stands -------------------------------------------------------------------

    def begin(self, processed: int) -> None:
        """Be ready to take up what is committed; see `absorb`."""
        self.load(processed)

    def load(self, processed: int) -> None:
        """Forget everything; `absorb` follows."""
        self._committed, self._part, self._piece = Detections(), None, _PIECE_MAX

    def absorb(self, events: ColumnEvents, notes: Mapping[ColumnNote, Sequence[bytes]]) -> None:
        """Show the detectors what was processed before a restart.

        Parameters
        ----------
        events : ColumnEvents
            Those that took effect, in the order of time.
        notes : mapping of ColumnNote to sequence of bytes
        """
        used: dict[str, list[Ints]] = {}
        for name, places in _noted(notes, ColumnNote.USED):
            used.setdefault(name, []).append(places)
        known = next(map(note_of_bytes, notes.get(ColumnNote.RULES, ())), None)
        self._known = known
        self._has_states = bool(self._rows.of_stream(self._stream.name))
        detections = self._committed.going_on(self._listening(None))
        since_us = {}
        for subscription in detections.subscriptions:
            detector = detections.detectors.get(subscription.detection)
            if detector is None:
                continue
            name, shown = subscription.rule.name, events
            if detector.uses_up:
                event, us = (known or {}).get(name, ("", 0))
                if event != subscription.event:
                    continue  # it begins anew
                since_us[name] = us
                shown = events.take(events.us >= us)
            refused = self._s_transactions.refusals.of(subscription.rule)
            if refused:
                at = [tuple(map(int, identity.split("."))) for identity in refused]
                shown = shown.take(~is_among(shown, [np.array(at, np.int64)]))
            taken = _absorbed(detector, shown)
            if name in used:
                detector.use_up(np.flatnonzero(is_among(taken, used[name])))
        detections.since_us = since_us
        detections.tell()
        self._committed = detections

    def take_back(self) -> None:
        """Go back to what has committed: what an earlier try at a part has done is nothing."""
        self._part = None

    def committed(self, events: int) -> None:
        """The part has committed."""
        part, self._part = self._part, None
        if part is not None:
            self._known = _known_of(part.detections)
            self._has_states = False
            self._committed, self._piece = part.detections.settled(), part.piece
            self._committed.tell()

    # -- a part ----------------------------------------------------------------------------

    def process(self, t: Transaction, events: ColumnEvents, letters: list[Letter]) -> int:
        """Run what a part's events complete; how many of them, from the first, have been taken.

        Parameters
        ----------
        t : Transaction
            That of the part.
        events : ColumnEvents
            In event-time order.
        letters : list of Letter
            To which those of what failed are added.
        """
        part = self._part = _Part(self._committed, self._piece)
        start, count = 0, len(events)
        without: set[Subscription] = set()  # which cannot take the event at hand
        while start < count:
            listening = self._listening(t)
            piece = events.take(slice(start, start + part.piece))
            tried = part.detections.going_on(listening)
            try:
                found = tried.feed(piece, without)
            except Exception as error:
                if is_systemic(error, t):
                    raise
                part.piece = max(len(piece) // 2, 1)
                if len(piece) > 1:
                    continue
                assert tried.failing is not None
                letter = self._refused(t, piece, tried.failing, error)
                if letter is None:
                    without.add(tried.failing)
                    continue
                cut: _Cut | None = _Cut(0, letter)
            else:
                cut = self._run(t, part, piece, found, listening)
            if cut is None or cut.count == len(piece):
                part.detections = tried
            elif cut.count:
                part.detections = part.detections.going_on(listening)
                part.detections.feed(piece.take(slice(cut.count)), without)
            without.clear()
            if cut is None:
                start += len(piece)
                part.piece = min(2 * part.piece, _PIECE_MAX)
                continue
            start += cut.count
            if cut.letter is not None:
                letters.append(cut.letter)
                part.dead.append(_places(piece, cut.count))
                start += 1
                part.piece = max(len(piece) // 2, 1)
            if cut.is_full:
                part.piece = min(2 * start, _PIECE_MAX)
                break
        if start:
            part.last_us = events.us.item(start - 1)
        return start

    def horizon_us(self) -> int:
        """How far back the events reach that matches after the part at hand may need."""
        assert self._part is not None
        return self._part.detections.horizon_us

    def is_dead(self, events: ColumnEvents) -> Mask:
        """Which of some events have failed in the part at hand."""
        assert self._part is not None
        return is_among(events, self._part.dead)

    def trim(self, reached_us: int) -> None:
        """No event before a time comes any more."""
        assert self._part is not None
        if self._part.detections is not self._committed:
            self._part.detections.trim(reached_us)

    def write(self, connection: Connection, sequence: int, before_us: int) -> None:
        """Write what the part leaves behind, within its commit.

        Parameters
        ----------
        sequence : int
            The part's number.
        before_us : int
            No match needs events before it any more.
        """
        part, journal = self._part, self._journal
        assert part is not None
        if part.dead:
            data = places_to_bytes([("", np.concatenate(part.dead))])
            journal.write(connection, sequence, [(data, part.last_us)], ColumnNote.DEAD)
        if part.detections.used:
            data = places_to_bytes(part.detections.used)
            journal.write(connection, sequence, [(data, part.last_us)], ColumnNote.USED)
        journal.forget_notes(connection, ColumnNote.DEAD, ColumnNote.USED, before_us=before_us)
        known = _known_of(part.detections)
        if known != self._known:
            journal.forget_notes(connection, ColumnNote.RULES)
            journal.write(connection, sequence, [(note_to_bytes(known), 0)], ColumnNote.RULES)
        if self._has_states:
            self._rows.forget_of_stream(connection, self._stream.name)

    # -- inside ----------------------------------------------------------------------------

    def _listening(self, t: Transaction | None) -> tuple[Subscription, ...]:
        """The rules on the stream's events as `t` sees them, in the order of definition."""
        found = {s for key in self._keys for s in self._catalog.listening_to(key, t)}
        places = {entry.name: place for place, entry in enumerate(self._catalog.entries(t))}
        return tuple(sorted(found, key=lambda s: places.get(s.rule.name, -1)))

    def _run(
        self,
        t: Transaction,
        part: _Part,
        piece: ColumnEvents,
        found: Sequence[Found],
        listening: tuple[Subscription, ...],
    ) -> _Cut | None:
        """Run what events have completed, one event after another, as far as that is certain."""
        for row, completed in _by_event(found):
            us = piece.us.item(row)
            if part.ran >= self._s_transactions_max and us > part.ran_us:
                return _Cut(int(piece.us.searchsorted(us)), is_full=True)
            self._counters.add("matches", sum(one.subscription.is_stateful for one, _ in completed))
            triggered = [Triggered(one.subscription.rule, o) for one, o in completed]
            letter = self._s_transactions.complete(t, _completed(piece, row, triggered))
            part.ran += 1
            part.ran_us = us
            if letter is not None:
                return _Cut(row, letter)
            if self._catalog.drafts and self._listening(t) != listening:
                return _Cut(row + 1)
        return None

    def _refused(
        self, t: Transaction, piece: ColumnEvents, subscription: Subscription, error: Exception
    ) -> Letter | None:
        """The letter of an event that a rule's detector has refused; None: all others go on."""
        (arrival,) = piece.arrivals()
        try:
            # In the words of a detector that is fed one by one, if that refuses it, too.
            Detector(subscription.rule.on).feed(arrival.occurrence)
        except Exception as own:
            error = own
        identity = f"{arrival.batch_id}.{arrival.position}"
        if self._s_transactions.refused(t, identity, arrival.occurrence, subscription.rule, error):
            return None
        return self._s_transactions.letter(identity, arrival.record(), error)


def _by_event(found: Sequence[Found]) -> Iterator[tuple[int, list[tuple[Found, Occurrence]]]]:
    """What each event has completed, in the order of events, of rules, and of their detectors."""
    if not found:
        return
    rows = np.concatenate([one.at for one in found])
    order = np.argsort(rows, kind="stable").tolist()
    items = [(one, o) for one in found for o in one.occurrences]
    row_of = rows.tolist()
    for row, group in groupby(order, key=row_of.__getitem__):
        yield row, [items[number] for number in group]


def _completed(piece: ColumnEvents, row: int, triggered: list[Triggered]) -> Completed:
    stamp = None if piece.stamps is None else piece.stamps[row]
    return Completed(
        moment_of(piece.us.item(row)) if stamp is None else decode_timestamp(stamp),
        f"{piece.batch_ids.item(row)}.{piece.positions.item(row)}",
        triggered,
        lambda: piece.arrivals(np.array([row]))[0].record(),
    )


def _places(piece: ColumnEvents, row: int) -> Ints:
    """Where the event in this row arrived."""
    return np.array([[piece.batch_ids.item(row), piece.positions.item(row)]], np.int64)


def dead_of(notes: Mapping[ColumnNote, Sequence[bytes]], events: ColumnEvents) -> Mask:
    """Which of some events are noted to have failed."""
    return is_among(events, [places for _, places in _noted(notes, ColumnNote.DEAD)])


def _noted(
    notes: Mapping[ColumnNote, Sequence[bytes]], note: ColumnNote
) -> Iterator[tuple[str, Ints]]:
    """Places of events that are noted, and under which names."""
    for data in notes.get(note, ()):
        yield from places_of_bytes(data)


def _known_of(detections: Detections) -> dict[str, list[Any]]:
    """What is noted of rules that use up events: what they detect, and since when."""
    return {
        s.rule.name: [s.event, detections.since_us[s.rule.name]]
        for s in detections.subscriptions
        if s.rule.name in detections.since_us
    }


def _absorbed(detector: ColumnarDetector, events: ColumnEvents) -> ColumnEvents:
    """Let a detector absorb events, but for those that it refuses; returns what it took."""
    if not len(events):
        return events
    try:
        detector.absorb(event_columns(events))
    except Exception:  # a predicate of a rule that was not there when they came
        if len(events) == 1:
            return ColumnEvents.none()
        middle = len(events) // 2
        halves = (slice(middle), slice(middle, None))
        return ColumnEvents.joined([_absorbed(detector, events.take(half)) for half in halves])
    return events
