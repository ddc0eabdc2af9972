"""Running triggered rules: as children of a transaction, and in a transaction of their own."""

from __future__ import annotations

import time
from collections.abc import Callable

from activedb.engine._letters import Letter
from activedb.engine._trails import Trails
from activedb.engine._triggered import Triggered, is_systemic
from activedb.errors import CycleLimitExceeded, RuleFailed
from activedb.metrics import Counters, Histogram
from activedb.rules import OccurrenceSet, OnAbort
from activedb.transactions import Transaction
from coupling import priority_groups

__all__ = ["Runner"]


class Runner:
    """Runs rules that were triggered, when it is time for them.

    Parameters
    ----------
    trails : Trails
        Where letters of rules that fail alone go.
    counters : Counters
        Counts ``rules_fired`` and ``rules_failed``.
    cascade_max : int
        Bound on rules triggering rules.

    Attributes
    ----------
    latencies : Histogram
        From a rule's start to the end of its action, in seconds.
    """

    def __init__(self, trails: Trails, counters: Counters, *, cascade_max: int):
        self.latencies = Histogram()
        self._trails = trails
        self._counters = counters
        self._cascade_max = cascade_max

    def run_children(self, t: Transaction, items: list[Triggered], *, deferred: bool) -> None:
        """Run rules as children: group after group, the rules of one group in parallel."""
        self._check_cascade(t, items)
        for group in priority_groups(items, lambda item: item.rule.priority):
            by_rule: dict[str, list[Triggered]] = {}
            for item in group:
                by_rule.setdefault(item.rule.name, []).append(item)
            calls = [
                self._calls_of_rule(t, same_rule, deferred=deferred)
                for same_rule in by_rule.values()
            ]
            if len(calls) == 1:
                calls[0]()
            else:
                t.run_in_parallel(calls)

    def run_rule(self, s: Transaction, item: Triggered) -> None:
        """Condition and action of a rule in its own (sub)transaction `s`."""
        began = time.perf_counter()
        rule, o = item.rule, item.occurrence
        if rule.holds(s, o):
            rule.act(s, o)
            self._counters.add("rules_fired")
            self.latencies.record(time.perf_counter() - began)

    # -- inside ----------------------------------------------------------------------------

    def _calls_of_rule(
        self, t: Transaction, items: list[Triggered], *, deferred: bool
    ) -> Callable[[], None]:
        """One rule's occurrences, one after another, each in a child of its own.

        Those of a set-oriented rule fire its newest version once.
        """
        if items[-1].rule.set_oriented:
            occurrences = OccurrenceSet([item.occurrence for item in items])
            items = [Triggered(items[-1].rule, occurrences)]
        labels = [f"{t.next_label()}.{item.rule.name}" for item in items]

        def call() -> None:
            for label, item in zip(labels, items, strict=True):
                self._run_child(t, item, label=label, deferred=deferred)

        return call

    def _run_child(self, t: Transaction, item: Triggered, *, label: str, deferred: bool) -> None:
        rule = item.rule
        try:
            t.run_child(
                lambda s: self.run_rule(s, item), label=label, rule=rule.name, deferred=deferred
            )
        except Exception as error:
            if is_systemic(error, t) or isinstance(error, CycleLimitExceeded):
                raise
            failed = RuleFailed(f"rule {rule.name} failed: {error}", rule=rule.name)
            if rule.on_abort is OnAbort.TRIGGERING:
                t.doom(failed)  # also if the code that triggered the rule swallows the error
                raise failed from error
            failed.__cause__ = error
            self._counters.add("rules_failed")
            trail = self._trails.of(t)
            with self._trails.latch:
                trail.letters.append(Letter.of_rule(f"{t.path}/{label}", item.occurrence, failed))

    def _check_cascade(self, t: Transaction, items: list[Triggered]) -> None:
        chain: list[str] = []
        node: Transaction | None = t
        while node is not None:
            if node.rule is not None:
                chain.append(node.rule)
            node = node.parent
        if len(chain) >= self._cascade_max:
            shown = " → ".join([*reversed(chain[:4]), items[0].rule.name])
            raise CycleLimitExceeded(
                f"rules trigger rules {len(chain)} deep (… {shown}); give one of them a condition "
                f"that ends it, or raise cascade_max"
            )
