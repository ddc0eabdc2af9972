"""The event stream, with the matches of patterns in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nicegui.element import Element

from activedb.dashboard import _columns, _rows
from activedb.dashboard._cells import Row
from activedb.dashboard._elements import Figure, text
from activedb.dashboard._frame import frame, section
from activedb.dashboard._poller import Poller, Snapshot
from activedb.dashboard._words import count, rate

__all__ = ["events_page"]

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
        live.figures("Events", lambda snapshot: _figures(poller, snapshot))
        chosen = "all"

        def rows(snapshot: Snapshot) -> list[Row]:
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
                _columns.EVENTS,
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


def _of_kind(kind: str) -> Callable[[Snapshot], list[Row]]:
    def rows(snapshot: Snapshot) -> list[Row]:
        kept = [event for event in snapshot.events if kind in ("all", event["kind"])]
        return [_rows.event(event) for event in reversed(kept[-_rows.EVENTS_SHOWN :])]

    return rows


_ROWS = {kind: _of_kind(kind) for kind in _KINDS}


def _figures(poller: Poller, snapshot: Snapshot) -> list[Figure]:
    points = poller.history.points
    rates = points[-1].rates if points else {}
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
