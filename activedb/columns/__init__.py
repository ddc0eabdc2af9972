"""Event tables, compiled detection and compiled programs over columns. See README.md."""

from activedb.columns._arrival import (
    PARAM_PREFIX,
    Arrival,
    EventColumn,
    EventTable,
)

__all__ = ["PARAM_PREFIX", "Arrival", "EventColumn", "EventTable"]
