"""A causally dependent transaction: its reads go through the hierarchy of its cause.

```
  cause lives    ── reads, queries, locks ──► as a child of the cause would, on its connection;
                                              what was seen is noted
  cause commits  ── the locks at the server are gone: its own connection locks the same rows and
                    tables, and looks whether all is as it was seen
  from then on   ── like any other top-level transaction
```

Its writes are in its own workspace from first to last. (Saygin, Ulusoy, Chakravarthy, sections 2.1
and 3.3.2.)
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
    from activedb.transactions._transaction import Transaction

__all__ = ["CausalHierarchy"]


@dataclass(frozen=True, slots=True)
class _Scan:
    """A query that was answered through the cause, and its answer."""

    statement: Any
    parameters: Mapping[str, Any] | None
    tables: Tables
    dirty: Mapping[TableSpec, Mapping[Key, Row | None]]
    rows: list[Any]


class CausalHierarchy(Hierarchy):
    """The hierarchy of a top-level transaction that causally depends on another transaction.

    Parameters
    ----------
    cause : Transaction
        In whom that was triggered, which is to run in it.
    heir : int
        Id of who decides about that: the cause, or a superior to which it has committed.

    Attributes
    ----------
    ended : threading.Event
        Set when its top-level transaction has ended, and given up its locks.
    """

    def __init__(self, session: Session, run: Run, cause: Transaction, heir: int):
        super().__init__(session, run)
        self.cause: Transaction = cause  # type: ignore[misc]  # of this one, not of the class
        self.causes = (heir,)
        self.ended = threading.Event()
        self._seen: dict[TableSpec, dict[Key, Row | None]] = {}
        self._exclusive: dict[TableSpec, set[Key]] = {}
        self._brought: dict[TableSpec, set[Key]] = {}
        # Whose locks keep each row as it was read: its own, or those of who reads through it.
        self._askers: dict[TableSpec, dict[Key, set[Hierarchy]]] = {}
        self._tables: dict[TableSpec, None] = {}
        self._scans: list[_Scan] = []
        self._is_alone = False

    # -- reading, through the cause while it lives -------------------------------------------

    def read(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool, inserting: bool = False
    ) -> dict[Key, Row | None]:
        """Rows as the cause sees them, locked on the server for its hierarchy; see `Hierarchy`."""
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
        """As `read` with `exclusive`, at once: rows that others have locked are left out."""
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
        """Lock a whole table on the server, for the hierarchy of the cause while it lives."""
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
        """Rows of a SELECT over what the cause sees, with `dirty` laid over it."""
        with self._lender() as lender:
            if lender is None:
                return super().query(statement, tables, dirty, parameters)
            seen = {spec: {**self.cause.dirty(spec), **rows} for spec, rows in dirty.items()}
            rows = lender.query(statement, tables, seen, parameters)
            self._scans.append(_Scan(statement, parameters, tables, dirty, rows))
            return rows

    def commit(self, versions: Workspace) -> None:
        """Commit on the server, which `Dependencies.await_leave` has allowed; see `Hierarchy`.

        Raises
        ------
        SerializationConflict
            If something is not any more as it was seen.
        """
        self._take_over()
        super().commit(versions)

    def leave(self) -> None:
        """Before the locks are given up, as it aborts: take back what the cause has not asked for.

        Otherwise the cause would rely on rows that nobody keeps others from writing. What it has
        asked for, too, it asks for again.
        """
        above = self.cause.hierarchy
        for spec, keys in self._brought.items():
            above.forget_rows(spec, keys)
        with self.latch:
            asked = {spec: list(keys) for spec, keys in self._askers.items()}
        above.take_back(self, asked)

    def take_back(self, asker: Hierarchy, asked: Mapping[TableSpec, Collection[Key]]) -> None:
        """See `Hierarchy`. Rows without askers are not checked when this one takes over."""
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
        """Whether it has the row, or whom it reads through."""
        if super().has_read(spec, key):
            return True
        return not self._is_alone and self.cause.hierarchy.has_read(spec, key)

    def forget_rows(self, spec: TableSpec, keys: Collection[Key]) -> None:
        """See `Hierarchy`; whom it reads through forgets them, too."""
        super().forget_rows(spec, keys)
        if not self._is_alone:
            self.cause.hierarchy.forget_rows(spec, keys)

    # -- inside ----------------------------------------------------------------------------

    @contextmanager
    def _lender(self) -> Iterator[Hierarchy | None]:
        """Whose connection to use: the cause's, which does not commit meanwhile; None: our own."""
        if not self._is_alone:
            above = self.cause.hierarchy
            assert above.lending is not None, "set before anybody can depend on it"
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
        """Note which rows the lender has not read; they are locked for this one by now."""
        new = [key for key in keys if not lender.has_read(spec, key)]
        if new:
            with self.latch:
                self._brought.setdefault(spec, set()).update(new)

    def _noted(
        self, spec: TableSpec, base: Mapping[Key, Row | None], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        found = {key: self.cause._visible(spec, key, base) for key in base}
        with self.latch:
            self._seen.setdefault(spec, {}).update(found)
            if exclusive:
                self._exclusive.setdefault(spec, set()).update(found)
        return found

    def _take_over(self) -> None:
        """Once the cause has committed: lock at the server what was locked through it.

        Between its commit and this another process may have changed something.

        Raises
        ------
        TransactionAborted
            If the cause has aborted.
        SerializationConflict
            If something is not any more as it was seen.
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
    """A row in a form that can be compared; objects of mapped classes by what is loaded."""
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
