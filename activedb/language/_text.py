"""Printer of objects as text that is read back as equal objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from activedb.errors import DefinitionError
from activedb.events import MATCHES_MAX, Expression, Primitive, Query, name_text
from activedb.events.terms import Aggregate, Attribute, Term
from activedb.language._patterns import SINGLE
from activedb.language._statements import AlterRule, Body, CreateQuery, CreateRule, Drop
from activedb.rules import OnAbort, OnFull, OnMany, Rule
from coupling import ConditionAction, Coupling

__all__ = ["text"]


def text(thing: Any) -> str:
    """Return the text of a term, an expression, a query, a rule or a statement.

    Reading the text gives an equal object: a query and a rule as a statement, an expression by
    `parse_pattern`, a term by `parse_term`.

    Raises
    ------
    DefinitionError
        If a part of it has no text, such as a Python function.

    Examples
    --------
    >>> from activedb.events import event, query, seq
    >>> print(text(query("Q", seq(event("A"), event("B")).within(5))))
    CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 5s
    """
    if isinstance(thing, Term):
        return repr(thing)
    if isinstance(thing, Query):
        return _query(thing, "CREATE")
    if isinstance(thing, Expression):
        return _expression(thing)
    if isinstance(thing, Rule):
        return _rule(thing, "CREATE")
    if isinstance(thing, CreateQuery):
        return _query(thing.query, _create(thing.replace))
    if isinstance(thing, CreateRule):
        return _rule(thing.rule, _create(thing.replace))
    if isinstance(thing, Drop):
        condition = "IF EXISTS " if thing.if_exists else ""
        return f"DROP {thing.kind.upper()} {condition}{name_text(thing.name)}"
    if isinstance(thing, AlterRule):
        return f"ALTER RULE {name_text(thing.name)} {_change(thing)}"
    raise DefinitionError(f"{thing!r} has no text in the rule language")


def _create(replace: bool) -> str:
    return "CREATE OR REPLACE" if replace else "CREATE"


def _expression(expression: Expression) -> str:
    for function in _functions(expression):
        if not isinstance(function, Term):
            shown = getattr(function, "__name__", repr(function))
            raise DefinitionError(
                f"the function {shown} in {expression!r} has no text: write the condition with "
                "attr() and part()"
            )
    return repr(expression)


def _functions(expression: Expression) -> Iterator[object]:
    """Yield the predicates and readings in an expression, without those of nested queries."""
    if isinstance(expression, Primitive):
        yield from (f for f in (expression.predicate, expression.reading) if f is not None)
    yield from getattr(expression, "predicates", ())
    yield from getattr(expression, "readings", ())
    if not isinstance(expression, Query):
        for child in expression.children:
            yield from _functions(child)


def _query(query: Query, create: str) -> str:
    stream = "" if query.stream is None else f" ON {name_text(query.stream)}"
    made = f"{create} QUERY {name_text(query.name)}{stream} PATTERN {_expression(query.pattern)}"
    items = ", ".join(_item(query, name, term) for name, term in query.returns)
    return f"{made} RETURN {items}" if items else made


def _item(query: Query, name: str, term: Any) -> str:
    if not isinstance(term, Term):
        raise DefinitionError(f"{name!r} is returned by {term!r}, which has no text: return a term")
    if term.uses_this and not isinstance(query.pattern, SINGLE):
        raise DefinitionError(
            f"{name!r} is returned by {term!r}, which has no text in a query over several events: "
            "name the part"
        )
    is_named_so = isinstance(term, Attribute | Aggregate) and term.name == name
    return repr(term) if is_named_so else f"{term!r} AS {name_text(name)}"


def _rule(rule: Rule, create: str) -> str:
    if not isinstance(rule.action, Body):
        raise DefinitionError(
            f"the action of rule {rule.name} is a function, which has no text: CALL it in a rule "
            "that is read from text"
        )
    if rule.when is not None and not isinstance(rule.when, Term):
        raise DefinitionError(f"the condition of rule {rule.name} is a function, which has no text")
    if rule.params:
        raise DefinitionError(f"the params of rule {rule.name} have no text")
    lines = [f"{create} RULE {name_text(rule.name)} ON {_expression(rule.on)}"]
    lines += _transitions(rule.action)
    if rule.set_oriented:
        lines.append("FOR EACH STATEMENT")
    if rule.coupling is not Coupling.IMMEDIATE:
        lines.append(f"COUPLING {rule.coupling.value}")
    if rule.condition_action is not ConditionAction.IMMEDIATE:
        lines.append(f"CONDITION ACTION {rule.condition_action.value}")
    if rule.priority is not None:
        lines.append(f"PRIORITY {rule.priority}")
    if rule.after:
        lines.append(f"AFTER {', '.join(map(name_text, rule.after))}")
    if rule.on_abort is not OnAbort.TRIGGERING:
        lines.append(f"ON ABORT {rule.on_abort.value}")
    if rule.partials_max is not None:
        lines.append(f"PARTIALS {rule.partials_max}")
    if rule.on_full is not OnFull.DROP_OLDEST:
        lines.append(f"ON FULL {rule.on_full.value}")
    if rule.matches_max != MATCHES_MAX:
        most = "NULL" if rule.matches_max is None else rule.matches_max
        lines.append(f"MATCHES {most}")
    if rule.on_many is not OnMany.REFUSE:
        lines.append(f"ON MANY {rule.on_many.value}")
    if rule.on_uncertain != "certain":
        if not isinstance(rule.on_uncertain, str):
            raise DefinitionError(f"rule {rule.name}: the function of on_uncertain has no text")
        lines.append(f"ON UNCERTAIN {rule.on_uncertain}")
    if rule.when is not None:
        lines.append(f"WHEN {rule.when!r}")
    return "\n".join((*lines, rule.action.rule_text))


def _transitions(body: Body) -> list[str]:
    named = [
        f"{word} AS {name_text(name)}"
        for word, name in (("NEW", body.new), ("OLD", body.old))
        if name != word
    ]
    return [f"REFERENCING {' '.join(named)}"] if named else []


def _change(statement: AlterRule) -> str:
    if statement.changed == "enabled":
        return "ENABLE" if statement.value else "DISABLE"
    value = "NULL" if statement.value is None else str(statement.value)
    return f"SET {statement.changed.upper().replace('_', ' ')} {value}"
