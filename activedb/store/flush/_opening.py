"""Opening of a commit: what it locks and checks before it writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

from sqlalchemy import Connection

from activedb.errors import SerializationConflict
from activedb.store.flush._change import Change
from activedb.store.server import (
    Step,
    StepFailed,
    takes_messages,
    together,
    translate_error,
    translate_errors,
)
from activedb.store.sql import (
    Key,
    TableSpec,
    checking_step,
    is_refused_by_check,
    lock_table,
    locking_step,
    rows_by_key,
)
from lockmgr import Predicate

__all__ = ["Asked", "Opening", "answer_changed"]

_AT_ONCE_MAX = 40  # rows to lock by single statements in one message


Asked: TypeAlias = Mapping[TableSpec, Mapping[Predicate, Collection[Key]]]
"""Predicates by table, each with the keys of all rows that were known to satisfy it."""


class Opening:
    """Locks and checks before the writes of a commit, all in one order.

    First it locks the rows for writing that are locked for reading: an UPDATE would wait for a row
    while it has a lock on the table, for which another transaction may wait that has locked the
    row. Then, if predicates were asked for, it locks all tables that it checks or writes, and
    checks that no further rows satisfy the predicates.

    Parameters
    ----------
    changes : collection of Change
    asked : mapping of TableSpec to (predicate to keys)
        Predicates that only those rows may satisfy.
    locks_rows : callable
        Return whether other processes may write a table.
    """

    def __init__(
        self,
        changes: Collection[Change],
        asked: Asked,
        locks_rows: Callable[[TableSpec], bool],
    ):
        rows: dict[TableSpec, list[Key]] = {}
        for change in changes:
            if change.is_shared:
                rows.setdefault(change.spec, []).append(change.key)
        self._rows = [(spec, spec.in_order(rows[spec])) for spec in _in_order(rows)]
        self._rest: list[tuple[TableSpec, Step, bool]] = []
        if asked:
            written = {change.spec for change in changes}
            tables = [spec for spec in _in_order(written.union(asked)) if locks_rows(spec)]
            for spec in tables:
                # Two transactions in SHARE that both write would wait for each other.
                mode = "SHARE ROW EXCLUSIVE" if spec in asked else "ROW EXCLUSIVE"
                mode = mode if spec in written else "SHARE"
                self._rest.append((spec, (lock_table(spec, mode), {}), False))
            for spec in tables:
                for predicate, keys in asked.get(spec, {}).items():
                    self._rest.append((spec, checking_step(spec, predicate, keys), True))

    def __bool__(self) -> bool:
        return bool(self._rows or self._rest)

    def steps(self) -> list[Step]:
        """Return it as steps of a message; see `refuse`."""
        locks = [locking_step(spec, key) for spec, keys in self._rows for key in keys]
        return locks + [step for _, step, _ in self._rest]

    def run(self, connection: Connection) -> None:
        """Lock and check; one round trip, on a caller's connection one per table.

        Raises
        ------
        SerializationConflict
            If another process has written a row that an answer should have had.
        """
        count = sum(len(keys) for _, keys in self._rows)
        if count > _AT_ONCE_MAX or not takes_messages(connection):
            with translate_errors("lock the rows of a commit"):
                for spec, keys in self._rows:
                    rows_by_key(connection, spec, spec.exclusive_select, keys)
            self._rows = []
        steps = self.steps()
        if not steps:
            return
        try:
            together(connection, steps)
        except StepFailed as failed:
            self.refuse(failed.at, failed.error)
            raise failed.error from None

    def refuse(self, at: int, error: Exception) -> None:
        """Raise the error that stands for a driver's, if any, of one of the steps."""
        place = at - sum(len(keys) for _, keys in self._rows)
        if place >= 0:
            spec, _, is_check = self._rest[place]
            if is_check and is_refused_by_check(error):
                raise answer_changed(spec) from error
        ours = translate_error(error, "lock the rows of a commit")
        if ours is not None:
            raise ours from error


def answer_changed(spec: TableSpec, key: Key | None = None) -> SerializationConflict:
    """Return the error about a row that has changed the answer to a question."""
    row = "a row" if key is None else f"the row {key!r}"
    return SerializationConflict(
        f"table {spec.name}: another process wrote {row} after a query that would have found it; "
        f"retry the transaction"
    )


def _in_order(specs: Iterable[TableSpec]) -> list[TableSpec]:
    return sorted(specs, key=lambda spec: spec.name)
