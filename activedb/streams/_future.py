"""Limit on how far ahead of the local clock a timestamp may be."""

from __future__ import annotations

import math
from collections.abc import Callable

from activedb.clock import Clock, in_microseconds, moment_of
from activedb.errors import BadEvent
from activedb.events import Occurrence

__all__ = ["FutureLimit"]


class FutureLimit:
    """Check against timestamps from the future, which would make all later events late.

    Thread-safe.

    Parameters
    ----------
    clock : Clock
        Source of the current time.
    max_s : float
        Maximum distance from now to the start of a timestamp; infinite: no check.
    """

    def __init__(self, clock: Clock, max_s: float):
        self._clock = clock
        self._max_s = max_s
        self._max_us = None if math.isinf(max_s) else round(max_s * 1_000_000)

    def latest_us(self) -> int | None:
        """Return the latest accepted start of a timestamp at this moment; None: unbounded."""
        if self._max_us is None:
            return None
        return in_microseconds(self._clock.now()) + self._max_us

    def checker(self) -> Callable[[Occurrence], None]:
        """Return a function that checks events as `check` does; it reads the clock rarely."""
        latest_us = self.latest_us()
        if latest_us is None:
            return lambda o: None

        def check(o: Occurrence) -> None:
            if o.low_us > latest_us:  # by now it may be in time
                self.check(f"event {o.name!r}", o.low_us)

        return check

    def check(self, what: str, low_us: int) -> None:
        """Check a timestamp.

        Parameters
        ----------
        what : str
            Description of the timestamp's owner, for the error.
        low_us : int
            Start of the timestamp: the lower end of its interval, so that the clock's error counts.

        Raises
        ------
        BadEvent
            If it is too far in the future.
        """
        if self._max_us is None:
            return
        now = self._clock.now()
        if low_us - in_microseconds(now) <= self._max_us:
            return
        raise BadEvent(
            f"{what} is of {_shown(low_us)} at the earliest, but it is {now.isoformat()} here, and "
            f"a timestamp may be at most {self._max_s:g} s ahead: correct the clock or the "
            "sender's timestamps, give it a stamp with its clock's error, or raise the "
            "setting future_max_s"
        )


def _shown(us: int) -> str:
    try:
        return moment_of(us).isoformat()
    except OverflowError:
        return f"{us} µs after 1970"
