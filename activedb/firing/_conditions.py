"""Evaluation of conditions, before the action or beside it.

Beside the action (Saygin, Ulusoy, Chakravarthy, section 3.3.2, "sequential causally dependent")::

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
    """Return whether the condition is true; `s` and its inferiors only read meanwhile."""
    before, s.condition_of = s.condition_of, item.rule.name
    try:
        return item.rule.holds(s, item.occurrence)
    finally:
        s.condition_of = before


def holds_beside(s: Transaction, item: Triggered) -> bool:
    """Evaluate the condition and run the action in two children of `s`, in parallel.

    Returns whether the condition was true, and so the action has been done. If the condition was
    false, a failure of the action is ignored, because the action has left no effects. If the action
    was the victim of a deadlock with the condition, it runs again after the condition. Otherwise
    neither child is retried alone: a retryable error is raised and fails `s`.
    """
    return _Beside(s, item).run()


class _Beside:
    """One parallel run of condition and action."""

    def __init__(self, s: Transaction, item: Triggered):
        self._s = s
        self._item = item
        self._labels = [f"{s.next_label()}.{part}" for part in ("condition", "action")]
        self._condition: Transaction | None = None
        self._has_begun = threading.Event()
        self._is_false = False
        self._errors: list[BaseException | None] = [None, None]

    def run(self) -> bool:
        # The condition is queued first, so a thread runs it by the time the action begins.
        self._s.run_in_parallel([self._guarded(0, self._evaluate), self._guarded(1, self._act)])
        of_condition, of_action = self._errors
        for error in (of_condition, of_action):
            if error is not None and not isinstance(error, Exception):
                raise error
        if self._is_false and not self._s.is_rollback_only:
            return False
        if of_condition is not None:
            raise of_condition
        if isinstance(of_action, Deadlock) and not self._s.is_rollback_only:
            # The action began at its own risk and was the victim; now the condition holds.
            self._s.run_child(self._alone, label=self._labels[1])
        elif of_action is not None:
            raise of_action
        return True

    def _alone(self, a: Transaction) -> None:
        a.deferred = self._s.deferred  # its deferred rules wait where the rule's own do
        self._item.rule.act(a, self._item.occurrence)

    def _guarded(self, number: int, part: Callable[[], None]) -> Callable[[], None]:
        """Wrap `part` so that its error is kept, and raised only after the other part has ended."""

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
