"""Batches and transactions as values and as JSON-serialisable records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

__all__ = ["Batch", "BatchKind", "Piece", "State", "Transaction"]


class BatchKind(StrEnum):
    """Origin of a batch."""

    SOURCE = "source"
    """Batch from outside the workflow."""
    OUTPUT = "output"
    """Output of a transaction."""
    INPUT = "input"
    """Formed from pieces of other batches, as the input of one program."""


class Piece(NamedTuple):
    """A batch, or one of the parts of a batch.

    Attributes
    ----------
    batch : str
        Id of the batch.
    part, parts : int
        Number of the part, from 1, and number of all parts.
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
        The source stream; for an output, the program; for an input batch, the stream of its pieces.
    number : int
        Place in the stream, from 1; for an input batch, within its reader and stream.
    producer : str
        Transaction that produced it; empty if it is no output.
    reader : str
        Reader of an input batch; empty otherwise.
    pieces : tuple of Piece
        Pieces of an input batch, oldest first; empty otherwise.
    is_withdrawn : bool
        True if it was withdrawn from its readers, so that no program uses it any more.
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
        """Return a JSON-serialisable dict."""
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
    """Outcome of a transaction."""

    EXECUTED = "executed"
    """Committed and not compensated."""
    FAILED = "failed"
    """Aborted without effects; may be executed again."""
    COMPENSATED = "compensated"
    """Committed, and then compensated."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """An execution of a program, a node of the lineage.

    Attributes
    ----------
    id : str
    program : str
    number : int
        Number within its program, from 1: the batch order of its input.
    inputs : tuple of str
        Input batches, at most one of each stream that the program reads.
    output : str
        Output batch; empty if there is none.
    triggered_by : tuple of str
        Transactions that have triggered it without a batch.
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
        """True if it stands, or may still be executed."""
        return self.state is not State.COMPENSATED

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
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
    """Return pieces, built from ids of whole batches and from triples."""
    return tuple(Piece(each) if isinstance(each, str) else Piece(*each) for each in given)
