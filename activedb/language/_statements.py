"""Statements of the rule language, from parse trees, and the actions of rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from lark import Token

from activedb.errors import ActiveDBError, DefinitionError, RuleSyntaxError
from activedb.events import Disjunction, Expression, Primitive, Query, name_text
from activedb.events.terms import Subquery, Term
from activedb.language._names import Scope, columns_of, name_of, whole_number
from activedb.language._parser import SourceText, parse_tree, skip_sql, start_of
from activedb.language._patterns import PatternReader
from activedb.language._sql import SqlWrite, write_of
from activedb.language._terms import TermReader
from activedb.rules import Declared, FunctionNames, Rule

__all__ = [
    "AlterRule",
    "Body",
    "Call",
    "CreateQuery",
    "CreateRule",
    "Drop",
    "Signal",
    "Statement",
    "StatementReader",
    "Step",
    "parse",
    "parse_pattern",
    "parse_term",
]


@dataclass(frozen=True, slots=True)
class Signal:
    """An application event that an action raises.

    Attributes
    ----------
    name : str
    values : tuple of (str, Term)
        Parameters, computed from the event that triggered the rule.
    raising : callable or None
        Called as ``raising(name, **params)``; None if the text was read without a database.
    """

    name: str
    values: tuple[tuple[str, Term], ...] = ()
    raising: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def run(self, t: Any, o: Any) -> None:
        """Raise the event in `t`, the current transaction of this thread."""
        if self.raising is None:
            raise DefinitionError(
                f"SIGNAL {self.name} cannot run: read the rule by db.rules.load_text"
            )
        params = {name: term.evaluate(o.parts, o, t) for name, term in self.values}
        self.raising(self.name, **params)

    @property
    def text(self) -> str:
        """Source text of the step."""
        values = ", ".join(f"{name_text(name)} = {term!r}" for name, term in self.values)
        return f"SIGNAL {name_text(self.name)}" + (f"({values})" if values else "")


@dataclass(frozen=True, slots=True)
class Call:
    """Call of a Python function ``(t, o)``.

    Attributes
    ----------
    reference : str
        ``"module:function"``.
    function : callable
    """

    reference: str
    function: Callable[..., Any] = field(compare=False, repr=False)

    def run(self, t: Any, o: Any) -> None:
        """Call the function."""
        self.function(t, o)

    @property
    def text(self) -> str:
        """Source text of the step."""
        module, _, function = self.reference.partition(":")
        dotted = ".".join(map(name_text, module.split(".")))
        return f"CALL {dotted}:{name_text(function)}"


Step: TypeAlias = SqlWrite | Signal | Call


@dataclass(frozen=True, slots=True)
class Body:
    """An action, called as ``body(t, o)``.

    Attributes
    ----------
    steps : tuple of SqlWrite, Signal or Call
    new, old : str
        Names of the event itself, and of the row before its change, in the SQL of action and
        condition (REFERENCING).
    """

    steps: tuple[Step, ...]
    new: str = "NEW"
    old: str = "OLD"

    def __call__(self, t: Any, o: Any) -> None:
        for step in self.steps:
            step.run(t, o)

    @property
    def rule_text(self) -> str:
        """Source text of the action, used in the fingerprint of the definition."""
        (first, *others) = self.steps
        if not others and not isinstance(first, SqlWrite):
            return first.text
        return f"BEGIN\n{''.join(f'  {step.text};{chr(10)}' for step in self.steps)}END"


# -- statements of the rule language ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateQuery:
    """CREATE QUERY statement.

    Attributes
    ----------
    query : Query
    replace : bool
        Whether a query of this name may exist.
    line : int
        First line of the statement.
    """

    query: Query
    replace: bool = False
    line: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class CreateRule:
    """CREATE RULE statement.

    Attributes
    ----------
    rule : Rule
    replace, line
        As in `CreateQuery`.
    """

    rule: Rule
    replace: bool = False
    line: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP QUERY or DROP RULE statement.

    Attributes
    ----------
    kind : {"query", "rule"}
    name : str
    if_exists : bool
    line : int
    """

    kind: str
    name: str
    if_exists: bool = False
    line: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class AlterRule:
    """ALTER RULE statement.

    Attributes
    ----------
    name : str
    changed : {"enabled", "priority", "coupling", "condition_action", "on_abort"}
    value : bool, int, str or None
    line : int
    """

    name: str
    changed: str
    value: Any
    line: int = field(default=1, compare=False)


Statement: TypeAlias = CreateQuery | CreateRule | Drop | AlterRule


# -- statements from parse trees -------------------------------------------------------------------


Node = Any
_OPTIONS = {
    "coupling": "coupling",
    "condition_action": "condition_action",
    "priority": "priority",
    "on_abort": "on_abort",
    "partials": "partials_max",
    "on_full": "on_full",
    "matches": "matches_max",
    "on_many": "on_many",
    "on_uncertain": "on_uncertain",
    "after_rules": "after",
}
_ROW_KINDS = ("insert", "update", "delete")


@dataclass(slots=True)
class StatementReader:
    """Reader of statements in sequence; later ones may name the queries of earlier ones.

    Attributes
    ----------
    source : SourceText
    patterns : PatternReader
    functions : FunctionNames
    raising : callable or None
    """

    source: SourceText
    patterns: PatternReader
    functions: FunctionNames
    raising: Callable[..., Any] | None = None

    def statement(self, tree: Node) -> Statement:
        """Return the statement of a tree."""
        line = self.source.place(start_of(tree))[0]
        made: Statement = getattr(self, f"_{tree.data}")(tree)
        return replace(made, line=line)

    def _create_query(self, tree: Node) -> CreateQuery:
        query = self.patterns.query(tree)
        self.patterns.queries[query.name] = query
        return CreateQuery(query, _has(tree, "replace"))

    def _drop(self, tree: Node) -> Drop:
        kind = str(tree.children[0].children[0]).lower()
        name = name_of(tree.children[-1])
        if kind == "query":
            self.patterns.queries.pop(name, None)
        return Drop(kind, name, _has(tree, "if_exists"))

    def _alter(self, tree: Node) -> AlterRule:
        name, change = tree.children
        if change.data == "switch":
            return AlterRule(name_of(name), "enabled", change.children[0].type == "ENABLE")
        return AlterRule(name_of(name), _OPTIONS[change.data], self._option(change))

    # -- rules -----------------------------------------------------------------------------

    def _create_rule(self, tree: Node) -> CreateRule:
        children = [child for child in tree.children if child.data != "replace"]
        name, on_tree, *clauses = children
        body = clauses.pop()
        when_tree = clauses.pop() if clauses and clauses[-1].data == "when" else None
        options: dict[str, Any] = {}
        is_set, named_this, named_old = False, "NEW", "OLD"
        for clause in clauses:
            kind = _OPTIONS.get(clause.data, clause.data)
            if kind in options:
                raise self.source.error(start_of(clause), f"{_shown(clause)} occurs twice")
            options[kind] = None
            if clause.data == "each":
                is_set = clause.children[2].type in ("STATEMENT", "SET")
            elif clause.data == "referencing":
                for transition in clause.children:
                    given = name_of(transition.children[2])
                    if transition.children[0].type == "NEW":
                        named_this = given
                    else:
                        named_old = given
            else:
                options[kind] = self._option(clause)
        on = self.patterns.expression(on_tree)
        scope = self._scope(on, named_this, named_old)
        if is_set:
            scope = Scope()
        when = None
        if when_tree is not None:
            when = TermReader(self.source, scope, self.patterns.tables).term(when_tree.children[0])
        steps = self._steps(body, scope)
        for unneeded in ("each", "referencing"):
            options.pop(unneeded, None)
        try:
            rule = Rule.define(
                Body(steps, named_this, named_old),
                on=on,
                when=when,
                name=name_of(name),
                set_oriented=is_set,
                declared=_declared(when, steps),
                **options,
            )
        except RuleSyntaxError:
            raise
        except DefinitionError as error:
            raise self.source.error(start_of(name), str(error)) from None
        return CreateRule(rule, _has(tree, "replace"))

    def _option(self, clause: Node) -> Any:
        if clause.data in ("priority", "partials", "matches"):
            *sign, number = clause.children[0].children
            if number.type == "NULL":
                return None
            value = whole_number(self.source, number)
            return -value if sign else value
        names = tuple(map(name_of, clause.children))
        return names if clause.data == "after_rules" else names[0].lower()

    def _scope(self, on: Expression, this: str, old: str) -> Scope:
        """Return the names of events in the condition and action of a rule on `on`."""
        names = frozenset(("NEW", this))
        keys = _row_keys(on)
        has_old = bool(keys) and all(kind != "insert" for kind, _ in keys)
        olds = frozenset(("OLD", old)) if has_old else frozenset[str]()
        known: frozenset[str] | None = None
        tables = self.patterns.tables
        if isinstance(on, Query):
            names |= {on.name}
            known = frozenset(name for name, _ in on.returns) or None
        elif isinstance(on, Primitive):
            names |= {on.name}
        if tables is not None and len({table for _, table in keys}) == 1:
            (table,) = {table for _, table in keys}
            known = frozenset(columns_of(tables[table])) if table in tables else None
        is_whole = isinstance(on, Query | Primitive | Disjunction)
        return Scope(
            parts=() if is_whole else on.names,
            this=names,
            old=olds,
            is_of_one=True,
            attributes={} if known is None else dict.fromkeys(names | olds, known),
        )

    def _steps(self, body: Node, scope: Scope) -> tuple[Step, ...]:
        if body.data != "block":
            return (self._action(body, scope),)
        token: Token = body.children[0]
        begin = token.start_pos or 0
        end = begin + len(token)
        steps: list[Step] = []
        while begin < end:
            stop = skip_sql(self.source, begin, end, ";")
            at = _first(self.source.text, begin, stop)
            if at < stop:
                steps.append(self._step(at, stop, scope))
            begin = stop + 1
        if not steps:
            raise self.source.error(token.start_pos or 0, "BEGIN … END is empty: write a statement")
        return tuple(steps)

    def _step(self, begin: int, end: int, scope: Scope) -> Step:
        text = self.source.text[begin:end]
        word = text.split(None, 1)[0].upper()
        if word in ("SIGNAL", "CALL"):
            (tree,) = parse_tree(self.source, "one_action", begin, end).children
            return self._action(tree, scope)
        return write_of(self.source, begin, text, scope, self.patterns.tables)

    def _action(self, tree: Node, scope: Scope) -> Step:
        if tree.data == "call":
            *module, function = map(name_of, tree.children)
            reference = f"{'.'.join(module)}:{function}"
            try:
                return Call(reference, self.functions.function(reference))
            except ActiveDBError as error:
                raise self.source.error(start_of(tree), str(error)) from None
        name, *values = tree.children
        reader = TermReader(self.source, scope, self.patterns.tables)
        found: dict[str, Term] = {}
        for value in values:
            attribute = name_of(value.children[0])
            if attribute in found:
                raise self.source.error(start_of(value), f"{attribute!r} is given twice")
            found[attribute] = reader.term(value.children[-1])
        return Signal(name_of(name), tuple(found.items()), self.raising)


def _declared(when: Term | None, steps: tuple[Step, ...]) -> Declared:
    """Return the effects of a rule; undeclared if it calls Python functions."""
    if any(isinstance(step, Call) for step in steps):
        return Declared()
    terms = [] if when is None else [when]
    terms += [term for s in steps if isinstance(s, Signal) for _, term in s.values]
    reads = {
        ("read", *place)
        for term in terms
        for each in term.walk()
        if isinstance(each, Subquery)
        for place in each.reads
    }
    writes = [step for step in steps if isinstance(step, SqlWrite)]
    return Declared(
        reads=frozenset(reads).union(*(write.reads for write in writes)),
        writes=frozenset().union(*(write.writes for write in writes)),
        raises=frozenset(step.name for step in steps if isinstance(step, Signal)),
    )


def _row_keys(on: Expression) -> frozenset[tuple[str, str]]:
    """Return the keys of an event if all its alternatives are row changes; empty otherwise."""
    alternatives = on.parts if isinstance(on, Disjunction) else (on,)
    if not all(isinstance(part, Primitive) for part in alternatives):
        return frozenset()
    keys = on.keys
    return keys if all(kind in _ROW_KINDS for kind, _ in keys) else frozenset()


def _first(text: str, begin: int, end: int) -> int:
    """Return the offset of the first character outside space and comments, or `end`."""
    at = begin
    while at < end:
        if text[at].isspace():
            at += 1
        elif text.startswith("--", at):
            newline = text.find("\n", at, end)
            at = end if newline < 0 else newline
        elif text.startswith("/*", at):
            at = text.index("*/", at) + 2
        else:
            return at
    return end


def _has(tree: Node, kind: str) -> bool:
    return any(child.data == kind for child in tree.children)


def _shown(clause: Node) -> str:
    kind = str(clause.data)
    return {"each": "FOR EACH", "after_rules": "AFTER"}.get(kind, kind.upper().replace("_", " "))


# -- entry points that read statements, expressions and terms from text ----------------------------


def parse(
    text: str,
    *,
    tables: Mapping[str, Any] | None = None,
    streams: Collection[str] | None = None,
    queries: Mapping[str, Query] | None = None,
    functions: FunctionNames | None = None,
    raising: Callable[..., Any] | None = None,
) -> list[Statement]:
    """Return the statements of a text without executing them.

    Parameters
    ----------
    text : str
    tables : mapping of str to Table, optional
        Declared tables, by full name. Without this, any table and column may be named, and an
        action that writes cannot run.
    streams : mapping of str to Stream, or collection of str, optional
        Streams, or their names. Without this, any stream may be named. If a stream declares its
        event types, a pattern on it can name no others.
    queries : mapping of str to Query, optional
        Queries that ``OUTPUT`` may name, in addition to queries of the text itself.
    functions : FunctionNames, optional
        Functions that CALL may name; none by default.
    raising : callable, optional
        Function that SIGNAL calls as ``raising(name, **params)``.

    Raises
    ------
    RuleSyntaxError
        With line, column and a caret, at the first invalid place.

    Examples
    --------
    >>> parse("CREATE QUERY Q PATTERN SEQ(A, !B, C) WITHIN 5 sec")[0].query.pattern
    SEQ(A, !B, C) WITHIN 5s
    """
    source = SourceText(text)
    reader = StatementReader(
        source,
        PatternReader(source, tables, streams, dict(queries or {})),
        functions or FunctionNames(),
        raising,
    )
    return [reader.statement(tree) for tree in parse_tree(source, "script").children]


def parse_pattern(
    text: str,
    *,
    tables: Mapping[str, Any] | None = None,
    streams: Collection[str] | None = None,
    queries: Mapping[str, Query] | None = None,
) -> Expression:
    """Return the expression that a text writes; the parameters are those of `parse`.

    Raises
    ------
    RuleSyntaxError

    Examples
    --------
    >>> parse_pattern("ANY(A AS first, B)")
    ANY(A AS first, B)
    """
    source = SourceText(text)
    (tree,) = parse_tree(source, "one_pattern").children
    return PatternReader(source, tables, streams, dict(queries or {})).expression(tree)


def parse_term(
    text: str,
    *,
    parts: Collection[str] | None = None,
    tables: Mapping[str, Any] | None = None,
) -> Term:
    """Return the term that a text writes.

    Parameters
    ----------
    text : str
    parts : collection of str, optional
        Parts that may be named; any by default. A name without a part is an attribute of the
        event itself, as after NEW.
    tables : mapping of str to Table, optional
        As in `parse`.

    Raises
    ------
    RuleSyntaxError

    Examples
    --------
    >>> parse_term("A.price * 2 > B.price")
    A.price * 2 > B.price
    """
    source = SourceText(text)
    (tree,) = parse_tree(source, "one_term").children
    known = None if parts is None else tuple(parts)
    scope = Scope(known, frozenset(("NEW",)), frozenset(("OLD",)), is_of_one=True)
    return TermReader(source, scope, tables).term(tree)
