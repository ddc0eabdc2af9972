"""Streams of events: what they are, their atomic batches, and event-time order."""

from activedb.streams._arrivals import (
    Arrival,
    Arrivals,
    Refused,
    fed_occurrences,
    of_batch,
    of_occurrences,
    require_keepable,
)
from activedb.streams._batch import PARAM_PREFIX, AtomicBatch, EventColumn, EventTable, Positions
from activedb.streams._buffer import EventTimeBuffer
from activedb.streams._declaration import Stream
from activedb.streams._marks import Marks, newest_times
from activedb.streams._matched import Completion, KeyedRule, Matchable, Matched
from activedb.streams._sources import Files, Kafka, Rate, Replay, Socket, Source, Staged

__all__ = [
    "PARAM_PREFIX",
    "Arrival",
    "Arrivals",
    "AtomicBatch",
    "Completion",
    "EventColumn",
    "EventTable",
    "EventTimeBuffer",
    "Files",
    "Kafka",
    "KeyedRule",
    "Marks",
    "Matchable",
    "Matched",
    "Positions",
    "Rate",
    "Refused",
    "Replay",
    "Socket",
    "Source",
    "Staged",
    "Stream",
    "fed_occurrences",
    "newest_times",
    "of_batch",
    "of_occurrences",
    "require_keepable",
]
