"""Lifecycle of a transaction, declared as a table of allowed moves."""

from __future__ import annotations

from enum import StrEnum

from activedb.errors import TransactionStateError

__all__ = ["State", "checked_move"]


class State(StrEnum):
    """State of a transaction in its lifecycle."""

    ACTIVE = "active"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"

    @property
    def is_final(self) -> bool:
        """True if no move leads out of this state."""
        return not _MOVES[self]


_MOVES: dict[State, frozenset[State]] = {
    State.ACTIVE: frozenset({State.COMMITTING, State.ABORTED}),
    State.COMMITTING: frozenset({State.COMMITTED, State.ABORTED}),
    State.COMMITTED: frozenset(),
    State.ABORTED: frozenset(),
}


def checked_move(now: State, then: State) -> State:
    """Return `then` if the lifecycle allows the move.

    Raises
    ------
    TransactionStateError
        If the lifecycle does not allow the move.
    """
    if then not in _MOVES[now]:
        raise TransactionStateError(f"a transaction that is {now} cannot become {then}")
    return then
