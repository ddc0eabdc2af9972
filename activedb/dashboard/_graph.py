"""Wait-for graph as ECharts options: transactions on a circle, an arrow for each wait."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from activedb.dashboard import _rows
from activedb.dashboard._words import short

__all__ = ["NODES_MAX", "graph_options", "graph_said"]

Value = Mapping[str, Any]

NODES_MAX = 40
_NAMED_MAX = 6  # with more transactions the names of edges would cover them


def graph_options(
    labels: Mapping[int, str],
    edges: Sequence[Value],
    *,
    victim: int | None = None,
    marked: Collection[int] = (),
    newest: Value | None = None,
) -> dict[str, Any]:
    """Return the graph of some edges.

    Parameters
    ----------
    labels : mapping of int to str
        Transactions to draw, in their order round the circle; at most `NODES_MAX` are drawn.
    edges : sequence of mapping
        ``waiter``, ``blocker``, ``resource`` and, if it is known, ``mode``.
    victim : int or None
        The victim of the deadlock.
    marked : collection of int
        Transactions in a cycle.
    newest : mapping or None
        The most recent edge.
    """
    shown = list(labels)[:NODES_MAX]
    places = _circle(len(shown))
    nodes = [
        {
            "name": _rows.transaction_name(id),
            "x": x,
            "y": y,
            "symbolSize": 44 if len(shown) <= 6 else 32,
            "itemStyle": {
                "color": "bad" if id == victim else "warn" if id in marked else "surface",
                "borderColor": "bad" if id == victim else "warn" if id in marked else "line",
                "borderWidth": 2,
            },
            "label": {"color": "surface" if id == victim or id in marked else "text"},
            "href": f"/transactions/{int(id)}",
        }
        for id, (x, y) in zip(shown, places, strict=True)
    ]
    is_small = len(shown) <= _NAMED_MAX
    kept = [edge for edge in edges if edge["waiter"] in shown and edge["blocker"] in shown]
    return {
        "tooltip": {"show": False},
        "series": [
            {
                "type": "graph",
                "layout": "none",
                "left": 60,
                "right": 60,
                "top": 36,
                "bottom": 36,
                "preserveAspect": "contain",
                "edgeSymbol": ["none", "arrow"],
                "edgeSymbolSize": 10,
                "label": {"show": True, "fontWeight": "bold"},
                "data": nodes,
                "links": [_link(edge, is_small, edge is newest) for edge in kept],
            }
        ],
    }


def graph_said(edges: Sequence[Value], total: int) -> str:
    """Return the graph in words."""
    if not edges:
        return "no waits"
    said = "; ".join(f"{edge['waiter']} waits for {edge['blocker']}" for edge in edges[:8])
    return said if total <= 8 else f"{said}; and {total - 8:,} more waits"


def _link(edge: Value, is_named: bool, is_newest: bool) -> dict[str, Any]:
    mode = f" {edge['mode']}" if edge.get("mode") else ""
    name = _rows.resource_name(edge["resource"]) or str(edge.get("kind") or "")
    return {
        "source": _rows.transaction_name(edge["waiter"]),
        "target": _rows.transaction_name(edge["blocker"]),
        "lineStyle": {
            "color": "bad" if is_newest else "muted",
            "width": 3 if is_newest else 2,
            "curveness": 0.18,
            "opacity": 1,
        },
        "label": {
            "show": is_named,
            "formatter": short(f"{name}{mode}", 28).replace("{", "("),
            "color": "text",
            "fontSize": 12,
        },
    }


def _circle(number: int) -> list[tuple[float, float]]:
    """Return places round a circle, from the left end clockwise; a single one in the middle."""
    if number == 1:
        return [(0.0, 0.0)]
    turns = [2 * math.pi * n / number + math.pi for n in range(number)]
    return [(round(200 * math.cos(turn), 1), round(120 * math.sin(turn), 1)) for turn in turns]
