"""Functions that rules from data name."""

from __future__ import annotations

from os import getcwd  # what a module has for itself is not offered to data
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from activedb import Occurrence, Transaction
    from activedb.errors import UncertainOrder

__all__ = [
    "capital",
    "check",
    "choose",
    "grow",
    "is_big",
    "is_open",
    "is_poor",
    "is_rising",
    "note",
    "peeks",
]

noted: list[str] = []
here = getcwd


def note(t: Transaction, o: Occurrence) -> None:
    """Note the event."""
    noted.append(o.name)


def grow(t: Transaction, o: Occurrence, *, by: int) -> None:
    """Note a number, more by a parameter."""
    noted.append(f"{o.params['n'] + by}")


def check(t: Transaction, o: Occurrence, *, limit: int = 5) -> bool:
    """Return whether a number is below a parameter."""
    return bool(o.params["n"] < limit)


def is_big(o: Occurrence) -> bool:
    """Return whether the number of an event is a big one."""
    return bool(o.params["n"] > 100)


def is_poor(t: Transaction, o: Occurrence) -> bool:
    """Return whether a row's balance is small."""
    return bool(o.params["balance"] < 5)


def is_rising(parts: Mapping[str, Occurrence]) -> bool:
    """Return whether the numbers of the parts A and B rise."""
    return bool(parts["A"].params["n"] < parts["B"].params["n"])


def is_open(t: Transaction, o: object) -> bool:
    """Return whether there is an account 1."""
    return t.get("accounts", 1) is not None


def choose(error: UncertainOrder) -> tuple[object, ...]:
    """Make all candidates whose order is not certain."""
    return tuple(error.candidates)


def peeks(t: Transaction, o: Occurrence) -> bool:
    """Return whether there is a row in a table that the event names."""
    return t.get(o.params["table"], 1) is not None


def _hidden(t: Transaction, o: Occurrence) -> None:
    noted.append("hidden")


capital = 3
