"""Time outside of streams: matches that the clock completes, and expiry of partial matches."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from activedb.clock import Clock, in_microseconds, moment_of
from activedb.errors import ActiveDBError, BadEvent
from activedb.events import Occurrence
from activedb.firing import (
    SYSTEMIC,
    DueTimes,
    Letter,
    Triggered,
    Turn,
    is_systemic,
    moment_in,
)
from activedb.rules import Catalog, Rule, Subscription
from activedb.store.journals import Repeated
from activedb.transactions import Forest, Run, TransactionNode, lock_detector

if TYPE_CHECKING:
    from activedb.firing import Launcher, Refused, TimeLines, Triggering

__all__ = ["Timekeeper"]

_LOG = logging.getLogger(__name__)
_LAST_US = in_microseconds(datetime.max.replace(tzinfo=UTC))
_PREFIX = Repeated.CLOCK.prefix
_AGAIN_AFTER_US = 1_000_000  # retry after a conflict with other transactions


class Timekeeper:
    """Timer thread for rules that follow the clock.

    A match that time completes triggers its rule in a top-level transaction, whose commit also
    writes the detector's new state. The rule therefore fires once, also after a crash. Several
    matches of one rule run one after another, in the order of their times. Different rules run
    beside each other on the pool, except for rules due at one moment: higher priorities run first.
    Therefore, while a new rule with a priority has not been told the time yet, no other rule is
    started: both may be due at the same moment.

    The thread starts with the first rule that needs it.

    Latches: ``_starting``, held while due work is started; then ``_latch``, under which no other
    latch is taken.
    """

    def __init__(
        self,
        forest: Forest,
        clock: Clock,
        catalog: Catalog,
        lines: TimeLines,
        triggering: Triggering,
        launcher: Launcher,
    ):
        self._forest = forest
        self._triggering = triggering
        self._clock = clock
        self._catalog = catalog
        self._lines = lines
        self._launcher = launcher
        self._due = DueTimes()
        # New rules by due time; and new rules with a priority that are being told the time.
        self._untold = DueTimes()
        self._telling: set[object] = set()
        # Expiry times of partial matches, for rules that no time completes.
        self._expiring = DueTimes()
        # Clock and newest event at the last look at each expiring rule.
        self._looked: dict[object, tuple[int, int]] = {}
        # By stream, when and how to look for silent producers.
        self._looks: dict[str, tuple[int, Callable[[], None]]] = {}
        self._starting = threading.RLock()  # reentrant, as work runs here if no thread is left
        self._latch = threading.Lock()
        self._busy: set[object] = set()
        # Moments that came while another thread was working on the rule.
        self._again: dict[object, list[int]] = {}
        self._woken = threading.Event()
        # Sources of matches that are known here; and the run of each rule's last match, which is
        # repeated if it was given up.
        self._sources: set[str] = set()
        self._runs: WeakKeyDictionary[object, Run] = WeakKeyDictionary()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def applied(self, subscriptions: list[Subscription]) -> None:
        """Schedule defined or changed rules that follow the clock to be told the time."""
        for subscription in subscriptions:
            if subscription.is_timed and self._lines.stream_of(subscription) is None:
                self._due.set(subscription, None)
                self._set(self._untold, subscription, self._now_us())

    def moved(self, subscription: Subscription) -> None:
        """Reschedule a rule that follows the clock, after it was fed."""
        if subscription.is_timed:
            with self._latch:
                if subscription.detection in self._busy:
                    return  # its thread reschedules it when done
            us = subscription.due_us
            if us is not None:
                self._set(self._due, subscription, us)
        elif subscription.memory_us:
            with self._latch:
                if subscription.detection in self._looked:
                    return
                now_us = self._now_us()
                self._looked[subscription.detection] = (now_us, subscription.newest_us)
            self._set(self._expiring, subscription, now_us + subscription.memory_us + 1)

    def watch(self, stream: str, us: int | None, look: Callable[[], None]) -> None:
        """Schedule one call of `look`, on the pool, at this time; None cancels it."""
        with self._latch:
            if us is None:
                self._looks.pop(stream, None)
                return
            self._looks[stream] = (us, look)
        self._wake()

    def close(self) -> None:
        """End the thread; rules due from now on wait for the next start."""
        with self._latch:
            self._is_closed = True
            thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def settle(self) -> None:
        """Start the rules that are due now; the launcher's `join` waits for their end."""
        if self._thread is not None:
            self._start_due()

    # -- the thread ------------------------------------------------------------------------

    def _set(self, times: DueTimes, subscription: Subscription, us: int) -> None:
        if times.set(subscription, us):
            self._wake()

    def _wake(self) -> None:
        """Wake the thread, so that it recomputes its next due time."""
        with self._latch:
            if self._is_closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._wait, name="activedb-timekeeper", daemon=True
                )
                self._thread.start()
        self._woken.set()

    def _wait(self) -> None:
        while True:
            self._woken.clear()
            if self._is_closed:
                return
            try:
                self._start_due()
                self._clock.wait_until(self._next_moment(), self._woken)
            except Exception:
                _LOG.exception("cannot start what is due by the clock; this is tried again")
                self._woken.wait(_AGAIN_AFTER_US / 1_000_000)

    def _next_moment(self) -> datetime | None:
        """Return the earliest time at which something is due, or None."""
        waited_for = [self._untold, self._expiring]
        with self._latch:
            found = [us for us, _ in self._looks.values()]
            if not self._telling:
                waited_for.append(self._due)
        firsts = [times.first_us() for times in waited_for]
        found += [us for us in firsts if us is not None]
        return moment_of(min(*found, _LAST_US)) if found else None

    def _start_due(self) -> None:
        """Start the work that is due now."""
        with self._starting:
            now_us = self._now_us()
            for stream, look in self._due_looks(now_us):
                self._launcher.run_in_background(f"silence in stream {stream}", look)
            while taken := self._expiring.take(now_us + 1):
                for subscription in taken[1]:
                    try:
                        self._expire(subscription, now_us)
                    except Exception:
                        _LOG.exception("rule %s cannot forget what expires", subscription.rule.name)
                        self.moved(subscription)
            while taken := self._untold.take(now_us + 1):
                first = [s.detection for s in taken[1] if self._turn(s, 0).priority is not None]
                with self._latch:
                    self._telling.update(first)
                self._start_all(*taken)
            while not self._telling and (taken := self._due.take(now_us + 1)):
                self._start_all(*taken)

    def _start_all(self, due_us: int, subscriptions: list[Subscription]) -> None:
        """Start the rules that are due at one moment, in the order of priorities."""
        for subscription in sorted(subscriptions, key=self._rank):
            try:
                if self._catalog.present(subscription) is None:
                    self._told(subscription)
                elif self._lines.stream_of(subscription) is not None:  # declared since
                    self._told(subscription)
                    self._lines.moved(subscription)
                else:
                    self._start(subscription, due_us)
            except Exception:
                _LOG.exception("rule %s cannot be told the time", subscription.rule.name)
                self._retry(subscription, due_us)
                self._told(subscription)

    def _retry(self, subscription: Subscription, due_us: int) -> None:
        """Schedule a rule that failed at `due_us` to be told the time again, in a second."""
        with suppress(Exception):  # a clock that cannot be read: the thread waits until it can
            due_us = self._now_us() + _AGAIN_AFTER_US
        self._set(self._due, subscription, due_us)

    def _told(self, subscription: Subscription) -> None:
        """Note that a new rule has been told the time, or never will be; others may start now."""
        with self._latch:
            if subscription.detection not in self._telling:
                return
            self._telling.discard(subscription.detection)
        self._wake()

    def _due_looks(self, now_us: int) -> list[tuple[str, Callable[[], None]]]:
        with self._latch:
            due = [(name, look) for name, (us, look) in self._looks.items() if us <= now_us]
            for name, _ in due:
                del self._looks[name]
        return due

    def _rank(self, subscription: Subscription) -> tuple[bool, int]:
        return self._turn(subscription, 0).rank

    def _turn(self, subscription: Subscription, us: int) -> Turn:
        """Return the turn of a rule among those due at a moment."""
        entry = self._catalog.entry(subscription.rule.name)
        rule = subscription.rule if entry is None else entry.rule
        return Turn(moment_in(None, us), rule.priority)

    def _start(self, subscription: Subscription, due_us: int) -> None:
        name, turn = f"rule {subscription.rule.name} at {due_us}", self._turn(subscription, due_us)
        self._launcher.turns.enter(name, turn)
        with self._latch:
            if subscription.detection in self._busy:
                self._again.setdefault(subscription.detection, []).append(due_us)
                return
            self._busy.add(subscription.detection)
        self._launcher.run_in_background(name, lambda: self._run(subscription, due_us), turn)

    def _run(self, subscription: Subscription, due_us: int) -> None:
        """Run all due matches of one rule up to a moment; called on the pool."""
        has_failed = True
        try:
            while not self._is_closed and self._catalog.present(subscription):
                if not self._do_next(subscription, due_us):
                    break
            has_failed = False
        except SYSTEMIC:
            _LOG.warning("due matches of rule %s wait", subscription.rule.name, exc_info=True)
        except Exception:
            _LOG.exception("rule %s cannot be told the time", subscription.rule.name)
        finally:
            with self._latch:
                self._busy.discard(subscription.detection)
                asked = self._again.pop(subscription.detection, [])
        for us in asked:
            self._start(subscription, us)
        if has_failed:
            self._retry(subscription, due_us)
        elif not asked:
            self._lines.moved(subscription)
        self._told(subscription)
        self._start_due()  # before this work ends, so that `join` waits for it

    # -- one match -------------------------------------------------------------------------

    def _do_next(self, subscription: Subscription, due_us: int) -> bool:
        """Let time complete the next match, and run its rule; return False if none is due.

        After a crash the match is repeated, under the same name.
        """
        self._begin_naming(subscription)
        name = f"{_PREFIX}{subscription.next_match}"

        def work(t: TransactionNode) -> bool:
            lock_detector(t, subscription.rule.name)
            if name != f"{_PREFIX}{subscription.next_match}":
                return True  # the state of another process was adopted meanwhile
            if self._lines.stream_of(subscription) is not None:  # declared since
                return False
            if not subscription.pending:
                try:
                    self._advance(t, subscription, due_us)
                except Exception as error:
                    if is_systemic(error, t):
                        raise
                    self._give_up(t, subscription, error)
            self._triggering.kept.write_state(t, subscription)
            if not subscription.pending:
                return False
            self._told(subscription)
            self._fire(t, subscription, subscription.pending[0], moment_in(None, due_us))
            # Before the commit, which writes the state without this match.
            self._triggering.feeding.take(t, subscription)
            return True

        run = self._runs.get(subscription.detection)
        if run is None or run.name != name:
            isolation = self._forest.settings.isolation
            run = Run(name=name, batch=Repeated.CLOCK, is_retried=True, isolation=isolation)
            self._runs[subscription.detection] = run
        source = f"{_PREFIX}{subscription.source}"
        return self._launcher.batch_firings.run_whole(self._forest, run, work, source=source)

    def _begin_naming(self, subscription: Subscription) -> None:
        """Name the source of a rule's matches, or find what an ended process did in its name."""
        source = subscription.source
        if not source:
            source = secrets.token_hex(8)
            subscription.begin_naming(source)
        elif source not in self._sources:
            self._launcher.batch_firings.remember_done(f"{_PREFIX}{source}/")
        self._sources.add(source)

    def _advance(self, t: TransactionNode, subscription: Subscription, last_us: int) -> None:
        """Advance the detector until a match is complete, at most to `last_us`.

        A clock event occurs only after the detector has first been told the time.
        """
        if subscription.is_inexact:
            self._will_restore(t, subscription)
        last_us = min(last_us, self._now_us())
        until_us = last_us
        while True:
            due_us = subscription.due_us
            until_us = until_us if due_us is None else min(due_us, last_us)
            refused = self._refused(t, until_us)
            found = self._triggering.feeding.advance(subscription, until_us + 1, t, refused)
            subscription.pending.extend(item.occurrence for item in found)
            if found or until_us == last_us:
                return
            until_us = last_us

    def _give_up(self, t: TransactionNode, subscription: Subscription, error: Exception) -> None:
        """Pass over a moment at which a predicate raises, and leave a dead letter.

        The detector would fail there again and again, so the failing matches are left out.
        """
        name = subscription.rule.name
        now_us = self._now_us()
        due_us = now_us if subscription.due_us is None else min(subscription.due_us, now_us)
        refused = self._refused(t, due_us)
        self._will_restore(t, subscription)
        self._keep_letter(t, f"time.{due_us}/{t.path}", name, due_us, error)
        found = self._triggering.feeding.pass_over(subscription, due_us + 1, t, refused)
        subscription.pending.extend(item.occurrence for item in found)

    def _will_restore(self, t: TransactionNode, subscription: Subscription) -> None:
        """Undo a step if `t` aborts, because its choices and letters are dropped with `t`.

        A step that has only completed matches stays: they are `pending`.
        """
        with suppress(BadEvent):  # a state that cannot be encoded cannot be restored
            self._triggering.feeding.will_restore(t, subscription)

    def _refused(self, t: TransactionNode, us: int) -> Refused:
        """Return a handler that writes a letter for each choice that time leaves open at `us`."""

        def refused(rule: Rule, error: Exception) -> bool:
            self._keep_letter(t, f"time.{us}.undecided/{t.path}", rule.name, us, error)
            return True

        return refused

    def _keep_letter(
        self, t: TransactionNode, identity: str, rule: str, us: int, error: Exception
    ) -> None:
        payload = {"rule": rule, "us": us}
        letter = Letter.of_event(f"rule {rule}", identity, payload, error)
        self._triggering.contexts.keep_letters(t, [letter])

    def _fire(
        self, t: TransactionNode, subscription: Subscription, o: Occurrence, moment: str
    ) -> None:
        """Trigger the rule as an event of `t` would; write a dead letter if it fails."""
        entry = self._catalog.entry(subscription.rule.name)
        if entry is None or not entry.enabled:
            return
        item = Triggered(entry.rule, o, moment=moment)
        identity = f"{entry.name}/{o.us}/{t.path}"
        self._triggering.trigger_alone(t, item, f"time.{o.us}", o.us, identity)

    # -- expiry ----------------------------------------------------------------------------

    def _expire(self, subscription: Subscription, now_us: int) -> None:
        """Forget partial matches that have expired, although no event has come.

        Event time advances from the newest event as the clock does, because signals may have
        timestamps far in the past.
        """
        with self._latch:
            looked_us, newest_us = self._looked.pop(subscription.detection)
        is_gone = self._catalog.present(subscription) is None
        if is_gone or self._lines.stream_of(subscription) is not None:
            return
        before_us = subscription.newest_us
        if before_us == newest_us:  # no event since the last look
            before_us += now_us - looked_us
        if not subscription.trim(before_us):
            with self._latch:
                self._looked.setdefault(subscription.detection, (looked_us, newest_us))
            self._set(self._expiring, subscription, now_us + _AGAIN_AFTER_US)
            return
        self._forget(subscription, before_us - (subscription.memory_us or 0))
        if subscription.partials:
            self.moved(subscription)

    def _forget(self, subscription: Subscription, before_us: int) -> None:
        def forget() -> None:
            try:
                self._triggering.kept.trimmed(subscription, before_us)
            except ActiveDBError:
                _LOG.info("expired partial matches are left to the next commit", exc_info=True)

        self._launcher.run_in_background(f"expiry of rule {subscription.rule.name}", forget)

    def _now_us(self) -> int:
        return in_microseconds(self._clock.now())
