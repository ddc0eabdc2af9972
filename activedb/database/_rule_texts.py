"""Rules and queries from texts in the rule language; a text is applied as a whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from activedb.errors import DefinitionError
from activedb.events import Expression, Primitive, Query, walk
from activedb.language import AlterRule, CreateQuery, CreateRule, Drop, Statement, parse
from activedb.rules import Catalog, FunctionNames, Part, RegisteredRule, Rule
from activedb.spelling import did_you_mean
from activedb.transactions import lock
from lockmgr import Mode

if TYPE_CHECKING:
    from activedb.database._rules import Rules
    from activedb.streams import StreamDeclaration
    from activedb.transactions import TransactionNode

__all__ = ["RuleTexts", "check_streams", "find_reads", "is_on"]


def find_reads(when: Any, params: Mapping[str, Any]) -> Iterable[Part] | str:
    """Return the tables and columns that a condition reads, or why they cannot be inferred."""
    from activedb.analysis import reads_of  # imports networkx, which takes 0.1 s

    return reads_of(when, params)


# -- check of the stream names in rules' events against the declared streams -----------------------


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
    for part in walk(expression):
        if isinstance(part, Query) and part.stream is not None:
            yield part, part.stream
        elif isinstance(part, Primitive) and part.key[0] == "late":
            yield part, part.key[1]


def _own_keys(expression: Expression) -> frozenset[tuple[str, str]]:
    """Return the keys of an expression's primitive events, without those of nested queries."""
    if isinstance(expression, Query):
        return frozenset()  # a query may be on another stream
    if not expression.children:
        return expression.keys
    return frozenset().union(*map(_own_keys, expression.children))


# -- rules and queries from texts in the rule language; a text is applied as a whole or not at all


_Put: TypeAlias = Callable[..., RegisteredRule]
"""Creates or replaces a rule: `Rules.put` in one transaction."""


class RuleTexts:
    """Loader of rule texts, with the queries that texts have created.

    A query has no effect until a rule is on it. Queries live as long as this process. A text can
    name a query that it creates itself, or that an earlier text has created. Transactions see
    queries as they see rules. A text locks them until its hierarchy ends, so that texts are loaded
    one after another.

    Parameters
    ----------
    rules : Rules
    catalog : Catalog
    streams : mapping of str to StreamDeclaration
        Declared streams by name; the mapping follows later declarations.
    raising : callable
        Function that SIGNAL calls: `Database.signal`.
    """

    def __init__(
        self,
        rules: Rules,
        catalog: Catalog,
        streams: Mapping[str, StreamDeclaration],
        raising: Callable[..., object],
    ):
        self._rules = rules
        self._catalog = catalog
        self._streams = streams
        self._raising = raising

    def load(
        self, t: TransactionNode, text: str, functions: FunctionNames, *, any_stream: bool
    ) -> list[RegisteredRule]:
        """Execute the statements of a text in `t`; return the rules that it creates or alters.

        Each is returned once, in its state after the text. `any_stream` is as for
        `Rules.load_text`.

        Raises
        ------
        DefinitionError
            With the line. The transaction aborts then, so no statement of the text takes effect.
        """
        lock(t, ("queries of rule texts",), Mode.X)
        queries = self._catalog.queries_to_change(t)
        statements = parse(
            text,
            tables=self._rules.declared_tables,
            streams=None if any_stream else self._streams,
            queries=dict(queries),
            functions=functions,
            raising=self._raising,
        )
        put = partial(self._rules.put, t, any_stream=any_stream)
        self._rules.lock(t, [name for s in statements for name in _rules_of(s)])
        found: dict[str, RegisteredRule] = {}
        for statement in statements:
            try:
                self._execute(t, statement, queries, found, put)
            except DefinitionError as error:
                message = f"line {statement.line}: {error}"
                raise DefinitionError(message) from error
        self._catalog.put_queries(t, queries)
        return list(found.values())

    def _execute(
        self,
        t: TransactionNode,
        statement: Statement,
        queries: dict[str, Query],
        found: dict[str, RegisteredRule],
        put: _Put,
    ) -> None:
        if isinstance(statement, CreateQuery):
            self._create_query(t, statement, queries, found, put)
        elif isinstance(statement, CreateRule):
            rule = _with_queries(statement.rule, queries)
            found[rule.name] = put(rule, replacing=statement.replace)
        elif isinstance(statement, Drop):
            if statement.kind == "query":
                self._drop_query(t, statement, queries)
            else:
                if not statement.if_exists or statement.name in self._rules:
                    self._rules.delete(statement.name)
                found.pop(statement.name, None)
        else:
            found[statement.name] = self._alter(statement)

    def _alter(self, statement: AlterRule) -> RegisteredRule:
        rules = self._rules
        if statement.changed != "enabled":
            return rules.change(statement.name, **{statement.changed: statement.value})
        return (rules.enable if statement.value else rules.disable)(statement.name)

    def _create_query(
        self,
        t: TransactionNode,
        statement: CreateQuery,
        queries: dict[str, Query],
        found: dict[str, RegisteredRule],
        put: _Put,
    ) -> None:
        query = statement.query
        old = queries.get(query.name)
        if old is not None and old != query and not statement.replace:
            raise DefinitionError(
                f"there is a query named {query.name!r}, and it is another one: write CREATE OR "
                "REPLACE QUERY"
            )
        queries[query.name] = query
        if not statement.replace:
            return
        for name, other in tuple(queries.items()):
            queries[name] = _with(other, query)
        for entry in self._rules.on(t, query.name):
            on = _with(entry.rule.on, query)
            if on != entry.rule.on:
                rule = replace(entry.rule, on=on)
                found[rule.name] = put(rule, replacing=True)

    def _drop_query(self, t: TransactionNode, statement: Drop, queries: dict[str, Query]) -> None:
        query = queries.get(statement.name)
        if query is None:
            if statement.if_exists:
                return
            raise DefinitionError(
                f"there is no query named {statement.name!r}; "
                f"{did_you_mean(statement.name, queries)}"
            )
        users = [f"rule {entry.name}" for entry in self._rules.on(t, query.name)]
        users += [
            f"query {name}"
            for name, other in queries.items()
            if other is not query and is_on(other, query.name)
        ]
        if users:
            raise DefinitionError(
                f"{users[0]} is on the query {statement.name}: drop that first, or replace it"
            )
        del queries[statement.name]


def _rules_of(statement: Statement) -> tuple[str, ...]:
    if isinstance(statement, CreateRule):
        return (statement.rule.name,)
    if isinstance(statement, AlterRule) or (
        isinstance(statement, Drop) and statement.kind == "rule"
    ):
        return (statement.name,)
    return ()


def is_on(expression: Expression, name: str) -> bool:
    """Return whether an event contains the query of this name; O(size)."""
    return any(isinstance(part, Query) and part.name == name for part in walk(expression))


def _with_queries(rule: Rule, queries: dict[str, Query]) -> Rule:
    """Return a rule on the present queries, in case an earlier statement has replaced one."""
    on = rule.on
    for part in tuple(walk(on)):
        if isinstance(part, Query) and part.name in queries and queries[part.name] != part:
            on = _with(on, queries[part.name])
    return rule if on is rule.on else replace(rule, on=on)


def _with(thing: Any, query: Query) -> Any:
    """Return an expression in which `query` replaces the queries of its name."""
    if isinstance(thing, tuple):
        return tuple(_with(each, query) for each in thing)
    if not isinstance(thing, Expression):
        return thing
    if isinstance(thing, Query) and thing.name == query.name:
        return query
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}  # type: ignore[arg-type]  # each is a dataclass
    made = {name: _with(value, query) for name, value in values.items()}
    return thing if made == values else replace(thing, **made)  # type: ignore[type-var]
