"""A clock source with an error that somebody vouches for."""

from __future__ import annotations

from activedb.clock._epoch import in_microseconds
from activedb.clock._protocol import Clock, ClockStatus, Reading
from activedb.errors import ConfigurationError

__all__ = ["FixedErrorClock"]


class FixedErrorClock:
    """Readings of `clock`, each with the same error.

    For nodes whose synchronisation is watched over by other means, and for platforms whose kernel
    does not tell the error of its clock.

    Parameters
    ----------
    clock : Clock
        Where the time comes from.
    error_us : int
        How far a reading may be from reference time, at most.

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
        # Floor, as a clock that counts whole microseconds would: that is what granularity covers.
        local_us = int(self._clock.monotonic_s() * 1_000_000)
        return Reading(reference_us, self._error_us, ClockStatus.FIXED, local_us)
