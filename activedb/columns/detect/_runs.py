"""Kernel for Kleene parts, selection next and multi-event conditions: partial matches.

README.md, "The runs", explains it. When room runs out, the kernel returns to `run_runs`, as in
`activedb.columns.detect._stacks`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._nodes import (
    AT_US,
    CHRONICLE,
    CONTINUOUS,
    CUMULATIVE,
    FIRST_US,
    LOW,
    NEXT,
    NULLS,
    OPEN,
    PART,
    RECENT,
    ROW,
    US,
    USED,
    collect,
    conditions_hold,
    floor_of,
    write_node,
)
from activedb.compiler import jit

__all__ = ["candidate_room", "choose", "in_order", "run_runs", "together"]


Array = npt.NDArray[Any]


def candidate_room(candidates: int, constituents: int, parts: int) -> tuple[Array, ...]:
    """Allocate arrays for a number of candidates with a total number of constituents.

    Returns
    -------
    flat : array of int64
        Serials of the constituents of all candidates, concatenated.
    starts : array of int64
        Start of each candidate in `flat`, and the end of the last one.
    counts : array of int64, candidates by parts
    usable : array of bool
        True if no constituent is consumed.
    order, other : arrays of int64
        Candidates in order of preference, and scratch space for sorting them.
    """
    return (
        np.empty(constituents, np.int64),
        np.zeros(candidates + 1, np.int64),
        np.zeros((candidates, parts), np.int64),
        np.zeros(candidates, np.bool_),
        np.zeros(candidates, np.int64),
        np.zeros(candidates, np.int64),
    )


@jit
def _prefers(flat: Array, starts: Array, counts: Array, greedy: Array, a: int, b: int) -> bool:
    """Return whether candidate `a` is strictly preferred to `b`."""
    i, j = starts[a], starts[b]
    for part in range(counts.shape[1]):
        m, n = counts[a, part], counts[b, part]
        for k in range(min(m, n)):
            if flat[i + k] != flat[j + k]:
                return bool(flat[i + k] < flat[j + k])
        if m != n:
            return bool((m > n) == greedy[part])
        i += m
        j += n
    return False


@jit
def in_order(
    flat: Array,
    starts: Array,
    counts: Array,
    greedy: Array,
    n_candidates: int,
    order: Array,
    other: Array,
) -> None:
    """Write the candidates to `order`, most preferred first; O(n log n) comparisons."""
    for i in range(n_candidates):
        order[i] = i
    width = 1
    while width < n_candidates:
        for low in range(0, n_candidates, 2 * width):
            middle = min(low + width, n_candidates)
            high = min(low + 2 * width, n_candidates)
            i, j = low, middle
            for place in range(low, high):
                left = i < middle
                if left and j < high:
                    left = not _prefers(flat, starts, counts, greedy, order[j], order[i])
                if left:
                    other[place] = order[i]
                    i += 1
                else:
                    other[place] = order[j]
                    j += 1
        for place in range(n_candidates):
            order[place] = other[place]
        width *= 2


@jit
def _later(flat: Array, a: int, b: int, length: int) -> bool:
    """Return whether the constituents from `a` are later than from `b`, the last compared first."""
    for k in range(length - 1, -1, -1):
        if flat[a + k] != flat[b + k]:
            return bool(flat[a + k] > flat[b + k])
    return False


@jit
def choose(
    flat: Array,
    starts: Array,
    counts: Array,
    usable: Array,
    order: Array,
    n_candidates: int,
    is_next: bool,
    context: int,
    most: int,
) -> int:
    """Leave the selected candidates in `order`, in the order of making; return their number.

    With `is_next`, only the most preferred of the candidates with the same first constituent
    counts: they all end with the same event. Candidates with a consumed constituent are dropped.
    The context chooses among the rest. Return -1 if there are more than `most` to choose from,
    unless `most` is -1.
    """
    kept = 0
    seen, made = -1, -1
    for i in range(n_candidates):
        candidate = order[i]
        first = flat[starts[candidate]]
        if is_next and first == seen:
            continue
        seen = first
        if not usable[candidate] or (context == CONTINUOUS and first == made):
            continue
        if kept == most:
            return -1
        made = first
        order[kept] = candidate
        kept += 1
        if context == CHRONICLE:
            break
    if kept > 0 and context == RECENT:  # without Kleene parts, so all have the same length
        for i in range(1, kept):
            if _later(flat, starts[order[i]], starts[order[0]], counts.shape[1]):
                order[0] = order[i]
        kept = 1
    return kept


@jit
def together(
    flat: Array,
    starts: Array,
    counts: Array,
    order: Array,
    kept: int,
    found: Array,
    n_found: int,
    found_counts: Array,
    match: int,
) -> int:
    """Write one match with the union of every part's constituents over all candidates, by place.

    Returns
    -------
    int
        End of the match in `found`, which has room for the constituents of all candidates.
    """
    parts = counts.shape[1]
    for part in range(parts):
        first = n_found
        for i in range(kept):
            place = starts[order[i]]
            for before in range(part):
                place += counts[order[i], before]
            for k in range(counts[order[i], part]):
                found[n_found] = flat[place + k]
                n_found += 1
        found[first:n_found].sort()
        distinct = first
        for place in range(first, n_found):
            if distinct == first or found[place] != found[distinct - 1]:
                found[distinct] = found[place]
                distinct += 1
        n_found = distinct
        found_counts[match * parts + part] = n_found - first
    return n_found


# The array that is out of room.
_NOTHING, _RING, _NODES, _MADE, _CANDIDATES, _FOUND = range(6)
_MANY = 6  # not out of room: an event completes more matches than allowed


@jit
def _take(
    us: Array,
    rows: Array,
    keys_of: Array,
    masks: Array,
    new_values: Array,
    new_nulls: Array,
    least: Array,
    most: Array,
    kleene: Array,
    greedy: Array,
    follows: Array,
    ends: Array,
    programs: Array,
    program_ends: Array,
    program_parts: Array,
    program_prevs: Array,
    constants: Array,
    window_us: int,
    gap_us: int,
    is_next: bool,
    negates_start: bool,
    context: int,
    matches_max: int,
    keys: Array,
    ring: Array,
    values: Array,
    nodes: Array,
    made: Array,
    flat: Array,
    starts: Array,
    counts: Array,
    usable: Array,
    order: Array,
    other: Array,
    stack: Array,
    unknown: Array,
    at_part: Array,
    before_part: Array,
    found: Array,
    found_counts: Array,
    at: Array,
    begin: int,
    base: int,
    top: int,
    node_base: int,
    node_top: int,
    n_found: int,
    n_at: int,
) -> tuple[int, int, int, int, int, int, int, int]:
    """Take the events from `begin` until the last one, or until room runs out.

    If there is no room for all effects of an event, none of them stays. The one exception: dead
    nodes, which nothing can follow any more, stay unlinked from their lists.
    """
    parts = least.shape[0]
    ring_slots, slots = ring.shape[0] - 1, nodes.shape[0] - 1
    uses = context in (CHRONICLE, CONTINUOUS, CUMULATIVE)
    positive = (1 << 32) - 1
    for e in range(begin, us.shape[0]):
        t = us[e]
        key = keys_of[e]
        mask = masks[e]
        start = t - window_us
        while base < top and ring[base & ring_slots, US] < start:
            base += 1
        while node_base < node_top and nodes[node_base & slots, AT_US] < start:
            node_base += 1
        n_made = 0
        if mask & positive:
            if top - base == ring.shape[0]:
                return _RING, e, base, top, node_base, node_top, n_found, n_at
            slot = top & ring_slots
            ring[slot, US] = t
            ring[slot, ROW] = rows[e]
            ring[slot, USED] = 0
            ring[slot, NULLS] = new_nulls[e]
            ring[slot, LOW] = keys[key, parts + 1] if keys[key, parts] == t else keys[key, parts]
            values[slot] = new_values[e]

        for part in range(parts):
            if not (mask >> part) & 1:
                continue
            # Sources: each part it may follow, elements of its own part, or the start (-1).
            for source in range(-1, part + 1):
                if source == -1:
                    follow = part == 0
                elif source == part:
                    follow = kleene[part]
                else:
                    follow = (follows[source] >> part) & 1 != 0
                if not follow:
                    continue
                own = source if source < part else part  # no negation stands between elements
                floor = floor_of(keys, key, own, part, t, parts, gap_us)
                node = -1 if source == -1 else keys[key, source]
                previous = -1
                while source == -1 or node >= node_base:
                    takes = True
                    slot = node & slots
                    if source >= 0:
                        if nodes[slot, FIRST_US] < start:
                            nodes[slot, OPEN] = 0
                        elif nodes[slot, AT_US] < floor:
                            nodes[slot, OPEN] &= ~(1 << part)  # for good, as floors rise
                        if nodes[slot, OPEN] == 0:
                            node = nodes[slot, NEXT]
                            if previous < 0:
                                keys[key, source] = node
                            else:
                                nodes[previous & slots, NEXT] = node
                            continue
                        takes = (nodes[slot, OPEN] >> part) & 1 != 0 and nodes[slot, AT_US] < t
                    if takes and program_ends.shape[0] > 0:
                        takes = conditions_hold(
                            part,
                            node,
                            top,
                            programs,
                            program_ends,
                            program_parts,
                            program_prevs,
                            constants,
                            at_part,
                            before_part,
                            ring,
                            values,
                            nodes,
                            stack,
                            unknown,
                        )
                    if takes:
                        serial = node_top + n_made
                        if serial - node_base == nodes.shape[0]:
                            return _NODES, e, base, top, node_base, node_top, n_found, n_at
                        if n_made == made.shape[0]:
                            return _MADE, e, base, top, node_base, node_top, n_found, n_at
                        write_node(nodes, serial, node, top, t, part, least, most, kleene, follows)
                        made[n_made, 0] = serial
                        made[n_made, 1] = node
                        n_made += 1
                    if source == -1:
                        break
                    previous = node
                    node = nodes[slot, NEXT]

        if n_made > 0:
            n_candidates = collect(
                made,
                n_made,
                start,
                least,
                ends,
                negates_start,
                ring,
                nodes,
                flat,
                starts,
                counts,
                usable,
            )
            if n_candidates < 0:
                return _CANDIDATES, e, base, top, node_base, node_top, n_found, n_at
            if n_candidates > 0:
                in_order(flat, starts, counts, greedy, n_candidates, order, other)
                kept = choose(
                    flat,
                    starts,
                    counts,
                    usable,
                    order,
                    n_candidates,
                    is_next,
                    context,
                    matches_max,
                )
                if kept < 0:
                    return _MANY, e, base, top, node_base, node_top, n_found, n_at
                if (
                    n_found + starts[n_candidates] > found.shape[0]
                    or n_at + kept > at.shape[0]
                    or (n_at + kept) * parts > found_counts.shape[0]
                ):
                    return _FOUND, e, base, top, node_base, node_top, n_found, n_at
                end = n_found
                if context == CUMULATIVE and kept > 0:
                    end = together(
                        flat, starts, counts, order, kept, found, n_found, found_counts, n_at
                    )
                    at[n_at] = e
                    n_at += 1
                else:
                    for i in range(kept):
                        candidate = order[i]
                        for place in range(starts[candidate], starts[candidate + 1]):
                            found[end] = flat[place]
                            end += 1
                        for part in range(parts):
                            found_counts[n_at * parts + part] = counts[candidate, part]
                        at[n_at] = e
                        n_at += 1
                for place in range(n_found, end):
                    slot = found[place] & ring_slots
                    found[place] = ring[slot, ROW]
                    if uses:
                        ring[slot, USED] = 1
                n_found = end
            # From here on later events find the new nodes.
            for i in range(n_made):
                slot = made[i, 0] & slots
                part = nodes[slot, PART]
                if is_next and made[i, 1] >= 0:
                    nodes[made[i, 1] & slots, OPEN] &= ~(1 << part)
                if nodes[slot, OPEN] != 0:
                    nodes[slot, NEXT] = keys[key, part]
                    keys[key, part] = made[i, 0]
            node_top += n_made
            top += 1
        if mask >> 32:
            for part in range(parts):
                if (mask >> (32 + part)) & 1:
                    place = parts + 2 * part
                    if keys[key, place] != t:
                        keys[key, place + 1] = keys[key, place]
                        keys[key, place] = t
    return _NOTHING, us.shape[0], base, top, node_base, node_top, n_found, n_at


def run_runs(
    events: tuple[Array, Array, Array, Array, Array, Array],
    shape: tuple[Array, Array, Array, Array, Array, Array],
    conditions: tuple[Array, Array, Array, Array, Array],
    choices: tuple[int, int, bool, bool, int, int],
    keys: Array,
    ring: Array,
    values: Array,
    nodes: Array,
    state: tuple[int, int, int, int],
) -> tuple[Array, Array, Array, tuple[int, int, int, int], Array, Array, Array, int]:
    """Take events in the order of their places; return the matches they complete.

    Parameters
    ----------
    events : (us, rows, keys_of, masks, values, nulls)
        Per event: its time, row and key number; the parts that take it (bit i: positive part i, bit
        32 + i: a negation right before it); and the values that conditions load, one column each,
        with bits for NULL.
    shape : (least, most, kleene, greedy, follows, ends)
        Per part: minimum and maximum events (`most` -1: unbounded), whether it is a Kleene part,
        whether it is greedy, and the results of `follows_of`.
    conditions : (programs, ends, parts, prevs, constants)
        Concatenated programs, and per program its end, the part at which it is evaluated, and
        whether it reads the previous element.
    choices : (window_us, gap_us, is_next, negates_start, context, matches_max)
        The gap may be -1 (none), and so may the bound on matches per event (unbounded).
    keys : array of int64, keys by 3 parts
        Per key: for each part the head of its node list; and for the negations before each part,
        the time of the latest event and of the latest event before that time.
    ring, values : arrays, a power of two by 5 and by columns
        Events.
    nodes : array of int64, a power of two by 10
    state : (base, top, node_base, node_top)
        Serial ranges of events and nodes: first, and one past the last.

    Returns
    -------
    ring, values, nodes, state
        Updated state.
    found : array of int64
        Rows of the constituents of all matches, concatenated.
    counts : array of int64
        Number of constituents per match and part.
    at : array of int64
        Index of the event that completed each match.
    taken : int
        Number of events taken: all, or those before an event that completes too many matches.
    """
    parts, operations = len(shape[0]), len(conditions[0])
    made = np.empty((64, 2), np.int64)
    candidates = candidate_room(64, 256, parts)
    scratch = (
        np.empty(operations + 1),
        np.empty(operations + 1, np.bool_),
        np.empty(parts, np.int64),
        np.empty(parts, np.int64),
    )
    found = np.empty(4 * len(events[0]) + 64, np.int64)
    counts = np.empty(len(events[0]) * parts + 64, np.int64)
    at = np.empty(len(events[0]) + 64, np.int64)
    e, n_found, n_at = 0, 0, 0
    while True:
        arguments: tuple[Any, ...] = (
            *events,
            *shape,
            *conditions,
            *choices,
            keys,
            ring,
            values,
            nodes,
            made,
            *candidates,
            *scratch,
            found,
            counts,
            at,
            e,
            *state,
            n_found,
            n_at,
        )
        lacks, e, *now, n_found, n_at = _take(*arguments)
        state = (now[0], now[1], now[2], now[3])
        if lacks in (_NOTHING, _MANY):
            made_counts = counts[: n_at * parts]
            return ring, values, nodes, state, found[:n_found], made_counts, at[:n_at], e
        if lacks == _RING:
            ring = _larger(ring, state[0], state[1])
            values = _larger(values, state[0], state[1])
        elif lacks == _NODES:
            nodes = _larger(nodes, state[2], state[3])
        elif lacks == _MADE:
            made = np.empty((2 * len(made), 2), np.int64)
        elif lacks == _CANDIDATES:
            candidates = candidate_room(2 * len(candidates[3]), 2 * len(candidates[0]), parts)
        else:
            # Enough for the candidates of one event.
            more = len(candidates[0])
            found = np.concatenate((found, np.empty(len(found) + more, np.int64)))
            counts = np.concatenate((counts, np.empty(len(counts) + more * parts, np.int64)))
            at = np.concatenate((at, np.empty(len(at) + more, np.int64)))


def _larger(ring: Array, base: int, top: int) -> Array:
    """Return a ring of twice the size with the entries of serials from `base` to before `top`."""
    larger = np.empty((2 * len(ring), ring.shape[1]), ring.dtype)
    serials = np.arange(base, top)
    larger[serials & (len(larger) - 1)] = ring[serials & (len(ring) - 1)]
    return larger
