"""Matches of a columnar detector: row numbers, and occurrences on demand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from activedb.columns.events import EventColumns, Ints
from activedb.events import Occurrence
from activedb.events.terms import Term

__all__ = ["Chunk", "Matches"]


@dataclass(frozen=True, eq=False, slots=True)
class Chunk:
    """Events that are still needed, with their row numbers.

    Attributes
    ----------
    rows : array of int64
        Row numbers, ascending.
    columns : EventColumns
        One row per row number.
    """

    rows: Ints
    columns: EventColumns

    def only(self, rows: Ints) -> Chunk:
        """Return the events with these ascending row numbers; rows of other chunks are skipped."""
        places = np.searchsorted(self.rows, rows)
        places[places == len(self.rows)] = 0
        here = self.rows[places] == rows
        return Chunk(rows[here], self.columns.take(places[here]))


class Matches:
    """Matches that a batch completed, in the order in which its events completed them.

    Rows are numbered from 0 through all batches, in feeding order.

    Attributes
    ----------
    names : tuple of str
        Names of the positive parts.
    us : array of int64, of shape (matches,)
        Time of each match in microseconds: the time of its last constituent.
    at : array of int64, of shape (matches,)
        Row of the event that completed each match.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        title: str,
        us: Ints,
        at: Ints,
        flat: Ints,
        counts: Ints | None,
        tuples: Sequence[bool],
        chunks: Sequence[Chunk],
        returns: Sequence[tuple[str, Term]] = (),
    ):
        self.names = names
        self.us = us
        self.at = at
        self._title = title
        self._flat = flat
        # Number of constituents per match and part; None: one each.
        self._counts = None if counts is None else counts.reshape(-1, len(names))
        self._tuples = tuple(tuples)
        self._chunks = tuple(chunks)  # none is empty, and they are in ascending order
        self._returns = tuple(returns)

    def __len__(self) -> int:
        return len(self.us)

    def rows(self, name: str) -> Ints:
        """Return the rows of the constituents of a part, match after match.

        Raises
        ------
        KeyError
            If there is no part of this name.
        """
        part = self._part(name)
        found: Ints
        if self._counts is None:
            found = self._flat.reshape(-1, len(self.names))[:, part]
        else:
            counts = self._counts.ravel()
            taken = np.zeros(len(counts), bool)
            taken[part :: len(self.names)] = True
            found = self._flat[np.repeat(taken, counts)]
        return found

    def offsets(self, name: str) -> Ints:
        """Return where each match begins in `rows`, and where the last one ends.

        Without Kleene parts and outside the cumulative context: 0, 1, 2, …
        """
        part = self._part(name)
        if self._counts is None:
            return np.arange(len(self) + 1, dtype=np.int64)
        return np.concatenate(([0], np.cumsum(self._counts[:, part]))).astype(np.int64)

    def occurrences(self) -> list[Occurrence]:
        """Return the matches as the occurrences a `Detector` makes; O(constituents), in Python."""
        made = self._constituents()
        flat = self._flat.tolist()
        width = len(self.names)
        matches, place = [], 0
        for match in range(len(self)):
            parts: dict[str, Any] = {}
            params: dict[str, Any] = {}
            last: Occurrence | None = None
            for part, name in enumerate(self.names):
                count = 1 if self._counts is None else int(self._counts[match, part])
                found = tuple([made[row] for row in flat[place : place + count]])
                place += count
                parts[name] = found if self._tuples[part] else found[0]
                for last in found:
                    params.update(last.params)
            if self._returns:
                params = {name: term.evaluate(parts) for name, term in self._returns}
            assert last is not None, f"a match of {width} parts without a constituent"
            matches.append(Occurrence(self._title, last.timestamp, params, parts=parts))
        return matches

    def places(self) -> Ints:
        """Return the `places` of all constituents, each event once; REQUIRES: events had them."""
        found = [here.columns.places for here in self._of_constituents()]
        known = [places for places in found if places is not None]
        return np.concatenate(known) if known else np.empty((0, 2), np.int64)

    def only(self, wanted: Sequence[bool]) -> Matches:
        """Return the matches selected by a boolean mask."""
        chosen = np.array(wanted, bool)
        counts = self._counts
        if counts is None:
            flat = self._flat.reshape(-1, len(self.names))[chosen].ravel()
        else:
            flat = self._flat[np.repeat(chosen, counts.sum(axis=1))]
            counts = counts[chosen]
        return Matches(
            self.names,
            self._title,
            self.us[chosen],
            self.at[chosen],
            flat,
            counts,
            self._tuples,
            self._chunks,
            self._returns,
        )

    def _constituents(self) -> dict[int, Occurrence]:
        made: dict[int, Occurrence] = {}
        for here in self._of_constituents():
            made.update(zip(here.rows.tolist(), here.columns.to_occurrences(), strict=True))
        return made

    def _of_constituents(self) -> Iterator[Chunk]:
        """Yield the constituents as chunks, each once; O(k log chunks) for k of them."""
        rows = np.unique(self._flat)
        while len(rows):
            place = bisect_right(self._chunks, rows[0], key=lambda chunk: chunk.rows[0]) - 1
            chunk = self._chunks[place]
            count = int(np.searchsorted(rows, chunk.rows[-1], side="right"))
            yield chunk.only(rows[:count])
            rows = rows[count:]

    def _part(self, name: str) -> int:
        try:
            return self.names.index(name)
        except ValueError:
            raise KeyError(f"no part {name!r}: there are {', '.join(self.names)}") from None
