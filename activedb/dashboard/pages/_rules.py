"""The rule catalog, and switching rules if that is allowed."""

from __future__ import annotations

import asyncio

from nicegui import ui

from activedb.dashboard import _columns, _rows
from activedb.dashboard._cells import Column
from activedb.dashboard._elements import Figure, text
from activedb.dashboard._frame import frame, section
from activedb.dashboard._poller import Poller, Snapshot
from activedb.dashboard._words import count, short

__all__ = ["rules_page"]

_SWITCH = Column("act", "Switch", kind="action", sort=False)


def rules_page(poller: Poller, *, is_writable: bool) -> None:
    """Each rule with what it did; enabled and disabled after a question, if that is allowed."""
    with frame(poller, "Rules", "/rules") as live:
        live.figures("Rules", _figures)
        how = (
            "Enable or disable asks first; the change is kept in the database."
            if is_writable
            else "Rules cannot be switched here: the dashboard was started without --writable."
        )
        with section(
            "Catalog",
            f"In order of definition. Not met: its condition was false. Partials: events kept for "
            f"later matches. Latencies are of one firing. {how}",
        ):
            live.table(
                "Rules",
                (*_columns.RULES, *([_SWITCH] if is_writable else [])),
                _rows.rules,
                empty="The process has no rules. Declare one with @db.rule(on=…), or load a text: "
                "activedb rules load FILE.",
                filterable=True,
                height="44rem",
                on_act=(lambda name, action: _ask(poller, name, action)) if is_writable else None,
            )


def _figures(snapshot: Snapshot) -> list[Figure]:
    rules = (snapshot.state or {}).get("rules", [])
    bad = sum(1 for rule in rules if rule["quarantined"])
    off = sum(1 for rule in rules if not rule["enabled"])
    return [
        Figure("Rules", count(len(rules))),
        Figure("Disabled", count(off)),
        Figure("In quarantine", count(bad), tone="bad" if bad else ""),
        Figure("Fired", count(sum(rule["fired"] for rule in rules)), "since the start"),
        Figure("Partial matches", count(sum(rule["partials"] or 0 for rule in rules)), "kept"),
    ]


async def _ask(poller: Poller, name: str, action: str) -> None:
    """Ask whether to switch a rule, and do it."""
    if action not in ("Enable", "Disable"):
        return
    enabled = action == "Enable"
    question = f"{action} rule {short(name, 80)}?"
    with (
        ui.dialog() as dialog,
        text("div", classes="adb-dialog", role="alertdialog", aria_label=question),
    ):
        text("h2", question)
        text(
            "p",
            "It will be triggered again, and its quarantine, if it is in one, ends."
            if enabled
            else "Events will not trigger it any more. What it has been triggered for still runs.",
        )
        with text("div", classes="adb-buttons"):
            text("button", "Cancel", "adb-button", type="button").on(
                "click", lambda: dialog.submit(False), []
            )
            text("button", action, "adb-button adb-strong", type="button").on(
                "click", lambda: dialog.submit(True), []
            )
    is_sure = await dialog
    dialog.delete()
    if not is_sure:
        return
    try:
        await asyncio.to_thread(poller.source.switch, name, enabled)
    except Exception as error:
        ui.notify(short(error, 300), type="negative", timeout=10_000, close_button="Close")
        return
    await poller.look()
    ui.notify(f"Rule {short(name, 80)} is {'enabled' if enabled else 'disabled'}", type="positive")
