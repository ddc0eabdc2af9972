"""The time of a stream: what it completes between events, and the states of its detectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from activedb.errors import BadEvent
from activedb.firing import TimeLines
from activedb.metrics import Counters
from activedb.rules import Catalog, Subscription
from activedb.store.journals import DetectorRows
from activedb.streams._declaration import Stream
from activedb.transactions import Transaction
from coupling import priority_rank

__all__ = ["StreamTime"]


class StreamTime:
    """The rules that follow a stream's time.

    The state of such a rule's detector either follows from the events that are kept, and is made
    from them again after a restart, or is written with each part that has changed it.

    Not thread-safe: used by the one thread that feeds the stream.

    Attributes
    ----------
    elsewhere : frozenset of str
        Rules that are matched elsewhere, so that nothing has to be kept for them here.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        catalog: Catalog,
        lines: TimeLines,
        rows: DetectorRows,
        counters: Counters,
    ):
        self.elsewhere: frozenset[str] = frozenset()
        self._stream = stream
        self._counters = counters
        self._catalog = catalog
        self._lines = lines
        self._rows = rows
        self._due = lines.due_in(stream.name)
        self._keys = [*(("event", name) for name in stream.types), ("late", stream.name)]
        # What was written last, so that a state that is the same is not written again.
        self._written: dict[str, tuple[str, dict[str, Any]]] = {}

    def rules(self) -> list[Subscription]:
        """The rules that follow the stream's time, as they are committed; O(rules)."""
        found = self._catalog.listening_to_any(self._keys)
        return [
            s
            for s in found
            if s.is_stateful and self._follows(s) and s.rule.name not in self.elsewhere
        ]

    def is_replayed(self, subscription: Subscription) -> bool:
        """Whether a rule is shown the kept events again after a restart."""
        return subscription.is_replayable and self._follows(subscription)

    def memory_us(self) -> int | None:
        """How far back kept events are needed for that; None: without bound."""
        found = [s.memory_us for s in self.rules() if s.is_replayable]
        if None in found:
            return None
        return max((us for us in found if us is not None), default=0)

    # -- time ------------------------------------------------------------------------------

    def due_before(self, us: int) -> Iterator[tuple[int, Subscription]]:
        """What time completes before `us`: when, and of which rule, in the order of time.

        At one time higher priorities first, then in the order of definition. Who iterates advances
        each rule, which may then be due again. Rules that are not due are not looked at: O(log
        rules) for each that is.
        """
        while taken := self._due.take(us):
            due_us, found = taken
            for subscription in sorted(found, key=self._order):
                if self._catalog.has(subscription) and self._follows(subscription):
                    yield due_us, subscription

    def _order(self, subscription: Subscription) -> tuple[tuple[bool, int], Any]:
        entry = self._catalog.entry(subscription.rule.name)
        priority = (subscription.rule if entry is None else entry.rule).priority
        return priority_rank(priority), self._catalog.place(subscription)

    def is_due(self, us: int) -> bool:
        """Whether time may complete something before `us`."""
        first_us = self._due.first_us()
        return first_us is not None and first_us < us

    def reached(self, us: int) -> None:
        """A part goes up to `us`: forget what has expired, of the states that it writes.

        If the part does not commit, these are read again. What the other detectors keep is not,
        so they forget when it has: see `committed`.
        """
        _trim(self._whole(), us)

    # -- states ----------------------------------------------------------------------------

    def changed_states(self, t: Transaction) -> dict[str, tuple[str, dict[str, Any]]]:
        """States to be written with the part `t`: rule to (event, state); see `write`.

        O(what the rules that were fed keep).
        """
        found = {}
        for subscription in self._locked(t):
            name = subscription.rule.name
            try:
                state = (subscription.event, subscription.state())
            except BadEvent:  # it holds a signal with the name of an event of the stream
                self._counters.add("partials_not_durable")
                continue
            if self._written.get(name) != state:
                found[name] = state
        return found

    def write(self, connection: Any, states: dict[str, tuple[str, dict[str, Any]]]) -> None:
        """Write states with a part."""
        if states:
            self._rows.write_of_stream(connection, self._stream.name, states)

    def committed(
        self, states: dict[str, tuple[str, dict[str, Any]]], reached_us: int | None
    ) -> None:
        """The part that was to write these has committed; no event before a time comes any more."""
        self._written |= states
        for subscription in self._whole():
            subscription.written()
        if reached_us is not None:
            _trim([s for s in self.rules() if s.is_replayable], reached_us)

    def take_back(self, t: Transaction) -> None:
        """Go back to the states that are committed: what an earlier try has fed is nothing.

        They are those of the last part, or of a signal that was raised beside the stream since.
        """
        changed = self._locked(t)
        if changed:
            self._restore(changed)

    def begin(self, t: Transaction) -> None:
        """Read the states of the last part, when the stream goes on here.

        A rule may have been there before its stream was declared, and followed the clock.
        """
        whole = self._whole()
        for subscription in whole:
            t.lock_detector(subscription.rule.name)
        self._restore(whole)

    def restore(self, *, renew: bool) -> None:
        """Read the states of the last part, after something has failed.

        Parameters
        ----------
        renew : bool
            Empty the detectors that are shown the kept events again, too.
        """
        if renew:
            for subscription in self.rules():
                if subscription.is_replayable:
                    subscription.restore(None)
        self._restore(self._whole())

    # -- inside ----------------------------------------------------------------------------

    def _whole(self) -> list[Subscription]:
        """Rules whose states are written."""
        return [s for s in self.rules() if not s.is_replayable]

    def _locked(self, t: Transaction) -> list[Subscription]:
        """Rules whose states may have changed, their detectors locked by the part `t`.

        So that no signal beside the stream has fed one and not committed yet.
        """
        changed = [s for s in self._whole() if s.is_changed]
        for subscription in changed:
            t.lock_detector(subscription.rule.name)
        return changed

    def _follows(self, subscription: Subscription) -> bool:
        return self._lines.stream_of(subscription) == self._stream.name

    def _restore(self, subscriptions: list[Subscription]) -> None:
        self._written = self._rows.of_stream(self._stream.name) if subscriptions else {}
        for subscription in subscriptions:
            event, state = self._written.get(subscription.rule.name, ("", None))
            subscription.restore(state if event == subscription.event else None)
            self._lines.moved(subscription)


def _trim(subscriptions: Iterable[Subscription], us: int) -> None:
    for subscription in subscriptions:
        if subscription.partials:
            subscription.trim(us)
