"""Rule language: texts to queries, rules, patterns and terms, and back (docs/language.md)."""

from __future__ import annotations

from activedb.language._sql import SqlWrite
from activedb.language._statements import (
    AlterRule,
    Body,
    Call,
    CreateQuery,
    CreateRule,
    Drop,
    Signal,
    Statement,
    parse,
    parse_pattern,
    parse_term,
)
from activedb.language._text import text

__all__ = [
    "AlterRule",
    "Body",
    "Call",
    "CreateQuery",
    "CreateRule",
    "Drop",
    "Signal",
    "SqlWrite",
    "Statement",
    "parse",
    "parse_pattern",
    "parse_term",
    "text",
]
