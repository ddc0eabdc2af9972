"""Rules in top-level transactions of their own: recorded, and run exactly once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary

from activedb.engine._firings import (
    coupling_of,
    is_lazy,
    is_of_firing,
    named,
    row_of,
    run_of,
)
from activedb.engine._letters import Letter
from activedb.engine._of_batches import FiringsOfBatches
from activedb.engine._quarantine import failure_of
from activedb.engine._triggered import SYSTEMIC, Firing, Triggered, triggered_of
from activedb.engine._triggering import Triggering
from activedb.errors import (
    ActiveDBError,
    BadEvent,
    RuleFailed,
    SelfDeadlock,
    TransactionStateError,
)
from activedb.rules import Catalog, Rule
from activedb.store import Journal
from activedb.transactions import Forest, Transaction, current_transaction, sleeping_for
from coupling import Coupling

__all__ = ["Launcher"]

_LOG = logging.getLogger(__name__)
_CLAIMED_MAX = 1_000  # at a time


class Launcher:
    """Starts the rules that run in top-level transactions, and counts those that have not ended.

    A firing's transaction marks it done in the same commit as its effects, so it takes effect
    once, however often it is started. What makes it start again after a crash depends on the
    run that triggered it:

    - A *stream's batch* is done again and gives the firing the same name; from the batch's
      commit on, a row written with that commit stands for the firing.
    - Otherwise a row is recorded at the event, before the firing starts. A *detached rule* may
      be done again too; as it gives its firings the same names, it does not start them twice.

    What this process records it holds under its lease, and starts; if it is queued nobody holds it,
    and whichever worker is first takes it over.

    Attributes
    ----------
    of_batches : FiringsOfBatches
    on_ended : callable ``(running)``
        Called when one has ended, with the number of those that are left.
    """

    def __init__(self, journal: Journal, catalog: Catalog):
        self.journal = journal
        self.of_batches = FiringsOfBatches(journal)
        self.forest: Forest
        self.triggering: Triggering
        self._catalog = catalog
        self._idle = threading.Condition()
        self._running: set[str] = set()
        self._at_work: dict[str, Transaction] = {}  # in whose present try each of them runs
        # Started, and given up for now: recorded, and to be tried again.
        self._left: dict[str, Firing] = {}
        # Queued ones, which a worker of this very process must not begin before the transaction
        # that records them has ended.
        self._committing: WeakKeyDictionary[Transaction, set[str]] = WeakKeyDictionary()
        # Rules of which somebody has recorded firings, and which are not defined here.
        self._strange: set[str] = set()
        self.on_ended: Callable[[int], object] = lambda running: None
        self._early: set[str] = set()  # causally dependent ones, before the triggering commit

    def fire(self, t: Transaction, items: list[Triggered], event: int) -> None:
        """Start the detached rules that the `event`-th event of `t` triggered."""
        run = t.hierarchy.run
        due: dict[str, Triggered] = {}
        for name, item in named(t, items, event):
            if not (self.of_batches.is_known(name) if run.is_batch else name in run.fired):
                due[name] = item
            if run.is_batch:
                run.fired.add(name)
        # On memory:// nobody else can write before a caller's transaction has ended.
        is_late = not t.hierarchy.lends and not t.hierarchy.session.is_shared
        recorded = {}
        for name, item in due.items():
            try:
                recorded[name] = row_of(name, t, item)
            except RuleFailed as failed:
                self.triggering.counters.add("rules_failed")
                letter = asdict(Letter.of_rule(name, item.occurrence, failed))
                if is_late:
                    self.aside(name, lambda letter=letter: self.journal.keep_letter(letter))  # type: ignore[misc]
                else:
                    self.journal.keep_letter(letter)
        if run.is_batch:
            self.of_batches.add(run, due, recorded)
        elif recorded:
            new = recorded.keys() if is_late else self.journal.record(recorded.values())
            run.fired |= due.keys()
            recorded = {name: row for name, row in recorded.items() if name in new}
        for name in recorded:
            t.spawns(name, coupling_of(due[name], Coupling.DETACHED))
        if is_late:
            self.start_late([Firing(row, due[name]) for name, row in recorded.items()])
        elif not self.journal.is_queued:
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
        for name, item in named(t, items, event):
            try:
                row = row_of(name, t, item)
            except RuleFailed as failed:
                letters.append(Letter.of_rule(name, item.occurrence, failed))
            else:
                # What has committed is not done again, and has not to find this one done.
                firings.append(Firing(row | {"keep": False}, item))
                t.spawns(name, coupling_of(item, Coupling.SEQUENTIAL))
        return firings, letters

    def record(self, t: Transaction, firings: list[Firing]) -> None:
        """Record firings in the commit of the top-level transaction `t`."""
        here = [firing.row for firing in firings if self._runs(firing)]
        anywhere = [firing.row for firing in firings if not self._runs(firing)]
        if anywhere:
            with self._idle:
                self._committing[t] = {row["firing"] for row in anywhere}

        def write(connection: Any) -> None:
            self.journal.record_on(connection, here, held=True)
            self.journal.record_on(connection, anywhere, held=False)

        t.hierarchy.durable.append(write)

    def start(self, firings: list[Firing]) -> None:
        """Start firings that are recorded, if they run here; those that cannot be stay pending."""
        for firing in firings:
            name = firing.row["firing"]
            with self._idle:
                for names in self._committing.values():
                    names.discard(name)
                is_ours = self._left.pop(name, None) is not None
            if not is_ours and not self._runs(firing):
                continue
            try:
                self._start(firing.row, firing.triggered)
            except ActiveDBError:
                self._leave(firing.row, firing.triggered)
                _LOG.warning("rule %s is left pending", firing.triggered.rule.name, exc_info=True)

    def start_late(self, firings: list[Firing]) -> None:
        """Record firings, when that can be done, and then start them.

        For those of a caller's transaction on ``memory://``, in which nobody else can write before
        it has ended.
        """
        for firing in firings:
            with self._idle:
                self._running.add(firing.row["firing"])
            self.forest.pool.submit(lambda firing=firing: self._run_late(firing))  # type: ignore[misc]

    def _run_late(self, firing: Firing) -> None:
        is_new = False
        try:
            is_new = bool(self.journal.record([firing.row]))
        except ActiveDBError:
            _LOG.warning("rule %s is not run", firing.triggered.rule.name, exc_info=True)
        if is_new:
            self._run(firing.row, firing.triggered)
        else:
            self._ended(firing.row["firing"])

    def _runs(self, firing: Firing) -> bool:
        """Whether a firing runs here and not where a worker is free.

        Causally dependent ones always do: they have begun beside what triggered them.
        """
        return not self.journal.is_queued or firing.triggered.rule.coupling is Coupling.CAUSAL

    # -- causally dependent rules ------------------------------------------------------------

    def run_early(self, firing: Firing, cause: Transaction) -> bool:
        """Run a causally dependent rule while `cause`, in which it was triggered, may live.

        Returns once that one's line has committed, or has aborted, as it cannot commit earlier.
        False: it is not done, and should be tried again after the triggering commit. True: it is
        done, or of no interest any more. An error of the rule is raised.
        """
        name = firing.row["firing"]
        with self._idle:
            self._early.add(name)
        quarantine = self.triggering.runner.quarantine
        try:
            quarantine.check(firing.triggered.rule.name)
            run = run_of(firing.row, firing.triggered, is_retried=True)
            self.forest.causal(cause, run).call(self._work_of(firing.row, firing.triggered))
            quarantine.succeeded(firing.triggered.rule.name)
        except SYSTEMIC:
            return False
        except _DoneElsewhere:
            return True
        finally:
            with self._idle:
                self._early.discard(name)
                self._at_work.pop(name, None)
        return True

    def expect(self, firing: Firing) -> None:
        """Let `join` wait for a rule that runs early, because it is recorded now."""
        with self._idle:
            self._running.add(firing.row["firing"])

    def expect_no_more(self, firing: Firing) -> None:
        """Take back `expect`."""
        self._ended(firing.row["firing"])

    def drop(self, firing: Firing) -> None:
        """A rule that was begun early has aborted, and is not tried again."""
        self.triggering.failed(firing.row["firing"])

    # -- what others have recorded ---------------------------------------------------------

    def recover(self) -> int:
        """Start the firings that were recorded and not finished, by this process or a dead one.

        If firings are queued those of others are left to the workers.

        Returns
        -------
        int
            How many were started. Firings of rules that are not defined here stay recorded.
        """
        started = self.start_left() + self._start_rows(self.journal.held(), self._catalog.rule)
        if not self.journal.is_queued:
            while taken := self.take_over(_CLAIMED_MAX):
                started += taken
        return started

    def take_over(self, limit: int, *, of_dead: bool = True) -> int:
        """Take over at most `limit` firings that nobody holds, and start them; returns how many.

        Parameters
        ----------
        of_dead : bool
            Also those of processes that have died.
        """
        rules: dict[str, Rule] = {}

        def knows(name: str) -> bool:
            rule = self._catalog.rule(name)
            if rule is None:
                self._strange.add(name)
                return False
            self._strange.discard(name)
            rules[name] = rule
            return True

        strange = [name for name in list(self._strange) if not knows(name)]
        rows = self.journal.claim(limit, knows=knows, without=strange, of_dead=of_dead)
        return self._start_rows(rows, rules.get)

    def _start_rows(
        self, rows: list[dict[str, Any]], rule_named: Callable[[str], Rule | None]
    ) -> int:
        started = 0
        for row in rows:
            rule = rule_named(row["rule"])
            with self._idle:
                is_known = row["firing"] in self._running or row["firing"] in self._early
            if rule is None or is_known:  # if our lease was lost we have taken over what is ours
                continue
            try:
                item = triggered_of(rule, row)
            except BadEvent as error:
                self._bury_unread(row, error)
                continue
            started += 1
            with self._idle:
                is_early = any(row["firing"] in names for names in self._committing.values())
                if is_early:
                    self._left[row["firing"]] = Firing(row, item)
            if not is_early:
                self._start(row, item)
        return started

    def start_left(self) -> int:
        """Start the firings again that were given up for now; returns how many."""
        self.triggering.decide_left()
        with self._idle:
            left, self._left = self._left, {}
        for firing in left.values():
            self._start(firing.row, firing.triggered)
        return len(left)

    @property
    def running(self) -> int:
        """How many have been started and have not ended."""
        with self._idle:
            return len(self._running)

    def join(self, running_max: int = 0) -> None:
        """Wait until every detached rule that was started has ended, or at most so many are left.

        Raises
        ------
        TransactionStateError
            In a detached rule, which would wait for itself, or in a stream's batch.
        SelfDeadlock
            If one of them waits for a transaction that is open on this thread.
        """
        t = current_transaction()
        if t is not None and (t.hierarchy.run.is_detached or t.hierarchy.run.is_batch):
            raise TransactionStateError(
                f"{t.path} cannot wait for detached rules; wait outside rules of streams and "
                f"detached rules"
            )
        with sleeping_for(self.forest, self._numbers, self._look_again) as sleeping, self._idle:
            while len(self._running) > running_max:
                if sleeping.standstill() is not None:
                    raise SelfDeadlock(
                        f"a detached rule waits for what {t.path if t else 'a transaction'} has, "
                        f"which is open on this thread and would wait for that rule: end the "
                        f"transaction before join()"
                    )
                self._idle.wait()

    def _numbers(self) -> list[int]:
        """Numbers of the top-level transactions of firings that run."""
        return [t.id for name, t in list(self._at_work.items()) if name in self._running]

    def _look_again(self) -> None:
        with self._idle:
            self._idle.notify_all()

    def aside(self, name: str, work: Callable[[], None]) -> None:
        """Do work of the engine's own on a thread of the pool; `join` waits for it, too."""

        def do() -> None:
            try:
                work()
            finally:
                self._ended(name)

        with self._idle:
            self._running.add(name)
        try:
            self.forest.pool.submit(do)
        except TransactionStateError:  # closed meanwhile
            self._ended(name)

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
            self._at_work.pop(firing, None)
            running = len(self._running)
            self._idle.notify_all()
        self.on_ended(running)

    def _run(self, row: dict[str, Any], item: Triggered) -> None:
        firing = row["firing"]

        try:
            self.triggering.runner.quarantine.check(item.rule.name)
            run = run_of(row, item, lazily=is_lazy(row["run"]))
            self.forest.run(self._work_of(row, item), run)
        except SYSTEMIC:
            # It stays recorded, or unfinished until its batch records it.
            self._leave(row, item)
            _LOG.warning("rule %s is left pending", item.rule.name, exc_info=True)
        except _DoneElsewhere:
            _LOG.info("another process ran %s", firing)
            self.of_batches.is_durable(firing)
        except BaseException as error:
            self.give_up(row, item, error)
        else:
            self.triggering.runner.quarantine.succeeded(item.rule.name)
            self.of_batches.is_durable(firing)
        finally:
            self._ended(firing)

    def _work_of(self, row: dict[str, Any], item: Triggered) -> Callable[[Transaction], None]:
        """What the top-level transaction of a firing does: run the rule, and mark it done."""

        def mark_done(connection: Any) -> None:
            if not self.journal.finish(connection, row, keep=self._must_stay(row)):
                raise _DoneElsewhere(row["firing"])

        def work(t: Transaction) -> None:
            self._at_work[row["firing"]] = t
            t.hierarchy.durable.append(mark_done)
            self.triggering.runner.run_rule(t, item)

        return work

    def _must_stay(self, row: dict[str, Any]) -> bool:
        """Whether what triggered a firing may be done again, and has to find it done."""
        if not row["keep"]:
            return False
        if not is_of_firing(row["run"]):
            return self.of_batches.must_stay(row["firing"])
        with self._idle:
            is_early = row["run"] in self._early
        # Of one that is recorded the journal knows.
        return is_early or self.of_batches.is_unfinished(row["run"])

    def give_up(self, row: dict[str, Any], item: Triggered, error: BaseException) -> None:
        """Put the firing of a rule that raised into the dead-letter table."""
        rule = item.rule.name
        letter = Letter.of_rule(row["firing"], item.occurrence, failure_of(rule, error))
        self.triggering.counters.add("rules_failed")
        self.triggering.runner.quarantine.failed(rule, error)
        try:
            self.journal.bury(row, asdict(letter), keep=self._must_stay(row))
            self.of_batches.is_durable(row["firing"])
        except ActiveDBError:
            self._leave(row, item)
            _LOG.warning("rule %s is left pending", rule, exc_info=True)

    def _bury_unread(self, row: dict[str, Any], error: BadEvent) -> None:
        """Put a firing into the dead-letter table of which nobody knows what triggered it."""
        rule = row["rule"]
        letter = Letter.of_firing(row["firing"], row["occurrence"], failure_of(rule, error))
        self.triggering.counters.add("rules_failed")
        self.journal.bury(row, asdict(letter), keep=False)

    def _leave(self, row: dict[str, Any], item: Triggered) -> None:
        with self._idle:
            self._left[row["firing"]] = Firing(row, item)


class _DoneElsewhere(ActiveDBError):
    """The firing was finished by another process; this try has to abort."""
