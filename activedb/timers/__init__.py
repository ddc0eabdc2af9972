"""Rules that the clock completes and starts."""

from activedb.timers._timekeeper import Timekeeper

__all__ = ["Timekeeper"]
