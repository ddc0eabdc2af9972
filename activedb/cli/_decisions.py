"""``activedb decisions``: choices that the order of events leaves open, and deciding them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from activedb.cli._job import opened
from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter, counted
from activedb.clock import moment_of
from activedb.errors import ConfigurationError, RowNotFound
from activedb.firing import Decision

__all__ = ["app"]

_SHORT_MAX = 120  # characters of a candidate in a list

app = typer.Typer(
    help="List the choices that the order of events leaves open, and decide them.\n\nA decision is "
    "about possible matches of a rule's event: their timestamps do not tell whether they are to be "
    "made.",
    no_args_is_help=True,
)

Id = Annotated[str, typer.Argument(help="Its id, as list prints it.")]


@app.command("list")
def list_(
    rule: Annotated[str | None, typer.Option(help="Only those of a rule.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are decided.")] = False,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """List the decisions that are open."""
    reporter = Reporter(as_json=as_json)
    with reporter.looking("looking at the database"), opened(None, url) as db:
        found = db.decisions.list(rule, open=None if all_ else True)
    count = counted(len(found), "decision")
    reporter.first_rows(
        count if all_ else f"{count} open",
        ("id", "rule", "time", "status", "candidates"),
        [(each.id, each.rule, _time(each), each.status, _short(each)) for each in found],
        {"decisions": [each.record() for each in found]},
    )


@app.command("show")
def show(id: Id, url: Url = None, as_json: Json = False, show_traceback: Trace = False) -> None:
    """Show one decision: its candidates with their numbers, and why each is not certain."""
    reporter = Reporter(as_json=as_json)
    with reporter.looking("looking at the database"), opened(None, url) as db:
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
        typer.Option("--choose", help="The number of a candidate that is made; may be repeated."),
    ] = None,
    nothing: Annotated[bool, typer.Option("--nothing", help="No candidate is made.")] = False,
    by: Annotated[str | None, typer.Option(help="The name to record with the decision.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A Python file that declares the rule, to run it here if that is due."),
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Decide: the chosen candidates are made and trigger the rule, the others never are.

    The process that has the rule's event does it, within seconds or when it starts: until then the
    decision is chosen, afterwards resolved. Of a rule of a stream's program that is with the next
    part of the stream.

    Exits with 0 if it is decided, with 1 if it was decided before or can no longer be made, with 2
    if there is no such decision or candidate.
    """
    if bool(choose) == nothing:
        raise ConfigurationError("say what is made: --choose NUMBER, or --nothing")
    reporter = Reporter(as_json=as_json)
    with (
        reporter.own_output(),
        reporter.looking("looking at the database"),
        opened(file, url) as db,
    ):
        try:
            decision = db.decisions.resolve(id, choose or (), by=by)
        except RowNotFound as error:
            raise ConfigurationError(str(error)) from error
    _print(reporter, decision)


def _print(reporter: Reporter, decision: Decision) -> None:
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


def _time(decision: Decision) -> str:
    return f"{moment_of(decision.us):%Y-%m-%d %H:%M:%S.%f}"


def _short(decision: Decision) -> str:
    text = " | ".join(f"{number}: {each}" for number, each in enumerate(decision.texts()))
    return text if len(text) <= _SHORT_MAX else f"{text[: _SHORT_MAX - 1]}…"
