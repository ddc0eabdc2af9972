"""``activedb match``: patterns over a file of events, without any database."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from activedb.cli._events import FORMATS, UNITS, ColumnOptions, EventFile, zone_of
from activedb.cli._matching import Figures, FileMatching
from activedb.cli._options import Json, Trace, not_empty
from activedb.cli._report import Reporter, console_of
from activedb.clock import moment_of
from activedb.errors import ConfigurationError, DefinitionError, RuleSyntaxError
from activedb.events import (
    Context,
    Expression,
    Occurrence,
    Primitive,
    Query,
    Selection,
    SkipTo,
    walk,
)
from activedb.events import Sequence as Sequenced
from activedb.language import CreateQuery, CreateRule, Drop, parse, parse_pattern
from activedb.rules import FunctionNames
from activedb.spelling import clipped, did_you_mean, printable

__all__ = ["MatchReport", "match"]


_SHOWN_MAX = 200
_LONG = 60  # characters of a value
_ELEMENTS_SHOWN = 3
_PARAMS_SHOWN = 8
_STDOUT = Path("-")


class MatchReport:
    """Report that prints matches as they are made, and the figures at the end.

    Parameters
    ----------
    as_json : bool
        Print one object; written as the matches are made, so that none is kept.
    output : Path or None
        A file that gets the matches, an object a line. An older result in it is kept until this run
        has its first match, or ends without one. ``-`` for standard output, and then the figures go
        to standard error.
    zone : tzinfo
        Time zone of the shown times.
    """

    def __init__(self, *, as_json: bool, output: Path | None, zone: tzinfo):
        self._as_json = as_json
        if as_json and output == _STDOUT:
            raise ConfigurationError(
                "--json and --output - both write to standard output: give one"
            )
        self._output = output
        self._zone = zone
        self._is_dated = True
        self._rows: list[tuple[str, str, str, str]] = []
        self._left_out = 0
        self._lines: IO[str] | None = None
        self._older: IO[str] | None = None  # the output while it has another run's matches
        self._count = 0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the output open; exit if the reader of standard output has gone.

        Raises
        ------
        ConfigurationError
            If the output file cannot be written.
        SystemExit
            With 1 if no process reads standard output any more, as is usual for programs.
        """
        with ExitStack() as stack:
            if self._output == _STDOUT:
                self._lines = sys.stdout
            elif self._output is not None:
                try:
                    self._lines = stack.enter_context(self._output.open("a", encoding="utf-8"))
                except OSError as error:
                    raise ConfigurationError(
                        f"cannot write {self._output}: {error.strerror}"
                    ) from error
                if self._output.is_file():
                    self._older = self._lines
            try:
                yield
                self._empty()
                sys.stdout.flush()
            except BrokenPipeError:
                # Discard the rest of the buffer, so that the exit does not fail on it.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise SystemExit(1) from None

    def _empty(self) -> None:
        """Drop what an earlier run has written, now that this one has a result of its own."""
        if self._older is not None:
            self._older.truncate(0)
            self._older = None

    def add(self, query: str, match: Occurrence, *, is_dated: bool) -> None:
        """Print a match, or keep it for the table."""
        self._is_dated = is_dated
        self._empty()
        if self._lines is not None:
            self._lines.write(f"{_dumped(self._as_dict(query, match))}\n")
            if self._output == _STDOUT:
                self._lines.flush()  # a reader may be waiting for it
        elif self._as_json:
            sys.stdout.write('{"matches": [\n' if not self._count else ",\n")
            sys.stdout.write(_dumped(self._as_dict(query, match)))
        elif len(self._rows) < _SHOWN_MAX:
            self._rows.append(
                (self._when(match.us), query, self._parts(match), _listed(match.params))
            )
        else:
            self._left_out += 1
        self._count += 1

    def end(self, figures: Figures, unseen: list[str], partials: Mapping[str, int]) -> None:
        """Print the figures, and for people the tables."""
        if self._as_json:
            result = self._figures_as_dict(figures, unseen, partials)
            if self._lines is None:
                if not self._count:
                    sys.stdout.write('{"matches": [')
                sys.stdout.write(f"\n],\n{_dumped(result)[1:]}\n")
            else:
                sys.stdout.write(f"{_dumped(result)}\n")
            return
        out = sys.stderr if self._output == _STDOUT else sys.stdout
        console = console_of(out)
        if self._rows:
            zone = f"time ({self._zone})" if self._is_dated else "time"
            table = Table(zone, "query", "parts", "parameters", box=None, header_style="bold")
            for row in self._rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            console.print(table)
        if self._left_out:
            console.print(
                Text(f"… and {self._left_out:,} more; --json or --output FILE prints all of them")
            )
        if self._rows:
            console.print()
        console.print(self._figures_table(figures, partials))

    def _figures_table(self, figures: Figures, partials: Mapping[str, int]) -> Table:
        table = Table(show_header=False, box=None)
        table.add_column(style="bold")
        table.add_column(justify="right")
        table.add_column()

        def row(label: str, count: int, note: str = "") -> None:
            table.add_row(Text(printable(label)), f"{count:,}", Text(printable(note)))

        note = "sorted by time" if figures.is_sorted else ""
        row("rows read", figures.rows, note)
        for reason, (count, first, detail) in figures.refused.items():
            shown = f": {detail}" if detail else ""
            row("refused", count, f"{reason}; first row {first}{shown}")
        if figures.unheard:
            types = ", ".join(name for name, _ in figures.unheard.most_common(_ELEMENTS_SHOWN))
            more = ", …" if len(figures.unheard) > _ELEMENTS_SHOWN else ""
            row("other types", figures.unheard.total(), f"{types}{more}")
        for name, count in figures.matches.items():
            still = partials[name]
            kept = f"{still:,} events kept for partial matches" if still else ""
            row(f"matches of {name}", count, kept)
        if figures.is_cut:
            table.add_row("", "", "stopped at the limit")
        return table

    def _figures_as_dict(
        self, figures: Figures, unseen: list[str], partials: Mapping[str, int]
    ) -> dict[str, Any]:
        moment = self._moment
        return {
            "rows": figures.rows,
            "refused": [
                {"reason": reason, "rows": count, "first_row": first, "detail": detail}
                for reason, (count, first, detail) in figures.refused.items()
            ],
            "events": dict(figures.seen),
            "other_types": dict(figures.unheard),
            "unseen_types": unseen,
            "first_event": None if figures.first_us is None else moment(figures.first_us),
            "last_event": None if figures.last_us is None else moment(figures.last_us),
            "sorted": figures.is_sorted,
            "cut": figures.is_cut,
            "queries": {
                name: {"matches": count, "kept": partials[name]}
                for name, count in figures.matches.items()
            },
        }

    def _as_dict(self, query: str, match: Occurrence) -> dict[str, Any]:
        result: dict[str, Any] = {"query": query, "at": self._moment(match.us)}
        if match.parts:
            result["parts"] = {
                name: [self._part(o) for o in part] if isinstance(part, tuple) else self._part(part)
                for name, part in match.parts.items()
            }
        else:
            result |= {"type": match.name, "id": match.id}
        return result | {"params": dict(match.params)}

    def _part(self, o: Occurrence) -> dict[str, Any]:
        return {
            "type": o.name,
            "at": self._moment(o.us),
            "id": o.id,
            "params": dict(o.params),
        }

    def _moment(self, us: int) -> str | int | float:
        if not self._is_dated:
            return us // 1_000_000 if us % 1_000_000 == 0 else us / 1_000_000
        return self._date(us).isoformat()

    def _date(self, us: int) -> datetime:
        return moment_of(us).astimezone(self._zone)

    def _when(self, us: int, near: int | None = None) -> str:
        """Return a time for people, without the date if it is that of `near`."""
        if not self._is_dated:
            return str(self._moment(us))
        date = self._date(us).replace(tzinfo=None)
        same_day = near is not None and self._date(near).date() == date.date()
        return (date.time() if same_day else date).isoformat(*([] if same_day else [" "]))

    def _parts(self, match: Occurrence) -> str:
        if not match.parts:
            return match.name
        shown = []
        for name, part in match.parts.items():
            elements = part if isinstance(part, tuple) else (part,)
            times = [self._when(o.us, match.us) for o in elements[:_ELEMENTS_SHOWN]]
            more = len(elements) - len(times)
            times += [f"… ({more} more)"] if more else []
            text = ", ".join(times)
            shown.append(f"{name} {f'({text})' if isinstance(part, tuple) else text}")
        return "; ".join(shown)


def _listed(params: Mapping[str, Any]) -> str:
    shown = [f"{name}={clipped(str(value), _LONG)}" for name, value in params.items()]
    more = ["…"] if len(shown) > _PARAMS_SHOWN else []
    return ", ".join(shown[:_PARAMS_SHOWN] + more)


def _dumped(value: dict[str, Any]) -> str:
    try:
        return json.dumps(value, default=str, allow_nan=False)
    except ValueError:  # JSON has neither NaN nor infinities
        return json.dumps(_finite(value), default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


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
        str | None,
        typer.Option(callback=not_empty, help="Format of times, as for strptime: %Y%m%d%H%M."),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            callback=not_empty, help=f"Unit of times that are numbers: {', '.join(UNITS)}."
        ),
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
        str | None,
        typer.Option(
            callback=not_empty, help="Column names of a CSV file without a header: a,b,c."
        ),
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
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Match patterns against a file of events, and print the matches.

    No database is needed. Each row is an event: one column has its type, one its time, and all
    other columns are its parameters. In CSV, a value that looks like a number, true or false is
    read as such. A number too large for a float stays text. A file in time order is read row by
    row; any other file is read into memory and sorted. Time ends with the last event, unless
    --until gives a later time.

    A row that is not a valid event is refused and counted with the reason, and the run continues.
    If all rows, or all events of the queries, are refused, the status is 1.
    """
    queries = {
        name: chosen(expression, context, selection, skip)
        for name, expression in queries_of(pattern, query or []).items()
    }
    said = ColumnOptions(
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
    matching = FileMatching(
        file, queries, said, is_ordered=ordered, fail_fast=fail_fast, until=until
    )
    if output is not None:
        _check_output(output, pattern, input)
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


def _check_output(output: Path, pattern: str, input: Path) -> None:
    """Refuse an output that is a file which this run reads, under whatever name.

    Raises
    ------
    ConfigurationError
        If it is the input or the file of the pattern.
    """
    if output == _STDOUT or not output.is_file():
        return
    read = {"--input": 0 if str(input) == "-" else input, "the patterns": pattern}
    for name, file in read.items():
        try:
            is_read = os.path.samefile(output, file)
        except (OSError, ValueError):  # none, or a pattern that is no name of a file
            continue
        if is_read:
            raise ConfigurationError(
                f"--output {output} is the file of {name}, which it would replace: give another"
            )


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
    if path.suffix in _SUFFIXES or _is_file(path):
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


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a pattern may be longer than a name of a file
        return False


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
        to, *part = skip.replace(":", " ").split(maxsplit=1) or [""]
        expression = expression.skipping(to, *part)
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
    for each in walk(expression):
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
