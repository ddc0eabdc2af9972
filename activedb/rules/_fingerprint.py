"""Fingerprints that identify a definition after a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import CodeType
from typing import Any

from activedb.events import MATCHES_MAX, Conjunction, Expression, Primitive, Query, Sequence, Term
from activedb.rules._rule import OnFull, OnMany, Rule

__all__ = ["event_fingerprint", "fingerprint"]


def fingerprint(rule: Rule) -> str:
    """Return 64 hexadecimal digits that identify a definition.

    All arguments of `define` count: for functions, their names and compiled code, including nested
    functions, but not the functions they call nor the values they close over. Other minor versions
    of Python compile to other code, which counts as a change.
    """
    return _digest(
        rule.name,
        *_told_of_event(rule.on),
        _told_of_function(rule.action),
        "" if rule.when is None else _told_of_function(rule.when),
        str(rule.coupling),
        repr(rule.priority),
        str(rule.on_abort),
        _told_of_value(rule.params),
        repr(rule.set_oriented),
        str(rule.condition_action),
        repr(rule.after),
        *_told_of_detection(rule),
    )


def event_fingerprint(rule: Rule) -> str:
    """Return 64 hexadecimal digits that identify the detection of an event.

    They tell whether a stored detector state belongs to this event.
    """
    return _digest(*_told_of_event(rule.on), *_told_of_detection(rule))


def _digest(*told: str) -> str:
    text = "".join(f"{len(part)}:{part}" for part in told)
    return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=32).hexdigest()


def _told_of_event(expression: Expression) -> list[str]:
    return [repr(expression), *(_told_of_function(f) for f in _predicates(expression))]


def _told_of_detection(rule: Rule) -> list[str]:
    """Return the detector settings of a rule; empty if they are the defaults."""
    told: list[str] = []
    if (rule.partials_max, rule.on_full, rule.on_uncertain) != (
        None,
        OnFull.DROP_OLDEST,
        "certain",
    ):
        policy = _told_of_function(rule.on_uncertain)
        told += [repr(rule.partials_max), rule.on_full.value, policy]
    if (rule.matches_max, rule.on_many) != (MATCHES_MAX, OnMany.REFUSE):
        told += [repr(rule.matches_max), rule.on_many.value]
    return told


def _predicates(expression: Expression) -> list[Any]:
    """Return the functions in an expression, in order, and other parts missing from its repr."""
    found: list[Any] = [f for part in expression.children for f in _predicates(part)]
    if isinstance(expression, Sequence | Conjunction):
        found += [*expression.predicates, *expression.readings]
    elif isinstance(expression, Primitive):
        found += [f for f in (expression.predicate, expression.reading) if f is not None]
    elif isinstance(expression, Query):
        found += [repr(expression.pattern), *(term for _, term in expression.returns)]
    return found


def _told_of_function(function: Any) -> str:
    if isinstance(function, str | Term):
        return repr(function)
    written = getattr(function, "rule_text", None)
    if isinstance(written, str):  # an action of the rule language
        return written
    where = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    code = getattr(function, "__code__", None)
    return where if code is None else f"{where} {_told_of_code(code)}"


def _told_of_code(code: CodeType) -> str:
    values = ", ".join(_told_of_value(value) for value in code.co_consts)
    return f"<{code.co_code.hex()} ({values}) {code.co_names} {code.co_varnames}>"


def _told_of_value(value: Any) -> str:
    """Return a `repr` that is the same in each process: without addresses and hash order."""
    if isinstance(value, CodeType):
        return _told_of_code(value)
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_told_of_value, value)))}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_told_of_value, value))})"
    if isinstance(value, Mapping):
        pairs = [f"{_told_of_value(k)}: {_told_of_value(v)}" for k, v in value.items()]
        return f"{{{', '.join(sorted(pairs))}}}"
    kind: Any = type(value)
    return str(kind.__qualname__) if kind.__repr__ is object.__repr__ else repr(value)
