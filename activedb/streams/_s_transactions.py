"""S-transactions: the effects of one event of a stream, or of one time, within a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.errors import BadEvent, BatchFailed, UncertainOrder
from activedb.events import Occurrence
from activedb.firing import Fed, Letter, Triggered, Triggering, is_systemic
from activedb.firing import Refused as RefusedBy
from activedb.functions import error_text
from activedb.rules import OnAbort, Rule
from activedb.streams._arrivals import Refused
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._matched_elsewhere import MatchedElsewhere, refusal_of
from activedb.streams._state import Refusals
from activedb.streams._time import StreamTime
from activedb.transactions import TransactionNode, run_child

__all__ = ["Completed", "STransactions"]


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

    Rules are also triggered by the matches found elsewhere, on Spark's executors.

    An s-transaction that fails is rolled back alone and becomes a letter; systemic errors
    propagate.

    Attributes
    ----------
    fail_fast : bool
        Raise `BatchFailed` instead of making a letter.
    refusals : Refusals
        Events that rules have refused.
    elsewhere : MatchedElsewhere
        Matches of the current batch that were found elsewhere.
    """

    def __init__(self, stream: StreamDeclaration, *, triggering: Triggering, time: StreamTime):
        self.fail_fast = False
        self.refusals = Refusals()
        self.elsewhere = MatchedElsewhere(stream, triggering, time)
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
        letters: list[Letter] = []
        if not late or not self._triggering.catalog.listening_to(("late", name), t):
            return letters
        now = moment_of(us)
        for arrival in late:
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
                triggered = self._triggering.feeding.pass_over(subscription, due_us + 1, t, refused)
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
        if self.elsewhere.is_used:
            return self._feed_matched(t, arrival, contemporaries, refused)
        return self._triggering.feeding.feed(o, t, contemporaries, refused=refused)

    def _feed_matched(
        self,
        t: TransactionNode,
        arrival: Arrival,
        contemporaries: Sequence[Occurrence],
        refused: RefusedBy,
    ) -> tuple[list[Triggered], list[Fed]]:
        """Feed as `_feed` does, but take the matches of some rules from `elsewhere`."""
        triggering, elsewhere = self._triggering, self.elsewhere
        feeding = triggering.feeding
        completion = elsewhere.found(arrival)
        o, is_row = arrival.occurrence, elsewhere.is_row(arrival)
        found = {} if completion is None else completion.found
        triggered: list[Triggered] = []
        fed: list[Fed] = []
        try:
            for subscription in triggering.catalog.concerned_by(o, t):
                name = subscription.rule.name
                if elsewhere.is_elsewhere(name):
                    matches = found.get(name, ())
                    if isinstance(matches, tuple) and matches:
                        error = refusal_of(*matches)
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
            run_child(t, trigger, label=label, timestamp=timestamp)
