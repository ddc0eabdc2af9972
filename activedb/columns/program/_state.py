"""Dense tables in columns, and the versions, chained per key, that windows read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from activedb.columns.events import Column, Ints, arrays_of_bytes, arrays_to_bytes
from activedb.compiler import jit
from activedb.errors import DefinitionError
from activedb.scheduling import REMOVED, At, Ref, SharedState, SharedTable, Writes, at_key

__all__ = ["CHANGED", "NONE", "WRITTEN", "ColumnState", "ColumnVersions", "VersionLog", "window"]


NONE: Final = -1
_SPARE = 65_536


class VersionLog:
    """Versions of all keys of all tables with history, each linked to its predecessor.

    Attributes
    ----------
    values : array of float64
    us, arrivals : array of int64
        Time and arrival number of the writing s-transactions.
    before : array of int64
        Place of the key's previous version, `NONE` for the oldest. For a version that removed the
        value: ``-3`` minus that place.
    used : int
        Places below it are taken. Some of them are empty; no version points to these.
    """

    def __init__(self) -> None:
        self.values: Column = np.empty(0, np.float64)
        self.us: Ints = np.empty(0, np.int64)
        self.arrivals: Ints = np.empty(0, np.int64)
        self.before: Ints = np.empty(0, np.int64)
        self.used = 0
        self._kept = 0  # versions left after the last trimming

    def reserve(self, count: int) -> int:
        """Make room for a number of further versions; return the place of the first."""
        needed = self.used + count
        if needed > len(self.values):
            size = max(needed, 2 * len(self.values), 1024)
            columns = (self.values, self.us, self.arrivals, self.before)
            longer = [np.empty(size, column.dtype) for column in columns]
            for old, new in zip(columns, longer, strict=True):
                new[: self.used] = old[: self.used]
            self.values, self.us, self.arrivals, self.before = longer  # all or none
        return self.used

    def copy(self) -> VersionLog:
        """Return an independent copy; O(versions)."""
        made = VersionLog()
        for name in ("values", "us", "arrivals", "before"):
            setattr(made, name, getattr(self, name)[: self.used].copy())
        made.used, made._kept = self.used, self._kept
        return made

    def put(self, place: int, at: At, value: Any, before: int) -> None:
        """Write a version."""
        gone = value is REMOVED
        self.values[place] = 0.0 if gone else value
        self.us[place] = at.us
        self.arrivals[place] = at.arrival
        self.before[place] = -3 - before if gone else before

    def chain(self, head: int) -> list[tuple[At, Any]]:
        """Return the versions of a key, newest first."""
        found: list[tuple[At, Any]] = []
        place = head
        while place != NONE:
            before = self.before.item(place)
            gone = before < NONE
            at = At(self.us.item(place), "", self.arrivals.item(place))
            found.append((at, REMOVED if gone else self.values.item(place)))
            place = -3 - before if gone else before
        return found

    def window(self, head: int, since_us: int) -> list[float]:
        """Return the values of a key's versions at or after a time, oldest first."""
        found = []
        place = head
        while place != NONE and self.us.item(place) >= since_us:
            before = self.before.item(place)
            if before < NONE:
                place = -3 - before
            else:
                found.append(self.values.item(place))
                place = before
        found.reverse()
        return found

    def needed(self, head: int, mark: At | None, history_us: int) -> tuple[tuple[At, Any], ...]:
        """Return a key's versions, oldest first, that s-transactions from `mark` on may need."""
        found = self.chain(head)
        if mark is None:
            return tuple(reversed(found))
        kept = []
        for number, (at, value) in enumerate(found):
            seen = number == 0 or found[number - 1][0] >= mark  # by a plain read
            if not seen and at.us < mark.us - history_us:
                break
            kept.append((at, value))
        if len(kept) == 1 and kept[0][1] is REMOVED and kept[0][0] < mark:
            return ()
        return tuple(reversed(kept))

    def add(
        self, keys: Ints, us: Ints, arrivals: Ints, values: Column, gone: Column, heads: Ints
    ) -> None:
        """Write the versions of keys that have none, grouped by key, oldest first.

        Parameters
        ----------
        gone : array of bool
            True where the version removed the key's value.
        heads : array of int64
            Newest version per key of the table.
        """
        count = len(keys)
        start = self.reserve(count)
        places = np.arange(start, start + count)
        before = places - 1
        starts = np.ones(count + 1, np.bool_)
        starts[1:-1] = keys[1:] != keys[:-1]
        before[starts[:-1]] = NONE
        self.values[start : start + count] = values
        self.us[start : start + count] = us
        self.arrivals[start : start + count] = arrivals
        self.before[start : start + count] = np.where(gone, -3 - before, before)
        newest = starts[1:]
        heads[keys[newest]] = places[newest]
        self.used = start + count

    def since(self, keys: Ints, heads: Ints, since_us: int) -> tuple[Ints, Ints]:
        """Return keys and places of the versions at or after a time; O(versions found + keys)."""
        found = np.empty((count_since(keys, heads, self.us, self.before, since_us), 2), np.int64)
        places_since(keys, heads, self.us, self.before, since_us, found)
        return found[:, 0], found[:, 1]

    def trimmed(
        self, heads: list[Ints], histories: list[int], mark: At
    ) -> tuple[VersionLog, list[Ints]] | None:
        """Return a trimmed copy of the log with its heads, or None if trimming is not worthwhile.

        Complexity: amortised O(1) per version.
        """
        if self.used <= 2 * self._kept + _SPARE:
            return None
        moved: Ints = np.empty(self.used, np.int64)
        kept = 0
        for of_table, history_us in zip(heads, histories, strict=True):
            if history_us:
                kept = choose(
                    of_table, self.us, self.before, mark.us, mark.us - history_us, moved, kept
                )
        chosen = moved[:kept]
        places = np.full(self.used + 1, NONE, np.int64)  # index -1, for `NONE`, is the last entry
        places[chosen] = np.arange(kept)
        made = VersionLog()
        for name in ("values", "us", "arrivals"):
            setattr(made, name, getattr(self, name)[chosen])
        made.before = relinked(self.before, chosen, places)
        made.used = made._kept = kept
        return made, [places[of_table] for of_table in heads]


@jit
def count_since(keys: Ints, heads: Ints, us: Ints, before: Ints, since_us: int) -> int:
    """Return the number of versions of keys at or after a time."""
    count = 0
    for key in keys:
        place = heads[key]
        while place != -1 and us[place] >= since_us:
            count += 1
            earlier = before[place]
            place = -3 - earlier if earlier < -1 else earlier
    return count


@jit
def places_since(
    keys: Ints, heads: Ints, us: Ints, before: Ints, since_us: int, found: Ints
) -> None:
    """Write the keys and places of those versions, one per row."""
    count = 0
    for key in keys:
        place = heads[key]
        while place != -1 and us[place] >= since_us:
            found[count, 0] = key
            found[count, 1] = place
            count += 1
            earlier = before[place]
            place = -3 - earlier if earlier < -1 else earlier


@jit
def choose(
    heads: Ints, us: Ints, before: Ints, mark_us: int, since_us: int, chosen: Ints, count: int
) -> int:
    """Write the places of the versions needed; return their new total."""
    for key in range(len(heads)):
        place = heads[key]
        seen = False  # True once a newer version is the one that a plain read at the mark sees
        while place != -1:
            if seen and us[place] < since_us:
                break
            chosen[count] = place
            count += 1
            seen = seen or us[place] < mark_us
            earlier = before[place]
            place = -3 - earlier if earlier < -1 else earlier
    return count


@jit
def relinked(before: Ints, chosen: Ints, places: Ints) -> Ints:
    """Return the links of the chosen versions after they have moved."""
    made = np.empty(len(chosen), np.int64)
    for number in range(len(chosen)):
        earlier = before[chosen[number]]
        gone = earlier < -1
        place = -3 - earlier if gone else earlier
        place = places[place] if place != -1 else place
        made[number] = -3 - place if gone else place
    return made


@jit
def window(values: Column, us: Ints, before: Ints, head: int, since_us: int) -> Column:
    """Return the values of a window as an array, oldest first; `VersionLog.window`, compiled."""
    count = 0
    place = head
    while place != -1 and us[place] >= since_us:
        earlier = before[place]
        if earlier < -1:
            place = -3 - earlier
        else:
            count += 1
            place = earlier
    made = np.empty(count, np.float64)
    place = head
    while count:
        earlier = before[place]
        if earlier < -1:
            place = -3 - earlier
        else:
            count -= 1
            made[count] = values[place]
            place = earlier
    return made


# -- dense tables in columns, and the versions that windows need -----------------------------------


WRITTEN: Final = 1
CHANGED: Final = 2
_BEGINNING: Final = At(-(2**63), "", 0)


@dataclass(frozen=True, eq=False, slots=True)
class ColumnVersions:
    """Versions of the keys of a table.

    Attributes
    ----------
    keys, us, arrivals : array of int64, of shape (versions,)
        Key of each version, and its place in the serial order.
    values : array of float64
    gone : array of bool
        True where the version removed the key's value.
    """

    keys: Ints
    us: Ints
    arrivals: Ints
    values: Column
    gone: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.keys)

    def each(self) -> Iterator[tuple[int, At, Any]]:
        """Yield key, place and value of each version; the value may be `REMOVED`."""
        columns = (self.keys, self.us, self.arrivals, self.values, self.gone)
        for key, us, arrival, value, gone in zip(*(c.tolist() for c in columns), strict=True):
            yield key, At(us, "", arrival), REMOVED if gone else value

    def to_bytes(self) -> bytes:
        """Encode the versions for storage; O(versions)."""
        return arrays_to_bytes(
            {
                "keys": self.keys,
                "us": self.us,
                "arrivals": self.arrivals,
                "values": self.values,
                "gone": self.gone,
            }
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> ColumnVersions:
        """Decode the result of `to_bytes`."""
        return cls(**arrays_of_bytes(data)[0])

    def take(self, chosen: Column | slice) -> ColumnVersions:
        """Return the versions selected by index or mask."""
        return ColumnVersions(
            self.keys[chosen],
            self.us[chosen],
            self.arrivals[chosen],
            self.values[chosen],
            self.gone[chosen],
        )


class ColumnState:
    """State of shared tables with a size, each a column with the newest value of every key.

    Parameters
    ----------
    tables : iterable of SharedTable

    Attributes
    ----------
    tables : tuple of SharedTable
    values : list of array of float64, each of shape (size,)
        Newest value of each key, per table.
    written : list of array of uint8, each of shape (size,)
        Flags: `WRITTEN`: the key has a value written by an s-transaction or loaded; `CHANGED`: it
        was written or removed since the last `settle`.
    heads : list of array of int64
        Per table with history: the place in `log` of each key's newest version; else empty.
    log : VersionLog
        Versions within the history of the tables that have one.
    mark : At or None
        Place up to which versions were trimmed.
    last_arrival : int
        Largest arrival number of an event that has run.

    Raises
    ------
    DefinitionError
        If a table has no size, or two tables share a name.

    Not thread-safe, except for accesses to different keys.
    """

    def __init__(self, tables: Iterable[SharedTable]):
        self.tables = tuple(tables)
        names = set()
        for table in self.tables:
            if table.size is None:
                raise DefinitionError(
                    f"table {table.name} has no size: give it one to hold it in columns"
                )
            if table.name in names:
                raise DefinitionError(f"two shared tables are called {table.name}")
            names.add(table.name)
        sizes = [table.size or 0 for table in self.tables]
        self.values: list[Column] = [
            np.full(size, table.initial, np.float64)
            for table, size in zip(self.tables, sizes, strict=True)
        ]
        self.written: list[Column] = [np.zeros(size, np.uint8) for size in sizes]
        self.heads: list[Ints] = [
            np.full(size if table.history_us else 0, NONE, np.int64)
            for table, size in zip(self.tables, sizes, strict=True)
        ]
        self.log = VersionLog()
        self.mark: At | None = None
        self.last_arrival = 0

    # -- whole tables ----------------------------------------------------------------------------

    def number(self, table: SharedTable) -> int:
        """Return the index of a table.

        Raises
        ------
        DefinitionError
            If the table is not part of this state.
        """
        for place, other in enumerate(self.tables):
            if other is table:
                return place
        raise DefinitionError(f"shared table {table.name} is not in this state")

    def column(self, table: SharedTable) -> Column:
        """Return the newest value of every key; the initial value for keys never written."""
        return self.values[self.number(table)]

    def newest(self, table: SharedTable) -> dict[Hashable, float]:
        """Return the newest value of every written key."""
        place = self.number(table)
        keys = np.flatnonzero(self.written[place] & WRITTEN)
        return dict(zip(keys.tolist(), self.values[place][keys].tolist(), strict=True))

    def changes(self, table: SharedTable) -> tuple[Ints, Column, npt.NDArray[np.bool_]]:
        """Return the changes since the last `settle`; O(size).

        Returns
        -------
        keys : array of int64
        values : array of float64
            Their newest values.
        there : array of bool
            False where the value was removed.
        """
        place = self.number(table)
        keys = np.flatnonzero(self.written[place] & CHANGED)
        return keys, self.values[place][keys], (self.written[place][keys] & WRITTEN) != 0

    def is_written(self, table: SharedTable, keys: Ints) -> npt.NDArray[np.bool_]:
        """Return for which keys a value has been written."""
        found: npt.NDArray[np.bool_] = (self.written[self.number(table)][keys] & WRITTEN) != 0
        return found

    def settle(self) -> None:
        """Mark the current state as settled: `changes` starts again from here."""
        for written in self.written:
            written &= WRITTEN

    def copy(self) -> ColumnState:
        """Return an independent copy; O(size of the tables + versions)."""
        made = ColumnState(self.tables)
        made.values = [values.copy() for values in self.values]
        made.written = [written.copy() for written in self.written]
        made.heads = [heads.copy() for heads in self.heads]
        made.log = self.log.copy()
        made.mark, made.last_arrival = self.mark, self.last_arrival
        return made

    def put(self, table: SharedTable, keys: Ints, values: Column) -> None:
        """Set the newest values of keys, as written before any s-transaction; O(keys).

        REQUIRES: the keys are distinct. For a table with history, `put_versions` follows.
        """
        place = self.number(table)
        self.values[place][keys] = values
        self.written[place][keys] |= WRITTEN

    def put_versions(self, table: SharedTable, versions: ColumnVersions) -> None:
        """Add the versions of keys of a table with history; O(n log n).

        REQUIRES: the keys have no versions, and the newest of each agrees with `put`.
        """
        order = np.lexsort((versions.arrivals, versions.us, versions.keys))
        v, heads = versions.take(order), self.heads[self.number(table)]
        self.log.add(v.keys, v.us, v.arrivals, v.values, v.gone, heads)
        self.last_arrival = max(self.last_arrival, int(versions.arrivals.max(initial=0)))

    def versions_since(self, table: SharedTable, us: int) -> ColumnVersions:
        """Return the versions at or after a time that were written since the last `settle`.

        REQUIRES: the table has history. Versions that have been trimmed are missing.
        """
        place = self.number(table)
        changed = np.flatnonzero(self.written[place] & CHANGED)
        keys, places = self.log.since(changed, self.heads[place], us)
        log = self.log
        gone = log.before[places] < NONE
        return ColumnVersions(keys, log.us[places], log.arrivals[places], log.values[places], gone)

    def all(self, table: SharedTable) -> dict[Hashable, tuple[tuple[At, Any], ...]]:
        """Return every version that a window or a read may need, oldest first.

        For tables without history these are the newest values; as their times were not kept, all
        are placed at the beginning of time.
        """
        place = self.number(table)
        if not table.history_us:
            return {key: ((_BEGINNING, value),) for key, value in self.newest(table).items()}
        found: dict[Hashable, tuple[tuple[At, Any], ...]] = {}
        for key in np.flatnonzero(self.heads[place] != NONE).tolist():
            versions = self.log.needed(self.heads[place][key], self.mark, table.history_us)
            if versions:
                found[key] = versions
        return found

    def to_state(self) -> SharedState:
        """Convert to a `SharedState` for a `ProgramRun`."""
        state = SharedState(self.tables)
        for table in self.tables:
            versions = state.of(table)
            for key, found in self.all(table).items():
                for at, value in found:
                    versions.write(key, at, value)
        return state

    @classmethod
    def of_state(cls, state: SharedState) -> ColumnState:
        """Convert from a `SharedState`, all of whose tables have sizes."""
        made = cls(versions.table for versions in state)
        for versions in state:
            for key, found in versions.all().items():
                for at, value in found:
                    made.write([(versions.table, key, value)], at)
                    made.last_arrival = max(made.last_arrival, at.arrival)
        return made

    # -- one s-transaction -----------------------------------------------------------------------

    def reader(self, before: At) -> Callable[[Ref], Any]:
        """Return a function that resolves references as of a place after all writes so far."""

        def read(ref: Ref) -> Any:
            place = self.number(ref.table)
            key: Any = at_key(ref, read)
            if ref.window_us is None:
                return self.values[place].item(key)
            return self.log.window(self.heads[place].item(key), before.us - ref.window_us)

        return read

    def write(self, writes: Writes, at: At) -> None:
        """Add versions at a place after all other versions of their keys."""
        if any(table.history_us for table, _, _ in writes):
            start = self.log.reserve(len(writes))
            self.write_at(writes, at, start)
            self.log.used = start + len(writes)
        else:
            self.write_at(writes, at, 0)

    def write_at(self, writes: Writes, at: At, start: int) -> None:
        """Add versions like `write`, at the reserved places of the log from `start` on."""
        for number, (table, key, value) in enumerate(writes):
            place, row = self.number(table), int(key)  # type: ignore[call-overload]
            gone = value is REMOVED
            self.values[place][row] = table.initial if gone else value
            self.written[place][row] = CHANGED if gone else CHANGED | WRITTEN
            if table.history_us:
                self.log.put(start + number, at, value, self.heads[place].item(row))
                self.heads[place][row] = start + number

    def trim(self, mark: At) -> None:
        """Forget versions that no s-transaction at or after `mark` can need."""
        if self.mark is None or mark > self.mark:
            self.mark = mark
        histories = [table.history_us for table in self.tables]
        made = self.log.trimmed(self.heads, histories, self.mark)
        if made is not None:
            self.log, self.heads = made
