"""The rule catalog and the open decisions, with switches and buttons if changes are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nicegui import ui

from activedb.dashboard import _tables
from activedb.dashboard._elements import Figure, text
from activedb.dashboard._live import Live, frame, section
from activedb.dashboard._poller import Poller, PollResult
from activedb.dashboard._tables import LiveColumn
from activedb.dashboard._words import count, short

__all__ = ["rules_page"]

_SWITCH = LiveColumn("act", "Switch", kind="action", sort=False)
_RESOLVE = LiveColumn("act", "Decide", kind="action", sort=False)


async def rules_page(poller: Poller, *, is_writable: bool) -> None:
    """Show each rule with its runs, and the open decisions; changes are confirmed first."""
    with frame(poller, "Rules", "/rules") as live:
        live.figures("Rules", _figures)
        how = (
            "Enable and Disable ask for confirmation; the database stores the change."
            if is_writable
            else "Read-only: the dashboard was started without --writable."
        )
        with section(
            "Catalog",
            f"In order of definition. Partials: events kept for partial matches. p50 and p99: the "
            f"latency of one firing. {how}",
        ):
            live.table(
                "Rules",
                (*_tables.RULES, *([_SWITCH] if is_writable else [])),
                _tables.rules,
                empty="No rules. Declare one with @db.rule(on=…), or load a file: "
                "activedb rules load FILE.",
                filterable=True,
                height="44rem",
                on_act=(lambda name, action: _ask(poller, name, action)) if is_writable else None,
            )
        process = (poller.snapshot.state or {}).get("process", {})
        is_decided_here = is_writable and bool(process.get("writable"))
        await _DecisionSection(poller, is_writable=is_decided_here).add(live)


def _figures(snapshot: PollResult) -> list[Figure]:
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
    said = (
        "Events will trigger it again. If it is in quarantine, the quarantine ends."
        if enabled
        else "Events will no longer trigger it. Its pending firings still run."
    )
    if not await _is_sure(f"{action} rule {short(name, 80)}?", action, lambda: text("p", said)):
        return
    if await _is_done(lambda: poller.source.switch(name, enabled)):
        await poller.look()
        done = "enabled" if enabled else "disabled"
        ui.notify(f"Rule {short(name, 80)} is {done}", type="positive")


class _DecisionSection:
    """The section of the open decisions, a row for each candidate."""

    def __init__(self, poller: Poller, *, is_writable: bool):
        self._poller = poller
        self._is_writable = is_writable
        self._found: dict[str, Any] = {"total": 0, "decisions": []}

    async def add(self, live: Live) -> None:
        """Add the section to the page; its rows are those of the opening, less the decided ones."""
        problem = ""
        try:
            await self._look()
        except Exception as error:
            problem = short(error, 300)
        how = (
            "Decide shows all candidates of a decision, and asks which ones to accept."
            if self._is_writable
            else "Resolve them with activedb decisions resolve; or here, if the dashboard has "
            "--writable and the process monitor_writable."
        )
        with section(
            "Open decisions",
            f"Possible matches that the timestamps alone do not decide, oldest first, as of the "
            f"time this page was opened. {how}",
        ):
            if problem:
                text("p", problem, "adb-alarm")
                return
            more = self._found["total"] - _tables.decisions(self._found["decisions"])[1]
            if more > 0:
                said = (
                    f"{count(more)} more are not shown; activedb decisions list --json lists all."
                )
                text("p", said, "adb-small")
            live.table(
                "Open decisions",
                (*_tables.DECISIONS, *([_RESOLVE] if self._is_writable else [])),
                lambda _: _tables.decisions(self._found["decisions"])[0],
                empty="No open decisions.",
                on_act=self._ask if self._is_writable else None,
                shared=False,
            )

    async def _look(self) -> None:
        self._found = await asyncio.to_thread(self._poller.source.decisions)

    async def _ask(self, key: str, action: str) -> None:
        """Ask which candidates of a row's decision to make, and make them."""
        id, _, number = key.rpartition(" ")
        found = [each for each in self._found["decisions"] if each["id"] == id]
        if action != "Decide" or not found:
            return
        boxes: list[ui.checkbox] = []

        def choices() -> None:
            text("p", "Selected candidates trigger the rule; the others are discarded.")
            for n, each in enumerate(found[0]["texts"]):
                boxes.append(ui.checkbox(f"{n}: {short(each, 300)}", value=str(n) == number))

        question = f"Decide for rule {short(found[0]['rule'], 80)}?"
        if not await _is_sure(question, "Decide", choices):
            return
        chosen = [n for n, box in enumerate(boxes) if box.value]
        if not await _is_done(lambda: self._poller.source.resolve(id, chosen)):
            return
        with suppress(Exception):  # the previous ones remain
            await self._look()
        await self._poller.look()
        ui.notify("Decision recorded", type="positive")


async def _is_sure(question: str, action: str, explain: Callable[[], object]) -> bool:
    """Ask for confirmation in a dialog, which `explain` fills."""
    with (
        ui.dialog() as dialog,
        text("div", classes="adb-dialog", role="alertdialog", aria_label=question),
    ):
        text("h2", question)
        explain()
        with text("div", classes="adb-buttons"):
            text("button", "Cancel", "adb-button", type="button").on(
                "click", lambda: dialog.submit(False), []
            )
            text("button", action, "adb-button adb-strong", type="button").on(
                "click", lambda: dialog.submit(True), []
            )
    is_sure = bool(await dialog)
    dialog.delete()
    return is_sure


async def _is_done(do: Callable[[], None]) -> bool:
    """Run a change in the process and return whether it worked; show an error otherwise."""
    try:
        await asyncio.to_thread(do)
    except Exception as error:
        ui.notify(short(error, 300), type="negative", timeout=10_000, close_button="Close")
        return False
    return True
