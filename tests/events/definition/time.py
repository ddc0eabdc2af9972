"""Nodes that time itself completes: delays, time-outs, periodic events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from activedb.events import Context, Occurrence, Periodic, Plus, Skip, TimedOut

from .combinations import Candidate
from .history import History, Made, cumulated, event_of, exactly
from .nodes import Node, Step, node_for
from .sequences import SequenceNode


@node_for(Plus)
class PlusNode(Node):
    expression: Plus

    def __init__(self, expression: Plus, history: History):
        super().__init__(expression, history)
        self.fired: set[int] = set()

    def _at_us(self, made: Made) -> int:
        return made.us + self.expression.delay_us

    def _waiting(self) -> list[Made]:
        return [made for made in self.children[0].made if id(made) not in self.fired]

    def due_us(self) -> int | None:
        return min(map(self._at_us, self._waiting()), default=None)

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        if step.node is not self:
            return []
        due = [made for made in self._waiting() if self._at_us(made) == step.us]
        self.fired |= {id(made) for made in due}
        return [self.composite(made.parts, [made], step.us) for made in due]


@node_for(TimedOut)
class TimedOutNode(Node):
    expression: TimedOut

    def __init__(self, expression: TimedOut, history: History):
        # Contexts and skips of the sequence do not matter.
        plain = replace(expression.sequence, consumption=Context.UNRESTRICTED, skip=Skip())
        super().__init__(TimedOut(plain), history)
        assert isinstance(self.children[0], SequenceNode)
        self.sequence = self.children[0]
        self.fired: set[int] = set()

    def _waiting(self) -> list[Made]:
        number = self.sequence.positives[0]
        return [
            made
            for made in self.sequence.children[number].made
            if id(made) not in self.fired and self.sequence.may_begin(made)
        ]

    def _at_us(self, made: Made) -> int:
        assert self.sequence.expression.window_us is not None
        return made.low_us + self.sequence.expression.window_us

    def due_us(self) -> int | None:
        return min(map(self._at_us, self._waiting()), default=None)

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        if step.node is not self:
            return []
        # Reading: those of one moment come by their places.
        due = sorted(
            (made for made in self._waiting() if self._at_us(made) == step.us),
            key=lambda made: made.place,
        )
        self.fired |= {id(made) for made in due}
        begun = {event_of(candidate.constituents[0]) for candidate in self.sequence.completed}
        found = []
        for made in due:
            prefix = None if event_of(made) in begun else self._longest(made)
            if prefix is not None:
                mapping = self.sequence.mapping(prefix)
                found.append(self.composite(mapping, prefix.constituents, step.us))
        return found

    def _longest(self, first: Made) -> Candidate | None:
        expressions = self.sequence.expression.positives
        # Reading: not all parts. (An event fed late may have been left out of a match.)
        for size in range(max(1, len(expressions) - 1), 0, -1):
            found = [
                c
                for c in self.sequence.choices(size)
                if event_of(c.constituents[0]) == event_of(first)
                and self.sequence.prefix_holds(c.parts, whole=False)
            ]
            if found:
                best = min(found, key=lambda c: c.preference(expressions[:size]))
                best.parts += [None] * (len(expressions) - size)
                return best
        return None


@node_for(Periodic)
class PeriodicNode(Node):
    expression: Periodic

    def __init__(self, expression: Periodic, history: History):
        super().__init__(expression, history)
        self.ticked: dict[int, int] = {}
        """Number of past ticks of each start."""
        self.closed: dict[int, Made] = {}
        """Event that closed each start, in the context chronicle."""

    @property
    def starts(self) -> list[Made]:
        return sorted(self.children[0].made, key=lambda made: made.place)

    def _end(self, start: Made) -> Made | None:
        """Return the event that closes a start."""
        if self.expression.consumption is Context.CHRONICLE:
            return self.closed.get(id(start))
        ends = [end for end in self.children[1].made if self.history.before(start, end)]
        return min(ends, key=lambda end: end.place, default=None)

    def _open(self, us: int) -> list[Made]:
        """Return the starts that are open at a moment, by place."""
        found = []
        for start in self.starts:
            end = self._end(start)
            if start.us <= us and (end is None or us < end.us):
                found.append(start)
        return found

    def _ticking(self, us: int) -> list[Made]:
        """Return the open starts that have ticks of their own."""
        found = self._open(us)
        match self.expression.consumption:
            case Context.UNRESTRICTED | Context.CONTINUOUS:
                return found
            case Context.CHRONICLE:
                return found[:1]
        return found[-1:]

    def _next_us(self, start: Made) -> int:
        return start.us + (self.ticked.get(id(start), 0) + 1) * self.expression.period_us

    def due_us(self) -> int | None:
        if self.expression.collected:
            return None
        return min(map(self._next_us, self.starts), default=None)

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        if step.node is self:
            due = [start for start in self.starts if self._next_us(start) == step.us]
            for start in due:
                self.ticked[id(start)] = self.ticked.get(id(start), 0) + 1
            ticking = {id(start) for start in self._ticking(step.us)}
            return [self._tick(start, step.us) for start in due if id(start) in ticking]
        found = []
        for end in sorted(fresh[1], key=lambda made: made.place):
            found += self._closed_by(end)
        return found

    def _tick(self, start: Made, us: int) -> Made:
        together = [start]
        if self.expression.consumption is Context.CUMULATIVE:
            together = self._open(us)
        parts = {**self._parts(together), self.expression.alias: self._moment(us)}
        return self.composite(parts, together, us)

    def _moment(self, us: int) -> Occurrence:
        return Occurrence(self.expression.alias, exactly(us))

    def _parts(self, together: list[Made]) -> dict[str, Any]:
        if self.expression.consumption is Context.CUMULATIVE:
            return cumulated(together)
        return together[0].parts

    def _closed_by(self, end: Made) -> list[Made]:
        context = self.expression.consumption
        closed = [start for start in self.starts if self.history.before(start, end)]
        if context is Context.CHRONICLE:
            closed = [start for start in closed if id(start) not in self.closed][:1]
            self.closed |= {id(start): end for start in closed}
        closed = [start for start in closed if self._end(start) is end]
        if not self.expression.collected or not closed:
            return []
        match context:
            case Context.RECENT:
                return [self._collected(closed[-1:], end)]
            case Context.CUMULATIVE:
                return [self._collected(closed, end)]
        return [self._collected([start], end) for start in closed]

    def _collected(self, together: list[Made], end: Made) -> Made:
        start, period_us = together[-1], self.expression.period_us
        ticks = tuple(
            self._moment(us)
            for us in range(start.us + period_us, end.us, period_us)
            if any(other is start for other in self._ticking(us))
        )
        parts = {**self._parts(together), self.expression.alias: ticks, **end.parts}
        return self.composite(parts, [*together, end], end.us)
