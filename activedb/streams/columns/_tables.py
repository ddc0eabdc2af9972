"""Shared table of a program in columns, with the database table that stores its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from activedb.columns.events import Column, Ints
from activedb.columns.program import ColumnState, ColumnVersions
from activedb.events import decode_params
from activedb.scheduling import SharedTable
from activedb.store import Connection
from activedb.store.flush import ColumnRows
from activedb.store.journals import ProgramJournal
from activedb.store.sql import KeyedValues
from activedb.streams._program_tables import check_row

__all__ = ["ChangedRows", "ColumnTable"]

_BEFORE_ALL_US = -(2**62)
"""Place of versions from before the first s-transaction."""


@dataclass(frozen=True, eq=False, slots=True)
class ChangedRows:
    """Changes of a table's rows.

    Attributes
    ----------
    added, changed : tuple of (array of int64, array of float64)
        Keys and values of new rows, and of rows with new values.
    gone : array of int64
        Keys of deleted rows.
    """

    added: tuple[Ints, Column]
    changed: tuple[Ints, Column]
    gone: Ints


class ColumnTable:
    """Shared table of a program in columns; the counterpart of `ProgramTable`.

    Versions are stored as bytes, one value or a few per part.

    Parameters
    ----------
    shared : SharedTable
        With a size.
    kept : KeyedValues
        With one key column and float values.
    """

    def __init__(self, shared: SharedTable, kept: KeyedValues):
        self.shared = shared
        self.kept = kept
        self.rows = ColumnRows(kept.spec, kept.columns[0])

    def load(self, state: ColumnState, journal: ProgramJournal) -> None:
        """Load the committed rows and versions into a new state; O(rows + versions).

        Raises
        ------
        DefinitionError
            If a row is not a valid key and value of the shared table.
        """
        keys, values = self._checked(*journal.read_columns(self.rows))
        state.put(self.shared, keys, values)
        if self.shared.history_us:
            kept = self._kept_versions(journal)
            state.put_versions(self.shared, self._mended(kept, keys, values))

    def changes(self, state: ColumnState, before: ColumnState) -> ChangedRows | None:
        """Return the changes since the last `settle`; None if there are none.

        Parameters
        ----------
        before : ColumnState
            Copy of the state at that time.
        """
        keys, values, there = state.changes(self.shared)
        place = before.number(self.shared)
        was = before.is_written(self.shared, keys)
        differ = was & there & (values != before.values[place][keys])
        added, gone = there & ~was, was & ~there
        if not (differ.any() or added.any() or gone.any()):
            return None
        return ChangedRows((keys[added], values[added]), (keys[differ], values[differ]), keys[gone])

    def write(self, connection: Connection, changes: ChangedRows) -> None:
        """Write the rows, in a constant number of round trips."""
        self.rows.write(connection, added=changes.added, changed=changes.changed, gone=changes.gone)

    # -- versions --------------------------------------------------------------------------

    def versions(self, state: ColumnState, first_us: int) -> ColumnVersions | None:
        """Return the versions at or after a time that must be stored; None if there are none."""
        if not self.shared.history_us:
            return None
        found = state.versions_since(self.shared, first_us)
        return found if len(found) else None

    # -- internals -------------------------------------------------------------------------

    def _checked(self, keys: Any, values: Any) -> tuple[Ints, Column]:
        """Return keys and values of rows as arrays, after checking that the table allows them."""
        size = self.shared.size or 0
        if isinstance(keys, np.ndarray) and isinstance(values, np.ndarray):
            bad = np.flatnonzero((keys < 0) | (keys >= size))
            doubtful = [(keys.item(row), values.item(row)) for row in bad[:1].tolist()]
        else:
            doubtful = list(zip(keys, values, strict=True))
        for key, value in doubtful:
            check_row(self.shared, self.kept, key, value)
        return np.asarray(keys, np.int64), np.asarray(values, np.float64)

    def _kept_versions(self, journal: ProgramJournal) -> ColumnVersions:
        """Return the versions stored in columns and those stored one by one by other schedulers."""
        name = self.kept.spec.name
        found = [ColumnVersions.of_bytes(data) for data in journal.columns.versions(name)]
        records = journal.versions(name)
        gone = np.array([record["removed"] for record in records], np.bool_)
        found.append(
            ColumnVersions(
                np.array([decode_params(json.loads(r["key"]))["key"] for r in records], np.int64),
                np.array([record["us"] for record in records], np.int64),
                np.array([record["arrival"] for record in records], np.int64),
                np.array(
                    [0.0 if r["removed"] else decode_params(r["value"])["value"] for r in records],
                    np.float64,
                ),
                gone,
            )
        )
        all_ = _joined(found)
        fit = (all_.keys >= 0) & (all_.keys < (self.shared.size or 0))  # the size may have shrunk
        return all_ if fit.all() else all_.take(fit)

    def _mended(self, kept: ColumnVersions, keys: Ints, values: Column) -> ColumnVersions:
        """Return the versions, with the newest of each key corrected from the rows.

        The rows are authoritative: they may have been repaired while no process owned the table.
        """
        size = self.shared.size or 0
        of_row = np.full(size, np.nan)
        of_row[keys] = values
        has_row = np.zeros(size, np.bool_)
        has_row[keys] = True
        order = np.lexsort((kept.arrivals, kept.us, kept.keys))
        last = np.ones(len(order), np.bool_)
        last[:-1] = kept.keys[order][1:] != kept.keys[order][:-1]
        newest = order[last]
        known = kept.keys[newest]
        written, gone = kept.values.copy(), kept.gone.copy()
        written[newest] = np.where(has_row[known], of_row[known], 0.0)
        gone[newest] = ~has_row[known]
        has_row[known] = False  # the remaining keys have rows but no stored versions
        others = np.flatnonzero(has_row)
        return _joined(
            [
                ColumnVersions(kept.keys, kept.us, kept.arrivals, written, gone),
                ColumnVersions(
                    others,
                    np.full(len(others), _BEFORE_ALL_US),
                    np.zeros(len(others), np.int64),
                    of_row[others],
                    np.zeros(len(others), np.bool_),
                ),
            ]
        )


def _joined(parts: Sequence[ColumnVersions]) -> ColumnVersions:
    return ColumnVersions(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("keys", "us", "arrivals", "values", "gone")
        )
    )
