"""How the input batches of a program are formed from the batches of a stream."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.errors import WorkflowError

__all__ = ["Grouping", "isolated", "merged", "overlapping", "split"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Each batch is cut into pieces; an input batch is some pieces in a row.

    Attributes
    ----------
    parts : int
        Into how many pieces a batch of the stream is cut.
    size : int
        How many pieces make an input batch.
    step : int
        How many pieces further the next input batch begins; less than `size`: they overlap.

    Raises
    ------
    WorkflowError
        If a number is not positive, or `step` is greater than `size`: pieces would be left out,
        and their batches never be complete.
    """

    parts: int = 1
    size: int = 1
    step: int = 1

    def __post_init__(self) -> None:
        numbers = (self.parts, self.size, self.step)
        if any(type(number) is not int or number < 1 for number in numbers):
            raise WorkflowError(
                f"parts, size and step of a grouping are whole numbers from 1 on, not {numbers}"
            )
        if self.step > self.size:
            raise WorkflowError(
                f"input batches of {self.size} pieces, every {self.step}, would leave pieces out: "
                "let step be at most size"
            )

    @property
    def overlaps(self) -> bool:
        """Whether a piece is in several input batches."""
        return self.step < self.size

    @property
    def gathers(self) -> bool:
        """Whether an input batch may have pieces of several batches."""
        return self.size > 1

    @property
    def is_isolated(self) -> bool:
        """Whether each batch is an input batch as it is."""
        return self == Grouping()

    def __str__(self) -> str:
        if self.is_isolated:
            return "isolated"
        words = [f"split in {self.parts}"] if self.parts > 1 else []
        if self.overlaps:
            words.append(f"{self.size} overlapping, every {self.step}")
        elif self.gathers:
            words.append(f"{self.size} merged")
        return ", ".join(words)


def isolated() -> Grouping:
    """Each batch is an input batch as it is (section 3)."""
    return Grouping()


def split(parts: int) -> Grouping:
    """Each batch is cut into `parts` input batches (section 3, a)."""
    return Grouping(parts=parts)


def merged(count: int) -> Grouping:
    """Each `count` batches make one input batch (section 3, b)."""
    return Grouping(size=count, step=count)


def overlapping(count: int, *, every: int = 1) -> Grouping:
    """`count` batches make one input batch, and the next begins `every` later (section 4, a)."""
    return Grouping(size=count, step=every)
