"""Random numbers for tests: they stem from the seed of this run, which is printed at its top.

A world may prove little: if no order in it is uncertain and nothing is late, a property holds
trivially. So a test states what it wants to meet, and draws on until it has.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
SEED = int(os.environ["ACTIVEDB_TEST_SEED"])  # set by tests/conftest.py if it is not given
# What is met once in `count` worlds is not met in so many times `count` with a chance of e**-100.
_TIMES = 100


def drawn(*of: object) -> Random:
    """A source of chance for what ``of`` names: the same whenever the seed is the same."""
    return Random(" ".join(map(str, (SEED, *of))))


class Worlds:
    """``count`` worlds, and then more until what is wanted was met.

    Iterating gives each world's source of chance. The test counts in ``met`` what it meets.

    Parameters
    ----------
    count
        How many worlds at least. In so many, what is wanted should be met.
    of
        What else tells the worlds of one test from those of another.
    wanted
        How often each must be met, by name.
    """

    def __init__(self, count: int, *of: object, **wanted: int) -> None:
        self.met: Counter[str] = Counter()
        self._count = count
        self._of = of
        self._wanted = wanted

    def __iter__(self) -> Iterator[Random]:
        most = self._count * _TIMES
        for number in range(most):
            if number >= self._count and not self._missing():
                return
            yield drawn(*self._of, number)
        missing = self._missing()
        assert not missing, f"{most} worlds, and too seldom: {missing} (met: {dict(self.met)})"

    def _missing(self) -> list[str]:
        return [name for name, least in self._wanted.items() if self.met[name] < least]
