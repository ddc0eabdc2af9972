"""The shared tables of programs, and the tables of the database that their rows are in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from activedb.errors import AccessError, DefinitionError
from activedb.events import decode_params, encode_params
from activedb.scheduling import REMOVED, At, SharedTable, State, Versions
from activedb.store import Key, KeyedValues, ProgramJournal, Row
from activedb.transactions import Transaction
from lockmgr import Mode

__all__ = ["ProgramTable"]

_BEFORE_ALL = At(-(2**62), "", 0)
"""The place of what was there before the first s-transaction."""


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
        recent = journal.versions(self.kept.spec.name) if self.shared.history_us else ()
        for record in recent:
            at = At(record["us"], "", record["arrival"])
            key = decode_params(json.loads(record["key"]))["key"]
            key = tuple(key) if isinstance(key, list) else key
            value = REMOVED if record["removed"] else decode_params(record["value"])["value"]
            versions.write(key, at, value)
            newest[key] = (at, value)
        # The rows count: somebody may have mended them while nobody had the table.
        for row in journal.rows(self.kept.spec):
            key, value = self.kept.pair(row)
            try:
                self.shared.check_key(key)
                self.shared.check_value(value)
            except AccessError as error:
                raise DefinitionError(
                    f"table {self.kept.spec.name} has a row that {self.shared.name} cannot have: "
                    f"{error}"
                ) from error
            at, known = newest.pop(key, (_BEFORE_ALL, REMOVED))
            if known is REMOVED or known != value:
                versions.write(key, at, value)
        for key, (at, known) in newest.items():
            if known is not REMOVED:
                versions.write(key, at, REMOVED)

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
