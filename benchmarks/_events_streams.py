"""Stream of the events benchmark, in columns and one by one, and the patterns over it.

Four types of events, equally frequent, of many workers, each with an event every ten seconds: six
events of one worker within a window of a minute. The speed of a detector does not depend on the
number of workers, except through the processor's caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow

from activedb.events import Occurrence, Sequence, event, many, seq

__all__ = ["CONTEXTS", "WINDOW_S", "Events", "kleene", "seq3"]

pa: Any = pyarrow  # it has no types

TYPES: Final = ("EXIT", "ENTER", "TOUCH", "SANITIZE")
WINDOW_S: Final = 60
CONTEXTS: Final = ("unrestricted", "recent", "chronicle", "continuous", "cumulative")
_INTERVAL_US: Final = 10_000_000  # between two events of a worker, on average
_SEED: Final = 6


def seq3() -> Sequence:
    """Return three steps of one worker, with a negation between the first two."""
    parts = (event("EXIT"), ~event("SANITIZE"), event("ENTER"), event("TOUCH"))
    return seq(*parts).same("worker").within(WINDOW_S)


def kleene() -> Sequence:
    """Return a Kleene step of ENTER between two other steps of one worker, selecting next."""
    parts = (event("EXIT"), many(event("ENTER")), event("TOUCH"))
    return seq(*parts).same("worker").within(WINDOW_S).selecting("next")


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of `count` events of `workers` workers, the same one every time."""

    count: int
    workers: int

    def tables(self, batch: int, *, drifting: bool = False) -> Iterator[Any]:
        """Yield the events in batches, as a stream delivers them.

        Parameters
        ----------
        drifting : bool
            Whether workers leave and others come, so that in the end there were many more.
        """
        chance = np.random.default_rng(_SEED)
        names = pa.array(TYPES)
        us = 0
        for first in range(0, self.count, batch):
            size = min(batch, self.count - first)
            times = us + np.cumsum(chance.integers(1, 2 * _INTERVAL_US // self.workers, size))
            us = int(times[-1])
            workers = chance.integers(0, self.workers, size)
            if drifting:
                workers += np.arange(first, first + size) // 20
            types = pa.DictionaryArray.from_arrays(
                chance.integers(0, len(TYPES), size).astype(np.int32), names
            )
            yield pa.table(
                {
                    "event_type": types.cast(pa.string()),
                    "event_time_us": times,
                    "event_id": pa.nulls(size, pa.string()),
                    "p_worker": workers,
                    "raw": pa.nulls(size, pa.string()),
                }
            )

    def occurrences(self) -> list[Occurrence]:
        """Return the events one by one."""
        found: list[Occurrence] = []
        for table in self.tables(self.count):
            columns: list[list[Any]] = [
                table.column(name).to_pylist()
                for name in ("event_type", "event_time_us", "p_worker")
            ]
            for type_, us, worker in zip(*columns, strict=True):
                found.append(Occurrence(type_, us / 1e6, {"worker": worker}))
        return found
