"""Batches and transactions as values, and as plain records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Batch", "BatchKind", "Piece", "State", "Transaction"]


class BatchKind(StrEnum):
    """Where a batch comes from."""

    SOURCE = "source"
    """From outside."""
    OUTPUT = "output"
    """Given out by a transaction."""
    INPUT = "input"
    """Formed of pieces of other batches, as the input of one program."""


class Piece(NamedTuple):
    """A batch, or one of the parts into which it was cut.

    Attributes
    ----------
    batch : str
        The batch's id.
    part, parts : int
        The how manieth of how many, from 1.
    """

    batch: str
    part: int = 1
    parts: int = 1

    def __str__(self) -> str:
        return self.batch if self.parts == 1 else f"{self.part}/{self.parts} of {self.batch}"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, a node of the lineage.

    Attributes
    ----------
    id : str
    kind : BatchKind
    stream : str
        The source stream; of an output, the program; of an input batch, the stream whose pieces
        it has.
    number : int
        Its place in the stream, from 1; of an input batch, among those of its reader and stream.
    producer : str
        The transaction that gave it out; empty if it is no output.
    reader : str
        The program that an input batch is for; empty otherwise.
    pieces : tuple of Piece
        What an input batch consists of, oldest first; empty otherwise.
    is_withdrawn : bool
        Whether it was taken from those who waited for it, so that nobody uses it any more.
    """

    id: str
    kind: BatchKind
    stream: str
    number: int
    producer: str = ""
    reader: str = ""
    pieces: tuple[Piece, ...] = ()
    is_withdrawn: bool = False

    def record(self) -> dict[str, Any]:
        """The batch as plain data."""
        return {
            "batch": self.id,
            "kind": str(self.kind),
            "stream": self.stream,
            "number": self.number,
            "producer": self.producer,
            "reader": self.reader,
            "pieces": [list(piece) for piece in self.pieces],
            "is_withdrawn": self.is_withdrawn,
        }


class State(StrEnum):
    """What became of a transaction."""

    EXECUTED = "executed"
    """It has committed, and stands."""
    FAILED = "failed"
    """It has aborted, and nothing of it is there; it may still be executed."""
    COMPENSATED = "compensated"
    """It had committed, and its compensation, too."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """An execution of a program, a node of the lineage.

    Attributes
    ----------
    id : str
    program : str
    number : int
        The how manieth of its program, from 1: the batch order of its input.
    inputs : tuple of str
        Its input batches, at most one of each stream that the program reads.
    output : str
        The batch that it gives out; empty if there is none.
    triggered_by : tuple of str
        Transactions that have triggered it otherwise than by a batch.
    state : State
    """

    id: str
    program: str
    number: int
    inputs: tuple[str, ...] = ()
    output: str = ""
    triggered_by: tuple[str, ...] = ()
    state: State = State.EXECUTED

    @property
    def is_live(self) -> bool:
        """Whether it stands, or may still be executed."""
        return self.state is not State.COMPENSATED

    def record(self) -> dict[str, Any]:
        """The transaction as plain data."""
        return {
            "transaction": self.id,
            "program": self.program,
            "number": self.number,
            "inputs": list(self.inputs),
            "output": self.output,
            "triggered_by": list(self.triggered_by),
            "state": str(self.state),
        }


def pieces_of(given: Iterable[Piece | str | tuple[str, int, int]]) -> tuple[Piece, ...]:
    """Pieces from batches by id, and from plain triples."""
    return tuple(Piece(each) if isinstance(each, str) else Piece(*each) for each in given)
