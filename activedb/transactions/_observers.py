"""Who hears of transactions to show what they do: monitors, traces, figures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from activedb.store.sql import Key
    from activedb.transactions._transaction import Transaction
    from lockmgr import DeadlockReport, Edge, Mode, Resource

__all__ = ["Link", "Observer", "Observers"]

_LOG = logging.getLogger(__name__)


class Link(NamedTuple):
    """One wait of a deadlock through the server, of hierarchies that wait for each other's end.

    Attributes
    ----------
    waiter, waited_for : Transaction or int
        A top-level transaction of this process, or the number of a process of the server.
    where : str
        Where it waits: ``here``, ``at the server`` or ``in its own program``.
    """

    waiter: Transaction | int
    waited_for: Transaction | int
    where: str


class Observer:
    """Hears of every transaction of a forest, and changes nothing; each method does nothing here.

    They are called on the thread that makes the step, and must neither wait nor use the
    transaction. What hears of all steps in an order that an auditor can rely on is a `Log`.
    """

    def began(self, t: Transaction) -> None:
        """`t` has begun; its thread may not have entered it yet."""

    def entered(self, t: Transaction) -> None:
        """This thread begins to run what is inside `t`."""

    def left(self, t: Transaction) -> None:
        """Nobody runs anything inside `t` any more; `t` has ended.

        On another thread than `entered` if a block ends elsewhere than it began, which aborts it.
        """

    def spawned(self, t: Transaction, firing: str, coupling: str) -> None:
        """`t` has triggered a rule that is to run in the top-level transactions `firing`."""

    def carried(self, t: Transaction) -> str | None:
        """What the record of a firing that `t` triggers carries, for the `origin` of its `Run`."""

    def waits(self, t: Transaction, edges: tuple[Edge, ...]) -> None:
        """`t` is about to sleep, for a lock or an end; `edges`: for whom it waits, and why."""

    def granted(self, t: Transaction, resource: Resource, mode: Mode) -> None:
        """`t` has got a lock, at once or after a wait."""

    def wrote(self, t: Transaction, kind: str, table: str, key: Key) -> None:
        """`t` has made a version of a row: an ``"insert"``, ``"write"`` or ``"delete"``."""

    def deadlocked(self, t: Transaction, cycle: DeadlockReport | tuple[Link, ...]) -> None:
        """`t` has to give way in a deadlock, found among the locks here or through the server.

        It may not be the victim of the report: a transaction that depends on others gives way to
        them. Called by whoever found the deadlock, perhaps on another thread.
        """

    def committing(self, t: Transaction) -> None:
        """`t` has done its work, and commits."""

    def failing(self, t: Transaction, error: BaseException | None) -> None:
        """`t` is going to abort, because of `error` if that is known; its children have not yet."""

    def ended(self, t: Transaction) -> None:
        """`t` has committed or aborted; its locks are passed on already."""


class Observers(Observer):
    """Several observers, told one after another, and each only of what it has a method for.

    An error of one is logged, the first time with where it arose, and reaches neither the
    transaction nor the others.

    Attributes
    ----------
    each : tuple of Observer
    """

    def __init__(self, each: tuple[Observer, ...]):
        self.each = each
        self._has_failed = False
        for step in _STEPS:
            # Who was last to make something current is first to take it back.
            ordered = reversed(each) if step == "left" else each
            hearing = [
                getattr(one, step)
                for one in ordered
                if getattr(type(one), step) is not getattr(Observer, step)
            ]
            setattr(self, step, self._telling(hearing) if hearing else _tell_nobody)

    def _telling(self, hearing: list[Callable[..., str | None]]) -> Callable[..., str | None]:
        """What tells them of a step; it gives the first answer, if there is any."""

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
        """REQUIRES: an exception is being handled."""
        if not self._has_failed:
            self._has_failed = True
            _LOG.exception("%s has failed, and may again", what)


_STEPS = tuple(name for name in vars(Observer) if not name.startswith("_"))


def _tell_nobody(*of_step: object) -> None:
    """Of a step for which no observer has a method."""
