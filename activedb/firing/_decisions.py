"""Choices left open by detectors because the order of the events is unknown: ``db.decisions``.

```
 detector leaves a choice open ─► a row, written with the commit of the raising transaction
                                   │ open
      resolve, in any process ─────┤
        this one has the detector: │ resolved, the detector told, the rule run: one transaction
        another one has it:        ▼ chosen ─► that process finds it, and does the same
```
"""

from __future__ import annotations

import builtins
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

from activedb.clock import Clock, in_microseconds
from activedb.errors import (
    ActiveDBError,
    BadEvent,
    ConfigurationError,
    DecisionClosed,
    RowNotFound,
    TransactionStateError,
)
from activedb.events import (
    Detector,
    Occurrence,
    Query,
    Rivals,
    Undecided,
    decode_undecided,
    encode,
    encode_undecided,
    leaves,
    may_be_together,
    same_candidate,
)
from activedb.firing._durable_detectors import DurableDetectors
from activedb.firing._firings import BatchFirings
from activedb.firing._time_lines import TimeLines
from activedb.firing._triggered import SYSTEMIC, Triggered
from activedb.firing._triggering import Triggering
from activedb.functions import error_text
from activedb.metrics import NamedCounters
from activedb.rules import Catalog, RegisteredRule, Rule, Subscription, Taken
from activedb.store.journals import DecisionRows, Repeated
from activedb.transactions import (
    Forest,
    Run,
    Transaction,
    TransactionNode,
    current_transaction,
    lock_detector,
)

__all__ = [
    "BY_EVENTS",
    "OF_PROGRAM",
    "Decisions",
    "MatchDecision",
    "decision_id",
    "decision_row",
]

_LOG = logging.getLogger(__name__)

BY_EVENTS = "events"
"""Name recorded with choices that later events have decided."""

OF_PROGRAM = "program"
"""Marker in place of an event's fingerprint: the rule is part of a stream's program."""

_LOOK_AFTER_US = 1_000_000  # pause between looks for decisions of other processes

_OF_MATCHES = (Occurrence, tuple)

Chosen = Iterable["int | Mapping[str, Any]"]


@dataclass(frozen=True, slots=True)
class MatchDecision:
    """Choice among possible matches of a rule, which the known order of events leaves open.

    Attributes
    ----------
    id : str
    rule : str
        The rule's name; for a rule of a stream's program prefixed by the program's name and a dot.
    stream : str or None
        The stream whose time the rule follows.
    us : int
        Time of the matches, in microseconds since 1970.
    candidates : tuple of mapping
        The matches, each a mapping of part names to events.
    certain : tuple of mapping
        Matches that the same event completed for certain, and that were made.
    rivals : tuple of Rivals
        Reasons, by number of the candidate, why each candidate is uncertain.
    completed_by : Occurrence or None
        The event that completed the candidates; None if time did.
    status : {"open", "chosen", "resolved"}
        Open: still to be decided. Chosen: decided, but not yet applied by the process that has the
        rule's detector. Resolved: applied, and the rule triggered.
    chosen : tuple of int or None
        Numbers of the chosen candidates; None while the choice is open.
    by : str or None
        Name recorded with the decision; ``"events"`` if later events have decided it.
    decided_at, recorded_at : datetime or None
    """

    id: str
    rule: str
    stream: str | None
    us: int
    candidates: tuple[Mapping[str, Any], ...]
    certain: tuple[Mapping[str, Any], ...]
    rivals: tuple[Rivals, ...]
    completed_by: Occurrence | None
    status: Literal["open", "chosen", "resolved"]
    chosen: tuple[int, ...] | None
    by: str | None
    decided_at: datetime | None
    recorded_at: datetime | None

    @property
    def is_open(self) -> bool:
        """True if the choice is still to be made."""
        return self.status == "open"

    def texts(self) -> list[str]:
        """Return each candidate as text."""
        return [
            ", ".join(f"{name}: {_text(part)}" for name, part in candidate.items())
            for candidate in self.candidates
        ]

    def record(self) -> dict[str, Any]:
        """Return the decision as a JSON-serialisable dict."""
        return {
            "id": self.id,
            "rule": self.rule,
            "stream": self.stream,
            "us": self.us,
            "status": self.status,
            "chosen": None if self.chosen is None else list(self.chosen),
            "by": self.by,
            "decided_at": _iso(self.decided_at),
            "recorded_at": _iso(self.recorded_at),
            "candidates": [_encoded(each) for each in self.candidates],
            "certain": [_encoded(each) for each in self.certain],
            "why": [str(each) for each in self.rivals],
            "completed_by": None if self.completed_by is None else encode(self.completed_by),
        }

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> MatchDecision:
        """Build a decision from its row."""
        undecided = _undecided_of(row)
        chosen = row["chosen"]
        return cls(
            id=row["id"],
            rule=row["rule"],
            stream=row["stream"] or None,
            us=row["us"],
            candidates=undecided.candidates,
            certain=undecided.certain,
            rivals=undecided.rivals,
            completed_by=undecided.event,
            status=row["status"],
            chosen=None if chosen is None else tuple(chosen),
            by=row["decided_by"],
            decided_at=row["decided_at"],
            recorded_at=row["recorded_at"],
        )


class Decisions:
    """Open and decided choices of the detectors: ``db.decisions``.

    Iteration yields the open decisions in the order of their times. Thread-safe.
    """

    def __init__(
        self,
        rows: DecisionRows,
        *,
        catalog: Catalog,
        lines: TimeLines,
        kept: DurableDetectors,
        forest: Forest,
        triggering: Triggering,
        batch_firings: BatchFirings,
        clock: Clock,
        streams: Collection[str],
        watch: Callable[[str, int | None, Callable[[], None]], None],
    ):
        self._rows = rows
        self._catalog = catalog
        self._lines = lines
        self._kept = kept
        self._forest = forest
        self._triggering = triggering
        self._batch_firings = batch_firings
        self._clock = clock
        self._streams = streams
        self._watch = watch

    # -- for users who decide -------------------------------------------------------------

    def list(
        self, rule: str | None = None, *, open: bool | None = None
    ) -> builtins.list[MatchDecision]:
        """Return committed decisions in the order of time. O(n log n).

        Parameters
        ----------
        rule : str, optional
            Only the decisions of this rule.
        open : bool, optional
            True: only open decisions; False: only the others.
        """
        statuses = {None: None, True: ("open",), False: ("chosen", "resolved")}[open]
        return [MatchDecision.of(row) for row in self._rows.read(rule=rule, statuses=statuses)]

    def __iter__(self) -> Iterator[MatchDecision]:
        return iter(self.list(open=True))

    def get(self, id: str) -> MatchDecision:
        """Return one decision; raise `RowNotFound` if no decision has this id."""
        found = self._rows.read(id=id)
        if not found:
            raise _no_decision(id)
        return MatchDecision.of(found[0])

    def open_by_rule(self) -> dict[str, int]:
        """Return the number of open choices per rule; rules without one are left out."""
        return self._rows.open_by_rule()

    def resolve(self, id: str, chosen: Chosen, *, by: str | None = None) -> MatchDecision:
        """Decide a choice: make the chosen candidates, which trigger the rule, and drop the rest.

        One transaction does this, so it happens once, also across crashes. If another process has
        the rule's detector, the choice is recorded, and that process applies it within seconds, or
        when it starts. For a rule of a stream's program, the matches are made with the next part of
        the stream: feed the stream, even with no events.

        Parameters
        ----------
        id : str
        chosen : iterable of int or mapping
            Candidates, or their numbers from 0; empty if no candidate is to be made.
        by : str, optional
            Name to record with the decision.

        Returns
        -------
        MatchDecision
            The decision in its new state: ``resolved``; or ``chosen``, if another process has the
            detector, or if the rule is part of a program.

        Raises
        ------
        RowNotFound
            If there is no such decision.
        DecisionClosed
            If the choice was decided before, or can no longer be made because the event of the
            rule has changed.
        ConfigurationError
            If something chosen is not a candidate.
        BadEvent
            If the chosen candidates exclude each other, or are never made without others.
        RuleFailed
            If the rule raises, unless it fails alone. The decision stays open.
        TransactionStateError
            Inside a transaction.
        """
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(
                f"nothing can be decided inside {t.path}, as that takes a top-level transaction of "
                f"its own; do it outside of transactions"
            )
        asked = list(chosen)

        def body(t: TransactionNode) -> None:
            row = Transaction(t).get(self._rows.table, id, for_update=True)
            if row is None:
                raise _no_decision(id)
            if row["status"] != "open":
                raise _closed(row, f"was decided by {row['decided_by']}")
            numbers = _numbers(row, asked)
            noted = {"chosen": numbers, "decided_by": by, "decided_at": self._clock.now()}
            rule = self._entry(row)
            if rule is None or not self._is_here(row):
                Transaction(t).update(self._rows.table, id, status="chosen", **noted)
                return
            Transaction(t).update(self._rows.table, id, status="resolved", **noted)
            found = self._made(t, rule.subscription, row, numbers)
            if found:
                triggered = [Triggered(rule.rule, o) for o in found]
                self._triggering.trigger_in_child(t, triggered, f"decision.{id}", row["us"])

        self._forest.run(body, Run(rule=None))
        return self.get(id)

    # -- for the detectors -----------------------------------------------------------------

    def record(self, t: TransactionNode, choices: Sequence[tuple[Subscription, Taken]]) -> None:
        """Let the commit of the top-level `t` write choices that detectors left open or decided."""
        rows: dict[str, dict[str, Any]] = {}
        decided: dict[str, list[int]] = {}
        for subscription, taken in choices:
            for undecided in taken.undecided:
                row = self._row(subscription, undecided)
                rows[row["id"]] = row
            for identity, numbers in taken.decided.items():
                decided[self._id(subscription, identity)] = numbers
        now = self._clock.now()

        def write(connection: Any) -> None:
            self._rows.record(connection, rows.values())
            self._rows.settle(connection, decided, BY_EVENTS, now)

        t.hierarchy.durable.append(write)
        if rows:
            self._look_later()

    def defined(self, subscriptions: Sequence[Subscription]) -> None:
        """Look soon for decisions on new rules, made while no process had the rules."""
        rules = {each.rule.name for each in subscriptions if self._is_on_signals(each)}
        if rules and self._rows.is_shared and self._may_wait(rules):
            self._look_later()

    def do_chosen(self, stream: str | None = None) -> None:
        """Apply decisions made elsewhere about detectors of this process.

        Parameters
        ----------
        stream : str, optional
            Only decisions on rules that follow this stream's time.
        """
        for row in self._rows.read(statuses=["chosen"], stream=stream):
            if self._entry(row) is None or not self._is_here(row):
                continue
            try:
                name = f"{Repeated.DECISION.prefix}{row['id']}"
                self._batch_firings.remember_done(name)  # of a process that has ended meanwhile
                run = Run(name=name, batch=Repeated.DECISION, is_retried=True)
                work = partial(self._do, id=row["id"])
                self._batch_firings.run_whole(self._forest, run, work, source=name)
            except SYSTEMIC:
                _LOG.warning("decision %s waits", row["id"], exc_info=True)
            except DecisionClosed as error:
                _LOG.warning("%s", error)
            except BadEvent as error:  # chosen without the detector, which knows what excludes what
                _LOG.warning("decision %s is open again: %s", row["id"], error)
                self._forest.run(partial(self._reopen, id=row["id"]), Run(is_retried=True))

    def _reopen(self, t: TransactionNode, id: str) -> None:
        row = Transaction(t).get(self._rows.table, id, for_update=True)
        if row is not None and row["status"] == "chosen":
            undecided = {"chosen": None, "decided_by": None, "decided_at": None}
            Transaction(t).update(self._rows.table, id, status="open", **undecided)

    def _look(self) -> None:
        """Apply what other processes have decided; repeat while a rule here has open choices."""
        try:
            self.do_chosen()
        except ActiveDBError:
            _LOG.warning("decisions by other processes are read later", exc_info=True)
        if self._may_wait({rule.name for rule in self._catalog}):
            self._look_later()

    def _is_on_signals(self, subscription: Subscription) -> bool:
        return subscription.is_stateful and self._lines.stream_of(subscription) is None

    def _may_wait(self, rules: set[str]) -> bool:
        """Return whether a choice of these rules is open or not applied; True if unknown."""
        try:
            return not rules.isdisjoint(self._rows.unresolved_rules())
        except ActiveDBError:
            _LOG.warning("decisions by other processes are read later", exc_info=True)
            return True

    def _look_later(self) -> None:
        if self._rows.is_shared:
            self._watch("", in_microseconds(self._clock.now()) + _LOOK_AFTER_US, self._look)

    # -- one decision ----------------------------------------------------------------------

    def _do(self, t: TransactionNode, id: str) -> None:
        row = Transaction(t).get(self._rows.table, id, for_update=True)
        if row is None or row["status"] != "chosen":
            return  # another process was first
        rule = self._entry(row)
        if rule is None:
            return
        Transaction(t).update(self._rows.table, id, status="resolved")
        for o in self._made(t, rule.subscription, row, row["chosen"]):
            label = f"decision.{id}"
            item = Triggered(rule.rule, o)
            self._triggering.trigger_alone(t, item, label, row["us"], f"{label}/{t.path}")

    def _made(
        self,
        t: TransactionNode,
        subscription: Subscription,
        row: Mapping[str, Any],
        numbers: Sequence[int],
    ) -> Sequence[Occurrence]:
        """Apply a choice to the detector; return the chosen matches and newly certain ones."""
        rule, identity = subscription.rule, row["identity"]
        if subscription.is_exclusive:
            lock_detector(t, rule.name)
            if subscription.has_open(identity):
                self._triggering.feeding.will_restore(t, subscription)
                taken = subscription.resolve(identity, numbers, Transaction(t))
                found = self._triggering.feeding.completed(t, subscription, taken, lambda *_: True)
                self._kept.write_state(t, subscription)
                return [item.occurrence for item in found]
        if not numbers:
            return []
        if subscription.event != row["event"]:
            raise _closed(row, f"can no longer be made, as rule {rule.name} is on something else")
        if subscription.has_open(identity):
            subscription.check_chosen(identity, numbers)
        undecided = _undecided_of(row)
        rebuilt = [_rebuilt(rule, undecided.candidates[number], row) for number in numbers]
        if len(rebuilt) > 1 and not may_be_together(rule.on, rebuilt):
            raise BadEvent(
                f"candidates {', '.join(map(str, numbers))} of decision {row['id']} are made "
                "together in no order of events that their timestamps allow: of matches that "
                "exclude each other only one can be chosen"
            )
        return rebuilt

    def _entry(self, row: Mapping[str, Any]) -> RegisteredRule | None:
        """Return the rule if it can be run here; None also if the next part of a stream runs it."""
        return None if row["event"] == OF_PROGRAM else self._catalog.entry(row["rule"])

    def _is_here(self, row: Mapping[str, Any]) -> bool:
        """Return whether no other process can have the detector."""
        if not self._rows.is_shared:
            return True
        if row["stream"]:
            return row["stream"] in self._streams
        holder = row["holder"]
        return bool(holder == self._rows.holder or self._rows.is_dead(holder))

    # -- rows ------------------------------------------------------------------------------

    def _row(self, subscription: Subscription, undecided: Undecided) -> dict[str, Any]:
        stream = self._lines.stream_of(subscription)
        return decision_row(
            undecided,
            id=self._id(subscription, undecided.identity),
            rule=subscription.rule.name,
            event=subscription.event,
            stream=stream or "",
            holder=0 if stream is not None else self._rows.holder,
            recorded_at=self._clock.now(),
            counters=self._triggering.counters,
        )

    def _id(self, subscription: Subscription, identity: str) -> str:
        stream = self._lines.stream_of(subscription) or ""
        return decision_id(subscription.rule.name, stream, identity)


def decision_id(*names: str) -> str:
    """Return the id of a choice, from the names that distinguish it from all others."""
    named = "\0".join(names).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=8).hexdigest()


def decision_row(
    undecided: Undecided,
    *,
    id: str,
    rule: str,
    event: str,
    stream: str,
    holder: int,
    recorded_at: datetime,
    counters: NamedCounters,
) -> dict[str, Any]:
    """Return the row of an open choice; with texts of its candidates if they cannot be encoded."""
    try:
        choice = encode_undecided(undecided)
    except BadEvent:
        counters.add("partials_not_durable")
        choice = {"shown": [str(dict(each)) for each in undecided.candidates]}
    return {
        "id": id,
        "rule": rule,
        "event": event,
        "stream": stream,
        "holder": holder,
        "identity": undecided.identity,
        "us": undecided.us,
        "choice": choice,
        "status": "open",
        "recorded_at": recorded_at,
    }


def _text(part: Any) -> str:
    return ", ".join(map(str, part)) if isinstance(part, tuple) else str(part)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _encoded(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Return a match for JSON; the parts of an unencodable match are texts already."""
    return {
        name: [encode(o) for o in part]
        if isinstance(part, tuple)
        else (encode(part) if isinstance(part, Occurrence) else part)
        for name, part in candidate.items()
    }


def _undecided_of(row: Mapping[str, Any]) -> Undecided:
    choice = row["choice"]
    if "shown" in choice:
        shown = tuple({"match": text} for text in choice["shown"])
        return Undecided(row["identity"], shown, us=row["us"])
    return decode_undecided(choice)


def _numbers(row: Mapping[str, Any], asked: Iterable[int | Mapping[str, Any]]) -> list[int]:
    """Return the numbers of the candidates asked for; raise `ConfigurationError` on any other."""
    candidates = _undecided_of(row).candidates
    found = set()
    for one in asked:
        if isinstance(one, Mapping) and all(isinstance(o, _OF_MATCHES) for o in one.values()):
            number = next((n for n, c in enumerate(candidates) if same_candidate(c, one)), -1)
        else:
            number = one if type(one) is int else -1
        if not 0 <= number < len(candidates):
            raise ConfigurationError(
                f"{one!r} is not a candidate of decision {row['id']}: choose among the numbers "
                f"from 0 to {len(candidates) - 1}, or nothing"
            )
        found.add(number)
    return sorted(found)


def _rebuilt(rule: Rule, candidate: Mapping[str, Any], row: Mapping[str, Any]) -> Occurrence:
    """Return the match of a candidate that its detector has forgotten, by detecting it again.

    Only the candidate's own events are fed: the decision says that no other event forbids it.
    """
    detector = Detector(
        rule.on, name=None if isinstance(rule.on, Query) else rule.name, on_uncertain="possible"
    )
    if not detector.reads:
        try:
            events = _leaves(candidate)
            made = [o for event in events for o in detector.feed(event)]
            # A match that time completes is complete at the latest possible time of its events.
            widest_us = max(event.high_us - event.low_us for event in events)
            made += detector.advance(row["us"] + widest_us + 1)
        except Exception as error:
            raise _closed(row, f"can no longer be made: {error_text(error)}") from error
        for o in made:
            if same_candidate(o.parts, candidate):
                return o
    raise _closed(row, "can no longer be made: it is older than the state of its detector")


def _leaves(candidate: Mapping[str, Any]) -> list[Occurrence]:
    """Return the primitive events of a match, each once, in the order of their timestamps."""
    parts = (
        o for part in candidate.values() for o in (part if isinstance(part, tuple) else (part,))
    )
    found = {id(leaf): leaf for o in parts for leaf in leaves(o)}
    return sorted(found.values(), key=lambda o: o.us)


def _closed(row: Mapping[str, Any], why: str) -> DecisionClosed:
    return DecisionClosed(
        f"decision {row['id']} of rule {row['rule']} {why}; db.decisions tells which are open",
        decision=row["id"],
    )


def _no_decision(id: str) -> RowNotFound:
    return RowNotFound(
        f"there is no decision {id!r}; db.decisions and `activedb decisions list` tell which there "
        f"are"
    )
