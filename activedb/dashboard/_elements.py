"""Page elements that update while they are shown; the browser gets only the differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import nicegui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement
from nicegui.events import GenericEventArguments

from activedb.dashboard import _tables
from activedb.dashboard._poller import POINTS_MAX, Point
from activedb.dashboard._tables import LiveColumn, Row, difference, packed
from activedb.dashboard._words import short

__all__ = [
    "NODES_MAX",
    "Change",
    "ChartLine",
    "Figure",
    "LiveChart",
    "LiveFigures",
    "LivePage",
    "LiveTable",
    "graph_options",
    "graph_said",
    "text",
]


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
            "name": _tables.transaction_name(id),
            "x": x,
            "y": y,
            "symbolSize": 44 if len(shown) <= 6 else 32,
            "itemStyle": {
                "color": "bad" if id == victim else "warn" if id in marked else "surface",
                "borderColor": "bad" if id == victim else "warn" if id in marked else "line",
                "borderWidth": 2,
            },
            "label": {"color": "surface" if id == victim or id in marked else "text"},
            "href": _tables.transaction_link(id),
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
    name = _tables.resource_name(edge["resource"]) or str(edge.get("kind") or "")
    return {
        "source": _tables.transaction_name(edge["waiter"]),
        "target": _tables.transaction_name(edge["blocker"]),
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


Change = tuple[int, str, Any]
"""A message to a browser: an element's id, a method of its component, the argument."""

_ECHARTS = Path(nicegui.__file__).parent / "elements" / "echart" / "dist"


def text(tag: str, content: str = "", classes: str = "", **attributes: str) -> TextElement:
    """Return an HTML element whose text the browser shows literally."""
    made = TextElement(tag=tag, text=content)
    if classes:
        made.classes(classes)
    for name, value in attributes.items():
        made.props[name.rstrip("_").replace("_", "-")] = value
    return made


class LiveTable(Element, component="live_table.js"):
    """Table that sends only the rows that have changed.

    Parameters
    ----------
    caption : str
        Subject of the table; read aloud, and the name of its scrolling region.
    columns : sequence of LiveColumn
    rows : sequence of Row
    empty : str
        Text for a table without rows: the reason, and what to do.
    now_s : float
        The time of `rows`, from which ages are computed.
    filterable : bool
        Whether there is a search field that hides rows without a text.
    height : str
        Maximum height, in CSS units; more rows are scrolled.
    on_act : callable or None
        Called with the row's key and the text of its button.
    """

    def __init__(
        self,
        caption: str,
        columns: Sequence[LiveColumn],
        rows: Sequence[Row] = (),
        *,
        empty: str,
        now_s: float = 0.0,
        filterable: bool = False,
        height: str = "28rem",
        on_act: Callable[[str, str], Any] | None = None,
    ):
        super().__init__()
        self._shown: dict[str, Row] = {row["key"]: row for row in rows}
        self.props["caption"] = caption
        self._columns = columns
        self.props["columns"] = [asdict(column) for column in columns]
        self.props["empty"] = empty
        self.props["filterable"] = filterable
        self.props["filterLabel"] = "Filter"
        self.props["height"] = height
        self.props["first"] = {
            "put": [packed(row, columns) for row in self._shown.values()],
            "drop": [],
            "order": list(self._shown),
            "now": now_s,
        }
        if on_act is not None:

            def act(event: GenericEventArguments) -> Any:
                key, action = str(event.args.get("key")), str(event.args.get("action"))
                return on_act(key, action) if key in self._shown else None

            self.on("act", act, ["key", "action"])

    def show(self, rows: Sequence[Row], now_s: float) -> Change | None:
        """Return the change that shows these rows; None if they are shown already. O(rows)."""
        new = {row["key"]: row for row in rows}
        patch = difference(self._shown, new)
        self._shown = new
        if patch is None and not (new and self._has_ages):
            return None
        changes = patch or {"put": [], "drop": []}
        put = [packed(row, self._columns) for row in changes["put"]]
        return self.id, "patch", {**changes, "put": put, "now": now_s}

    @property
    def _has_ages(self) -> bool:
        return any(column.kind == "age" for column in self._columns)


class LivePage(Element, component="live_page.js"):
    """Component that receives changes in the browser and acknowledges those it has drawn.

    Parameters
    ----------
    on_taken : callable
        Called with the number of the acknowledged message.
    """

    def __init__(self, on_taken: Callable[[int], None]):
        super().__init__()
        self.on("taken", lambda event: on_taken(int(event.args)))

    def tell(self, changes: Sequence[Change], number: int) -> None:
        """Send changes as one message, after all messages sent before."""
        self.client.outbox.enqueue_message(
            "activedb", {"number": number, "changes": changes}, self.client.id
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with name and unit; ``tone`` ``bad`` or ``warn`` if it needs attention."""

    name: str
    value: str
    unit: str = ""
    note: str = ""
    tone: Literal["", "bad", "warn"] = ""


class LiveFigures(Element, component="live_figures.js"):
    """Figures side by side.

    Parameters
    ----------
    caption : str
        Subject of the figures; read aloud.
    figures : sequence of Figure
    """

    def __init__(self, caption: str, figures: Sequence[Figure]):
        super().__init__()
        self._shown = list(figures)
        self.props["caption"] = caption
        self.props["first"] = [asdict(figure) for figure in figures]

    def show(self, figures: Sequence[Figure]) -> Change | None:
        """Return a change with all figures, if any has changed."""
        if list(figures) == self._shown:
            return None
        self._shown = list(figures)
        return self.id, "show", [asdict(figure) for figure in figures]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart over time: its name, the source of its values, its style."""

    name: str
    value: Callable[[Point], float | None]
    colour: str
    dash: Literal["solid", "dashed"] = "solid"


class LiveChart(Element, component="live_chart.js", esm={"nicegui-echart": str(_ECHARTS)}):
    """A chart in the colours of the page.

    Parameters
    ----------
    label : str
        Subject of the chart; read aloud, with the text that `show` gives.
    first : mapping
        First argument of the browser's ``push`` or ``draw``.
    """

    def __init__(self, label: str, first: Mapping[str, Any], **props: Any):
        super().__init__()
        self.props["label"] = label
        self.props["first"] = dict(first)
        for name, value in props.items():
            self.props[name] = value

    @classmethod
    def of_lines(
        cls, label: str, unit: str, lines: Sequence[ChartLine], points: Sequence[Point]
    ) -> LiveChart:
        """Return a chart of lines over time; the browser keeps the points."""
        return cls(
            label,
            {"points": _values(lines, points), "clear": True},
            kind="lines",
            unit=unit,
            pointsMax=POINTS_MAX,
            series=[{"name": x.name, "colour": x.colour, "dash": x.dash} for x in lines],
        )

    @classmethod
    def of_options(cls, label: str, options: Mapping[str, Any], said: str) -> LiveChart:
        """Return a chart of any kind; `draw` redraws it."""
        return cls(label, {"options": dict(options), "said": said}, kind="options")

    def push(
        self, lines: Sequence[ChartLine], points: Sequence[Point], *, clear: bool, said: str
    ) -> Change:
        """Return a change that adds points."""
        return self.id, "push", {"points": _values(lines, points), "clear": clear, "said": said}

    def draw(self, options: Mapping[str, Any], said: str) -> Change:
        """Return a change that redraws the chart."""
        return self.id, "draw", {"options": dict(options), "said": said}


def _values(lines: Sequence[ChartLine], points: Sequence[Point]) -> list[list[float | None]]:
    return [[round(point.at_s, 3), *(_round(x.value(point)) for x in lines)] for point in points]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
