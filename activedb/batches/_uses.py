"""Who has used which pieces of which batch, and who is still to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from activedb.batches._grouping import Grouping
from activedb.batches._records import Piece
from activedb.errors import LineageError, UsedTwice

__all__ = ["Uses"]


class Uses:
    """The uses of pieces by programs.

    Parameters
    ----------
    is_live : callable
        Whether a transaction, by its id, was not compensated.
    """

    def __init__(self, is_live: Callable[[str], bool]):
        self._is_live = is_live
        # By batch and program: the transactions that have used each piece of it.
        self._users: dict[tuple[str, str], dict[Piece, list[str]]] = {}
        # By program and stream: the input batch of the transaction with the highest number.
        self._newest: dict[tuple[str, str], tuple[int, tuple[Piece, ...]]] = {}

    def check(self, program: str, pieces: Iterable[Piece], grouping: Grouping) -> None:
        """Refuse a use that cannot be.

        Raises
        ------
        UsedTwice
            If input batches do not overlap, and a use of the same piece stands.
        LineageError
            If the batch was cut in another way before.
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
        """Take note of the use of an input batch by the transaction of that number."""
        for piece in pieces:
            users = self._users.setdefault((piece.batch, program), {})
            users.setdefault(piece, []).append(transaction)
        newest = self._newest.get((program, stream))
        if newest is None or newest[0] < number:
            self._newest[program, stream] = number, pieces

    def are_to_come(self, batch: str, program: str, stream: str, grouping: Grouping) -> bool:
        """Whether a program is still to use a piece of a batch, for the first time or again.

        The next input batch has what is in the newest one, save for the first `step` pieces.
        """
        users = self._users.get((batch, program))
        if not users or len(users) < next(iter(users)).parts:
            return True
        if not grouping.overlaps:
            return False
        kept = self._newest[program, stream][1][grouping.step - grouping.size :]
        return any(piece.batch == batch for piece in kept)
