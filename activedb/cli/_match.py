"""``activedb match``: patterns over a file of events, without any database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from activedb.analysis import printable
from activedb.cli._event_columns import Reading
from activedb.cli._event_files import FORMATS, EventFile
from activedb.cli._event_times import UNITS, zone_of
from activedb.cli._match_queries import chosen, queries_of
from activedb.cli._match_report import MatchReport
from activedb.cli._matching import Matching
from activedb.cli._report import Reporter
from activedb.events import Context, Selection, SkipTo

__all__ = ["match"]


def match(
    pattern: Annotated[
        str,
        typer.Argument(
            help="A file of CREATE QUERY statements, or a pattern: 'SEQ(EXIT, ENTER) WITHIN 45s'."
        ),
    ],
    input: Annotated[
        Path,
        typer.Option(help="The events: CSV, JSON lines or Parquet, perhaps gzipped; - for stdin."),
    ],
    query: Annotated[
        list[str] | None, typer.Option(help="Only the query of this name; may be repeated.")
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(help="Column with the type of the event, or the type of all: \"'BAR'\"."),
    ] = None,
    timestamp: Annotated[str | None, typer.Option(help="Column with its time.")] = None,
    id: Annotated[str | None, typer.Option(help="Column with its id, if it has one.")] = None,
    time_format: Annotated[
        str | None, typer.Option(help="How times are written, as strptime takes it: %Y%m%d%H%M.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(help=f"What numbers as times count: {', '.join(UNITS)}.")
    ] = None,
    zone: Annotated[
        str, typer.Option(help="Time zone of times that do not say theirs, and of the output.")
    ] = "UTC",
    text: Annotated[
        list[str] | None,
        typer.Option(help="CSV column whose values stay text, even 12 or true; may be repeated."),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option(help="What stands for no value in CSV, besides nothing; may be repeated."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Names of the columns of CSV without a header: a,b,c.")
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Of CSV; , by default.")] = None,
    encoding: Annotated[str, typer.Option(help="Of CSV and JSON lines.")] = "utf-8",
    format: Annotated[
        str | None, typer.Option(help=f"{', '.join(FORMATS)}; by default as the name says.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help=f"Of all queries: {', '.join(Context)}.")
    ] = None,
    selection: Annotated[
        str | None, typer.Option(help=f"Of all queries: {', '.join(Selection)}.")
    ] = None,
    skip: Annotated[
        str | None,
        typer.Option(help=f"Of all queries: {', '.join(SkipTo)}; the last two as 'to_first PART'."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Let time go on until then after the last event, written as its times."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many matches.")] = None,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered", help="Refuse rows that are not in time order; else all are sorted."
        ),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first row that is refused.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the matches into this file, a JSON object a line; - for stdout."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show a traceback when it fails.")
    ] = False,
) -> None:
    """Run patterns over a file of events, and print what matches.

    No database is needed. Each row is an event: one column has its type, one
    its time, and all others are its parameters. In CSV what looks like a
    number, true or false is one. A file in time order is read a row at a time;
    another one is read into memory and sorted. Time ends with the last event,
    unless --until says more.

    Rows that are no events are counted with the reason, and do not end the run;
    but if nothing is left that was not refused, the status is 1.
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
