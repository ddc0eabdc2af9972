"""Interfaces of clocks, for threads that wait for a time and for timestamps of events."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

__all__ = ["Clock", "ClockSource", "ClockStatus", "Reading"]


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        ...

    def wait_until(self, moment: datetime | None, woken: threading.Event) -> None:
        """Block until `woken` is set or `moment` is reached; None: until `woken` is set.

        The call may return early, and may set `woken` itself, so the caller checks both afterwards.
        """
        ...


class ClockStatus(Enum):
    """Trustworthiness of a reading's error."""

    SYNCHRONIZED = "synchronized"
    """Synchronised to reference time; the error is the synchronisation distance."""
    UNKNOWN = "unknown"
    """Unsynchronised clock; the error is a configured value, not a bound."""
    FIXED = "fixed"
    """The error is a configured bound, vouched for by the user."""
    SIMULATED = "simulated"
    """Simulated; the error is a bound."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a node's clock (Liebig, Cilia, Buchmann, section III.C: ``get_time``).

    Attributes
    ----------
    reference_us : int
        The reading of the virtual clock: microseconds since the epoch.
    error_us : int
        Reference time is within `reference_us` ± `error_us`, subject to `status`: the
        synchronisation distance.
    status : ClockStatus
        Trustworthiness of the error.
    local_us : int
        The reading of the local clock: microseconds since some fixed moment, never going back.
    """

    reference_us: int
    error_us: int
    status: ClockStatus
    local_us: int


class ClockSource(Protocol):
    """Source of timestamps: a clock that reports its own error; safe to share."""

    def read(self) -> Reading:
        """Return the time now, with its error."""
        ...
