"""Record of rules: events, what they triggered, and the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from activedb.events import Occurrence
from activedb.transactions import State, Transaction

__all__ = ["Fate", "Firing", "Seen", "has_params"]

Fate: TypeAlias = Literal["committed", "aborted", "open"]
"""Outcome of a transaction and of all its superiors."""


def fate_of(t: Transaction) -> Fate:
    """Return the outcome of `t` with all its superiors; O(depth)."""
    node: Transaction | None = t
    is_open = False
    while node is not None:
        if node.state is State.ABORTED:
            return "aborted"
        is_open = is_open or node.state is not State.COMMITTED
        node = node.parent
    return "open" if is_open else "committed"


@dataclass(eq=False, slots=True)
class Firing:
    """A rule that was triggered, or one run of it.

    Attributes
    ----------
    rule : str
    occurrence : Occurrence
        The occurrence that triggered it.
    transaction : Transaction
        The transaction in which it was triggered, or has run.
    coupling : str
    outcome : str
        ``"triggered"``; for a run ``"running"``, ``"acted"``, ``"condition false"``, ``"action
        later"`` or ``"failed"``.
    error : BaseException or None
    """

    rule: str
    occurrence: Occurrence
    transaction: Transaction
    coupling: str
    outcome: str
    error: BaseException | None = None

    @property
    def fate(self) -> Fate:
        """Outcome of its transaction: ``"committed"``, ``"aborted"`` or ``"open"``."""
        return fate_of(self.transaction)


@dataclass(slots=True)
class Seen:
    """All records of a witness; ``raised`` counts events by their keys."""

    raised: Counter[tuple[str, str]] = field(default_factory=Counter)
    triggered: list[Firing] = field(default_factory=list)
    runs: list[Firing] = field(default_factory=list)


def has_params(o: Occurrence, wanted: Mapping[str, Any]) -> bool:
    """Return whether an occurrence, or a part of it, has these parameters or columns."""
    if all(name in o.params and o.params[name] == value for name, value in wanted.items()):
        return True
    return any(has_params(part, wanted) for part in _parts(o))


def _parts(o: Occurrence) -> Iterable[Occurrence]:
    for part in o.parts.values():
        yield from part if isinstance(part, tuple) else (part,)
