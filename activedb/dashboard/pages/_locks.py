"""Lock table, wait-for graph, and past deadlocks with their step-by-step replay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import networkx as nx
from nicegui import ui

from activedb.dashboard import _tables
from activedb.dashboard._elements import (
    Change,
    Figure,
    LiveChart,
    LiveFigures,
    graph_options,
    graph_said,
    text,
)
from activedb.dashboard._live import Live, frame, section
from activedb.dashboard._poller import Poller, PollResult
from activedb.dashboard._words import clock_time, count, short

__all__ = ["locks_page", "replay_page"]


Value = Mapping[str, Any]

_PLAY_S = 1.5


async def replay_page(poller: Poller, n: int) -> None:
    """Show the graph as it was at each step; stepped by buttons, or played."""
    with frame(poller, f"Deadlock {n}", "/locks") as live:
        try:
            deadlock = await asyncio.to_thread(poller.source.deadlock, n)
            problem = ""
        except Exception as error:
            deadlock, problem = None, short(error, 300)
        if deadlock is None or not deadlock["steps"]:
            text(
                "p",
                problem
                or f"Deadlock {n} does not exist, or is no longer kept. The Locks page lists "
                "the recent ones.",
                "adb-alarm",
            )
            text("a", "Locks", href="/locks")
            return
        _head(deadlock)
        _DeadlockReplay(live, deadlock).build()


def _head(deadlock: Value) -> None:
    LiveFigures(
        "Deadlock",
        [
            Figure("Time", clock_time(deadlock["at_s"])),
            Figure("Victim", str(deadlock["victim"])),
            Figure("Policy", short(deadlock["policy"], 60)),
            Figure("Transactions", str(len(deadlock["nodes"]))),
        ],
    )


class _DeadlockReplay:
    """The step that is shown, and the elements that show it."""

    def __init__(self, live: Live, deadlock: Value):
        self._live = live
        self._deadlock = deadlock
        self._steps: list[Value] = deadlock["steps"]
        self._labels = {
            node["id"]: node["rule"] or _tables.label(node) for node in deadlock["nodes"]
        }
        self._at = 0

    def build(self) -> None:
        """Fill the page."""
        with section(
            "Step by step", "An arrow points from a waiting transaction to the one that blocks it."
        ):
            with text("div", classes="adb-buttons", role="group", aria_label="Steps"):
                self._button("First", lambda: self._go(0))
                self._button("Back", lambda: self._go(self._at - 1))
                self._button("Next", lambda: self._go(self._at + 1))
                self._button("Last", lambda: self._go(len(self._steps) - 1))
                self._play_button = self._button("Play", self._play)
            self._said = text("p", "", "adb-step", aria_live="polite")
            self._chart = LiveChart.of_options("Wait-for graph of the step", *self._drawing())
            with text("ol", classes="adb-steps"):
                self._items = [text("li", short(step["text"], 300)) for step in self._steps]
        with (
            section("Transactions", "Each links to its story, as long as that is kept."),
            text("ul"),
        ):
            for id, label in self._labels.items():
                with text("li"):
                    role = ", the victim" if id == self._deadlock["victim"] else ""
                    said = f"{id} {short(label, 80)}{role}"
                    text("a", said, href=_tables.transaction_link(id))
        self._timer = ui.timer(_PLAY_S, self._played, active=False, immediate=False)
        self._mark()

    def _button(self, name: str, do: Any) -> Any:
        return text("button", name, "adb-button", type="button").on("click", do, [])

    def _play(self) -> None:
        if self._timer.active:
            self._stop()
            return
        if self._at == len(self._steps) - 1:
            self._go(0)
        self._timer.activate()
        self._play_button.set_text("Stop")

    def _played(self) -> None:
        self._go(self._at + 1)
        if self._at == len(self._steps) - 1:
            self._stop()

    def _stop(self) -> None:
        self._timer.deactivate()
        self._play_button.set_text("Play")

    def _go(self, at: int) -> None:
        self._at = min(max(at, 0), len(self._steps) - 1)
        self._mark()
        self._live.tell(self._chart.draw(*self._drawing()))

    def _mark(self) -> None:
        step = self._steps[self._at]
        said = short(step["text"], 300)
        self._said.set_text(f"Step {self._at + 1} of {len(self._steps)}: {said}")
        for at, item in enumerate(self._items):
            if at == self._at:
                item.props["aria-current"] = "step"
            else:
                item.props.pop("aria-current", None)
            item.update()

    def _drawing(self) -> tuple[dict[str, Any], str]:
        edges = self._steps[self._at]["edges"]
        before = [] if self._at == 0 else self._steps[self._at - 1]["edges"]
        newest = next((edge for edge in edges if edge not in before), None)
        is_last = self._at == len(self._steps) - 1
        options = graph_options(
            self._labels,
            edges,
            victim=self._deadlock["victim"] if is_last else None,
            marked=_cycles(edges),
            newest=newest,
        )
        return options, graph_said(edges, len(edges))


def _cycles(edges: list[Value]) -> set[int]:
    """Return the transactions that wait for themselves, directly or through others."""
    graph = nx.DiGraph((edge["waiter"], edge["blocker"]) for edge in edges)
    return {id for part in nx.strongly_connected_components(graph) if len(part) > 1 for id in part}


def locks_page(poller: Poller) -> None:
    """Show the wait-for graph, waits, deadlocks and the lock table."""
    with frame(poller, "Locks", "/locks") as live:
        live.figures("Locks", _figures)
        with section(
            "Wait-for graph",
            "An arrow points from a waiting transaction to the one that blocks it. A click on a "
            "transaction opens its page.",
        ):
            shown = poller.snapshot.once(_graph)
            chart = LiveChart.of_options("Wait-for graph", *shown)

            def draw(snapshot: PollResult) -> Change | None:
                nonlocal shown
                new = snapshot.once(_graph)
                if new == shown:
                    return None
                shown = new
                return chart.draw(*new)

            live.part(draw)
            live.table(
                "Waits",
                _tables.WAITS,
                _tables.waits,
                empty="No transaction is waiting.",
                height="16rem",
            )
        with section(
            "Deadlocks", "Each can be replayed: the waits in the order in which they began."
        ):
            live.table(
                "Deadlocks",
                _tables.DEADLOCKS,
                _tables.deadlocks,
                empty="No deadlocks since the monitor was started.",
                height="16rem",
            )
        with section(
            "Lock table",
            "A transaction holds locks that it uses itself, and retains locks for its children: "
            "those of committed children, and those that children may take.",
        ):
            live.table(
                "Locks",
                _tables.LOCKS,
                _tables.locks,
                empty="No locks: no live transaction has read or written a row.",
                filterable=True,
            )


def _figures(snapshot: PollResult) -> list[Figure]:
    state: Any = snapshot.state or {"locks": {}, "deadlocks": []}
    locks = state["locks"]
    total, shown = locks.get("total", 0), len(locks.get("shown", ()))
    left = max(0, total - shown)
    waiting = locks.get("waits_total", len(locks.get("queue", ())))
    return [
        Figure("Locks", count(total), "", f"{count(left)} not shown" if left else ""),
        Figure("Blocked requests", count(waiting), tone="warn" if waiting else ""),
        Figure("Recent deadlocks", count(len(state["deadlocks"]))),
    ]


def _graph(snapshot: PollResult) -> tuple[dict[str, Any], str]:
    edges = [] if snapshot.state is None else snapshot.state["locks"]["edges"]
    nodes: dict[int, str] = {}
    for edge in edges:
        nodes.setdefault(edge["waiter"], "")
        nodes.setdefault(edge["blocker"], "")
    return graph_options(nodes, edges), graph_said(edges, len(edges))
