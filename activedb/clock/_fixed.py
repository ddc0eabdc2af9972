"""Clock source with a fixed, configured error."""

from __future__ import annotations

from activedb.clock._epoch import in_microseconds
from activedb.clock._protocol import Clock, ClockStatus, Reading
from activedb.errors import ConfigurationError

__all__ = ["FixedErrorClock"]


class FixedErrorClock:
    """Readings of `clock`, each with the same error.

    For nodes whose synchronisation is monitored by other means, and for platforms whose kernel does
    not report the error of its clock.

    Parameters
    ----------
    clock : Clock
        Source of the time.
    error_us : int
        Upper bound on the distance between a reading and reference time.

    Raises
    ------
    ConfigurationError
        If the error is negative.
    """

    def __init__(self, clock: Clock, error_us: int):
        if error_us < 0:
            raise ConfigurationError(f"the error of a clock is 0 µs or more, not {error_us}")
        self._clock = clock
        self._error_us = error_us

    def read(self) -> Reading:
        """Return the time now, with the fixed error."""
        reference_us = in_microseconds(self._clock.now())
        # Floor, like a clock that counts whole microseconds: the granularity covers it.
        local_us = int(self._clock.monotonic_s() * 1_000_000)
        return Reading(reference_us, self._error_us, ClockStatus.FIXED, local_us)
