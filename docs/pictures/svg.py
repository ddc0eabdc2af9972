"""A few shapes of SVG, enough for the pictures of the concepts."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

INK = "#263238"
PALE = "#78909c"
RED = "#c62828"
GREEN = "#2e7d32"
BLUE = "#1565c0"
FILLS = ("#b2dfdb", "#bbdefb", "#ffe0b2", "#e1bee7", "#dcedc8", "#ffcdd2")


@dataclass
class Picture:
    """An SVG document that grows; lengths are pixels, y points down."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 14,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Write one line, with its baseline at y."""
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" '
            f'text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *words: str,
        fill: str = "#ffffff",
        stroke: str = INK,
        dashed: bool = False,
        size: int = 14,
    ) -> None:
        """Draw a rounded rectangle with lines of text in its middle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dash}/>'
        )
        step = size * 1.3
        top = y + height / 2 - step * (len(words) - 1) / 2 + size * 0.35
        for number, line in enumerate(words):
            self.text(x + width / 2, top + number * step, line, anchor="middle", size=size)

    def line(
        self,
        *points: tuple[float, float],
        colour: str = INK,
        arrow: bool = False,
        dashed: bool = False,
        width: float = 1.5,
    ) -> None:
        """Draw straight pieces from point to point, with an arrow at the end or not."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        head = f' marker-end="url(#head-{colour[1:]})"' if arrow else ""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="{width:g}"{dash}{head}/>'
        )

    def dot(self, x: float, y: float, *, colour: str = INK, radius: float = 5) -> None:
        """Draw a filled circle."""
        self.parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{colour}"/>')

    def document(self) -> str:
        """The whole as text."""
        heads = "".join(
            f'<marker id="head-{colour[1:]}" viewBox="0 0 10 10" refX="9" refY="5" '
            f'markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            f'<path d="M0,0 L10,5 L0,10 z" fill="{colour}"/></marker>'
            for colour in (INK, PALE, RED, GREEN, BLUE)
        )
        body = "\n".join(self.parts)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="sans-serif" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n{body}\n</svg>\n'
        )
