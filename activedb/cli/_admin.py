"""Commands on a database's records and tables: ``migrate``, ``roles``, ``audit`` and ``status``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any, TypeAlias

import typer

from activedb.cli._options import Json, Trace, Url, not_empty, server_of
from activedb.cli._report import Reporter
from activedb.config import SCHEMA_NAME, Settings, mask_url
from activedb.database import connect
from activedb.errors import ConfigurationError
from activedb.monitor import addresses
from activedb.spelling import clipped, counted, printable
from activedb.store.journals import Overview, database_migrations, read_overview
from activedb.store.server import Migrations, migration_sql, rights_of_roles, role_statements
from coupling.acta import AXIOMS, AxiomViolation, BadLine, History, audit

__all__ = ["migrate", "roles", "run_audit", "status"]


def roles(
    schema: Annotated[
        str | None,
        typer.Option(
            callback=not_empty,
            help="Schema of the tables. Default: ACTIVEDB_DB_SCHEMA, else public.",
        ),
    ] = None,
    owner: Annotated[
        str, typer.Option(help="Role that owns and migrates the tables.")
    ] = "activedb_owner",
    runner: Annotated[str, typer.Option(help="Role that runs rules.")] = "activedb_runner",
    sql: Annotated[
        bool,
        typer.Option("--sql", help="Print the SQL statements that create the roles, for psql."),
    ] = False,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Show the rights of two roles: one that migrates the tables, and one that only runs rules.

    Each role has the fewest rights that it needs. The command contacts no server. To create the
    roles: activedb roles --sql | psql.
    """
    where = schema or Settings.load().db_schema or "public"
    statements = role_statements(schema=where, owner=owner, runner=runner)
    reporter = Reporter(as_json=as_json)
    if not re.fullmatch(SCHEMA_NAME, where):
        reporter.note(
            f"ACTIVEDB_DB_SCHEMA cannot name {where}, as it takes lower-case letters, digits and _ "
            "only: set the search_path of both roles to this schema"
        )
    if sql and not as_json:
        typer.echo(statements, nl=False)
        return
    rights = rights_of_roles(schema=where, owner=owner, runner=runner)
    reporter.rows(
        f"roles for schema {where}",
        ("role", "on", "rights", "why"),
        [(right.role, right.on, right.rights, right.why) for right in rights],
        {"schema": where, "rights": [asdict(right) for right in rights], "sql": statements},
    )


# -- ``activedb audit``: a recorded history against the axioms -------------------------------------


_LINES_AT_ONCE = 10_000


def run_audit(file: Path, reporter: Reporter) -> bool:
    """Audit a file of JSON lines and print the violations; return whether there are none.

    Raises
    ------
    ConfigurationError
        If there is no such file, or a line is not an event.
    """
    with reporter.working(f"auditing {file}"):
        history = _read(file, reporter)
        reporter.update(f"checking {len(history):,} events")
        violations = audit(history)
    reporter.first_rows(
        f"{file}: {len(history):,} events, {counted(len(violations), 'violation')}",
        ("axiom", "transaction", "lines", "violation"),
        [
            (str(v.axiom), str(v.transaction), ", ".join(map(str, _lines(v))), v.message)
            for v in violations
        ],
        {
            "events": len(history),
            "violations": [
                {
                    "axiom": v.axiom,
                    "states": AXIOMS[v.axiom],
                    "transaction": v.transaction,
                    "message": v.message,
                    "lines": _lines(v),
                }
                for v in violations
            ],
        },
    )
    return not violations


def _lines(violation: AxiomViolation) -> list[int]:
    return [position + 1 for position in violation.positions]


def _read(file: Path, reporter: Reporter) -> History:
    try:
        with file.open("rb") as lines:
            return History.of_lines(_counted_lines(lines, reporter))
    except BadLine as error:
        raise ConfigurationError(
            f"{file} is not a recorded history: {error}; write one with "
            "db.admin.history().write(path)"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from error


def _counted_lines(lines: IO[bytes], reporter: Reporter) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        if number % _LINES_AT_ONCE == 0:
            reporter.update(f"{number:,} lines read")
        yield line


# -- ``activedb status``: overview of the records in a database ------------------------------------


_SHOWN_MAX = 50  # rows of each table
_TEXT_MAX = 60

Columns: TypeAlias = Sequence[tuple[str, Callable[[dict[str, Any]], Any]]]


def _of(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row[name]


_TABLES: tuple[tuple[str, str, Columns], ...] = (
    (
        "streams",
        "streams",
        (
            ("stream", _of("name")),
            ("events", _of("events")),
            ("waiting", _of("waiting")),
            ("late", _of("late")),
            ("dead", _of("dead")),
            ("undecided", _of("undecided")),
            ("batches", _of("batches")),
            ("batches to take", _of("staged_batches")),
            ("producers", _of("producers")),
            ("punctuation", lambda row: _time(row["punctuation"])),
            ("batch", lambda row: row["position"]["batch_id"]),
            ("committed", lambda row: _time(row["last_commit"])),
        ),
    ),
    (
        "rules",
        "rules",
        (
            ("rule", _of("name")),
            ("state", lambda row: _state(row)),
            ("coupling", _of("coupling")),
            ("priority", _of("priority")),
            ("version", _of("version")),
            ("on", _of("event")),
        ),
    ),
    (
        "pending",
        "pending firings",
        (
            ("rule", _of("rule")),
            ("running", _of("held")),
            ("for any worker", _of("free")),
            ("left by a dead process", _of("left")),
            ("only on abort", _of("intent")),
            ("oldest since", lambda row: _time(row["oldest"])),
        ),
    ),
    (
        "letters",
        "dead letters",
        (
            ("kind", _of("kind")),
            ("source", _of("source")),
            ("error", _of("error")),
            ("letters", _of("count")),
        ),
    ),
    (
        "decisions",
        "unresolved decisions",
        (
            ("rule", _of("rule")),
            ("status", _of("status")),
            ("decisions", _of("count")),
            ("oldest since", lambda row: _time(row["oldest"])),
        ),
    ),
    (
        "leases",
        "leases",
        (
            ("lease", _of("number")),
            ("process", lambda row: "alive" if row["alive"] else "dead"),
            ("connection", _of("pid")),
            ("firings", lambda row: row.get("firings", 0)),
            ("detectors", lambda row: row.get("detectors", 0)),
            ("partials", lambda row: row.get("partials", 0)),
        ),
    ),
    (
        "followers",
        "followed slots",
        (
            ("slot", _of("slot")),
            ("state", lambda row: "followed" if row["active"] else row["wal_status"]),
            ("bytes behind", _of("behind_bytes")),
            ("since", lambda row: _time(row["since"])),
        ),
    ),
    (
        "owned",
        "owned tables",
        (
            ("table", _of("name")),
            ("owner", _of("owner")),
            ("since", lambda row: _time(row["owned_since"])),
        ),
    ),
    (
        "workflows",
        "workflows",
        (
            ("workflow", _of("name")),
            ("batches", lambda row: _counted(row["batches"])),
            ("transactions", lambda row: _counted(row["transactions"])),
        ),
    ),
)
"""Name of a field of `Overview`, title, and the columns."""


def status(url: Url = None, as_json: Json = False, show_traceback: Trace = False) -> None:
    """Show what a database records: streams, rules, pending firings, dead letters, leases.

    The command loads no program file, and neither changes nor migrates the tables. Other programs
    may run at the same time. Processes of this settings folder whose monitor is on are listed, too;
    activedb top shows what they do.
    """
    reporter = Reporter(as_json=as_json)
    settings = Settings.load(url=url)
    monitors = [each._asdict() for each in addresses(settings.folder)]
    with reporter.looking("reading the database"), server_of(settings) as server:
        overview = None if server is None else read_overview(server, settings.db_schema)
    if overview is None:
        reporter.says(
            f"there is no database in {settings.folder} yet; activedb demo, or the first program "
            f"that connects, creates it",
            {"url": None, "schema": None, "version": None, "monitors": monitors},
        )
        if not as_json:
            _print_monitors(monitors)
        return
    shown_url = mask_url(settings.url) if settings.url is not None else "embedded"
    if as_json:
        reporter.json({**_record(overview, shown_url), "monitors": monitors})
        return
    found = overview.migrations
    of = "no activedb tables" if found.found is None else f"tables of version {found.found}"
    newer = f" (the newest is {found.newest}; run activedb migrate)" if found.due else ""
    connections = counted(overview.connections, "activedb connection")
    typer.echo(printable(f"{shown_url}, schema {overview.schema}: {of}{newer}, {connections}"))
    if found.are_newer:
        typer.echo("a newer activedb created these tables; this version may not understand them")
    _print_monitors(monitors)
    for field, title, columns in _TABLES:
        _print(reporter, title, columns, getattr(overview, field))


def _print_monitors(monitors: Sequence[dict[str, Any]]) -> None:
    for each in monitors:
        at = printable(each["url"])
        typer.echo(f"process {each['pid']} has its monitor at {at}: activedb top shows it")


def _print(
    reporter: Reporter, title: str, columns: Columns, rows: Sequence[dict[str, Any]]
) -> None:
    if not rows:
        typer.echo(f"{title}: none")
        return
    used = [
        (head, cell)
        for head, cell in columns
        if any(cell(row) not in (None, "", 0) for row in rows)
    ]
    reporter.rows(
        title,
        [head for head, _ in used],
        [[_text(cell(row)) for _, cell in used] for row in rows[:_SHOWN_MAX]],
        {},
    )
    if len(rows) > _SHOWN_MAX:
        reporter.note(f"only {_SHOWN_MAX} of {len(rows):,} are shown; --json prints all of them")


def _record(overview: Overview, url: str) -> dict[str, Any]:
    found = overview.migrations
    fields = {field: getattr(overview, field) for field, _, _ in _TABLES}
    return {
        "url": url,
        "schema": overview.schema,
        "version": found.found,
        "migrations": asdict(found),
        "connections": overview.connections,
        **fields,
    }


def _state(row: dict[str, Any]) -> str:
    if not row["enabled"]:
        return "disabled"
    return "enabled" if row["quarantine"] is None else f"in quarantine: {row['quarantine']}"


def _time(iso: str | None) -> str:
    """Return a time in UTC, to the second."""
    return "" if iso is None else iso[:19].replace("T", " ")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items()))


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:,}" if isinstance(value, int) and abs(value) < 10**12 else str(value)
    return clipped(text, _TEXT_MAX)


# -- ``activedb migrate``: the versions of activedb's own tables -----------------------------------


def migrate(
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only list the migrations that are due; exit with 1 if there are any."
        ),
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Only print the SQL statements, for psql or a review.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            callback=not_empty,
            help="With --sql: start from this version (0: no tables), without contacting a server.",
        ),
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Migrate activedb's own tables to the newest version, and list the migrations.

    Programs do this themselves when they connect, unless their role lacks the rights. All
    migrations run in one transaction. Exits with 0; with --check, exits with 1 if migrations are
    due.
    """
    reporter = Reporter(as_json=as_json)
    if check and sql:
        raise ConfigurationError("say --check or --sql, not both")
    if since is not None and not sql:
        raise ConfigurationError("--since goes with --sql: only a script can begin at any version")
    settings = Settings.load(url=url)
    if since is not None:
        found_there = None if since.strip("0") == "" else since
        _print_sql(found_there, settings.db_schema, reporter, as_json=as_json)
        return
    with reporter.looking("reading the tables"), server_of(settings) as server:
        found = database_migrations(server, settings.db_schema)
        if found.are_newer:
            raise ConfigurationError(
                f"activedb's tables are of version {found.found}, and this activedb knows those up "
                f"to {found.newest}: install the newer activedb that has made them"
            )
        if found.due and not check and not sql:
            reporter.update(f"running {len(found.due)} migrations")
            connect(url, monitor="off").close()  # the monitor is useless for such a short time
    if sql:
        _print_sql(found.found, settings.db_schema, reporter, as_json=as_json)
        return
    _report(found, reporter, done=not check)
    if check and found.due:
        raise typer.Exit(1)


def _print_sql(found: str | None, schema: str | None, reporter: Reporter, *, as_json: bool) -> None:
    try:
        script = migration_sql(found, schema=schema)
    except ValueError as error:
        raise ConfigurationError(f"{error}; activedb migrate --check shows the versions") from error
    if as_json:
        reporter.json({"found": found, "sql": script})
    else:
        typer.echo(script, nl=False)


def _report(found: Migrations, reporter: Reporter, *, done: bool) -> None:
    version = found.found or "none"
    if not found.due:
        title = f"activedb's tables are up to date (version {version})"
    elif done:
        title = f"activedb's tables were migrated from version {version} to {found.newest}"
    else:
        title = f"activedb's tables have version {version}; the newest is {found.newest}"
    record = {
        "found": found.found,
        "newest": found.newest,
        "done": done and bool(found.due),
        "migrations": [{"version": name, "purpose": purpose} for name, purpose in found.due],
    }
    if found.due:
        head = "done" if done else "due"
        reporter.rows(title, (head, "purpose"), found.due, record)
    else:
        reporter.says(title, record)
