"""Conditions: evaluated before the action, or beside it.

Beside it (Saygin, Ulusoy, Chakravarthy, section 3.3.2, "sequential causally dependent")::

    s, the rule's ─┬─ c: condition ── true ──► commits
                   │                  false ─► aborts ──┐ AD
                   └─ a: action ───────────── awaits the end of c, and commits or aborts with it
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from activedb.errors import Deadlock, TransactionAborted
from activedb.firing._triggered import Triggered
from activedb.transactions import Transaction

__all__ = ["holds", "holds_beside"]


def holds(s: Transaction, item: Triggered) -> bool:
    """Whether the condition is true; while it is evaluated `s` and its inferiors only read."""
    before, s.condition_of = s.condition_of, item.rule.name
    try:
        return item.rule.holds(s, item.occurrence)
    finally:
        s.condition_of = before


def holds_beside(s: Transaction, item: Triggered) -> bool:
    """Evaluate the condition and run the action in two children of `s`, in parallel.

    Returns whether the condition was true, and so the action has been done. An action that has
    failed while the condition was false has left nothing, and nobody is told. An action that has
    given way to the condition runs again after it. Otherwise neither child is tried again alone:
    what is worth another try is raised, and fails `s`.
    """
    return _Beside(s, item).run()


class _Beside:
    """One run of condition and action beside each other."""

    def __init__(self, s: Transaction, item: Triggered):
        self._s = s
        self._item = item
        self._labels = [f"{s.next_label()}.{part}" for part in ("condition", "action")]
        self._condition: Transaction | None = None
        self._has_begun = threading.Event()
        self._is_false = False
        self._errors: list[BaseException | None] = [None, None]

    def run(self) -> bool:
        # The condition comes first, so that a thread has taken it when one takes the action.
        self._s.run_in_parallel([self._guarded(0, self._evaluate), self._guarded(1, self._act)])
        of_condition, of_action = self._errors
        for error in (of_condition, of_action):
            if error is not None and not isinstance(error, Exception):
                raise error
        if self._is_false and not self._s.is_doomed:
            return False
        if of_condition is not None:
            raise of_condition
        if isinstance(of_action, Deadlock) and not self._s.is_doomed:
            # It began at its own risk and gave way to the condition, which is known to hold now.
            self._s.run_child(self._alone, label=self._labels[1])
        elif of_action is not None:
            raise of_action
        return True

    def _alone(self, a: Transaction) -> None:
        a.deferred = self._s.deferred  # what it defers waits where what the rule defers does
        self._item.rule.act(a, self._item.occurrence)

    def _guarded(self, number: int, part: Callable[[], None]) -> Callable[[], None]:
        """`part`, so that the other one is always awaited: what it raises is told afterwards."""

        def call() -> None:
            try:
                part()
            except BaseException as error:
                self._errors[number] = error

        return call

    def _evaluate(self) -> None:
        def evaluate(c: Transaction) -> None:
            self._condition = c
            self._has_begun.set()
            if not holds(c, self._item):
                self._is_false = True
                c.abort(f"the condition of rule {self._item.rule.name} is false")

        try:
            self._s.try_child(evaluate, label=self._labels[0])
        except TransactionAborted:
            if not self._is_false:
                raise
        finally:
            self._has_begun.set()

    def _act(self) -> None:
        def act(a: Transaction) -> None:
            self._has_begun.wait()
            if self._condition is not None:
                a.forest.dependencies.depend(a, self._condition)
            self._alone(a)

        self._s.try_child(act, label=self._labels[1])
