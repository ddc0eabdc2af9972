"""Interface of the launcher to the coupling modes."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Protocol

from activedb.firing._letters import Letter
from activedb.firing._restarts import Restarts
from activedb.firing._triggered import Firing, Triggered
from activedb.firing._turns import Turn
from activedb.store.journals import Journal
from activedb.transactions import Forest, Node
from coupling import Coupling

__all__ = ["FiringQueue"]


class FiringQueue(Protocol):
    """Queue of the firings of rules in separate top-level transactions: the `Launcher`.

    Each coupling mode decides when a firing is due; the queue records it, starts it, and restarts
    or buries it.
    """

    journal: Journal
    restarts: Restarts
    forest: Forest

    def fire(self, t: Node, items: list[Triggered], event: int, undated: Container[int]) -> None:
        """Start detached rules."""

    def prepare(
        self, t: Node, items: list[Triggered], event: int, undated: Container[int] = ()
    ) -> tuple[list[Firing], list[Letter]]:
        """Return firings to start when `t`, and all its superiors, have committed."""

    def record(self, t: Node, firings: list[Firing]) -> None:
        """Record firings in the commit of the top-level transaction `t`."""

    def ended(self, t: Node) -> None:
        """Note that the top-level transaction `t` has ended, and has started its firings."""

    def start(self, firings: list[Firing]) -> None:
        """Start the recorded firings that run in this process."""

    def start_late(self, firings: list[Firing]) -> None:
        """Record firings as soon as that is possible, and then start them."""

    def has_priorities(self, coupling: Coupling) -> bool:
        """Return whether any rule with this coupling mode has a priority."""

    def run_early(self, firing: Firing, cause: Node) -> bool:
        """Run a causally dependent rule beside its triggering transaction `cause`."""

    def expect(self, firing: Firing) -> None:
        """Announce an early firing, because it is recorded now."""

    def start_expected(self, firing: Firing) -> None:
        """Start a recorded firing that `expect` has announced."""

    def expect_no_more(self, firing: Firing) -> None:
        """Take back `expect`."""

    def drop(self, firing: Firing) -> None:
        """Note that an early firing has aborted, and is not tried again."""

    def give_up(self, firing: Firing, error: BaseException) -> bool:
        """Write a dead letter for a rule that raised; return False if that has to wait."""

    def look(self) -> None:
        """Look for recorded but unstarted firings of this process, soon and a few times."""

    def run_in_background(
        self, name: str, work: Callable[[], None], turn: Turn | None = None
    ) -> None:
        """Run internal work on a thread of the pool."""
