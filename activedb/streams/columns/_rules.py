"""Rules of a stream in columns: their detectors, and the parts of its events."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from activedb.clock import moment_of
from activedb.columns.detect import ColumnarDetector, EventFilter
from activedb.columns.events import (
    ABSENT,
    NO_VALUE,
    THERE,
    ColumnEvents,
    EventColumns,
    Ints,
    Mask,
    Values,
    arrow,
    note_of_bytes,
    note_to_bytes,
    noted_places,
    objects,
    places_to_bytes,
)
from activedb.events import Detector, Occurrence, Primitive, Query, decode_timestamp, walk
from activedb.firing import Letter, Triggered, is_systemic
from activedb.metrics import NamedCounters
from activedb.rules import Catalog, Rule, Subscription
from activedb.store import Connection
from activedb.store.journals import ColumnJournal, ColumnNote, DetectorRows
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._s_transactions import Completed, STransactions
from activedb.transactions import TransactionNode

__all__ = ["ColumnRules", "Detections", "RuleMatches", "event_columns"]


@dataclass(frozen=True, eq=False, slots=True)
class RuleMatches:
    """Matches of one rule that a batch of events has completed.

    Attributes
    ----------
    subscription : Subscription
    at : array of int64
        Index of the completing event of each match, in ascending order.
    occurrences : list of Occurrence
        The matches.
    """

    subscription: Subscription
    at: Ints
    occurrences: list[Occurrence]


@dataclass(eq=False, slots=True)
class Detections:
    """State of the detectors of a stream's rules; immutable, except for `feed` and `trim`.

    Attributes
    ----------
    subscriptions : tuple of Subscription
        Rules, in the order of definition.
    detectors : mapping of object to ColumnarDetector
        Stateful detectors, by the key that versions of a rule share (`Subscription.detection`).
    filters : mapping of object to tuple of EventFilter
        Filters of the stateless rules, by the same key.
    since_us : mapping of str to int
        Per consuming rule, by name: the time of the first event that its detector was fed.
    used : list of (str, array of int64)
        Rule, and places (batch and position) of the events its matches have consumed, in feeds
        since `settled`.
    failing : Subscription or None
        Rule whose detector has raised.
    """

    subscriptions: tuple[Subscription, ...] = ()
    detectors: Mapping[object, ColumnarDetector] = field(default_factory=dict)
    filters: Mapping[object, tuple[EventFilter, ...]] = field(default_factory=dict)
    since_us: Mapping[str, int] = field(default_factory=dict)
    used: list[tuple[str, Ints]] = field(default_factory=list)
    failing: Subscription | None = None

    def going_on(self, subscriptions: Sequence[Subscription]) -> Detections:
        """Return a copy for these rules, with empty state for new rules.

        Complexity: O(size of the state).
        """
        detectors, filters = {}, {}
        since_us = {}
        for subscription in subscriptions:
            key, rule = subscription.detection, subscription.rule
            if not subscription.is_stateful:
                taking = self.filters.get(key)
                if taking is None:
                    taking = tuple(
                        EventFilter(part) for part in walk(rule.on) if isinstance(part, Primitive)
                    )
                filters[key] = taking
                continue
            known = self.detectors.get(key)
            detectors[key] = new_detector(rule) if known is None else known.copy()
            if known is not None and rule.name in self.since_us:
                since_us[rule.name] = self.since_us[rule.name]
        return Detections(tuple(subscriptions), detectors, filters, since_us, list(self.used))

    def settled(self) -> Detections:
        """Return the same state with the list of consumed events cleared, once it is stored."""
        return replace(self, used=[])

    @property
    def horizon_us(self) -> int:
        """Distance back to the earliest event that later matches may need."""
        return max((d.horizon_us or 0 for d in self.detectors.values()), default=0)

    def feed(
        self, events: ColumnEvents, without: Collection[Subscription] = ()
    ) -> list[RuleMatches]:
        """Feed events, in time order, to all detectors; return the matches they complete.

        If it raises, some detectors have been fed and others have not.

        Parameters
        ----------
        events : ColumnEvents
        without : collection of Subscription
            Rules whose detectors are not fed.

        Raises
        ------
        BadEvent
            If an event cannot be evaluated; an exception of a predicate propagates.
        """
        columns = event_columns(events)
        found = []
        since_us = {**self.since_us}
        for subscription in self.subscriptions:
            if subscription in without:
                continue
            self.failing = subscription
            key, name = subscription.detection, subscription.rule.name
            if key in self.filters:
                found.append(_single(subscription, self.filters[key], events, columns))
                continue
            detector = self.detectors[key]
            before = detector.rows
            matches = detector.feed(columns)
            if detector.uses_up:
                since_us.setdefault(name, events.us.item(0))
                if len(matches):
                    self.used.append((name, matches.places()))
            found.append(RuleMatches(subscription, matches.at - before, matches.occurrences()))
        self.since_us, self.failing = since_us, None
        return [one for one in found if len(one.at)]

    def tell(self) -> None:
        """Report to the rules the number of events retained for them."""
        for subscription in self.subscriptions:
            detector = self.detectors.get(subscription.detection)
            if detector is not None:
                subscription.keeps_in_columns(detector.partials)

    def trim(self, before_us: int) -> None:
        """Forget state that no match at or after a time can need."""
        for detector in self.detectors.values():
            detector.trim(before_us)


def new_detector(rule: Rule) -> ColumnarDetector:
    """Return a new detector for a rule's event, without state."""
    name = None if isinstance(rule.on, Query) else rule.name
    return ColumnarDetector(rule.on, name=name, matches_max=rule.matches_max)


def event_columns(events: ColumnEvents) -> EventColumns:
    """Convert events to the form that detectors take."""
    pa = arrow()
    ids = None if events.ids is None else pa.array(events.ids.tolist(), pa.string())
    return EventColumns(
        tuple(("event", name) for name in events.types),
        events.codes,
        events.us,
        ids,
        {name: _column(values) for name, values in events.params.items()},
        # Timestamps that were not given as datetimes in UTC are only available one by one.
        None if events.stamps is None else [a.occurrence for a in events.arrivals()],
        np.column_stack((events.batch_ids, events.positions)),
    )


def _single(
    subscription: Subscription,
    filters: Sequence[EventFilter],
    events: ColumnEvents,
    columns: EventColumns,
) -> RuleMatches:
    """Return the matches of a single-event rule."""
    taken = np.zeros(len(events), np.bool_)
    for each in filters:
        taken[each.rows(columns)] = True
    rows = np.flatnonzero(taken)
    made = [subscription.feed(arrival.occurrence) for arrival in events.arrivals(rows)]
    at = np.repeat(rows, [len(matches) for matches in made])
    return RuleMatches(subscription, at, [o for matches in made for o in matches])


def _column(values: Values) -> Any:
    """Return a NumPy array if that suffices, an Arrow array if there are NULLs."""
    if values.missing is None:
        return values.array
    if values.array.dtype != object and not (values.missing == ABSENT).any():
        return arrow().array(values.array, mask=values.missing != THERE)
    found = values.objects()
    for row in np.flatnonzero(values.missing == ABSENT).tolist():
        found[row] = NO_VALUE
    return objects(found)


_PIECE_MAX = 131_072  # events fed to detectors at once, as their matches are objects


@dataclass(slots=True)
class _PartProgress:
    """Progress of the current part.

    Attributes
    ----------
    detections : Detections
        State of the detectors after it.
    dead : list of array of int64
        Places of the events that failed.
    ran : int
        Number of s-transactions so far.
    ran_us, last_us : int
        Time of the last s-transaction, and of the last event taken.
    piece : int
        Number of events fed to the detectors at once.
    """

    detections: Detections
    piece: int
    dead: list[Ints] = field(default_factory=list)
    ran: int = 0
    ran_us: int = 0
    last_us: int = 0


@dataclass(frozen=True, slots=True)
class _Cut:
    """Point within a piece from which the events must be fed to the detectors again.

    Attributes
    ----------
    count : int
        Number of events before that point, whose results stand.
    letter : Letter or None
        Letter of the next event, which failed and is not counted.
    is_full : bool
        Whether the part ends here.
    """

    count: int
    letter: Letter | None = None
    is_full: bool = False


class ColumnRules:
    """Executor that feeds detectors the events of a stream in columns and runs triggered rules.

    Events are fed to the detectors in large pieces. The matches that one event completes form an
    s-transaction; these run one after another in event-time order, as in row-wise processing
    (`STransactions`). If one fails, the detectors return to their earlier state, are fed the events
    before it again, and continue after it with a smaller piece. A failing event thus costs O(state
    of the detectors), plus the events fed again, about as many as lie between two failures.

    Not thread-safe: used only by the thread that feeds the stream.

    Parameters
    ----------
    s_transactions_max : int
        Bound on the s-transactions of one part; events of equal time stay together.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        *,
        catalog: Catalog,
        s_transactions: STransactions,
        journal: ColumnJournal,
        rows: DetectorRows,
        counters: NamedCounters,
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
        self._committed = Detections()  # never fed: parts work on copies
        self._part: _PartProgress | None = None
        self._piece = _PIECE_MAX
        # Stored records of consuming rules; None: there are none.
        self._known: dict[str, list[Any]] | None = None
        self._has_states = False  # True if detector states of row-wise processing are stored

    # -- loading and recovery --------------------------------------------------------------

    def begin(self, processed: int) -> None:
        """Prepare to load the committed state; see `absorb`."""
        self.load(processed)

    def load(self, processed: int) -> None:
        """Discard all state; `absorb` follows."""
        self._committed, self._part, self._piece = Detections(), None, _PIECE_MAX

    def absorb(self, events: ColumnEvents, notes: Mapping[ColumnNote, Sequence[bytes]]) -> None:
        """Feed the detectors the events processed before a restart.

        Parameters
        ----------
        events : ColumnEvents
            Events that took effect, in time order.
        notes : mapping of ColumnNote to sequence of bytes
        """
        used: dict[str, list[Ints]] = {}
        for name, places in noted_places(notes.get(ColumnNote.USED, ())):
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
                    continue  # it starts without state
                since_us[name] = us
                shown = events.take(events.us >= us)
            refused = self._s_transactions.refusals.of(subscription.rule)
            if refused:
                at = [tuple(map(int, identity.split("."))) for identity in refused]
                shown = shown.take(~shown.are_at([np.array(at, np.int64)]))
            taken = _absorbed(detector, shown)
            if name in used:
                detector.use_up(np.flatnonzero(taken.are_at(used[name])))
        detections.since_us = since_us
        detections.tell()
        self._committed = detections

    def take_back(self) -> None:
        """Return to the committed state; discard the changes of an earlier attempt at a part."""
        self._part = None

    def committed(self, events: int) -> None:
        """Record that the part has committed."""
        part, self._part = self._part, None
        if part is not None:
            self._known = _known_of(part.detections)
            self._has_states = False
            self._committed, self._piece = part.detections.settled(), part.piece
            self._committed.tell()

    # -- a part ----------------------------------------------------------------------------

    def process(self, t: TransactionNode, events: ColumnEvents, letters: list[Letter]) -> int:
        """Run the rules triggered by a part's events; return the number of leading events taken.

        Parameters
        ----------
        t : TransactionNode
            Transaction of the part.
        events : ColumnEvents
            In event-time order.
        letters : list of Letter
            Receives the letters of failures.
        """
        part = self._part = _PartProgress(self._committed, self._piece)
        start, count = 0, len(events)
        without: set[Subscription] = set()  # rules that cannot take the current event
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
        """Return how far back matches may need events after the current part."""
        assert self._part is not None
        return self._part.detections.horizon_us

    def is_dead(self, events: ColumnEvents) -> Mask:
        """Return which of some events have failed in the current part."""
        assert self._part is not None
        return events.are_at(self._part.dead)

    def trim(self, reached_us: int) -> None:
        """Forget expired state; no event before `reached_us` will follow."""
        assert self._part is not None
        if self._part.detections is not self._committed:
            self._part.detections.trim(reached_us)

    def write(self, connection: Connection, sequence: int, before_us: int) -> None:
        """Write the effects of the part, within its commit.

        Parameters
        ----------
        sequence : int
            Sequence number of the part.
        before_us : int
            Time before which no match needs events any more.
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

    # -- internals -------------------------------------------------------------------------

    def _listening(self, t: TransactionNode | None) -> tuple[Subscription, ...]:
        """Return the rules on the stream's events as visible to `t`, in the order of definition."""
        found = {s for key in self._keys for s in self._catalog.listening_to(key, t)}
        places = {entry.name: place for place, entry in enumerate(self._catalog.entries(t))}
        return tuple(sorted(found, key=lambda s: places.get(s.rule.name, -1)))

    def _run(
        self,
        t: TransactionNode,
        part: _PartProgress,
        piece: ColumnEvents,
        found: Sequence[RuleMatches],
        listening: tuple[Subscription, ...],
    ) -> _Cut | None:
        """Run the rules triggered by each event in turn; stop where feeding must be repeated."""
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
        self, t: TransactionNode, piece: ColumnEvents, subscription: Subscription, error: Exception
    ) -> Letter | None:
        """Return the letter of an event a detector refused; None: other rules still take it."""
        (arrival,) = piece.arrivals()
        try:
            # Use the error of a row-wise detector, if that refuses the event, too.
            Detector(subscription.rule.on).feed(arrival.occurrence)
        except Exception as own:
            error = own
        identity = f"{arrival.batch_id}.{arrival.position}"
        if self._s_transactions.refused(t, identity, arrival.occurrence, subscription.rule, error):
            return None
        return self._s_transactions.letter(identity, arrival.record(), error)


def _by_event(
    found: Sequence[RuleMatches],
) -> Iterator[tuple[int, list[tuple[RuleMatches, Occurrence]]]]:
    """Yield the matches per event, ordered by event, rule and detector order."""
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
    """Return the arrival place of the event in this row."""
    return np.array([[piece.batch_ids.item(row), piece.positions.item(row)]], np.int64)


def _known_of(detections: Detections) -> dict[str, list[Any]]:
    """Return the record of consuming rules: their event, and the time of their first event."""
    return {
        s.rule.name: [s.event, detections.since_us[s.rule.name]]
        for s in detections.subscriptions
        if s.rule.name in detections.since_us
    }


def _absorbed(detector: ColumnarDetector, events: ColumnEvents) -> ColumnEvents:
    """Let a detector absorb events, skipping those it refuses; return the events taken."""
    if not len(events):
        return events
    try:
        detector.absorb(event_columns(events))
    except Exception:  # raised by a predicate of a rule that was not defined when they arrived
        if len(events) == 1:
            return ColumnEvents.none()
        middle = len(events) // 2
        halves = (slice(middle), slice(middle, None))
        return ColumnEvents.joined([_absorbed(detector, events.take(half)) for half in halves])
    return events
