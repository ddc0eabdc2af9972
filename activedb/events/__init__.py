"""Events: occurrences, expressions over them, and their detection. See README.md."""

from __future__ import annotations

from activedb.events._accuracy import (
    AccuracyInterval,
    LocalClock,
    Order,
    certainly_before,
    order,
)
from activedb.events._choices import Context, Selection, Skip, SkipTo
from activedb.events._codec import (
    decode,
    decode_params,
    decode_timestamp,
    encode,
    encode_params,
    encode_timestamp,
)
from activedb.events._conjunction import Conjunction
from activedb.events._definitions import (
    aborted,
    at,
    began,
    called,
    committing,
    cron,
    deleted,
    event,
    every,
    inserted,
    late,
    returned,
    updated,
)
from activedb.events._detect import detect
from activedb.events._detector import Detector, Network
from activedb.events._disjunction import Disjunction
from activedb.events._expression import Expression
from activedb.events._kleene import Kleene
from activedb.events._names import name_text
from activedb.events._nodes import Node
from activedb.events._occurrence import Occurrence, occurrence, row_change
from activedb.events._operators import (
    all_of,
    any_of,
    aperiodic,
    many,
    optional,
    periodic,
    query,
    seq,
    some_of,
)
from activedb.events._precedence import precedes
from activedb.events._primitives import Negation, Primitive
from activedb.events._producers import Producers
from activedb.events._query import Query
from activedb.events._schedules import At, Cron, Every, Schedule
from activedb.events._sequence import Sequence
from activedb.events._stability import POList, Stabilizer
from activedb.events._temporal import Periodic, Plus, TimedOut
from activedb.events._timestamps import Timestamp
from activedb.events._undecided import (
    Rivals,
    Undecided,
    decode_undecided,
    encode_undecided,
    same_candidate,
)
from activedb.events.detection._bound import MATCHES_MAX, Bound, too_many
from activedb.events.terms import Term, attr, part

__all__ = [
    "MATCHES_MAX",
    "AccuracyInterval",
    "At",
    "Bound",
    "Conjunction",
    "Context",
    "Cron",
    "Detector",
    "Disjunction",
    "Every",
    "Expression",
    "Kleene",
    "LocalClock",
    "Negation",
    "Network",
    "Node",
    "Occurrence",
    "Order",
    "POList",
    "Periodic",
    "Plus",
    "Primitive",
    "Producers",
    "Query",
    "Rivals",
    "Schedule",
    "Selection",
    "Sequence",
    "Skip",
    "SkipTo",
    "Stabilizer",
    "Term",
    "TimedOut",
    "Timestamp",
    "Undecided",
    "aborted",
    "all_of",
    "any_of",
    "aperiodic",
    "at",
    "attr",
    "began",
    "called",
    "certainly_before",
    "committing",
    "cron",
    "decode",
    "decode_params",
    "decode_timestamp",
    "decode_undecided",
    "deleted",
    "detect",
    "encode",
    "encode_params",
    "encode_timestamp",
    "encode_undecided",
    "event",
    "every",
    "inserted",
    "late",
    "many",
    "name_text",
    "occurrence",
    "optional",
    "order",
    "part",
    "periodic",
    "precedes",
    "query",
    "returned",
    "row_change",
    "same_candidate",
    "seq",
    "some_of",
    "too_many",
    "updated",
]
