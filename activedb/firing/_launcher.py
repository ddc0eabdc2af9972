"""Rules in top-level transactions of their own: recorded, and run exactly once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container
from dataclasses import asdict, replace
from typing import Any
from weakref import WeakKeyDictionary

from activedb.errors import (
    ActiveDBError,
    BadEvent,
    ConnectionLost,
    FiringsLeft,
    RuleFailed,
    SelfDeadlock,
    TransactionStateError,
)
from activedb.firing._batch_firings import FiringsOfBatches
from activedb.firing._firings import (
    Named,
    coupling_of,
    in_turn,
    is_lazy,
    is_of_firing,
    line_up,
    named,
    row_of,
    run_of,
    turn_of,
)
from activedb.firing._letters import Letter
from activedb.firing._quarantine import failure_of
from activedb.firing._restarts import Restarts
from activedb.firing._triggered import SYSTEMIC, Firing, Triggered, triggered_of
from activedb.firing._triggering import Triggering
from activedb.firing._turns import Turn, Turns
from activedb.rules import Catalog, Rule
from activedb.store.journals import Journal
from activedb.transactions import Forest, Transaction, current_transaction, sleeping_for
from coupling import Coupling

__all__ = ["Launcher"]

_LOG = logging.getLogger(__name__)
_CLAIMED_MAX = 1_000  # at a time
_LOOK = "look for firings of ours"
_RUNS = "it runs"


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
    and whichever worker is first takes it over. One that others are in the way of (a deadlock, a
    lost connection) is given up for now and started again after a pause, by itself; when that has
    happened `restarts_max` times it is a dead letter.

    Latch: ``_idle``; those of `restarts` and `turns` are taken under it.

    Attributes
    ----------
    of_batches : FiringsOfBatches
    turns : Turns
        Who has to wait for rules of a higher priority that are due together with it.
    on_ended : callable ``(running)``
        Called when one has ended, with the number of those that are left.
    """

    def __init__(self, journal: Journal, catalog: Catalog, restarts: Restarts, restarts_max: int):
        self.journal = journal
        self.of_batches = FiringsOfBatches(journal)
        self.restarts = restarts
        self.turns = Turns()
        self.forest: Forest
        self.triggering: Triggering
        self._catalog = catalog
        self._restarts_max = restarts_max
        self._idle = threading.Condition()
        restarts.on_called = self._tell
        # Connections lost while firings were recorded, and how many before the last look for them.
        self._lost = self._looked = 0
        self._running: set[str] = set()
        self._at_work: dict[str, Transaction] = {}  # in whose present try each of them runs
        # Those that a live transaction records with its commit, and starts after it.
        self._committing: WeakKeyDictionary[Transaction, set[str]] = WeakKeyDictionary()
        # Rules of which somebody has recorded firings, and which are not defined here.
        self._strange: set[str] = set()
        self.on_ended: Callable[[int], object] = lambda running: None
        self._early: set[str] = set()  # causally dependent ones, before the triggering commit

    def fire(
        self, t: Transaction, items: list[Triggered], event: int, undated: Container[int]
    ) -> None:
        """Start the detached rules that the `event`-th event of `t` triggered.

        `undated` is as for `named`.
        """
        run = t.hierarchy.run
        due: dict[str, Named] = {}
        for each in named(t, items, event, undated):
            name = each.name
            if not (self.of_batches.is_known(name) if run.is_batch else name in run.fired):
                due[name] = each
            if run.is_batch:
                run.fired.add(name)
        # On memory:// nobody else can write before a caller's transaction has ended.
        is_late = not t.hierarchy.lends and not t.hierarchy.session.is_shared
        firings: dict[str, Firing] = {}
        for name, each in due.items():
            try:
                firings[name] = Firing(row_of(each, t), each.item, is_recorded=not is_late)
            except RuleFailed as failed:
                self.triggering.counters.add("rules_failed")
                letter = asdict(Letter.of_rule(name, each.item.occurrence, failed))
                if is_late:
                    self.aside(name, lambda letter=letter: self.journal.keep_letter(letter))  # type: ignore[misc]
                else:
                    self.journal.keep_letter(letter)
        line_up(firings.values(), f"{t.path}#{event}")
        if run.is_batch:
            rows = {name: firing.row for name, firing in firings.items()}
            self.of_batches.add(run, due, rows)
        elif firings:
            new = firings.keys() if is_late else self._record(firings)
            run.fired |= due.keys()
            firings = {name: firing for name, firing in firings.items() if name in new}
        for name, firing in firings.items():
            t.spawns(name, coupling_of(firing.triggered, Coupling.DETACHED))
        if is_late or not self.journal.is_queued:
            for firing in in_turn(firings.values()):
                self._go(firing)

    def _record(self, firings: dict[str, Firing]) -> set[str]:
        """Record firings of ours; returns which of them were not there, and are to be started."""
        rows = [firing.row for firing in firings.values()]
        with self._idle:
            # From now on, so that who looks for what is ours does not start it, too.
            ours = set() if self.journal.is_queued else firings.keys() - self._running
            self._running |= ours
        new: set[str] = set()
        try:
            new = self.journal.record(rows)
        except ConnectionLost:
            self.look()
            raise
        finally:
            for name in ours - new:
                self._ended(name)
        return new

    # -- sequential rules ------------------------------------------------------------------

    def prepare(
        self, t: Transaction, items: list[Triggered], event: int, undated: Container[int] = ()
    ) -> tuple[list[Firing], list[Letter]]:
        """Firings to start when `t`, and all its superiors, have committed.

        Returns with them a letter for each whose occurrence cannot be kept. `undated` is as for
        `named`.
        """
        firings, letters = [], []
        for each in named(t, items, event, undated):
            name, item = each.name, each.item
            try:
                row = row_of(each, t)
            except RuleFailed as failed:
                letters.append(Letter.of_rule(name, item.occurrence, failed))
            else:
                # What has committed is not done again, and has not to find this one done.
                firings.append(Firing(row | {"keep": False}, item))
                t.spawns(name, coupling_of(item, Coupling.SEQUENTIAL))
        return firings, letters

    def record(self, t: Transaction, firings: list[Firing]) -> None:
        """Record firings in the commit of the top-level transaction `t`."""
        line_up(firings, t.hierarchy.run.name)
        here = [firing.row for firing in firings if self._runs(firing)]
        anywhere = [firing.row for firing in firings if not self._runs(firing)]
        with self._idle:
            self._committing[t] = {firing.name for firing in firings}

        def write(connection: Any) -> None:
            self.journal.record_on(connection, here, held=True)
            self.journal.record_on(connection, anywhere, held=False)

        t.hierarchy.durable.append(write)

    def ended(self, t: Transaction) -> None:
        """Take note that the top-level transaction `t` has ended, and has started its firings.

        If it has aborted, and some are recorded all the same, whoever looks starts them.
        """
        with self._idle:
            self._committing.pop(t, None)

    def start(self, firings: list[Firing]) -> None:
        """Start firings that are recorded, if they run here."""
        for firing in in_turn(firings):
            with self._idle:
                for names in self._committing.values():
                    names.discard(firing.name)
            # One that a worker of this very process has taken over runs here, too.
            if self.restarts.drop(firing.name) or self._runs(firing):
                self._start(firing)

    def start_late(self, firings: list[Firing]) -> None:
        """Record firings, when that can be done, and then start them.

        For those of a caller's transaction on ``memory://``, in which nobody else can write before
        it has ended.
        """
        for firing in in_turn(firings):
            self._start(replace(firing, is_recorded=False))

    def has_priorities(self, coupling: Coupling) -> bool:
        """Return whether a rule of that mode has a priority; O(rules)."""
        rules = (entry.rule for entry in self._catalog.entries())
        return any(rule.priority is not None and rule.coupling is coupling for rule in rules)

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
        name = firing.name
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
            self._running.add(firing.name)

    def start_expected(self, firing: Firing) -> None:
        """Start a firing that is recorded and expected."""
        self._go(firing)

    def expect_no_more(self, firing: Firing) -> None:
        """Take back `expect`."""
        self._ended(firing.name)

    def drop(self, firing: Firing) -> None:
        """A rule that was begun early has aborted, and is not tried again."""
        self.triggering.failed(firing.name)

    # -- what others have recorded ---------------------------------------------------------

    def recover(self) -> int:
        """Start the firings that were recorded and not finished, by this process or a dead one.

        If firings are queued those of others are left to the workers.

        Returns
        -------
        int
            How many were started. Firings of rules that are not defined here stay recorded.
        """
        self.restarts.drop(_LOOK)
        try:
            started = self.restarts.call_all() + self._start_ours()
        except ActiveDBError:
            self.look()
            raise
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
        try:
            known = self._known()
            rows = self.journal.claim(limit, knows=knows, without=strange, of_dead=of_dead)
            return self._start_rows(rows, known, rules.get)
        except ActiveDBError:
            self.look()  # some may be ours and not started
            raise

    def look(self) -> None:
        """Look for recorded firings of ours that were not started, soon and a few times.

        To be called when a connection was lost while some were recorded or taken over: the server
        may have done so without an answer that reached us.
        """
        with self._idle:
            self._lost += 1
        self._look_later(0)

    def _look_later(self, number: int) -> None:
        self.restarts.later(
            _LOOK, lambda: self._look(number), number, "a connection was lost while it was recorded"
        )

    def _look(self, number: int) -> None:
        with self._idle:
            before = self._lost
        try:
            self._start_ours()
        except ActiveDBError:
            _LOG.info("firings of ours cannot be looked for now", exc_info=True)
            self._look_later(number)
        else:
            with self._idle:
                self._looked = max(self._looked, before)
            if not self.restarts.is_last(number):
                self._look_later(number + 1)

    def _start_ours(self) -> int:
        known = self._known()
        return self._start_rows(self.journal.held(), known, self._catalog.rule)

    def _known(self) -> set[str]:
        """Names of the firings that run here, or will."""
        with self._idle:  # first who waits, as those become who runs
            waiting = self.restarts.waiting().keys() | self.turns.waiting()
            return waiting | self._running | self._early

    def _start_rows(
        self,
        rows: list[dict[str, Any]],
        known: set[str],
        rule_named: Callable[[str], Rule | None],
    ) -> int:
        """Start what is not known, and was not before the rows were read: that may have ended."""
        known = known | self._known()
        found = []
        for row in rows:
            rule = rule_named(row["rule"])
            if rule is None or row["firing"] in known:  # if our lease was lost we have taken ours
                continue
            try:
                found.append(Firing(row, triggered_of(rule, row)))
            except BadEvent as error:
                self._bury_unread(row, error)
        for firing in in_turn(found):
            self._start_recorded(firing)
        return len(found)

    def _start_recorded(self, firing: Firing) -> None:
        """Start a firing that was recorded, unless what triggered it lives here and will do so."""
        with self._idle:
            is_early = any(firing.name in names for names in self._committing.values())
        if is_early:
            again = lambda: self._start_recorded(firing)  # noqa: E731
            self.restarts.later(firing.name, again, 0, "what triggered it is committing")
        else:
            self._start_behind(firing, 0)

    def _start_behind(self, firing: Firing, number: int) -> None:
        """Start a firing that was recorded, behind those of a higher priority.

        Those that run here are in its line; the others are in the database. If they do not end
        within `restarts_max` looks, because no process has their rules, for example, it is started.
        """
        turn = turn_of(firing.row)
        if turn is not None and number < self._restarts_max:
            others = self.journal.pending(run=firing.row["run"])
            turns = (turn_of(o) for o in others if o["holder"] != firing.row["holder"])
            if any(o is not None and o.line == turn.line and o.rank < turn.rank for o in turns):
                again = lambda: self._start_behind(firing, number + 1)  # noqa: E731
                self.restarts.later(
                    firing.name, again, 0, "rules of a higher priority have not ended"
                )
                return
        self._start(firing)

    @property
    def running(self) -> int:
        """How many have been started and have not ended."""
        with self._idle:
            return len(self._running)

    def join(self, timeout: float | None = None) -> None:
        """Wait until every firing that was started has ended, also those given up for now.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        FiringsLeft
            If some have not ended by then; beside a transaction or SQL that is open on this
            thread at once when all that are left were given up for now, as they may wait for its
            locks.
        TransactionStateError
            In a detached rule, which would wait for itself, or in a stream's batch.
        SelfDeadlock
            If one of them waits for a transaction, or SQL, that is open on this thread.
        """
        self._check_may_wait()
        until_s = None if timeout is None else time.monotonic() + timeout
        is_inside = current_transaction() is not None
        if self.restarts.drop(_LOOK):
            self._look(0)
        with self._sleeping() as sleeping, self._idle:
            while left := self._left():
                remaining_s = None if until_s is None else until_s - time.monotonic()
                is_over = remaining_s is not None and remaining_s <= 0
                may_have_locks = is_inside or sleeping.is_beside_work
                if is_over or (may_have_locks and not self._running):
                    raise FiringsLeft.of(left)
                _check_standstill(sleeping)
                self._idle.wait(remaining_s)

    def join_running(self, running_max: int = 0) -> None:
        """Wait until at most so many of the firings run, not for those given up for now.

        Raises
        ------
        TransactionStateError
            As in `join`.
        SelfDeadlock
            If one of them waits for a transaction, or SQL, that is open on this thread.
        """
        self._check_may_wait()
        with self._sleeping() as sleeping, self._idle:
            while len(self._running) > running_max:
                _check_standstill(sleeping)
                self._idle.wait()

    def _sleeping(self) -> sleeping_for:
        """Note that this thread waits for the firings that run."""
        return sleeping_for(self.forest, self._numbers, self._tell)

    def _numbers(self) -> list[int]:
        """Numbers of the top-level transactions of firings that run."""
        return [t.id for name, t in list(self._at_work.items()) if name in self._running]

    def close(self) -> None:
        """Wait for what runs; what was given up for now is started once more, and then left."""
        self.restarts.call_all()
        self.restarts.close()
        self.join_running()

    def aside(self, name: str, work: Callable[[], None], turn: Turn | None = None) -> None:
        """Do work of the engine's own on a thread of the pool; `join` waits for it, too."""

        def do() -> None:
            try:
                work()
            finally:
                self._ended(name)

        self._submit(name, do, turn)

    def _check_may_wait(self) -> None:
        t = current_transaction()
        if t is not None and (t.hierarchy.run.is_detached or t.hierarchy.run.is_batch):
            raise TransactionStateError(
                f"{t.path} cannot wait for detached rules; wait outside rules of streams and "
                f"detached rules"
            )

    def _left(self) -> dict[str, str]:
        """Return the work that has not ended, and why. REQUIRES: the latch."""
        left = self.restarts.waiting()
        if self._looked == self._lost:
            left.pop(_LOOK, None)  # it has found nothing, or what it has found runs
        behind = dict.fromkeys(self.turns.waiting(), "rules of a higher priority have not ended")
        return left | behind | dict.fromkeys(self._running, _RUNS)

    # -- running ---------------------------------------------------------------------------

    def _start(self, firing: Firing) -> None:
        """Start a firing that does not run."""
        with self._idle:
            if firing.name in self._running:
                return
            self._running.add(firing.name)
        self._go(firing)

    def _go(self, firing: Firing) -> None:
        self._submit(firing.name, lambda: self._run(firing), turn_of(firing.row))

    def _submit(self, name: str, call: Callable[[], None], turn: Turn | None = None) -> None:
        """Have a thread of the pool make a call when its turn has come; it ends with `_ended`."""
        with self._idle:
            if turn is not None:
                self.turns.enter(name, turn)
            if not self.turns.is_up(name, lambda: self._submit(name, call)):
                self._running.discard(name)
                self._idle.notify_all()
                return
            self._running.add(name)
        try:
            self.forest.pool.submit(call)
        except TransactionStateError:  # closed meanwhile: what is recorded is left to the next
            _LOG.info("%s is not started, as the database is closed", name)
            self._ended(name)

    def _ended(self, name: str) -> None:
        for begin in self.turns.end(name):
            begin()
        with self._idle:
            self._running.discard(name)
            self._at_work.pop(name, None)
            self._idle.notify_all()
        self.on_ended(self.running)

    def _tell(self) -> None:
        """Let those who wait look again."""
        with self._idle:
            self._idle.notify_all()

    def _run(self, firing: Firing) -> None:
        row, item = firing.row, firing.triggered
        has_ended = True
        try:
            if not firing.is_recorded:
                if not self.journal.record([row]):
                    return
                firing = replace(firing, is_recorded=True)
            self.triggering.runner.quarantine.check(item.rule.name)
            run = run_of(row, item, lazily=is_lazy(row["run"]))
            self.forest.run(self._work_of(row, item), run)
        except SYSTEMIC as error:
            has_ended = self._leave(firing, error)
        except _DoneElsewhere:
            _LOG.info("another process ran %s", firing.name)
            self.of_batches.is_durable(firing.name)
        except BaseException as error:
            has_ended = self.give_up(firing, error)
        else:
            self.triggering.runner.quarantine.succeeded(item.rule.name)
            self.of_batches.is_durable(firing.name)
        finally:
            if has_ended:
                self._ended(firing.name)
            else:
                self.on_ended(self.running)

    def _leave(self, firing: Firing, error: Exception) -> bool:
        """Give up a firing for now; True: for good, as that has happened often enough.

        It stays recorded, or unfinished until its batch records it.
        """
        rule = firing.triggered.rule.name
        number = firing.restarts
        if number >= self._restarts_max:
            failed = RuleFailed(
                f"rule {rule} failed: it was started again {number} times, and each time something "
                f"was in its way: {error}",
                rule=rule,
            )
            failed.__cause__ = error
            if not self._bury(firing, failed):
                return False
            self.triggering.failed(firing.name)
            return True
        self._restart_later(replace(firing, restarts=number + 1), error)
        _LOG.warning("rule %s is tried again later", rule, exc_info=error)
        return False

    def _restart_later(self, firing: Firing, error: Exception) -> None:
        def again() -> None:
            self._restart(firing, error)

        with self._idle:  # so it either runs or waits, whoever looks
            self._running.discard(firing.name)
            reason = f"{type(error).__name__}: {error}"
            self.restarts.later(firing.name, again, firing.restarts - 1, reason)
            self._idle.notify_all()

    def _restart(self, firing: Firing, error: Exception) -> None:
        """Start a firing again, unless the server is away: that counts for nothing."""
        if isinstance(error, ConnectionLost):
            try:
                self.journal.standing()
            except ActiveDBError as away:
                self._restart_later(firing, away)
                return
        self._start(firing)

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

    def give_up(self, firing: Firing, error: BaseException) -> bool:
        """Put the firing of a rule that raised into the dead-letter table; False: later."""
        rule = firing.triggered.rule.name
        if not self._bury(firing, failure_of(rule, error)):
            return False
        self.triggering.runner.quarantine.failed(rule, error)
        return True

    def _bury(self, firing: Firing, failed: RuleFailed) -> bool:
        """Make a letter of a firing; if that cannot be done now it is started again later."""
        letter = asdict(Letter.of_rule(firing.name, firing.triggered.occurrence, failed))
        try:
            if firing.is_recorded:
                self.journal.bury(firing.row, letter, keep=self._must_stay(firing.row))
            else:
                self.journal.keep_letter(letter)
        except ActiveDBError as error:
            _LOG.warning("rule %s is tried again later", failed.rule, exc_info=True)
            self._restart_later(replace(firing, restarts=max(firing.restarts, 1)), error)
            return False
        self.triggering.counters.add("rules_failed")
        self.of_batches.is_durable(firing.name)
        return True

    def _bury_unread(self, row: dict[str, Any], error: BadEvent) -> None:
        """Put a firing into the dead-letter table of which nobody knows what triggered it."""
        rule = row["rule"]
        letter = Letter.of_firing(row["firing"], row["occurrence"], failure_of(rule, error))
        self.triggering.counters.add("rules_failed")
        self.journal.bury(row, asdict(letter), keep=False)


def _check_standstill(sleeping: sleeping_for) -> None:
    if sleeping.is_stuck():
        t = current_transaction()
        raise SelfDeadlock(
            f"a detached rule waits for what {t.path if t else 'SQL on db.connection()'} has, "
            "which is open on this thread and would wait for that rule: end it before join()"
        )


class _DoneElsewhere(ActiveDBError):
    """The firing was finished by another process; this try has to abort."""
