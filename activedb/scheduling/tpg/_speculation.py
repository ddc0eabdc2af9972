"""Speculative execution: operations that are run before their dependencies are resolved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activedb.scheduling._operations import Effect
from activedb.scheduling._state import State
from activedb.scheduling._tables import Range, Ref, at_key
from activedb.scheduling.tpg._pinning import same_values
from activedb.scheduling.tpg._vertex import BLK, Guess, Vertex
from activedb.values import copied

__all__ = ["Speculation"]


class Speculation:
    """Supply of BLK operations, each once, to workers that would wait, with their results.

    A result counts if the operation has read the same values as when its dependencies are resolved
    (T3); otherwise the operation is run again.

    Parameters
    ----------
    vertices : list of Vertex
        In the serial order.
    state : State
    """

    def __init__(self, vertices: list[Vertex], state: State):
        self._vertices = vertices
        self._state = state
        self._next = 0

    def take(self) -> Vertex | None:
        """Return the earliest BLK operation that was not taken yet, or None."""
        while self._next < len(self._vertices):
            vertex = self._vertices[self._next]
            self._next += 1
            if vertex.operation is not None and vertex.state == BLK and not vertex.running:
                vertex.guessing = True
                vertex.guess = Guess()
                return vertex
        return None

    def reader(self, vertex: Vertex, read: Callable[[Ref], Any]) -> Callable[[Ref], Any]:
        """Return `read` with a record of its values and of the computed keys."""
        guess = vertex.guess
        if guess is None:
            return read  # aborted meanwhile
        record = guess.read

        def recorded(ref: Ref) -> Any:
            if type(ref.key) is not Range:
                ref = Ref(ref.table, at_key(ref, recorded), ref.window_us)
            value = read(ref)
            record.append((ref, copied(value)))
            return value

        return recorded

    def keep(self, vertex: Vertex, effect: Effect | None, error: Exception | None) -> None:
        """Store the result of a speculative run."""
        guess = vertex.guess
        if guess is not None:
            guess.effect, guess.error = effect, error

    def confirmed(self, vertex: Vertex) -> Guess | None:
        """Return and forget the result of a speculative run; None if its reads are outdated."""
        guess, vertex.guess = vertex.guess, None
        assert guess is not None
        read = self._state.reader(vertex.node.transaction.at)
        refs, values = [ref for ref, _ in guess.read], [value for _, value in guess.read]
        try:
            now = [read(ref) for ref in refs]
        except Exception:
            return None  # the second run reports the error
        return guess if same_values(tuple(now), tuple(values)) else None
