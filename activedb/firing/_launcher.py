"""Launching of rules in separate top-level transactions: recorded, and run exactly once."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from activedb.config import Settings
from activedb.errors import (
    ActiveDBError,
    BadEvent,
    ConnectionLost,
    FiringsLeft,
    RuleFailed,
    SelfDeadlock,
    SerializationConflict,
    TransactionStateError,
)
from activedb.firing._firings import (
    BatchFirings,
    NamedFiring,
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
from activedb.firing._queue import FiringQueue, Turn, Turns
from activedb.firing._restarts import Restarts
from activedb.firing._triggered import SYSTEMIC, RecordedFiring, Triggered, triggered_of
from activedb.firing._triggering import Triggering
from activedb.functions import typed_text
from activedb.rules import Catalog, Rule
from activedb.store.journals import Journal
from activedb.transactions import Forest, TransactionNode, current_transaction, sleeping_for
from coupling import Coupling

__all__ = ["Launcher"]

_LOG = logging.getLogger(__name__)
_CLAIMED_MAX = 1_000  # firings claimed at a time
_LOOK = "look for firings of ours"
_RECOVERS_S = 1.0  # a feed looks no more often for firings of dead processes
_RUNS = "it runs"
_SETTLES = "activedb is finding out whether it has committed"


class Launcher:
    """Starter of rules in separate top-level transactions, which counts the unfinished ones.

    A firing's transaction marks it done in the same commit as its effects, so it takes effect
    once, however often it is started. The run that triggered a firing determines how it is started
    again after a crash:

    - A *stream's batch* is repeated and gives the firing the same name; from the batch's commit
      on, a row written with that commit represents the firing.
    - Otherwise a row is recorded at the event, before the firing starts. A *detached rule* may
      be repeated too; because it gives its firings the same names, it does not start them twice.

    This process holds the firings that it records under its lease, and starts them. With a queue,
    no process holds a recorded firing, and the first worker to claim it takes it over. A firing
    stopped by other transactions (a deadlock, a lost connection) is given up for now and
    restarted automatically after a pause; after `restarts_max` restarts it becomes a dead letter.

    Latch: ``_idle``; the latches of `restarts`, `turns` and `forest.joined` are taken under it.

    Attributes
    ----------
    batch_firings : BatchFirings
    turns : Turns
        Firings that wait for rules of a higher priority due together with them.
    """

    def __init__(
        self,
        forest: Forest,
        journal: Journal,
        catalog: Catalog,
        settings: Settings,
        triggering: Callable[[FiringQueue], Triggering],
    ):
        self.journal = journal
        self.batch_firings = BatchFirings(journal)
        self.restarts = Restarts(forest.clock, settings, self._tell)
        self.turns = Turns()
        self._catalog = catalog
        self._restarts_max = settings.restarts_max
        self._idle = forest.idle
        # Connections lost while firings were recorded, and their number at the last look.
        self._lost = self._looked = 0
        self._recovered_s = -math.inf  # when recovery has begun last, by the monotonic clock
        self._running: set[str] = set()
        # Names that are running because they are being recorded; with the firing of each that was
        # claimed meanwhile, and is still to be started.
        self._recording: dict[str, RecordedFiring | None] = {}
        # The transaction of each firing's present try.
        self._at_work: dict[str, TransactionNode] = {}
        # Firings that a live transaction records with its commit, and starts after it.
        self._committing: WeakKeyDictionary[TransactionNode, set[str]] = WeakKeyDictionary()
        # What has triggered rules in each live transaction, see `named`.
        self._seen: WeakKeyDictionary[TransactionNode, Counter[str]] = WeakKeyDictionary()
        # Rules with recorded firings that are not defined in this process.
        self._strange: set[str] = set()
        self._on_ended: Callable[[int], object] = lambda running: None
        self._early: set[str] = set()  # causal firings, before the triggering commit
        self.forest = forest
        self.triggering = triggering(self)

    def fire(
        self, t: TransactionNode, items: list[Triggered], event: int, undated: Container[int]
    ) -> None:
        """Start the detached rules that the `event`-th event of `t` triggered.

        `undated` is as for `named`.
        """
        run = t.hierarchy.run
        # While the run may be repeated here, this process must see the end of what it triggers.
        is_here = not self.journal.is_queued or self.triggering.run_ends.causal.is_unsettled(run)
        due: dict[str, NamedFiring] = {}
        for each in named(t.path, items, undated, self._seen_in(t)):
            name = each.name
            if not (self.batch_firings.is_known(name) if run.is_batch else name in run.fired):
                due[name] = each
            if run.is_batch:
                run.fired.add(name)
        # On memory://, a caller's transaction blocks all other writers until it has ended.
        is_late = not t.hierarchy.lends and not t.hierarchy.session.is_shared
        firings: dict[str, RecordedFiring] = {}
        for name, each in due.items():
            try:
                firings[name] = RecordedFiring(row_of(each, t), each.item, is_recorded=not is_late)
            except RuleFailed as failed:
                self.triggering.counters.add("rules_failed")
                letter = Letter.of_rule(name, each.item.occurrence, failed)
                if is_late:
                    self.run_in_background(name, partial(self.write_letter, letter))
                else:
                    self.journal.add_dead_letter(asdict(letter))
        line_up(firings.values(), f"{t.path}#{event}")
        if run.is_batch:
            rows = {name: firing.row for name, firing in firings.items()}
            self.batch_firings.add(run, due, rows)
        elif firings:
            new = firings.keys() if is_late else self._record(firings, t, is_here=is_here)
            run.fired.update(due)
            firings = {name: firing for name, firing in firings.items() if name in new}
        for name, firing in firings.items():
            t.spawns(name, coupling_of(firing.triggered, Coupling.DETACHED))
        if is_late or is_here:
            for firing in in_turn(firings.values()):
                self._go(firing)

    def _seen_in(self, t: TransactionNode) -> Counter[str]:
        with self._idle:
            return self._seen.setdefault(t, Counter())

    def _record(
        self, firings: dict[str, RecordedFiring], t: TransactionNode, *, is_here: bool
    ) -> set[str]:
        """Record what `t` triggers, for this process or any; return what is to be started.

        Nothing is recorded if another process has ended the firing that `t` runs.
        """
        run = t.hierarchy.run
        is_early = self.triggering.run_ends.causal.is_unsettled(run)
        # One that has begun early has no row yet; the nearest above it that may have one decides.
        by = run.above[-1] if is_early and run.above else run.name
        is_recorded = not self.batch_firings.is_unrecorded(by)
        rows = [firing.row for firing in firings.values()]
        with self._idle:
            # Registered early, so that a look for our firings does not start them, too.
            ours = firings.keys() - self._running if is_here else set()
            self._running |= ours
            self._recording.update(dict.fromkeys(ours))
        new: set[str] = set()
        try:
            found = self.journal.record(
                rows, held=is_here, by=by if is_of_firing(by) else None, is_recorded=is_recorded
            )
            if found is None and is_early:  # or `by` has just committed here
                conflict = SerializationConflict(f"{by} has ended: {run.name} is tried after it")
                t.top.mark_rollback_only(conflict)  # whoever catches it
                raise conflict
            new = found or new
        except ConnectionLost:
            self.look()
            raise
        finally:
            with self._idle:
                claimed = {name: self._recording.pop(name) for name in ours}
            for name in ours - new:
                if (firing := claimed[name]) is not None:
                    self._go(firing)
                else:
                    self._ended(name)
        return new

    # -- sequential rules ------------------------------------------------------------------

    def prepare(
        self,
        t: TransactionNode,
        items: list[Triggered],
        undated: Container[int] = (),
        *,
        event: int | None = None,
    ) -> tuple[list[RecordedFiring], list[Letter]]:
        """Return firings to start when `t`, and all its superiors, have committed.

        Returns also a letter for each firing whose occurrence cannot be encoded. `undated` is as
        for `named`; `event` is the number of the event in `t`, if all tries give it the same.
        """
        firings, letters = [], []
        is_counted = event is None
        place, seen = (t.path, self._seen_in(t)) if is_counted else (f"{t.path}#{event}", Counter())
        for each in named(place, items, undated, seen):
            name, item = each.name, each.item
            try:
                row = row_of(each, t)
            except RuleFailed as failed:
                letters.append(Letter.of_rule(name, item.occurrence, failed))
            else:
                # The triggering transaction is not repeated, so no try looks for this row.
                firings.append(RecordedFiring(row | {"keep": False}, item))
                t.spawns(name, coupling_of(item, Coupling.SEQUENTIAL))
        return firings, letters

    def record(self, t: TransactionNode, firings: list[RecordedFiring]) -> None:
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

    def ended(self, t: TransactionNode) -> None:
        """Note that the top-level transaction `t` has ended, and has started its firings.

        If `t` seems aborted but its firings are recorded all the same, the next look starts them.
        """
        with self._idle:
            self._committing.pop(t, None)

    def start(self, firings: list[RecordedFiring]) -> None:
        """Start the firings that run in this process.

        Firings of a caller's transaction on ``memory://`` are not recorded yet: it blocks all other
        writers until it has ended. They are recorded as soon as that is possible, and then started.
        """
        for firing in in_turn(firings):
            with self._idle:
                for names in self._committing.values():
                    names.discard(firing.name)
            # A firing claimed by a worker of this same process runs here, too.
            if self.restarts.drop(firing.name) or self._runs(firing):
                self._start(firing)

    def has_priorities(self, coupling: Coupling) -> bool:
        """Return whether any rule with this coupling mode has a priority; O(rules)."""
        rules = (entry.rule for entry in self._catalog.entries())
        return any(rule.priority is not None and rule.coupling is coupling for rule in rules)

    def _runs(self, firing: RecordedFiring) -> bool:
        """Return whether a firing runs in this process, rather than on any free worker.

        Causally dependent firings always do: they have begun beside their triggering transaction.
        """
        return not self.journal.is_queued or firing.triggered.rule.coupling is Coupling.CAUSAL

    # -- causally dependent rules ------------------------------------------------------------

    def run_early(self, firing: RecordedFiring, cause: TransactionNode, fired: set[str]) -> bool:
        """Run a causally dependent rule while its triggering transaction `cause` may be live.

        Returns only after `cause` and its superiors have committed or aborted, because the rule
        cannot commit earlier. Returns False if the rule is not done, and should be tried again
        after the triggering commit; True if it is done, or no longer wanted. An error of the rule
        is raised. `fired` has the names of what its earlier tries have triggered.
        """
        name = firing.name
        with self._idle:
            self._early.add(name)
        quarantine = self.triggering.quarantine
        try:
            quarantine.check(firing.triggered.rule.name)
            by = cause.hierarchy.run
            is_covered = self.triggering.run_ends.causal.is_repeated(by)
            how = {"is_retried": True, "is_covered": is_covered, "fired": fired}
            how["above"] = (by.name, *by.above)
            run = run_of(firing.row, firing.triggered, "locks", **how)  # as its cause
            self.forest.causal(cause, run).call(self._work_of(firing.row, firing.triggered))
            quarantine.succeeded(firing.triggered.rule.name)
        except SYSTEMIC:
            return False
        except _DoneElsewhere:
            self.triggering.run_ends.ended_elsewhere(name)
            return True
        finally:
            with self._idle:
                self._early.discard(name)
                self._at_work.pop(name, None)
        return True

    def expect(self, firing: RecordedFiring) -> None:
        """Let `join` wait for an early firing, because it is recorded now."""
        with self._idle:
            self._running.add(firing.name)

    def try_ended(self, firing: RecordedFiring, *, is_due: bool) -> None:
        """Start a firing that `expect` has announced, or take the announcement back."""
        if is_due:
            self._go(firing)
        else:
            self._ended(firing.name)

    def forget_done(self, names: Sequence[str], number: int = 0) -> None:
        """Delete the rows of done firings, except those that a recorded firing may look for."""
        try:
            self.journal.forget_triggered(names)
        except ActiveDBError as error:
            self.restarts.later(
                f"{names[0]} is forgotten",
                lambda: self.forget_done(names, number + 1),
                number,
                typed_text(error),
            )

    # -- recovery and workers --------------------------------------------------------------

    def recover(self) -> int:
        """Start unfinished recorded firings of this process, at once, and of dead ones.

        With a queue, the firings of other processes are left to the workers.

        Returns
        -------
        int
            Number of firings started. Firings of rules not defined here stay recorded.
        """
        return self.restarts.call_all(but=_LOOK) + self.find_left()

    def find_left(self) -> int:
        """Do as `recover`, but let firings that were given up for now wait for their restart."""
        self._recovered_s = time.monotonic()
        try:
            started = self._start_ours()
        except ActiveDBError:
            self.look()
            raise
        if not self.journal.is_queued:
            while taken := self.take_over(_CLAIMED_MAX):
                started += taken
        self.journal.forget_left()
        return started

    def is_recovery_due(self) -> bool:
        """Return whether `find_left` may find something: lost sight of here, or of dead processes.

        Other processes are looked for once a second at most.
        """
        with self._idle:
            is_lost = self._lost > self._looked
            return is_lost or time.monotonic() - self._recovered_s >= _RECOVERS_S

    def take_over(self, limit: int, *, of_dead: bool = True, run: str | None = None) -> int:
        """Claim at most `limit` firings that no process holds, and start them; return the number.

        Parameters
        ----------
        of_dead : bool
            Claim the firings of dead processes, too.
        run : str, optional
            Claim only what this run has triggered.
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
            rows = self.journal.claim(limit, knows=knows, without=strange, of_dead=of_dead, run=run)
            return self._start_rows(rows, known, rules.get)
        except ActiveDBError:
            self.look()  # some may be held by this process and not started
            raise

    def look(self) -> None:
        """Look for recorded but unstarted firings of this process, soon and a few times.

        To be called when a connection was lost while firings were recorded or claimed: the server
        may have done the work although its answer was lost.
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
        with self._idle:  # a firing recorded meanwhile may have ended when its row has been read
            known = self._known() | self._recording.keys()
        return self._start_rows(self.journal.held(), known, self._catalog.rule)

    def _known(self) -> set[str]:
        """Return the names of the firings that run here, or will, but for those being recorded."""
        with self._idle:  # first the waiting firings, because they become running ones
            waiting = self.restarts.waiting().keys() | self.turns.waiting()
            return waiting | (self._running - self._recording.keys()) | self._early

    def _start_rows(
        self,
        rows: list[dict[str, Any]],
        known: set[str],
        rule_named: Callable[[str], Rule | None],
    ) -> int:
        """Start firings unknown both now and before the rows were read; others may have ended."""
        known = known | self._known()
        found = []
        for row in rows:
            rule = rule_named(row["rule"])
            if rule is None or row["firing"] in known:  # our own after a lost lease
                continue
            try:
                found.append(RecordedFiring(row, triggered_of(rule, row)))
            except BadEvent as error:
                self._bury_unread(row, error)
        for firing in in_turn(found):
            self._start_recorded(firing)
        return len(found)

    def _start_recorded(self, firing: RecordedFiring) -> None:
        """Start a recorded firing, unless its triggering transaction is live here and starts it."""
        with self._idle:
            is_early = any(firing.name in names for names in self._committing.values())
        if is_early:
            again = lambda: self._start_recorded(firing)  # noqa: E731
            self.restarts.later(firing.name, again, 0, "the triggering transaction is committing")
        else:
            self._start_behind(firing, 0)

    def _start_behind(self, firing: RecordedFiring, number: int) -> None:
        """Start a recorded firing after those of a higher priority.

        Firings that run here are in its line; the others are found in the database. If they do not
        end within `restarts_max` looks (for example, because no process has their rules), the
        firing is started all the same.
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
        """Number of firings that have been started and have not ended."""
        with self._idle:
            return len(self._running)

    def join(self, timeout: float | None = None) -> None:
        """Wait until every started firing has ended, including those given up for now.

        A caller's transaction that has ended may still have to start its firings; it is waited for.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        FiringsLeft
            If some firings have not ended by then. If a transaction or SQL is open on this thread,
            raised at once when all remaining firings are given up for now, because they may wait
            for its locks.
        TransactionStateError
            In a detached rule, which would wait for itself, or in a stream's batch.
        SelfDeadlock
            If a firing waits for a transaction, or SQL, that is open on this thread.
        """
        self.check_may_wait()
        until_s = None if timeout is None else time.monotonic() + timeout
        is_inside = current_transaction() is not None
        if self.restarts.drop(_LOOK):
            self._look(0)
        with self._sleeping() as sleeping, self._idle:
            while left := self._left():
                remaining_s = None if until_s is None else until_s - time.monotonic()
                is_over = remaining_s is not None and remaining_s <= 0
                may_have_locks = is_inside or sleeping.is_beside_work
                is_under_way = not {_RUNS, _SETTLES}.isdisjoint(left.values())
                if is_over or (may_have_locks and not is_under_way):
                    raise FiringsLeft.of(left)
                if self._running:  # all else needs nothing that this thread has
                    _check_standstill(sleeping)
                self._idle.wait(remaining_s)
            may_block = is_inside or sleeping.is_beside_work
        if not may_block:  # on memory://, by the transaction or SQL that is open here
            self.batch_firings.forget_left_over()

    def join_running(self, running_max: int = 0) -> None:
        """Wait until at most `running_max` firings run; firings given up for now don't count.

        Raises
        ------
        TransactionStateError
            As in `join`.
        SelfDeadlock
            If a firing waits for a transaction, or SQL, that is open on this thread.
        """
        self.check_may_wait()
        with self._idle:
            if len(self._running) <= running_max:
                return
        with self._sleeping() as sleeping, self._idle:
            while len(self._running) > running_max:
                _check_standstill(sleeping)
                self._idle.wait()

    def _sleeping(self) -> sleeping_for:
        """Return a context manager that notes that this thread waits for the running firings."""
        return sleeping_for(self.forest, self._numbers, self._tell)

    def _numbers(self) -> list[int]:
        """Return the numbers of the top-level transactions of running firings."""
        return [t.id for name, t in list(self._at_work.items()) if name in self._running]

    def close(self) -> None:
        """Start firings given up for now once more, then wait for the running ones."""
        self.restarts.call_all()
        self.restarts.close()
        self.join_running()
        self.batch_firings.forget_left_over()

    def run_in_background(
        self, name: str, work: Callable[[], None], turn: Turn | None = None
    ) -> None:
        """Run internal work on a thread of the pool; `join` waits for it, too."""

        def do() -> None:
            try:
                work()
            except BaseException:  # which no caller would see
                _LOG.exception("%s has failed", name)
            finally:
                self._ended(name)

        self._submit(name, do, turn)

    def write_letter(self, letter: Letter, number: int = 0) -> None:
        """Write a letter that belongs to no firing; if that is impossible now, later."""
        try:
            self.journal.add_dead_letter(asdict(letter))
        except ActiveDBError as error:
            _LOG.warning("the dead letter %s is written later", letter.identity, exc_info=True)
            self.restarts.later(
                f"letter {letter.source} {letter.identity}",
                lambda: self.write_letter(letter, number + 1),
                number,
                typed_text(error),
            )

    def check_may_wait(self) -> None:
        """Raise `TransactionStateError` in work that a wait for all firings would wait for."""
        t = current_transaction()
        if t is not None and (t.hierarchy.run.is_detached or t.hierarchy.run.is_batch):
            raise TransactionStateError(
                f"{t.path} cannot wait for detached rules; wait outside rules of streams and "
                f"detached rules"
            )

    def _left(self) -> dict[str, str]:
        """Return the unfinished work, by name, with the reason. REQUIRES: the latch."""
        left = self.restarts.waiting()
        if self._looked == self._lost:
            left.pop(_LOOK, None)  # it found nothing, or the firings it found run
        behind = dict.fromkeys(self.turns.waiting(), "rules of a higher priority have not ended")
        ending = dict.fromkeys(self.forest.joined.unsettled(), _SETTLES)
        return left | behind | ending | dict.fromkeys(self._running, _RUNS)

    # -- running ---------------------------------------------------------------------------

    def _start(self, firing: RecordedFiring) -> None:
        """Start a firing unless it runs already."""
        with self._idle:
            if firing.name in self._recording:
                self._recording[firing.name] = firing
            if firing.name in self._running:
                return
            self._running.add(firing.name)
        self._go(firing)

    def _go(self, firing: RecordedFiring) -> None:
        self._submit(firing.name, lambda: self._run(firing), turn_of(firing.row))

    def _submit(self, name: str, call: Callable[[], None], turn: Turn | None = None) -> None:
        """Have a pool thread make a call when its turn has come; the call ends with `_ended`."""
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
        except TransactionStateError:  # closed meanwhile: another process recovers it
            _LOG.info("%s is not started, as the database is closed", name)
            self._ended(name)

    def _ended(self, name: str) -> None:
        for begin in self.turns.end(name):
            begin()
        with self._idle:
            self._running.discard(name)
            self._at_work.pop(name, None)
            self._idle.notify_all()
        self._on_ended(self.running)

    @contextmanager
    def telling(self, on_ended: Callable[[int], object]) -> Iterator[None]:
        """Call `on_ended` when a firing has ended, with the number of firings still running."""
        self._on_ended = on_ended
        try:
            yield
        finally:
            self._on_ended = lambda running: None

    def _tell(self) -> None:
        """Wake all waiting threads, so that they look again."""
        with self._idle:
            self._idle.notify_all()

    def _run(self, firing: RecordedFiring) -> None:
        row, item = firing.row, firing.triggered
        has_ended = True
        try:
            if not firing.is_recorded:
                if not self.journal.record([row]):
                    return
                firing = replace(firing, is_recorded=True)
            self.triggering.quarantine.check(item.rule.name)
            is_covered = self.batch_firings.is_unrecorded(firing.name)
            how = {"lazily": is_lazy(row["run"]), "is_covered": is_covered, "fired": firing.fired}
            run = run_of(row, item, self.forest.settings.isolation, **how)
            self.forest.run(self._work_of(row, item), run)
            if run.isolation == "serializable" and firing.fired:
                self.forget_done(sorted(firing.fired))  # those that its snapshot did not show
        except SYSTEMIC as error:
            has_ended = self._leave(firing, error)
        except _DoneElsewhere:
            _LOG.info("another process ran %s", firing.name)
            self.triggering.run_ends.ended_elsewhere(firing.name)
            self._is_durable(row)
        except BaseException as error:
            has_ended = self.give_up(firing, error)
        else:
            self.triggering.quarantine.succeeded(item.rule.name)
            self._is_durable(row)
        finally:
            if has_ended:
                self._ended(firing.name)
            else:
                self._on_ended(self.running)

    def _leave(self, firing: RecordedFiring, error: Exception) -> bool:
        """Give up a firing for now; return True if for good, after `restarts_max` restarts.

        The firing stays recorded, or unfinished until its batch records it.
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
            return self._bury(firing, failed)
        self._restart_later(replace(firing, restarts=number + 1), error)
        _LOG.warning("rule %s is tried again later", rule, exc_info=error)
        return False

    def _restart_later(self, firing: RecordedFiring, error: Exception) -> None:
        self._later(firing, lambda: self._restart(firing, error), firing.restarts - 1, error)

    def _later(
        self, firing: RecordedFiring, call: Callable[[], None], pauses: int, error: Exception
    ) -> None:
        """Make a call for a firing that has not ended, after some pauses before this one."""
        with self._idle:  # so that every reader sees it either run or wait
            self._running.discard(firing.name)
            self.restarts.later(firing.name, call, pauses, typed_text(error))
            self._idle.notify_all()

    def _restart(self, firing: RecordedFiring, error: Exception) -> None:
        """Start a firing again; while the server is away, wait on without counting a restart."""
        if isinstance(error, ConnectionLost):
            try:
                self.journal.standing()
            except ActiveDBError as away:
                self._restart_later(firing, away)
                return
        self._start(firing)

    def _work_of(self, row: dict[str, Any], item: Triggered) -> Callable[[TransactionNode], None]:
        """Return the body of a firing's top-level transaction: run the rule, mark it done."""

        def mark_done(connection: Any, *, in_snapshot: bool) -> None:
            lineage = self.journal.lineage(connection, row) if in_snapshot else None
            keep, on_new = self._end_of(row)
            is_first = self.journal.finish(connection, row, keep=keep, on_new=on_new)
            if lineage is not None and lineage != self.journal.lineage_now(row):
                raise SerializationConflict(
                    f"{row['firing']}: its record has changed since the snapshot of its "
                    f"transaction; retry the transaction"
                )
            if not is_first:
                raise _DoneElsewhere(row["firing"])

        def work(t: TransactionNode) -> None:
            self._at_work[row["firing"]] = t
            in_snapshot = t.hierarchy.session.is_serializable
            t.hierarchy.durable.append(partial(mark_done, in_snapshot=in_snapshot))
            self.triggering.runner.run_rule(t, item)

        return work

    def _end_of(self, row: dict[str, Any]) -> tuple[bool, Callable[[], None] | None]:
        """Return whether the row of a firing that ends now stays, and what to call if it is new.

        It stays if the triggering work may be repeated and must find the firing done. None: it is
        not new.
        """
        if not row["keep"]:
            return False, None
        if not is_of_firing(row["run"]):
            return self.batch_firings.end_of(row["firing"])
        if self.triggering.run_ends.causal.must_stay(row["firing"], row["run"]):
            return True, None
        # If the triggering firing is recorded, the journal itself decides.
        return self.batch_firings.is_unfinished(row["run"]), None

    def _is_durable(self, row: dict[str, Any]) -> None:
        """Note that the outcome of a firing is durable."""
        self.batch_firings.is_durable(row["firing"])
        self.triggering.run_ends.causal.is_durable(row["firing"], row["run"])

    def give_up(self, firing: RecordedFiring, error: BaseException) -> bool:
        """Write a dead letter for a rule that raised; return False if that has to wait."""
        return self._bury(firing, failure_of(firing.triggered.rule.name, error))

    def _bury(self, firing: RecordedFiring, failed: RuleFailed, pauses: int = 0) -> bool:
        """Write a firing's dead letter; if that is impossible now, later: the rule has run."""
        letter = asdict(Letter.of_rule(firing.name, firing.triggered.occurrence, failed))
        is_first = True
        try:
            if firing.is_recorded:
                keep, on_new = self._end_of(firing.row)
                is_first = self.journal.move_to_dead_letters(
                    firing.row,
                    letter,
                    keep=keep,
                    on_new=on_new,
                    also=partial(self.triggering.run_ends.giving_up, run_name=firing.name),
                )
            else:
                self.journal.add_dead_letter(letter)
        except ActiveDBError as error:
            _LOG.warning("the dead letter of %s is written later", firing.name, exc_info=True)
            self._later(firing, lambda: self._bury_again(firing, failed, pauses + 1), pauses, error)
            return False
        self.triggering.counters.add("rules_failed")
        cause = failed.__cause__ or failed
        if not isinstance(cause, SYSTEMIC):
            self.triggering.quarantine.failed(failed.rule, cause)
        self._is_durable(firing.row)
        if is_first:
            self._failed(firing.name)
        else:
            self.triggering.run_ends.ended_elsewhere(firing.name)
        return True

    def _bury_again(self, firing: RecordedFiring, failed: RuleFailed, pauses: int) -> None:
        def bury() -> None:
            if self._bury(firing, failed, pauses):
                self._ended(firing.name)

        self._submit(firing.name, bury)

    def _failed(self, name: str) -> None:
        """Start the exclusive rules of a firing that has failed for good: its letter made them due.

        They may have been triggered in a process that has died meanwhile.
        """
        self.triggering.run_ends.failed(name)
        if self.journal.is_queued:
            return  # workers have been woken up
        try:
            while self.take_over(_CLAIMED_MAX, of_dead=False, run=name):
                pass
        except ActiveDBError:
            _LOG.warning("exclusive rules of %s wait for recovery", name, exc_info=True)

    def _bury_unread(self, row: dict[str, Any], error: BadEvent) -> None:
        """Write a dead letter for a firing whose recorded occurrence cannot be decoded."""
        rule = row["rule"]
        letter = Letter.of_firing(row["firing"], row["occurrence"], failure_of(rule, error))
        self.triggering.counters.add("rules_failed")
        if self.journal.move_to_dead_letters(row, asdict(letter), keep=False):
            self._failed(row["firing"])


def _check_standstill(sleeping: sleeping_for) -> None:
    if sleeping.is_stuck():
        t = current_transaction()
        raise SelfDeadlock(
            f"a detached rule waits for what {t.path if t else 'SQL on db.connection()'} has, "
            "which is open on this thread and would wait for that rule: end it before join()"
        )


class _DoneElsewhere(ActiveDBError):
    """Signal that another process has finished the firing, so this try has to abort."""
