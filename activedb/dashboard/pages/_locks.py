"""Lock table, wait-for graph and past deadlocks."""

from __future__ import annotations

from typing import Any

from activedb.dashboard import _columns, _rows
from activedb.dashboard._elements import Change, Figure, LiveChart
from activedb.dashboard._frame import frame, section
from activedb.dashboard._graph import graph_options, graph_said
from activedb.dashboard._poller import Poller, Snapshot
from activedb.dashboard._words import count

__all__ = ["locks_page"]


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

            def draw(snapshot: Snapshot) -> Change | None:
                nonlocal shown
                new = snapshot.once(_graph)
                if new == shown:
                    return None
                shown = new
                return chart.draw(*new)

            live.part(draw)
            live.table(
                "Waits",
                _columns.WAITS,
                _rows.waits,
                empty="No transaction is waiting.",
                height="16rem",
            )
        with section(
            "Deadlocks", "Each can be replayed: the waits in the order in which they began."
        ):
            live.table(
                "Deadlocks",
                _columns.DEADLOCKS,
                _rows.deadlocks,
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
                _columns.LOCKS,
                _rows.locks,
                empty="No locks: no live transaction has read or written a row.",
                filterable=True,
            )


def _figures(snapshot: Snapshot) -> list[Figure]:
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


def _graph(snapshot: Snapshot) -> tuple[dict[str, Any], str]:
    edges = [] if snapshot.state is None else snapshot.state["locks"]["edges"]
    nodes: dict[int, str] = {}
    for edge in edges:
        nodes.setdefault(edge["waiter"], "")
        nodes.setdefault(edge["blocker"], "")
    return graph_options(nodes, edges), graph_said(edges, len(edges))
