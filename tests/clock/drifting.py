"""Clock of a simulated node, wrong but correct: true time is within its bounds for every seed.

All computations are in integers: billionths of a microsecond.
"""

from __future__ import annotations

import random
import threading
from fractions import Fraction

from activedb.clock import ClockStatus, Reading, SimulatedClock, in_microseconds
from activedb.errors import ConfigurationError

_NANO = 10**9
_OFFSET_US_MAX = 10**12


class DriftingClock:
    """Simulated clock of a node that drifts, is synchronised now and then, and is correct.

    Its readings are random, but from a seed; equal calls at equal times give equal readings. True
    time is always within a reading ± its error:

    - At a synchronisation the virtual clock is set to true time plus a new random offset of at most
      `error_us`. From then on it drifts, at a rate of at most `drift_rate`, and its reported error,
      the synchronisation distance, grows at that rate.
    - The local clock drifts at a new random rate for each reading, at most `drift_rate`, and its
      discipline moves it forward and back by at most `adjustment_us` in all; it counts in steps of
      `granularity_us` and never goes back. So for true times s ≤ t ``C(t) − C(s) ≤ (1 + drift_rate)
      (t − s) + granularity_us + adjustment_us``.

    Parameters
    ----------
    true : SimulatedClock
        Reference time.
    seed : int
        Seed of all random values.
    error_us : int, optional
        Upper bound of the error right after a synchronisation.
    offset_us : int, optional
        The first offset of the virtual clock, at most `error_us` either way; None: random.
    drift_rate : float, optional
        ρ, without unit.
    granularity_us : int, optional
        G, the step of the local clock: at least 1.
    adjustment_us : int, optional
        u, the largest adjustment of the local clock by its discipline.
    resync_s : float or None, optional
        Time between synchronisations; None: only at the start and when `resync` is called.

    Raises
    ------
    ConfigurationError
        If a parameter is out of range.
    """

    def __init__(
        self,
        true: SimulatedClock,
        *,
        seed: int,
        error_us: int = 1000,
        offset_us: int | None = None,
        drift_rate: float = 1e-4,
        granularity_us: int = 1,
        adjustment_us: int = 0,
        resync_s: float | None = 64.0,
    ):
        if error_us < 0 or adjustment_us < 0 or granularity_us < 1 or not 0 <= drift_rate < 1:
            raise ConfigurationError(
                "a drifting clock needs error_us and adjustment_us of 0 or more, granularity_us of "
                "1 or more and a drift_rate from 0 to below 1, not "
                f"{error_us}, {adjustment_us}, {granularity_us} and {drift_rate}"
            )
        if offset_us is not None and abs(offset_us) > error_us:
            raise ConfigurationError(
                f"an offset of {offset_us} µs is more than the error of {error_us} µs that the "
                "clock would tell: raise error_us"
            )
        self._true = true
        self._random = random.Random(seed)  # a simulation, not a secret
        self._error_us = error_us
        # In parts per billion, so that everything below is integers.
        self._drift_ppb = int(Fraction(repr(drift_rate)) * _NANO)
        self._granularity_us = granularity_us
        self._adjustment_us = adjustment_us
        self._resync_us = None if resync_s is None else round(resync_s * 1_000_000)
        self._latch = threading.Lock()
        # All attributes below are guarded by _latch.
        self._read_us = self._true_us()
        # Drifting values are in billionths of a microsecond.
        self._hardware = self._random.randrange(_OFFSET_US_MAX) * _NANO
        self._local_us = 0
        self._synced_us = self._read_us
        self._offset = 0
        self._synchronize(offset_us)

    def read(self) -> Reading:
        """Return the time now, with its error."""
        with self._latch:
            now_us = self._true_us()
            elapsed_us = now_us - self._read_us
            self._read_us = now_us
            self._hardware += elapsed_us * (_NANO + self._drawn_ppb())
            adjusted = self._hardware + self._random.randint(0, self._adjustment_us) * _NANO
            step = self._granularity_us * _NANO
            self._local_us = max(self._local_us, adjusted // step * self._granularity_us)
            self._offset += elapsed_us * self._drawn_ppb()
            if self._resync_us is not None and now_us - self._synced_us >= self._resync_us:
                self._synchronize(None)
            # Rounded up: truncation must not weaken a bound. One more for the offset's own
            # truncation.
            grown_us = -((self._synced_us - now_us) * self._drift_ppb // _NANO)
            return Reading(
                now_us + self._offset // _NANO,
                self._error_us + grown_us + 1,
                ClockStatus.SIMULATED,
                self._local_us,
            )

    def resync(self) -> None:
        """Synchronise now: the offset is drawn again, the error is minimal again."""
        self.read()  # the drift up to now
        with self._latch:
            self._synchronize(None)

    def _synchronize(self, offset_us: int | None) -> None:
        """Set the virtual clock. REQUIRES: `_latch`, except in ``__init__``."""
        if offset_us is None:
            offset_us = self._random.randint(-self._error_us, self._error_us)
        self._offset = offset_us * _NANO
        self._synced_us = self._read_us

    def _drawn_ppb(self) -> int:
        return self._random.randint(-self._drift_ppb, self._drift_ppb)

    def _true_us(self) -> int:
        return in_microseconds(self._true.now())
