"""The shared tables of programs, and the tables of the database that their rows are in."""

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
from activedb.transactions import Forest, Transaction
from lockmgr import Mode

__all__ = ["ProgramTable", "check_row", "take_tables"]

_BEFORE_ALL = At(-(2**62), "", 0)
"""The place of what was there before the first s-transaction."""


def take_tables(
    forest: Forest, specs: Sequence[TableSpec], writer: str, load: Callable[[], None]
) -> None:
    """Take tables for this process, read them by `load`, and let nobody else write them.

    Raises
    ------
    TableOwned
        If another process uses one.
    DefinitionError
        If the server itself changes rows of one, or `load` says so.
    """

    def take(t: Transaction) -> None:
        for spec in specs:
            t.lock_table(spec, Mode.X)  # until who is writing has ended
            forest.store.ownership.own(spec, loads=False)
        load()
        for spec in specs:
            forest.writers[spec] = writer

    forest.run(take)


class ProgramTable:
    """A shared table, and the table whose rows are the newest values of its keys.

    A table that keeps a history has its recent versions in activedb's own table, too.

    Attributes
    ----------
    shared : SharedTable
    kept : KeyedValues
    """

    def __init__(self, shared: SharedTable, kept: KeyedValues):
        self.shared = shared
        self.kept = kept

    def load(self, state: State, journal: ProgramJournal) -> None:
        """Make versions of what is committed; O(rows and versions).

        Raises
        ------
        DefinitionError
            If a row cannot be a key and a value of the shared table.
        """
        versions = state.of(self.shared)
        newest: dict[Any, tuple[At, Any]] = {}
        for key, at, value in self._recent(journal) if self.shared.history_us else ():
            versions.write(key, at, value)
            newest[key] = max((at, value), newest.get(key, (at, value)), key=itemgetter(0))
        # The rows count: somebody may have mended them while nobody had the table.
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
        """Keys, places and values of the versions that are kept."""
        name = self.kept.spec.name
        for record in journal.versions(name):
            key = decode_params(json.loads(record["key"]))["key"]
            value = REMOVED if record["removed"] else decode_params(record["value"])["value"]
            at = At(record["us"], "", record["arrival"])
            yield tuple(key) if isinstance(key, list) else key, at, value
        for data in journal.columns.versions(name):  # left by a run in columns, so numpy is there
            from activedb.columns.program import ColumnVersions

            yield from ColumnVersions.of_bytes(data).each()

    def records(self, versions: Versions, since: At) -> Iterator[Mapping[str, Any]]:
        """What is to be kept of the versions written at or after a place.

        Raises
        ------
        BadEvent
            If a key or a value cannot be kept.
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
        """The newest rows of the keys written at or after a place; None: it has none any more.

        Raises
        ------
        InvalidRow
            If the table cannot keep a key or a value.
        """
        spec = self.kept.spec
        found: dict[Key, Row | None] = {}
        for key, places in versions.since(since).items():
            value = places[-1][1]
            found[spec.key(key)] = None if value is REMOVED else self.kept.row(key, value)
        return found

    def write(self, t: Transaction, rows: Mapping[Key, Row | None]) -> None:
        """Write rows in a transaction; a few steps for however many."""
        spec = self.kept.spec
        t.lock_table(spec, Mode.X)  # instead of row by row
        old = t.read_locked(spec, list(rows))
        t.write_all(spec, [(key, old[key], new) for key, new in rows.items() if old[key] != new])


def check_row(shared: SharedTable, kept: KeyedValues, key: Any, value: Any) -> None:
    """Raise `DefinitionError` if a row is no key and value that the shared table can have."""
    try:
        shared.check_key(key)
        shared.check_value(value)
    except AccessError as error:
        raise DefinitionError(
            f"table {kept.spec.name} has a row that {shared.name} cannot have: {error}"
        ) from error
