"""``activedb decisions``: choices that the order of events leaves open, and how to decide them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter
from activedb.cli._running import opened
from activedb.clock import moment_of
from activedb.errors import ConfigurationError, RowNotFound
from activedb.firing import MatchDecision
from activedb.spelling import clipped, counted

__all__ = ["app"]

_SHORT_MAX = 120  # characters of a candidate in a list

app = typer.Typer(
    help="List and resolve decisions.\n\nA decision is a choice among candidates: possible "
    "matches of a rule's event that the timestamps alone do not decide.",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(help="Id of the decision, as list prints it.")]


@app.command("list")
def list_(
    rule: Annotated[str | None, typer.Option(help="Only decisions of this rule.")] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Include decisions that have been made.")
    ] = False,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """List the open decisions."""
    reporter = Reporter(as_json=as_json)
    with reporter.looking("reading the database"), opened(None, url) as db:
        found = db.decisions.list(rule, open=None if all_ else True)
    reporter.first_rows(
        counted(len(found), "decision" if all_ else "open decision"),
        ("id", "rule", "time", "status", "candidates"),
        [(each.id, each.rule, _time(each), each.status, _short(each)) for each in found],
        {"decisions": [each.record() for each in found]},
    )


@app.command("show")
def show(id: Id, url: Url = None, as_json: Json = False, show_traceback: Trace = False) -> None:
    """Show one decision: its numbered candidates, and why each is not certain."""
    reporter = Reporter(as_json=as_json)
    with reporter.looking("reading the database"), opened(None, url) as db:
        try:
            decision = db.decisions.get(id)
        except RowNotFound as error:
            raise ConfigurationError(str(error)) from error
    _print(reporter, decision)


@app.command("resolve")
def resolve(
    id: Id,
    choose: Annotated[
        list[int] | None,
        typer.Option("--choose", help="Number of a candidate to accept; may be repeated."),
    ] = None,
    nothing: Annotated[bool, typer.Option("--nothing", help="Accept no candidate.")] = False,
    by: Annotated[str | None, typer.Option(help="Name to record with the decision.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Python file that declares the rule, to run it here if it is due."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Resolve a decision: chosen candidates trigger the rule, the others are discarded.

    The process that detects the rule's event applies the choice within seconds, or when it starts.
    For a rule of a stream's program, it does so with the next part of the stream. Until then the
    decision has the status chosen, afterwards resolved.

    Exits with 0 if the choice is recorded, with 1 if the decision was made before or can no longer
    be made, and with 2 if there is no such decision or candidate.
    """
    if bool(choose) == nothing:
        raise ConfigurationError("state the choice: --choose NUMBER, or --nothing")
    reporter = Reporter(as_json=as_json)
    with (
        reporter.own_output(),
        reporter.looking("reading the database"),
        opened(file, url) as db,
    ):
        try:
            decision = db.decisions.resolve(id, choose or (), by=by)
        except RowNotFound as error:
            raise ConfigurationError(str(error)) from error
    _print(reporter, decision)


def _print(reporter: Reporter, decision: MatchDecision) -> None:
    rows = [
        ("id", decision.id),
        ("rule", decision.rule),
        ("stream", decision.stream or ""),
        ("time", _time(decision)),
        ("status", decision.status),
        ("completed by", "time" if decision.completed_by is None else str(decision.completed_by)),
    ]
    if decision.chosen is not None:
        rows.append(("chosen", ", ".join(map(str, decision.chosen)) or "nothing"))
        rows.append(("by", decision.by or ""))
    for number, text in enumerate(decision.texts()):
        rows.append((f"candidate {number}", text))
        if number < len(decision.rivals):
            rows.append(("", f"not certain: {decision.rivals[number]}"))
    reporter.rows("decision", ("field", "value"), rows, decision.record())


def _time(decision: MatchDecision) -> str:
    return f"{moment_of(decision.us):%Y-%m-%d %H:%M:%S.%f}"


def _short(decision: MatchDecision) -> str:
    text = " | ".join(f"{number}: {each}" for number, each in enumerate(decision.texts()))
    return clipped(text, _SHORT_MAX)
