"""Terms: values and conditions over the events of a match, in Python and in the rule language."""

from __future__ import annotations

from activedb.events.terms._references import (
    Aggregate,
    Attribute,
    Exists,
    InSubquery,
    KeyRead,
    PartReference,
    Subquery,
    attr,
    part,
)
from activedb.events.terms._term import (
    And,
    Arithmetic,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    Term,
)

__all__ = [
    "Aggregate",
    "And",
    "Arithmetic",
    "Attribute",
    "Between",
    "Comparison",
    "Exists",
    "In",
    "InSubquery",
    "IsNull",
    "KeyRead",
    "Like",
    "Literal",
    "Negative",
    "Not",
    "Or",
    "PartReference",
    "Subquery",
    "Term",
    "attr",
    "part",
]
