"""The clock of the operating system."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

__all__ = ["SystemClock"]

# Longer waits are cut: the time of day may be set, and threading has a maximum time-out.
_WAIT_S_MAX = 3600.0


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        return time.monotonic()

    def wait_until(self, moment: datetime | None, woken: threading.Event) -> None:
        """Block until `woken` is set or `moment` is reached, at most an hour; None: until set."""
        if moment is None:
            woken.wait()
            return
        remaining_s = (moment - self.now()).total_seconds()
        if remaining_s > 0:
            woken.wait(min(remaining_s, _WAIT_S_MAX))
