"""Interface of the launcher to the coupling modes, and the order of work that is due together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from activedb.firing._letters import Letter
from activedb.firing._restarts import Restarts
from activedb.firing._triggered import RecordedFiring, Triggered
from activedb.store.journals import Journal
from activedb.transactions import Forest, TransactionNode
from coupling import Coupling, priority_rank

__all__ = ["FiringQueue", "Turn", "Turns"]


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


class FiringQueue(Protocol):
    """Queue of the firings of rules in separate top-level transactions: the `Launcher`.

    Each coupling mode decides when a firing is due; the queue records it, starts it, and restarts
    or buries it.
    """

    journal: Journal
    restarts: Restarts
    forest: Forest

    def fire(
        self, t: TransactionNode, items: list[Triggered], event: int, undated: Container[int]
    ) -> None:
        """Start detached rules."""

    def prepare(
        self, t: TransactionNode, items: list[Triggered], undated: Container[int] = ()
    ) -> tuple[list[RecordedFiring], list[Letter]]:
        """Return firings to start when `t`, and all its superiors, have committed."""

    def record(self, t: TransactionNode, firings: list[RecordedFiring]) -> None:
        """Record firings in the commit of the top-level transaction `t`."""

    def ended(self, t: TransactionNode) -> None:
        """Note that the top-level transaction `t` has ended, and has started its firings."""

    def start(self, firings: list[RecordedFiring]) -> None:
        """Start the firings that run in this process; record those that are not recorded first."""

    def has_priorities(self, coupling: Coupling) -> bool:
        """Return whether any rule with this coupling mode has a priority."""

    def run_early(self, firing: RecordedFiring, cause: TransactionNode, fired: set[str]) -> bool:
        """Run a causally dependent rule beside its triggering transaction `cause`."""

    def expect(self, firing: RecordedFiring) -> None:
        """Announce an early firing, because it is recorded now."""

    def try_ended(self, firing: RecordedFiring, *, is_due: bool) -> None:
        """Start a firing that `expect` has announced, or take the announcement back."""

    def forget_done(self, names: Sequence[str]) -> None:
        """Delete the rows of done firings, except those that a recorded firing may look for."""

    def write_letter(self, letter: Letter) -> None:
        """Write a letter that belongs to no firing, now or later."""

    def look(self) -> None:
        """Look for recorded but unstarted firings of this process, soon and a few times."""

    def run_in_background(
        self, name: str, work: Callable[[], None], turn: Turn | None = None
    ) -> None:
        """Run internal work on a thread of the pool."""
