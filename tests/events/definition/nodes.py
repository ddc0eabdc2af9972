"""The nodes that choose nothing: primitive events, disjunctions, queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from activedb.events import Disjunction, Expression, Kleene, Negation, Occurrence, Primitive, Query

from .history import History, Made, exactly, moment, primitive

N = TypeVar("N", bound="Node")

_KINDS: dict[type, type[Node]] = {}


def node_for(kind: type) -> Callable[[type[N]], type[N]]:
    """Say which node an expression of a kind has."""

    def decorate(node: type[N]) -> type[N]:
        _KINDS[kind] = node
        return node

    return decorate


def node_of(expression: Expression, history: History) -> Node:
    """The node of an expression, with nodes of their own for all that it is made of."""
    return _KINDS[type(expression)](expression, history)


@dataclass
class Step:
    """Step at one moment: an event is fed, or a moment that one node waits for has come."""

    fed: Made | None = None
    node: Node | None = None
    us: int = 0


class Node:
    """One expression of the tree."""

    def __init__(self, expression: Any, history: History):
        self.expression = expression
        self.history = history
        self.children = [node_of(child, history) for child in expression.children]
        self.made: list[Made] = []

    def walk(self) -> Iterator[Node]:
        """Children before their parents, in the order in which they are written."""
        for child in self.children:
            yield from child.walk()
        yield self

    def see(self, step: Step) -> list[Made]:
        """Return what this step makes here."""
        fresh = [child.see(step) for child in self.children]
        found = self.make(step, fresh)
        self.made += found
        return found

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        raise NotImplementedError

    def due_us(self) -> int | None:
        """The next moment at which something happens here by itself."""
        return None

    def composite(
        self,
        parts: dict[str, Any],
        constituents: Sequence[Made],
        us: int,
        params: Mapping[str, Any] | None = None,
    ) -> Made:
        merged: dict[str, Any] = {}
        for constituent in constituents:
            merged |= constituent.params
        return Made(
            parts=parts,
            us=us,
            low_us=min([us, *(c.low_us for c in constituents)]),
            high_us=max([us, *(c.high_us for c in constituents)]),
            params=merged if params is None else params,
            leaves=tuple(leaf for c in constituents for leaf in c.leaves),
            number=next(self.history.numbers),
        )


@node_for(Primitive)
class PrimitiveNode(Node):
    expression: Primitive

    def __init__(self, expression: Primitive, history: History):
        super().__init__(expression, history)
        self.last_us: int | None = None  # of a clock event: the moment it last occurred at

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        name = self.expression.name
        if step.node is self:
            self.last_us = step.us
            o = moment(self.expression.key[1], step.us)
            return [primitive(o, next(self.history.numbers), name)]
        fed = step.fed
        if fed is None or self.expression.schedule is not None:
            return []
        assert fed.event is not None
        if not self.expression.takes(fed.event):
            return []
        reading = self.expression.reading
        if reading is not None and not self.history.says(reading, fed.event):
            return []
        return [replace(fed, parts={name: fed.event})]

    def due_us(self) -> int | None:
        schedule, begun_us = self.expression.schedule, self.history.begun_us
        if schedule is None or begun_us is None:
            return None
        return schedule.next_us(begun_us if self.last_us is None else self.last_us)


@node_for(Negation)
@node_for(Kleene)
class PassNode(Node):
    """The operand of a negation or of a Kleene part: its occurrences."""

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        return fresh[0]


@node_for(Disjunction)
class DisjunctionNode(Node):
    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        found: dict[tuple[frozenset[int], str | None], Made] = {}
        for made in (made for part in fresh for made in part):
            name = None if made.output is None else made.output.name
            found.setdefault((made.events, name), made)
        return list(found.values())


@node_for(Query)
class QueryNode(Node):
    expression: Query

    def make(self, step: Step, fresh: list[list[Made]]) -> list[Made]:
        return [self._output(made) for made in fresh[0]]

    def _output(self, made: Made) -> Made:
        name, returns = self.expression.name, self.expression.returns
        params = (
            {given: term.evaluate(made.parts) for given, term in returns}
            if returns
            else made.params
        )
        o = Occurrence(name, exactly(made.us), params, parts=made.parts)
        number = next(self.history.numbers)
        return replace(
            made, parts={name: o}, params=params, number=number, id="", event=None, output=o
        )
