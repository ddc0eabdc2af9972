"""Choices for random expressions and histories."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from hypothesis import strategies as st

__all__ = ["Chooser", "Drawn", "Thrown"]


class Chooser(Protocol):
    """Source of choices."""

    def integer(self, least: int, most: int) -> int: ...

    def pick(self, choices: Sequence[Any]) -> Any: ...


class Drawn:
    """Choices that Hypothesis draws; they shrink to the least, and to the first."""

    def __init__(self, draw: st.DrawFn):
        self._draw = draw

    def integer(self, least: int, most: int) -> int:
        return self._draw(st.integers(least, most))

    def pick(self, choices: Sequence[Any]) -> Any:
        return self._draw(st.sampled_from(choices))


class Thrown:
    """Choices by dice."""

    def __init__(self, random: Random):
        self._random = random

    def integer(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def pick(self, choices: Sequence[Any]) -> Any:
        return self._random.choice(choices)
