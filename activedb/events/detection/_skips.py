"""Spans of places in which no later match may begin (README, "Skips")."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

__all__ = ["Place", "Span", "add_span", "covers", "first_of", "remove_span"]

Place = tuple[int, str, int]
Span = tuple[Place, Place, bool]
"""First place, last place, and whether the last place belongs to the span.

Spans in a list are disjoint and sorted, so one bisection tells whether a place is in any of them.
"""


def first_of(span: Span) -> Place:
    """Return the place at which a span begins."""
    return span[0]


def covers(spans: Sequence[Span], place: Place) -> bool:
    """Return whether a place is in one of the `spans`, disjoint and sorted; O(log n)."""
    number = bisect_right(spans, place, key=first_of)
    if not number:
        return False
    _, high, closed = spans[number - 1]
    return place < high or (closed and place == high)


def add_span(spans: list[Span], span: Span) -> tuple[Span, list[Span]]:
    """Add a span; return the merged span, and the spans that it replaces.

    Complexity: O(log n), plus the move of the spans after it.
    """
    low, high, closed = span
    begin = bisect_left(spans, low, key=first_of)
    if begin and _reaches(spans[begin - 1], low):
        begin -= 1
        low = spans[begin][0]
    end = begin
    while end < len(spans) and spans[end][0] <= high:
        _, other_high, other_closed = spans[end]
        high, closed = max((high, closed), (other_high, other_closed))
        end += 1
    replaced = spans[begin:end]
    merged = (low, high, closed)
    spans[begin:end] = [merged]
    return merged, replaced


def remove_span(spans: list[Span], merged: Span, replaced: Sequence[Span]) -> None:
    """Undo an `add_span` with these results; the span may have been forgotten since."""
    number = bisect_left(spans, merged[0], key=first_of)
    if number < len(spans) and spans[number] == merged:
        del spans[number]
    for span in replaced:
        insort(spans, span)


def _reaches(span: Span, place: Place) -> bool:
    """Return whether a span that begins before `place` extends to it, so that they merge."""
    return place <= span[1]
