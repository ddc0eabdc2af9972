"""S-transactions: the effects of one event of a stream, or of one time, within a part.

Results that arrive with a batch are held in memory while the batch is processed. If processing is
interrupted, the batch is replayed with the same results, so they need not be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.errors import BadEvent, BatchFailed, ConfigurationError, UncertainOrder
from activedb.events import Occurrence
from activedb.firing import Fed, Letter, Triggered, Triggering, error_text, is_systemic
from activedb.firing import Refused as RefusedBy
from activedb.rules import OnAbort, Rule, Subscription
from activedb.streams._arrivals import Arrivals, Refused
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._matched import Completion, Matched, needed_types
from activedb.streams._state import Refusals
from activedb.streams._time import StreamTime
from activedb.transactions import TransactionNode

__all__ = ["Completed", "MatchedElsewhere", "MatchedSTransactions", "STransactions", "placed"]


class Completed(NamedTuple):
    """Matches completed by one event of a stream, found by detectors outside this module.

    Attributes
    ----------
    timestamp : datetime or other timestamp
        Time of the event.
    identity : str
        Arrival position, ``"batch.position"``; names the s-transaction and the letter.
    triggered : list of Triggered
        Rules in the order of definition, and the matches of each in the order of its detector.
    record : callable
        Returns the event as a row for its letter; called only on failure.
    """

    timestamp: Any
    identity: str
    triggered: list[Triggered]
    record: Callable[[], dict[str, Any]]


class STransactions:
    """Executor that feeds a stream's events to the detectors, one by one, and runs triggered rules.

    An s-transaction that fails is rolled back alone and becomes a letter; systemic errors
    propagate.

    Attributes
    ----------
    fail_fast : bool
        Raise `BatchFailed` instead of making a letter.
    refusals : Refusals
        Events that rules have refused.
    """

    def __init__(self, stream: StreamDeclaration, *, triggering: Triggering, time: StreamTime):
        self.fail_fast = False
        self.refusals = Refusals()
        self._stream = stream
        self._triggering = triggering
        self._time = time

    def process(
        self, t: TransactionNode, arrival: Arrival, contemporaries: Sequence[Occurrence]
    ) -> Letter | None:
        """Process one event; return a letter if it failed, in which case it has no effects."""
        identity = f"{arrival.batch_id}.{arrival.position}"
        feed = partial(self._feed, t, arrival, identity, contemporaries)
        return self._fed(t, arrival.occurrence.timestamp, identity, arrival.record, feed)

    def complete(self, t: TransactionNode, completed: Completed) -> Letter | None:
        """Run the rules that an event has triggered, in a child of `t`; return a letter on failure.

        On failure no effects remain in the database. The caller must undo the detectors' changes.
        """
        _, identity, triggered, record = completed
        try:
            self._run_rules(t, triggered, label=identity, timestamp=completed.timestamp)
        except Exception as error:
            if is_systemic(error, t):
                raise
            return self.letter(identity, record(), error)
        return None

    def letter(self, identity: str, record: dict[str, Any], error: Exception) -> Letter:
        """Return the letter of a failed event; with `fail_fast` raise `BatchFailed` instead."""
        if self.fail_fast:
            shown = Arrival.restore(record).occurrence
            raise BatchFailed(
                f"stream {self._stream.name}: {shown!r}: {error_text(error)}"
            ) from error
        return Letter.of_event(self._stream.name, identity, record, error)

    def offer_late(self, t: TransactionNode, late: list[Arrival], us: int) -> list[Letter]:
        """Raise late events for the rules that listen to them; return letters of failures.

        They occur at `us`, the punctuation that had been reached on their arrival.
        """
        name = self._stream.name
        now = moment_of(us)
        letters = []
        for arrival in late if self._triggering.catalog.listening_to(("late", name), t) else ():
            o = arrival.occurrence
            when = o.timestamp if o.stamp is None else moment_of(o.us)
            params = {"type": o.name, "timestamp": when, "id": o.id}
            identity = f"late.{arrival.batch_id}.{arrival.position}"
            raised = Occurrence(name, now, {**params, "params": dict(o.params)}, kind="late")
            feed = partial(self._triggering.feeding.feed, raised, t)
            letter = self._fed(t, now, identity, arrival.record, feed)
            letters += [] if letter is None else [letter]
        return letters

    def advance(self, t: TransactionNode, us: int) -> list[Letter]:
        """Advance time to `us`; run the rules that become due before, each at its own time."""
        letters: list[Letter] = []
        for due_us, subscription in self._time.due_before(t, us):
            rule = subscription.rule.name
            identity = f"time.{due_us}.{rule}"
            undecided: list[Exception] = []

            def refused(_: Rule, error: Exception, undecided: Any = undecided) -> bool:
                undecided.append(error)
                return True

            try:
                triggered = self._triggering.feeding.advance(subscription, due_us + 1, t, refused)
            except Exception as error:
                if is_systemic(error, t):
                    raise
                # Needs a distinct identity: a match passed over may trigger a rule that fails, too.
                letters.append(self._failed_at(due_us, rule, f"{identity}.detector", error))
                triggered = self._passed(t, subscription, due_us, refused)
            letters += [
                self._failed_at(due_us, rule, f"{identity}.undecided", order) for order in undecided
            ]
            try:
                if triggered:
                    self._run_rules(t, triggered, label=identity, timestamp=moment_of(due_us))
            except Exception as error:
                if is_systemic(error, t):
                    raise
                letters.append(self._failed_at(due_us, rule, identity, error))
        return letters

    def refuse(self, batch_id: int, refused: Refused) -> Letter:
        """Return the letter of a row that is not an event of the stream."""
        if self.fail_fast:
            raise BatchFailed(
                f"stream {self._stream.name}: row {refused.position} of batch {batch_id}: "
                f"{refused.error}"
            )
        identity = f"{batch_id}.{refused.position}"
        return Letter.of_event(self._stream.name, identity, refused.payload, refused.error)

    def _feed(
        self,
        t: TransactionNode,
        arrival: Arrival,
        identity: str,
        contemporaries: Sequence[Occurrence],
    ) -> tuple[list[Triggered], list[Fed]]:
        """Feed an event to the detectors; return triggered rules and the detectors that kept it."""
        o = arrival.occurrence
        refused = partial(self.refused, t, identity, o)
        return self._triggering.feeding.feed(o, t, contemporaries, refused=refused)

    def refused(
        self, t: TransactionNode, identity: str, o: Occurrence, rule: Rule, error: Exception
    ) -> bool:
        """Keep a letter if `rule` alone cannot take an event; return False to refuse it for all.

        The latter happens if a predicate raises, unless the rule fails alone.
        """
        is_alone = isinstance(error, BadEvent) or rule.on_abort is OnAbort.RULE
        if is_alone and not self.fail_fast:
            self._triggering.feeding.refuse(t, rule, f"{self._stream.name}/{identity}", o, error)
            if not isinstance(error, UncertainOrder):  # in that case the rule has kept the event
                self.refusals.add(rule, identity, o.us)
        return is_alone and not self.fail_fast

    def _fed(
        self,
        t: TransactionNode,
        timestamp: Any,
        identity: str,
        record: Callable[[], dict[str, Any]],
        feed: Callable[[], tuple[list[Triggered], list[Fed]]],
    ) -> Letter | None:
        """Feed one event in `t` and run what it triggers in a child; return a letter on failure."""
        fed: list[Fed] = []
        try:
            triggered, fed = feed()
            if fed:
                self._triggering.feeding.keep(t, fed)
            if triggered:
                self._run_rules(t, triggered, label=identity, timestamp=timestamp)
        except Exception as error:
            if is_systemic(error, t):
                raise
            self._triggering.feeding.take_back(t, fed)
            return self.letter(identity, record(), error)
        return None

    def _passed(
        self, t: TransactionNode, subscription: Subscription, due_us: int, refused: RefusedBy
    ) -> list[Triggered]:
        """Continue after a time at which a detector failed; return its other matches."""
        with suppress(BadEvent):  # its state contains a value that cannot be encoded
            return self._triggering.feeding.pass_over(subscription, due_us + 1, t, refused)
        # It would fail repeatedly, so the state of the detector is dropped.
        subscription.restore(None)
        return self._triggering.feeding.advance(subscription, due_us + 1, t, refused)

    def _failed_at(self, us: int, rule: str, identity: str, error: Exception) -> Letter:
        if self.fail_fast:
            raise BatchFailed(
                f"stream {self._stream.name}: rule {rule} at {moment_of(us)}: {error_text(error)}"
            ) from error
        payload = {"rule": rule, "us": us}
        return Letter.of_event(self._stream.name, identity, payload, error)

    def _run_rules(
        self, t: TransactionNode, triggered: list[Triggered], *, label: str, timestamp: Any
    ) -> None:
        with t.hierarchy.undoing() if t.hierarchy.run.careful else nullcontext():
            trigger = partial(self._triggering.trigger, triggered=triggered)
            t.run_child(trigger, label=label, timestamp=timestamp)


# -- S-transactions of events whose matches were found elsewhere, on Spark's executors -------------


_NOTHING = Matched({}, frozenset())


class MatchedElsewhere:
    """Results of the rules that are matched elsewhere, while a batch is processed.

    Not thread-safe: used only by the thread that feeds the stream.

    Parameters
    ----------
    stream : StreamDeclaration
    triggering : Triggering
    time : StreamTime

    Attributes
    ----------
    is_used : bool
        True if the current batch comes with results. Its punctuation then does not count its rows.
    """

    def __init__(self, stream: StreamDeclaration, triggering: Triggering, time: StreamTime):
        self._stream = stream
        self._catalog = triggering.catalog
        self._time = time
        self.is_used = False
        self._checked = -1  # version of the catalog
        self._matched = _NOTHING
        self._found: dict[tuple[int, int], Completion] = {}
        self._alone: set[tuple[int, int]] = set()

    def take(self, matched: Matched | None, since_us: int | None) -> None:
        """Take the results that arrive with a batch; None: there are none.

        Parameters
        ----------
        since_us : int or None
            Time before which completing events have already been processed.

        Raises
        ------
        ConfigurationError
            If the rules have changed since they were matched.
        """
        self._found, self._alone = {}, set()
        self.is_used = matched is not None
        if matched is None:
            self._matched = _NOTHING
            self._time.elsewhere = frozenset()
            return
        if self._checked != self._catalog.version or matched.rules != self._matched.rules:
            self._check(matched)
            self._checked = self._catalog.version
        self._matched = matched
        self._time.elsewhere = frozenset(matched.rules)
        for each in matched.completions:
            if since_us is not None and each.arrival.occurrence.us < since_us:
                continue
            place = (each.arrival.batch_id, each.arrival.position)
            before = self._found.get(place)
            # Rules with different keys are matched in different places.
            found = each.found if before is None else {**before.found, **each.found}
            self._found[place] = Completion(each.arrival, found)

    def alone(self, rows: Iterable[Arrival]) -> list[Arrival]:
        """Return the completing events that are not rows, but sent only for their matches.

        Whether an event is a row was decided on its arrival, possibly under different rules.

        Parameters
        ----------
        rows : iterable of Arrival
            Waiting rows and the rows of the batch.
        """
        there = {(a.batch_id, a.position) for a in rows} if self._found else ()
        self._alone = {place for place in self._found if place not in there}
        return [self._found[place].arrival for place in self._alone]

    def count(self, chunk: Sequence[Arrival], *, is_last: bool) -> int:
        """Return the number of events of a part: its rows, and in the last part all others."""
        rows = len(chunk)
        if self._alone:
            rows = sum((a.batch_id, a.position) not in self._alone for a in chunk)
        return rows + (self._matched.processed if is_last else 0)

    def is_elsewhere(self, rule: str) -> bool:
        """Return whether a rule is matched elsewhere."""
        return rule in self._matched.rules

    def is_row(self, arrival: Arrival) -> bool:
        """Return whether an event is a row, which the rules matched here have to see."""
        return (arrival.batch_id, arrival.position) not in self._alone

    def found(self, arrival: Arrival) -> Completion | None:
        """Return the matches that an event has completed elsewhere."""
        return self._found.get((arrival.batch_id, arrival.position))

    def _check(self, matched: Matched) -> None:
        advice = "start the feed of the stream again, so that it begins with the rules as they are"
        for subscription in self._catalog.listening_to_any(
            [("event", name) for name in self._stream.types]
        ):
            rule = subscription.rule.name
            event = matched.rules.get(rule)
            if event is not None and event != subscription.event:
                raise ConfigurationError(
                    f"stream {self._stream.name}: the event of rule {rule} was changed while "
                    f"Spark's executors match it: {advice}"
                )
        lacking = needed_types(self._stream, self._catalog, matched.rules) - matched.passed
        if lacking:
            raise ConfigurationError(
                f"stream {self._stream.name}: a rule was defined that listens to "
                f"{', '.join(sorted(lacking))} while Spark's executors match all rules on that: "
                f"{advice}"
            )


class MatchedSTransactions(STransactions):
    """S-transactions that are also triggered by the matches found elsewhere.

    Attributes
    ----------
    elsewhere : MatchedElsewhere
    """

    def __init__(self, stream: StreamDeclaration, *, triggering: Triggering, time: StreamTime):
        super().__init__(stream, triggering=triggering, time=time)
        self.elsewhere = MatchedElsewhere(stream, triggering, time)

    def _feed(
        self,
        t: TransactionNode,
        arrival: Arrival,
        identity: str,
        contemporaries: Sequence[Occurrence],
    ) -> tuple[list[Triggered], list[Fed]]:
        """Return the rules an event triggers, in definition order, and what kept it here."""
        triggering, elsewhere = self._triggering, self.elsewhere
        if not elsewhere.is_used:
            return super()._feed(t, arrival, identity, contemporaries)
        feeding = triggering.feeding
        completion = elsewhere.found(arrival)
        o, is_row = arrival.occurrence, elsewhere.is_row(arrival)
        found = {} if completion is None else completion.found
        refused = partial(self.refused, t, identity, o)
        triggered: list[Triggered] = []
        fed: list[Fed] = []
        try:
            for subscription in triggering.catalog.concerned_by(o, t):
                name = subscription.rule.name
                if elsewhere.is_elsewhere(name):
                    matches = found.get(name, ())
                    if isinstance(matches, tuple) and matches:
                        error = _refusal(*matches)
                        if not refused(subscription.rule, error):
                            raise error
                        continue
                    if matches:
                        triggering.counters.add("matches", len(matches))
                    triggered += [Triggered(subscription.rule, match) for match in matches]
                elif is_row:
                    try:
                        taken = feeding.feed_to(subscription, o, t, contemporaries)
                    except Exception as error:
                        if is_systemic(error, t) or not refused(subscription.rule, error):
                            raise
                        continue
                    triggered += feeding.took(t, subscription, o, taken, fed, refused)
        except BaseException:
            feeding.withdraw(fed)
            raise
        return triggered, fed


def placed(arrivals: Arrivals, matched: Matched | None) -> Arrivals:
    """Return `arrivals` with positions in the whole batch, refusing events from the future."""
    if matched is None or matched.positions is None:
        return arrivals
    positions = matched.positions
    found = Arrivals(refused=[replace(r, position=positions[r.position]) for r in arrivals.refused])
    for kind in ("admitted", "late"):
        for arrival in getattr(arrivals, kind):
            position = positions[arrival.position]
            if position not in matched.from_future:
                getattr(found, kind).append(replace(arrival, position=position))
                continue
            o = arrival.occurrence
            error = BadEvent(
                f"event {o.name!r} is of {o.timestamp}, which was too far ahead of the clock when "
                "its batch was planned: correct the sender's timestamps, or raise the "
                "setting future_max_s"
            )
            shown = {"type": o.name, "timestamp": str(o.timestamp)}
            found.refused.append(Refused(position, shown, error))
    found.refused.sort(key=lambda refused: refused.position)
    return found


def _refusal(kind: str, text: str) -> Exception:
    """Return the error of a detector elsewhere, with the class name it had there."""
    if kind == BadEvent.__name__:
        return BadEvent(text)
    error: Exception = type(kind, (Exception,), {})(text)
    return error
