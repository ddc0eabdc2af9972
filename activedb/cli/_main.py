"""Commands and their options, the exit statuses of the process, and its error messages.

========== ======================================================================
status     meaning
========== ======================================================================
0          done
1          the run or a check failed, or the request was not met: (demo) the outcome disagrees
           with the recount, (audit) violations, (doctor) problems, (migrate --check) migrations
           are due, (rules analyze --strict) findings, (dead-letter retry) some are left, (batches
           compensate) it was not done, (decisions resolve) it was decided before, (follow --drop)
           there was no such slot
2          wrong usage, configuration or definition
3          no database server answers
130        interrupted (also a follower ended by Ctrl-C); a second signal to a worker or follower
========== ======================================================================

The statuses are stable: each keeps its meaning. `docs/cli.md` has the same table.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from activedb._starting import INTERRUPTED, started
from activedb.cli._admin import migrate, roles, run_audit, status
from activedb.cli._batches import app as batches
from activedb.cli._decisions import app as decisions
from activedb.cli._demo import bench, run_demo
from activedb.cli._doctor import doctor
from activedb.cli._letters import app as dead_letters
from activedb.cli._letters import run_pending
from activedb.cli._match import match
from activedb.cli._options import Json, Trace, Url, not_empty
from activedb.cli._report import Reporter
from activedb.cli._rules import app as rules
from activedb.cli._running import Options, run_follower, run_job, run_worker, stop_following
from activedb.cli._top import dashboard, top
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    DefinitionError,
    RuleSyntaxError,
    ServerUnreachable,
    StreamError,
)
from activedb.monitor import grafana_dashboard
from activedb.spelling import printable

__all__ = ["main", "message_of", "status_of"]

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of typer's errors about a call, which has stood in several modules."""


def status_of(error: Exception) -> int:
    """Return the status for an error that ends a command."""
    if isinstance(error, ServerUnreachable):
        return 3
    if isinstance(error, ConfigurationError | DefinitionError):
        return 2
    return 1


def message_of(error: Exception) -> str:
    """Return one line about an error."""
    if isinstance(error, RuleSyntaxError):  # the text's own line, with a caret below it
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, ActiveDBError) and not isinstance(error, StreamError):
        return text
    return f"{type(error).__name__}: {text} (--traceback shows where)"


# -- commands and their options --------------------------------------------------------------------


def grafana() -> None:
    """Print the Grafana dashboard as JSON, to import it or to provision it as a file."""
    typer.echo(grafana_dashboard(), nl=False)


app = typer.Typer(
    help="Active rules over a SQL store.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(rules, name="rules")
app.add_typer(dead_letters, name="dead-letter")
app.add_typer(decisions, name="decisions")
app.add_typer(batches, name="batches")


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"activedb {importlib.metadata.version('activedb')}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Time to wait for a server that is starting or does not answer yet. Default: "
            "ACTIVEDB_WAIT_S, else 10 for a server that reports that it is starting.",
        ),
    ] = None,
) -> None:
    """Active rules over a SQL store."""
    if wait is not None:
        os.environ["ACTIVEDB_WAIT_S"] = str(wait)


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="Python file that declares the rules and a stream.")],
    input: Annotated[
        Path | None,
        typer.Option(help="File or folder with the events, for a stream that reads files."),
    ] = None,
    url: Url = None,
    stream: Annotated[
        str | None, typer.Option(help="Stream to feed, if the file declares several.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Spark's checkpoint folder. Default: .activedb/checkpoints/<stream>."),
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option(help="Stop at an invalid event, instead of recording it as a dead letter."),
    ] = False,
    follow: Annotated[bool, typer.Option(help="Wait for new events until interrupted.")] = False,
    resume: Annotated[
        bool,
        typer.Option(
            help="Continue after the last batch that the database has recorded, with an empty "
            "checkpoint; for use when the checkpoint is lost."
        ),
    ] = False,
    scale_out: Annotated[
        bool | None,
        typer.Option(
            help="Distribute the work over Spark's executors. Default: the setting scale_out."
        ),
    ] = None,
    spark_master: Annotated[
        str | None,
        typer.Option(
            callback=not_empty, help="Spark master: local[4], spark://…, k8s://… or yarn."
        ),
    ] = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Feed a stream through Spark into the rules of FILE.

    To continue after a stop or a crash, run the same command again.
    """
    if url is not None:
        os.environ["ACTIVEDB_URL"] = url
    if scale_out is not None:
        os.environ["ACTIVEDB_SCALE_OUT"] = str(scale_out)
    if spark_master is not None:
        os.environ["ACTIVEDB_SPARK_MASTER"] = spark_master
    options = Options(
        file=file,
        input=input,
        stream=stream,
        checkpoint=checkpoint,
        fail_fast=fail_fast,
        follow=follow,
        resume=resume,
    )
    reporter = Reporter(as_json=as_json)
    with reporter.own_output():
        run_job(options, reporter)


@app.command()
def demo(
    events: Annotated[int, typer.Option(min=1, help="Number of events to generate.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed of the generator.")] = 0,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Run the hospital ward demo: generated events pass through Spark and rules into Postgres.

    All data is in the schema activedb_demo, which is emptied first. At the end, an independent
    replay computes the outcome again. The command fails if the two disagree.
    """
    if not run_demo(events=events, seed=seed, url=url, reporter=Reporter(as_json=as_json)):
        raise typer.Exit(1)


@app.command()
def audit(
    file: Annotated[Path, typer.Argument(help="Recorded history, as JSON lines.")],
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Check a recorded history of transactions against the axioms of rule execution.

    Exits with 0 if the history satisfies all axioms, with 1 if it violates one, and with 2 if FILE
    is not a history.
    """
    if not run_audit(file, Reporter(as_json=as_json)):
        raise typer.Exit(1)


@app.command()
def pending(
    file: Annotated[
        Path | None, typer.Argument(help="Python file that opens the database, instead of --url.")
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """List the pending firings, oldest first: runs of rules that are due but not done."""
    run_pending(file, url, Reporter(as_json=as_json))


@app.command()
def work(
    file: Annotated[Path, typer.Argument(help="Python file that declares the rules.")],
    poll_s: Annotated[
        float, typer.Option(help="Maximum time between two checks for work, in seconds.")
    ] = 5.0,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Run the firings that other processes have recorded for the rules of FILE, until interrupted.

    Any number of workers share the work: detached, sequential and exclusive rules that other
    processes leave to workers (firings = "queue"), and firings that a killed process has left
    unfinished.

    Ctrl-C or SIGTERM stops a worker after its running rules have ended (status 0). A second signal
    stops it at once (status 130), and other workers run these rules again.
    """
    reporter = Reporter(as_json=as_json)
    with reporter.own_output():
        run_worker(file, url, poll_s, reporter)


@app.command()
def follow(
    file: Annotated[Path, typer.Argument(help="Python file that declares the rules.")],
    table: Annotated[
        list[str] | None,
        typer.Option(help="Table to follow; may be repeated. Default: all tables with such rules."),
    ] = None,
    slot: Annotated[
        str, typer.Option(help="Name of the replication slot, which the first call creates.")
    ] = "activedb",
    poll_s: Annotated[
        float, typer.Option(help="Seconds between two checks for changes while idle.")
    ] = 1.0,
    whole_rows: Annotated[
        bool,
        typer.Option(help="Set REPLICA IDENTITY FULL, so that changes contain the whole old row."),
    ] = False,
    drop: Annotated[
        bool,
        typer.Option(
            help="Drop the slot and its recorded state, and exit: with 1 if there was no such slot."
        ),
    ] = False,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Trigger the rules of FILE when other programs commit changes, until interrupted.

    Detached, sequential and causal rules on inserted, updated or deleted rows run once for each
    change by another program, even across crashes. The server's wal_level must be logical.

    The first call creates a replication slot. From then on the server keeps its write-ahead log
    for the slot, even while no follower runs. Run the command again to continue, or with --drop to
    remove the slot.

    SIGTERM (status 0) or Ctrl-C (status 130) stops the follower after its running rules have ended.
    A second signal stops it at once (status 130), and the next call runs these rules again.
    """
    reporter = Reporter(as_json=as_json)
    with reporter.own_output():
        if drop:
            if not stop_following(file, url, slot, reporter):
                raise typer.Exit(1)
            return
        was_interrupted = run_follower(
            file,
            url,
            slot=slot,
            tables=table or (),
            poll_s=poll_s,
            whole_rows=whole_rows,
            reporter=reporter,
        )
    if was_interrupted:
        raise typer.Exit(INTERRUPTED)


for command in (match, status, top, dashboard, doctor, migrate, bench, roles, grafana):
    app.command()(command)


def _fill(commands: typer.Typer) -> None:
    """Join the lines of each paragraph of the commands' help, so that it fits any terminal.

    Typer keeps a docstring's line breaks in all paragraphs but the first.
    """
    for command in commands.registered_commands:
        paragraphs = inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")
        command.help = "\n\n".join(" ".join(each.split()) for each in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _fill(group.typer_instance)


_fill(app)


def main() -> None:
    """Run the command line and exit with its status."""
    try:
        started()
        # psycopg warns of a flush that the server refused; the error says the same and more.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        status = _status(sys.argv[1:])
    except KeyboardInterrupt:  # between two steps
        status = INTERRUPTED
        typer.echo("interrupted", err=True)
    sys.exit(status)


def _status(arguments: list[str]) -> int:
    try:
        ended = app(arguments, standalone_mode=False)
    except _UsageError as error:
        if str(error):  # a call without arguments has shown the help
            _tell(f"error: {str(error).rstrip('.')}; --help shows the usage")
        return 2
    except KeyboardInterrupt:
        ended = INTERRUPTED
    except Exception as error:
        if "--traceback" in arguments:
            _tell(traceback.format_exc().rstrip("\n"))
        else:
            _tell(f"error: {message_of(error)}")
        return status_of(error)
    if ended == INTERRUPTED:  # typer turns an interrupt into this status, too
        typer.echo("interrupted; run the command again to continue", err=True)
    return ended if isinstance(ended, int) else 0


def _tell(text: str) -> None:
    """Print an error, escaped but for line breaks and the tabs that place a caret."""
    typer.echo("".join(c if c in "\n\t" else printable(c) for c in text), err=True)
