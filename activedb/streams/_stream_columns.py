"""Restrictions beside streams processed in columns, in whichever order they are defined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from activedb.errors import BadEvent, DefinitionError
from activedb.events import Occurrence
from activedb.rules import Rule
from activedb.streams._declaration import StreamDeclaration

__all__ = ["StreamColumns"]


class StreamColumns:
    """Validator of a database's definitions and events against its streams in columns.

    Parameters
    ----------
    streams : mapping of str to Stream
        Declared streams; the mapping grows.
    rules : iterable of Rule
        Defined rules.

    Attributes
    ----------
    types : dict of (str, str) to str
        Event keys of these streams, each with its stream.
    """

    def __init__(self, streams: Mapping[str, StreamDeclaration], rules: Iterable[Rule]):
        self.types: dict[tuple[str, str], str] = {}
        self._streams = streams
        self._rules = rules

    def check_rule(self, rule: Rule) -> None:
        """Raise `DefinitionError` if a rule listens to events that it cannot receive."""
        if not self.types:
            return
        from activedb.streams.columns import check_rule_in_columns

        for stream in list(self._streams.values()):
            if stream.columns:
                check_rule_in_columns(rule, stream)

    def declare(self, stream: StreamDeclaration) -> None:
        """Register a new stream.

        Raises
        ------
        DefinitionError
            If a rule listens to events of it that it cannot receive, or two streams share an event
            type and one of them is in columns.
        ConfigurationError
            If the stream is in columns and a required package is not installed.
        """
        for other in self._streams.values():
            shared = sorted(stream.types.keys() & other.types.keys())
            if shared and (stream.columns or other.columns):
                first, second = (stream, other) if stream.columns else (other, stream)
                raise DefinitionError(
                    f"stream {first.name} is processed in columns (columns=True), and "
                    f"stream {second.name} has events {shared[0]}, too: rules would hear both, and "
                    "they have no common order there; give them other types"
                )
        if not stream.columns:
            return
        from activedb.streams.columns import check_rule_in_columns

        for rule in self._rules:
            check_rule_in_columns(rule, stream)
        self.types |= dict.fromkeys((("event", name) for name in stream.types), stream.name)

    def check_raised(self, o: Occurrence) -> None:
        """Raise `BadEvent` if an event of such a stream is signalled outside it."""
        stream = self.types.get(o.key)
        if stream is not None:
            raise BadEvent(
                f"{o.name} is an event of stream {stream}, which is processed in columns "
                "(columns=True): feed it, with stream.feed(…), or signal an event of another name"
            )
