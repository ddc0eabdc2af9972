"""Exclusive rules: what is to happen if the work that triggered them comes to nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from activedb.errors import ActiveDBError, ConnectionLost, SerializationConflict
from activedb.firing._firings import line_up
from activedb.firing._letters import Letter
from activedb.firing._triggered import Firing, Triggered
from activedb.transactions import Run, Transaction
from coupling import Coupling

if TYPE_CHECKING:
    from activedb.firing._launcher import Launcher

__all__ = ["Exclusive"]

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Intents:
    """The exclusive rules that some work has triggered.

    Attributes
    ----------
    is_recorded : bool
        Whether each was recorded at its event.
    firings : dict of str to Firing
        Those of all tries, by name.
    unsure : dict of str to Firing
        Intents whose recording has not been confirmed.
    of_this_try : set of str
    """

    is_recorded: bool
    firings: dict[str, Firing] = field(default_factory=dict)
    unsure: dict[str, Firing] = field(default_factory=dict)
    of_this_try: set[str] = field(default_factory=set)


class Exclusive:
    """Keeps intents, and decides when work has ended for good which of them fall due.

    An intent is recorded at the event, in a transaction of its own, so that a crash, which is an
    abort, leaves it. The same occurrence at the same place has the same name in every try, so
    tries have such intents in common, and an aborted try decides nothing. When the work commits,
    those whose triggering transaction has committed with it are erased by that commit, and those
    of earlier tries; those whose triggering subtransaction has aborted fall due. When the work has
    failed for good, all do; so do those of a workflow's transaction that is given up.

    Two are not recorded at the event. A stream's batch is done again after a crash, and its commit
    records what falls due. A caller's transaction on the memory twin keeps all others waiting, and
    nothing there survives a crash.

    Latch: ``_latch``; nothing is taken under it.
    """

    def __init__(self, launcher: Launcher):
        self._launcher = launcher
        self._latch = threading.Lock()
        self._works: dict[str, _Intents] = {}

    def intend(
        self, t: Transaction, items: list[Triggered], event: int, undated: Container[int]
    ) -> tuple[set[str], list[Letter]]:
        """Take note of what the `event`-th event of `t` triggered; returns the names of firings.

        Returns with them a letter for each whose occurrence cannot be kept. `undated` is as for
        `named`.
        """
        run, session = t.hierarchy.run, t.hierarchy.session
        firings, letters = self._launcher.prepare(t, items, event, undated)
        # Which of them will fall due together is not known yet.
        line_up(firings, run.name, always=self._launcher.has_priorities(Coupling.EXCLUSIVE))
        named = {firing.name: firing for firing in firings}
        can_record = not run.is_batch and (t.hierarchy.lends or session.is_shared)
        with self._latch:
            intents = self._works.setdefault(run.name, _Intents(can_record))
            new = [firing.row for name, firing in named.items() if name not in intents.firings]
        if new and intents.is_recorded:
            with self._latch:
                intents.unsure |= named
            self._launcher.journal.intend(new)
        with self._latch:
            for name in named:
                intents.unsure.pop(name, None)
            intents.firings |= named
            intents.of_this_try |= named.keys()
        return set(named), letters

    def at_commit_point(self, t: Transaction, kept: set[str]) -> None:
        """Erase intents with the commit of the top-level transaction `t`.

        Parameters
        ----------
        kept : set of str
            Those whose triggering transaction has committed as far as to `t`.
        """
        run = t.hierarchy.run
        with self._latch:
            intents = self._works.get(run.name)
            if intents is None:
                return
            due = intents.of_this_try - kept
            firings, unsure = dict(intents.firings), sorted(intents.unsure)

        def write(connection: Any) -> None:
            journal = self._launcher.journal
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
        """The work has committed: start what has fallen due."""
        with self._latch:
            intents = self._works.pop(run.name, None)
        if intents is not None:
            due = [intents.firings[name] for name in sorted(intents.of_this_try - kept)]
            if intents.is_recorded:
                self._fall_due(due)
            else:
                self._launcher.start(due)

    def giving_up(self, connection: Any, run_name: str) -> None:
        """Record all that a batch has triggered in any try, with the commit that gives it up."""
        with self._latch:
            intents = self._works.get(run_name)
            rows = [] if intents is None else [each.row for each in intents.firings.values()]
        self._launcher.journal.record_on(connection, rows)

    def given_up(self, run_name: str) -> None:
        """That commit has been made: start what it has recorded."""
        with self._latch:
            intents = self._works.pop(run_name, None)
        if intents is not None:
            self._launcher.start(list(intents.firings.values()))

    def tried(self, run: Run) -> None:
        """A try at the work has aborted; there may be another one."""
        with self._latch:
            intents = self._works.get(run.name)
            if intents is not None:
                intents.of_this_try.clear()

    def failed(self, run_name: str) -> None:
        """The work has failed for good: start all that it has triggered in any try."""
        with self._latch:
            intents = self._works.pop(run_name, None)
        if intents is not None and intents.is_recorded:
            self._fall_due([*intents.firings.values(), *intents.unsure.values()])
        elif intents is not None:
            self._launcher.start_late(list(intents.firings.values()))

    def _fall_due(self, firings: Iterable[Firing], number: int = 0) -> None:
        """Start firings that are still intents; if the server is away, once it is back."""
        named = {firing.name: firing for firing in firings}
        if not named:
            return
        try:
            rows = self._launcher.journal.fall_due(sorted(named))
        except ActiveDBError as error:
            _LOG.warning("rules stay intents for now: %s", ", ".join(named), exc_info=True)
            for firing in named.values():
                self._launcher.restarts.later(
                    f"{firing.name} falls due",  # not itself: who looks may find that it has
                    lambda firing=firing: self._fall_due([firing], number + 1),  # type: ignore[misc]
                    number,
                    f"{type(error).__name__}: {error}",
                )
            if isinstance(error, ConnectionLost):
                self._launcher.look()  # it may have been done
            return
        self._launcher.start([named[row["firing"]] for row in rows])
