"""Streams: the events with the matches in them, late events, atomic batches, and dead letters."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urlencode

from nicegui.element import Element

from activedb.dashboard import _tables
from activedb.dashboard._elements import Figure, LiveTable, text
from activedb.dashboard._live import frame, section
from activedb.dashboard._poller import Poller, PollResult
from activedb.dashboard._tables import LiveColumn, Row, cell
from activedb.dashboard._words import count, rate, short

__all__ = ["batches_page", "events_page"]


Value = Mapping[str, Any]

_TRACE = (
    LiveColumn("place", "Position"),
    LiveColumn("id", "Id"),
    LiveColumn("kind", "Kind"),
    LiveColumn("of", "Name"),
    LiveColumn("state", "State"),
)


async def batches_page(poller: Poller, workflow: str | None, id: str | None) -> None:
    """Show live streams; batches, letters and pending rules are those of the time of opening."""
    with frame(poller, "Batches", "/batches") as live:
        with section(
            "Streams",
            "Late: arrived behind the punctuation, and set aside. Waiting: not yet passed by the "
            "punctuation. Lag: how far the punctuation is behind the clock.",
        ):
            live.table(
                "Streams",
                _tables.STREAMS,
                _tables.streams,
                empty="No open streams. Declare one with db.stream(…), and feed it: activedb run.",
                height="20rem",
            )
        source = poller.source
        found, problem = await _asked(lambda: source.batches(workflow, id))
        with section("Atomic batches", "As of the time this page was opened."):
            text("button", "Refresh", "adb-button", type="button").on(
                "click", js_handler="() => window.location.reload()"
            )
            _batches(found, problem, id)
        letters, problem = await _asked(source.letters)
        with section(
            "Dead letters",
            "Events that could not be processed, and rules that failed in a separate transaction.",
        ):
            _letters(letters, problem)
        pending, problem = await _asked(source.pending)
        with section("Pending firings", "Rules that are due in a separate transaction."):
            _pending(pending, problem)


async def _asked(ask: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return await asyncio.to_thread(ask), ""
    except Exception as error:
        return None, short(error, 300)


def _batches(found: Value | None, problem: str, id: str | None) -> None:
    if found is None:
        text("p", problem, "adb-alarm")
        return
    names: list[str] = found["workflows"]
    name = found["workflow"]
    if len(names) > 1:
        with text("nav", classes="adb-buttons", aria_label="Workflows"):
            for each in names:
                link = text("a", short(each, 60), "adb-button", href=_tables.batch_link(None, each))
                if each == name:
                    link.props["aria-current"] = "page"
    if name is None and names:
        text("p", "Choose a workflow to see its batches.")
        return
    LiveTable(
        "Batches",
        _tables.BATCHES,
        [_batch(batch, name) for batch in found["batches"]],
        empty="No batches are recorded. Batches belong to workflows: db.workflow(…), "
        "docs/workflows.md.",
        filterable=True,
        height="24rem",
    )
    if found["total"] > len(found["batches"]):
        text(
            "p",
            f"{count(found['total'] - len(found['batches']))} more are not shown; "
            "activedb batches ls --json lists all.",
            "adb-small",
        )
    if found["svg"]:
        text("h3", f"Lineage of {short(id, 60)}" if id else "Lineage")
        query = {key: value for key, value in (("workflow", name), ("id", id)) if value}
        about = f"Transaction graph of workflow {short(name, 60)}"
        with text("div", classes="adb-drawing", tabindex="0", role="region", aria_label=about):
            address = f"/drawing.svg?{urlencode(query)}"
            drawing = text("object", data=address, type="image/svg+xml", aria_label=about)
            drawing.style(_size(found["svg"]))
    if found["trace"]:
        _trace(found["trace"], name)


def _size(svg: str) -> str:
    """Return the size of a drawing, as its first tag gives it."""
    found = re.search(r'<svg[^>]*? width="([0-9.]+)" height="([0-9.]+)"', svg)
    return f"width: {found[1]}px; height: {found[2]}px" if found else "width: 100%"


def _batch(batch: Value, workflow: str) -> Row:
    failed = "; ".join(f"{id}: {why}" for id, why in (batch.get("failed") or {}).items())
    return {
        "key": batch["id"],
        "batch": cell(short(batch["id"], 60), href=_tables.batch_link(batch["id"], workflow)),
        "stream": short(batch["stream"], 60),
        "kind": short(batch.get("transaction"), 60) or "external",
        "state": batch["state"],
        "failed": cell(short(failed, 120), tone="bad") if failed else "",
    }


def _trace(trace: Value, workflow: str) -> None:
    rows: list[Row] = [
        {
            "key": f"{place} {row['id']}",
            "place": place,
            "id": cell(short(row["id"], 60), href=_tables.batch_link(row["id"], workflow)),
            "kind": short(row["kind"]),
            "of": short(row["of"], 60),
            "state": short(row["state"]),
        }
        for place in ("before", "after")
        for row in trace[place]
    ]
    sources = ", ".join(trace["sources"]) or "none"
    text("p", f"{short(trace['id'], 60)} is {trace['state']}; sources: {short(sources, 300)}.")
    LiveTable("Ancestors and descendants", _TRACE, rows, empty="No ancestors or descendants.")


def _letters(found: Value | None, problem: str) -> None:
    if found is None:
        text("p", problem, "adb-alarm")
        return
    counts = found["counts"]
    if counts:
        said = ", ".join(f"{kind} {count(number)}" for kind, number in counts.items())
        left = sum(counts.values()) - len(found["letters"])
        more = f" The last {count(len(found['letters']))} are shown, not {count(left)} older ones."
        text("p", f"By kind: {said}.{more if left > 0 else ''}", "adb-small")
    LiveTable(
        "Dead letters",
        _tables.LETTERS,
        [
            {
                "key": f"{letter['source']} {letter['identity']}",
                **{column.name: short(letter.get(column.name), 160) for column in _tables.LETTERS},
            }
            for letter in found["letters"]
        ],
        empty="No dead letters. Each failure would be listed with its reason; "
        "activedb dead-letter retry retries rules.",
        filterable=True,
        height="20rem",
    )


def _pending(found: Any, problem: str) -> None:
    if found is None:
        text("p", problem, "adb-alarm")
        return
    due = found["pending"] if isinstance(found, Mapping) else found
    names = list(dict.fromkeys(key for each in due for key in each))
    LiveTable(
        "Pending firings",
        [LiveColumn(name, name.replace("_", " ").capitalize()) for name in names],
        [
            {"key": str(n), **{key: short(value, 100) for key, value in each.items()}}
            for n, each in enumerate(due)
        ],
        empty="No pending firings. Workers run those that other processes leave to them: "
        "activedb work FILE.",
        height="20rem",
    )


_KINDS = {
    "all": "All",
    "row": "Rows",
    "signal": "Signals",
    "stream": "Streams",
    "clock": "Clock",
    "composite": "Matches",
}


def events_page(poller: Poller) -> None:
    """Show events as they are raised, newest first, of one kind or all."""
    with frame(poller, "Events", "/events") as live:
        live.figures("Events", _figures)
        chosen = "all"

        def rows(snapshot: PollResult) -> list[Row]:
            return snapshot.once(_ROWS[chosen])

        with section(
            "Event stream",
            "Newest first, at most 200. A match is a composite event: all parts of a rule's "
            "pattern have occurred. Pause stops the updates.",
        ):
            with text("div", classes="adb-buttons", role="group", aria_label="Kind of events"):
                buttons = {kind: _button(name) for kind, name in _KINDS.items()}
            table = live.table(
                "Events",
                _tables.EVENTS,
                rows,
                empty="No recent events of this kind. Events come from rows, signals, streams and "
                "the clock; those that no rule is on may not be listed.",
                filterable=True,
                height="40rem",
                shared=False,
            )

        def choose(kind: str) -> None:
            nonlocal chosen
            chosen = kind
            for each, button in buttons.items():
                button.props["aria-pressed"] = "true" if each == kind else "false"
                button.update()
            live.now(table, rows)

        for kind, button in buttons.items():
            button.on("click", partial(choose, kind), [])


def _button(name: str) -> Element:
    pressed = "true" if name == _KINDS["all"] else "false"
    return text("button", name, "adb-button", type="button", aria_pressed=pressed)


def _of_kind(kind: str) -> Callable[[PollResult], list[Row]]:
    def rows(snapshot: PollResult) -> list[Row]:
        kept = [event for event in snapshot.events if kind in ("all", event["kind"])]
        return [_tables.event(event) for event in reversed(kept[-_tables.EVENTS_SHOWN :])]

    return rows


_ROWS = {kind: _of_kind(kind) for kind in _KINDS}


def _figures(snapshot: PollResult) -> list[Figure]:
    rates = snapshot.rates
    counters = (snapshot.state or {}).get("counters", {})
    figures = [
        Figure("Matches", rate(rates.get("matches")), "/s"),
        Figure("Rules fired", rate(rates.get("fired")), "/s"),
        Figure("Partial matches", count(counters.get("partials", 0)), "kept"),
        Figure("Waiting", count(counters.get("events_waiting", 0)), "stream events"),
    ]
    if snapshot.skipped:
        figures.append(Figure("Not shown", count(snapshot.skipped), "since the last update"))
    return figures
