"""Event expressions and queries from parse trees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from lark import Token

from activedb.errors import BadEvent, PatternError
from activedb.events import (
    Disjunction,
    Expression,
    Kleene,
    Primitive,
    Query,
    Sequence,
    aborted,
    all_of,
    any_of,
    aperiodic,
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
    many,
    periodic,
    query,
    returned,
    seq,
    some_of,
    updated,
)
from activedb.events.terms import Aggregate, And, Attribute, Term
from activedb.language._names import Scope, columns_of, duration_us, name_of, named, whole_number
from activedb.language._parser import SourceText, start_of
from activedb.language._terms import TermReader
from activedb.spelling import did_you_mean

__all__ = ["SINGLE", "EventReader", "PatternReader"]


# -- primitive events from parse trees, with names checked against declarations --------------------


Node = Any


@dataclass(frozen=True, slots=True)
class _NamedTable:
    """Table that is not declared, by name."""

    name: str


@dataclass(slots=True)
class EventReader:
    """Reader of primitive events, and of the events of queries.

    Attributes
    ----------
    source : SourceText
    tables : mapping of str to Table, or None
        None: any table may be named.
    streams : mapping of str to Stream, collection of str, or None
        Declared streams, or their names; None: any stream may be named.
    queries : dict of str to Query
        Queries that OUTPUT may name.
    """

    source: SourceText
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
                f"{name!r} is not an event of transactions; write begin, commit or abort",
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
            known = None if isinstance(table, _NamedTable) else columns_of(table)
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
            return _NamedTable(name)
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
            raise self.source.error(start_of(tree), "the duration is too long") from None


def _looked_up(name: str, known: Mapping[str, Any] | None) -> str | None:
    return name if known is None else named(name, known, is_quoted=False)


E = TypeVar("E", bound=Expression)
_QUANTIFIERS = {"PLUS": (1, None), "STAR": (0, None), "QMARK": (0, 1)}
_THIS = frozenset(("NEW",))
_OLD = frozenset(("OLD",))
SINGLE = (Disjunction, Primitive, Query)
"""Patterns whose matches are single events: RETURN may name an attribute without its event."""


@dataclass(slots=True)
class PatternReader(EventReader):
    """Reader of expressions; see `EventReader`."""

    def expression(self, tree: Node) -> Expression:
        """Return the expression of a ``pattern`` tree.

        Raises
        ------
        RuleSyntaxError
            If a name does not exist, or the expression is invalid.
        """
        plain, *clauses = tree.children
        return self._with_clauses(plain, clauses)

    def query(self, tree: Node) -> Query:
        """Return the query of a ``create_query`` tree."""
        children = [child for child in tree.children if child.data != "replace"]
        name = name_of(children[0])
        streams = [child for child in children if child.data == "on_stream"]
        if len(streams) > 1:
            raise self.source.error(start_of(streams[1]), "the stream is named twice")
        for stream in streams:
            self._check_stream(stream.children[0])
        (plain,) = (child for child in children if child.data == "plain")
        clauses = children[children.index(plain) + 1 :]
        clauses = [c for c in clauses if c.data not in ("on_stream", "returns")]
        returns = [child for child in children if child.data == "returns"]
        if len(returns) > 1:
            raise self.source.error(start_of(returns[1]), "RETURN occurs twice")

        def made() -> Query:
            self._event_types = self._types_of(streams)
            pattern = self._with_clauses(plain, clauses)
            items = self._items(returns[0], pattern) if returns else {}
            stream = name_of(streams[0].children[0]) if streams else None
            return query(name, pattern, items, stream=stream)

        try:
            return self._checked(children[0], made)
        finally:
            self._event_types = None

    def _checked(self, tree: Node, make: Callable[[], E]) -> E:
        try:
            return make()
        except (PatternError, BadEvent) as error:
            raise self.source.error(start_of(tree), str(error)) from None

    # -- one pattern -----------------------------------------------------------------------

    def _with_clauses(self, plain: Node, clauses: list[Node]) -> Expression:
        children = {child.data: child for child in plain.children}
        (atom,) = (c for c in plain.children if c.data not in ("negation", "quantifier", "alias"))
        quantifier, alias = children.get("quantifier"), children.get("alias")
        name = None if alias is None else name_of(alias.children[0])
        of_ticks = (name,) if atom.data == "periodic" and name is not None else ()
        make = partial(getattr(self, f"_{atom.data}"), atom, *of_ticks)
        made: Expression = self._checked(atom, make)
        if name is not None and quantifier is None and atom.data != "periodic":
            made = self._named(made, name, alias)
        seen: set[str] = set()
        for clause in clauses:
            if clause.data in seen and clause.data != "where":
                raise self.source.error(start_of(clause), f"{_shown(clause)} occurs twice")
            seen.add(clause.data)
            made = self._checked(clause, partial(self._clause, clause, made))
        if quantifier is not None:
            made = self._checked(quantifier, partial(self._kleene, quantifier, made))
            made = made if name is None else self._named(made, name, alias)
        return self._checked(plain, made.__invert__) if "negation" in children else made

    def _named(self, made: Expression, name: str, alias: Node) -> Expression:
        if isinstance(made, Primitive | Kleene):
            return made.named(name)
        raise self.source.error(start_of(alias), "AS names one event, a Kleene part, or ticks")

    def _kleene(self, quantifier: Node, made: Expression) -> Kleene:
        first, *reluctant = quantifier.children
        if isinstance(first, Token):
            least, most = _QUANTIFIERS[first.type]
        else:
            numbers = [
                whole_number(self.source, child)
                for child in first.children
                if isinstance(child, Token)
            ]
            least, most = numbers[0], numbers[-1]
            if len(numbers) == 1 and len(first.children) == 2:
                most = None
        return many(made, least, most, greedy=not reluctant)

    # -- clauses ---------------------------------------------------------------------------

    def _clause(self, clause: Node, made: Any) -> Expression:
        kind, children = clause.data, clause.children
        if kind == "where":
            return self._where(children[0], made)
        if kind == "same":
            return made.same(*map(name_of, children))  # type: ignore[no-any-return]
        if kind == "within":
            return made.within(self._time(children[0]))  # type: ignore[no-any-return]
        if kind == "context":
            return made.context(name_of(children[0]))  # type: ignore[no-any-return]
        if not isinstance(made, Sequence):
            raise PatternError(f"{_shown(clause)} belongs to a sequence, not to {made!r}")
        if kind == "gap":
            return made.gap(self._time(children[0]))
        if kind == "selection":
            word = children[1]
            return made.selecting((word if isinstance(word, Token) else name_of(word)).lower())
        return made.skipping(str(children[0]).lower(), *map(name_of, children[1:]))

    def _where(self, condition: Node, made: Any) -> Expression:
        if isinstance(made, Primitive):
            return self._where_of_one(condition, made)
        if not hasattr(made, "predicates"):
            raise PatternError(
                f"WHERE applies to an event, a sequence or a conjunction, not to {made!r}"
            )
        reader = TermReader(self.source, Scope(made.names), self.tables)
        terms, equal = reader.conjuncts(condition)
        if equal:
            made = made.same(*equal)
        for term in terms:
            made = made.reading(term) if term.is_reading else made.where(term)
        return made  # type: ignore[no-any-return]

    def _where_of_one(self, condition: Node, made: Primitive) -> Primitive:
        this = _THIS | {made.name}
        reader = TermReader(self.source, Scope((), this, _OLD, is_of_one=True), self.tables)
        terms, equal = reader.conjuncts(condition)
        if equal:
            raise PatternError("[…] relates the parts of a sequence; this is a single event")
        for readings in (False, True):
            chosen = [term for term in terms if term.is_reading is readings]
            before = made.reading if readings else made.predicate
            if before is not None and chosen:
                raise PatternError(f"{made!r} has its condition already: join them with AND")
            if chosen:
                joined = chosen[0] if len(chosen) == 1 else And(tuple(chosen))
                made = (
                    replace(made, reading=joined) if readings else replace(made, predicate=joined)
                )
        return made

    def _items(self, returns: Node, pattern: Expression) -> dict[str, Term]:
        is_of_one = isinstance(pattern, SINGLE)
        reader = TermReader(self.source, Scope(pattern.names, is_of_one=is_of_one), self.tables)
        found: dict[str, Term] = {}
        for item in returns.children:
            condition, *alias = item.children
            term = reader.term(condition)
            if alias:
                name = name_of(alias[0].children[0])
            elif isinstance(term, Attribute | Aggregate) and term.name is not None:
                name = term.name
            else:
                raise self.source.error(start_of(item), f"give {term!r} a name: {term!r} AS total")
            if name in found:
                raise self.source.error(
                    start_of(item), f"{name!r} is returned twice: give one another name with AS"
                )
            found[name] = term
        return found

    # -- operators -------------------------------------------------------------------------

    def _pattern(self, tree: Node) -> Expression:
        return self.expression(tree)

    def _seq(self, tree: Node) -> Expression:
        return seq(*map(self.expression, tree.children))

    def _any_of(self, tree: Node) -> Expression:
        return any_of(*map(self.expression, tree.children))

    def _all_of(self, tree: Node) -> Expression:
        return all_of(*map(self.expression, tree.children))

    def _some_of(self, tree: Node) -> Expression:
        count, *parts = tree.children
        return some_of(whole_number(self.source, count), *map(self.expression, parts))

    def _after(self, tree: Node) -> Expression:
        duration, operand = tree.children
        return self.expression(operand).after(self._time(duration))

    def _periodic(self, tree: Node, alias: str = "tick") -> Expression:
        start, period, end = tree.children[-3:]
        return periodic(
            self.expression(start),
            self._time(period),
            self.expression(end),
            collected=len(tree.children) > 3,
            alias=alias,
        )

    def _aperiodic(self, tree: Node) -> Expression:
        start, what, end = map(self.expression, tree.children[-3:])
        if not isinstance(what, Primitive | Disjunction) or not isinstance(end, Primitive):
            raise PatternError("the second and third part of APERIODIC are primitive events")
        return aperiodic(start, what, end, collected=len(tree.children) > 3)

    def _timeout(self, tree: Node) -> Expression:
        sequence = self.expression(tree.children[0])
        if not isinstance(sequence, Sequence):
            raise PatternError(f"TIMEOUT takes a sequence, not {sequence!r}")
        return sequence.timed_out()


def _shown(clause: Node) -> str:
    kind = str(clause.data)
    return {"selection": "SELECT"}.get(kind, kind.upper())
