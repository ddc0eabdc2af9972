"""Active rules over a SQL store.

Python functions are ECA rules; they run as parallel nested transactions, and state lives in
Postgres. Start with ``README.md``; the words are in ``docs/glossary.md``.
"""

from activedb.clock import Clock, SimulatedClock, SystemClock
from activedb.config import Settings
from activedb.engine import Database, connect
from activedb.events import (
    Expression,
    Occurrence,
    any_of,
    deleted,
    detect,
    event,
    inserted,
    occurrence,
    seq,
    updated,
)
from activedb.streams import AtomicBatch, Files, Stream
from activedb.transactions import Child, State, Transaction

__all__ = [
    "AtomicBatch",
    "Child",
    "Clock",
    "Database",
    "Expression",
    "Files",
    "Occurrence",
    "Settings",
    "SimulatedClock",
    "State",
    "Stream",
    "SystemClock",
    "Transaction",
    "any_of",
    "connect",
    "deleted",
    "detect",
    "event",
    "inserted",
    "occurrence",
    "seq",
    "updated",
]
