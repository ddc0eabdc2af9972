"""Reading and retrying dead letters."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from activedb.errors import (
    ActiveDBError,
    BadEvent,
    ConfigurationError,
    ConnectionLost,
    LockNotAvailable,
    RowNotFound,
    RuleFailed,
    TransactionStateError,
)
from activedb.firing._letters import Letter
from activedb.firing._triggered import Triggered, failed_in, occurrence_of
from activedb.firing._triggering import Triggering
from activedb.functions import checked_function
from activedb.rules import Catalog
from activedb.store.journals import Journal
from activedb.transactions import Forest, Run, Transaction, TransactionNode, current_transaction

__all__ = ["DeadLetters", "Outcome", "Retried"]

Outcome = Literal["done", "elsewhere", "failed", "undefined", "unreadable", "event"]

_OF_RULE = "rule "  # prefix of the source of a rule's letter


@dataclass(frozen=True, slots=True)
class Retried:
    """Outcome of retrying one dead letter.

    Attributes
    ----------
    letter : Letter
        The letter before the retry; with the new error and reason if the rule failed again.
    outcome : {"done", "elsewhere", "failed", "undefined", "unreadable", "event"}
        In this order: the rule ran, and the letter is deleted; another process runs the rule, or
        has run it; the rule failed again; no rule of that name is defined here; the letter could
        not hold the occurrence; the letter is about an event, not about a rule. The last four
        leave the letter.
    reason : str
        Why the letter is left, and what to do; empty if it is deleted.
    """

    letter: Letter
    outcome: Outcome
    reason: str = ""

    @property
    def is_left(self) -> bool:
        """True if the outcome leaves the letter in the table."""
        return self.outcome not in ("done", "elsewhere")


class DeadLetters:
    """Events and firings that could not be processed, each with the reason.

    Iterating yields the letters in the order of source and identity. A retry runs in a separate
    top-level transaction, which locks the letter, deletes it and runs the rule. The rule therefore
    takes effect if and only if the letter goes, and a crash leaves the letter as it was.
    """

    def __init__(self, journal: Journal, catalog: Catalog, triggering: Triggering, forest: Forest):
        self._journal = journal
        self._catalog = catalog
        self._triggering = triggering
        self._forest = forest

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("db.dead_letters(…) is now db.dead_letters.list(…)")

    def __iter__(self) -> Iterator[Letter]:
        return iter(self.list())

    def list(self, source: str | None = None, *, kind: str | None = None) -> builtins.list[Letter]:
        """Return the letters in the order of source and identity. O(n log n).

        Parameters
        ----------
        source : str, optional
            Only the letters of this source: a stream's name, or ``"rule <name>"``.
        kind : {"event", "rule"}, optional
            Only the letters of this kind.

        Raises
        ------
        ConfigurationError
            If there is no such kind.
        """
        if kind not in (None, "event", "rule"):
            raise ConfigurationError(f"dead letters are of the kind event or rule, not {kind!r}")
        rows = self._journal.letters(source=source, kind=kind)
        return [Letter(**row) for row in rows]

    def retry(self, source: str, identity: str) -> Retried:
        """Run the rule of one letter again, in a separate top-level transaction.

        The letter is deleted in the commit of the rule's effects. The effects therefore happen
        once, even if this process is killed or another process retries the letter at the same time.
        If the rule fails again, the letter stays, with the new reason. The rule's coupling does not
        matter, nor whether the rule is enabled.

        Parameters
        ----------
        source, identity : str
            Source and identity of the letter.

        Raises
        ------
        RowNotFound
            If there is no such letter.
        TransactionStateError
            Inside a transaction.
        ConnectionLost
            If the connection was lost; the rule ran if and only if the letter is gone.
        """
        self._check_outside()
        found = self._journal.letters(source=source, identity=identity)
        if not found:
            raise RowNotFound(
                f"there is no dead letter {identity!r} of {source!r}; db.dead_letters.list() and "
                f"`activedb dead-letter ls` list the letters"
            )
        return self._retry(Letter(**found[0]))

    def retry_all(
        self,
        source: str | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> builtins.list[Retried]:
        """Run the rules of all letters again, or of one source's; see `retry`.

        The letters are retried one after another, each in a separate transaction. Letters of
        events, and of rules that are not defined here, are left; the results report them.

        Parameters
        ----------
        source : str, optional
            Only the letters of this source.
        on_progress : callable ``(number, of)``, optional
            Called after each letter, with the number of letters retried and of all letters.
        """
        if on_progress is not None:
            checked_function(on_progress, "on_progress=")
        self._check_outside()
        letters = self.list(source)
        results = []
        for number, letter in enumerate(letters, 1):
            results.append(self._retry(letter))
            if on_progress is not None:
                on_progress(number, len(letters))
        return results

    def _check_outside(self) -> None:
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(
                f"dead letters cannot be run again inside {t.path}, as each needs a top-level "
                f"transaction of its own; do it outside of transactions"
            )

    def _retry(self, letter: Letter) -> Retried:
        if letter.kind == "event" and letter.source.startswith(_OF_RULE):
            return Retried(
                letter,
                "event",
                "the rule's event could not take this in, and all other rules have: correct the "
                "rule or decide (`activedb decisions`), and delete the letter",
            )
        if letter.kind == "event":
            return Retried(
                letter,
                "event",
                "an event's letter cannot be run again: correct the row or the rule, raise the "
                "event with db.signal, and delete the letter",
            )
        name = letter.source.removeprefix(_OF_RULE)
        rule = self._catalog.rule(name)
        if rule is None:
            return Retried(
                letter, "undefined", f"no rule {name!r} is defined here; define it, and retry"
            )
        try:
            o = occurrence_of(rule, letter.payload)
        except BadEvent:
            return Retried(
                letter,
                "unreadable",
                "the occurrence could not be kept in the letter; make the change by hand, and "
                "delete the letter",
            )
        return self._run(letter, Triggered(rule, o))

    def _run(self, letter: Letter, item: Triggered) -> Retried:
        key = (letter.source, letter.identity)

        def body(t: TransactionNode) -> None:
            self._claim(t, key)
            Transaction(t).delete(self._journal.letters_table, key)
            self._triggering.runner.run_rule(t, item)

        try:
            self._forest.run(
                body, Run(rule=item.rule.name, isolation=self._forest.settings.isolation)
            )
        except ConnectionLost:
            raise
        except _Elsewhere:
            return Retried(letter, "elsewhere")
        except Exception as error:
            return self._failed(letter, item, error)
        return Retried(letter, "done")

    def _claim(self, t: TransactionNode, key: tuple[str, str]) -> None:
        """Lock a letter until `t` ends; raise `_Elsewhere` if it is locked or deleted."""
        try:
            row = Transaction(t).get(self._journal.letters_table, key, for_update=True, nowait=True)
        except LockNotAvailable as error:
            raise _Elsewhere from error
        if row is None:
            raise _Elsewhere

    def _failed(self, letter: Letter, item: Triggered, error: Exception) -> Retried:
        """Write the new reason into the letter."""
        name = item.rule.name
        failed = RuleFailed(failed_in(name, error), rule=name)
        failed.__cause__ = error
        new = Letter.of_rule(letter.identity, item.occurrence, failed)
        letter = replace(letter, error=new.error, reason=new.reason)
        self._triggering.counters.add("rules_failed")
        key = (letter.source, letter.identity)

        def note(t: TransactionNode) -> None:
            self._claim(t, key)
            values: dict[str, Any] = {"error": letter.error, "reason": letter.reason}
            Transaction(t).update(self._journal.letters_table, key, **values)

        try:
            self._forest.run(note)
        except _Elsewhere:
            return Retried(letter, "elsewhere")
        return Retried(letter, "failed", letter.reason)


class _Elsewhere(ActiveDBError):
    """Error for a letter that another transaction has locked or retried."""
