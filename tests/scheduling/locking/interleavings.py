"""Every interleaving of a few s-transactions, and those that follow a given order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from activedb.scheduling import At

__all__ = ["Choose", "following", "interleavings"]

Choose = Callable[[Sequence[At]], At]
T = TypeVar("T")


def interleavings(run: Callable[[Choose], T]) -> Iterator[T]:
    """Yield what ``run(choose)`` returns in every interleaving, each choice tried depth first."""
    prefix: list[int] = []
    while True:
        taken: list[tuple[int, int]] = []

        def choose(
            standing: Sequence[At],
            prefix: list[int] = prefix,
            taken: list[tuple[int, int]] = taken,
        ) -> At:
            number = len(taken)
            index = prefix[number] if number < len(prefix) else 0
            taken.append((index, len(standing)))
            return standing[index]

        yield run(choose)
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        prefix = [index for index, _ in taken[:-1]] + [taken[-1][0] + 1]


def following(order: Sequence[At]) -> Choose:
    """Let those go on first who come first in an order of accesses, as far as locks allow it."""
    left = list(order)

    def choose(standing: Sequence[At]) -> At:
        for number, at in enumerate(left):
            if at in standing:
                return left.pop(number)
        return standing[0]

    return choose
