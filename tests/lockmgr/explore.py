"""Every interleaving of a program, one after another: depth-first over the scheduler's choices.

A run is decided by its list of choices alone, so only this list is kept, and how many
workers could have gone on at each place. The next run repeats all but the last choice that can be
increased (stateless search, as in (Godefroid 1997)), and takes the first one from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tests.lockmgr.scheduler import Choose

T = TypeVar("T")


class Replay:
    """Chooser of the given choices, then always the first; it remembers what it chose from."""

    def __init__(self, choices: list[int]):
        self.choices = choices
        self.taken: list[tuple[int, int]] = []

    def __call__(self, able: int) -> int:
        """Choose one of `able` workers."""
        place = len(self.taken)
        choice = self.choices[place] if place < len(self.choices) else 0
        assert choice < able, "the program does not do the same thing again"
        self.taken.append((choice, able))
        return choice

    def next(self) -> list[int] | None:
        """Return the choices with which the next run starts, or None after the last one."""
        for place in reversed(range(len(self.taken))):
            choice, able = self.taken[place]
            if choice + 1 < able:
                return [taken for taken, _ in self.taken[:place]] + [choice + 1]
        return None


def explore(run: Callable[[Choose], T], *, at_most: int) -> Iterator[T]:
    """Yield what `run` returns for each interleaving; an error gets a note with its choices.

    Parameters
    ----------
    run : callable
        Runs the program once, from the start, under a scheduler that chooses as it is told.
    at_most : int
        Fail if there are more interleavings than this: then the program is too large.
    """
    choices: list[int] | None = []
    count = 0
    while choices is not None:
        count += 1
        assert count <= at_most, f"more than {at_most} interleavings; make the program smaller"
        replay = Replay(choices)
        try:
            outcome = run(replay)
        except BaseException as error:
            taken = [choice for choice, _ in replay.taken]
            error.add_note(f"interleaving {count}; again with Replay({taken})")
            raise
        yield outcome
        choices = replay.next()
