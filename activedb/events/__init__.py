"""Events: occurrences, expressions over them, and their detection. See README.md."""

from __future__ import annotations

from activedb.events._codec import decode, decode_params, encode, encode_params
from activedb.events._definitions import any_of, deleted, event, inserted, seq, updated
from activedb.events._detect import detect
from activedb.events._detector import Detector
from activedb.events._expressions import Disjunction, Expression, Negation, Primitive, Sequence
from activedb.events._occurrence import Occurrence, occurrence

__all__ = [
    "Detector",
    "Disjunction",
    "Expression",
    "Negation",
    "Occurrence",
    "Primitive",
    "Sequence",
    "any_of",
    "decode",
    "decode_params",
    "deleted",
    "detect",
    "encode",
    "encode_params",
    "event",
    "inserted",
    "occurrence",
    "seq",
    "updated",
]
