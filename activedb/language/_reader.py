"""Entry points that read statements, expressions and terms from text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from activedb.events import Expression, Query
from activedb.events.terms import Term
from activedb.language._names import Scope
from activedb.language._parser import SourceText, parse_tree
from activedb.language._patterns import PatternReader
from activedb.language._statements import (
    Statement,
    StatementReader,
)
from activedb.language._terms import TermReader
from activedb.rules import FunctionNames

__all__ = ["parse", "parse_pattern", "parse_term"]


def parse(
    text: str,
    *,
    tables: Mapping[str, Any] | None = None,
    streams: Collection[str] | None = None,
    queries: Mapping[str, Query] | None = None,
    functions: FunctionNames | None = None,
    raising: Callable[..., Any] | None = None,
) -> list[Statement]:
    """Return the statements of a text without executing them.

    Parameters
    ----------
    text : str
    tables : mapping of str to Table, optional
        Declared tables, by full name. Without this, any table and column may be named, and an
        action that writes cannot run.
    streams : mapping of str to Stream, or collection of str, optional
        Streams, or their names. Without this, any stream may be named. If a stream declares its
        event types, a pattern on it can name no others.
    queries : mapping of str to Query, optional
        Queries that ``OUTPUT`` may name, in addition to queries of the text itself.
    functions : FunctionNames, optional
        Functions that CALL may name; none by default.
    raising : callable, optional
        Function that SIGNAL calls as ``raising(name, **params)``.

    Raises
    ------
    RuleSyntaxError
        With line, column and a caret, at the first invalid place.

    Examples
    --------
    >>> parse("CREATE QUERY Q PATTERN SEQ(A, !B, C) WITHIN 5 sec")[0].query.pattern
    SEQ(A, !B, C) WITHIN 5s
    """
    source = SourceText(text)
    reader = StatementReader(
        source,
        PatternReader(source, tables, streams, dict(queries or {})),
        functions or FunctionNames(),
        raising,
    )
    return [reader.statement(tree) for tree in parse_tree(source, "script").children]


def parse_pattern(
    text: str,
    *,
    tables: Mapping[str, Any] | None = None,
    streams: Collection[str] | None = None,
    queries: Mapping[str, Query] | None = None,
) -> Expression:
    """Return the expression that a text writes; the parameters are those of `parse`.

    Raises
    ------
    RuleSyntaxError

    Examples
    --------
    >>> parse_pattern("ANY(A AS first, B)")
    ANY(A AS first, B)
    """
    source = SourceText(text)
    (tree,) = parse_tree(source, "one_pattern").children
    return PatternReader(source, tables, streams, dict(queries or {})).expression(tree)


def parse_term(
    text: str,
    *,
    parts: Collection[str] | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Term:
    """Return the term that a text writes.

    Parameters
    ----------
    text : str
    parts : collection of str, optional
        Parts that may be named; any by default. A name without a part is an attribute of the
        event itself, as after NEW.
    tables : mapping of str to Table, optional
        As in `parse`.

    Raises
    ------
    RuleSyntaxError

    Examples
    --------
    >>> parse_term("A.price * 2 > B.price")
    A.price * 2 > B.price
    """
    source = SourceText(text)
    (tree,) = parse_tree(source, "one_term").children
    known = None if parts is None else tuple(parts)
    scope = Scope(known, frozenset(("NEW",)), frozenset(("OLD",)), is_of_one=True)
    return TermReader(source, scope, tables).term(tree)
