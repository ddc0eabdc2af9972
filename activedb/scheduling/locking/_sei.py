"""Single-event-initiated: one event at a time (Wang et al., section 5.1)."""

from __future__ import annotations

from activedb.scheduling._scheduler import SerialOrder

__all__ = ["SEI"]


class SEI(SerialOrder):
    """Runs all that one event triggers to its end before it takes the next event.

    As each s-transaction has all tables to itself, there are no locks and no versions to choose
    from. It takes its input in the order of time, into which `run` sorts it.
    """

    name = "sei"
