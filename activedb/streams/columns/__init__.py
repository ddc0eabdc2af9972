"""Durable programs and rules over columns: batches of events that never become objects.

See README.md.
"""

from __future__ import annotations

import activedb.columns.program  # noqa: F401  # first: it reports missing packages

# isort: split
from activedb.streams.columns._admission import ColumnAdmission, WaitingColumns
from activedb.streams.columns._limits import check_in_columns, check_rule_in_columns
from activedb.streams.columns._parts import ColumnProgramProcessor, ColumnRuleProcessor
from activedb.streams.columns._program import ColumnProgram
from activedb.streams.columns._rules import ColumnRules

__all__ = [
    "ColumnAdmission",
    "ColumnProgram",
    "ColumnProgramProcessor",
    "ColumnRuleProcessor",
    "ColumnRules",
    "WaitingColumns",
    "check_in_columns",
    "check_rule_in_columns",
]
