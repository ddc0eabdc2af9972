"""The choice among the candidates that one event completes, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._contexts import CHRONICLE, CONTINUOUS, RECENT
from activedb.compiler import jit

__all__ = ["candidate_room", "choose", "in_order", "together"]

Array = npt.NDArray[Any]


def candidate_room(candidates: int, constituents: int, parts: int) -> tuple[Array, ...]:
    """Arrays for so many candidates with so many constituents together.

    Returns
    -------
    flat : array of int64
        The serials of the constituents of all candidates, one after the other.
    starts : array of int64
        Where those of each candidate begin; and where those of the last one end.
    counts : array of int64, candidates by parts
    usable : array of bool
        Whether no constituent is used up.
    order, other : arrays of int64
        The candidates in the order of preference, and room for sorting them.
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
    """Whether candidate `a` is preferred to `b`, strictly."""
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
    """Write the candidates to `order`, the most preferred first; O(n log n) comparisons."""
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
    """Whether the constituents from `a` on are later than those from `b` on, the last first."""
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
    """Leave in `order` the candidates that are made, in the order of making; return how many.

    With next, of those with the same first constituent the most preferred is one: they end with
    the same one. Then only those of which nothing is used up. Of these the context chooses.
    -1: there are more than `most` to choose from, unless that is -1.
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
    if kept > 0 and context == RECENT:  # without Kleene parts: all have the same length
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
    """Write one match with every constituent that a part has in any candidate, by place.

    Returns
    -------
    int
        Where it ends in `found`, which has room for the constituents of all candidates.
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
