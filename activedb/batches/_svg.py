"""Transaction graph as an SVG drawing: programs in rows, batches as boxes between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from xml.etree import ElementTree as ET

from activedb.batches._composite import edges_among
from activedb.batches._lineage import Lineage
from activedb.batches._plan import CompensationPlan
from activedb.batches._records import BatchKind

__all__ = ["draw_svg"]

_LETTERS, _LETTER, _PADDING = 24, 7.5, 18
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
    return _Drawing(lineage, chosen, _marks(plan)).text()


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


class _Drawing:
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
            id: max(40.0, len(_short(id)) * _LETTER + _PADDING)
            for _, row in self._rows
            for id in row
        }
        names = map(_short, lineage.workflow.programs)
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
        size = {"width": _number(width), "height": _number(self._bottom + _MARGIN)}
        root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                **size,
                "viewBox": f"0 0 {size['width']} {size['height']}",
            },
        )
        ET.SubElement(root, "title").text = "Transaction graph"
        ET.SubElement(root, "style").text = _STYLE
        marker = ET.SubElement(
            ET.SubElement(root, "defs"),
            "marker",
            {
                "id": "tip",
                "viewBox": "0 0 8 8",
                "refX": "8",
                "refY": "4",
                "markerWidth": "7",
                "markerHeight": "7",
                "orient": "auto",
            },
        )
        ET.SubElement(marker, "path", {"class": "tip", "d": "M0,0 L8,4 L0,8 z"})
        self._add_lines(root)
        for _, row in self._rows:
            for id in row:
                self._add_box(root, id)
        return ET.tostring(root, encoding="unicode") + "\n"

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

    def _add_lines(self, root: ET.Element) -> None:
        for _, row in self._rows:
            if self._kind(row[0]) is not None:
                continue
            program = self._lineage.transaction(row[0]).program
            middle = self._top[row[0]] + _HEIGHT / 2
            place = {"class": "program", "x": str(_MARGIN), "y": _number(middle + 4)}
            ET.SubElement(root, "text", place).text = _short(program)
            for first, second in pairwise(row):
                left, right = self._right(first), self._centre[second] - self._widths[second] / 2
                way = f"M{_number(left)},{_number(middle)} H{_number(right)}"
                ET.SubElement(root, "path", {"class": "order", "d": way})
        for first, second in self._edges:
            if not (self._lineage.is_transaction(first) and self._lineage.is_transaction(second)):
                self._add_arrow(root, first, second, "uses")
        transactions = [id for id in self._centre if self._lineage.is_transaction(id)]
        for first, second, kind in edges_among(self._lineage, transactions):
            if kind != "stream":
                self._add_arrow(root, first, second, "control")

    def _add_arrow(self, root: ET.Element, first: str, second: str, kind: str) -> None:
        x1, y1 = self._centre[first], self._top[first] + _HEIGHT
        x2, y2 = self._centre[second], self._top[second]
        bend = (y2 - y1) / 2
        way = (
            f"M{_number(x1)},{_number(y1)} C{_number(x1)},{_number(y1 + bend)} "
            f"{_number(x2)},{_number(y2 - bend)} {_number(x2)},{_number(y2)}"
        )
        arrow = ET.SubElement(root, "path", {"class": kind, "d": way})
        ET.SubElement(arrow, "title").text = _printable(f"{first} → {second}")

    def _add_box(self, root: ET.Element, id: str) -> None:
        group = ET.SubElement(root, "g")
        ET.SubElement(group, "title").text = _printable(self._told(id))
        corners = "12" if self._lineage.is_transaction(id) else "0"
        ET.SubElement(
            group,
            "rect",
            {
                "class": " ".join(self._classes(id)),
                "x": _number(self._centre[id] - self._widths[id] / 2),
                "y": _number(self._top[id]),
                "width": _number(self._widths[id]),
                "height": str(_HEIGHT),
                "rx": corners,
            },
        )
        place = {"x": _number(self._centre[id]), "y": _number(self._top[id] + _HEIGHT / 2 + 4)}
        ET.SubElement(group, "text", place).text = _short(id)

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


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _short(text: str) -> str:
    shown = _printable(text)
    return shown if len(shown) <= _LETTERS else f"{shown[: _LETTERS - 1]}…"


def _printable(text: str) -> str:
    """Return `text` with unprintable characters, also those invalid in XML, escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


# -- layout of the boxes of a drawing: rows from top to bottom, near to joined boxes ---------------

_SWEEPS = 8


def centres(
    rows: Sequence[Sequence[str]],
    edges: Iterable[tuple[str, str]],
    widths: Mapping[str, float],
    gap: float,
) -> dict[str, float]:
    """Return the horizontal centre of each box, with the leftmost box beginning at 0.

    Rows keep the order given. Sweeps down and up bring each box near to the mean of the boxes that
    it is joined to, as near as its neighbours in the row permit, in the sense of least squares.

    Parameters
    ----------
    rows : sequence of sequence of str
    edges : iterable of (str, str)
        Pairs of joined boxes.
    widths : mapping of str to float
    gap : float
        Minimum distance between two boxes of a row.

    Notes
    -----
    O(sweeps · (boxes + edges)).
    """
    joined: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for first, second in edges:
        joined[first].append(second)
        joined[second].append(first)
    level = {name: number for number, row in enumerate(rows) for name in row}
    found: dict[str, float] = {}
    for row in rows:
        found.update(zip(row, _offsets(row, widths, gap), strict=True))
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = []
            for name in row:
                near = [
                    found[other]
                    for other in joined[name]
                    if sweep == _SWEEPS - 1 or (level[other] < level[name]) == (sweep % 2 == 0)
                ]
                wanted.append(sum(near) / len(near) if near else found[name])
            offsets = _offsets(row, widths, gap)
            free = _rising([w - offset for w, offset in zip(wanted, offsets, strict=True)])
            found.update(
                (name, place + offset)
                for name, place, offset in zip(row, free, offsets, strict=True)
            )
    left = min((found[name] - widths[name] / 2 for name in found), default=0.0)
    return {name: place - left for name, place in found.items()}


def _offsets(row: Sequence[str], widths: Mapping[str, float], gap: float) -> list[float]:
    """Return the centres of a row's boxes at minimum distance."""
    found: list[float] = []
    right = 0.0
    for name in row:
        found.append(right + widths[name] / 2)
        right += widths[name] + gap
    return found


def _rising(values: Sequence[float]) -> list[float]:
    """Return the non-decreasing values that are nearest to the given ones, by least squares."""
    blocks: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            before, more = blocks.pop()
            total, count = total + before, count + more
        blocks.append((total, count))
    return [total / count for total, count in blocks for _ in range(count)]
