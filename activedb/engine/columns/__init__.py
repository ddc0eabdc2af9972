"""Durable programs and rules over columns: batches of events that never become objects.

See README.md.
"""

from __future__ import annotations

import activedb.scheduling.compiled  # noqa: F401  # first: it says what is not installed

# isort: split
from activedb.engine.columns._admission import ColumnAdmission, in_columns
from activedb.engine.columns._bytes import events_of_bytes, versions_of_bytes
from activedb.engine.columns._events import ColumnEvents
from activedb.engine.columns._limits import check_in_columns
from activedb.engine.columns._parts import ColumnParts
from activedb.engine.columns._program import ColumnProgram
from activedb.engine.columns._rule_limits import check_rule_in_columns
from activedb.engine.columns._rule_parts import ColumnRuleParts
from activedb.engine.columns._rules import ColumnRules, dead_of
from activedb.engine.columns._waiting import WaitingColumns

__all__ = [
    "ColumnAdmission",
    "ColumnEvents",
    "ColumnParts",
    "ColumnProgram",
    "ColumnRuleParts",
    "ColumnRules",
    "WaitingColumns",
    "check_in_columns",
    "check_rule_in_columns",
    "dead_of",
    "events_of_bytes",
    "in_columns",
    "versions_of_bytes",
]
