"""Validation of input batches against their program and its workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from activedb.batches._records import Batch, BatchKind, Piece, Transaction
from activedb.batches._workflow import Program, Workflow
from activedb.errors import LineageError
from activedb.spelling import listed

__all__ = ["check_causes", "check_inputs", "check_reads", "stream_of"]


def stream_of(program: Program, pieces: tuple[Piece, ...], batch: Callable[[str], Batch]) -> str:
    """Return the stream whose pieces form an input batch of a program.

    Raises
    ------
    LineageError
        If there are no pieces, a piece occurs twice or is no part, a piece is of an input batch,
        or the pieces are of several streams or of one that the program does not read.
    """
    if not pieces:
        raise LineageError(f"an input batch of {program.name!r} has at least one piece")
    if len(set(pieces)) < len(pieces):
        raise LineageError(f"an input batch of {program.name!r} would have a piece twice")
    streams = set()
    for piece in pieces:
        found = batch(piece.batch)
        if found.kind is BatchKind.INPUT:
            raise LineageError(
                f"{piece.batch} is an input batch itself: form from the batches it is made of"
            )
        if not 1 <= piece.part <= piece.parts:
            raise LineageError(f"a batch has no such part: {piece}")
        streams.add(found.stream)
    if len(streams) > 1:
        raise LineageError(
            f"an input batch is of one stream, not of {listed(sorted(streams))}: give the program "
            "one input batch of each"
        )
    stream = streams.pop()
    check_reads(program, stream)
    return stream


def check_reads(program: Program, stream: str) -> None:
    """Raise `LineageError` if a program does not read a stream."""
    if stream not in program.reads:
        raise LineageError(
            f"program {program.name!r} does not read {stream!r}; it reads {listed(program.reads)}"
        )


def check_inputs(program: Program, batches: Iterable[Batch]) -> None:
    """Raise `LineageError` if input batches do not fit a program.

    They must exist if the program reads streams, be formed for this program, and be of distinct
    streams.
    """
    seen: set[str] = set()
    for batch in batches:
        if batch.reader not in ("", program.name):
            raise LineageError(
                f"{batch.id} was formed for {batch.reader!r}, not for {program.name!r}"
            )
        check_reads(program, batch.stream)
        if batch.stream in seen:
            raise LineageError(
                f"a transaction of {program.name!r} has one input batch of {batch.stream!r}: form "
                "one of all the pieces"
            )
        seen.add(batch.stream)
    if program.reads and not seen:
        raise LineageError(
            f"program {program.name!r} reads {listed(program.reads)}: a transaction of it has an "
            "input batch"
        )


def check_causes(workflow: Workflow, program: Program, causes: Iterable[Transaction]) -> None:
    """Raise `LineageError` if a cause is of a program that does not precede this one."""
    for cause in causes:
        if not workflow.precedes(cause.program, program.name):
            raise LineageError(
                f"{cause.id} cannot have triggered a transaction of {program.name!r}: "
                f"{cause.program!r} does not come before it; name it in after="
            )
