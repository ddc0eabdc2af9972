"""Event tables, compiled detection and compiled programs over columns. See README.md."""

from activedb.columns._arrival import Arrival
from activedb.columns._event_table import (
    PARAM_PREFIX,
    EventColumn,
    EventTable,
)

__all__ = ["PARAM_PREFIX", "Arrival", "EventColumn", "EventTable"]
