"""s-transactions: all operations that one event triggers, and their outcome."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from activedb.scheduling._operations import Operation
from activedb.scheduling._tables import Ref

if TYPE_CHECKING:
    from activedb.scheduling._program import Program

__all__ = ["At", "Outcome", "STransaction"]


class At(NamedTuple):
    """Place of an s-transaction in the serial order: its timestamp, with ties broken.

    Attributes
    ----------
    us : int
        Event time, in microseconds since the epoch.
    id : str
        The event's id; empty if it has none.
    arrival : int
        Unique among the s-transactions of one state.
    """

    us: int
    id: str
    arrival: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an s-transaction.

    Attributes
    ----------
    results : tuple
        If it committed, the result of each operation, in the order of definition; else empty.
    reason : str or None
        Reason of the abort; None if it committed.
    error : BaseException or None
        Exception of a function that caused the abort, if any.
    """

    results: tuple[Any, ...] = ()
    reason: str | None = None
    error: BaseException | None = None

    @property
    def committed(self) -> bool:
        """True if the s-transaction committed."""
        return self.reason is None

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        """Return the outcome of an s-transaction whose function raised `error`.

        Only the place of the traceback is kept, as a note: its frames refer to those of the
        scheduler, and these to all s-transactions of the batch.
        """
        name = type(error).__name__
        text = str(error)
        reason = text if name == "Abort" and text else f"{name}: {text}" if text else name
        _forget_frames(error)
        return cls(reason=reason, error=error)


class STransaction:
    """All state changes that one input event triggers (Wang et al., definition 7).

    Attributes
    ----------
    at : At
        Its place in the serial order.
    type : str
        The event's type.
    params : mapping
        The parameters, after pre-processing.
    operations : tuple of Operation
        Each sees the state just before `at`.
    program : Program or None
        Program whose state access has made the operations, except those of rules, from `type` and
        `params`.
    outcome : Outcome or None
        None until it has ended.
    """

    __slots__ = ("at", "operations", "outcome", "params", "program", "type")

    def __init__(
        self,
        at: At,
        type: str,
        params: Mapping[str, Any],
        operations: tuple[Operation, ...],
        program: Program | None = None,
    ):
        self.at = at
        self.type = type
        self.params = params
        self.operations = operations
        self.program = program
        self.outcome: Outcome | None = None

    def reads(self) -> Iterator[Ref]:
        """Yield the references that it may read."""
        for operation in self.operations:
            yield from operation.sources

    def writes(self) -> Iterator[Ref]:
        """Yield the references that it may write."""
        for operation in self.operations:
            yield from operation.targets

    def __repr__(self) -> str:
        return f"<STransaction {self.type} at {self.at.us}>"


def _forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes; note where it was raised."""
    place = error.__traceback__
    if place is not None and not hasattr(error, "__notes__"):
        while place.tb_next is not None:
            place = place.tb_next
        code = place.tb_frame.f_code
        error.add_note(f"raised in {code.co_name}, {code.co_filename}, line {place.tb_lineno}")
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
