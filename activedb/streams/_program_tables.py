"""Shared tables of programs, and the database tables that store their rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from activedb.errors import AccessError, DefinitionError
from activedb.events import decode_params, encode_params
from activedb.scheduling import REMOVED, At, SharedTable, State, Versions
from activedb.store.journals import ProgramJournal
from activedb.store.sql import Key, KeyedValues, Row, TableSpec
from activedb.transactions import Forest, Node
from lockmgr import Mode

__all__ = ["ProgramTable", "check_row", "take_tables"]

_BEFORE_ALL = At(-(2**62), "", 0)
"""Place of versions from before the first s-transaction."""


def take_tables(
    forest: Forest, specs: Sequence[TableSpec], writer: str, load: Callable[[], None]
) -> None:
    """Take ownership of tables for this process, run `load`, and bar other writers.

    Raises
    ------
    TableOwned
        If another process uses one of them.
    DefinitionError
        If the server itself changes rows of one of them, or `load` raises it.
    """

    def take(t: Node) -> None:
        for spec in specs:
            t.lock_table(spec, Mode.X)  # until current writers have ended
            forest.store.ownership.own(spec, loads=False)
        load()
        for spec in specs:
            forest.writers[spec] = writer

    forest.run(take)


class ProgramTable:
    """Shared table, with the database table that stores the newest values of its keys.

    A table with a history also has its recent versions in activedb's own table.

    Attributes
    ----------
    shared : SharedTable
    kept : KeyedValues
    """

    def __init__(self, shared: SharedTable, kept: KeyedValues):
        self.shared = shared
        self.kept = kept

    def load(self, state: State, journal: ProgramJournal) -> None:
        """Build the versions from committed rows; O(rows + versions).

        Raises
        ------
        DefinitionError
            If a row is not a valid key and value of the shared table.
        """
        versions = state.of(self.shared)
        newest: dict[Any, tuple[At, Any]] = {}
        for key, at, value in self._recent(journal) if self.shared.history_us else ():
            versions.write(key, at, value)
            newest[key] = max((at, value), newest.get(key, (at, value)), key=itemgetter(0))
        # The rows are authoritative: they may have been repaired while no process owned the table.
        for row in journal.rows(self.kept.spec):
            key, value = self.kept.pair(row)
            check_row(self.shared, self.kept, key, value)
            at, known = newest.pop(key, (_BEFORE_ALL, REMOVED))
            if known is REMOVED or known != value:
                versions.write(key, at, value)
        for key, (at, known) in newest.items():
            if known is not REMOVED:
                versions.write(key, at, REMOVED)

    def _recent(self, journal: ProgramJournal) -> Iterator[tuple[Any, At, Any]]:
        """Yield keys, places and values of the stored versions."""
        name = self.kept.spec.name
        for record in journal.versions(name):
            key = decode_params(json.loads(record["key"]))["key"]
            value = REMOVED if record["removed"] else decode_params(record["value"])["value"]
            at = At(record["us"], "", record["arrival"])
            yield tuple(key) if isinstance(key, list) else key, at, value
        for data in journal.columns.versions(name):  # written in columns: NumPy exists
            from activedb.columns.program import ColumnVersions

            yield from ColumnVersions.of_bytes(data).each()

    def records(self, versions: Versions, since: At) -> Iterator[Mapping[str, Any]]:
        """Yield the records to store for the versions written at or after a place.

        Raises
        ------
        BadEvent
            If a key or a value cannot be stored.
        """
        if not self.shared.history_us:
            return
        for key, found in versions.since(since).items():
            plain = list(key) if isinstance(key, tuple) else key
            text = json.dumps(encode_params({"key": plain}))
            for at, value in found:
                is_removed = value is REMOVED
                yield {
                    "name": self.kept.spec.name,
                    "us": at.us,
                    "arrival": at.arrival,
                    "key": text,
                    "value": None if is_removed else encode_params({"value": value}),
                    "removed": is_removed,
                }

    def rows(self, versions: Versions, since: At) -> dict[Key, Row | None]:
        """Return the newest rows of the keys written at or after a place; None for removed keys.

        Raises
        ------
        InvalidRow
            If the table cannot store a key or a value.
        """
        spec = self.kept.spec
        found: dict[Key, Row | None] = {}
        for key, places in versions.since(since).items():
            value = places[-1][1]
            found[spec.key(key)] = None if value is REMOVED else self.kept.row(key, value)
        return found

    def write(self, t: Node, rows: Mapping[Key, Row | None]) -> None:
        """Write rows in a transaction, with a constant number of steps."""
        spec = self.kept.spec
        t.lock_table(spec, Mode.X)  # one table lock instead of row locks
        old = t.read_locked(spec, list(rows))
        t.write_all(spec, [(key, old[key], new) for key, new in rows.items() if old[key] != new])


def check_row(shared: SharedTable, kept: KeyedValues, key: Any, value: Any) -> None:
    """Raise `DefinitionError` if a row is not a valid key and value of the shared table."""
    try:
        shared.check_key(key)
        shared.check_value(value)
    except AccessError as error:
        raise DefinitionError(
            f"table {kept.spec.name} has a row that {shared.name} cannot have: {error}"
        ) from error
