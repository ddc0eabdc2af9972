"""Observers of transactions, for display only: monitors, traces, figures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from activedb.store.sql import Key
    from activedb.transactions._node import TransactionNode
    from lockmgr import DeadlockReport, Edge, Mode, Resource

__all__ = ["Link", "Log", "Observer", "Observers"]

_LOG = logging.getLogger(__name__)


class Link(NamedTuple):
    """Wait between two hierarchies, in a deadlock through the server.

    Attributes
    ----------
    waiter, waited_for : Transaction or int
        A top-level transaction of this process, or the number of a server process.
    where : str
        Place of the wait: ``here``, ``at the server`` or ``in its own program``.
    """

    waiter: TransactionNode | int
    waited_for: TransactionNode | int
    where: str


class Log(Protocol):
    """Recorder of one hierarchy's operations, called at the moment that fixes their order."""

    def began(self, t: TransactionNode) -> None:
        """Record that `t` has begun; it has done nothing yet."""

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None:
        """Record that `t` has triggered a rule, to run in the top-level transactions `firing`."""

    def operated(
        self, t: TransactionNode, kind: str, table: str, keys: Iterable[Key] | None = None
    ) -> None:
        """Record that `t` reads, writes, inserts or deletes (`kind`) rows.

        `t` already has the locks. If `keys` is None, `t` reads the whole table.
        """

    def ended(self, t: TransactionNode) -> None:
        """Record that `t` has committed or aborted; it still has its locks."""


class Observer:
    """Base class of passive observers of all transactions of a forest; each method does nothing.

    Methods are called on the thread that makes the step, and must neither wait nor use the
    transaction. For a record of all steps in an order fit for an audit, see `Log`.
    """

    def began(self, t: TransactionNode) -> None:
        """Observe the begin of `t`; its thread may not have entered it yet."""

    def entered(self, t: TransactionNode) -> None:
        """Observe that this thread begins to run the body of `t`."""

    def left(self, t: TransactionNode) -> None:
        """Observe that no thread runs the body of `t` any more; `t` has ended.

        If a block ends on another thread than it began on, which aborts it, the thread differs from
        that of `entered`.
        """

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None:
        """Observe that `t` has triggered a rule, to run in the top-level transactions `firing`."""

    def carried(self, t: TransactionNode) -> str | None:
        """Return data for the record of a firing triggered by `t`: the `origin` of its `Run`."""

    def waits(self, t: TransactionNode, edges: tuple[Edge, ...]) -> None:
        """Observe that `t` is about to sleep in a wait; `edges` are the reasons of the wait."""

    def granted(self, t: TransactionNode, resource: Resource, mode: Mode) -> None:
        """Observe that `t` has acquired a lock, at once or after a wait."""

    def wrote(self, t: TransactionNode, kind: str, table: str, key: Key) -> None:
        """Observe a new version of a row by `t`: an ``"insert"``, ``"write"`` or ``"delete"``."""

    def deadlocked(self, t: TransactionNode, cycle: DeadlockReport | tuple[Link, ...]) -> None:
        """Observe that `t` is rolled back in a deadlock, among local locks or through the server.

        `t` may differ from the victim of the report: a transaction that depends on others is
        rolled back in their place. Called on the thread that found the deadlock.
        """

    def committing(self, t: TransactionNode) -> None:
        """Observe that `t` has done its work, and commits."""

    def failing(self, t: TransactionNode, error: BaseException | None) -> None:
        """Observe that `t` is about to abort, before its children; `error` is the known reason."""

    def ended(self, t: TransactionNode) -> None:
        """Observe that `t` has committed or aborted, and has passed on its locks."""


class Observers(Observer):
    """Composite of several observers, called one after another, only for methods they override.

    An error of an observer is logged (the first one, with its traceback), and reaches neither the
    transaction nor the other observers.

    Attributes
    ----------
    each : tuple of Observer
    """

    def __init__(self, each: tuple[Observer, ...]):
        self.each = each
        self._has_failed = False
        for step in _STEPS:
            # In reverse: the last observer to make something current has to reset it first.
            ordered = reversed(each) if step == "left" else each
            hearing = [
                getattr(one, step)
                for one in ordered
                if getattr(type(one), step) is not getattr(Observer, step)
            ]
            setattr(self, step, self._telling(hearing) if hearing else _tell_nobody)

    def _telling(self, hearing: list[Callable[..., str | None]]) -> Callable[..., str | None]:
        """Return a call to all observers of a step, which returns the first answer, if any."""

        def tell(*of_step: object) -> str | None:
            answer = None
            for one in hearing:
                try:
                    told = one(*of_step)
                except Exception:
                    self._log(one.__qualname__)
                else:
                    answer = answer or told
            return answer

        return tell

    def _log(self, what: str) -> None:
        """Log the first failure of an observer. REQUIRES: an exception is being handled."""
        if not self._has_failed:
            self._has_failed = True
            _LOG.exception("%s has failed, and may again", what)


_STEPS = tuple(name for name in vars(Observer) if not name.startswith("_"))


def _tell_nobody(*of_step: object) -> None:
    """Ignore a step that no observer has a method for."""
