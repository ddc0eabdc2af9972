"""Primitive events from parse trees, with names checked against declarations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from activedb.events import (
    Expression,
    Query,
    aborted,
    at,
    began,
    called,
    committing,
    cron,
    deleted,
    event,
    every,
    inserted,
    late,
    returned,
    updated,
)
from activedb.language._parser import start_of
from activedb.language._source import Source
from activedb.language._tables import columns_of, named
from activedb.language._values import duration_us, name_of
from activedb.spelling import did_you_mean

__all__ = ["EventReader"]

Node = Any


@dataclass(frozen=True, slots=True)
class _Named:
    """Table that is not declared, by name."""

    name: str


@dataclass(slots=True)
class EventReader:
    """Reader of primitive events, and of the events of queries.

    Attributes
    ----------
    source : Source
    tables : mapping of str to Table, or None
        None: any table may be named.
    streams : mapping of str to Stream, collection of str, or None
        Declared streams, or their names; None: any stream may be named.
    queries : dict of str to Query
        Queries that OUTPUT may name.
    """

    source: Source
    tables: Mapping[str, Any] | None = None
    streams: Collection[str] | None = None
    queries: dict[str, Query] = field(default_factory=dict)
    _event_types: Collection[str] | None = None

    def _event(self, tree: Node) -> Expression:
        name, known = name_of(tree.children[0]), self._event_types
        if known is not None and name not in known:
            raise self.source.error(
                start_of(tree), f"the stream has no events {name!r}; {did_you_mean(name, known)}"
            )
        return event(name)

    def _types_of(self, streams: list[Node]) -> Collection[str] | None:
        """Return the event types that the named stream declares; None if it declares none."""
        if not streams or not isinstance(self.streams, Mapping):
            return None
        declared = self.streams[name_of(streams[0].children[0])]
        return getattr(declared, "types", None) or None

    def _called(self, tree: Node) -> Expression:
        return called(".".join(map(name_of, tree.children)))

    def _returned(self, tree: Node) -> Expression:
        return returned(".".join(map(name_of, tree.children)))

    def _transaction(self, tree: Node) -> Expression:
        moments = {"begin": began, "commit": committing, "abort": aborted}
        name = name_of(tree.children[0])
        if name.lower() not in moments:
            raise self.source.error(
                start_of(tree.children[0]),
                f"{name!r} is no event of transactions; write begin, commit or abort",
            )
        return moments[name.lower()]()

    def _insert(self, tree: Node) -> Expression:
        return inserted(self._table(tree.children[0]))

    def _delete(self, tree: Node) -> Expression:
        return deleted(self._table(tree.children[0]))

    def _update(self, tree: Node) -> Expression:
        (table_tree,) = (child for child in tree.children if child.data == "table")
        lists = [child for child in tree.children if child.data == "columns"]
        if len(lists) > 1:
            raise self.source.error(start_of(lists[1]), "the columns are named twice")
        table = self._table(table_tree)
        columns = []
        for child in lists[0].children if lists else ():
            known = None if isinstance(table, _Named) else columns_of(table)
            found = _looked_up(name_of(child), known)
            if found is None:
                raise self.source.error(
                    start_of(child),
                    f"table {table.name} has no column {name_of(child)!r}; "
                    f"{did_you_mean(name_of(child), known or ())}",
                )
            columns.append(found)
        return updated(table, *columns)

    def _table(self, tree: Node) -> Any:
        name = ".".join(map(name_of, tree.children))
        if self.tables is None:
            return _Named(name)
        found = _looked_up(name, self.tables)
        if found is None:
            raise self.source.error(
                start_of(tree), f"no table {name!r} is declared; {did_you_mean(name, self.tables)}"
            )
        return self.tables[found]

    def _late(self, tree: Node) -> Expression:
        self._check_stream(tree.children[0])
        return late(name_of(tree.children[0]))

    def _check_stream(self, tree: Node) -> None:
        name = name_of(tree)
        if self.streams is None or name in self.streams:
            return
        near = did_you_mean(name, self.streams)
        hint = near if self.streams else "none is declared: do so first, with db.stream(…)"
        raise self.source.error(start_of(tree), f"there is no stream {name!r}; {hint}")

    def _output(self, tree: Node) -> Expression:
        name = name_of(tree.children[0])
        if name not in self.queries:
            raise self.source.error(
                start_of(tree.children[0]),
                f"there is no query {name!r}; {did_you_mean(name, self.queries)}",
            )
        return self.queries[name]

    def _at(self, tree: Node) -> Expression:
        try:
            moment = datetime.fromisoformat(tree.children[0])
        except ValueError:
            raise self.source.error(
                start_of(tree.children[0]), "AT takes a moment such as '2026-01-31T12:00:00+00:00'"
            ) from None
        return at(moment)

    def _every(self, tree: Node) -> Expression:
        period, *offset = (self._time(child) for child in tree.children)
        return every(period, offset[0] if offset else 0)

    def _cron(self, tree: Node) -> Expression:
        return cron(*map(str, tree.children))

    def _time(self, tree: Node) -> timedelta:
        us = duration_us(self.source, tree)
        try:
            return timedelta(microseconds=us)
        except OverflowError:
            raise self.source.error(start_of(tree), "that is too long a time") from None


def _looked_up(name: str, known: Mapping[str, Any] | None) -> str | None:
    return name if known is None else named(name, known, is_quoted=False)
