"""Dense numbers for equivalence keys, stable from batch to batch."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns.events import NO_VALUE, EventColumns, Ints, arrow
from activedb.compiler import jit
from activedb.errors import BadEvent

__all__ = ["IntNumbers", "KeyNumbers", "ValueNumbers"]

pa = arrow()


class IntNumbers:
    """Numbers for 64-bit integers: 0, 1, … in order of first appearance."""

    def __init__(self) -> None:
        self._numbers: Ints = np.full(64, -1, np.int64)
        self._values: Ints = np.empty(0, np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> Ints:
        """Integers by number."""
        return self._values[: self._count]

    def number(self, wanted: Ints) -> Ints:
        """Return the number of each integer; O(1) each."""
        found, self._numbers, self._values, self._count = number_all(
            np.ascontiguousarray(wanted), self._numbers, self._values, self._count
        )
        return found

    def copy(self) -> IntNumbers:
        """Return an independent copy; O(numbers)."""
        made = copy(self)
        made._numbers, made._values = self._numbers.copy(), self._values.copy()
        return made

    def reset(self, values: Ints) -> None:
        """Forget all numbers, then number these values."""
        size = 64
        while size < 4 * len(values):
            size *= 2
        self._numbers = np.full(size, -1, np.int64)
        self._values, self._count = np.empty(len(values), np.int64), 0
        self.number(values)


class ValueNumbers:
    """Numbers for values; two values share a number if they are equal as dictionary keys.

    Integers go through a compiled table as long as only integers occur.
    """

    def __init__(self) -> None:
        self._ints: IntNumbers | None = IntNumbers()
        self._by_value: dict[Any, int] = {}
        self._values: list[Any] = []

    def __len__(self) -> int:
        return len(self._values) if self._ints is None else len(self._ints)

    def number(self, column: Any, what: str) -> Ints:
        """Number each value of an array; None and NULL are the same value.

        Raises
        ------
        BadEvent
            If a value is absent, not hashable or not equal to itself; the message names the column
            `what`.
        """
        integers = _integers(column)
        if integers is not None and self._ints is not None:
            return self._ints.number(integers)
        if self._ints is not None:
            self._values = self._ints.values.tolist()
            self._by_value = {value: place for place, value in enumerate(self._values)}
            self._ints = None
        if isinstance(column, np.ndarray):
            return np.fromiter(
                (self._number_one(value, what) for value in column.tolist()), np.int64, len(column)
            )
        try:
            coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        except pa.ArrowNotImplementedError:  # lists and similar types
            return np.array([self._number_one(v, what) for v in column.to_pylist()], np.int64)
        known = [self._number_one(value, what) for value in coded.dictionary.to_pylist()]
        if coded.null_count:
            known.append(self._number_one(None, what))
            indices = coded.indices.fill_null(len(known) - 1)
        else:
            indices = coded.indices
        found: Ints = np.array(known, np.int64)[indices.to_numpy(zero_copy_only=False)]
        return found

    def copy(self) -> ValueNumbers:
        """Return an independent copy; O(numbers)."""
        made = copy(self)
        made._ints = None if self._ints is None else self._ints.copy()
        made._by_value, made._values = dict(self._by_value), list(self._values)
        return made

    def keep(self, kept: Ints) -> None:
        """Forget all values but those with these numbers, and renumber those from 0."""
        if self._ints is not None:
            self._ints.reset(self._ints.values[kept])
            return
        self._values = [self._values[number] for number in kept]
        self._by_value = {value: place for place, value in enumerate(self._values)}

    def _number_one(self, value: Any, what: str) -> int:
        if value is NO_VALUE:
            raise BadEvent(
                f"an event has no parameter {what!r}, which must be the same in all parts of the "
                "pattern"
            )
        try:
            number = self._by_value.get(value)
            comparable = number is not None or bool(value == value)
        except TypeError:
            comparable, number = False, None
        if not comparable:
            raise BadEvent(
                f"parameter {what!r} must be the same in all parts of the pattern, but its value "
                f"{value!r} cannot be compared: use a hashable value that is equal to itself"
            )
        if number is None:
            number = self._by_value[value] = len(self._values)
            self._values.append(value)
        return number


class KeyNumbers:
    """Numbers for combinations of the values of several parameters."""

    def __init__(self, attributes: tuple[str, ...]):
        self._attributes = attributes
        self._values = [ValueNumbers() for _ in attributes]
        # Pairs packed in one integer: the number so far, and the number of the next value.
        self._pairs = [IntNumbers() for _ in attributes[1:]]

    def __len__(self) -> int:
        if self._pairs:
            return len(self._pairs[-1])
        return len(self._values[0]) if self._values else 1

    def copy(self) -> KeyNumbers:
        """Return an independent copy; O(numbers)."""
        made = copy(self)
        made._values = [values.copy() for values in self._values]
        made._pairs = [pairs.copy() for pairs in self._pairs]
        return made

    def number(self, columns: EventColumns, rows: Ints) -> Ints:
        """Return the key numbers of these rows.

        Raises
        ------
        BadEvent
            As for `ValueNumbers.number`, and if a column is missing.
        """
        found: Ints | None = None
        for place, (name, values) in enumerate(zip(self._attributes, self._values, strict=True)):
            column = columns.params.get(name)
            if column is None:
                if not len(rows):
                    continue
                raise BadEvent(
                    f"the events have no parameter {name!r}, which must be the same in all parts "
                    "of the pattern"
                )
            numbers = values.number(_taken(column, rows), name)
            if found is None:
                found = numbers
            else:
                found = self._pairs[place - 1].number(found << 32 | numbers)
        return np.zeros(len(rows), np.int64) if found is None else found

    def keep(self, kept: Ints) -> None:
        """Forget all keys but those with these numbers, and renumber those from 0.

        REQUIRES: `kept` is ascending.
        """
        for place in range(len(self._pairs) - 1, -1, -1):
            pairs = self._pairs[place].values[kept]
            firsts, first_places = np.unique(pairs >> 32, return_inverse=True)
            seconds, second_places = np.unique(pairs & 0xFFFFFFFF, return_inverse=True)
            self._pairs[place].reset(first_places.astype(np.int64) << 32 | second_places)
            self._values[place + 1].keep(seconds)
            kept = firsts
        if self._values:
            self._values[0].keep(kept)


def _taken(column: Any, rows: Ints) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))


def _integers(column: Any) -> npt.NDArray[np.int64] | None:
    """Return the values as 64-bit integers if all of them are integers, else None."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "ib" or (column.dtype.kind == "u" and column.itemsize < 8):
            return column.astype(np.int64, copy=False)
        return None
    kind = column.type
    plain = pa.types.is_signed_integer(kind) or (
        pa.types.is_unsigned_integer(kind) and kind.bit_width < 64
    )
    if column.null_count or not plain:
        return None
    found: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False).astype(
        np.int64, copy=False
    )
    return found


# -- dense numbering of 64-bit integers: a compiled hash table with open addressing ----------------

Array = npt.NDArray[Any]

_EMPTY = -1


@jit
def _slot_of(value: int, numbers: Array, values: Array) -> int:
    """Return the slot that holds the number of `value`, or the empty slot where it belongs."""
    mask = numbers.shape[0] - 1
    scattered = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64((scattered ^ (scattered >> np.uint64(32))) & np.uint64(mask))
    while numbers[slot] != _EMPTY and values[numbers[slot]] != value:
        slot = (slot + 1) & mask
    return int(slot)


@jit
def number_all(
    wanted: Array, numbers: Array, values: Array, count: int
) -> tuple[Array, Array, Array, int]:
    """Number integers; assign the next numbers to new ones.

    Parameters
    ----------
    wanted : array of int64
    numbers : array of int64, a power of two long
        The hash table of numbers; -1 marks an empty slot.
    values : array of int64
        The integers by number; the first `count` are valid.

    Returns
    -------
    found : array of int64
        Number of each of `wanted`.
    numbers, values, count
        Updated state.
    """
    found = np.empty(wanted.shape[0], np.int64)
    for i in range(wanted.shape[0]):
        slot = _slot_of(wanted[i], numbers, values)
        if numbers[slot] == _EMPTY:
            if count == values.shape[0]:
                longer = np.empty(2 * count + 16, np.int64)
                longer[:count] = values
                values = longer
            values[count] = wanted[i]
            numbers[slot] = count
            count += 1
            if 2 * count > numbers.shape[0]:
                numbers = np.full(2 * numbers.shape[0], _EMPTY, np.int64)
                for number in range(count):
                    numbers[_slot_of(values[number], numbers, values)] = number
            found[i] = count - 1
        else:
            found[i] = numbers[slot]
    return found, numbers, values, count
