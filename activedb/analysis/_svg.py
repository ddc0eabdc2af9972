"""Triggering graph as an SVG drawing, with layers from left to right."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import networkx as nx

from activedb.analysis._analysis import Analysis
from activedb.analysis._profile import Profile
from activedb.analysis._text import printable
from activedb.analysis._triggering import Edge

__all__ = ["draw_svg"]

_BOX = (190, 40)
_GAP = (110, 26)
_MARGIN = 24
_LETTERS = 24
_SWEEPS = 4

_STYLE = """\
text { font: 13px sans-serif; fill: #222 } text.mode { font-size: 10px; fill: #666 }
rect { fill: #f6f8fa; stroke: #57606a } rect.opaque { stroke-dasharray: 4 3 }
rect.cycle { stroke: #cf222e; stroke-width: 2 }
path { fill: none; stroke: #57606a; marker-end: url(#tip) } path.part { stroke-dasharray: 5 4 }
path.later { stroke-dasharray: 9 3 2 3 } circle.clock { fill: #fff; stroke: #57606a }
path.hands { marker-end: none }
path.cycle { stroke: #cf222e; stroke-width: 2 }"""


def draw_svg(analysis: Analysis) -> str:
    """Draw the triggering graph. The same analysis always gives the same text.

    Rules are boxes, dashed if opaque, red if in a cycle. An arrow means that its source may trigger
    its target. With dashes and dots, time may trigger the target later. Dashed, the source only
    adds a part to the target's pattern or forbids it. Rules that time may trigger have a clock.
    Pointing at an arrow shows the reason.

    Notes
    -----
    O((rules + edges) · log rules), with a few sweeps that bring neighbours close.
    """
    places = _places(analysis)
    in_cycle = {name: n for n, c in enumerate(analysis.cycles) if c.is_certain for name in c.rules}
    width = max((x for x, _ in places.values()), default=0) + _BOX[0] + _MARGIN + _GAP[0] // 2
    height = max((y for _, y in places.values()), default=0) + _BOX[1] + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">',
        "<title>Triggering graph</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0,0 L8,4 L0,8 z" '
        'style="fill:#57606a;stroke:none;marker-end:none"/></marker></defs>',
    ]
    for edge in analysis.edges:
        cycle = in_cycle.get(edge.source)
        drives = edge.triggers or edge.triggers_later
        is_red = drives and cycle is not None and cycle == in_cycle.get(edge.target)
        lines.append(_arrow(edge, places, is_red=is_red))
    for profile in analysis.rules:
        lines.append(_box(profile, places[profile.name], is_red=profile.name in in_cycle))
    return "\n".join([*lines, "</svg>", ""])


def _places(analysis: Analysis) -> dict[str, tuple[int, int]]:
    """Return the upper left corner of each rule's box."""
    order = {profile.name: number for number, profile in enumerate(analysis.rules)}
    graph = nx.DiGraph()
    graph.add_nodes_from(order)
    graph.add_edges_from((edge.source, edge.target) for edge in analysis.edges)
    condensed = nx.condensation(graph)
    layers: list[list[str]] = []
    for generation in nx.topological_generations(condensed):
        names = [n for number in generation for n in condensed.nodes[number]["members"]]
        layers.append(sorted(names, key=order.__getitem__))
    row = {name: n for layer in layers for n, name in enumerate(layer)}
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for layer in layers if forward else layers[::-1]:
            near = graph.predecessors if forward else graph.successors
            wanted = {}
            for name in layer:
                rows = [row[other] for other in near(name)]
                wanted[name] = sum(rows) / len(rows) if rows else row[name]
            layer.sort(key=lambda name: (wanted[name], order[name]))
            row.update((name, n) for n, name in enumerate(layer))
    return {
        name: (
            _MARGIN + column * (_BOX[0] + _GAP[0]),
            _MARGIN + n * (_BOX[1] + _GAP[1]),
        )
        for column, layer in enumerate(layers)
        for n, name in enumerate(layer)
    }


def _arrow(edge: Edge, places: Mapping[str, tuple[int, int]], *, is_red: bool) -> str:
    (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
    wide, high = _BOX
    start, middle = (x1 + wide, y1 + high // 2), _GAP[0] // 2
    if x2 > x1:
        end = (x2, y2 + high // 2)
        path = (
            f"M{start[0]},{start[1]} C{start[0] + middle},{start[1]} "
            f"{end[0] - middle},{end[1]} {end[0]},{end[1]}"
        )
    else:  # inside one layer: out to the right and back, ending a little lower
        end_y = y2 + high // 2 + (10 if edge.source == edge.target else 6)
        path = (
            f"M{start[0]},{start[1] - 6} C{start[0] + middle},{start[1] - 16} "
            f"{x2 + wide + middle},{end_y + 10} {x2 + wide},{end_y}"
        )
    line = "later" if edge.triggers_later else "part"
    kinds = [*(["cycle"] if is_red else []), *([] if edge.triggers else [line])]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    told = _escaped(f"{edge.source} → {edge.target}: {edge.reason}")
    return f'<path{kind} d="{path}"><title>{told}</title></path>'


def _box(profile: Profile, place: tuple[int, int], *, is_red: bool) -> str:
    x, y = place
    kinds = [*(["cycle"] if is_red else []), *(["opaque"] if profile.effects.is_opaque else [])]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    name = printable(profile.name)
    short = name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
    priority = "" if profile.priority is None else f", priority {profile.priority}"
    opaque = ", opaque" if profile.effects.is_opaque else ""
    return (
        f"<g><title>{_escaped(f'{profile.name}: on {profile.event}')}</title>"
        f'<rect{kind} x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="5"/>'
        f'<text x="{x + 10}" y="{y + 17}">{_escaped(short)}</text>'
        f'<text class="mode" x="{x + 10}" y="{y + 32}">'
        f"{_escaped(f'{profile.coupling}{priority}{opaque}')}</text>"
        f"{_clock(x + _BOX[0] - 12, y + 12) if profile.is_timed else ''}</g>"
    )


def _clock(x: int, y: int) -> str:
    return (
        f'<circle class="clock" cx="{x}" cy="{y}" r="6"/>'
        f'<path class="hands" d="M{x},{y - 4} V{y} H{x + 3}"><title>by time</title></path>'
    )


def _escaped(text: str) -> str:
    return escape(printable(text))
