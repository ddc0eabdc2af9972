"""SVG drawings of graphs: boxes, arrows and labels, and the places of boxes in rows.

Every text is escaped, so no name can add an element, control a terminal or break the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from xml.etree import ElementTree as ET

from activedb.spelling import clipped, printable

__all__ = ["LETTERS_MAX", "Drawing", "centres", "short"]

LETTERS_MAX = 24
"""Length of the longest name in a box."""
_SWEEPS = 8
_TIP = {"id": "tip", "viewBox": "0 0 8 8", "refX": "8", "refY": "4", "orient": "auto"}


def short(name: str) -> str:
    """Return a name cut to `LETTERS_MAX`, without unprintable characters."""
    return clipped(printable(name), LETTERS_MAX)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """One SVG document. The same calls always make the same text.

    Parameters
    ----------
    title : str
    style : str
        Style sheet of the classes that boxes, arrows and labels have. Arrows that shall have a tip
        have ``marker-end: url(#tip)``; ``path.tip`` is the tip itself.
    width, height : float
        Size in pixels.
    """

    def __init__(self, title: str, style: str, width: float, height: float):
        size = {"width": _number(width), "height": _number(height)}
        box = {"viewBox": f"0 0 {size['width']} {size['height']}"}
        self._root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **box})
        ET.SubElement(self._root, "title").text = title
        ET.SubElement(self._root, "style").text = style
        tip = ET.SubElement(
            ET.SubElement(self._root, "defs"),
            "marker",
            {**_TIP, "markerWidth": "7", "markerHeight": "7"},
        )
        ET.SubElement(tip, "path", {"class": "tip", "d": "M0,0 L8,4 L0,8 z"})

    def box(
        self,
        place: tuple[float, float],
        size: tuple[float, float],
        *,
        hint: str,
        kinds: Iterable[str] = (),
        round_px: int = 0,
    ) -> Box:
        """Add a box with its upper left corner at `place`; pointing at it shows the hint."""
        group = ET.SubElement(self._root, "g")
        ET.SubElement(group, "title").text = printable(hint)
        (x, y), (width, height) = place, size
        ET.SubElement(
            group,
            "rect",
            {
                **_class(kinds),
                "x": _number(x),
                "y": _number(y),
                "width": _number(width),
                "height": _number(height),
                "rx": str(round_px),
            },
        )
        return Box(group)

    def label(self, x: float, y: float, text: str, *kinds: str) -> None:
        """Add a short text outside of boxes."""
        Box(self._root).label(x, y, text, *kinds)

    def arrow(self, way: str, *kinds: str, hint: str | None = None) -> None:
        """Add a path, in SVG's own notation; pointing at it shows the hint."""
        path = ET.SubElement(self._root, "path", {**_class(kinds), "d": way})
        if hint is not None:
            ET.SubElement(path, "title").text = printable(hint)

    def text(self) -> str:
        """Return the document."""
        return ET.tostring(self._root, encoding="unicode") + "\n"


class Box:
    """A box of a drawing, to which labels and a clock can be added."""

    def __init__(self, group: ET.Element):
        self._group = group

    def label(self, x: float, y: float, text: str, *kinds: str) -> None:
        """Add a short text."""
        place = {**_class(kinds), "x": _number(x), "y": _number(y)}
        ET.SubElement(self._group, "text", place).text = printable(text)

    def clock(self, x: float, y: float, hint: str) -> None:
        """Add a clock with its centre at the place; pointing at its hands shows the hint."""
        face = {"class": "clock", "cx": _number(x), "cy": _number(y), "r": "6"}
        ET.SubElement(self._group, "circle", face)
        way = f"M{_number(x)},{_number(y - 4)} V{_number(y)} H{_number(x + 3)}"
        hands = ET.SubElement(self._group, "path", {"class": "hands", "d": way})
        ET.SubElement(hands, "title").text = printable(hint)


def _class(kinds: Iterable[str]) -> dict[str, str]:
    found = " ".join(kinds)
    return {"class": found} if found else {}


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
