"""Persistence of detector state for events outside of streams, and its recovery."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from activedb.errors import ActiveDBError, BadEvent
from activedb.events import decode, encode
from activedb.firing._time_lines import TimeLines
from activedb.firing._triggered import Fed
from activedb.metrics import NamedCounters
from activedb.rules import Subscription
from activedb.store.journals import DetectorRows, Repeated
from activedb.transactions import TransactionNode, lock_detector

__all__ = ["DurableDetectors"]

_LOG = logging.getLogger(__name__)
_NUMBERS = 2**31  # numbers of one process before they may collide with another's
_TRIMS_PER_WINDOW = 4


class DurableDetectors:
    """Durable state of detectors fed by signals and data changes.

    The state is written with the commit of the transaction that raised the events. If the state of
    a rule's detector follows from the events that it keeps, each event is a row, so several
    transactions may feed the detector at once. For the other rules the whole state is written: only
    one hierarchy at a time feeds them (`Subscription.is_exclusive`), so at its commit their state
    reflects exactly the committed events.

    On ``memory://`` nothing is written.

    Parameters
    ----------
    rows : DetectorRows
    lines : TimeLines
        Names the stream of a rule. Streams persist the rules that follow their time, except for
        signals raised beside them.
    counters : NamedCounters
        Has the counter ``partials_not_durable``: events with values that cannot be encoded.
    """

    def __init__(self, rows: DetectorRows, lines: TimeLines, counters: NamedCounters):
        self._rows = rows
        self._lines = lines
        self._counters = counters
        # Ascending numbers from a range private to this process.
        self._numbers = itertools.count(secrets.randbelow(2**31) * _NUMBERS)
        self._trimmed_us: dict[str, int] = {}
        self._left = rows.rules()

    # -- with a commit ---------------------------------------------------------------------

    def at_commit_point(
        self, t: TransactionNode, fed: Sequence[Fed], gone: Mapping[str, Subscription | None]
    ) -> None:
        """Let the commit of the top-level `t` write the detector state left by its events.

        Parameters
        ----------
        fed : sequence of Fed
            Occurrences that `t` has fed.
        gone : mapping of str to Subscription or None
            Rules whose detectors end with this commit, with their new subscriptions.
        """
        whole: dict[str, Subscription] = {}
        rows: list[dict[str, Any]] = []
        newest: dict[Subscription, int] = {}
        beside: dict[str, dict[str, Subscription]] = {}
        for item in fed:
            subscription = item.subscription
            name = subscription.rule.name
            if name in gone and not subscription.shares_detector(gone[name]):
                continue
            stream = self._lines.stream_of(subscription)
            if stream is not None:
                is_of_part = t.hierarchy.run.batch is Repeated.STREAM
                if subscription.is_exclusive and not is_of_part:
                    beside.setdefault(stream, {})[name] = subscription
                continue
            if not self._rows.is_durable:
                continue
            if subscription.is_exclusive:
                whole[name] = subscription
                continue
            us = item.occurrence.us
            newest[subscription] = max(newest.get(subscription, us), us)
            rows += self._row(item)
        trims = self._due_trims(newest) if newest else {}
        if not (whole or rows or gone or trims or beside):
            return

        def write(connection: Any) -> None:
            if gone:
                self._rows.forget(connection, list(gone))
            if rows:
                self._rows.add(connection, rows)
            if whole:
                self._write(connection, whole.values())
            for stream, found in beside.items():
                # The stream's next part begins from here.
                self._write(connection, found.values(), stream)
            if trims:
                self._rows.trim(connection, trims)

        t.hierarchy.durable.append(write)

    def write_state(self, t: TransactionNode, subscription: Subscription) -> None:
        """Let the commit of the top-level `t`, which holds the rule's lock, write a whole state."""
        stream = self._lines.stream_of(subscription)
        if subscription.is_exclusive and (self._rows.is_durable or stream is not None):
            t.hierarchy.durable.append(
                lambda connection: self._write(connection, [subscription], stream)
            )

    def trimmed(self, subscription: Subscription, before_us: int) -> None:
        """Delete older events, which no match can need any more, in a separate transaction."""
        if self._rows.is_durable and not subscription.is_exclusive:
            self._trimmed_us[subscription.rule.name] = before_us
            self._rows.trim_alone({subscription.rule.name: before_us})

    # -- after a restart -------------------------------------------------------------------

    def adopt(self, subscription: Subscription) -> None:
        """Restore in a new detector the state that ended processes have left of its rule.

        Takes one transaction if such state exists, and none otherwise.
        """
        if subscription.rule.name in self._left and subscription.is_stateful:
            self._adopt(subscription, with_ours=True)

    def recover(self, t: TransactionNode, subscriptions: Iterable[Subscription]) -> None:
        """Look again for state left by processes that have ended meanwhile.

        A state that is kept as a whole can only be restored into a detector that keeps nothing yet.

        Parameters
        ----------
        t : TransactionNode
            Holds the locks on the detectors meanwhile.
        """
        self._left = self._rows.rules()
        for subscription in subscriptions:
            if subscription.rule.name not in self._left or not subscription.is_stateful:
                continue
            if subscription.is_exclusive:
                lock_detector(t, subscription.rule.name)
                if subscription.partials or subscription.pending:
                    continue
            self._adopt(subscription, with_ours=False)
            self._lines.moved(subscription)

    def _adopt(self, subscription: Subscription, *, with_ours: bool) -> None:
        name, is_whole = subscription.rule.name, subscription.is_exclusive
        found = self._rows.adopt(name, subscription.event, is_whole=is_whole, with_ours=with_ours)
        try:
            if found.state is not None:
                subscription.restore(dict(found.state))
            for data in found.occurrences:
                subscription.feed_kept(decode(data))
        except ActiveDBError:
            _LOG.warning(
                "rule %s starts with no state: its state cannot be read", name, exc_info=True
            )
            subscription.restore(None)

    # -- inside ----------------------------------------------------------------------------

    def _row(self, item: Fed) -> list[dict[str, Any]]:
        o, subscription = item.occurrence, item.subscription
        try:
            data = encode(o)
        except BadEvent:
            self._counters.add("partials_not_durable")
            return []
        return [
            {
                "number": next(self._numbers),
                "rule": subscription.rule.name,
                "event": subscription.event,
                "us": o.us,
                "occurrence": data,
            }
        ]

    def _write(
        self, connection: Any, subscriptions: Iterable[Subscription], stream: str | None = None
    ) -> None:
        """Write whole states, for this process or for a stream."""
        states, unwritable = {}, []
        for subscription in subscriptions:
            name = subscription.rule.name
            try:
                states[name] = (subscription.event, subscription.state())
            except BadEvent:
                self._counters.add("partials_not_durable")
                unwritable.append(name)
        if states and stream is None:
            self._rows.write(connection, states)
        elif states and stream is not None:
            self._rows.write_of_stream(connection, stream, states)
        if unwritable:
            # An older state would still contain events that have been consumed since.
            self._rows.forget(connection, unwritable)

    def _due_trims(self, newest: Mapping[Subscription, int]) -> dict[str, int]:
        """Return the rules with enough expired events to justify a delete, and their cutoffs."""
        found = {}
        for subscription, us in newest.items():
            memory_us, name = subscription.memory_us, subscription.rule.name
            if memory_us is None:
                continue
            cutoff_us = us - memory_us
            since_us = cutoff_us - self._trimmed_us.setdefault(name, cutoff_us)
            if since_us > memory_us // _TRIMS_PER_WINDOW:
                found[name] = self._trimmed_us[name] = cutoff_us
        return found
