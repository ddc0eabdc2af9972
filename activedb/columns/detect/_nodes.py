"""Compiled nodes of partial matches: their possible successors, and whether they are complete."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from activedb.columns.detect._arrays import BEFORE_ALL_US, Array
from activedb.compiler import jit

__all__ = [
    "AT_US",
    "COUNT",
    "EVENT",
    "EVENT_COLUMNS",
    "FIRST_US",
    "LOW",
    "NEXT",
    "NODE_COLUMNS",
    "NULLS",
    "OPEN",
    "PART",
    "ROW",
    "US",
    "USED",
    "Candidates",
    "Conditions",
    "Memory",
    "Scratch",
    "Shape",
    "collect",
    "conditions_hold",
    "floor_of",
    "follows_of",
    "write_node",
]


# -- tuples of arrays, passed once per batch or per event ------------------------------------------


class Shape(NamedTuple):
    """Parts of a sequence: one element of each array per part.

    Attributes
    ----------
    least, most : arrays of int64
        Number of events; `most` -1: unbounded.
    kleene, greedy : arrays of bool
    follows, ends : arrays of int64 and bool
        Results of `follows_of`.
    """

    least: Array
    most: Array
    kleene: Array
    greedy: Array
    follows: Array
    ends: Array


class Conditions(NamedTuple):
    """Concatenated programs of a stack machine.

    Attributes
    ----------
    code : array of int64, operations by 4
    ends, parts, prevs : arrays
        Per program: its end in `code`, the part at which it is evaluated, and whether it reads the
        previous element.
    literals : array of float64
    """

    code: Array
    ends: Array
    parts: Array
    prevs: Array
    literals: Array


class Memory(NamedTuple):
    """State of the partial matches of all keys.

    Attributes
    ----------
    keys : array of int64, keys by 3 parts
        Per key: for each part the head of its node list; and for the negations before each part,
        the time of the latest event and of the latest event before that time.
    ring, values : arrays, a power of two by `EVENT_COLUMNS` and by columns
        Events, and the values of theirs that conditions load, at their serials modulo the length.
    nodes : array of int64, a power of two by `NODE_COLUMNS`
    """

    keys: Array
    ring: Array
    values: Array
    nodes: Array


class Candidates(NamedTuple):
    """Matches that one event could complete.

    Attributes
    ----------
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

    flat: Array
    starts: Array
    counts: Array
    usable: Array
    order: Array
    other: Array


class Scratch(NamedTuple):
    """Scratch space for conditions: stack, its NULLs; events per part, and the ones before them."""

    stack: Array
    unknown: Array
    at: Array
    before: Array


# -- compiled stack machine that evaluates conditions over the events of a partial match -----------

# Operations of a program (`activedb.columns.detect._programs`); operands are on the stack.
_CONST, _NULL, _LOAD, _EQ, _NE, _LT, _LE, _GT, _GE, _ADD, _SUB, _MUL, _NEG = range(13)
_AND, _OR, _NOT, _IS_NULL = range(13, 17)

_NULLS = 3  # the NULL-bits column of an event in the ring


@jit
def is_true(
    program: Array,
    literals: Array,
    at: Array,
    before: Array,
    ring: Array,
    values: Array,
    stack: Array,
    unknown: Array,
) -> bool:
    """Return whether a condition is true, as opposed to false or unknown.

    Parameters
    ----------
    program : array of int64, operations by 4
        Each with a constant or column, a part, and a flag for the previous element.
    literals : array of float64
    at, before : arrays of int64
        Serials of each part's last event and of the event before that; -1: none.
    ring, values : arrays
        NULL bits and values of the events, by serial.
    stack, unknown : arrays of float64 and bool
        Scratch space for as many values as there are operations.
    """
    mask = ring.shape[0] - 1
    top = 0
    for i in range(program.shape[0]):
        operation = program[i, 0]
        if operation == _CONST:
            stack[top] = literals[program[i, 1]]
            unknown[top] = False
            top += 1
        elif operation == _NULL:
            unknown[top] = True
            top += 1
        elif operation == _LOAD:
            event = before[program[i, 2]] if program[i, 3] else at[program[i, 2]]
            unknown[top] = event < 0 or (ring[event & mask, _NULLS] >> program[i, 1]) & 1
            if not unknown[top]:
                stack[top] = values[event & mask, program[i, 1]]
            top += 1
        elif operation == _IS_NULL:
            stack[top - 1] = 1.0 if unknown[top - 1] else 0.0
            unknown[top - 1] = False
        elif operation == _NOT:
            stack[top - 1] = 1.0 - stack[top - 1]
        elif operation == _NEG:
            stack[top - 1] = -stack[top - 1]
        else:
            top -= 1
            a, b = stack[top - 1], stack[top]
            nothing = unknown[top - 1] or unknown[top]
            value = 0.0
            if operation in (_AND, _OR):
                decisive = 0.0 if operation == _AND else 1.0
                decided = (not unknown[top - 1] and a == decisive) or (
                    not unknown[top] and b == decisive
                )
                nothing = nothing and not decided
                value = decisive if decided else 1.0 - decisive
            elif operation == _ADD:
                value = a + b
            elif operation == _SUB:
                value = a - b
            elif operation == _MUL:
                value = a * b
            else:
                holds = (
                    (operation == _EQ and a == b)
                    or (operation == _NE and a != b)
                    or (operation == _LT and a < b)
                    or (operation == _LE and a <= b)
                    or (operation == _GT and a > b)
                    or (operation == _GE and a >= b)
                )
                value = 1.0 if holds else 0.0
            stack[top - 1] = value
            unknown[top - 1] = nothing
    return bool(not unknown[0] and stack[0] == 1.0)


# Columns of an event in the ring. The last is the time of the latest earlier event that a negated
# part at the start has taken.
US, ROW, USED, NULLS, LOW = range(5)
EVENT_COLUMNS = 5
# Columns of a node: its event's serial and time; the node of the previous constituent, and the node
# that ended the previous part; its part and its position in the part; the serial and time of the
# first constituent; the parts that may come next; the next node on the part's list.
EVENT, AT_US, PARENT, BEFORE, PART, COUNT, FIRST, FIRST_US, OPEN, NEXT = range(10)
NODE_COLUMNS = 10


def follows_of(least: Array) -> tuple[Array, Array]:
    """Return per part the parts that may follow, as bits, and whether nothing needs to follow."""
    parts = len(least)
    follows, ends = np.zeros(parts, np.int64), np.zeros(parts, np.bool_)
    for part in range(parts):
        later = part + 1
        while later < parts:
            follows[part] |= 1 << later
            if least[later] > 0:
                break
            later += 1
        ends[part] = later == parts
    return follows, ends


@jit
def floor_of(
    keys: Array, key: int, source: int, part: int, us: int, parts: int, gap_us: int
) -> int:
    """Return the time before which no event of `source` can lead to one of `part` at `us`."""
    floor = BEFORE_ALL_US
    for between in range(source + 1, part + 1):
        place = parts + 2 * between
        barred = keys[key, place]
        if barred == us:  # an event at the same time is not before it
            barred = keys[key, place + 1]
        floor = max(floor, barred)
    if gap_us >= 0:
        floor = max(floor, us - gap_us)
    return int(floor)


@jit
def conditions_hold(
    part: int,
    node: int,
    event: int,
    code: Array,
    ends: Array,
    parts: Array,
    prevs: Array,
    literals: Array,
    ring: Array,
    values: Array,
    nodes: Array,
    stack: Array,
    unknown: Array,
    at: Array,
    before: Array,
) -> bool:
    """Return whether the conditions evaluated at `part` hold if `event` follows `node`.

    It takes the arrays of `Conditions`, `Memory` and `Scratch`, as it runs once per node: to pass
    the tuples costs an eighth.
    """
    slots = nodes.shape[0] - 1
    at[:] = -1
    before[:] = -1
    while node >= 0:
        slot = node & slots
        of = nodes[slot, PART]
        at[of] = nodes[slot, EVENT]
        if nodes[slot, COUNT] > 1:
            before[of] = nodes[nodes[slot, PARENT] & slots, EVENT]
        node = nodes[slot, BEFORE]
    before[part] = at[part]
    at[part] = event
    begin = 0
    for i in range(ends.shape[0]):
        # A condition on the previous element is evaluated from the second element on.
        if parts[i] == part and not (prevs[i] and before[part] < 0):
            program = code[begin : ends[i]]
            if not is_true(program, literals, at, before, ring, values, stack, unknown):
                return False
        begin = ends[i]
    return True


@jit
def write_node(
    nodes: Array,
    serial: int,
    node: int,
    event: int,
    us: int,
    part: int,
    least: Array,
    most: Array,
    kleene: Array,
    follows: Array,
) -> None:
    """Write the node of `event` as one of `part` after `node`; `node` is -1 at the beginning.

    It takes the arrays of a `Shape`, as it runs once per node: to pass the tuple costs a third.
    """
    slots = nodes.shape[0] - 1
    slot, new = node & slots, serial & slots
    extends = node >= 0 and nodes[slot, PART] == part
    count = nodes[slot, COUNT] + 1 if extends else 1
    nodes[new, EVENT] = event
    nodes[new, AT_US] = us
    nodes[new, PARENT] = node
    nodes[new, BEFORE] = nodes[slot, BEFORE] if extends else node
    nodes[new, PART] = part
    nodes[new, COUNT] = count
    nodes[new, FIRST] = event if node < 0 else nodes[slot, FIRST]
    nodes[new, FIRST_US] = us if node < 0 else nodes[slot, FIRST_US]
    opened = follows[part] if count >= least[part] else 0
    if kleene[part] and (most[part] < 0 or count < most[part]):
        opened |= 1 << part
    nodes[new, OPEN] = opened


@jit
def collect(
    made: Array,
    n_made: int,
    start: int,
    shape: Shape,
    negates_start: bool,
    memory: Memory,
    candidates: Candidates,
) -> int:
    """Write the complete candidates among the new nodes; return their number; -1: out of room."""
    ring, nodes = memory.ring, memory.nodes
    flat, starts, counts = candidates.flat, candidates.starts, candidates.counts
    usable = candidates.usable
    ring_slots, slots = ring.shape[0] - 1, nodes.shape[0] - 1
    n = 0
    for i in range(n_made):
        slot = made[i, 0] & slots
        part = nodes[slot, PART]
        if not shape.ends[part] or nodes[slot, COUNT] < shape.least[part]:
            continue
        if negates_start and ring[nodes[slot, FIRST] & ring_slots, LOW] >= start:
            continue
        if n == usable.shape[0]:
            return -1
        counts[n] = 0
        usable[n] = True
        length = 0
        node = made[i, 0]
        while node >= 0:
            slot = node & slots
            counts[n, nodes[slot, PART]] += 1
            if ring[nodes[slot, EVENT] & ring_slots, USED] != 0:
                usable[n] = False
            length += 1
            node = nodes[slot, PARENT]
        end = starts[n] + length
        if end > flat.shape[0]:
            return -1
        node = made[i, 0]
        for place in range(end - 1, starts[n] - 1, -1):
            flat[place] = nodes[node & slots, EVENT]
            node = nodes[node & slots, PARENT]
        n += 1
        starts[n] = end
    return n
