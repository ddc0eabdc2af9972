"""Dense numbering of 64-bit integers: a compiled hash table with open addressing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.compiler import jit

__all__ = ["number_all"]

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
