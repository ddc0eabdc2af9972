"""``activedb batches``: atomic batches of workflows, their lineage and their compensation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter
from activedb.cli._running import opened
from activedb.database import Database
from activedb.errors import ConfigurationError, NotRecorded
from activedb.spelling import printable

if TYPE_CHECKING:
    from activedb.batches import CompensationPlan
    from activedb.workflows import BatchHistory

__all__ = ["app"]

app = typer.Typer(
    help="List the atomic batches of workflows, show their lineage and independent covers, and "
    "compensate them.",
    no_args_is_help=True,
)

Id = Annotated[
    str, typer.Argument(help="Id of a batch, as ls prints it (calls#3), or of a transaction.")
]
File = Annotated[
    Path | None,
    typer.Argument(help="Python file that opens the database, instead of --url."),
]
Which = Annotated[str | None, typer.Option("--workflow", help="Workflow, if there are several.")]
Svg = Annotated[
    Path | None, typer.Option("--svg", help="Also draw the transaction graph into this SVG file.")
]


@app.command("ls")
def ls(
    file: File = None,
    workflow: Which = None,
    state: Annotated[
        Literal["whole", "partially dropped", "dropped", "withdrawn"] | None,
        typer.Option(
            help="List only batches that are whole, 'partially dropped', dropped or withdrawn."
        ),
    ] = None,
    derived: Annotated[
        bool,
        typer.Option("--derived", help="Include derived batches, which transactions have output."),
    ] = False,
    svg: Svg = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """List the batches, with their states and their failed transactions."""
    reporter = Reporter(as_json=as_json)
    doing = reporter.looking("reading the database")
    with reporter.own_output(), doing, _history(file, url, workflow) as history:
        found = [
            batch
            for batch in history.batches()
            if state in (None, batch.state) and (derived or not batch.transaction)
        ]
        _draw(svg, history)
    reporter.first_rows(
        f"workflow {history.name}: {len(found):,} batch{'' if len(found) == 1 else 'es'}",
        ("batch", "stream", "state", "failed"),
        [
            (b.id, b.stream, b.state, "; ".join(f"{id}: {why}" for id, why in b.failed.items()))
            for b in found
        ],
        {"workflow": history.name, "batches": [batch.record() for batch in found]},
    )


@app.command("lineage")
def lineage(
    id: Id,
    file: File = None,
    workflow: Which = None,
    svg: Svg = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Show the lineage of a batch or transaction: its ancestors and its descendants."""
    reporter = Reporter(as_json=as_json)
    doing = reporter.looking("reading the database")
    with reporter.own_output(), doing, _history(file, url, workflow) as history:
        found = history.trace(id)
        _draw(svg, history, id)
    rows = [("before", each) for each in found.before] + [("after", each) for each in found.after]
    reporter.rows(
        f"{id} is {found.state}; sources: {', '.join(found.sources) or 'none'}",
        ("", "id", "kind", "name", "state"),
        [(place, each.id, each.kind, each.name, each.state) for place, each in rows],
        {"workflow": history.name, **found.record()},
    )


@app.command("cover")
def cover(
    id: Id,
    file: File = None,
    workflow: Which = None,
    consecutive: Annotated[
        bool, typer.Option("--consecutive", help="Include the batches between those of the cover.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Stop the construction after this number of rounds.")
    ] = None,
    svg: Svg = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Show the least independent cover of a batch: source batches to be dropped together."""
    reporter = Reporter(as_json=as_json)
    doing = reporter.looking("reading the database")
    with reporter.own_output(), doing, _history(file, url, workflow) as history:
        found = history.cover(id, consecutive=consecutive, rounds=rounds)
        _draw(svg, history, id)
    reporter.rows(
        f"independent cover of {id}",
        ("",),
        [(line,) for line in found.explain()],
        {"workflow": history.name, **found.record()},
    )


@app.command("compensate")
def compensate(
    id: Id,
    file: Annotated[
        Path | None,
        typer.Argument(help="Python file that defines the workflow; not needed with --plan."),
    ] = None,
    mode: Annotated[
        Literal["full", "non-intrusive", "independent cover"],
        typer.Option(help="Mode: full, non-intrusive or 'independent cover'."),
    ] = "full",
    plan: Annotated[
        bool, typer.Option("--plan", help="Only print the plan; compensate nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    allow_interference: Annotated[
        bool,
        typer.Option("--allow-interference", help="Compensate even if other batches are affected."),
    ] = False,
    workflow: Which = None,
    svg: Svg = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Compensate everything that a batch has triggered, in one transaction.

    The command first prints the plan and asks for confirmation. It exits with 0 if the batch is
    compensated now. It exits with 1 if not: the batch was compensated before, other batches would
    be affected, or a compensating action is missing or has failed.

    With --plan it exits with 0 if compensation is possible, and with 1 if other batches would be
    affected, an action is missing, or there is nothing to compensate.
    """
    reporter = Reporter(as_json=as_json)
    if file is None and not plan:
        raise ConfigurationError(
            "name the FILE that defines the workflow, whose compensating actions are to be run; or "
            "use --plan to inspect the plan"
        )
    with reporter.own_output(), _database(file, url) as db:
        name = _name(db, workflow)
        history = db.workflows.history(name)
        found = history.plan(id, mode)
        _draw(svg, history, id, plan=found)
        is_allowed = allow_interference or not found.is_interfering
        can_run = found.is_possible and is_allowed and not found.is_empty
        if not plan:
            if can_run:
                if not yes:
                    _ask(found)
                db.create_all()
            db.workflows.open(name).compensate(plan=found, allow_interference=allow_interference)
    reporter.rows(
        f"plan for {id}" if plan else f"{id} is compensated",
        ("",),
        [(line,) for line in found.explain()],
        {"workflow": name, "done": not plan, "plan": found.record()},
    )
    if plan and not can_run:
        raise typer.Exit(1)


def _ask(plan: CompensationPlan) -> None:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "there is no terminal to ask for confirmation: inspect the plan with --plan, then "
            "pass --yes"
        )
    typer.echo("\n".join(map(printable, plan.explain())), err=True)
    typer.echo("Execute this plan? [y/N]: ", nl=False, err=True)
    try:  # typer's own question makes one error of Ctrl-C and Ctrl-D
        answer = input()
    except EOFError:
        answer = ""
        typer.echo(err=True)
    if answer.strip().lower() not in ("y", "yes"):
        typer.echo("not confirmed, so nothing is compensated", err=True)
        raise typer.Exit(1)


@contextmanager
def _database(file: Path | None, url: str | None) -> Iterator[Database]:
    """Yield the database; report an id that is not recorded as a wrong argument."""
    with opened(file, url) as db:
        try:
            yield db
        except NotRecorded as error:
            raise ConfigurationError(f"{error}; activedb batches ls shows them") from error


@contextmanager
def _history(file: Path | None, url: str | None, workflow: str | None) -> Iterator[BatchHistory]:
    with _database(file, url) as db:
        yield db.workflows.history(_name(db, workflow))


def _name(db: Database, workflow: str | None) -> str:
    """Return the chosen workflow: the only one, if none is named."""
    if workflow is not None:
        return workflow
    names = db.workflows.recorded()
    if len(names) != 1:
        raise ConfigurationError(
            f"there are several workflows ({', '.join(names)}); choose one with --workflow"
            if names
            else "no batches of any workflow are recorded in this database"
        )
    return names[0]


def _draw(
    svg: Path | None,
    history: BatchHistory,
    id: str | None = None,
    *,
    plan: CompensationPlan | None = None,
) -> None:
    if svg is None:
        return
    try:
        svg.write_text(history.draw_svg(id, plan=plan), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot write {svg}: {error.strerror}") from error
