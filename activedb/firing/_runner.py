"""Execution of triggered rules: as children of a transaction, or in a separate transaction."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from activedb.errors import (
    CycleLimitExceeded,
    Deadlock,
    DefinitionError,
    RuleFailed,
    StoreError,
    TransactionAborted,
)
from activedb.firing._letters import Letter
from activedb.firing._quarantine import Quarantine, failure_of
from activedb.firing._rule_listeners import Ran, RuleListeners
from activedb.firing._trigger_context import TriggerContexts
from activedb.firing._triggered import SYSTEMIC, Cause, RulePart, Triggered, is_systemic, too_deep
from activedb.metrics import NamedCounters
from activedb.rules import OccurrenceSet, OnAbort
from activedb.transactions import (
    TransactionNode,
    is_again,
    is_stack_deep,
    run_child,
    run_in_parallel,
    run_on_fresh_stack,
    try_child,
)
from coupling import ConditionAction, Coupling, OrderCycle, ordered_groups

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue

__all__ = ["Runner"]


@dataclass(frozen=True, slots=True)
class _RunningRule:
    """Rule that runs in a transaction.

    Attributes
    ----------
    item : Triggered
    depth : int
        Depth in the chain of rules that trigger rules.
    is_child : bool
        True if the transaction is a subtransaction.
    """

    item: Triggered
    depth: int
    is_child: bool


class Runner:
    """Executor of triggered rules.

    Parameters
    ----------
    contexts : TriggerContexts
        Takes the letters of rules that fail alone, and the rules that wait for later.
    counters : NamedCounters
        Has the counters ``rules_fired`` and ``rules_failed``.
    queue : FiringQueue
        Runs actions in separate top-level transactions.
    quarantine : Quarantine
        Counts the failures of rules that fail alone.
    cascade_max : int
        Upper bound on the depth of rules triggering rules.
    breadth_first : bool
        True if immediate rules that a rule triggers wait for the end of the level at which it runs.
    listeners : RuleListeners
        Hear when a rule starts and has run.
    """

    def __init__(
        self,
        contexts: TriggerContexts,
        counters: NamedCounters,
        queue: FiringQueue,
        quarantine: Quarantine,
        listeners: RuleListeners,
        *,
        cascade_max: int,
        breadth_first: bool,
    ):
        self._contexts = contexts
        self._counters = counters
        self._queue = queue
        self._quarantine = quarantine
        self._listeners = listeners
        self._cascade_max = cascade_max
        self._breadth_first = breadth_first

    def run_children(self, t: TransactionNode, items: list[Triggered], *, deferred: bool) -> None:
        """Run rules as children: group after group, the rules of one group in parallel.

        In breadth-first order, immediate rules triggered inside a child's rule wait instead. Each
        commit on the way passes them up to that child's parent, which runs level after level.
        """
        running = _running_in(t)
        depth = 0 if running is None else running.depth
        if self._breadth_first and not deferred and running is not None and running.is_child:
            context = self._contexts.of(t)
            with self._contexts.latch:
                context.next_level += items
            return
        while items:
            depth += 1
            if depth > self._cascade_max:
                raise too_deep(t, depth, items)
            self._run_level(t, items, depth, deferred=deferred)
            if not self._breadth_first:
                return
            items = self._contexts.take_level(t)
            deferred = False
            self._contexts.of(t).events += 1  # each level is a separate group

    def run_rule(self, s: TransactionNode, item: Triggered, depth: int = 1) -> bool:
        """Run a rule, or its action, in its own (sub)transaction `s`.

        Returns whether the action is still to come, as another child of the parent.
        """
        s.running = _RunningRule(item, depth, s.parent is not None)
        listeners = self._listeners
        began = time.perf_counter()
        rule = item.rule
        has_condition = rule.when is not None and item.part is RulePart.RULE
        mode = rule.condition_action if has_condition else ConditionAction.IMMEDIATE
        outcome: Ran = "acted"
        # One function, to save stack frames: rules that trigger rules nest on the stack.
        try:
            for hear in listeners.starts:
                hear(s, item)
            if mode is ConditionAction.SEQUENTIAL:
                if not holds_beside(s, item):
                    outcome = "condition false"
            elif has_condition and not holds(s, item):
                outcome = "condition false"
            elif mode is ConditionAction.DETACHED:
                outcome = "action later"
                self._fire_action(s, item.action)
            elif mode is ConditionAction.DEFERRED:
                outcome = "action later"
                if s.parent is None:
                    self._contexts.defer(s, [item.action])
            else:
                rule.act(s, item.occurrence)
        except BaseException as error:
            for hear in listeners.ran:
                hear(s, item, "failed", time.perf_counter() - began, error)
            raise
        if outcome == "acted":
            self._counters.add("rules_fired")
        seconds = time.perf_counter() - began
        for hear in listeners.ran:
            hear(s, item, outcome, seconds, None)
        is_due_in_parent = mode is ConditionAction.DEFERRED and s.parent is not None
        return is_due_in_parent and outcome == "action later"

    def cause(self, t: TransactionNode) -> Cause | None:
        """Return the rule in which an event of `t` is raised, with its own cause."""
        running = _running_in(t)
        return None if running is None else Cause(running.item.rule.name, running.item.by)

    # -- inside ----------------------------------------------------------------------------

    def _run_level(
        self, t: TransactionNode, items: list[Triggered], depth: int, *, deferred: bool
    ) -> None:
        if len(items) == 1 and not items[0].rule.set_oriented and not is_stack_deep():
            [item] = items  # the common case, on a short way
            label = f"{t.next_label()}.{item.rule.name}"
            self._run_child(t, item, depth, item.rule.priority, label=label, deferred=deferred)
            return
        sets = [] if deferred else [item for item in items if item.rule.set_oriented]
        if 0 < len(sets) < len(items):
            single = [item for item in items if not item.rule.set_oriented]
            self._run_level(t, single, depth, deferred=deferred)
            self._contexts.of(t).events += 1  # a separate group, whatever the priorities
            self._run_level(t, sets, depth, deferred=deferred)
            return
        try:
            groups = ordered_groups(
                items,
                name=lambda item: item.rule.name,
                priority=lambda item: item.rule.priority,
                after=lambda item: item.rule.after,
            )
        except OrderCycle as cycle:
            raise DefinitionError(
                f"rules that are triggered together in {t.path} wait for each other: {cycle}; "
                f"change after= of one of them"
            ) from cycle
        for group in groups:
            by_rule: dict[tuple[str, RulePart], list[Triggered]] = {}
            for item in group.items:
                by_rule.setdefault((item.rule.name, item.part), []).append(item)
            calls = [
                self._calls_of_rule(t, same_rule, depth, group.priority, deferred=deferred)
                for same_rule in by_rule.values()
            ]
            if len(calls) == 1:
                _call_here(t, calls[0])
            else:
                run_in_parallel(t, calls)

    def _calls_of_rule(
        self,
        t: TransactionNode,
        items: list[Triggered],
        depth: int,
        priority: int | None,
        *,
        deferred: bool,
    ) -> Callable[[], None]:
        """Return a call that runs one rule's occurrences in sequence, each in a separate child.

        The occurrences of a set-oriented rule fire its newest version once.
        """
        newest = items[-1]
        if newest.rule.set_oriented and newest.part is RulePart.RULE:
            occurrences = OccurrenceSet([item.occurrence for item in items])
            undated = tuple(o for item in items for o in item.undated)
            items = [Triggered(newest.rule, occurrences, newest.by, undated=undated)]
        labels = [f"{t.next_label()}.{item.rule.name}" for item in items]

        def call() -> None:
            for label, item in zip(labels, items, strict=True):
                self._run_child(t, item, depth, priority, label=label, deferred=deferred)

        return call

    def _run_child(
        self,
        t: TransactionNode,
        item: Triggered,
        depth: int,
        priority: int | None,
        *,
        label: str,
        deferred: bool,
    ) -> None:
        rule, context = item.rule, self._contexts.of(t)
        fails_alone = rule.on_abort is OnAbort.RULE
        try:
            if fails_alone:
                self._quarantine.check(rule.name, t)
            is_action_due = run_child(
                t,
                partial(self.run_rule, item=item, depth=depth),
                label=label,
                rule=rule.name,
                deferred=deferred,
                priority=priority,
                group=context.cycles.taken - 1 if deferred else context.events,
            )
        except Exception as error:
            is_own = not is_systemic(error, t) or _fails_after_another(error, t)
            if not is_own and isinstance(error, StoreError):
                raise error.during(f"in rule {rule.name}") from error.__cause__
            if not is_own or isinstance(error, CycleLimitExceeded):
                raise
            if _is_its_own(t, item):
                raise
            failed = failure_of(rule.name, error)
            if not fails_alone:
                t.mark_rollback_only(
                    failed
                )  # also if the code that triggered the rule swallows the error
                raise failed from error
            self._counters.add("rules_failed")
            with self._contexts.latch:
                context.outcomes.append((rule.name, error))
                context.letters.append(Letter.of_rule(f"{t.path}/{label}", item.occurrence, failed))
            return
        if fails_alone:
            with self._contexts.latch:
                context.outcomes.append((rule.name, None))
        if is_action_due:
            self._contexts.defer(t, [item.action])

    def _fire_action(self, s: TransactionNode, action: Triggered) -> None:
        """Have an action run in a separate top-level transaction.

        The action of a causal rule is recorded by the commit of `s`, which depends on the
        triggering transaction.
        """
        context = self._contexts.of(s)
        context.events += 1
        if action.rule.coupling is not Coupling.CAUSAL or s.parent is not None:
            self._queue.fire(s, [action], context.events, self._contexts.undated_in(s))
            return
        undated = self._contexts.undated_in(s)
        firings, letters = self._queue.prepare(s, [action], undated)
        self._counters.add("rules_failed", len(letters))
        with self._contexts.latch:
            context.firings += firings
            context.letters += letters


def _call_here(t: TransactionNode, call: Callable[[], None]) -> None:
    """Run rules in children of `t`, on this thread unless its stack is nearly used up."""
    if is_stack_deep():
        run_on_fresh_stack(t, call)
    else:
        call()


def _running_in(t: TransactionNode) -> _RunningRule | None:
    """Return the rule that runs in `t`, or in the nearest superior in which one runs."""
    running: _RunningRule | None = t.around if t.running is None else t.running
    return running


def _fails_after_another(error: Exception, t: TransactionNode) -> bool:
    """Return whether a rule fails by itself in `t`, which another rule's failure rolls back."""
    reason = t.rollback_reason
    return (
        isinstance(reason, RuleFailed)
        and not is_again(error, reason)
        and not isinstance(error, SYSTEMIC)
        and t.hierarchy.session.failure is None
    )


def _is_its_own(t: TransactionNode, item: Triggered) -> bool:
    """Return whether `item` is the deferred action of the rule that runs in top-level `t`."""
    own: _RunningRule | None = t.running
    return (
        item.part is RulePart.ACTION
        and t.parent is None
        and own is not None
        and own.item.occurrence is item.occurrence
    )


# -- evaluation of conditions, before the action or beside it --------------------------------------


def holds(s: TransactionNode, item: Triggered) -> bool:
    """Return whether the condition is true; `s` and its inferiors only read meanwhile."""
    before, s.condition_of = s.condition_of, item.rule.name
    try:
        return item.rule.holds(s, item.occurrence)
    finally:
        s.condition_of = before


def holds_beside(s: TransactionNode, item: Triggered) -> bool:
    """Evaluate the condition and run the action in two children of `s`, in parallel.

    Returns whether the condition was true, and so the action has been done. If the condition was
    false, a failure of the action is ignored, because the action has left no effects. If the action
    was the victim of a deadlock with the condition, it runs again after the condition. Otherwise
    neither child is retried alone: a retryable error is raised and fails `s`.
    """
    return _Beside(s, item).run()


class _Beside:
    """One parallel run of condition and action."""

    def __init__(self, s: TransactionNode, item: Triggered):
        self._s = s
        self._item = item
        self._labels = [f"{s.next_label()}.{part}" for part in ("condition", "action")]
        self._condition: TransactionNode | None = None
        self._has_begun = threading.Event()
        self._is_false = False
        self._errors: list[BaseException | None] = [None, None]

    def run(self) -> bool:
        # The condition is queued first, so a thread runs it by the time the action begins.
        run_in_parallel(self._s, [self._guarded(0, self._evaluate), self._guarded(1, self._act)])
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
            run_child(self._s, self._alone, label=self._labels[1])
        elif of_action is not None:
            raise of_action
        return True

    def _alone(self, a: TransactionNode) -> None:
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
        def evaluate(c: TransactionNode) -> None:
            self._condition = c
            self._has_begun.set()
            if not holds(c, self._item):
                self._is_false = True
                c.abort(f"the condition of rule {self._item.rule.name} is false")

        try:
            try_child(self._s, evaluate, label=self._labels[0])
        except TransactionAborted:
            if not self._is_false:
                raise
        finally:
            self._has_begun.set()

    def _act(self) -> None:
        def act(a: TransactionNode) -> None:
            self._has_begun.wait()
            if self._condition is not None:
                a.forest.dependencies.depend(a, self._condition)
            self._alone(a)

        try_child(self._s, act, label=self._labels[1])
