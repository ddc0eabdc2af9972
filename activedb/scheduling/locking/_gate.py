"""Gates: hooks on every access of a run, through which tests choose the order of accesses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from activedb.errors import ConfigurationError
from activedb.scheduling._operations import At

__all__ = ["Choose", "Gate", "Stopped", "TurnGate"]

Choose = Callable[[Sequence[At]], At]
"""Function that picks the next of the waiting timestamps, oldest first; `random.choice` is one."""


class Stopped(BaseException):
    """Signal that the run has failed elsewhere and its threads must end.

    Not an `Exception`, so that no handler of the user's catches it.
    """


class Gate(Protocol):
    """Observer of the threads of a run, which may delay them.

    An exception raised by one of its methods ends the run, which raises it.
    """

    def start(self, threads: int) -> None:
        """Begin a run with the given number of threads."""
        ...

    def access(self, at: At, what: str) -> None:
        """Return when an s-transaction, about to read or write, may do so."""
        ...

    def blocked(self, at: At) -> None:
        """Record that an s-transaction begins to wait for a lock."""
        ...

    def unblocked(self, at: At) -> None:
        """Record that its lock is granted; called by the granting thread."""
        ...

    def leave(self) -> None:
        """Record that a thread has ended."""
        ...

    def stop(self) -> None:
        """Make all delayed threads raise `Stopped`."""
        ...


class TurnGate:
    """Gate that lets one s-transaction at a time proceed, from access to access: reproducible runs.

    It is the seeded scheduler for tests of interleavings, of this package and of programs that use
    it. Other runs have no gate, since a gate prevents all parallelism. Once all threads stand at an
    access, wait for a lock, or have ended, one of those at an access is chosen. A `TurnGate` may be
    used for several runs in succession, also after a failed run.

    Parameters
    ----------
    choose : callable
        ``choose(standing)`` returns one of the timestamps given, which are sorted. If it raises, or
        returns another value, the run ends with that error.

    Attributes
    ----------
    trace : list of (At, str)
        The accesses, in the order in which they were made.
    waiting : set of At
        The s-transactions that wait for a lock; `choose` may read it.

    Examples
    --------
    >>> import random
    >>> from activedb.scheduling.locking import LWM, TurnGate
    >>> gate = TurnGate(random.Random(7).choice)  # the same seed: the same interleaving
    >>> scheduler = LWM("row", threads=3, gate=gate)
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
        """Begin a run with the given number of threads, and forget any earlier run."""
        with self._latch:
            self._running = threads
            self._is_stopped = False
            self._standing.clear()
            self.waiting.clear()

    def access(self, at: At, what: str) -> None:
        """Wait until chosen.

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
        """Count one running thread less."""
        with self._latch:
            self.waiting.add(at)
            self._rest()

    def unblocked(self, at: At) -> None:
        """Count one running thread more."""
        with self._latch:
            self.waiting.discard(at)
            self._running += 1

    def leave(self) -> None:
        """Count one running thread less."""
        with self._latch:
            self._rest()

    def stop(self) -> None:
        """Wake all threads that wait at an access."""
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
