"""Dead letters, read and run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

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
from activedb.firing._cascades import failed_in
from activedb.firing._letters import Letter
from activedb.firing._triggered import Triggered, occurrence_of
from activedb.firing._triggering import Triggering
from activedb.rules import Catalog
from activedb.store.journals import Journal
from activedb.transactions import Forest, Run, Transaction, current_transaction

__all__ = ["DeadLetters", "Outcome", "Retried"]

Outcome = Literal["done", "elsewhere", "failed", "undefined", "unreadable", "event"]

_OF_RULE = "rule "  # what the source of a rule's letter begins with


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of one dead letter.

    Attributes
    ----------
    letter : Letter
        As it was before; with the new error and reason if the rule failed again.
    outcome : {"done", "elsewhere", "failed", "undefined", "unreadable", "event"}
        The rule ran, and the letter is gone; another process runs it, or has; the rule failed
        again; no rule of the name is defined here; the occurrence could not be kept in the letter;
        the letter is of an event and not of a rule. The last four leave the letter.
    reason : str
        Why the letter is left, and what to do; empty if it is not.
    """

    letter: Letter
    outcome: Outcome
    reason: str = ""

    @property
    def is_left(self) -> bool:
        """Whether the letter is still there because of what became of it."""
        return self.outcome not in ("done", "elsewhere")


class DeadLetters:
    """Runs the rules of dead letters again, each in a top-level transaction of its own.

    That transaction locks the letter, deletes it and runs the rule: so the rule takes effect if and
    only if the letter goes, and what is killed on the way leaves the letter as it was.
    """

    def __init__(self, journal: Journal, catalog: Catalog, triggering: Triggering, forest: Forest):
        self._journal = journal
        self._catalog = catalog
        self._triggering = triggering
        self._forest = forest

    def read(
        self, source: str | None = None, identity: str | None = None, kind: str | None = None
    ) -> list[Letter]:
        """Committed letters by source and identity; all, or those asked for."""
        if kind not in (None, "event", "rule"):
            raise ConfigurationError(f"dead letters are of the kind event or rule, not {kind!r}")
        rows = self._journal.letters(source=source, identity=identity, kind=kind)
        return [Letter(**row) for row in rows]

    def retry(self, source: str, identity: str) -> Retried:
        """Run the rule of one letter again; raises `RowNotFound` if there is no such letter."""
        self._check_outside()
        found = self.read(source, identity)
        if not found:
            raise RowNotFound(
                f"there is no dead letter {identity!r} of {source!r}; db.dead_letters() and "
                f"`activedb dead-letter ls` tell which there are"
            )
        return self._retry(found[0])

    def retry_all(
        self, source: str | None, on_progress: Callable[[int, int], None] | None
    ) -> list[Retried]:
        """Run the rules of all letters again that are there now, one after another."""
        self._check_outside()
        letters = self.read(source)
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
                "the rule's event could not take this in, and all other rules have: mend the rule "
                "or decide (`activedb decisions`), and delete the letter",
            )
        if letter.kind == "event":
            return Retried(
                letter,
                "event",
                "an event's letter cannot be run again: mend the row or the rule, raise the event "
                "with db.signal, and delete the letter",
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

        def body(t: Transaction) -> None:
            self._claim(t, key)
            t.delete(self._journal.letters_table, key)
            self._triggering.runner.run_rule(t, item)

        try:
            self._forest.run(body, Run(rule=item.rule.name))
        except ConnectionLost:
            raise
        except _Elsewhere:
            return Retried(letter, "elsewhere")
        except Exception as error:
            return self._failed(letter, item, error)
        return Retried(letter, "done")

    def _claim(self, t: Transaction, key: tuple[str, str]) -> None:
        """Lock a letter until `t` ends; raises `_Elsewhere` if somebody has it, or it is gone."""
        try:
            row = t.get(self._journal.letters_table, key, for_update=True, nowait=True)
        except LockNotAvailable as error:
            raise _Elsewhere from error
        if row is None:
            raise _Elsewhere

    def _failed(self, letter: Letter, item: Triggered, error: Exception) -> Retried:
        """Keep the new reason in the letter."""
        name = item.rule.name
        failed = RuleFailed(failed_in(name, error), rule=name)
        failed.__cause__ = error
        new = Letter.of_rule(letter.identity, item.occurrence, failed)
        letter = replace(letter, error=new.error, reason=new.reason)
        self._triggering.counters.add("rules_failed")
        key = (letter.source, letter.identity)

        def note(t: Transaction) -> None:
            self._claim(t, key)
            values: dict[str, Any] = {"error": letter.error, "reason": letter.reason}
            t.update(self._journal.letters_table, key, **values)

        try:
            self._forest.run(note)
        except _Elsewhere:
            return Retried(letter, "elsewhere")
        return Retried(letter, "failed", letter.reason)


class _Elsewhere(ActiveDBError):
    """Another transaction has the letter, or has run it."""
