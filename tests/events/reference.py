"""The semantics of `activedb/events/README.md`, enumerated: slow and plain on purpose.

A tree of nodes mirrors the expression, none shared. Each node keeps every occurrence that it ever
made, in the order of making; of each step (one feed, or one moment of time) a node is told what its
children made, and tries *all* combinations of what they ever made for those that this step
completes. Nothing is ever forgotten or indexed. What is withdrawn is left out of the steps, and all
is computed anew.

Where the README leaves a choice, the comment "Reading:" says which one is taken here.
"""

from __future__ import annotations

from typing import Any

from activedb.events import Expression, Occurrence

from .definition import History, Made, Step, node_of, primitive

__all__ = ["Reference"]


class Reference:
    """Reference for what a `Detector` must do.

    Attributes
    ----------
    steps : list
        All that was ever told and not withdrawn.
    """

    def __init__(self, expression: Expression):
        self.expression = expression
        self.steps: list[tuple[str, Any, Any]] = []
        self.answers: dict[tuple[object, ...], bool] = {}
        self._begin()

    def feed(self, o: Occurrence, reader: Any = None) -> list[Made]:
        return self._do(("feed", o, reader))

    def advance(self, us: int, reader: Any = None) -> list[Made]:
        return self._do(("advance", us, reader))

    def withdraw(self, o: Occurrence, reader: Any = None) -> None:
        """Leave out the last feed of this very object; time stays advanced."""
        for place in range(len(self.steps) - 1, -1, -1):
            if self.steps[place][1] is o:
                self.steps[place] = ("told", o.us, None)
                self._replay(reader)
                return

    def _begin(self) -> None:
        self.history = History(answers=self.answers)
        self.root = node_of(self.expression, self.history)

    def _replay(self, reader: Any = None) -> None:
        self._begin()
        for number, (kind, what, _) in enumerate(self.steps):
            self._perform(number, (kind, what, reader))

    def _do(self, step: tuple[str, Any, Any]) -> list[Made]:
        number = len(self.steps)
        try:
            found = self._perform(number, step)
        except Exception:
            self._replay()  # a feed that raises has changed nothing
            for key in [key for key in self.answers if key[0] == number]:
                del self.answers[key]
            raise
        self.steps.append(step)
        return found

    def _perform(self, number: int, step: tuple[str, Any, Any]) -> list[Made]:
        kind, what, reader = step
        history = self.history
        history.step, history.reader = number, reader
        us = what.us if kind == "feed" else what
        if history.begun_us is None:
            history.begun_us = us
        match kind:
            case "feed":
                fed = primitive(what, next(history.numbers))
                history.fed.append(fed)
                return self.root.see(Step(fed=fed))
            case "advance":
                return self._advance(us)
        return []

    def _advance(self, us: int) -> list[Made]:
        found: list[Made] = []
        while True:
            due = [
                (due_us, order, node)
                for order, node in enumerate(self.root.walk())
                if (due_us := node.due_us()) is not None and due_us < us
            ]
            if not due:
                return found
            due_us, _, node = min(due, key=lambda item: item[:2])
            found += self.root.see(Step(node=node, us=due_us))
