"""Layout of the boxes of a drawing: rows from top to bottom, near to joined boxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["centres"]

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
