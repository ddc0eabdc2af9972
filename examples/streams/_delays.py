"""Artificially slow functions: the complexity C in Mao et al., section 8.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["delayed", "nothing"]


def delayed(function: Callable[..., Any], turns: int) -> Callable[..., Any]:
    """Return a function that spins in a loop, then returns the result of `function`.

    The duration of an iteration depends on whether the loop is compiled, so measure it. With no
    iterations, `function` itself is returned.

    Parameters
    ----------
    function : callable
        Returns a number or None.
    turns : int
        Number of iterations.
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
    """Return 0.0 after a loop that a compiler cannot optimise away."""
    x = 0.3
    for _ in range(turns):
        x = 3.9 * x * (1.0 - x)  # stays between 0 and 1
    return 0.0 if x < 2.0 else x
