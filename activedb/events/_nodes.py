"""Nodes: the places that detect events and stamp them."""

from __future__ import annotations

import logging
import threading
import uuid
from fractions import Fraction

from activedb.clock import ClockSource
from activedb.errors import ConfigurationError
from activedb.events._accuracy import AccuracyInterval, LocalClock

__all__ = ["Node"]

log = logging.getLogger("activedb.events")


class Node:
    """Place where events are detected. Thread-safe.

    Timestamps are ``[reading − error − detection delay, reading + error]`` (Liebig, Cilia,
    Buchmann, section III.C), tightened by their order. An event was not detected before the event
    stamped before it, so it did not occur before the earliest moment at which that event can have
    occurred. Lower ends therefore never decrease, even when the synchronisation distance grows from
    one reading to the next. Thus a published sync point stays valid (section V, footnote 1).

    Parameters
    ----------
    name : str
        The producer's name; unique among all producers.
    source : ClockSource
        Its clock.
    detection_delay_us : int, optional
        ldd: upper bound on the delay from an event to the end of `stamp`.
    drift_rate : float, optional
        ρ of the local clock, dimensionless.
    granularity_us : int, optional
        G of the local clock: at least 1.
    adjustment_us : int, optional
        u: upper bound on how far clock discipline moves the local clock forward.
    incarnation : str, optional
        Distinguishes the local clock from itself before a restart of the machine. None: a new value
        for each object, so that its readings are comparable only with each other.

    Raises
    ------
    ConfigurationError
        If an argument is out of range.
    """

    def __init__(
        self,
        name: str,
        source: ClockSource,
        *,
        detection_delay_us: int = 0,
        drift_rate: float = 1e-4,
        granularity_us: int = 1,
        adjustment_us: int = 0,
        incarnation: str | None = None,
    ):
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"a node needs a name, a non-empty string, not {name!r}")
        if not 0 <= drift_rate < 1:
            raise ConfigurationError(
                f"node {name!r}: a drift rate is from 0 to below 1 (1e-4, say), not {drift_rate}"
            )
        if detection_delay_us < 0 or adjustment_us < 0 or granularity_us < 1:
            raise ConfigurationError(
                f"node {name!r}: detection_delay_us and adjustment_us are 0 or more, "
                f"granularity_us 1 or more, not {detection_delay_us}, {adjustment_us} and "
                f"{granularity_us}"
            )
        self.name = name
        self.source = source
        self.local_clock = LocalClock(
            uuid.uuid4().hex if incarnation is None else incarnation,
            detection_delay_us,
            # repr: 1e-4 means a ten-thousandth, not the nearest float. Round up, as it is a bound.
            -int(-Fraction(repr(float(drift_rate))) * 10**9 // 1),
            granularity_us,
            adjustment_us,
        )
        self._latch = threading.Lock()
        self._floor_us: int | None = None  # the largest lower end issued; guarded by _latch
        self._contradicted = False  # guarded by _latch

    def begin_after(self, us: int) -> None:
        """Promise that events this node detects from now on occurred at `us` or later.

        Call it for a producer that joins others, with the value that `Producers.register` returns.
        """
        with self._latch:
            self._floor_us = us if self._floor_us is None else max(us, self._floor_us)

    def stamp(self) -> AccuracyInterval:
        """Return the timestamp of an event detected just now, or of a heartbeat.

        If the clock was put back by more than its stated error, the lower end does decrease. That
        contradiction is logged: consumers that have the sync point will treat the event as late.
        """
        # Read under the latch, so that the order of stamps is the order of readings.
        with self._latch:
            reading = self.source.read()
            clock = self.local_clock
            lower_us = reading.reference_us - reading.error_us - clock.detection_delay_us
            upper_us = reading.reference_us + reading.error_us
            reading_us, floor_us = reading.reference_us, self._floor_us
            contradicted = floor_us is not None and upper_us < floor_us
            if floor_us is None or lower_us > floor_us:
                self._floor_us = lower_us
            elif not contradicted:
                lower_us, reading_us = floor_us, max(reading_us, floor_us)
            warn = contradicted and not self._contradicted
            self._contradicted = contradicted
        if warn:
            log.warning(
                "the clock of node %r was put back by more than its error: it reads at most %d µs, "
                "and had said that this is past %d µs; its events are late until it catches up",
                self.name,
                upper_us,
                floor_us,
            )
        return AccuracyInterval(
            reading_us, lower_us, upper_us, reading.status, self.name, reading.local_us, clock
        )
