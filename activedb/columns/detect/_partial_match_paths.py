"""What leads on to an event, in the stacks of its key, and the ways through that; compiled."""

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

# Columns of a row of the ring. From LINKS on two for each part but the last: the serial of the
# entry below it on the part's stack, and the floor of the event as an event of that part.
US, ROW, USED, LINKS = range(4)

# Columns of a lead. Per part they stand in an array, times falling.
SERIAL, _AT_US, _FLOOR = range(3)


@jit
def _place_before(leads: Array, part: int, count: int, us: int) -> int:
    """The first place of one before `us`, as times fall; `count` if there is none."""
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
    """Collect, from the event at `us` downwards, what leads on to it.

    Returns
    -------
    int
        1 if each part has something, 0 if one has nothing, -1 if there is no room.
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
                # Floors rise with time: the earliest one after it has the lowest.
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
    """Leave, from the first part upwards, what an event of the part before leads on to."""
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
    """Write the candidates in the order of preference, as serials; where they end.

    -1: there is no room. -2: there are more than `most`, unless that is -1.

    Whatever leads on to the event at hand is in a candidate, so no way is tried in vain.
    """
    level = 0
    place = counts[0] - 1
    made = 0
    base = n_found  # where the candidate at hand is written; it holds places until it is whole
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
        # Whole: the places go on to the next candidate, the serials stay.
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
    """Write the candidate with the latest constituents, the last ones first."""
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
