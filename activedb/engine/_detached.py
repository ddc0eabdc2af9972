"""Rules in top-level transactions of their own: recorded, and run exactly once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from activedb.engine._letters import Letter
from activedb.engine._names import shortened
from activedb.engine._triggered import Firing, Triggered
from activedb.engine._triggering import Triggering
from activedb.errors import (
    ActiveDBError,
    BadEvent,
    ConnectionLost,
    Deadlock,
    LockTimeout,
    RuleFailed,
    SerializationConflict,
    TransactionStateError,
)
from activedb.events import decode, encode
from activedb.rules import Catalog
from activedb.store import Journal
from activedb.transactions import Forest, Run, Transaction, current_transaction

__all__ = ["STREAM_RUN", "Detached"]

_LOG = logging.getLogger(__name__)
STREAM_RUN = "stream/"
"""Names of runs that are replayed after a crash start with this."""

_NAME_MAX = 400  # characters of the column


class Detached:
    """Starts detached rules and keeps count of those that have not ended.

    A firing's transaction marks it done in the same commit as its effects, so it takes effect
    once, however often it is started. What makes it start again after a crash depends on the
    run that triggered it:

    - A *stream's batch* is done again and gives the firing the same name; from the batch's
      commit on, a row written with that commit stands for the firing.
    - Otherwise a row is recorded at the event, before the firing starts. A *detached rule* may
      be done again too; as it gives its firings the same names, it does not start them twice.
    """

    def __init__(self, journal: Journal, catalog: Catalog):
        self.journal = journal
        self.forest: Forest
        self.triggering: Triggering
        self._catalog = catalog
        self._idle = threading.Condition()
        self._running: set[str] = set()
        # Firings of batches: those that doing the batch again must not start, and those of
        # them whose outcome is not durable yet.
        self._known: set[str] = set()
        self._unfinished: dict[str, dict[str, Any]] = {}
        # Those unfinished ones that a row stands for, because their batch has committed.
        self._settled: set[str] = set()

    def fire(self, t: Transaction, items: list[Triggered], event: int) -> None:
        """Start the detached rules that the `event`-th event of `t` triggered."""
        run = t.hierarchy.run
        due: dict[str, Triggered] = {}
        for name, item in _named(t, items, event):
            if name not in (self._known if run.is_batch else run.fired):
                due[name] = item
            if run.is_batch:
                run.fired.add(name)
        recorded = {}
        for name, item in due.items():
            try:
                recorded[name] = _row(name, run, item)
            except RuleFailed as failed:
                self.triggering.counters.add("rules_failed")
                letter = Letter.of_rule(name, item.occurrence, failed)
                self.journal.keep_letter(asdict(letter))
        if run.is_batch:
            with self._idle:
                self._known |= due.keys()
                self._unfinished |= recorded
        elif recorded:
            new = self.journal.record(recorded.values())
            run.fired |= due.keys()
            recorded = {name: row for name, row in recorded.items() if name in new}
        for name, row in recorded.items():
            self._start(row, due[name])

    # -- sequential rules ------------------------------------------------------------------

    def prepare(
        self, t: Transaction, items: list[Triggered], event: int
    ) -> tuple[list[Firing], list[Letter]]:
        """Firings to start when `t`, and all its superiors, have committed.

        Returns with them a letter for each whose occurrence cannot be kept.
        """
        firings, letters = [], []
        for name, item in _named(t, items, event):
            try:
                row = _row(name, t.hierarchy.run, item)
            except RuleFailed as failed:
                letters.append(Letter.of_rule(name, item.occurrence, failed))
            else:
                # What has committed is not done again, and has not to find this one done.
                firings.append(Firing(row | {"keep": False}, item))
        return firings, letters

    def record(self, t: Transaction, firings: list[Firing]) -> None:
        """Record firings in the commit of the top-level transaction `t`."""
        rows = [firing.row for firing in firings]

        def write(connection: Any) -> None:
            self.journal.record_on(connection, rows)

        t.hierarchy.durable.append(write)

    def start(self, firings: list[Firing]) -> None:
        """Start firings that have been recorded; those that cannot be stay pending."""
        for firing in firings:
            try:
                self._start(firing.row, firing.triggered)
            except ActiveDBError:
                _LOG.warning("rule %s is left pending", firing.triggered.rule.name, exc_info=True)

    # -- after a crash ---------------------------------------------------------------------

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
            self._start(dict(row), Triggered(rule, decode(row["occurrence"])))
            started += 1
        return started

    def join(self, running_max: int = 0) -> None:
        """Wait until every detached rule that was started has ended, or at most so many are left.

        Raises
        ------
        TransactionStateError
            In a detached rule, which would wait for itself, or in a stream's batch.
        """
        t = current_transaction()
        if t is not None and (t.hierarchy.run.is_detached or t.hierarchy.run.is_batch):
            raise TransactionStateError(
                f"{t.path} cannot wait for detached rules; wait outside rules of streams and "
                f"detached rules"
            )
        with self._idle:
            self._idle.wait_for(lambda: len(self._running) <= running_max)

    # -- streams ---------------------------------------------------------------------------

    def remember_done(self, run_prefix: str) -> None:
        """Read which firings of a stream are done although their batch has not committed."""
        self._known.update(self.journal.done(run_prefix))

    def settle(self, connection: Any, run: Run) -> None:
        """Within the commit of a batch: record its unfinished firings, forget the done ones."""
        with self._idle:
            rows = [self._unfinished[name] for name in run.fired if name in self._unfinished]
        self.journal.record_on(connection, rows)
        self.journal.forget_done(connection, sorted(run.fired))

    def committed(self, run: Run) -> None:
        """Take note that a batch has committed and will not be done again."""
        with self._idle:
            self._known -= run.fired
            self._settled |= run.fired & self._unfinished.keys()

    def forget_done(self, run_prefix: str) -> None:
        """Delete the done firings of a stream's batches, all of which have committed."""
        self.journal.prune(run_prefix)

    # -- running ---------------------------------------------------------------------------

    def _start(self, row: dict[str, Any], item: Triggered) -> None:
        with self._idle:
            self._running.add(row["firing"])
        try:
            self.forest.pool.submit(lambda: self._run(row, item))
        except ActiveDBError:
            self._ended(row["firing"])
            raise

    def _ended(self, firing: str) -> None:
        with self._idle:
            self._running.discard(firing)
            self._idle.notify_all()

    def _run(self, row: dict[str, Any], item: Triggered) -> None:
        firing = row["firing"]

        def mark_done(connection: Any) -> None:
            if not self.journal.finish(connection, row, keep=self._must_stay(row)):
                raise _DoneElsewhere(firing)

        def body(t: Transaction) -> None:
            t.rule = item.rule.name
            t.hierarchy.durable.append(mark_done)
            self.triggering.runner.run_rule(t, item)

        try:
            # A batch that is lost with its firings starts them again, and one that is durable
            # has made them durable too, as the server's log is written in order: no need to wait.
            lazily = row["run"].startswith(STREAM_RUN)
            self.forest.run(body, Run(name=firing, is_detached=True, lazily=lazily))
        except _TRY_LATER:
            # It stays recorded, or unfinished until its batch records it.
            _LOG.warning("rule %s is left pending", item.rule.name, exc_info=True)
        except _DoneElsewhere:
            _LOG.info("another process ran %s", firing)
            self._is_durable(firing)
        except BaseException as error:
            self._give_up(row, item, error)
        else:
            self._is_durable(firing)
        finally:
            self._ended(firing)

    def _is_durable(self, firing: str) -> None:
        """The outcome of a firing is in the database: its batch need not record it any more."""
        with self._idle:
            self._unfinished.pop(firing, None)
            self._settled.discard(firing)

    def _must_stay(self, row: dict[str, Any]) -> bool:
        """Whether what triggered a firing may be done again, and has to find it done."""
        if not row["keep"]:
            return False
        with self._idle:
            if "#" in row["run"]:  # a detached rule
                return row["run"] in self._running or row["run"] in self._unfinished
            return row["firing"] not in self._settled

    def _give_up(self, row: dict[str, Any], item: Triggered, error: BaseException) -> None:
        """Put the firing of a rule that raised into the dead-letter table."""
        rule = item.rule.name
        failed = RuleFailed(f"rule {rule} failed: {error}", rule=rule)
        failed.__cause__ = error
        letter = Letter.of_rule(row["firing"], item.occurrence, failed)
        self.triggering.counters.add("rules_failed")
        try:
            self.journal.bury(row, asdict(letter), keep=self._must_stay(row))
            self._is_durable(row["firing"])
        except ActiveDBError:
            _LOG.warning("rule %s is left pending", rule, exc_info=True)


def _named(t: Transaction, items: list[Triggered], event: int) -> Iterator[tuple[str, Triggered]]:
    """What the `event`-th event of `t` triggered, with the names of the firings."""
    for number, item in enumerate(items):
        yield shortened(f"{t.path}#{event}.{number}.{item.rule.name}", _NAME_MAX), item


def _row(name: str, run: Run, item: Triggered) -> dict[str, Any]:
    """A firing as it is recorded; raises `RuleFailed` if its occurrence cannot be kept."""
    try:
        occurrence = encode(item.occurrence)
    except BadEvent as error:
        rule = item.rule.name
        raise RuleFailed(f"rule {rule} failed: {error}", rule=rule) from error
    return {
        "firing": name,
        "run": run.name,
        "rule": item.rule.name,
        "occurrence": occurrence,
        "keep": run.is_batch or run.is_detached,
        "done": False,
    }


class _DoneElsewhere(ActiveDBError):
    """The firing was finished by another process; this try has to abort."""


_TRY_LATER = (ConnectionLost, Deadlock, LockTimeout, SerializationConflict)
