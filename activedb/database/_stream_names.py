"""Check of the stream names in rules' events against the declared streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from activedb.errors import DefinitionError
from activedb.events import Expression, Primitive, Query
from activedb.spelling import did_you_mean

if TYPE_CHECKING:
    from activedb.rules import Rule
    from activedb.streams import StreamDeclaration

__all__ = ["check_streams"]


def check_streams(
    rule: Rule, streams: Mapping[str, StreamDeclaration], *, may_follow: bool
) -> None:
    """Refuse a rule on an undeclared stream, or on events that its stream does not have.

    The parameters of events are not checked: a stream declares only the required parameters, and
    events may have others.

    Parameters
    ----------
    streams : mapping of str to Stream
        Declared streams by name.
    may_follow : bool
        True if a stream may be declared later.

    Raises
    ------
    DefinitionError
        If a name is unknown; the message suggests similar names.
    """
    for part, name in _named_in(rule.on):
        stream = streams.get(name)
        if stream is None:
            if may_follow:
                continue
            near = did_you_mean(name, streams)
            hint = near if streams else "none is declared: do so first, with db.stream(…)"
            raise DefinitionError(f"rule {rule.name}: there is no stream {name!r}; {hint}")
        if not isinstance(part, Query):
            continue
        for kind, event in sorted(_own_keys(part.pattern)):
            if kind == "event" and event not in stream.types:
                raise DefinitionError(
                    f"rule {rule.name}: query {part.name} is on the stream {name}, which has no "
                    f"events {event!r}; {did_you_mean(event, stream.types)}"
                )


def _named_in(expression: Expression) -> Iterator[tuple[Expression, str]]:
    """Yield the parts of an expression that name a stream, each with the name."""
    if isinstance(expression, Query) and expression.stream is not None:
        yield expression, expression.stream
    elif isinstance(expression, Primitive) and expression.key[0] == "late":
        yield expression, expression.key[1]
    for child in expression.children:
        yield from _named_in(child)


def _own_keys(expression: Expression) -> frozenset[tuple[str, str]]:
    """Return the keys of an expression's primitive events, without those of nested queries."""
    if isinstance(expression, Query):
        return frozenset()  # a query may be on another stream
    if not expression.children:
        return expression.keys
    return frozenset().union(*map(_own_keys, expression.children))
