"""Data that both kernels share: contexts as numbers, and tuples of arrays.

numba passes a tuple as its members. It pays to pass it once per batch or per event; a function that
runs once per partial match takes the arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from activedb.events import Context

__all__ = [
    "BEFORE_ALL_US",
    "CHRONICLE",
    "CONTEXTS",
    "CONTINUOUS",
    "CUMULATIVE",
    "RECENT",
    "UNRESTRICTED",
    "Array",
    "Choices",
    "EventArrays",
    "Found",
]

CONTEXTS = (
    Context.UNRESTRICTED,
    Context.RECENT,
    Context.CHRONICLE,
    Context.CONTINUOUS,
    Context.CUMULATIVE,
)
UNRESTRICTED, RECENT, CHRONICLE, CONTINUOUS, CUMULATIVE = range(5)

BEFORE_ALL_US = -(2**63)
"""Sentinel that sorts before every time."""

Array = npt.NDArray[Any]


class EventArrays(NamedTuple):
    """Events of a batch in order: one element of each array per event.

    Attributes
    ----------
    us, rows, keys : arrays of int64
        Time, row, and number of the equivalence key.
    masks : array of int64
        The parts that take the event (bit i: positive part i, bit 32 + i: a negation right before
        it).
    """

    us: Array
    rows: Array
    keys: Array
    masks: Array


class Choices(NamedTuple):
    """Selection of the matches to make.

    Attributes
    ----------
    window_us, gap_us : int
        In microseconds; -1: none.
    is_next, negates_start : bool
        Selection next; a negation before the first part.
    context : int
        Index in `CONTEXTS`.
    matches_max : int
        Maximum number of matches that one event may complete; -1: unbounded.
    """

    window_us: int
    gap_us: int
    is_next: bool
    negates_start: bool
    context: int
    matches_max: int


class Found(NamedTuple):
    """Matches found so far.

    Attributes
    ----------
    rows : array of int64
        Rows of the constituents of all matches, concatenated.
    counts : array of int64
        Number of constituents per match and part.
    at : array of int64
        Index of the event that completed each match.
    """

    rows: Array
    counts: Array
    at: Array
