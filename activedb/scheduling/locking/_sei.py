"""Single-event-initiated: one event at a time (Wang et al., section 5.1)."""

from __future__ import annotations

from activedb.scheduling._scheduler import SerialOrder

__all__ = ["SEI"]


class SEI(SerialOrder):
    """Scheduler that completes all work triggered by one event before it takes the next event.

    Since each s-transaction has exclusive use of all tables, there are no locks and no choice of
    versions. It takes its input in timestamp order, into which `run` sorts it.
    """

    name = "sei"
