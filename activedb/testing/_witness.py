"""Record of what the rules of a database did during a test."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from activedb.database import Database
from activedb.errors import DefinitionError
from activedb.events import Occurrence
from activedb.firing import Ran, RuleListener, Triggered
from activedb.testing._explanation import explain
from activedb.testing._seen import Firing, Seen, has_params
from activedb.transactions import Node, Transaction, current_transaction

__all__ = ["Witness"]


class Witness(RuleListener):
    """Listener that records events and rules of a database from now on, until it is closed.

    A rule *has fired* if its action has run and that is committed, up to the top-level transaction.
    A condition that was false, or a transaction that has aborted or is still open, does not count.

    All records are kept, without bound: it is for tests. Safe to use from many threads.

    Parameters
    ----------
    db : Database
        The database to observe. Only rules that run in this process are seen.
    """

    hears_all = True

    def __init__(self, db: Database):
        self.db = db
        self._latch = threading.Lock()
        self._seen = Seen()
        db._triggering.listeners.add(self)

    def close(self) -> None:
        """Stop recording."""
        self.db._triggering.listeners.remove(self)

    def forget(self) -> None:
        """Forget all records, so that only what happens from now on counts."""
        with self._latch:
            self._seen = Seen()

    def fired(
        self, rule: str | Callable[..., Any], params: Mapping[str, Any] | None = None
    ) -> list[Firing]:
        """Return the committed runs of a rule, in the order in which they began.

        Parameters
        ----------
        rule : str or callable
            Its name, or the function that is its action.
        params : mapping, optional
            Return only runs whose occurrence has these parameters, or columns of its row.
        """
        name = self._name_of(rule)
        with self._latch:
            runs = list(self._seen.runs)
        return [
            run
            for run in runs
            if run.rule == name
            and run.outcome == "acted"
            and run.fate == "committed"
            and has_params(run.occurrence, params or {})
        ]

    def assert_fired(
        self,
        rule: str | Callable[..., Any],
        times: int | None = None,
        params: Mapping[str, Any] | None = None,
        *,
        wait: bool = True,
    ) -> list[Firing]:
        """Assert that a rule has fired; return the firings.

        Parameters
        ----------
        rule : str or callable
            Its name, or the function that is its action.
        times : int, optional
            The exact number of firings; 0: none. By default, at least one.
        params : mapping, optional
            Count only firings whose occurrence has these parameters, or columns of its row.
        wait : bool
            Whether to wait first for detached rules and for actions that are due.

        Raises
        ------
        AssertionError
            If it has not. The message says what happened instead: which events triggered the rule,
            which condition was false, what failed or was undone, what else fired.
        """
        __tracebackhide__ = True
        name = self._name_of(rule)
        if wait and current_transaction() is None:
            self.db.wait_idle()
        found = self.fired(name, params)
        if (times is None and found) or len(found) == times:
            return found
        with self._latch:
            seen = Seen(
                Counter(self._seen.raised), list(self._seen.triggered), list(self._seen.runs)
            )
        raise AssertionError(explain(self.db, name, found, times, params or {}, seen))

    # -- as a listener ---------------------------------------------------------------------

    def raised(self, t: Node, o: Occurrence) -> None:
        with self._latch:
            self._seen.raised[o.key] += 1

    def triggered(self, t: Node, items: Sequence[Triggered]) -> None:
        with self._latch:
            self._seen.triggered += [_firing(t, item, "triggered") for item in items]

    def starts(self, s: Node, item: Triggered) -> None:
        with self._latch:
            self._seen.runs.append(_firing(s, item, "running"))

    def ran(
        self,
        s: Node,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        with self._latch:
            for run in reversed(self._seen.runs):
                if run.transaction == Transaction(s) and run.outcome == "running":
                    run.outcome, run.error = outcome, error
                    return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _name_of(self, rule: str | Callable[..., Any]) -> str:
        if isinstance(rule, str):
            return rule
        names = [entry.name for entry in self.db.rules if entry.rule.action is rule]
        if len(names) == 1:
            return names[0]
        raise DefinitionError(
            f"{rule!r} is the action of {' and '.join(names)}: name the one that is meant"
            if names
            else f"{rule!r} is the action of no rule of this database; give a rule's name"
        )


def _firing(t: Node, item: Triggered, outcome: str) -> Firing:
    return Firing(item.rule.name, item.occurrence, Transaction(t), str(item.rule.coupling), outcome)
