"""Compiled selection among the candidate matches that one event completes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._contexts import CHRONICLE, CONTINUOUS, RECENT
from activedb.compiler import jit

__all__ = ["candidate_room", "choose", "in_order", "together"]

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
