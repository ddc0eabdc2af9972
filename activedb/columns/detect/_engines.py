"""The two ways to find matches: kernels, with the state that they go on from."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._columns import EventColumns, Ints
from activedb.columns.detect._contexts import CUMULATIVE, NEVER_US, RECENT
from activedb.columns.detect._nodes import EVENT_COLUMNS, NODE_COLUMNS, USED, follows_of
from activedb.columns.detect._plan import Plan
from activedb.columns.detect._programs import Programs
from activedb.columns.detect._runs import run_runs
from activedb.columns.detect._stacks import run_stacks

__all__ = ["Engine", "Found", "RunEngine", "StackEngine", "engine_for"]

_RING_SIZE = 1024
_TEXTS_MIN = 1024


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """The matches of a batch.

    Attributes
    ----------
    rows : array of int64
        The constituents of all matches, one after the other.
    counts : array of int64 or None
        How many each part of each match has; None: one each.
    at : array of int64
        Of each match the place, among the events given, of the one that completed it.
    is_whole : bool
        Whether all events were taken; else those before one that completes too many matches.
    """

    rows: Ints
    counts: Ints | None
    at: Ints
    is_whole: bool


class Engine(Protocol):
    """Keeps events and finds matches."""

    @property
    def partials(self) -> int:
        """How many events are kept."""

    @property
    def oldest_row(self) -> int:
        """The row of the oldest event that is kept. REQUIRES: there is one."""

    def kept_rows(self) -> Ints:
        """The rows of all events that are kept."""

    def prepare(self, columns: EventColumns, rows: Ints, masks: Ints) -> None:
        """Read what else is needed of a batch's events; raises `BadEvent` if it is not there."""

    def run(
        self, us: Ints, rows: Ints, keys_of: Ints, masks: Ints, most: int, *, absorbs: bool = False
    ) -> Found:
        """Take events in the order of their places.

        Parameters
        ----------
        most : int
            How many matches one event may complete; -1: any number.
        absorbs : bool
            Nothing is used up, and what is found means nothing.
        """

    def use_up(self, rows: Ints) -> None:
        """Take these of the kept events, and no others, for used up."""

    def copy(self) -> Engine:
        """Another one that goes on from the same state; O(what is kept)."""

    def forget(self, before_us: int) -> None:
        """Forget the events before a time."""

    def grow(self, keys: int) -> None:
        """Have room for so many keys."""

    def living(self, keys: int, before_us: int) -> Ints:
        """Which of the keys have something that is not before a time."""

    def keep(self, kept: Ints) -> None:
        """Forget all keys but those with these numbers, which become 0, 1, and so on."""


def engine_for(plan: Plan) -> Engine:
    """The one that does for a plan."""
    return RunEngine(plan) if plan.keeps_runs else StackEngine(plan)


class _Ring:
    """Events in a ring, and numbers per key: what both engines have.

    Attributes
    ----------
    heads : int
        How many of the columns of a key's numbers are serials; all others are times.
    """

    def __init__(self, plan: Plan, columns: int, heads: int, widths: int):
        self._plan = plan
        self._ring: Ints = np.empty((_RING_SIZE, columns), np.int64)
        self._base = self._top = 0  # serials of the first event and of that after the last one
        self._heads = heads
        self._keys = self._no_keys(0, heads + widths)

    @staticmethod
    def _no_keys(count: int, width: int) -> Ints:
        return np.full((count, width), NEVER_US, np.int64)

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
        """Need nothing else."""

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
    """A stack of events per key and part: no Kleene parts, no conditions over several events."""

    def __init__(self, plan: Plan):
        parts = len(plan.names)
        super().__init__(plan, 3 + 2 * (parts - 1), parts - 1, 3 * parts)

    def run(
        self, us: Ints, rows: Ints, keys_of: Ints, masks: Ints, most: int, *, absorbs: bool = False
    ) -> Found:
        plan = self._plan
        # What completes a match in a context that uses up is not kept; recent uses up nothing.
        context = RECENT if absorbs else plan.context
        self._ring, self._base, self._top, found, counts, at, taken = run_stacks(
            us,
            rows,
            keys_of,
            masks,
            len(plan.names),
            plan.window_us,
            plan.gap_us,
            plan.is_next,
            plan.negates_start,
            context,
            most,
            self._keys,
            self._ring,
            self._base,
            self._top,
        )
        return Found(found, counts if context == CUMULATIVE else None, at, taken == len(us))


class RunEngine(_Ring):
    """Partial matches, one by one, in a tree of nodes."""

    def __init__(self, plan: Plan):
        parts = len(plan.names)
        super().__init__(plan, EVENT_COLUMNS, parts, 2 * parts)
        self._programs = Programs(plan.programs, plan.names)
        self._values = np.empty((_RING_SIZE, len(self._programs.columns)))
        self._nodes: Ints = np.empty((_RING_SIZE, NODE_COLUMNS), np.int64)
        self._node_base = self._node_top = 0
        least = np.array(plan.least, np.int64)
        self._shape = (
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
        self._loaded = self._programs.load(columns, rows, masks)

    def run(
        self, us: Ints, rows: Ints, keys_of: Ints, masks: Ints, most: int, *, absorbs: bool = False
    ) -> Found:
        # What is used up has no influence on which partial matches are kept: `use_up` says it.
        assert self._loaded is not None, "run before prepare"
        plan, programs = self._plan, self._programs
        self._ring, self._values, self._nodes, state, found, counts, at, taken = run_runs(
            (us, rows, keys_of, masks, *self._loaded),
            self._shape,
            (programs.code, programs.ends, programs.parts, programs.prevs, programs.literals),
            (plan.window_us, plan.gap_us, plan.is_next, plan.negates_start, plan.context, most),
            self._keys,
            self._ring,
            self._values,
            self._nodes,
            (self._base, self._top, self._node_base, self._node_top),
        )
        self._base, self._top, self._node_base, self._node_top = state
        self._loaded = None
        return Found(found, counts, at, taken == len(us))

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
