"""Exclusive rules: contingency actions that run if the triggering work fails for good."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    ConnectionLost,
    SerializationConflict,
)
from activedb.firing._firings import line_up
from activedb.firing._letters import Letter
from activedb.firing._triggered import RecordedFiring, Triggered
from activedb.functions import typed_text
from activedb.transactions import Run, TransactionNode
from coupling import Coupling

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue

__all__ = ["Exclusive"]

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Intents:
    """Intents of one piece of work: the exclusive rules that it has triggered.

    Attributes
    ----------
    is_recorded : bool
        True if each intent is recorded at its event.
    is_given_up : bool
        True if the commit after which the work has failed for good records them.
    firings : dict of str to RecordedFiring
        Intents of all tries, by name.
    unsure : dict of str to RecordedFiring
        Intents whose recording is not confirmed.
    of_this_try : set of str
    """

    is_recorded: bool
    is_given_up: bool = False
    firings: dict[str, RecordedFiring] = field(default_factory=dict)
    unsure: dict[str, RecordedFiring] = field(default_factory=dict)
    of_this_try: set[str] = field(default_factory=set)


class Exclusive:
    """Keeper of intents, which decides which of them become runnable once work has ended for good.

    An intent is recorded at the event in a separate transaction, so it survives a crash, which
    counts as an abort. The same occurrence at the same place has the same name in every try. All
    tries therefore share such intents, and an aborted try decides nothing. When the work commits,
    its commit erases the intents whose triggering transaction has committed with it, and those of
    earlier tries; intents whose triggering subtransaction has aborted become runnable. When the
    work has failed for good, or when a workflow's transaction is given up, all intents become
    runnable.

    Two kinds of work do not record intents at the event. A stream's batch is repeated after a
    crash, and with it the firings that it has triggered and not recorded; the commit that ends them
    records the intents that become runnable. A caller's transaction on the memory twin blocks all
    other writers, and no data there survives a crash.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, queue: FiringQueue):
        self._queue = queue
        self._latch = threading.Lock()
        self._works: dict[str, _Intents] = {}

    def has_intents(self, run_name: str) -> bool:
        """Return whether tries of an unfinished run have triggered exclusive rules. O(1)."""
        return run_name in self._works

    def intend(
        self, t: TransactionNode, items: list[Triggered], undated: Container[int]
    ) -> tuple[set[str], list[Letter]]:
        """Note the exclusive rules that an event of `t` triggered; return their names.

        Returns also a letter for each firing whose occurrence cannot be encoded. `undated` is as
        for `named`.
        """
        run, session = t.hierarchy.run, t.hierarchy.session
        if session.is_serializable:
            raise ConfigurationError(
                f"{t.path} triggers the exclusive rule {items[0].rule.name}, and under "
                f"isolation='serializable' it could not see the record of that, which is made "
                f"after its snapshot: run it with isolation='locks'"
            )
        firings, letters = self._queue.prepare(t, items, undated)
        # The set of intents that become runnable together is not known yet.
        line_up(firings, run.name, always=self._queue.has_priorities(Coupling.EXCLUSIVE))
        named = {firing.name: firing for firing in firings}
        is_repeated = run.is_batch or run.is_covered
        can_record = not is_repeated and (t.hierarchy.lends or session.is_shared)
        with self._latch:
            intents = self._works.setdefault(run.name, _Intents(can_record))
            new = {name: each for name, each in named.items() if name not in intents.firings}
        if new and intents.is_recorded:
            with self._latch:
                intents.unsure |= new
            self._queue.journal.intend([firing.row for firing in new.values()])
        with self._latch:
            for name in named:
                intents.unsure.pop(name, None)
            intents.firings |= named
            intents.of_this_try |= named.keys()
        return set(named), letters

    def at_commit_point(self, t: TransactionNode, kept: set[str]) -> None:
        """Erase intents with the commit of the top-level transaction `t`.

        Parameters
        ----------
        kept : set of str
            Intents whose triggering transaction has committed up to `t`.
        """
        run = t.hierarchy.run
        with self._latch:
            intents = self._works.get(run.name)
            if intents is None:
                return
            due = intents.of_this_try - kept
            firings, unsure = dict(intents.firings), sorted(intents.unsure)

        def write(connection: Any) -> None:
            journal = self._queue.journal
            journal.erase_intents(connection, unsure)
            if not intents.is_recorded:
                journal.record_on(connection, [firings[name].row for name in sorted(due)])
            elif not journal.erase_intents(connection, sorted(firings.keys() - due)):
                with self._latch:
                    intents.firings.clear()  # another try has to record its own
                raise SerializationConflict(
                    f"{t.path}: this process was taken for dead, and an exclusive rule of it was "
                    f"started elsewhere; retry the transaction"
                )

        t.hierarchy.durable.append(write)

    def committed(self, run: Run, kept: set[str]) -> None:
        """Start the intents that are runnable, now that the work has committed."""
        with self._latch:
            intents = self._works.pop(run.name, None)
        if intents is not None:
            due = [intents.firings[name] for name in sorted(intents.of_this_try - kept)]
            if intents.is_recorded:
                self._fall_due(due)
            else:
                self._queue.start(due)

    def giving_up(self, connection: Any, run_name: str) -> None:
        """Record unrecorded intents with the commit after which the work has failed for good."""
        with self._latch:
            intents = self._works.get(run_name)
            if intents is None or intents.is_recorded:
                return
            intents.is_given_up = True
            rows = [each.row for each in intents.firings.values()]
        self._queue.journal.record_on(connection, rows)

    def tried(self, run: Run) -> None:
        """Note that a try at the work has aborted; another one may follow."""
        with self._latch:
            intents = self._works.get(run.name)
            if intents is not None:
                intents.of_this_try.clear()

    def failed(self, run_name: str) -> None:
        """Start the intents of all tries, now that the work has failed for good."""
        with self._latch:
            intents = self._works.pop(run_name, None)
        if intents is None:
            return
        if intents.is_recorded:
            self._fall_due([*intents.firings.values(), *intents.unsure.values()])
        elif intents.is_given_up:
            self._queue.start(list(intents.firings.values()))
        else:
            firings = intents.firings.values()
            self._queue.start([replace(firing, is_recorded=False) for firing in firings])

    def ended_elsewhere(self, run_name: str) -> None:
        """Erase the intents of a firing that another process has ended, and has decided on."""
        with self._latch:
            intents = self._works.pop(run_name, None)
        if intents is not None and intents.is_recorded:
            try:
                self._queue.journal.withdraw_intents(intents.firings.keys() | intents.unsure.keys())
            except ActiveDBError:
                _LOG.warning("intents of %s are left", run_name, exc_info=True)

    def _fall_due(self, firings: Iterable[RecordedFiring], number: int = 0) -> None:
        """Start firings that are still intents; retry later while the server is away."""
        named = {firing.name: firing for firing in firings}
        if not named:
            return
        try:
            rows = self._queue.journal.activate_intents(sorted(named))
        except ActiveDBError as error:
            _LOG.warning("rules stay intents for now: %s", ", ".join(named), exc_info=True)
            for firing in named.values():
                self._queue.restarts.later(
                    f"{firing.name} is due",  # another name: `_look` may find the firing
                    lambda firing=firing: self._fall_due([firing], number + 1),  # type: ignore[misc]
                    number,
                    typed_text(error),
                )
            if isinstance(error, ConnectionLost):
                self._queue.look()  # the server may have done it
            return
        self._queue.start([named[row["firing"]] for row in rows])
