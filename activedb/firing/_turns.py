"""Turns: the order by priority of work that is due together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from coupling import priority_rank

__all__ = ["Turn", "Turns"]


class Turn(NamedTuple):
    """Place of one piece of work among those that are due together.

    Attributes
    ----------
    line : str
        Their common cause: an event, a commit or a moment.
    priority : int or None
        Higher first; None is the lowest.
    """

    line: str
    priority: int | None

    @property
    def rank(self) -> tuple[bool, int]:
        """Sort key; a lower rank has an earlier turn."""
        return priority_rank(self.priority)


@dataclass(slots=True)
class _Line:
    """Unfinished work of one line by rank, and the calls of the work that waits for its turn."""

    ranks: dict[str, tuple[bool, int]] = field(default_factory=dict)
    waiting: dict[str, Callable[[], None]] = field(default_factory=dict)


class Turns:
    """Lines of work, in which work begins once all work of a higher priority has ended.

    Work of equal priority begins together. Work that is due together must enter its line in the
    order of priorities, so that each entry finds the higher priorities already in the line.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._turns: dict[str, Turn] = {}

    def enter(self, name: str, turn: Turn) -> None:
        """Put a piece of work into its line until it ends, unless it is there already. O(1)."""
        with self._latch:
            if name not in self._turns:
                self._turns[name] = turn
                self._lines.setdefault(turn.line, _Line()).ranks[name] = turn.rank

    def is_up(self, name: str, begin: Callable[[], None]) -> bool:
        """Return whether a piece of work may begin; if not, keep `begin` for its turn.

        O(length of the line).
        """
        with self._latch:
            turn = self._turns.get(name)
            if turn is None:
                return True
            line = self._lines[turn.line]
            if turn.rank == min(line.ranks.values()):
                return True
            line.waiting[name] = begin
            return False

    def end(self, name: str) -> list[Callable[[], None]]:
        """Remove ended work from its line; return the calls of the work whose turn has come.

        O(length of the line).
        """
        with self._latch:
            turn = self._turns.pop(name, None)
            if turn is None:
                return []
            line = self._lines[turn.line]
            del line.ranks[name]
            line.waiting.pop(name, None)
            if not line.ranks:
                del self._lines[turn.line]
                return []
            first = min(line.ranks.values())
            due = [each for each in line.waiting if line.ranks[each] == first]
            return [line.waiting.pop(each) for each in due]

    def waiting(self) -> list[str]:
        """Return the names of the work that waits for its turn."""
        with self._latch:
            return [name for line in self._lines.values() for name in line.waiting]
