"""``activedb rules``: a file's rules, and static analysis of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from activedb.cli._options import Json, Trace, Url, not_empty, server_of
from activedb.cli._report import Reporter, console_of
from activedb.cli._running import all_opened, opened
from activedb.config import Settings
from activedb.errors import ConfigurationError, DefinitionError
from activedb.spelling import printable
from activedb.store.journals import read_overview

if TYPE_CHECKING:
    from activedb.analysis import Analysis, OpenDecisions
    from activedb.firing import MatchDecision

__all__ = ["app"]

app = typer.Typer(
    help="List, show and analyze the rules of a file; load statements of the rule language into a "
    "database; enable and disable the rules of a database.\n\n"
    "The commands ls, show, analyze and explain load the file as activedb run does. They load it "
    "over an empty database in memory unless the file or --url names one.",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(help="Python file that declares the rules.")]
FileUrl = Annotated[
    str | None,
    typer.Option(
        callback=not_empty, help="Database URL for the file's connect(). Default: memory://."
    ),
]
Name = Annotated[str, typer.Argument(help="Name of the rule.")]
Program = Annotated[
    Path | None,
    typer.Argument(help="Python file that opens the database, instead of --url."),
]


@dataclass(frozen=True, slots=True)
class RuleState:
    """State of a rule: enabled or not, and the reason if it is in quarantine.

    Attributes
    ----------
    enabled : bool
    quarantine : str or None
    is_recorded : bool
        True if a database that outlives the process has said so.
    """

    enabled: bool
    quarantine: str | None
    is_recorded: bool

    def __str__(self) -> str:
        if not self.enabled:
            return "disabled"
        return "enabled" if self.quarantine is None else f"in quarantine {self.quarantine}"

    def record(self) -> dict[str, Any]:
        """Return the state as a JSON-serialisable dict."""
        return {"enabled": self.enabled, "quarantine": self.quarantine}


@app.command("ls")
def ls(
    file: File, url: FileUrl = None, as_json: Json = False, show_traceback: Trace = False
) -> None:
    """List the rules of FILE, with their state: enabled, disabled or in quarantine.

    The states are those that the database has recorded: the one that FILE or --url names, else that
    of ACTIVEDB_URL or the embedded Postgres, if it exists.
    """
    from activedb.analysis import rule_as_dict

    analysis, states = _with_states(file, url, Reporter(as_json=as_json))
    if as_json:
        rules = [
            {**rule_as_dict(profile), **states[profile.name].record()} for profile in analysis.rules
        ]
        _print({"rules": rules})
        return
    table = Table("rule", "coupling", "priority", "on", "state", box=None, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for profile in analysis.rules:
        priority = "" if profile.priority is None else str(profile.priority)
        state = str(states[profile.name])
        cells = [profile.name, str(profile.coupling), priority, profile.event, state]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console_of(sys.stdout).print(table)


@app.command("show")
def show(
    file: File,
    name: Name,
    url: FileUrl = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Show one rule: its event, its effects, the rules that trigger it, the rules it triggers.

    Also shows its state, as recorded by the database that ls uses.
    """
    from activedb.analysis import profile_named, rule_as_dict, rule_text

    analysis, states = _with_states(file, url, Reporter(as_json=as_json))
    profile = profile_named(analysis, name)
    if not as_json:
        typer.echo(rule_text(analysis, profile), nl=False)
        typer.echo(printable(str(states[name])))
        return
    edges = analysis.as_dict()["edges"]
    _print(
        {
            **rule_as_dict(profile),
            **states[name].record(),
            "triggered_by": [edge for edge in edges if edge["target"] == name],
            "triggers": [edge for edge in edges if edge["source"] == name],
        }
    )


@app.command("analyze")
def analyze(
    file: File,
    svg: Annotated[
        Path | None, typer.Option(help="Also draw the triggering graph into this SVG file.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if there are findings.")
    ] = False,
    url: FileUrl = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Analyze which rules trigger each other, whether they terminate, and whether order matters.

    Prints the triggering graph, its cycles, pairs of rules that do not commute, rules whose effects
    their source does not show, and patterns for which one event may complete so many matches that
    it is refused. Each finding has a reason.
    """
    from activedb.analysis import draw_svg, draw_text

    analysis = _analysis(file, url)
    if svg is not None:
        try:
            svg.write_text(draw_svg(analysis), encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"cannot write {svg}: {error.strerror}") from error
    if as_json:
        _print(analysis.as_dict())
    else:
        typer.echo(draw_text(analysis), nl=False)
    if strict and analysis.has_findings:
        raise typer.Exit(1)


@app.command("explain")
def explain(
    file: File,
    event: Annotated[
        str,
        typer.Argument(
            help="Name of a signal or stream event, 'insert TABLE', 'update TABLE[.COLUMN]' or "
            "'delete TABLE'."
        ),
    ],
    url: FileUrl = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Show which rules an event can trigger, in which order, and which rules these can trigger.

    Also shows the locks that each rule may take, as far as its source tells.

    With --url, also shows the open decisions of these rules in that database.
    """
    from activedb.analysis import explain, explained

    columns: dict[str, list[str]] = {}
    decisions: dict[str, OpenDecisions] = {}
    analysis = _analysis(file, url, columns=columns, decisions=decisions)
    explanation = explain(analysis, event, columns=columns, decisions=decisions)
    if as_json:
        _print(explanation.as_dict())
    else:
        typer.echo(explained(explanation), nl=False)


@app.command("enable")
def enable(
    name: Name,
    file: Program = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Enable a rule, and end its quarantine if it is in one.

    The change is stored in the database. Running programs apply it when they call
    db.rules.refresh(), other programs when they start.
    """
    _switch(name, file, url, enabled=True, as_json=as_json)


@app.command("disable")
def disable(
    name: Name,
    file: Program = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Disable a rule: events no longer trigger it, but its pending firings still run.

    The change is stored in the database. Running programs apply it when they call
    db.rules.refresh(), other programs when they start.
    """
    _switch(name, file, url, enabled=False, as_json=as_json)


@app.command("load")
def load(
    file: Annotated[
        Path, typer.Argument(help="File with statements of the rule language, such as ward.rules.")
    ],
    program: Program = None,
    url: Url = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Module whose functions CALL may name; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all statements, but change nothing.")
    ] = False,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Execute the statements of FILE (CREATE QUERY, CREATE RULE, ALTER, DROP) in one transaction.

    If one statement fails, none takes effect. The statements can name the tables of the database
    and of PROGRAM, and the streams of PROGRAM; without PROGRAM, they can name any stream.

    The database stores the names, versions and settings of the rules. To run the rules, a program
    loads the same file with db.rules.load_file.
    """
    with ExitStack() as stack, Reporter(as_json=as_json).looking("opening the database"):
        with redirect_stdout(sys.stderr):
            db = stack.enter_context(opened(program, url))
            db.admin.declare_existing()
        any_stream = program is None  # only programs declare streams
        rules, queries = _loaded(db, file, allow or (), any_stream=any_stream, dry_run=dry_run)
    if as_json:
        _print({"file": str(file), "dry_run": dry_run, "queries": queries, "rules": rules})
        return
    done = "would be" if dry_run else "is"
    for rule in rules:
        state = "enabled" if rule["enabled"] else "disabled"
        typer.echo(printable(f"rule {rule['name']} {done} {state} (version {rule['version']})"))
    if queries:
        typer.echo(printable(f"queries: {', '.join(queries)}"))


class _DryRun(Exception):  # not an error: it rolls back what was tried
    """Exception that ends a transaction which must not commit."""


def _loaded(
    db: Any, file: Path, allow: Sequence[str], *, any_stream: bool, dry_run: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    found: list[Any] = []
    queries: list[str] = []
    with suppress(_DryRun), db.transaction():
        found += db.rules.load_file(file, allow=allow, any_stream=any_stream)
        queries += db.rules.queries
        if dry_run:
            raise _DryRun
    rules = [
        {
            "name": entry.name,
            "version": entry.version,
            "enabled": entry.enabled,
            "on": repr(entry.on),
            "coupling": str(entry.coupling),
            "priority": entry.priority,
        }
        for entry in found
    ]
    return rules, sorted(queries)


def _switch(name: str, file: Path | None, url: str | None, *, enabled: bool, as_json: bool) -> None:
    with ExitStack() as stack, Reporter(as_json=as_json).looking("opening the database"):
        with redirect_stdout(sys.stderr):
            db = stack.enter_context(opened(file, url))
        version = db.rules.switch(name, enabled=enabled)
    if as_json:
        _print({"name": name, "enabled": enabled, "version": version})
    else:
        state = "enabled" if enabled else "disabled"
        typer.echo(printable(f"rule {name} is {state} (version {version})"))


def _analysis(
    file: Path,
    url: str | None,
    states: dict[str, RuleState] | None = None,
    columns: dict[str, list[str]] | None = None,
    decisions: dict[str, OpenDecisions] | None = None,
) -> Analysis:
    """Load a file and analyze its rules.

    `states` receives the state of each rule, and then disabled rules are analyzed, too; `columns`
    the columns of each declared table, `decisions` the open decisions of each rule.
    """
    from activedb.analysis import analyze

    with ExitStack() as open_ones:
        with redirect_stdout(sys.stderr):
            databases = open_ones.enter_context(
                all_opened(file, "memory://" if url is None else url)
            )
        analyses = [
            db.rules.analyze() if states is None else analyze(entry.rule for entry in db.rules)
            for db in databases
        ]
        found = [analysis for analysis in analyses if analysis.rules]
        if len(found) > 1:
            raise DefinitionError(
                f"{file} declares rules on {len(found)} databases; analyze one at a time, in a "
                f"file of its own"
            )
        if columns is not None:
            for db in databases:
                for table in db.metadata.tables.values():
                    columns[table.fullname] = [str(column.name) for column in table.columns]
        if decisions is not None:
            decisions.update(
                _left_open([open_one for db in databases for open_one in db.decisions])
            )
        if states is not None:
            for db in databases:
                is_recorded = db.settings.url != "memory://"
                for entry in db.rules:
                    states[entry.name] = RuleState(entry.enabled, entry.quarantine, is_recorded)
        return found[0] if found else analyses[0]


def _with_states(
    file: Path, url: str | None, reporter: Reporter
) -> tuple[Analysis, dict[str, RuleState]]:
    """Analyze the rules of a file; return their states, too, from the database if there is one."""
    states: dict[str, RuleState] = {}
    analysis = _analysis(file, url, states=states)
    settings = Settings.load(url=url)
    if all(state.is_recorded for state in states.values()):
        return analysis, states
    if settings.url != "memory://":
        with reporter.looking("reading the database"), server_of(settings) as server:
            if server is not None:
                recorded = read_overview(server, settings.db_schema).rules
                known = {row["name"]: row for row in recorded}
                for name in states.keys() & known.keys():
                    row = known[name]
                    states[name] = RuleState(row["enabled"], row["quarantine"], True)
                return analysis, states
    reporter.note("there is no database to look at, so the states are those of the file")
    return analysis, states


def _left_open(decisions: Sequence[MatchDecision]) -> dict[str, OpenDecisions]:
    """Return open decisions by rule; they are given in the order of time."""
    from activedb.analysis import OpenDecisions

    by_rule: dict[str, list[MatchDecision]] = {}
    for each in decisions:
        by_rule.setdefault(each.rule, []).append(each)
    return {
        rule: OpenDecisions(len(found), found[0].id, found[0].us) for rule, found in by_rule.items()
    }


def _print(result: dict[str, Any]) -> None:
    typer.echo(json.dumps(result, indent=2))
