"""Event streams: declarations, atomic batches, and processing in event-time order."""

from activedb.streams._arrivals import (
    Arrivals,
    AtomicBatch,
    Positions,
    Refused,
    fed_occurrences,
    keepable_params,
    of_batch,
    of_occurrences,
)
from activedb.streams._declaration import (
    Files,
    Kafka,
    Rate,
    Replay,
    Socket,
    Source,
    Staged,
    StreamDeclaration,
    StreamOptions,
)
from activedb.streams._future import FutureLimit
from activedb.streams._matched import Completion, KeyedRule, Matchable, Matched
from activedb.streams._membership import Membership
from activedb.streams._producers import StreamProducers
from activedb.streams._program_decisions import ProgramDecisions
from activedb.streams._programs import InColumns, Output, Programs
from activedb.streams._run import StreamRun
from activedb.streams._staged import Marks, StagedConsumer, newest_times
from activedb.streams._state import EventTimeBuffer
from activedb.streams._stream_columns import StreamColumns
from activedb.streams._stream_programs import StreamPrograms
from activedb.streams._streams import Stream, Streams
from activedb.streams._time import StreamTime

__all__ = [
    "Arrivals",
    "AtomicBatch",
    "Completion",
    "EventTimeBuffer",
    "Files",
    "FutureLimit",
    "InColumns",
    "Kafka",
    "KeyedRule",
    "Marks",
    "Matchable",
    "Matched",
    "Membership",
    "Output",
    "Positions",
    "ProgramDecisions",
    "Programs",
    "Rate",
    "Refused",
    "Replay",
    "Socket",
    "Source",
    "Staged",
    "StagedConsumer",
    "Stream",
    "StreamColumns",
    "StreamDeclaration",
    "StreamOptions",
    "StreamProducers",
    "StreamPrograms",
    "StreamRun",
    "StreamTime",
    "Streams",
    "fed_occurrences",
    "keepable_params",
    "newest_times",
    "of_batch",
    "of_occurrences",
]
