"""Activity of a running process: ``activedb top`` in the terminal, ``dashboard`` in the browser."""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from activedb._starting import INTERRUPTED
from activedb.cli._options import Attach, AttachToken, Trace, not_empty
from activedb.errors import ConfigurationError
from activedb.spelling import printable

__all__ = ["dashboard", "screen", "top"]


def dashboard(
    attach: Attach = None,
    attach_token: AttachToken = None,
    host: Annotated[
        str,
        typer.Option(
            callback=not_empty,
            help="Address to listen on; other computers cannot reach a loopback address.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8088,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ACTIVEDB_DASHBOARD_TOKEN",
            callback=not_empty,
            help="Token that visitors must give, at least 16 characters. Required if --host is not "
            "a loopback address.",
        ),
    ] = None,
    writable: Annotated[
        bool,
        typer.Option(
            "--writable",
            help="Let visitors enable and disable rules and resolve decisions, if the monitor also "
            "allows it. Without --token, the command generates a token and prints it.",
        ),
    ] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open a browser; only print the address.")
    ] = False,
    show_traceback: Trace = False,
) -> None:
    """Serve a dashboard of a running process for the browser, until interrupted.

    The process must have its monitor on: adb.connect(…, monitor="on") or ACTIVEDB_MONITOR=on.

    Ctrl-C (status 130) or SIGTERM (status 0) stops the dashboard.
    """
    from activedb.monitor import attach as attached

    serve = _serve()
    source = attached(attach, attach_token)
    made_up = writable and not token
    if made_up:
        token = secrets.token_urlsafe()
    is_told = made_up or (token is not None and sys.stdout.isatty())

    def ready(address: str) -> None:
        known = f"{address}?token={quote(token or '')}"
        typer.echo(f"dashboard: {known if made_up else address}")
        if not no_open and sys.stdout.isatty():
            shown = known if is_told else address
            threading.Thread(target=webbrowser.open, args=(shown,), daemon=True).start()

    serve(source, host=host, port=port, token=token, writable=writable, on_ready=ready)


def _serve() -> Callable[..., None]:
    try:
        from activedb.dashboard import serve
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "activedb":
            raise
        raise ConfigurationError(
            f"the dashboard needs {error.name}: pip install '.[dashboard]'"
        ) from error
    return serve


_ROWS_MAX = 12
_LEAST_ROWS = 3
_EVERY_S_MIN = 0.2
_FIXED_LINES = 4  # the two at the top, and empty ones

_RATES = (
    ("commits", "transactions_committed"),
    ("aborts", "transactions_aborted"),
    ("retries", "transactions_retried"),
    ("rules fired", "rules_fired"),
    ("rules failed", "rules_failed"),
    ("matches", "matches"),
)


def top(
    attach: Attach = None,
    attach_token: AttachToken = None,
    every: Annotated[
        float, typer.Option(min=_EVERY_S_MIN, help="Seconds between two refreshes.")
    ] = 1,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one snapshot as one JSON object and exit.")
    ] = False,
    show_traceback: Trace = False,
) -> None:
    """Show what a running process does: transactions, waits, deadlocks, rules, streams.

    The process must have its monitor on: monitor = "on" or ACTIVEDB_MONITOR=on. The display
    refreshes until Ctrl-C (status 130); without a terminal it is printed once.
    """
    from activedb.monitor import attach as attached  # it takes a while to import

    source = attached(attach, attach_token)
    console = Console(file=sys.stdout)
    try:
        if as_json:
            console.file.write(json.dumps(source.state(), indent=2) + "\n")
        elif once or not console.is_terminal:
            console.print(screen(source.state(), None, _ROWS_MAX))
        else:
            _follow(source.state, console, every)
            raise typer.Exit(INTERRUPTED)
    finally:
        source.close()


def _follow(state: Callable[[int], dict[str, Any]], console: Console, every_s: float) -> None:
    """Refresh the display until Ctrl-C."""
    try:
        before = state(0)
        shown = screen(before, None, _rows_of(console))
        with Live(shown, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(every_s)
                now = state(before["last_seq"])
                live.update(screen(now, before, _rows_of(console)), refresh=True)
                before = now
    except KeyboardInterrupt:
        return


def _rows_of(console: Console) -> int:
    """Return how many rows of each table fit."""
    return max(_LEAST_ROWS, min(_ROWS_MAX, (console.height - _FIXED_LINES) // 4 - 3))


def screen(state: Mapping[str, Any], before: Mapping[str, Any] | None, rows: int) -> RenderableType:
    """Return the display of a state.

    Parameters
    ----------
    before : mapping, optional
        The state of an earlier look, for rates per second. None, or of an earlier process at the
        same address: since the process began.
    rows : int
        Maximum number of rows of each table.
    """
    if before is not None and before["process"]["started_s"] != state["process"]["started_s"]:
        before = None
    parts: list[RenderableType] = [_head(state), _rates(state, before)]
    parts += _transactions(state, rows)
    parts += _waits(state, rows)
    parts += _rules(state, before, rows)
    parts += _streams(state, rows)
    return Group(*parts)


def _head(state: Mapping[str, Any]) -> Text:
    process, latency = state["process"], state["latency_s"]
    up_s = process["now_s"] - process["started_s"]
    text = Text()
    text.append(printable(f"activedb {process['version']}"), style="bold")
    text.append(printable(f"  process {process['pid']} on {process['host']}, {process['url']}, "))
    text.append(f"up {_age(up_s)}; transactions p50 ")
    text.append(f"{_ms(latency['transaction']['p50'])} p99 {_ms(latency['transaction']['p99'])}")
    text.append(f", commits p99 {_ms(latency['commit']['p99'])}")
    text.append(f", rules p99 {_ms(latency['rule']['p99'])}")
    return text


def _rates(state: Mapping[str, Any], before: Mapping[str, Any] | None) -> Text:
    counted = {} if before is None else before["counters"]
    seconds = _seconds(state, before)
    parts = []
    for label, name in _RATES:
        total = state["counters"].get(name, 0)
        parts.append(f"{label} {(total - counted.get(name, 0)) / seconds:,.1f}/s ({total:,})")
    deadlocks = state["deadlocks"][-1]["n"] if state["deadlocks"] else 0
    parts.append(f"deadlocks {deadlocks:,}")
    return Text(", ".join(parts))


def _seconds(state: Mapping[str, Any], before: Mapping[str, Any] | None) -> float:
    """Return the seconds between two looks; without an earlier one, since the process began."""
    process = state["process"]
    since_s = process["started_s"] if before is None else before["process"]["now_s"]
    return float(max(process["now_s"] - since_s, 1e-9))


def _transactions(state: Mapping[str, Any], rows: int) -> list[RenderableType]:
    forest, now_s = state["forest"], state["process"]["now_s"]
    table = _table(
        f"{forest['total']:,} live transactions, oldest first",
        ("id", "transaction", "rule", "state", "age", "waits for", "thread"),
    )
    for node in forest["shown"][:rows]:
        is_waiting = bool(node["waits_for"])
        _row(
            table,
            (
                str(node["id"]),
                node["called"] or node["path"],
                node["rule"] or "",
                "waiting" if is_waiting else node["state"],
                _age(now_s - node["began_s"]),
                _ids(node["waits_for"]),
                node["thread"],
            ),
            style="yellow" if is_waiting else "",
        )
    return [Text(), table]


def _waits(state: Mapping[str, Any], rows: int) -> list[RenderableType]:
    locks = state["locks"]
    queue = locks["queue"]
    if not queue and not state["deadlocks"]:
        return []
    table = _table(
        f"{locks['total']:,} locks, {locks['waits_total']:,} waits",
        ("transaction", "waits for", "mode", "blocked by"),
    )
    behind: dict[int, list[int]] = {}
    for edge in locks["edges"]:
        if edge["resource"] is not None:
            behind.setdefault(edge["waiter"], []).append(edge["blocker"])
    for request in queue[:rows]:
        waiter = request["id"]
        _row(table, (str(waiter), request["resource"], request["mode"], _ids(behind.get(waiter))))
    for found in state["deadlocks"][-1:]:
        told = f"{_ids(found['ids'])}; victim {found['victim']}"
        _row(
            table, (f"deadlock {found['n']}", ", ".join(found["resources"]), "", told), style="red"
        )
    return [Text(), table]


def _rules(
    state: Mapping[str, Any], before: Mapping[str, Any] | None, rows: int
) -> list[RenderableType]:
    if not state["rules"]:
        return []
    counted = {} if before is None else {r["name"]: r["fired"] for r in before["rules"]}
    seconds = _seconds(state, before)

    def rate(rule: Mapping[str, Any]) -> float:
        return float((rule["fired"] - counted.get(rule["name"], 0)) / seconds)

    table = _table(
        f"{len(state['rules']):,} rules, busiest first",
        ("rule", "mode", "state", "matched", "fired", "per s", "aborted", "p99", "partials"),
    )
    busiest = sorted(state["rules"], key=lambda rule: (-rate(rule), -rule["matched"]))
    for rule in busiest[:rows]:
        is_off = rule["quarantined"] or not rule["enabled"]
        _row(
            table,
            (
                rule["name"],
                rule["coupling"],
                "quarantine" if rule["quarantined"] else "on" if rule["enabled"] else "off",
                f"{rule['matched']:,}",
                f"{rule['fired']:,}",
                f"{rate(rule):,.1f}",
                f"{rule['aborted']:,}",
                _ms(rule["p99_s"]),
                f"{rule['partials']:,}",
            ),
            style="red" if rule["quarantined"] else "dim" if is_off else "",
        )
    return [Text(), table]


def _streams(state: Mapping[str, Any], rows: int) -> list[RenderableType]:
    if not state["streams"]:
        return []
    table = _table(
        f"{len(state['streams']):,} streams",
        ("stream", "events", "late", "dead", "undecided", "waiting", "batches", "lag"),
    )
    for stream in state["streams"][:rows]:
        behind_s = stream["behind_s"]
        # An older activedb does not report undecided events.
        names = ("events", "late", "dead", "undecided", "waiting", "batches")
        counts = (stream.get(name, 0) for name in names)
        _row(
            table,
            (
                stream["name"],
                *(f"{count:,}" for count in counts),
                "" if behind_s is None else _age(behind_s),
            ),
        )
    return [Text(), table]


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(title), title_justify="left", expand=True, box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    return table


def _row(table: Table, cells: Iterable[str], *, style: str = "") -> None:
    table.add_row(*(Text(printable(cell)) for cell in cells), style=style)


def _ids(ids: Sequence[int] | None) -> str:
    shown = [str(each) for each in list(dict.fromkeys(ids or ()))]
    return ", ".join(shown[:5]) + (f", {len(shown) - 5} more" if len(shown) > 5 else "")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 120 else f"{hours:,.0f} h"
