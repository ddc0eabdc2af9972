"""``activedb status``: overview of the records in a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._place import server_of
from activedb.cli._report import Reporter
from activedb.config import Settings, mask_url
from activedb.monitor import addresses
from activedb.store.journals import Overview, read_overview

__all__ = ["status"]

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
        return
    shown_url = mask_url(settings.url) if settings.url is not None else "embedded"
    if as_json:
        reporter.json({**_record(overview, shown_url), "monitors": monitors})
        return
    found = overview.migrations
    of = "no activedb tables" if found.found is None else f"tables of version {found.found}"
    newer = f" (the newest is {found.newest}; run activedb migrate)" if found.due else ""
    typer.echo(
        f"{shown_url}, schema {overview.schema}: {of}{newer}, "
        f"{overview.connections} activedb connection{'' if overview.connections == 1 else 's'}"
    )
    if found.are_newer:
        typer.echo("a newer activedb created these tables; this version may not understand them")
    for each in monitors:
        typer.echo(f"process {each['pid']} has its monitor at {each['url']}: activedb top shows it")
    for field, title, columns in _TABLES:
        _print(reporter, title, columns, getattr(overview, field))


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
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"
