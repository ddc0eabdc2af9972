"""The live forest, and what has ended."""

from __future__ import annotations

from typing import Any

from activedb.dashboard import _columns, _rows
from activedb.dashboard._elements import Figure
from activedb.dashboard._frame import frame, section
from activedb.dashboard._poller import Poller, Snapshot
from activedb.dashboard._words import count

__all__ = ["transactions_page"]


def transactions_page(poller: Poller) -> None:
    """Hierarchies as trees, those that wait on their own, and the last that have ended."""
    with frame(poller, "Transactions", "/transactions") as live:
        live.figures("Live transactions", _figures)
        with section("Waiting", "Hierarchies in which somebody waits for a lock, whole."):
            live.table(
                "Hierarchies that wait",
                _columns.FOREST,
                _rows.waiting_only,
                empty="Nobody waits for a lock.",
                height="20rem",
            )
        with section(
            "Live forest",
            "Oldest first. A subtransaction stands below its parent; a rule's has its name and "
            "coupling.",
        ):
            live.table(
                "Live transactions",
                _columns.FOREST,
                _rows.forest,
                empty="No transaction is live at this moment. They are listed while they run: "
                "db.transaction(), db.run(), rules, streams.",
                filterable=True,
            )
        with section("Ended lately", "Newest first. Each leads to its story, while it is kept."):
            live.table(
                "Transactions that have ended",
                _columns.RECENT,
                _rows.recent,
                empty="None has ended since the dashboard began to look.",
                filterable=True,
            )


def _figures(snapshot: Snapshot) -> list[Figure]:
    forest: Any = {"total": 0, "shown": []} if snapshot.state is None else snapshot.state["forest"]
    shown = forest["shown"]
    tops = sum(1 for node in shown if node["parent"] is None)
    waiting = sum(1 for node in shown if node["waits_for"])
    left = max(0, forest["total"] - len(shown))
    return [
        Figure("Live", count(forest["total"]), "", f"{count(left)} not shown" if left else ""),
        Figure("Top-level", count(tops)),
        Figure("Of rules", count(sum(1 for node in shown if node["rule"]))),
        Figure("Waiting", count(waiting), tone="warn" if waiting else ""),
    ]
