"""Kernel for Kleene parts, selection next and multi-event conditions: partial matches.

README.md, "The runs", explains it. When room runs out, the kernel returns to `run_runs`, as in
`activedb.columns.detect._stacks`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from activedb.columns.detect._arrays import (
    CHRONICLE,
    CONTINUOUS,
    CUMULATIVE,
    RECENT,
    Array,
    Choices,
    EventArrays,
    Found,
)
from activedb.columns.detect._nodes import (
    AT_US,
    FIRST_US,
    LOW,
    NEXT,
    NULLS,
    OPEN,
    PART,
    ROW,
    US,
    USED,
    Candidates,
    Conditions,
    Memory,
    Scratch,
    Shape,
    collect,
    conditions_hold,
    floor_of,
    write_node,
)
from activedb.compiler import jit

__all__ = ["candidate_room", "choose", "in_order", "run_runs", "together"]


def candidate_room(candidates: int, constituents: int, parts: int) -> Candidates:
    """Allocate arrays for a number of candidates with a total number of constituents."""
    return Candidates(
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
def in_order(candidates: Candidates, greedy: Array, n_candidates: int) -> None:
    """Write the candidates to ``order``, most preferred first; O(n log n) comparisons."""
    flat, starts, counts, _, order, other = candidates
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
def choose(candidates: Candidates, n_candidates: int, choices: Choices) -> int:
    """Leave the selected candidates in ``order``, in the order of making; return their number.

    With selection next, only the most preferred of the candidates with the same first constituent
    counts: they all end with the same event. Candidates with a consumed constituent are dropped.
    The context chooses among the rest. Return -1 if there are more than `matches_max` to choose
    from, unless that is -1.
    """
    flat, starts, order = candidates.flat, candidates.starts, candidates.order
    is_next, context = choices.is_next, choices.context
    kept = 0
    seen, made = -1, -1
    for i in range(n_candidates):
        candidate = order[i]
        first = flat[starts[candidate]]
        if is_next and first == seen:
            continue
        seen = first
        if not candidates.usable[candidate] or (context == CONTINUOUS and first == made):
            continue
        if kept == choices.matches_max:
            return -1
        made = first
        order[kept] = candidate
        kept += 1
        if context == CHRONICLE:
            break
    if kept > 0 and context == RECENT:  # without Kleene parts, so all have the same length
        for i in range(1, kept):
            length = candidates.counts.shape[1]
            if _later(flat, starts[order[i]], starts[order[0]], length):
                order[0] = order[i]
        kept = 1
    return kept


@jit
def together(candidates: Candidates, kept: int, found: Found, n_found: int, match: int) -> int:
    """Write one match with the union of every part's constituents over all candidates, by place.

    Returns
    -------
    int
        End of the match in ``found.rows``, which has room for the constituents of all candidates.
    """
    flat, starts, counts = candidates.flat, candidates.starts, candidates.counts
    order, rows = candidates.order, found.rows
    parts = counts.shape[1]
    for part in range(parts):
        first = n_found
        for i in range(kept):
            place = starts[order[i]]
            for before in range(part):
                place += counts[order[i], before]
            for k in range(counts[order[i], part]):
                rows[n_found] = flat[place + k]
                n_found += 1
        rows[first:n_found].sort()
        distinct = first
        for place in range(first, n_found):
            if distinct == first or rows[place] != rows[distinct - 1]:
                rows[distinct] = rows[place]
                distinct += 1
        n_found = distinct
        found.counts[match * parts + part] = n_found - first
    return n_found


# The array that is out of room.
_NOTHING, _RING, _NODES, _MADE, _CANDIDATES, _FOUND = range(6)
_MANY = 6  # not out of room: an event completes more matches than allowed


class Progress(NamedTuple):
    """Place in a batch, and the ranges in use.

    Attributes
    ----------
    event : int
        Index of the next event.
    base, top, node_base, node_top : int
        Serials of events and of nodes: the first, and one past the last.
    found, matches : int
        Number of constituents and of matches found.
    """

    event: int
    base: int
    top: int
    node_base: int
    node_top: int
    found: int
    matches: int


@jit
def _take(
    arrivals: EventArrays,
    new_values: Array,
    new_nulls: Array,
    shape: Shape,
    conditions: Conditions,
    choices: Choices,
    memory: Memory,
    made: Array,
    candidates: Candidates,
    scratch: Scratch,
    found: Found,
    progress: Progress,
) -> tuple[int, Progress]:
    """Take the events from the next one until the last one, or until room runs out.

    If there is no room for all effects of an event, none of them stays. The one exception: dead
    nodes, which nothing can follow any more, stay unlinked from their lists.
    """
    us, rows, keys_of, masks = arrivals
    window_us, gap_us, is_next, negates_start, context, _ = choices
    keys, ring, values, nodes = memory
    code, ends, evaluated, prevs, literals = conditions
    stack, unknown, at, before = scratch
    least, most, kleene, follows = shape.least, shape.most, shape.kleene, shape.follows
    starts, counts, order = candidates.starts, candidates.counts, candidates.order
    begin, base, top, node_base, node_top, n_found, n_at = progress
    parts = kleene.shape[0]
    ring_slots, slots = ring.shape[0] - 1, nodes.shape[0] - 1
    uses = context in (CHRONICLE, CONTINUOUS, CUMULATIVE)
    has_conditions = conditions.ends.shape[0] > 0
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
                return _RING, Progress(e, base, top, node_base, node_top, n_found, n_at)
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
                    if takes and has_conditions:
                        takes = conditions_hold(
                            part,
                            node,
                            top,
                            code,
                            ends,
                            evaluated,
                            prevs,
                            literals,
                            ring,
                            values,
                            nodes,
                            stack,
                            unknown,
                            at,
                            before,
                        )
                    if takes:
                        serial = node_top + n_made
                        if serial - node_base == nodes.shape[0]:
                            return _NODES, Progress(
                                e, base, top, node_base, node_top, n_found, n_at
                            )
                        if n_made == made.shape[0]:
                            return _MADE, Progress(e, base, top, node_base, node_top, n_found, n_at)
                        write_node(nodes, serial, node, top, t, part, least, most, kleene, follows)
                        made[n_made, 0] = serial
                        made[n_made, 1] = node
                        n_made += 1
                    if source == -1:
                        break
                    previous = node
                    node = nodes[slot, NEXT]

        if n_made > 0:
            n_candidates = collect(made, n_made, start, shape, negates_start, memory, candidates)
            if n_candidates < 0:
                return _CANDIDATES, Progress(e, base, top, node_base, node_top, n_found, n_at)
            if n_candidates > 0:
                in_order(candidates, shape.greedy, n_candidates)
                kept = choose(candidates, n_candidates, choices)
                if kept < 0:
                    return _MANY, Progress(e, base, top, node_base, node_top, n_found, n_at)
                if (
                    n_found + starts[n_candidates] > found.rows.shape[0]
                    or n_at + kept > found.at.shape[0]
                    or (n_at + kept) * parts > found.counts.shape[0]
                ):
                    return _FOUND, Progress(e, base, top, node_base, node_top, n_found, n_at)
                end = n_found
                if context == CUMULATIVE and kept > 0:
                    end = together(candidates, kept, found, n_found, n_at)
                    found.at[n_at] = e
                    n_at += 1
                else:
                    for i in range(kept):
                        candidate = order[i]
                        for place in range(starts[candidate], starts[candidate + 1]):
                            found.rows[end] = candidates.flat[place]
                            end += 1
                        for part in range(parts):
                            found.counts[n_at * parts + part] = counts[candidate, part]
                        found.at[n_at] = e
                        n_at += 1
                for place in range(n_found, end):
                    slot = found.rows[place] & ring_slots
                    found.rows[place] = ring[slot, ROW]
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
    return _NOTHING, Progress(us.shape[0], base, top, node_base, node_top, n_found, n_at)


def run_runs(
    arrivals: EventArrays,
    loaded: tuple[Array, Array],
    shape: Shape,
    conditions: Conditions,
    choices: Choices,
    memory: Memory,
    state: tuple[int, int, int, int],
) -> tuple[Memory, tuple[int, int, int, int], Found, int]:
    """Take events in the order of their places; return the matches they complete.

    Parameters
    ----------
    arrivals : EventArrays
    loaded : (values, nulls)
        Per event, the values that conditions load, one column each, and bits for NULL.
    shape, conditions, choices, memory
    state : (base, top, node_base, node_top)
        Serial ranges of events and nodes: first, and one past the last.

    Returns
    -------
    memory, state
        Updated state.
    found : Found
    taken : int
        Number of events taken: all, or those before an event that completes too many matches.
    """
    parts, operations, events = len(shape.least), len(conditions.code), len(arrivals.us)
    made = np.empty((64, 2), np.int64)
    candidates = candidate_room(64, 256, parts)
    scratch = Scratch(
        np.empty(operations + 1),
        np.empty(operations + 1, np.bool_),
        np.empty(parts, np.int64),
        np.empty(parts, np.int64),
    )
    found = Found(
        np.empty(4 * events + 64, np.int64),
        np.empty(events * parts + 64, np.int64),
        np.empty(events + 64, np.int64),
    )
    now = Progress(0, *state, 0, 0)
    while True:
        lacks, now = _take(
            arrivals,
            *loaded,
            shape,
            conditions,
            choices,
            memory,
            made,
            candidates,
            scratch,
            found,
            now,
        )
        if lacks in (_NOTHING, _MANY):
            state = (now.base, now.top, now.node_base, now.node_top)
            whole = Found(
                found.rows[: now.found],
                found.counts[: now.matches * parts],
                found.at[: now.matches],
            )
            return memory, state, whole, now.event
        if lacks == _RING:
            ring = _larger(memory.ring, now.base, now.top)
            memory = memory._replace(ring=ring, values=_larger(memory.values, now.base, now.top))
        elif lacks == _NODES:
            memory = memory._replace(nodes=_larger(memory.nodes, now.node_base, now.node_top))
        elif lacks == _MADE:
            made = np.empty((2 * len(made), 2), np.int64)
        elif lacks == _CANDIDATES:
            room = 2 * len(candidates.usable), 2 * len(candidates.flat)
            candidates = candidate_room(*room, parts)
        else:  # enough for the candidates of one event
            more = len(candidates.flat)
            found = Found(
                *(
                    np.concatenate((array, np.empty(len(array) + room, np.int64)))
                    for array, room in zip(found, (more, more * parts, more), strict=True)
                )
            )


def _larger(ring: Array, base: int, top: int) -> Array:
    """Return a ring of twice the size with the entries of serials from `base` to before `top`."""
    larger = np.empty((2 * len(ring), ring.shape[1]), ring.dtype)
    serials = np.arange(base, top)
    larger[serials & (len(larger) - 1)] = ring[serials & (len(ring) - 1)]
    return larger
