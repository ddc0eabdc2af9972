"""Step-by-step replay of a deadlock: the waits in the order they arose, the cycle, the victim."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import networkx as nx
from nicegui import ui

from activedb.dashboard import _rows
from activedb.dashboard._elements import Figure, LiveChart, LiveFigures, text
from activedb.dashboard._frame import frame, section
from activedb.dashboard._graph import graph_options, graph_said
from activedb.dashboard._live import Live
from activedb.dashboard._poller import Poller
from activedb.dashboard._words import clock_time, short

__all__ = ["replay_page"]

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
        _Replay(live, deadlock).build()


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


class _Replay:
    """The step that is shown, and the elements that show it."""

    def __init__(self, live: Live, deadlock: Value):
        self._live = live
        self._deadlock = deadlock
        self._steps: list[Value] = deadlock["steps"]
        self._labels = {node["id"]: node["rule"] or _rows.label(node) for node in deadlock["nodes"]}
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
                    text("a", f"{id} {short(label, 80)}{role}", href=f"/transactions/{id}")
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
