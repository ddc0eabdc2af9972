"""Gates: what every access passes, so that somebody may choose the order of accesses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from activedb.errors import ConfigurationError
from activedb.scheduling._s_transactions import At

__all__ = ["Choose", "Gate", "Stopped", "Turns"]

Choose = Callable[[Sequence[At]], At]
"""Picks, of those who stand at an access, oldest first, who goes on; `random.choice` is one."""


class Stopped(BaseException):
    """The run has failed elsewhere: its threads end. No `Exception`, so that nobody handles it."""


class Gate(Protocol):
    """Hears of all that the threads of a run do; may hold them.

    What one of its methods raises ends the run, which raises it.
    """

    def start(self, threads: int) -> None:
        """A run begins, with so many threads."""
        ...

    def access(self, at: At, what: str) -> None:
        """An s-transaction is about to read or write; returns when it may."""
        ...

    def blocked(self, at: At) -> None:
        """An s-transaction begins to wait for a lock."""
        ...

    def unblocked(self, at: At) -> None:
        """It has been granted, by the thread that says so."""
        ...

    def leave(self) -> None:
        """A thread has ended."""
        ...

    def stop(self) -> None:
        """Whoever is held raises `Stopped`."""
        ...


class Turns:
    """Lets one s-transaction at a time go on, from access to access: a run that can be repeated.

    It is the seeded scheduler for tests of interleavings, of this package and of programs that
    use it; other runs have no gate, as with it nothing happens at the same time. When all threads
    stand at an access, wait for a lock, or have ended, one of those at an access is chosen. It may
    be used for one run after the other, also after one that has failed.

    Parameters
    ----------
    choose : callable
        ``choose(standing)``: one of the timestamps that it is given, which are sorted. If it
        raises, or gives another, the run ends with that error.

    Attributes
    ----------
    trace : list of (At, str)
        The accesses, in the order in which they were made.
    waiting : set of At
        Who waits for a lock; to be looked at by `choose`.

    Examples
    --------
    >>> import random
    >>> from activedb.scheduling.locking import LWM, Turns
    >>> turns = Turns(random.Random(7).choice)  # the same seed: the same interleaving
    >>> scheduler = LWM("row", threads=3, gate=turns)
    """

    def __init__(self, choose: Choose):
        self._choose = choose
        self._latch = threading.Lock()
        self._running = 0
        self._standing: dict[At, threading.Condition] = {}
        self._is_stopped = False
        self.trace: list[tuple[At, str]] = []
        self.waiting: set[At] = set()

    def start(self, threads: int) -> None:
        """So many threads run from now on, and none of an earlier run."""
        with self._latch:
            self._running = threads
            self._is_stopped = False
            self._standing.clear()
            self.waiting.clear()

    def access(self, at: At, what: str) -> None:
        """Stand until chosen.

        Raises
        ------
        Stopped
            If the run has failed elsewhere.
        """
        with self._latch:
            condition = threading.Condition(self._latch)
            self._standing[at] = condition
            self._rest()
            while at in self._standing and not self._is_stopped:
                condition.wait()
            if self._is_stopped:
                raise Stopped
            self.trace.append((at, what))

    def blocked(self, at: At) -> None:
        """One less runs."""
        with self._latch:
            self.waiting.add(at)
            self._rest()

    def unblocked(self, at: At) -> None:
        """One more runs."""
        with self._latch:
            self.waiting.discard(at)
            self._running += 1

    def leave(self) -> None:
        """One less runs."""
        with self._latch:
            self._rest()

    def stop(self) -> None:
        """Wake all who stand."""
        with self._latch:
            self._is_stopped = True
            for condition in self._standing.values():
                condition.notify()

    def _rest(self) -> None:
        self._running -= 1
        if self._running or self._is_stopped:
            return
        if self._standing:
            chosen = self._choose(sorted(self._standing))
            condition = self._standing.pop(chosen, None)
            if condition is None:
                raise ConfigurationError(
                    f"the order of accesses chose {chosen!r}, which stands at none: choose one of "
                    "the timestamps that are given"
                )
            self._running = 1
            condition.notify()
        else:
            assert not self.waiting, f"all wait for locks: {sorted(self.waiting)}"
