"""Patterns that ``activedb match`` runs, from a file or the command line, with their options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from activedb.errors import ConfigurationError, DefinitionError, RuleSyntaxError
from activedb.events import Expression, Primitive, Query
from activedb.events import Sequence as Sequenced
from activedb.language import CreateQuery, CreateRule, Drop, parse, parse_pattern
from activedb.rules import FunctionNames
from activedb.spelling import did_you_mean

__all__ = ["chosen", "queries_of"]

_SUFFIXES = (".rules", ".sql")
_UNNAMED = "pattern"
_STATEMENT = re.compile(r"\s*(--|(CREATE|DROP|ALTER)\b)", re.IGNORECASE)


class _AnyFunction(FunctionNames):
    """Function names that accept every name: no action runs here."""

    def function(self, reference: Any) -> Callable[..., Any]:
        return lambda t, o: None


def queries_of(pattern: str, names: Sequence[str]) -> dict[str, Expression]:
    """Return the patterns by the name that their matches are reported with.

    Parameters
    ----------
    pattern : str
        The name of a file in the rule language: its queries or, if it has none, the patterns of its
        rules; or the text of statements or of one pattern.
    names : sequence of str
        Names of the queries or rules to return. Empty: all.

    Raises
    ------
    ConfigurationError
        If the file cannot be read.
    DefinitionError
        If the text is meaningless, has no such pattern, or one needs more than events.
    """
    path = Path(pattern)
    if path.suffix in _SUFFIXES or (len(pattern) < 256 and path.is_file()):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot read {pattern}: {error}") from error
        found = _statements(text, path)
    elif _STATEMENT.match(pattern):
        found = _statements(pattern, None)
    else:
        found = {_UNNAMED: parse_pattern(pattern)}
    for name in names:
        if name not in found:
            raise DefinitionError(
                f"there is no query {name!r} in {pattern}; {did_you_mean(name, list(found))}"
            )
    queries = {name: found[name] for name in dict.fromkeys(names)} if names else found
    for name, expression in queries.items():
        _check(name, expression)
    return queries


def chosen(
    expression: Expression, context: str | None, selection: str | None, skip: str | None
) -> Expression:
    """Return the same pattern with another context, selection or skip, if given.

    Raises
    ------
    PatternError
        If there is no such option, or it does not apply to the pattern.
    """
    if isinstance(expression, Query):
        pattern = chosen(expression.pattern, context, selection, skip)
        return replace(expression, pattern=pattern)
    if context is not None:
        expression = expression.context(context)
    if selection is None and skip is None:
        return expression
    if not isinstance(expression, Sequenced):
        raise DefinitionError(
            f"--selection and --skip choose among the matches of a sequence, not of {expression!r}"
        )
    if selection is not None:
        expression = expression.selecting(selection)
    if skip is not None:
        expression = expression.skipping(*skip.replace(":", " ").split(maxsplit=1))
    return expression


def _statements(text: str, path: Path | None) -> dict[str, Expression]:
    try:
        statements = parse(text, functions=_AnyFunction())
    except RuleSyntaxError as error:
        if path is None:
            raise
        raise RuleSyntaxError(
            f"{path}, {error}", line=error.line, column=error.column, excerpt=error.excerpt
        ) from error
    queries: dict[str, Expression] = {}
    rules: dict[str, Expression] = {}
    for statement in statements:
        if isinstance(statement, CreateQuery):
            queries[statement.query.name] = statement.query
        elif isinstance(statement, CreateRule):
            rules[statement.rule.name] = statement.rule.on
        elif isinstance(statement, Drop):
            (queries if statement.kind == "query" else rules).pop(statement.name, None)
    if not queries and not rules:
        raise DefinitionError(
            f"{path or 'the text'} has neither queries nor rules: write CREATE QUERY … PATTERN …"
        )
    return queries or rules


def _check(name: str, expression: Expression) -> None:
    expression.check()
    for each in _walk(expression):
        if isinstance(each, Primitive):
            reads = each.reading is not None
        else:
            reads = len(getattr(each, "readings", ())) > 0
        if reads:
            raise DefinitionError(
                f"query {name} reads tables, and there is no database here: run it with a rule, "
                "by activedb run"
            )
        if isinstance(each, Primitive) and each.key[0] not in ("event", "clock"):
            raise DefinitionError(
                f"query {name} waits for {each!r}, which a file of events does not tell: it has "
                "events with a type and a time, no changes of tables, calls or late events"
            )


def _walk(expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in expression.children:
        yield from _walk(child)
