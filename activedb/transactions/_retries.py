"""Retries: the retryable errors, their number, and the backoff."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from activedb.config import Settings
from activedb.errors import (
    ConnectionLost,
    Deadlock,
    LockNotAvailable,
    LockTimeout,
    SerializationConflict,
)
from activedb.metrics import NamedCounters

if TYPE_CHECKING:
    from activedb.transactions._deadlines import Limit
    from activedb.transactions._hierarchy import Hierarchy, Kin

__all__ = ["Retries"]

T = TypeVar("T")

_CAUSES: dict[type[Exception], str] = {
    Deadlock: "deadlocks",
    LockTimeout: "lock_timeouts",
    SerializationConflict: "serialization_conflicts",
    ConnectionLost: "connections_lost",
}


class Superior(Protocol):
    """Transaction within which attempts are made: what retries use of a `TransactionNode`."""

    @property
    def id(self) -> int: ...

    @property
    def parent(self) -> Superior | None: ...

    @property
    def kin(self) -> Kin: ...

    @property
    def hierarchy(self) -> Hierarchy: ...

    @property
    def is_rollback_only(self) -> bool: ...


class Retries:
    """Loop of attempts, until one succeeds or a retry is pointless.

    Parameters
    ----------
    around : callable
        Returns the transaction open on this thread, around a top-level attempt; None if none is.

    Attributes
    ----------
    random : random.Random
        Source of the pauses' lengths.
    wait : callable ``(event, seconds)``
        Pauses, at most until the event is set; tests may replace it by a faster one.
    """

    def __init__(
        self, settings: Settings, counters: NamedCounters, around: Callable[[], Superior | None]
    ):
        self.random = random.Random()  # noqa: S311  # spreads retries, no secret
        self.wait: Callable[[threading.Event, float], object] = threading.Event.wait
        self._around = around
        self._settings = settings
        self._counters = counters

    def run(
        self,
        attempt: Callable[[], T],
        *,
        name: Callable[[], str],
        within: Superior | None = None,
        limit: Limit | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> T:
        """Call `attempt`, again after each retryable failure.

        Parameters
        ----------
        name : callable
            Returns the name of the work, for messages.
        within : Superior, optional
            The parent of the attempts' transactions. If its flat transaction is broken, or the
            retries are used up, the error is left to its superiors.
        limit : Limit, optional
            Time limit for all attempts together.
        stopped : callable
            Returns whether the next attempt will be refused, so that no pause is needed.
        """
        for number in itertools.count(1):
            try:
                return attempt()
            except BaseException as error:
                if not self._is_worth_another(error, number, within):
                    if number > 1:
                        error.add_note(f"{name()} was tried {number} times")
                    raise
                self._counters.add(f"retries_after_{_cause(error)}")
                self._pause(error, number, within, limit, stopped)
                if limit is not None and limit.left_s <= 0:
                    timeout = limit.error(name())
                    timeout.add_note(f"{name()} was tried {_times(number)}")
                    raise timeout from error
                self._counters.add("transactions_retried")
        raise AssertionError("unreachable")

    def _is_worth_another(self, error: BaseException, number: int, within: Superior | None) -> bool:
        """Return whether to retry after the `number`-th attempt has failed with `error`."""
        if not isinstance(error, tuple(_CAUSES)) or isinstance(error, LockNotAvailable):
            return False
        inside = within is not None
        if isinstance(error, ConnectionLost) and (inside or error.committed is not False):
            return False
        if isinstance(error, Deadlock) and _is_in_line(error.breaker, within or self._around()):
            return False  # the cycle would recur: a superior has to retry
        is_spent = number > self._settings.retries_max
        if is_spent:
            self._counters.add("retries_exhausted")
        if within is not None:
            # Inside a hierarchy only a deadlock is retried: a lock that was not granted in time
            # will not be granted as long as the superiors keep their locks.
            is_spent |= not isinstance(error, Deadlock) or error.exhausted
            is_spent |= within.hierarchy.session.failure is not None or within.is_rollback_only
        if is_spent and isinstance(error, Deadlock):
            error.exhausted = True
        return not is_spent

    def delay_s(self, error: BaseException, number: int) -> float:
        """Return a random backoff in seconds after the `number`-th attempt failed with `error`.

        The longest pause doubles, up to a bound, with each attempt. After a deadlock or a conflict
        the pause is any part of it ("full jitter"), so that the same transactions do not collide
        again. After a lost connection it is at least half, because a server needs time to restart.
        """
        s = self._settings
        if isinstance(error, ConnectionLost):
            longest_ms = min(s.reconnect_pause_ms * 2 ** (number - 1), s.reconnect_pause_ms_max)
            return self.random.uniform(longest_ms / 2, longest_ms) / 1_000
        longest_ms = min(s.retry_pause_ms * 2 ** (number - 1), s.retry_pause_ms_max)
        return self.random.uniform(0, longest_ms) / 1_000

    def _pause(
        self,
        error: BaseException,
        number: int,
        within: Superior | None,
        limit: Limit | None,
        stopped: Callable[[], bool],
    ) -> None:
        delay_s = self.delay_s(error, number)
        if limit is not None:
            delay_s = max(0.0, min(delay_s, limit.left_s))
        if within is None:
            self.wait(threading.Event(), delay_s)
        else:
            parent = within
            parent.kin.pause(
                lambda event: self.wait(event, delay_s),
                lambda: stopped() or parent.is_rollback_only,
            )


def _is_in_line(tid: int, node: Superior | None) -> bool:
    """Return whether `tid` is `node` or a superior of it; O(depth)."""
    while node is not None and node.id != tid:
        node = node.parent
    return node is not None


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _cause(error: BaseException) -> str:
    return next(name for kind, name in _CAUSES.items() if isinstance(error, kind))
