"""Groupings: how batches of a stream form the input batches of a program."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.errors import WorkflowError

__all__ = ["Grouping", "isolated", "merged", "overlapping", "split"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Division of each batch into pieces, and of consecutive pieces into input batches.

    Attributes
    ----------
    parts : int
        Number of pieces of a batch of the stream.
    size : int
        Number of pieces of an input batch.
    step : int
        Distance in pieces between the starts of two input batches; less than `size`: they overlap.

    Raises
    ------
    WorkflowError
        If a number is not positive, or `step` is greater than `size`: some pieces would be left
        out, and their batches would never be complete.
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
        """True if a piece is in several input batches."""
        return self.step < self.size

    @property
    def gathers(self) -> bool:
        """True if an input batch may have pieces of several batches."""
        return self.size > 1

    @property
    def is_isolated(self) -> bool:
        """True if each batch is an input batch as it is."""
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
    """Return the grouping where each batch is an input batch as it is (section 3)."""
    return Grouping()


def split(parts: int) -> Grouping:
    """Return the grouping that cuts each batch into `parts` input batches (section 3, a)."""
    return Grouping(parts=parts)


def merged(count: int) -> Grouping:
    """Return the grouping that merges each `count` batches into one input batch (section 3, b)."""
    return Grouping(size=count, step=count)


def overlapping(count: int, *, every: int = 1) -> Grouping:
    """Return the grouping of `count` batches, with a new one `every` batches (section 4, a)."""
    return Grouping(size=count, step=every)
