"""Kernel for sequences that select any match: one stack of events per key and part.

README.md, "The stacks", explains it. All code here is compiled by numba, runs without the
interpreter's lock, and sees events only as rows of numbers.

When room runs out, the kernel returns to `run_stacks`, which enlarges the array and resumes. If
arrays were replaced inside the event loop, numba would count references to them per event.
"""

from __future__ import annotations

import numpy as np

from activedb.columns.detect._arrays import (
    BEFORE_ALL_US,
    CHRONICLE,
    CONTINUOUS,
    CUMULATIVE,
    RECENT,
    Array,
    Choices,
    EventArrays,
    Found,
)
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
    "run_stacks",
]


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


# The array that is out of room.
_NOTHING, _RING, _LEADS, _FOUND, _COUNTS, _AT = range(6)
_MANY = 6  # not out of room: an event completes more matches than allowed


@jit
def _floor(keys: Array, key: int, part: int, us: int, parts: int, choices: Choices) -> int:
    """Return the time before which no event of the previous part can lead to `part` at `us`."""
    at = parts - 1 + 2 * part
    floor = keys[key, at]
    if floor == us:  # an event at the same time is not before it
        floor = keys[key, at + 1]
    if part > 0:
        if choices.gap_us >= 0:
            floor = max(floor, us - choices.gap_us)
        if choices.is_next:
            floor = max(floor, keys[key, 3 * parts - 1 + part])
    return int(floor)


@jit
def _link(
    keys: Array,
    key: int,
    mask: int,
    us: int,
    row: int,
    start: int,
    parts: int,
    choices: Choices,
    ring: Array,
    base: int,
    top: int,
) -> int:
    """Push an event on the stacks of the parts that take it; return the next serial.

    An event that no event of the previous part leads to is left out.
    """
    slots = ring.shape[0] - 1
    slot = top & slots
    linked = False
    for part in range(parts - 1):
        if not (mask >> part) & 1:
            continue
        floor = _floor(keys, key, part, us, parts, choices)
        if part > 0:
            serial = keys[key, part - 1]
            while serial >= base and ring[serial & slots, US] >= us:
                serial = ring[serial & slots, LINKS + 2 * (part - 1)]
            if serial < base or ring[serial & slots, US] < max(floor, start):
                continue
        if not linked:
            linked = True
            ring[slot, US] = us
            ring[slot, ROW] = row
            ring[slot, USED] = 0
            for i in range(parts - 1):
                ring[slot, LINKS + 2 * i] = -1
        ring[slot, LINKS + 2 * part] = keys[key, part]
        ring[slot, LINKS + 2 * part + 1] = floor
        keys[key, part] = top
    return top + 1 if linked else top


@jit
def _take(
    arrivals: EventArrays,
    parts: int,
    choices: Choices,
    keys: Array,
    ring: Array,
    leads: Array,
    lead_counts: Array,
    matches: Found,
    begin: int,
    base: int,
    top: int,
    n_found: int,
    n_at: int,
) -> tuple[int, int, int, int, int, int]:
    """Take the events from `begin` until the last one, or until room runs out.

    Returns
    -------
    lacks, e, base, top, n_found, n_at
        The array out of room, or `_MANY`; the event concerned; and the state before it.
    """
    us, rows, keys_of, masks = arrivals
    window_us, _, is_next, negates_start, context, most = choices
    found, counts, at = matches
    last = parts - 1
    slots = ring.shape[0] - 1
    lower = (1 << last) - 1
    uses = context in (CHRONICLE, CONTINUOUS, CUMULATIVE)
    for e in range(begin, us.shape[0]):
        t = us[e]
        key = keys_of[e]
        mask = masks[e]
        start = BEFORE_ALL_US
        if window_us >= 0:
            start = t - window_us
            while base < top and ring[base & slots, US] < start:
                base += 1
        if top - base == ring.shape[0]:
            return _RING, e, base, top, n_found, n_at

        used_up = False
        if (mask >> last) & 1:
            floor = _floor(keys, key, last, t, parts, choices)
            end = n_found
            if last == 0:
                if n_found + 1 > found.shape[0]:
                    return _FOUND, e, base, top, n_found, n_at
                if not (negates_start and floor >= start):
                    end = n_found + 1
                    if context == CUMULATIVE:
                        if n_at + 1 > counts.shape[0]:
                            return _COUNTS, e, base, top, n_found, n_at
                        counts[n_at] = 1
            else:
                whole = gather(
                    keys, key, t, start, floor, last, negates_start, ring, base, leads, lead_counts
                )
                if whole < 0:
                    return _LEADS, e, base, top, n_found, n_at
                if whole == 0:
                    pass
                elif is_next and context != CHRONICLE and 0 <= most < lead_counts[0]:
                    # Each first event is in a candidate, whichever candidates the context chooses.
                    return _MANY, e, base, top, n_found, n_at
                elif context == CUMULATIVE:
                    only_reached(last, leads, lead_counts)
                    for part in range(last):
                        end += lead_counts[part]
                    end += 1
                    if end > found.shape[0]:
                        return _FOUND, e, base, top, n_found, n_at
                    if (n_at + 1) * parts > counts.shape[0]:
                        return _COUNTS, e, base, top, n_found, n_at
                    place = n_found
                    for part in range(last):
                        counts[n_at * parts + part] = lead_counts[part]
                        for i in range(lead_counts[part] - 1, -1, -1):
                            found[place] = leads[part, i, SERIAL]
                            place += 1
                    counts[n_at * parts + last] = 1
                elif context == RECENT:
                    end = choose_latest(last, leads, lead_counts, found, n_found)
                else:
                    end = choose_forwards(last, leads, lead_counts, context, most, found, n_found)
            if end == -2:
                return _MANY, e, base, top, n_found, n_at
            if end < 0:
                return _FOUND, e, base, top, n_found, n_at
            if end > n_found:
                made = 1 if context == CUMULATIVE else (end - n_found) // parts
                if n_at + made > at.shape[0]:
                    return _AT, e, base, top, n_found, n_at
                # Convert serials to rows; from here on nothing is undone.
                width = end - n_found if context == CUMULATIVE else parts
                for match in range(made):
                    place = n_found + match * width
                    for i in range(place, place + width - 1):
                        slot = found[i] & slots
                        found[i] = ring[slot, ROW]
                        if uses:
                            ring[slot, USED] = 1
                    found[place + width - 1] = rows[e]
                    at[n_at + match] = e
                n_at += made
                n_found = end
                used_up = uses

        if mask & lower and not used_up:
            top = _link(keys, key, mask, t, rows[e], start, parts, choices, ring, base, top)
        if is_next:
            for part in range(parts):
                if (mask >> part) & 1:
                    keys[key, 3 * parts - 1 + part] = t
        if mask >> 32:
            for part in range(parts):
                if (mask >> (32 + part)) & 1:
                    place = parts - 1 + 2 * part
                    if keys[key, place] != t:
                        keys[key, place + 1] = keys[key, place]
                        keys[key, place] = t
    return _NOTHING, us.shape[0], base, top, n_found, n_at


@jit
def _longer(array: Array, used: int) -> Array:
    grown = np.empty(2 * array.shape[0] + 64, np.int64)
    grown[:used] = array[:used]
    return grown


@jit
def run_stacks(
    arrivals: EventArrays,
    parts: int,
    choices: Choices,
    keys: Array,
    ring: Array,
    base: int,
    top: int,
) -> tuple[Array, int, int, Found, int]:
    """Take events in the order of their places; return the matches they complete.

    Parameters
    ----------
    arrivals : EventArrays
    parts : int
        Number of positive parts.
    choices : Choices
    keys : array of int64, keys by 4 parts - 1
        Per key: the top of the stack of each part but the last; for the negations before each part,
        the time of the latest event and of the latest event before that time; for each part, the
        time of the latest event it took.
    ring : array of int64, a power of two by 3 + 2 (parts - 1)
        Events with serials from `base` to before `top`, at the serial modulo its length.

    Returns
    -------
    ring, base, top
        Updated state.
    found : Found
        The counts are those of the cumulative context; else they are empty.
    taken : int
        Number of events taken: all, or those before an event that completes too many matches.
    """
    levels = max(parts - 1, 1)
    leads = np.empty((levels, 64, 3), np.int64)
    lead_counts = np.zeros(levels, np.int64)
    found = Found(np.empty(1024, np.int64), np.empty(64, np.int64), np.empty(256, np.int64))
    e, n_found, n_at = 0, 0, 0
    while True:
        lacks, e, base, top, n_found, n_at = _take(
            arrivals,
            parts,
            choices,
            keys,
            ring,
            leads,
            lead_counts,
            found,
            e,
            base,
            top,
            n_found,
            n_at,
        )
        if lacks in (_NOTHING, _MANY):
            break
        if lacks == _RING:
            size = ring.shape[0]
            larger = np.empty((2 * size, ring.shape[1]), np.int64)
            for serial in range(base, top):
                larger[serial & (2 * size - 1)] = ring[serial & (size - 1)]
            ring = larger
        elif lacks == _LEADS:
            leads = np.empty((levels, 2 * leads.shape[1], 3), np.int64)
        elif lacks == _FOUND:
            found = Found(_longer(found.rows, n_found), found.counts, found.at)
        elif lacks == _COUNTS:
            found = Found(found.rows, _longer(found.counts, n_at * parts), found.at)
        else:
            found = Found(found.rows, found.counts, _longer(found.at, n_at))
    used = n_at * parts if choices.context == CUMULATIVE else 0
    return ring, base, top, Found(found.rows[:n_found], found.counts[:used], found.at[:n_at]), e
