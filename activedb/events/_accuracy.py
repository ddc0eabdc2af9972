"""Accuracy intervals: timestamps with bounds on their error, and their order.

After C. Liebig, M. Cilia, A. Buchmann, "Event Composition in Time-dependent Distributed Systems",
1999, sections III.C and III.D. See README-time.md.
"""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from fractions import Fraction
from typing import final

from activedb.clock import ClockSource, ClockStatus, in_microseconds
from activedb.errors import BadEvent, ConfigurationError

__all__ = [
    "AccuracyInterval",
    "LocalClock",
    "Node",
    "Order",
    "Timestamp",
    "certainly_before",
    "microseconds",
    "order",
    "seconds_us",
]


_NANO = 10**9
# The range of a bigint column, as in _timestamps.
_DAY_US = 86_400_000_000
FIRST_US = -719_162 * _DAY_US
"""Start of the year 1, the earliest moment of Python's and Postgres's datetimes."""
LAST_US = 2_932_897 * _DAY_US - 1
"""End of the year 9999."""


class Order(Enum):
    """Relation in time of one timestamp to another."""

    BEFORE = "before"
    AFTER = "after"
    SIMULTANEOUS = "simultaneous"
    """Both timestamps are exact and equal: they are known to form no sequence."""
    UNCERTAIN = "uncertain"
    """The timestamps do not determine the order."""


@dataclass(frozen=True, slots=True)
class LocalClock:
    """Parameters of a node's local clock for the local timestamp order (section III.D).

    Two local readings are comparable if their local clocks are equal.

    Parameters
    ----------
    incarnation : str
        Distinguishes this local clock from all others, and from itself before a restart.
    detection_delay_us : int, optional
        ldd: upper bound on the delay from an event to its timestamp.
    drift_ppb : int, optional
        ρ: upper bound on how much too fast the clock runs, in parts per billion.
    granularity_us : int, optional
        G: the step of the clock; at least 1, as readings are whole microseconds.
    adjustment_us : int, optional
        u: upper bound on how far clock discipline moves the clock forward between two readings.

    Attributes
    ----------
    apart_us : int
        If two readings are further apart than this, their events happened in the same order.

    Raises
    ------
    BadEvent
        If a parameter is out of range.
    """

    incarnation: str
    detection_delay_us: int = 0
    drift_ppb: int = 100_000
    granularity_us: int = 1
    adjustment_us: int = 0
    apart_us: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = (
            self.detection_delay_us,
            self.drift_ppb,
            self.granularity_us - 1,
            self.adjustment_us,
        )
        if type(self.incarnation) is not str or any(
            type(number) is not int or number < 0 for number in numbers
        ):
            raise BadEvent(
                f"{self!r} is not a local clock: the incarnation is a string, the others are ints "
                "of 0 or more, the granularity of 1 or more"
            )
        # ldd < (C(k) - C(j) - G - u) / (1 + ρ), solved for C(k) - C(j). The difference is an int,
        # so rounding the bound down to an int keeps the comparison exact.
        delay_us = self.detection_delay_us * (_NANO + self.drift_ppb) // _NANO
        object.__setattr__(self, "apart_us", delay_us + self.granularity_us + self.adjustment_us)


@final
@dataclass(frozen=True, slots=True)
class AccuracyInterval:
    """Timestamp with error bounds (section III.C).

    If the clock is correct, the true time of the event lies within the interval. Timestamps with
    equal fields are equal; `order` compares two in time.

    Parameters
    ----------
    reading_us, lower_us, upper_us : int
        The reading and the ends of the interval, in microseconds since the epoch. Both ends are
        inclusive, and the reading lies between them.
    status : ClockStatus, optional
        How far the ends can be trusted.
    node : str, optional
        The node that detected the event: its producer.
    local_us : int, optional
        The reading of the node's local clock.
    local_clock : LocalClock, optional
        Description of that clock; must be given together with `local_us` and `node`.

    Raises
    ------
    BadEvent
        If the numbers are not ints, not within the years 1 to 9999 or out of order, or if a local
        reading comes without its node and local clock.
    """

    reading_us: int
    lower_us: int
    upper_us: int
    status: ClockStatus = ClockStatus.FIXED
    node: str | None = None
    local_us: int | None = None
    local_clock: LocalClock | None = None

    def __post_init__(self) -> None:
        lower_us, reading_us, upper_us = self.lower_us, self.reading_us, self.upper_us
        # Exact types, as for other timestamps: bools and subclasses would not survive `encode`.
        if not (type(lower_us) is type(reading_us) is type(upper_us) is int):
            raise BadEvent(f"reading and ends of an accuracy interval must be ints: {self!r}")
        if not FIRST_US <= lower_us <= reading_us <= upper_us <= LAST_US:
            raise BadEvent(
                "an accuracy interval has lower_us ≤ reading_us ≤ upper_us, all within the years 1 "
                f"to 9999; not {self!r}"
            )
        if type(self.status) is not ClockStatus:
            raise BadEvent(f"the status of an accuracy interval is a ClockStatus: {self!r}")
        node, local_us, local_clock = self.node, self.local_us, self.local_clock
        if node is not None and (type(node) is not str or not node):
            raise BadEvent(f"the node of an accuracy interval is a non-empty string: {self!r}")
        if local_us is None and local_clock is None:
            return
        if type(local_us) is not int or type(local_clock) is not LocalClock or node is None:
            raise BadEvent(
                "a local reading is an int, and needs its node and its LocalClock; give all three "
                f"or neither reading nor clock: {self!r}"
            )

    @property
    def width_us(self) -> int:
        """The inaccuracy: the length of the interval; 0 for an exact timestamp."""
        return self.upper_us - self.lower_us


def certainly_before(a: AccuracyInterval, b: AccuracyInterval) -> bool:
    """Return whether the event of `a` certainly happened before that of `b`; O(1), exact.

    Either the interval of `a` ends before that of `b` begins (accuracy interval order), or both
    were read from one local clock so far apart that no detection delay, drift, granularity or
    adjustment can have reversed their order (local timestamp order).
    """
    if a.upper_us < b.lower_us:
        return True
    clock = a.local_clock
    if clock is None or b.local_clock is None:
        return False
    assert a.local_us is not None
    assert b.local_us is not None
    return (
        b.local_us - a.local_us > clock.apart_us
        and a.node == b.node
        and (clock is b.local_clock or clock == b.local_clock)
    )


def order(a: AccuracyInterval, b: AccuracyInterval) -> Order:
    """Return the relation in time of the event of `a` to that of `b`; O(1).

    If reference time and the local clock give opposite orders, which only incorrect clocks do, the
    result is `Order.UNCERTAIN`.
    """
    before, after = certainly_before(a, b), certainly_before(b, a)
    if before is not after:
        return Order.BEFORE if before else Order.AFTER
    if a.lower_us == b.lower_us and a.width_us == b.width_us == 0:
        return Order.SIMULTANEOUS
    return Order.UNCERTAIN


# -- timestamps as integer microseconds since the epoch: the sort key of every event ---------------


Timestamp = int | float | datetime | AccuracyInterval

_SECOND_US = 1_000_000
# A duration that does not fit a bigint column is certainly a mistake.
_LIMIT_US = 2**63


def seconds_us(seconds: int | float) -> int | None:
    """Return `seconds` in microseconds (nearest), or None unless finite and within 64 bits."""
    scaled = seconds * _SECOND_US
    # The range is compared first: math.isfinite would overflow on a huge int, and NaN fails here.
    if not -_LIMIT_US <= scaled < _LIMIT_US:
        return None
    return round(scaled)


def microseconds(timestamp: Timestamp) -> int:
    """Return the microseconds from the epoch to `timestamp`.

    Parameters
    ----------
    timestamp : int, float, datetime or AccuracyInterval
        Seconds since the epoch, an aware datetime, or an interval.

    Returns
    -------
    int
        Exact for an int or a datetime; the nearest microsecond for a float; the reading of an
        interval.

    Raises
    ------
    BadEvent
        If `timestamp` is of another type (bool and subclasses included), naive, NaN, infinite,
        or not within the years 1 to 9999.
    """
    # Exact types: a timestamp is kept as given and must survive `encode` unchanged. A subclass with
    # additional fields, such as nanoseconds, would not.
    if type(timestamp) is AccuracyInterval:
        return timestamp.reading_us
    if type(timestamp) not in (int, float, datetime):
        raise BadEvent(
            f"the timestamp {timestamp!r} is of type {type(timestamp).__qualname__}: convert it "
            "to int or float seconds since the epoch, to an aware datetime or an AccuracyInterval"
        )
    if isinstance(timestamp, datetime):
        if timestamp.utcoffset() is None:
            raise BadEvent(
                f"the timestamp {timestamp!r} is naive: say which time zone it is in, for example "
                "with .replace(tzinfo=datetime.UTC)"
            )
        return in_microseconds(timestamp)
    scaled = timestamp * _SECOND_US
    if not FIRST_US <= scaled <= LAST_US:  # NaN fails, too
        raise BadEvent(
            f"the timestamp {_shown(timestamp)} is not within the years 1 to 9999: give seconds "
            "since the epoch, not milliseconds or less"
        )
    return round(scaled)


def _shown(number: int | float) -> str:
    # repr of an int beyond sys.get_int_max_str_digits() raises.
    return hex(number)[:20] + "…" if isinstance(number, int) else repr(number)


# -- nodes: the places that detect events and stamp them -------------------------------------------

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
