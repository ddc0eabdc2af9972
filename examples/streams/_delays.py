"""Functions that take longer: their complexity C in Mao et al., section 8.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["delayed", "nothing"]


def delayed(function: Callable[..., Any], turns: int) -> Callable[..., Any]:
    """Return a function that gives what `function` gives, after some turns of a loop.

    How long a turn takes depends on whether it is compiled: measure it. With no turns it is
    `function` itself.

    Parameters
    ----------
    function : callable
        Gives a number or None.
    turns : int
    """
    if not turns:
        return function

    def slow(*values: Any) -> Any:
        value = function(*values)
        if value is None:
            return None
        return value + nothing(turns)

    return slow


def nothing(turns: int) -> float:
    """Return 0.0, such that no compiler finds out before the loop has ended."""
    x = 0.3
    for _ in range(turns):
        x = 3.9 * x * (1.0 - x)  # stays between 0 and 1
    return 0.0 if x < 2.0 else x
