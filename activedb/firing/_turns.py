"""Turns: in which order what is due at one moment runs, if priorities differ."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from coupling import priority_rank

__all__ = ["Turn", "Turns"]


class Turn(NamedTuple):
    """The place of one piece of work among those that are due together.

    Attributes
    ----------
    line : str
        What they have in common: an event, a commit, a moment.
    priority : int or None
        Higher first; None is the lowest.
    """

    line: str
    priority: int | None

    @property
    def rank(self) -> tuple[bool, int]:
        """The lower, the earlier its turn."""
        return priority_rank(self.priority)


@dataclass(slots=True)
class _Line:
    """Work of one line that has not ended, and the calls of that whose turn has not come."""

    ranks: dict[str, tuple[bool, int]] = field(default_factory=dict)
    waiting: dict[str, Callable[[], None]] = field(default_factory=dict)


class Turns:
    """Has work of one line begin when all that has a higher priority has ended.

    Equal ones begin together. Who enters a line finds the higher ones there already: whatever is
    due together enters it in the order of priorities.

    Latch: ``_latch``; nothing is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._turns: dict[str, Turn] = {}

    def enter(self, name: str, turn: Turn) -> None:
        """Have a piece of work be in a line, until it has ended; not twice. O(1)."""
        with self._latch:
            if name not in self._turns:
                self._turns[name] = turn
                self._lines.setdefault(turn.line, _Line()).ranks[name] = turn.rank

    def is_up(self, name: str, begin: Callable[[], None]) -> bool:
        """Return whether a piece of work may begin; if not, call it when its turn has come.

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
        """Take a piece of work that has ended out of its line; the calls of those whose turn it is.

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
