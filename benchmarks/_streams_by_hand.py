"""Hand-written equivalents of the programs: plain loops over dicts, for these programs alone.

Each takes the events in columns, in the order of time, and changes its tables, which are dicts.
Nothing is scheduled, nothing can be undone, no outcome is kept: a bound for Python rather than a
practical method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["grep_sum", "streaming_ledger", "toll_processing"]

Tables = Mapping[str, dict[int, float]]

_MODULUS = 1_000_003.0


def streaming_ledger(events: Any, tables: Tables) -> None:
    """Run deposits and transfers of length 4."""
    owned, assets = tables["accounts"], tables["assets"]
    names = ("from0", "to0", "amount0", "from1", "to1", "amount1")
    columns = [events.params[name].tolist() for name in names]
    for code, from0, to0, amount0, from1, to1, amount1 in zip(
        events.codes.tolist(), *columns, strict=True
    ):
        if code:
            if owned[from0] < amount0 or assets[from1] < amount1:
                continue
            owned[from0] -= amount0
            assets[from1] -= amount1
        elif amount0 <= 0 or amount1 <= 0:
            continue
        owned[to0] += amount0
        assets[to1] += amount1


def grep_sum(events: Any, tables: Tables) -> None:
    """Run sums of two keys and a number."""
    values = tables["values"]
    columns = [events.params[name].tolist() for name in ("key0", "number0", "read0_0", "read0_1")]
    for key, number, first, second in zip(*columns, strict=True):
        summed = values[first] + values[second] + number
        if summed >= 0:
            values[key] = summed % _MODULUS


def toll_processing(events: Any, tables: Tables) -> None:
    """Run reports of one segment each."""
    speeds, counts = tables["speeds"], tables["counts"]
    columns = [events.params[name].tolist() for name in ("segment0", "speed0")]
    for segment, speed in zip(*columns, strict=True):
        if speed < 0:
            continue
        before = speeds[segment]
        speeds[segment] = (before + speed) / 2 if before else speed
        counts[segment] += 1
