"""Streams of events: what they are, their atomic batches, and event-time order."""

from activedb.streams._arrivals import (
    Arrival,
    Arrivals,
    Refused,
    fed_occurrences,
    of_batch,
    of_occurrences,
)
from activedb.streams._batch import PARAM_PREFIX, AtomicBatch, EventColumn, EventTable
from activedb.streams._buffer import EventTimeBuffer
from activedb.streams._declaration import Stream
from activedb.streams._sources import Files, Kafka, Rate, Replay, Socket, Source

__all__ = [
    "PARAM_PREFIX",
    "Arrival",
    "Arrivals",
    "AtomicBatch",
    "EventColumn",
    "EventTable",
    "EventTimeBuffer",
    "Files",
    "Kafka",
    "Rate",
    "Refused",
    "Replay",
    "Socket",
    "Source",
    "Stream",
    "fed_occurrences",
    "of_batch",
    "of_occurrences",
]
