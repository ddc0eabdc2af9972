"""Two match engines, stacks and runs: the kernels together with their state."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._arrays import BEFORE_ALL_US, CUMULATIVE, RECENT, Choices, EventArrays
from activedb.columns.detect._nodes import (
    EVENT_COLUMNS,
    NODE_COLUMNS,
    USED,
    Conditions,
    Memory,
    Shape,
    follows_of,
)
from activedb.columns.detect._plan import SequencePlan
from activedb.columns.detect._programs import CompiledConditions
from activedb.columns.detect._runs import run_runs
from activedb.columns.detect._stacks import run_stacks
from activedb.columns.events import EventColumns, Ints

__all__ = ["Engine", "EngineMatches", "RunEngine", "StackEngine", "engine_for"]

_RING_SIZE = 1024
_TEXTS_MIN = 1024


@dataclass(frozen=True, eq=False, slots=True)
class EngineMatches:
    """Matches of a batch.

    Attributes
    ----------
    rows : array of int64
        Constituents of all matches, concatenated.
    counts : array of int64 or None
        Number of constituents per match and part; None: one each.
    at : array of int64
        Index, among the given events, of the event that completed each match.
    is_whole : bool
        True if all events were taken; otherwise only those before an event with too many matches.
    """

    rows: Ints
    counts: Ints | None
    at: Ints
    is_whole: bool


class Engine(Protocol):
    """Event state and match finding behind a columnar detector."""

    @property
    def partials(self) -> int:
        """Number of events kept."""

    @property
    def oldest_row(self) -> int:
        """Row of the oldest event kept. REQUIRES: at least one is kept."""

    def kept_rows(self) -> Ints:
        """Return the rows of all events kept."""

    def prepare(self, columns: EventColumns, rows: Ints, masks: Ints) -> None:
        """Load further values of a batch's events; raise `BadEvent` if one is missing."""

    def run(
        self, us: Ints, rows: Ints, keys_of: Ints, masks: Ints, most: int, *, absorbs: bool = False
    ) -> EngineMatches:
        """Take events in the order of their places.

        Parameters
        ----------
        most : int
            Maximum number of matches one event may complete; -1: unbounded.
        absorbs : bool
            If true, consume nothing; the returned matches are meaningless.
        """

    def use_up(self, rows: Ints) -> None:
        """Mark these of the kept events, and no others, as consumed."""

    def copy(self) -> Engine:
        """Return an independent engine with the same state; O(size of the state)."""

    def forget(self, before_us: int) -> None:
        """Forget the events before a time."""

    def grow(self, keys: int) -> None:
        """Make room for this number of keys."""

    def living(self, keys: int, before_us: int) -> Ints:
        """Return the keys that have state at or after a time."""

    def keep(self, kept: Ints) -> None:
        """Forget all keys but those with these numbers, and renumber those from 0."""


def engine_for(plan: SequencePlan) -> Engine:
    """Return the engine that suits a plan."""
    return RunEngine(plan) if plan.keeps_runs else StackEngine(plan)


class _Ring:
    """State common to both engines: a ring of events, and numbers per key.

    Attributes
    ----------
    heads : int
        Number of leading columns per key that hold serials; the remaining ones hold times.
    """

    def __init__(self, plan: SequencePlan, columns: int, heads: int, widths: int):
        self._plan = plan
        self._ring: Ints = np.empty((_RING_SIZE, columns), np.int64)
        self._base = self._top = 0  # serials of the first event, and one past the last
        self._heads = heads
        self._keys = self._no_keys(0, heads + widths)

    @staticmethod
    def _no_keys(count: int, width: int) -> Ints:
        return np.full((count, width), BEFORE_ALL_US, np.int64)

    @property
    def partials(self) -> int:
        return self._top - self._base

    @property
    def oldest_row(self) -> int:
        return int(self._ring[self._base & (len(self._ring) - 1), 1])

    def kept_rows(self) -> Ints:
        rows: Ints = self._ring[np.arange(self._base, self._top) & (len(self._ring) - 1), 1]
        return rows

    def prepare(self, columns: EventColumns, rows: Ints, masks: Ints) -> None:
        """Load nothing: no other values are needed."""

    def use_up(self, rows: Ints) -> None:
        kept = np.arange(self._base, self._top) & (len(self._ring) - 1)
        self._ring[kept, USED] = np.isin(self._ring[kept, 1], rows)

    def copy(self) -> Self:
        made = copy(self)
        made._ring, made._keys = self._ring.copy(), self._keys.copy()
        return made

    def forget(self, before_us: int) -> None:
        last = len(self._ring) - 1
        while self._base < self._top and self._ring[self._base & last, 0] < before_us:
            self._base += 1

    def grow(self, keys: int) -> None:
        if keys > len(self._keys):
            more = self._no_keys(max(keys, 2 * len(self._keys)) - len(self._keys), self._width)
            self._keys = np.concatenate((self._keys, more))

    def living(self, keys: int, before_us: int) -> Ints:
        table = self._keys[:keys]
        alive = (table[:, self._heads :] >= before_us).any(axis=1)
        alive |= (table[:, : self._heads] >= self._head_base).any(axis=1)
        return np.flatnonzero(alive)

    def keep(self, kept: Ints) -> None:
        self._keys = self._keys[kept]

    @property
    def _width(self) -> int:
        return int(self._keys.shape[1])

    @property
    def _head_base(self) -> int:
        return self._base


class StackEngine(_Ring):
    """Engine with a stack of events per key and part.

    It supports neither Kleene parts nor conditions over several events.
    """

    def __init__(self, plan: SequencePlan):
        parts = len(plan.names)
        super().__init__(plan, 3 + 2 * (parts - 1), parts - 1, 3 * parts)

    def run(
        self, us: Ints, rows: Ints, keys_of: Ints, masks: Ints, most: int, *, absorbs: bool = False
    ) -> EngineMatches:
        plan = self._plan
        # An event that completes a match is not kept in a consuming context; recent consumes
        # nothing.
        context = RECENT if absorbs else plan.context
        self._ring, self._base, self._top, found, taken = run_stacks(
            EventArrays(us, rows, keys_of, masks),
            len(plan.names),
            _choices(plan, context, most),
            self._keys,
            self._ring,
            self._base,
            self._top,
        )
        counts = found.counts if context == CUMULATIVE else None
        return EngineMatches(found.rows, counts, found.at, taken == len(us))


def _choices(plan: SequencePlan, context: int, most: int) -> Choices:
    return Choices(plan.window_us, plan.gap_us, plan.is_next, plan.negates_start, context, most)


class RunEngine(_Ring):
    """Engine that keeps partial matches individually, as a tree of nodes."""

    def __init__(self, plan: SequencePlan):
        parts = len(plan.names)
        super().__init__(plan, EVENT_COLUMNS, parts, 2 * parts)
        self._programs = CompiledConditions(plan.programs, plan.names)
        self._values = np.empty((_RING_SIZE, len(self._programs.columns)))
        self._nodes: Ints = np.empty((_RING_SIZE, NODE_COLUMNS), np.int64)
        self._node_base = self._node_top = 0
        least = np.array(plan.least, np.int64)
        self._shape = Shape(
            least,
            np.array(plan.most, np.int64),
            np.array(plan.kleene, bool),
            np.array(plan.greedy, bool),
            *follows_of(least),
        )
        self._texts_max = _TEXTS_MIN
        self._loaded: tuple[npt.NDArray[np.float64], Ints] | None = None

    def prepare(self, columns: EventColumns, rows: Ints, masks: Ints) -> None:
        if self._programs.texts > self._texts_max:
            living = np.arange(self._base, self._top) & (len(self._ring) - 1)
            values = self._values[living]
            self._programs.keep_texts(values)
            self._values[living] = values
            self._texts_max = max(_TEXTS_MIN, 2 * self._programs.texts)
        values, nulls, kinds = self._programs.load(columns, rows, masks)
        if len(rows):
            us, window_us = columns.us[rows], self._plan.window_us
            before_us = -1 << 63 if window_us < 0 else int(us.min()) - window_us
            if self._programs.admit(kinds, int(us.max()), before_us):
                self.forget(before_us)
        self._loaded = values, nulls

    def run(
        self, us: Ints, rows: Ints, keys_of: Ints, masks: Ints, most: int, *, absorbs: bool = False
    ) -> EngineMatches:
        # Consumption has no influence on which partial matches are kept: `use_up` marks it later.
        assert self._loaded is not None, "run before prepare"
        plan, programs = self._plan, self._programs
        memory, state, found, taken = run_runs(
            EventArrays(us, rows, keys_of, masks),
            self._loaded,
            self._shape,
            Conditions(
                programs.code, programs.ends, programs.parts, programs.prevs, programs.literals
            ),
            _choices(plan, plan.context, most),
            Memory(self._keys, self._ring, self._values, self._nodes),
            (self._base, self._top, self._node_base, self._node_top),
        )
        _, self._ring, self._values, self._nodes = memory
        self._base, self._top, self._node_base, self._node_top = state
        self._loaded = None
        return EngineMatches(found.rows, found.counts, found.at, taken == len(us))

    def copy(self) -> Self:
        made = super().copy()
        made._values, made._nodes = self._values.copy(), self._nodes.copy()
        made._programs = self._programs.copy()
        return made

    @property
    def _head_base(self) -> int:
        return self._node_base

    def forget(self, before_us: int) -> None:
        super().forget(before_us)
        last = len(self._nodes) - 1
        while self._node_base < self._node_top and (
            self._nodes[self._node_base & last, 1] < before_us
        ):
            self._node_base += 1
