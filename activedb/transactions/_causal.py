"""Causally dependent transactions, which read through the hierarchy of their cause.

```
  cause is live  ── reads, queries, locks ──► like a child of the cause, on its connection;
                                              the results are noted
  cause commits  ── its locks on the server are gone: the dependent locks the same rows and tables
                    on its own connection, and checks that the results are unchanged
  after that     ── like any other top-level transaction
```

The writes of the dependent stay in its own workspace throughout. (Saygin, Ulusoy, Chakravarthy,
sections 2.1 and 3.3.2.)
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from activedb.errors import SerializationConflict
from activedb.store.session import Session
from activedb.store.sql import Key, Row, Tables, TableSpec
from activedb.transactions._hierarchy import Hierarchy, Run, Workspace

if TYPE_CHECKING:
    from activedb.transactions._node import Node

__all__ = ["CausalHierarchy"]


@dataclass(frozen=True, slots=True)
class _Scan:
    """Query that was answered through the cause, with its result."""

    statement: Any
    parameters: Mapping[str, Any] | None
    tables: Tables
    dirty: Mapping[TableSpec, Mapping[Key, Row | None]]
    rows: list[Any]


class CausalHierarchy(Hierarchy):
    """Hierarchy of a top-level transaction that causally depends on another transaction.

    Parameters
    ----------
    cause : Node
        The transaction in which the rule that runs here was triggered.
    heir : int
        Id of the transaction that decides the fate of the cause: the cause itself, or a superior
        to which it has committed.

    Attributes
    ----------
    ended : threading.Event
        Set when its top-level transaction has ended and released its locks.
    """

    def __init__(self, session: Session, run: Run, cause: Node, heir: int):
        super().__init__(session, run)
        self.cause: Node = cause  # type: ignore[misc]  # of this one, not of the class
        self.causes = (heir,)
        self.ended = threading.Event()
        self._seen: dict[TableSpec, dict[Key, Row | None]] = {}
        self._exclusive: dict[TableSpec, set[Key]] = {}
        self._brought: dict[TableSpec, set[Key]] = {}
        # Hierarchies whose locks protect each row as read: this one, or those reading through it.
        self._askers: dict[TableSpec, dict[Key, set[Hierarchy]]] = {}
        self._tables: dict[TableSpec, None] = {}
        self._scans: list[_Scan] = []
        self._is_alone = False

    # -- reading, through the cause while it is live -----------------------------------------

    def read(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool, inserting: bool = False
    ) -> dict[Key, Row | None]:
        """Return rows as the cause sees them, locked on the server for its hierarchy."""
        return self.lend(self, spec, keys, exclusive=exclusive, inserting=inserting)

    def lend(
        self,
        asker: Hierarchy,
        spec: TableSpec,
        keys: Sequence[Key],
        *,
        exclusive: bool,
        inserting: bool = False,
    ) -> dict[Key, Row | None]:
        """See `Hierarchy`."""
        self._note_asker(asker, spec, keys)
        with self._lender() as lender:
            if lender is None:
                return super().read(spec, keys, exclusive=exclusive, inserting=inserting)
            self._bring(lender, spec, keys)
            base = lender.lend(self, spec, keys, exclusive=exclusive, inserting=inserting)
            return self._noted(spec, base, exclusive=exclusive)

    def read_free(self, spec: TableSpec, keys: Sequence[Key]) -> dict[Key, Row | None]:
        """Read exclusively without waiting; rows locked by other transactions are left out."""
        return self.lend_free(self, spec, keys)

    def lend_free(
        self, asker: Hierarchy, spec: TableSpec, keys: Sequence[Key]
    ) -> dict[Key, Row | None]:
        """See `Hierarchy`."""
        self._note_asker(asker, spec, keys)
        with self._lender() as lender:
            if lender is None:
                return super().read_free(spec, keys)
            self._bring(lender, spec, keys)
            return self._noted(spec, lender.lend_free(self, spec, keys), exclusive=True)

    def lock_table(self, spec: TableSpec) -> None:
        """Lock a whole table on the server, for the hierarchy of the cause while that is live."""
        with self._lender() as lender:
            if lender is None:
                super().lock_table(spec)
            else:
                lender.lock_table(spec)
                self._tables[spec] = None

    def query(
        self,
        statement: Any,
        tables: Tables,
        dirty: Mapping[TableSpec, Mapping[Key, Row | None]],
        parameters: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Return rows of a SELECT over the rows that the cause sees, overlaid with `dirty`."""
        with self._lender() as lender:
            if lender is None:
                return super().query(statement, tables, dirty, parameters)
            seen = {spec: {**self.cause.dirty(spec), **rows} for spec, rows in dirty.items()}
            rows = lender.query(statement, tables, seen, parameters)
            self._scans.append(_Scan(statement, parameters, tables, dirty, rows))
            return rows

    def commit(self, versions: Workspace) -> None:
        """Commit on the server, after `Dependencies.await_leave` has allowed it; see `Hierarchy`.

        Raises
        ------
        SerializationConflict
            If a row or a query result has changed since it was read.
        """
        self._take_over()
        super().commit(versions)

    def leave(self) -> None:
        """Drop, on abort and before the locks are released, rows from the base of the cause.

        These are the rows that only this transaction has read. Without its locks no transaction
        protects them from writers. If the cause needs them, it reads them again.
        """
        above = self.cause.hierarchy
        for spec, keys in self._brought.items():
            above.forget_rows(spec, keys)
        with self.latch:
            asked = {spec: list(keys) for spec, keys in self._askers.items()}
        above.take_back(self, asked)

    def take_back(self, asker: Hierarchy, asked: Mapping[TableSpec, Collection[Key]]) -> None:
        """Remove `asker` from rows; the take-over does not check rows without askers."""
        freed: dict[TableSpec, list[Key]] = {}
        with self.latch:
            for spec, keys in asked.items():
                askers = self._askers.get(spec, {})
                for key in keys:
                    of_key = askers.get(key, set())
                    of_key.discard(asker)
                    if not of_key and askers.pop(key, None) is not None:
                        freed.setdefault(spec, []).append(key)
            for spec, keys in freed.items():
                self.base.discard(spec, keys)
                for key in keys:
                    self._seen.get(spec, {}).pop(key, None)
                    self._exclusive.get(spec, set()).discard(key)
                    self._brought.get(spec, set()).discard(key)
        if freed and not self._is_alone:
            self.cause.hierarchy.take_back(self, freed)

    def has_read(self, spec: TableSpec, key: Key) -> bool:
        """Return whether this hierarchy, or the one it reads through, has read the row."""
        if super().has_read(spec, key):
            return True
        return not self._is_alone and self.cause.hierarchy.has_read(spec, key)

    def forget_rows(self, spec: TableSpec, keys: Collection[Key]) -> None:
        """Forget rows, here and in the hierarchy that this one reads through."""
        super().forget_rows(spec, keys)
        if not self._is_alone:
            self.cause.hierarchy.forget_rows(spec, keys)

    # -- inside ----------------------------------------------------------------------------

    @contextmanager
    def _lender(self) -> Iterator[Hierarchy | None]:
        """Yield the hierarchy of the cause, kept from committing; None for our own connection."""
        if not self._is_alone:
            above = self.cause.hierarchy
            assert above.lending is not None, "set before another transaction can depend on it"
            with above.lending.use() as is_open:
                if is_open:
                    yield above
                    return
            self._take_over()
        yield None

    def _note_asker(self, asker: Hierarchy, spec: TableSpec, keys: Sequence[Key]) -> None:
        with self.latch:
            askers = self._askers.setdefault(spec, {})
            for key in keys:
                askers.setdefault(key, set()).add(asker)

    def _bring(self, lender: Hierarchy, spec: TableSpec, keys: Sequence[Key]) -> None:
        """Note the rows that the lender has not read itself; they are locked for this hierarchy."""
        new = [key for key in keys if not lender.has_read(spec, key)]
        if new:
            with self.latch:
                self._brought.setdefault(spec, set()).update(new)

    def _noted(
        self, spec: TableSpec, base: Mapping[Key, Row | None], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        found = {key: self.cause.visible(spec, key, base) for key in base}
        with self.latch:
            self._seen.setdefault(spec, {}).update(found)
            if exclusive:
                self._exclusive.setdefault(spec, set()).update(found)
        return found

    def _take_over(self) -> None:
        """Lock on the server, after the commit of the cause, all that was locked through it.

        Another process may have changed rows between that commit and this call.

        Raises
        ------
        TransactionAborted
            If the cause has aborted.
        SerializationConflict
            If a row or a query result has changed since it was read.
        """
        self.cause.forest.dependencies.await_commit(self.cause)
        with self.latch:
            if self._is_alone:
                return
            for spec in self._tables:
                super().lock_table(spec)
            for spec, seen in self._seen.items():
                strong = self._exclusive.get(spec, set())
                for exclusive in (True, False):
                    keys = spec.in_order([key for key in seen if (key in strong) is exclusive])
                    found = super().read(spec, keys, exclusive=exclusive) if keys else {}
                    for key in keys:
                        if found[key] != seen[key]:
                            raise _changed(f"row {key!r} of {spec.name}")
            for scan in self._scans:
                rows = super().query(scan.statement, scan.tables, scan.dirty, scan.parameters)
                if [*map(_plain, rows)] != [*map(_plain, scan.rows)]:
                    raise _changed("what a query found")
            self._is_alone = True
            self._seen.clear()
            self._scans.clear()


def _plain(row: Any) -> Any:
    """Return a row in a comparable form; objects of mapped classes by their loaded attributes."""
    values = []
    for value in row:
        loaded = getattr(value, "__dict__", None)
        is_mapped = loaded is not None and "_sa_instance_state" in loaded
        values.append(
            {name: v for name, v in loaded.items() if name != "_sa_instance_state"}
            if is_mapped and loaded is not None
            else value
        )
    return values


def _changed(what: str) -> SerializationConflict:
    return SerializationConflict(
        f"{what} has changed since a causally dependent transaction saw it; retry the transaction"
    )
