"""Fast search for the simplest sequences, which handle most events.

README.md, "Search", explains floors and viability.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from sys import maxsize
from typing import TYPE_CHECKING

from activedb.events.detection._entry import Entry

if TYPE_CHECKING:
    from activedb.events.detection._group import Group
    from activedb.events.detection._layout import Layout

__all__ = ["ways"]

_NEVER = -(2**200)


def ways(
    layout: Layout, group: Group, last: Entry, most: int | None = None
) -> list[tuple[Entry, ...]]:
    """Return the candidates that end with an entry, in the order of preference.

    With `most`, return at most `most` + 1 of them. Each beginning of a candidate leads to at least
    one, so no more beginnings are needed.

    Results are those of `Search.candidates`, in the same order, if the layout `is_straight` and all
    kept events are exact: then the only question is which entries may be neighbours.

    Complexity: O(m log m) for m entries within the window, plus the candidates.
    """
    limit = maxsize if most is None else most
    last_us = last[0]
    start_us = None if layout.window_us is None else last_us - layout.window_us
    final = len(layout.stages) - 1
    # By stage, last stage first: viable entries, their times and floors.
    viable: list[list[Entry]] = [[last]]
    times: list[list[int]] = [[last_us]]
    floors: list[list[int]] = [_floors(layout, group, final, viable[0])] if final else [[]]
    for number in range(final - 1, -1, -1):
        entries = group.taken[number]
        low = 0 if start_us is None else bisect_left(entries, (start_us,))
        later_us, later_floors = times[-1], floors[-1]
        place = len(later_us)
        found: list[Entry] = []
        for at in range(bisect_left(entries, (later_us[-1],)) - 1, low - 1, -1):
            us = entries[at][0]
            if us < later_floors[0]:
                break  # before all possible predecessors of the next constituents
            while place and later_us[place - 1] > us:
                place -= 1
            if later_floors[place] <= us:
                found.append(entries[at])
        if not found:
            return []
        found.reverse()
        viable.append(found)
        times.append([entry[0] for entry in found])
        floors.append(_floors(layout, group, number, found) if number else [])
    candidates: list[tuple[Entry, ...]] = [(entry,) for entry in viable[-1]]
    for number in range(final - 1, -1, -1):
        options, options_us, options_floors = viable[number], times[number], floors[number]
        longer: list[tuple[Entry, ...]] = []
        for candidate in candidates:
            if len(longer) > limit:
                break
            us = candidate[-1][0]
            for place in range(bisect_right(options_us, us), len(options)):
                if options_floors[place] > us:
                    break  # the floors increase
                longer.append((*candidate, options[place]))
        candidates = longer
    del candidates[limit + 1 :]
    return candidates


def _floors(layout: Layout, group: Group, number: int, entries: list[Entry]) -> list[int]:
    """Return the earliest times of the predecessors of each of the entries of a stage."""
    gap_us, forbidden = layout.gap_us, group.forbidden[number]
    found: list[int] = []
    for entry in entries:
        us = entry[0]
        floor_us = _NEVER if gap_us is None else us - gap_us
        if forbidden:
            place = bisect_left(forbidden, (us,))
            if place and forbidden[place - 1][0] > floor_us:
                floor_us = forbidden[place - 1][0]
        found.append(floor_us)
    return found
