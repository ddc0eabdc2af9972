"""Speculative execution: operations that are run before what they depend on is resolved."""

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
    """Gives BLK operations to workers that would wait, each once, and keeps what they made.

    What was made counts if the operation has read what it reads when its dependencies are resolved
    (T3); else it is run again.

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
        """The earliest BLK operation that was not taken so far."""
        while self._next < len(self._vertices):
            vertex = self._vertices[self._next]
            self._next += 1
            if vertex.operation is not None and vertex.state == BLK and not vertex.running:
                vertex.guessing = True
                vertex.guess = Guess()
                return vertex
        return None

    def reader(self, vertex: Vertex, read: Callable[[Ref], Any]) -> Callable[[Ref], Any]:
        """`read`, and a record of what it gives, with computed keys as they are found."""
        guess = vertex.guess
        if guess is None:
            return read  # it was aborted meanwhile
        record = guess.read

        def recorded(ref: Ref) -> Any:
            if type(ref.key) is not Range:
                ref = Ref(ref.table, at_key(ref, recorded), ref.window_us)
            value = read(ref)
            record.append((ref, copied(value)))
            return value

        return recorded

    def keep(self, vertex: Vertex, effect: Effect | None, error: Exception | None) -> None:
        """What a speculative run gave."""
        guess = vertex.guess
        if guess is not None:
            guess.effect, guess.error = effect, error

    def confirmed(self, vertex: Vertex) -> Guess | None:
        """What the speculative run gave, if it has read what is there now. It is forgotten."""
        guess, vertex.guess = vertex.guess, None
        assert guess is not None
        read = self._state.reader(vertex.node.transaction.at)
        refs, values = [ref for ref, _ in guess.read], [value for _, value in guess.read]
        try:
            now = [read(ref) for ref in refs]
        except Exception:
            return None  # what is wrong with it will be found when it is run again
        return guess if same_values(tuple(now), tuple(values)) else None
