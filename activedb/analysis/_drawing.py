"""Drawings of triggering graphs: text for a terminal, or SVG with layers from left to right."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

import networkx as nx
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from activedb.analysis._analysis import Analysis
from activedb.analysis._effects import ChangeEffect, ReadEffect, SignalEffect
from activedb.analysis._explanation import Explanation, ExplanationStep
from activedb.analysis._profile import EventRole, Profile
from activedb.analysis._triggering import TriggeringEdge
from activedb.clock import moment_of
from activedb.drawing import Drawing, short
from activedb.spelling import printable
from coupling import ConditionAction

__all__ = ["draw_svg", "draw_text", "explained", "rule_text"]


_WIDTH = 10_000  # terminals wrap lines themselves
_DEPTH_MAX = 12
_REASONS_SHOWN = 8
_ROLES = {
    EventRole.COMPLETES: "triggered by",
    EventRole.LATER: "by time, after",
    EventRole.CONTRIBUTES: "with",
    EventRole.FORBIDS: "unless",
}


def draw_text(analysis: Analysis) -> str:
    """Draw an analysis: the triggering graph, cycles, pairs, opaque rules, many matches.

    ``──▶`` may trigger; ``┄┄▶`` may have time trigger; ``┄┄▷`` only adds a part to a pattern, or
    forbids it. Each rule is expanded once. ``↺`` marks a rule expanded above, ``↓`` one expanded
    below. O(rules + edges).
    """
    trees = _triggering(analysis)
    termination = Tree(Text(f"termination: {analysis.terminates}", style="bold"))
    dark = {p.name for p in analysis.rules if p.effects.may_raise_anything}
    for cycle in analysis.cycles:
        names = ", ".join(cycle.rules)
        if not cycle.is_certain:
            branch = termination.add(_line(f"possible cycle: {names}"))
            opaque_ones = ", ".join(name for name in cycle.rules if name in dark)
            branch.add(_line(f"opaque, so may raise any event: {opaque_ones}"))
            continue
        branch = termination.add(_line(f"cycle: {names}"))
        branch.add(_line(cycle.ending))
        for edge in cycle.edges:
            branch.add(_line(f"{edge.source} {_arrow(edge)} {edge.target}: {edge.reason}"))
    confluence = Tree(Text(f"confluence: {analysis.is_confluent}", style="bold"))
    for pair in analysis.pairs:
        branch = confluence.add(_line(f"{pair.first} ↔ {pair.second} ({pair.together})"))
        for conflict in pair.conflicts[:_REASONS_SHOWN]:
            branch.add(_line(str(conflict)))
        if len(pair.conflicts) > _REASONS_SHOWN:
            branch.add(_line(f"and {len(pair.conflicts) - _REASONS_SHOWN} more"))
    parts = [*trees, termination, confluence]
    if analysis.opaque:
        opaque = Tree(Text("opaque rules: declare reads=, writes=, raises=", style="bold"))
        for profile in analysis.opaque:
            branch = opaque.add(_line(profile.name))
            for each in profile.effects.unresolved:
                branch.add(_line(f"{each} (leaves open: {', '.join(sorted(each.kinds))})"))
        parts.append(opaque)
    if analysis.many_matches:
        matches = Tree(Text("many matches: an event that completes too many is refused", "bold"))
        for profile in analysis.many_matches:
            matches.add(_line(f"{profile.name}: {profile.many_matches}"))
        parts.append(matches)
    return _printed(parts)


def explained(explanation: Explanation) -> str:
    """Draw the explanation of an event."""
    root = Tree(_line(explanation.event, "bold"))
    _add_steps(root, explanation.steps)
    if not explanation.steps:
        root.add(_line("triggers no rule by itself"))
    for names, what in (
        (explanation.later, "time may trigger after it"),
        (explanation.contributes, "another part for"),
        (explanation.forbids, "forbids"),
    ):
        if names:
            root.add(_line(f"{what}: {', '.join(names)}"))
    for rule, left in explanation.decisions.items():
        number = f"{left.number:,} decision{' is' if left.number == 1 else 's are'} open"
        line = root.add(_line(f"{rule}: {number}, the oldest of {_at(left.us)}"))
        line.add(
            _line(f"activedb decisions show {left.oldest}; then resolve, with --choose NUMBER")
        )
    return _printed([root])


def _at(us: int) -> str:
    return f"{moment_of(us):%Y-%m-%d %H:%M:%S.%f} UTC"


def rule_text(analysis: Analysis, profile: Profile) -> str:
    """Draw one rule: its events, its effects, and the edges to and from other rules."""
    root = Tree(_line(_titled(profile), "bold"))
    on = root.add(_line(f"on {profile.event}"))
    roles: dict[EventRole, dict[str, None]] = {}
    for part in profile.listens:
        roles.setdefault(part.role, {})[part.event] = None
    if len(profile.listens) > 1:
        for role, events in roles.items():
            on.add(_line(f"{_ROLES[role]}: {', '.join(events)}"))
    if profile.after:
        root.add(_line(f"after {', '.join(profile.after)}"))
    effects = profile.effects
    done: list[ReadEffect | ChangeEffect | SignalEffect] = [
        *effects.reads,
        *effects.changes,
        *effects.signals,
    ]
    for each in done:
        root.add(_line(f"{each}{f' ({each.place})' if each.place else ''}"))
    for unresolved in effects.unresolved:
        root.add(_line(f"opaque, {unresolved}"))
    if profile.many_matches is not None:
        root.add(_line(f"many matches: {profile.many_matches}"))
    for edge in analysis.edges:
        if edge.target == profile.name:
            root.add(_line(f"{_arrow(edge, back=True)} {edge.source}: {edge.reason}"))
        if edge.source == profile.name:
            root.add(_line(f"{_arrow(edge)} {edge.target}: {edge.reason}"))
    return _printed([root])


def _triggering(analysis: Analysis) -> list[Tree]:
    """Return trees, each rule expanded once, beginning with rules that no other rule triggers."""
    leaving: dict[str, list[TriggeringEdge]] = {}
    for edge in analysis.edges:
        leaving.setdefault(edge.source, []).append(edge)
    by_name = {profile.name: profile for profile in analysis.rules}
    targets = {e.target for e in analysis.edges if e.source != e.target}
    first = [name for name in by_name if name not in targets]
    trees = []
    told: set[str] = set()
    roots = [*first, *by_name][::-1]
    while roots:
        name = roots.pop()
        if name in told:
            continue
        root = Tree(_line(_titled(by_name[name]), "bold"))
        trees.append(root)
        told.add(name)
        waiting = [(root, edge, 1) for edge in leaving.get(name, ())][::-1]
        while waiting:
            above, edge, depth = waiting.pop()
            arrow = _arrow(edge)
            next_ones = leaving.get(edge.target, ())
            mark = ""
            if next_ones and edge.target in told:
                mark = " ↺"
            elif next_ones and depth == _DEPTH_MAX:
                mark = " ↓"
                roots.append(edge.target)
            label = f"{arrow} {_titled(by_name[edge.target])}{mark}: {edge.reason}"
            branch = above.add(_line(label))
            if not mark:
                told.add(edge.target)
                waiting += [(branch, each, depth + 1) for each in next_ones][::-1]
    return trees


def _arrow(edge: TriggeringEdge, *, back: bool = False) -> str:
    if edge.triggers:
        return "◀──" if back else "──▶"
    if edge.triggers_later:
        return "◀┄┄" if back else "┄┄▶"
    return "◁┄┄" if back else "┄┄▷"


def _add_steps(root: Tree, steps: tuple[ExplanationStep, ...]) -> None:
    waiting = [(root, step) for step in steps][::-1]
    while waiting:
        above, step = waiting.pop()
        priority = "" if step.priority is None else f", priority {step.priority}"
        why = f": {step.reason}" if step.reason else ""
        left_out = f" ({step.left_out})" if step.left_out else ""
        label = f"{step.turn}. {step.rule} [{step.coupling}{priority}]{left_out}{why}"
        branch = above.add(_line(label))
        for lock in () if step.left_out == "shown above" else step.locks:
            branch.add(_line(f"{lock}{f' ({lock.place})' if lock.place else ''}"))
        waiting += [(branch, each) for each in step.then][::-1]


def _titled(profile: Profile) -> str:
    priority = "" if profile.priority is None else f", priority {profile.priority}"
    if profile.condition_action is not ConditionAction.IMMEDIATE:
        priority += f", action {profile.condition_action}"
    timed = ", by time" if profile.is_timed else ""
    opaque = ", opaque" if profile.effects.is_opaque else ""
    return f"{profile.name} [{profile.coupling}{priority}{timed}{opaque}]"


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _printed(parts: Iterable[Tree]) -> str:
    out = io.StringIO()
    console = Console(file=out, width=_WIDTH, color_system=None, legacy_windows=False)
    for part in parts:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


_BOX = (190, 40)
_GAP = (110, 26)
_MARGIN = 24
_SWEEPS = 4

_STYLE = """\
text { font: 13px sans-serif; fill: #222 } text.mode { font-size: 10px; fill: #666 }
rect { fill: #f6f8fa; stroke: #57606a } rect.opaque { stroke-dasharray: 4 3 }
rect.cycle { stroke: #cf222e; stroke-width: 2 }
path { fill: none; stroke: #57606a; marker-end: url(#tip) } path.part { stroke-dasharray: 5 4 }
path.later { stroke-dasharray: 9 3 2 3 } circle.clock { fill: #fff; stroke: #57606a }
path.hands { marker-end: none } path.tip { fill: #57606a; stroke: none; marker-end: none }
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
    drawing = Drawing("Triggering graph", _STYLE, width, height)
    for edge in analysis.edges:
        cycle = in_cycle.get(edge.source)
        drives = edge.triggers or edge.triggers_later
        is_red = drives and cycle is not None and cycle == in_cycle.get(edge.target)
        _add_arrow(drawing, edge, places, is_red=is_red)
    for profile in analysis.rules:
        _add_box(drawing, profile, places[profile.name], is_red=profile.name in in_cycle)
    return drawing.text()


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


def _add_arrow(
    drawing: Drawing, edge: TriggeringEdge, places: Mapping[str, tuple[int, int]], *, is_red: bool
) -> None:
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
    drawing.arrow(path, *kinds, hint=f"{edge.source} → {edge.target}: {edge.reason}")


def _add_box(drawing: Drawing, profile: Profile, place: tuple[int, int], *, is_red: bool) -> None:
    x, y = place
    kinds = [*(["cycle"] if is_red else []), *(["opaque"] if profile.effects.is_opaque else [])]
    hint = f"{profile.name}: on {profile.event}"
    box = drawing.box(place, _BOX, hint=hint, kinds=kinds, round_px=5)
    box.label(x + 10, y + 17, short(profile.name))
    priority = "" if profile.priority is None else f", priority {profile.priority}"
    opaque = ", opaque" if profile.effects.is_opaque else ""
    box.label(x + 10, y + 32, f"{profile.coupling}{priority}{opaque}", "mode")
    if profile.is_timed:
        box.clock(x + _BOX[0] - 12, y + 12, "by time")
