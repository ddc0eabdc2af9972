"""Detached rules: recorded at their event, run as top-level transactions, exactly once."""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import asdict
from typing import Any

from activedb.engine._letters import Letter
from activedb.engine._triggering import Triggered, Triggering
from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    Deadlock,
    LockTimeout,
    RuleFailed,
    SerializationConflict,
)
from activedb.events import decode, encode
from activedb.rules import Catalog
from activedb.store import Journal
from activedb.transactions import Forest, Run, Transaction

__all__ = ["STREAM_RUN", "Detached"]

_LOG = logging.getLogger(__name__)
STREAM_RUN = "stream/"
"""Names of runs that are replayed after a crash start with this."""

_NAME_MAX = 380  # of 400 characters in the table


class Detached:
    """Starts detached rules and keeps count of those that have not ended.

    A firing is recorded before it starts. Its transaction marks it done in the same commit as
    its effects, so it takes effect once, however often it is started: by its event, by a replay
    of the event's batch (which gives the firing the same name), or by `recover`.
    """

    def __init__(self, journal: Journal, catalog: Catalog):
        self.journal = journal
        self._catalog = catalog
        self.forest: Forest
        self.triggering: Triggering
        self._idle = threading.Condition()
        self._running: set[str] = set()

    def fire(self, t: Transaction, items: list[Triggered], event: int) -> None:
        """Record and start the detached rules that the `event`-th event of `t` triggered."""
        run = t.hierarchy.run
        firings: dict[str, Triggered] = {}
        for number, item in enumerate(items):
            name = _name(run.name, f"{t.path}#{event}.{number}.{item.rule.name}")
            if name not in run.fired:
                run.fired.add(name)
                firings[name] = item
        if not firings:
            return
        rows = [
            {
                "firing": name,
                "run": run.name,
                "rule": item.rule.name,
                "occurrence": encode(item.occurrence),
            }
            for name, item in firings.items()
        ]
        # A stream's batch that is lost with its firings is replayed and records them again; one
        # that is durable has made them durable too, because the log is written in order.
        replayed = run.name.startswith(STREAM_RUN)
        for name in sorted(self.journal.record(rows, lazily=replayed)):
            self._start(name, firings[name], replayed=replayed)

    def recover(self) -> int:
        """Start the firings that an earlier process recorded and did not finish.

        Returns
        -------
        int
            How many were started. Firings of rules that are not defined here stay recorded.
        """
        started = 0
        for row in self.journal.pending():
            rule = self._catalog.rule(row["rule"])
            with self._idle:
                known = row["firing"] in self._running
            if rule is None or known:
                continue
            item = Triggered(rule, decode(row["occurrence"]))
            self._start(row["firing"], item, replayed=row["run"].startswith(STREAM_RUN))
            started += 1
        return started

    def join(self) -> None:
        """Wait until every detached rule that was started has ended."""
        with self._idle:
            self._idle.wait_for(lambda: not self._running)

    def forget_done(self, run_prefix: str) -> None:
        """Delete the done firings of runs that will not be replayed."""
        self.journal.prune(run_prefix)

    def _start(self, firing: str, item: Triggered, *, replayed: bool) -> None:
        with self._idle:
            self._running.add(firing)
        try:
            self.forest.pool.submit(lambda: self._run(firing, item, replayed=replayed))
        except ActiveDBError:
            self._ended(firing)
            raise

    def _ended(self, firing: str) -> None:
        with self._idle:
            self._running.discard(firing)
            self._idle.notify_all()

    def _run(self, firing: str, item: Triggered, *, replayed: bool) -> None:
        def mark_done(connection: Any) -> None:
            if not self.journal.finish(connection, firing, keep=replayed):
                raise _DoneElsewhere(firing)

        def body(t: Transaction) -> None:
            t.rule = item.rule.name
            t.hierarchy.durable.append(mark_done)
            self.triggering.run_rule(t, item)

        try:
            self.forest.run(body, Run(name=firing, lazily=replayed))
        except _DoneElsewhere:
            _LOG.info("another process ran %s", firing)
        except _TRY_LATER:
            # It stays recorded; recover() starts it again.
            _LOG.warning("rule %s is left pending", item.rule.name, exc_info=True)
        except Exception as error:
            self._give_up(firing, item, error, replayed=replayed)
        finally:
            self._ended(firing)

    def _give_up(self, firing: str, item: Triggered, error: Exception, *, replayed: bool) -> None:
        """Put the firing of a rule that raised into the dead-letter table."""
        rule = item.rule.name
        failed = RuleFailed(f"rule {rule} failed: {error}", rule=rule)
        failed.__cause__ = error
        letter = Letter.of_rule(firing, item.occurrence, failed)
        self.triggering.counters.add("rules_failed")
        try:
            self.journal.bury(firing, asdict(letter), keep=replayed)
        except ActiveDBError:
            _LOG.warning("rule %s is left pending", rule, exc_info=True)


class _DoneElsewhere(ActiveDBError):
    """The firing was finished by another process; this try has to abort."""


_TRY_LATER = (ConnectionLost, Deadlock, LockTimeout, SerializationConflict)


def _name(run: str, place: str) -> str:
    """Name of a firing: readable where it fits, the same for every replay."""
    if len(place) <= _NAME_MAX:
        return place
    return f"{run[:100]}:{hashlib.blake2b(place.encode(), digest_size=20).hexdigest()}"
