"""Quarantine of rules that keep failing alone: they don't run until they are enabled again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from activedb.clock import Clock
from activedb.errors import ActiveDBError, DefinitionError, RuleFailed, RuleInQuarantine
from activedb.firing._letters import storable
from activedb.firing._triggered import failed_in
from activedb.functions import typed_text
from activedb.metrics import NamedCounters
from activedb.rules import Catalog
from activedb.transactions import TransactionNode

__all__ = ["Quarantine", "failure_of"]

_LOG = logging.getLogger(__name__)


class Quarantine:
    """Failure counts of rules that fail alone; too many failures put a rule into quarantine.

    Only final failures count, not errors that are retried (a deadlock, say). The count is per
    process, and restarts with every success.

    Parameters
    ----------
    catalog : Catalog
        Holds the committed set of rules in quarantine.
    after : int
        Number of consecutive failures before quarantine; 0 disables it.
    clock : Clock
    counters : NamedCounters
        Has the counter ``rules_quarantined``.
    run_in_background : callable ``(name, work)``
        Runs work on another thread, soon, outside of transactions.
    put : callable ``(rule, reason)``
        Puts a rule into quarantine durably.
    refused : callable ``(rule)``
        Called for each run that quarantine prevents.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        after: int,
        clock: Clock,
        counters: NamedCounters,
        run_in_background: Callable[[str, Callable[[], None]], None],
        put: Callable[[str, str], object],
        refused: Callable[[str], None],
    ):
        self._catalog = catalog
        self._after = after
        self._clock = clock
        self._counters = counters
        self._aside = run_in_background
        self._put = put
        self._refused = refused
        self._latch = threading.Lock()
        self._failures: dict[str, int] = {}

    def check(self, rule: str, t: TransactionNode | None = None) -> None:
        """Raise `RuleInQuarantine` if a rule is in quarantine, as `t` sees it. O(1)."""
        if rule not in self._catalog.quarantine:
            return
        entry = self._catalog.entry(rule, t)
        if entry is not None and entry.quarantine is not None:
            self._refused(rule)
            raise RuleInQuarantine(
                f"rule {rule} is in quarantine {entry.quarantine}; db.rules.enable({rule!r}) when "
                f"that is fixed, and retry its letters",
                rule=rule,
            )

    def ended(self, outcomes: Iterable[tuple[str, BaseException | None]]) -> None:
        """Note how rules that fail alone ended in a transaction that has committed, in order.

        None: without an error. What a try that was rolled back has met doesn't count.
        """
        for rule, error in outcomes:
            if error is None:
                self.succeeded(rule)
            else:
                self.failed(rule, error)

    def succeeded(self, rule: str) -> None:
        """Note the success of a rule that fails alone. O(1)."""
        if rule in self._failures:
            with self._latch:
                self._failures.pop(rule, None)

    def failed(self, rule: str, error: BaseException) -> None:
        """Note the final failure of a rule that fails alone, with `error`."""
        if not self._after or isinstance(error, RuleInQuarantine):
            return
        with self._latch:
            number = self._failures.get(rule, 0) + 1
            is_enough = number >= self._after
            self._failures[rule] = 0 if is_enough else number
        if not is_enough:
            return
        text = storable(" ".join(typed_text(error).split()))
        reason = (
            f"since {self._clock.now():%Y-%m-%d %H:%M:%S %Z} as it has failed {number} times in a "
            f"row, the last time with {text[:1_000]}"
        )
        # On another thread: a transaction open on this one may have the rule's row locked.
        self._aside(f"quarantine of {rule}", lambda: self._do(rule, reason))

    def _do(self, rule: str, reason: str) -> None:
        try:
            self._put(rule, reason)
        except DefinitionError:
            _LOG.info("rule %s was deleted before it was put into quarantine", rule)
        except ActiveDBError:
            _LOG.warning("rule %s is not in quarantine yet", rule, exc_info=True)
        else:
            self._counters.add("rules_quarantined")
            _LOG.warning("rule %s is in quarantine %s", rule, reason)


def failure_of(rule: str, error: BaseException) -> RuleFailed:
    """Return the `RuleFailed` for a rule that failed with `error`, which becomes its cause."""
    if isinstance(error, RuleInQuarantine):
        return error
    failed = RuleFailed(failed_in(rule, error), rule=rule)
    failed.__cause__ = error
    return failed
