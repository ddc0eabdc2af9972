"""Transaction graph as an SVG drawing: programs in rows, batches as boxes between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from activedb.batches._composite import edges_among
from activedb.batches._lineage import Lineage
from activedb.batches._plan import CompensationPlan
from activedb.batches._records import BatchKind
from activedb.drawing import Drawing, centres, short

__all__ = ["draw_svg"]

_LETTER, _PADDING = 7.5, 18
_HEIGHT, _GAP, _MARGIN = 28, 22, 16
_BETWEEN = {BatchKind.SOURCE: 44, BatchKind.INPUT: 34, BatchKind.OUTPUT: 44, None: 34}

_STYLE = """
text { font: 12px sans-serif; fill: #222; text-anchor: middle }
text.program { font-weight: bold; text-anchor: start }
rect.batch { fill: #fff; stroke: #8c959f } rect.source { fill: #eef4fb }
rect.input { stroke-dasharray: 3 2 }
rect.transaction { fill: #e6ebf1; stroke: #57606a } rect.failed { stroke: #cf222e }
rect.compensated { fill: #fff; stroke-dasharray: 2 3 }
rect.to-compensate { fill: #ffdcd7; stroke: #cf222e; stroke-width: 2 }
rect.dropped, rect.withdrawn { fill: #ffebe9; stroke: #cf222e }
rect.partially-dropped { fill: #fff8c5; stroke: #9a6700 }
path { fill: none; stroke: #57606a; marker-end: url(#tip) }
path.order { stroke: #b6bec7; marker-end: none } path.control { stroke-dasharray: 6 3 }
path.tip { fill: #57606a; stroke: none; marker-end: none }
"""


def draw_svg(
    lineage: Lineage,
    ids: str | Iterable[str] | None = None,
    *,
    plan: CompensationPlan | None = None,
) -> str:
    """Draw transactions and batches in the style of the paper's figures.

    There is a row for each program, with its transactions from left to right by number, joined by a
    grey line for batch order. Batches are boxes above the transactions that use them and below the
    ones that produce them. Formed input batches have a dashed frame. Dashed arrows are triggers
    without a batch, and control order. Pointing at a box shows its description.

    Parameters
    ----------
    lineage : Lineage
    ids : str, iterable of str or None
        Draw these batches or transactions with all their ancestors and descendants; None: all.
    plan : CompensationPlan or None
        Mark the nodes that it would compensate, drop, drop in part and withdraw.

    Returns
    -------
    str
        A complete SVG document. The same lineage always gives the same text.

    Raises
    ------
    NotRecorded
        If there is no such batch.

    Notes
    -----
    O(n log n + edges) for n boxes.
    """
    if ids is None:
        ids = [*(b.id for b in lineage.batches()), *(t.id for t in lineage.transactions())]
        chosen = set(ids)
    else:
        given = [ids] if isinstance(ids, str) else list(ids)
        chosen = lineage.ancestors(given) | lineage.descendants(given)
    return _BoxLayout(lineage, chosen, _marks(plan)).text()


def _marks(plan: CompensationPlan | None) -> dict[str, str]:
    """Return the effect of a plan on each box, as a class of the style sheet."""
    marks: dict[str, str] = {}
    if plan is not None:
        for kind, ids in (
            ("to-compensate", plan.transactions),
            ("withdrawn", plan.withdrawn),
            ("dropped", plan.dropped),
            ("partially-dropped", plan.partially_dropped),
        ):
            marks.update((id, kind) for id in ids)
    return marks


class _BoxLayout:
    """Boxes of one drawing, in rows, with their positions."""

    def __init__(self, lineage: Lineage, chosen: set[str], marks: Mapping[str, str]):
        self._lineage = lineage
        self._marks = marks
        self._chosen = chosen
        rows: dict[tuple[int, int], list[str]] = {}
        for id in lineage.in_order(chosen):
            rows.setdefault(self._row_of(id), []).append(id)
        self._rows = [(key, sorted(rows[key], key=self._number)) for key in sorted(rows)]
        self._edges = [
            (before, id)
            for id in lineage.in_order(chosen)
            for before in lineage.previous_of(id)
            if before in chosen
        ]
        self._widths = {
            id: max(40.0, len(short(id)) * _LETTER + _PADDING)
            for _, row in self._rows
            for id in row
        }
        names = map(short, lineage.workflow.programs)
        self._left = _MARGIN * 2 + max(map(len, names)) * _LETTER
        found = centres([row for _, row in self._rows], self._edges, self._widths, _GAP)
        self._centre = {id: self._left + place for id, place in found.items()}
        self._top: dict[str, float] = {}
        top = float(_MARGIN)
        for _, row in self._rows:
            self._top.update(dict.fromkeys(row, top))
            top += _HEIGHT + _BETWEEN[self._kind(row[0])]
        self._bottom = max(self._top.values(), default=0.0) + _HEIGHT

    def text(self) -> str:
        """Return the document."""
        width = max((self._right(id) for id in self._centre), default=self._left) + _MARGIN
        drawing = Drawing("Transaction graph", _STYLE, width, self._bottom + _MARGIN)
        self._add_lines(drawing)
        for _, row in self._rows:
            for id in row:
                self._add_box(drawing, id)
        return drawing.text()

    def _row_of(self, id: str) -> tuple[int, int]:
        """Return the row: rank of the program, then above, among or below its transactions."""
        rank = self._lineage.workflow.rank
        if self._lineage.is_transaction(id):
            return rank(self._lineage.transaction(id).program), 1
        batch = self._lineage.batch(id)
        if batch.kind is BatchKind.SOURCE:
            return -1, 0
        if batch.kind is BatchKind.INPUT:
            return rank(batch.reader), 0
        return rank(batch.stream), 2

    def _number(self, id: str) -> tuple[str, int]:
        if self._lineage.is_transaction(id):
            return "", self._lineage.transaction(id).number
        return self._lineage.batch(id).stream, self._lineage.batch(id).number

    def _kind(self, id: str) -> BatchKind | None:
        return None if self._lineage.is_transaction(id) else self._lineage.batch(id).kind

    def _right(self, id: str) -> float:
        return self._centre[id] + self._widths[id] / 2

    def _add_lines(self, drawing: Drawing) -> None:
        for _, row in self._rows:
            if self._kind(row[0]) is not None:
                continue
            program = self._lineage.transaction(row[0]).program
            middle = self._top[row[0]] + _HEIGHT / 2
            drawing.label(_MARGIN, middle + 4, short(program), "program")
            for first, second in pairwise(row):
                left, right = self._right(first), self._centre[second] - self._widths[second] / 2
                drawing.arrow(f"M{left:.1f},{middle:.1f} H{right:.1f}", "order")
        for first, second in self._edges:
            if not (self._lineage.is_transaction(first) and self._lineage.is_transaction(second)):
                self._add_arrow(drawing, first, second, "uses")
        transactions = [id for id in self._centre if self._lineage.is_transaction(id)]
        for first, second, kind in edges_among(self._lineage, transactions):
            if kind != "stream":
                self._add_arrow(drawing, first, second, "control")

    def _add_arrow(self, drawing: Drawing, first: str, second: str, kind: str) -> None:
        x1, y1 = self._centre[first], self._top[first] + _HEIGHT
        x2, y2 = self._centre[second], self._top[second]
        bend = (y2 - y1) / 2
        way = (
            f"M{x1:.1f},{y1:.1f} C{x1:.1f},{y1 + bend:.1f} "
            f"{x2:.1f},{y2 - bend:.1f} {x2:.1f},{y2:.1f}"
        )
        drawing.arrow(way, kind, hint=f"{first} → {second}")

    def _add_box(self, drawing: Drawing, id: str) -> None:
        place = self._centre[id] - self._widths[id] / 2, self._top[id]
        box = drawing.box(
            place,
            (self._widths[id], _HEIGHT),
            hint=self._told(id),
            kinds=self._classes(id),
            round_px=12 if self._lineage.is_transaction(id) else 0,
        )
        box.label(self._centre[id], self._top[id] + _HEIGHT / 2 + 4, short(id))

    def _classes(self, id: str) -> list[str]:
        if self._lineage.is_transaction(id):
            found = ["transaction", str(self._lineage.transaction(id).state)]
        else:
            found = ["batch", str(self._lineage.batch(id).kind)]
        return [*found, self._marks[id]] if id in self._marks else found

    def _told(self, id: str) -> str:
        mark = f"; {self._marks[id].replace('-', ' ')}" if id in self._marks else ""
        if self._lineage.is_transaction(id):
            found = self._lineage.transaction(id)
            return f"{id}: {found.program}, number {found.number}, {found.state}{mark}"
        batch = self._lineage.batch(id)
        if batch.pieces:
            return f"{id}: {', '.join(map(str, batch.pieces))}{mark}"
        return f"{id}: {batch.kind} of {batch.stream}, number {batch.number}{mark}"
