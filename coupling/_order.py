"""Priorities: higher first, equal ones together, none last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TypeVar

__all__ = ["priority_groups"]

T = TypeVar("T")


def priority_groups(items: Iterable[T], priority: Callable[[T], int | None]) -> list[list[T]]:
    """Split triggered rules into groups that run one after another.

    Parameters
    ----------
    items : iterable
        What was triggered together, in a stable order.
    priority : callable
        Item to priority; None is the lowest.

    Returns
    -------
    list of lists
        Higher priorities first; items of one group may run in parallel. The order inside a
        group is the order given.

    Notes
    -----
    O(n log n). (Saygin, Ulusoy, Chakravarthy, section 3.2.)
    """

    def rank(item: T) -> tuple[bool, int]:
        value = priority(item)
        return (value is None, -(value or 0))

    return [list(group) for _, group in groupby(sorted(items, key=rank), key=rank)]
