"""``activedb match``: patterns over a file of events, without any database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from activedb.analysis import printable
from activedb.cli._event_columns import Reading
from activedb.cli._event_files import FORMATS, EventFile
from activedb.cli._event_times import UNITS, zone_of
from activedb.cli._match_report import MatchReport
from activedb.cli._matching import Matching
from activedb.cli._report import Reporter
from activedb.errors import ConfigurationError, DefinitionError, RuleSyntaxError
from activedb.events import Context, Expression, Primitive, Query, Selection, SkipTo
from activedb.events import Sequence as Sequenced
from activedb.language import CreateQuery, CreateRule, Drop, parse, parse_pattern
from activedb.rules import FunctionNames
from activedb.spelling import did_you_mean

__all__ = ["match"]


def match(
    pattern: Annotated[
        str,
        typer.Argument(
            help="File of CREATE QUERY statements, or a pattern: 'SEQ(EXIT, ENTER) WITHIN 45s'."
        ),
    ],
    input: Annotated[
        Path,
        typer.Option(help="File of events: CSV, JSON lines or Parquet, also gzipped; - for stdin."),
    ],
    query: Annotated[
        list[str] | None, typer.Option(help="Run only the query of this name; may be repeated.")
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(help="Column with the event type, or a quoted type for all rows: \"'BAR'\"."),
    ] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column with the event time.")] = None,
    id: Annotated[str | None, typer.Option(help="Column with the event id.")] = None,
    time_format: Annotated[
        str | None, typer.Option(help="Format of times, as for strptime: %Y%m%d%H%M.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help=f"Unit of times that are numbers: {', '.join(UNITS)}.")
    ] = None,
    zone: Annotated[
        str, typer.Option(help="Time zone of times without one, and of the output.")
    ] = "UTC",
    text: Annotated[
        list[str] | None,
        typer.Option(help="CSV column whose values stay text, even 12 or true; may be repeated."),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(help="CSV text that means no value, besides an empty field; may be repeated."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Column names of a CSV file without a header: a,b,c.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of CSV. Default: a comma; in .tsv files a tab.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="Encoding of CSV and JSON lines.")] = "utf-8",
    format: Annotated[
        str | None,
        typer.Option(help=f"Format: {', '.join(FORMATS)}. Default: detected from the file."),
    ] = None,
    context: Annotated[
        str | None, typer.Option(help=f"Consumption context of all queries: {', '.join(Context)}.")
    ] = None,
    selection: Annotated[
        str | None, typer.Option(help=f"Selection policy of all queries: {', '.join(Selection)}.")
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(
            help=f"Skip policy of all queries: {', '.join(SkipTo)}; the last two: 'to_first PART'."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Advance the clock to this time after the last event; in the input's format."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this number of matches.")
    ] = None,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered", help="Refuse rows that are out of time order, instead of sorting."
        ),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first refused row.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the matches as JSON lines into this file; - for stdout."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Match patterns against a file of events, and print the matches.

    No database is needed. Each row is an event: one column has its type, one its time, and all
    other columns are its parameters. In CSV, a value that looks like a number, true or false is
    read as such. A file in time order is read row by row; any other file is read into memory and
    sorted. Time ends with the last event, unless --until gives a later time.

    A row that is not a valid event is refused and counted with the reason, and the run continues.
    If all rows, or all events of the queries, are refused, the status is 1.
    """
    queries = {
        name: chosen(expression, context, selection, skip)
        for name, expression in queries_of(pattern, query or []).items()
    }
    said = Reading(
        type=type,
        timestamp=timestamp,
        id=id,
        time_format=time_format,
        unit=unit,
        zone=zone_of(zone),
        text=frozenset(text or ()),
        nulls=frozenset(("", *(null or ()))),
    )
    header = [name.strip() for name in columns.split(",")] if columns else []
    file = EventFile.of(input, format=format, header=header, delimiter=delimiter, encoding=encoding)
    matching = Matching(file, queries, said, is_ordered=ordered, fail_fast=fail_fast, until=until)
    reporter = Reporter(as_json=as_json)
    report = MatchReport(as_json=as_json, output=output, zone=said.zone)
    with report.writing():
        with reporter.working(f"matching {file.title}"):
            for name, made in matching.run(reporter.update, reporter.note):
                assert matching.columns is not None
                report.add(name, made, is_dated=matching.columns.is_dated)
                if matching.figures.matches.total() == limit:
                    matching.figures.is_cut = True
                    break
        if matching.unseen:
            seen = ", ".join([*matching.figures.seen, *matching.figures.unheard]) or "none"
            unseen = ", ".join(matching.unseen)
            reporter.note(printable(f"the input has no event of type {unseen}; it has: {seen}"))
        report.end(matching.figures, matching.unseen, matching.partials)
    matching.figures.check_taken(file.title)


# -- patterns that ``activedb match`` runs, from a file or the command line, with their options ---


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
