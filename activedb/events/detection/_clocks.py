"""Clock events, which a detector generates itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from activedb.events._occurrence import Occurrence
from activedb.events.detection._entry import timestamp_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from activedb.events._primitives import Primitive
    from activedb.events.detection._journal import Journal
    from activedb.events.detection._node import Node
    from activedb.events.detection._timers import Timers

__all__ = ["Clocks"]


class Clocks:
    """Clock events of a detector, by number; their timers use the same numbers."""

    def __init__(self, nodes: Iterable[Node]):
        self._primitives: dict[int, Primitive] = {}
        for node in nodes:
            self._primitives.update(node.clocks)

    def __bool__(self) -> bool:
        return bool(self._primitives)

    def start(self, us: int, timers: Timers, journal: Journal) -> None:
        """Set the timers of the first moments after `us`."""
        for index in self._primitives:
            self._set(index, us, timers, journal)

    def tick(self, index: int, us: int, timers: Timers, journal: Journal) -> Occurrence | None:
        """Return the clock event with this number and set its next timer; None: no clock event."""
        primitive = self._primitives.get(index)
        if primitive is None:
            return None
        self._set(index, us, timers, journal)
        return Occurrence(primitive.key[1], timestamp_at(us, None), kind="clock")

    def _set(self, index: int, after_us: int, timers: Timers, journal: Journal) -> None:
        schedule = self._primitives[index].schedule
        us = None if schedule is None else schedule.next_us(after_us)
        if us is not None:
            timers.set((us, index, None), journal)
