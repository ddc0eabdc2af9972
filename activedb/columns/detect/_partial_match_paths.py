"""Compiled backward search for the paths through a key's stacks that lead to an event."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from activedb.columns.detect._contexts import CHRONICLE, CONTINUOUS
from activedb.compiler import jit

__all__ = [
    "LINKS",
    "ROW",
    "SERIAL",
    "US",
    "USED",
    "choose_forwards",
    "choose_latest",
    "gather",
    "only_reached",
]

Array = npt.NDArray[Any]

# Columns of a row of the ring. From LINKS on there are two for each part but the last: the serial
# of the entry below on the part's stack, and the event's floor as an event of that part.
US, ROW, USED, LINKS = range(4)

# Columns of a lead. Per part, leads stand in an array in descending order of time.
SERIAL, _AT_US, _FLOOR = range(3)


@jit
def _place_before(leads: Array, part: int, count: int, us: int) -> int:
    """Return the first index with a time before `us` (times descend); `count` if there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if leads[part, middle, _AT_US] >= us:
            low = middle + 1
        else:
            high = middle
    return low


@jit
def gather(
    keys: Array,
    key: int,
    us: int,
    start: int,
    floor: int,
    last: int,
    negates_start: bool,
    ring: Array,
    base: int,
    leads: Array,
    counts: Array,
) -> int:
    """Collect the events that lead to the event at `us`, from the last part downwards.

    Returns
    -------
    int
        1 if each part has an event, 0 if a part has none, -1 if out of room.
    """
    slots = ring.shape[0] - 1
    for part in range(last - 1, -1, -1):
        later = part + 1
        serial = keys[key, part]
        count = 0
        j = 0
        if later == last:
            least, latest = max(start, floor), us
        else:
            least = max(start, leads[later, counts[later] - 1, _FLOOR])
            latest = leads[later, 0, _AT_US]
        while serial >= base:
            slot = serial & slots
            at_us = ring[slot, US]
            if at_us < least:
                break
            own_floor = ring[slot, LINKS + 2 * part + 1]
            takes = at_us < latest and ring[slot, USED] == 0
            if part == 0 and negates_start:
                takes = takes and own_floor < start
            if takes and later < last:
                # Floors ascend with time, so the earliest later event has the lowest floor.
                while j + 1 < counts[later] and leads[later, j + 1, _AT_US] > at_us:
                    j += 1
                takes = leads[later, j, _FLOOR] <= at_us
            if takes:
                if count == leads.shape[1]:
                    return -1
                leads[part, count, SERIAL] = serial
                leads[part, count, _AT_US] = at_us
                leads[part, count, _FLOOR] = own_floor
                count += 1
            serial = ring[slot, LINKS + 2 * part]
        counts[part] = count
        if count == 0:
            return 0
    return 1


@jit
def only_reached(last: int, leads: Array, counts: Array) -> None:
    """Keep, from the first part upwards, only events reached from the previous part."""
    for part in range(1, last):
        before = part - 1
        kept = 0
        for i in range(counts[part]):
            j = _place_before(leads, before, counts[before], leads[part, i, _AT_US])
            if j < counts[before] and leads[before, j, _AT_US] >= leads[part, i, _FLOOR]:
                for column in range(3):
                    leads[part, kept, column] = leads[part, i, column]
                kept += 1
        counts[part] = kept


@jit
def choose_forwards(
    last: int, leads: Array, counts: Array, context: int, most: int, found: Array, n_found: int
) -> int:
    """Write the candidates as serials, in order of preference; return the end of the output.

    Return -1 if out of room, and -2 if there are more than `most`, unless `most` is -1. Every
    gathered event that leads to the current event belongs to a candidate, so the walk never
    backtracks from a dead end.
    """
    level = 0
    place = counts[0] - 1
    made = 0
    base = n_found  # start of the candidate being written; holds places until it is complete
    if base + last + 1 > found.shape[0]:
        return -1
    while True:
        if place < 0 or (
            level > 0
            and leads[level, place, _FLOOR] > leads[level - 1, found[base + level - 1], _AT_US]
        ):
            if level == 0:
                return n_found
            level -= 1
            place = found[base + level] - 1
            continue
        found[base + level] = place
        if level < last - 1:
            at_us = leads[level, place, _AT_US]
            level += 1
            place = _place_before(leads, level, counts[level], at_us + 1) - 1
            continue
        # Complete: copy the places to the next candidate, and turn these into serials.
        if made == most:
            return -2
        made += 1
        n_found += last + 1
        if n_found + last + 1 > found.shape[0]:
            return -1
        for part in range(last):
            chosen = found[base + part]
            found[n_found + part] = chosen
            found[base + part] = leads[part, chosen, SERIAL]
        base = n_found
        if context == CHRONICLE:
            return n_found
        if context == CONTINUOUS:
            level = 0
        place = found[base + level] - 1


@jit
def choose_latest(last: int, leads: Array, counts: Array, found: Array, n_found: int) -> int:
    """Write the candidate with the latest constituents, compared from the last; return its end."""
    if n_found + last + 1 > found.shape[0]:
        return -1
    level = last - 1
    place = 0
    while True:
        later = found[n_found + level + 1] if level < last - 1 else 0
        if place >= counts[level] or (
            level < last - 1 and leads[level, place, _AT_US] < leads[level + 1, later, _FLOOR]
        ):
            if level == last - 1:
                return n_found
            level += 1
            place = found[n_found + level] + 1
            continue
        found[n_found + level] = place
        if level == 0:
            for part in range(last):
                found[n_found + part] = leads[part, found[n_found + part], SERIAL]
            return n_found + last + 1
        at_us = leads[level, place, _AT_US]
        level -= 1
        place = _place_before(leads, level, counts[level], at_us)
