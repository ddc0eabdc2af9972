"""Nodes: where events are detected and get their timestamps."""

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
    """A place where events are detected; safe to share between threads.

    Its timestamps are ``[reading − error − detection delay, reading + error]`` (Liebig, Cilia,
    Buchmann, section III.C), with one thing drawn from their order. An event was not detected
    before the one that was stamped before it, so it did not occur before the earliest moment at
    which that one can have occurred: the lower ends never go back, not even when the
    synchronisation distance grows from one reading to the next. That keeps a sync point true once
    it is told (section V, footnote 1).

    Parameters
    ----------
    name : str
        The producer's name, different from that of all others.
    source : ClockSource
        Its clock.
    detection_delay_us : int, optional
        ldd: from an event to the end of `stamp`, at most.
    drift_rate : float, optional
        ρ of the local clock, without unit.
    granularity_us : int, optional
        G of the local clock: at least 1.
    adjustment_us : int, optional
        u: how far the discipline of the local clock moves it forward, at most.
    incarnation : str, optional
        Tells the local clock from itself before the machine was started anew. None: a new one for
        each object, so that its readings compare with its own only.

    Raises
    ------
    ConfigurationError
        If one of them is out of range.
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
            # repr: 1e-4 is meant as a ten-thousandth, not as the float next to it. Up: a bound.
            -int(-Fraction(repr(float(drift_rate))) * 10**9 // 1),
            granularity_us,
            adjustment_us,
        )
        self._latch = threading.Lock()
        self._floor_us: int | None = None  # the largest lower end told; guarded by _latch
        self._contradicted = False  # guarded by _latch

    def begin_after(self, us: int) -> None:
        """Promise that what this node detects from now on occurred at `us` or later.

        For a producer that joins others: `Producers.register` tells it what is stable already.
        """
        with self._latch:
            self._floor_us = us if self._floor_us is None else max(us, self._floor_us)

    def stamp(self) -> AccuracyInterval:
        """Return the timestamp of an event detected just now; of none: a heartbeat.

        A clock that was put back by more than it ever admitted gives a timestamp whose lower end
        does go back, a contradiction that is logged: whoever has the sync point will call the event
        late.
        """
        # Under the latch: the order of stamps is the order of readings.
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
