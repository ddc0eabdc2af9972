"""Record of the pieces that programs have used or have yet to use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from activedb.batches._grouping import Grouping
from activedb.batches._records import Piece
from activedb.errors import LineageError, UsedTwice

__all__ = ["Uses"]


class Uses:
    """Uses of pieces by programs.

    Parameters
    ----------
    is_live : callable
        Function that returns whether the transaction with an id is not compensated.
    """

    def __init__(self, is_live: Callable[[str], bool]):
        self._is_live = is_live
        # By batch and program: the transactions that have used each piece.
        self._users: dict[tuple[str, str], dict[Piece, list[str]]] = {}
        # By program and stream: the input batch of the transaction with the highest number.
        self._newest: dict[tuple[str, str], tuple[int, tuple[Piece, ...]]] = {}

    def check(self, program: str, pieces: Iterable[Piece], grouping: Grouping) -> None:
        """Raise if a program cannot use some pieces.

        Raises
        ------
        UsedTwice
            If input batches do not overlap, and a use of the same piece stands.
        LineageError
            If the batch was cut into another number of parts before.
        """
        for piece in pieces:
            users = self._users.get((piece.batch, program), {})
            cut = next((other.parts for other in users if other.parts != piece.parts), None)
            if cut is not None:
                raise LineageError(
                    f"{program!r} has used {piece.batch} cut in {cut}: it cannot use {piece}"
                )
            if grouping.overlaps:
                continue
            for user in users.get(piece, ()):
                if self._is_live(user):
                    raise UsedTwice(
                        f"{piece} was used by {program!r} before, in {user}: its input batches do "
                        "not overlap"
                    )

    def add(
        self,
        program: str,
        stream: str,
        pieces: tuple[Piece, ...],
        *,
        transaction: str,
        number: int,
    ) -> None:
        """Record the use of an input batch by the transaction of that number."""
        for piece in pieces:
            users = self._users.setdefault((piece.batch, program), {})
            users.setdefault(piece, []).append(transaction)
        newest = self._newest.get((program, stream))
        if newest is None or newest[0] < number:
            self._newest[program, stream] = number, pieces

    def are_to_come(self, batch: str, program: str, stream: str, grouping: Grouping) -> bool:
        """Return whether a program has yet to use a piece of a batch, for the first time or again.

        The next input batch shares the pieces of the newest one, except for its first `step`
        pieces.
        """
        users = self._users.get((batch, program))
        if not users or len(users) < next(iter(users)).parts:
            return True
        if not grouping.overlaps:
            return False
        kept = self._newest[program, stream][1][grouping.step - grouping.size :]
        return any(piece.batch == batch for piece in kept)
