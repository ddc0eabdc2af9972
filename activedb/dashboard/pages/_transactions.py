"""The live forest, the transactions that have ended, and the story of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui
from nicegui.element import Element

from activedb.dashboard import _tables
from activedb.dashboard._elements import Figure, LiveChart, LiveFigures, LiveTable, text
from activedb.dashboard._live import frame, section
from activedb.dashboard._poller import Poller, PollResult
from activedb.dashboard._tables import Row, cell
from activedb.dashboard._words import clock_time, count, duration, short

__all__ = ["story_page", "transactions_page"]


Value = Mapping[str, Any]

_BARS_MAX = 40
_LOOK_S = 1.0


async def story_page(poller: Poller, id: int) -> None:
    """Show the record of a transaction, refreshed each second while it is live."""
    with frame(poller, f"Transaction {id}", "/transactions"):
        story, problem = await _fetched(poller, id)
        place = text("div", classes="adb-stack")
        with place:
            _tell(id, story, problem)
        if not _is_live(story):
            return
        told = story

        async def again() -> None:
            nonlocal told
            new, problem = await _fetched(poller, id)
            if new != told:
                told = new
                place.clear()
                with place:
                    _tell(id, new, problem)
            if not _is_live(new):
                timer.deactivate()

        timer = ui.timer(_LOOK_S, again, immediate=False)


async def _fetched(poller: Poller, id: int) -> tuple[Value | None, str]:
    try:
        return await asyncio.to_thread(poller.source.transaction, id), ""
    except Exception as error:
        return None, short(error, 300)


def _is_live(story: Value | None) -> bool:
    return story is not None and story["ended_s"] is None


def _tell(id: int, story: Value | None, problem: str) -> None:
    if story is None:
        text(
            "p",
            problem
            or f"Transaction {id} does not exist, or is no longer kept. The Transactions page "
            "lists those that finished recently.",
            "adb-alarm",
        )
        text("a", "Transactions", href="/transactions")
        return
    _head(story)
    if story["why"] or story["error"]:
        with section("Why it aborted"):
            text("p", short(story["why"] or story["error"], 2_000), "adb-why")
            if story["why"] and story["error"] and story["error"] not in story["why"]:
                text("p", short(story["error"], 2_000), "adb-small adb-code")
            if story.get("deadlock") is not None:
                text("a", "Replay the deadlock", href=_tables.deadlock_link(story["deadlock"]))
    with section("What happened", "In time order, from its begin."):
        LiveTable(
            "Steps",
            _tables.STEPS,
            [_step(step, n, story["began_s"]) for n, step in enumerate(story["steps"])],
            empty="No recorded steps.",
            filterable=len(story["steps"]) > 12,
            height="40rem",
        )
    if story["children"]:
        with section("Children", "Subtransactions and triggered rules, on one timeline."):
            LiveChart.of_options(
                "Children over time", _bars(story), f"{count(len(story['children']))} children"
            ).style(f"height: {5 + 1.7 * min(_BARS_MAX, len(story['children']) + 1):.1f}rem")
            LiveTable(
                "Children",
                _tables.RECENT,
                [_tables.ended(child) for child in story["children"]],
                empty="",
            )
    with section("Rows written", "They take effect when the transaction and its superiors commit."):
        LiveTable(
            "Writes",
            _tables.WRITES,
            [
                {
                    "key": str(n),
                    "kind": short(write["kind"]),
                    "table": short(write["table"], 60),
                    "row": _tables.resource_name(write["key"]),
                }
                for n, write in enumerate(story["writes"])
            ],
            empty="No rows written.",
        )


def _head(story: Value) -> None:
    ended_s = story["ended_s"]
    state = story["state"]
    figures = [
        Figure("State", state, tone="bad" if state == "aborted" else ""),
        Figure("Name", _tables.label(story) or "–"),
        Figure("Began", clock_time(story["began_s"])),
        Figure("Duration", "live" if ended_s is None else duration(ended_s - story["began_s"])),
    ]
    if story["rule"]:
        figures.append(Figure("Rule", short(story["rule"], 60), "", story["coupling"] or ""))
    if story["thread"]:
        figures.append(Figure("Thread", short(story["thread"], 40)))
    if (story["tries"] or 1) > 1:
        figures.append(Figure("Tries", count(story["tries"])))
    LiveFigures("Transaction", figures)
    with text("p", "", "adb-small adb-links"):
        _link("Parent", story["parent"])
        if story["top"] != story["id"] and story["top"] != story["parent"]:
            _link("Top-level", story["top"])
        if story["parent"] is not None:
            text("span", f"Path: {short(story['path'], 200)}")


def _link(name: str, id: int | None) -> Element | None:
    if id is None:
        return None
    return text("a", f"{name}: {id}", href=_tables.transaction_link(id))


def _step(step: Value, n: int, began_s: float) -> Row:
    other = step["other"]
    after_s = step["at_s"] - began_s
    what = str(step["what"])
    tone = (
        "bad"
        if "abort" in what or "denied" in what
        else "warn"
        if "wait" in what
        else "good"
        if "commit" in what
        else None
    )
    return {
        "key": str(n),
        "at": after_s,
        "what": cell(short(what, 40), tone=tone),
        "text": short(step["text"], 400),
        "resource": "" if step["resource"] is None else _tables.resource_name(step["resource"]),
        "mode": short(step["mode"]),
        "other": other if isinstance(other, int) else short(other),
    }


def _bars(story: Value) -> dict[str, Any]:
    """Return the transaction and its children as bars over the milliseconds since its begin."""
    began_s = story["began_s"]
    shown = [story, *story["children"][: _BARS_MAX - 1]]
    until_s = max([each["ended_s"] or each["began_s"] for each in shown])

    def ms(seconds: float) -> float:
        return round(float(seconds - began_s) * 1000, 3)

    colours = {"committed": "good", "aborted": "bad"}
    return {
        "grid": {"left": 8, "right": 24, "top": 8, "bottom": 28, "containLabel": True},
        "tooltip": {"show": False},
        "xAxis": {
            "type": "value",
            "name": "ms",
            "nameLocation": "middle",
            "nameGap": 22,
            "nameTextStyle": {"color": "text"},
            "axisLabel": {"color": "text"},
            "splitLine": {"lineStyle": {"color": "grid"}},
        },
        "yAxis": {
            "type": "category",
            "inverse": True,
            "data": [short(f"{x['id']} {x['rule'] or _tables.label(x)}", 32) for x in shown],
            "axisLabel": {"color": "text", "interval": 0},
            "axisTick": {"show": False},
            "axisLine": {"lineStyle": {"color": "line"}},
        },
        "series": [
            {
                "type": "bar",
                "stack": "time",
                "silent": True,
                "itemStyle": {"color": "transparent"},
                "data": [ms(each["began_s"]) for each in shown],
            },
            {
                "type": "bar",
                "stack": "time",
                "barWidth": 12,
                "barMinHeight": 2,
                "data": [
                    {
                        "value": max(0.001, ms(each["ended_s"] or until_s) - ms(each["began_s"])),
                        "itemStyle": {"color": colours.get(each["state"], "accent")},
                        "href": _tables.transaction_link(each["id"]),
                    }
                    for each in shown
                ],
            },
        ],
    }


# -- the live forest, and the transactions that have ended -----------------------------------------


def transactions_page(poller: Poller) -> None:
    """Show hierarchies as trees, waiting hierarchies apart, and the last ended transactions."""
    with frame(poller, "Transactions", "/transactions") as live:
        live.figures("Live transactions", _figures)
        with section("Waiting", "Complete hierarchies in which a transaction waits for a lock."):
            live.table(
                "Waiting hierarchies",
                _tables.FOREST,
                _tables.waiting_only,
                empty="No transaction is waiting for a lock.",
                height="20rem",
            )
        with section(
            "Live forest",
            "Oldest first. Subtransactions are below their parents; those of rules have the rule's "
            "name and coupling.",
        ):
            live.table(
                "Live transactions",
                _tables.FOREST,
                _tables.forest,
                empty="No live transactions. They are listed while they run: db.transaction(), "
                "db.run(), rules, streams.",
                filterable=True,
            )
        with section(
            "Recently finished", "Newest first. Each links to its story, as long as that is kept."
        ):
            live.table(
                "Recently finished transactions",
                _tables.RECENT,
                _tables.recent,
                empty="No transaction has finished since the dashboard was started.",
                filterable=True,
            )


def _figures(snapshot: PollResult) -> list[Figure]:
    forest: Any = {"total": 0, "shown": []} if snapshot.state is None else snapshot.state["forest"]
    shown = forest["shown"]
    tops = sum(1 for node in shown if node["parent"] is None)
    waiting = sum(1 for node in shown if node["waits_for"])
    left = max(0, forest["total"] - len(shown))
    return [
        Figure("Live", count(forest["total"]), "", f"{count(left)} not shown" if left else ""),
        Figure("Top-level", count(tops)),
        Figure("Run by rules", count(sum(1 for node in shown if node["rule"]))),
        Figure("Waiting", count(waiting), tone="warn" if waiting else ""),
    ]
