"""Panels of curves, drawn as pictures with their data stored alongside."""

from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

__all__ = ["Drawing", "Panel", "draw", "matplotlib_figure"]

_LINES = {"p50": "--", "p95": "-."}  # else solid
_TICKS_MAX = 8


@dataclass(slots=True)
class Panel:
    """One pair of axes.

    Attributes
    ----------
    title, x_label, y_label : str
    series : dict of str to dict
        For each curve, or group of bars, its value at each place of the x axis.
    log_x, log_y : bool
    bars : bool
        Whether the places are names: bars, from left to right.
    stacked : bool
        Whether each place has one bar, of the series one after the other; else a bar for each
        series.
    lines : dict of str to float
        Values measured by others on other machines, as dotted lines.
    spans : dict of str to (first, last)
        Named parts of the x axis.
    notes : list
        Further data that is stored but not shown.
    """

    title: str
    x_label: str
    y_label: str
    series: dict[str, dict[Any, float]] = field(default_factory=dict)
    log_x: bool = False
    log_y: bool = False
    bars: bool = False
    stacked: bool = False
    lines: Mapping[str, float] = field(default_factory=dict)
    spans: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    notes: list[Any] = field(default_factory=list)

    def add(self, series: str, place: Any, value: float) -> None:
        """Add one point."""
        self.series.setdefault(series, {})[place] = value

    def data(self) -> dict[str, Any]:
        """Return all that is shown, for JSON."""
        return {
            "title": self.title,
            "x": self.x_label,
            "y": self.y_label,
            "series": {
                name: [[place, value] for place, value in points.items()]
                for name, points in self.series.items()
            },
            "not measured here": dict(self.lines),
            "notes": self.notes,
        }


Drawing: TypeAlias = Callable[[float], list[Panel]]
"""Function that measures and returns panels; a scale of 1 takes seconds, a smaller one less."""


def draw(folder: Path, name: str, title: str, panels: Sequence[Panel]) -> None:
    """Write ``name.svg`` and ``name.json`` to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"title": title, "panels": [panel.data() for panel in panels]}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    picture(title, panels).savefig(folder / f"{name}.svg", metadata={"Date": None})


def picture(title: str, panels: Sequence[Panel]) -> Any:
    """Return the figure, with at most two panels in a row."""
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    drawing = matplotlib_figure().Figure(
        figsize=(1.0 + 5.0 * columns, 0.6 + 3.9 * rows), layout="constrained"
    )
    drawing.suptitle(title)
    places = drawing.subplots(rows, columns, squeeze=False).flat
    for panel, axes in zip(panels, places, strict=False):
        _draw_panel(axes, panel)
    for axes in list(places):
        axes.remove()
    return drawing


def _draw_panel(axes: Any, panel: Panel) -> None:
    places = list(dict.fromkeys(p for points in panel.series.values() for p in points))
    if panel.bars:
        _draw_bars(axes, panel, places)
    else:
        _draw_curves(axes, panel, places)
    for name, (first, last) in panel.spans.items():
        axes.axvspan(first, last, color="grey", alpha=0.12, linewidth=0)
        axes.text(
            (first + last) / 2,
            0.99,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize="x-small",
        )
    for number, (name, value) in enumerate(panel.lines.items()):
        line = axes.axvline if panel.bars else axes.axhline
        color = ("black", "grey")[number % 2]
        line(value, linestyle=":", color=color, label=f"{name} (not measured here)")
    axes.set_title(panel.title, fontsize="medium")
    axes.grid(axis="x" if panel.bars else "y", alpha=0.3)
    if len(panel.series) + len(panel.lines) > 1:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.16),
            ncols=3,
            fontsize="x-small",
            handlelength=3,
        )


def _draw_curves(axes: Any, panel: Panel, places: list[Any]) -> None:
    """Draw related curves in one colour; its percentiles differ in their line styles."""
    kinds = [_kind(name) for name in panel.series]
    colors = _colors(kinds)
    markers = dict(zip(colors, itertools.cycle("os^DvPX*")))
    for kind, (name, points) in zip(kinds, panel.series.items(), strict=True):
        axes.plot(
            list(points),
            list(points.values()),
            linestyle=_LINES.get(name.rpartition(" ")[2], "-"),
            color=colors[kind],
            marker=markers[kind],
            label=name,
            markersize=4,
            linewidth=1.3,
        )
    if panel.log_x:
        axes.set_xscale("log")
        axes.minorticks_off()
    ticks = places[:: -(-len(places) // _TICKS_MAX)]
    axes.set_xticks(ticks, [f"{place:,}" for place in ticks])
    if panel.log_y:
        axes.set_yscale("log")
    elif all(value >= 0 for points in panel.series.values() for value in points.values()):
        axes.set_ylim(bottom=0)
    else:
        axes.axhline(0, color="black", linewidth=0.8)
    axes.yaxis.set_major_formatter(_plain_numbers)
    if panel.log_y:  # few powers of ten would otherwise be few numbers
        low, high = axes.get_ylim()
        digits = "123456789" if high < 5 * low else "25"
        axes.yaxis.set_minor_formatter(
            lambda value, place: _plain_numbers(value, place) if f"{value:e}"[0] in digits else ""
        )
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def _kind(series: str) -> str:
    """Return the subject of a series, without its percentile."""
    return series.rpartition(" p")[0] or series


def _colors(kinds: Iterable[str]) -> dict[str, str]:
    return {kind: f"C{number % 10}" for number, kind in enumerate(dict.fromkeys(kinds))}


def _draw_bars(axes: Any, panel: Panel, places: list[Any]) -> None:
    """Draw bars from left to right, the first place at the top."""
    height = 0.8 if panel.stacked else 0.8 / len(panel.series)
    colors = _colors(map(_kind, panel.series))
    ends = [0.0] * len(places)
    for number, (name, points) in enumerate(panel.series.items()):
        shift = 0.0 if panel.stacked else (number - (len(panel.series) - 1) / 2) * height
        widths = [points.get(place, 0.0) for place in places]
        axes.barh(
            [at + shift for at in range(len(places))],
            widths,
            height,
            left=ends,
            label=name,
            color=colors[_kind(name)],
            alpha=0.5 if name.endswith(" p50") else 1.0,
        )
        if panel.stacked:
            ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.set_yticks(range(len(places)), [str(place) for place in places])
    axes.invert_yaxis()
    if panel.log_y:
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain_numbers)
    axes.tick_params("x", labelsize="small")
    axes.set_xlabel(panel.y_label)


def _plain_numbers(value: float, place: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == round(value) else f"{value:g}"


def matplotlib_figure() -> ModuleType:
    """Import the part of matplotlib that needs no screen."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise SystemExit(
            "the figures are drawn by matplotlib; install it: pip install '.[bench]'"
        ) from None
