"""Page elements that update while they are shown; the browser gets only the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import nicegui
from nicegui.element import Element
from nicegui.elements.mixins.text_element import TextElement
from nicegui.events import GenericEventArguments

from activedb.dashboard._cells import Column, Row, difference, packed
from activedb.dashboard._history import POINTS_MAX, Point

__all__ = ["Change", "Figure", "Line", "LiveChart", "LiveFigures", "LivePage", "LiveTable", "text"]

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
    columns : sequence of Column
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
        columns: Sequence[Column],
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
class Line:
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
        cls, label: str, unit: str, lines: Sequence[Line], points: Sequence[Point]
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
        self, lines: Sequence[Line], points: Sequence[Point], *, clear: bool, said: str
    ) -> Change:
        """Return a change that adds points."""
        return self.id, "push", {"points": _values(lines, points), "clear": clear, "said": said}

    def draw(self, options: Mapping[str, Any], said: str) -> Change:
        """Return a change that redraws the chart."""
        return self.id, "draw", {"options": dict(options), "said": said}


def _values(lines: Sequence[Line], points: Sequence[Point]) -> list[list[float | None]]:
    return [[round(point.at_s, 3), *(_round(x.value(point)) for x in lines)] for point in points]


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
