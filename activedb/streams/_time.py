"""Time of a stream: events that time completes, and the states of the detectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from activedb.errors import BadEvent
from activedb.firing import TimeLines
from activedb.metrics import NamedCounters
from activedb.rules import Catalog, Subscription
from activedb.store.journals import DetectorRows
from activedb.streams._declaration import StreamDeclaration
from activedb.transactions import TransactionNode, lock_detector
from coupling import priority_rank

__all__ = ["StreamTime"]


class StreamTime:
    """Rules that follow a stream's time.

    The state of such a rule's detector is either derived from the retained events, and rebuilt from
    them after a restart, or it is written with each part that has changed it.

    Not thread-safe: used only by the thread that feeds the stream.

    Attributes
    ----------
    elsewhere : frozenset of str
        Rules that are matched elsewhere, for which no state is kept here.
    due : DueTimes
        When time alone will complete a match, or decide a choice, of a rule.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        *,
        catalog: Catalog,
        lines: TimeLines,
        rows: DetectorRows,
        counters: NamedCounters,
    ):
        self.elsewhere: frozenset[str] = frozenset()
        self._stream = stream
        self._counters = counters
        self._catalog = catalog
        self._lines = lines
        self._rows = rows
        self.due = lines.due_in(stream.name)
        self._keys = [*(("event", name) for name in stream.types), ("late", stream.name)]
        self._rules: list[Subscription] = []
        self._written_rules: list[Subscription] = []  # those of them whose states are written
        self._versions: tuple[int, int, frozenset[str]] | None = None  # for which these hold
        # States last written, so that unchanged ones are not written again.
        self._written: dict[str, tuple[str, dict[str, Any]]] = {}
        self._reached_us: int | None = None  # with the last part committed here

    def rules(self) -> list[Subscription]:
        """Return the committed rules that follow the stream's time; O(rules) after a change."""
        versions = (self._catalog.version, len(self._lines.streams), self.elsewhere)
        if versions != self._versions:
            found = self._catalog.listening_to_any(self._keys)
            self._rules = [
                s
                for s in found
                if s.is_stateful and self._follows(s) and s.rule.name not in self.elsewhere
            ]
            self._written_rules = [s for s in self._rules if not s.is_replayable]
            self._versions = versions
        return self._rules

    def is_replayed(self, subscription: Subscription) -> bool:
        """Return whether a rule is fed the retained events again after a restart."""
        return subscription.is_replayable and self._follows(subscription)

    def memory_us(self) -> int | None:
        """Return how far back retained events are needed for the replay; None: unbounded.

        REQUIRES: `changed_states` has just been called.
        """
        longest_us = 0
        for subscription in self._rules:
            if subscription.is_replayable:
                memory_us = subscription.memory_us
                if memory_us is None:
                    return None
                longest_us = max(longest_us, memory_us)
        return longest_us

    # -- time ------------------------------------------------------------------------------

    def due_before(self, t: TransactionNode, us: int) -> Iterator[tuple[int, Subscription]]:
        """Yield the time and the rule for each completion by time before `us`, in time order.

        The rules are those that `t` sees. At equal times, higher priorities come first, then the
        order of definition. The caller advances each rule during iteration; the rule may then be
        due again. Rules that are not due cost nothing: O(log rules) for each due one.
        """
        hidden = []  # rules that `t` has disabled or changed, which its abort would bring back
        try:
            while taken := self.due.take(us):
                due_us, found = taken
                for subscription in sorted(found, key=partial(self._order, t)):
                    present = self._catalog.present(subscription, t)
                    if present is None:
                        hidden.append(subscription)
                    elif self._follows(present):
                        yield due_us, present
        finally:
            for subscription in hidden:
                if self._catalog.present(subscription) is not None:
                    self._lines.moved(subscription)

    def _order(
        self, t: TransactionNode, subscription: Subscription
    ) -> tuple[tuple[bool, int], Any]:
        present = self._catalog.present(subscription, t) or subscription
        return priority_rank(present.rule.priority), self._catalog.place(subscription)

    def is_due(self, us: int) -> bool:
        """Return whether time may complete a match before `us`."""
        first_us = self.due.first_us()
        return first_us is not None and first_us < us

    # -- states ----------------------------------------------------------------------------

    def changed_states(
        self, t: TransactionNode, reached_us: int | None
    ) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return the states to be written with the part `t`: rule to (event, state); see `write`.

        Matches that have expired at the time reached are forgotten first. If the part does not
        commit, these states are loaded again. The other detectors' states are not, so those forget
        after the commit: see `committed`.

        Complexity: O(state of the rules that were fed).
        """
        changed = self._locked(t)
        if reached_us is not None:
            _trim(changed, reached_us)
        found = {}
        for subscription in changed:
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
        self._rows.write_of_stream(connection, self._stream.name, states)

    def committed(
        self, states: dict[str, tuple[str, dict[str, Any]]], reached_us: int | None
    ) -> None:
        """Record that the part that writes these states has committed, and the time reached."""
        self._written |= states
        rules = self.rules()
        for subscription in self._written_rules:
            subscription.written()
        if reached_us is not None:
            self._reached_us = reached_us
            _trim(rules, reached_us)

    def take_back(self, t: TransactionNode) -> None:
        """Return to the committed states; discard the feeds of an earlier attempt.

        These states are those of the last part, or of a signal raised outside the stream since.
        """
        changed = self._locked(t)
        if changed:
            self._restore(changed)

    def begin(self, t: TransactionNode) -> None:
        """Load the states of the last part, when the stream resumes in this process.

        A rule may have been defined before its stream was declared, and followed the clock.
        """
        self.rules()
        for subscription in self._written_rules:
            lock_detector(t, subscription.rule.name)
        self._restore(self._written_rules)

    def restore(self, *, renew: bool) -> None:
        """Load the states of the last part, after a failure.

        Parameters
        ----------
        renew : bool
            Also reset the detectors that are fed the retained events again.
        """
        for subscription in self.rules():
            if renew and subscription.is_replayable:
                subscription.restore(None)
        self._restore(self._written_rules)

    # -- internals -------------------------------------------------------------------------

    def _locked(self, t: TransactionNode) -> list[Subscription]:
        """Return the rules whose states may have changed, with their detectors locked by part `t`.

        With the locks held, no signal outside the stream has an uncommitted change to them.
        """
        self.rules()
        changed = []
        for subscription in self._written_rules:
            if subscription.is_changed:
                lock_detector(t, subscription.rule.name)
                changed.append(subscription)
        return changed

    def _follows(self, subscription: Subscription) -> bool:
        return self._lines.stream_of(subscription) == self._stream.name

    def _restore(self, subscriptions: list[Subscription]) -> None:
        self._written = self._rows.of_stream(self._stream.name) if subscriptions else {}
        for subscription in subscriptions:
            event, state = self._written.get(subscription.rule.name, ("", None))
            subscription.restore(state if event == subscription.event else None)
            self._lines.moved(subscription)
        if self._reached_us is not None:  # states are written only by parts that change them
            _trim(subscriptions, self._reached_us)


def _trim(subscriptions: Iterable[Subscription], us: int) -> None:
    for subscription in subscriptions:
        if subscription.partials:
            subscription.trim(us)
