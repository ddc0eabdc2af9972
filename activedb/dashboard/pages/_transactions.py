"""The live forest, and the transactions that have ended."""

from __future__ import annotations

from typing import Any

from activedb.dashboard import _columns, _rows
from activedb.dashboard._elements import Figure
from activedb.dashboard._frame import frame, section
from activedb.dashboard._poller import Poller, Snapshot
from activedb.dashboard._words import count

__all__ = ["transactions_page"]


def transactions_page(poller: Poller) -> None:
    """Show hierarchies as trees, waiting hierarchies apart, and the last ended transactions."""
    with frame(poller, "Transactions", "/transactions") as live:
        live.figures("Live transactions", _figures)
        with section("Waiting", "Complete hierarchies in which a transaction waits for a lock."):
            live.table(
                "Waiting hierarchies",
                _columns.FOREST,
                _rows.waiting_only,
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
                _columns.FOREST,
                _rows.forest,
                empty="No live transactions. They are listed while they run: db.transaction(), "
                "db.run(), rules, streams.",
                filterable=True,
            )
        with section(
            "Recently finished", "Newest first. Each links to its story, as long as that is kept."
        ):
            live.table(
                "Recently finished transactions",
                _columns.RECENT,
                _rows.recent,
                empty="No transaction has finished since the dashboard was started.",
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
        Figure("Run by rules", count(sum(1 for node in shown if node["rule"]))),
        Figure("Waiting", count(waiting), tone="warn" if waiting else ""),
    ]
