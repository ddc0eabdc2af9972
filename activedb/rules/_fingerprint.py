"""By which a definition is known again after a restart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import CodeType
from typing import Any

from activedb.events import Expression
from activedb.rules._rule import Rule

__all__ = ["fingerprint"]


def fingerprint(rule: Rule) -> str:
    """64 hexadecimal digits that are the same as long as the definition is.

    Everything that `define` takes counts, of functions their names and compiled code, those inside
    them included, but not what they call and not the values they close over. Another minor version
    of Python compiles otherwise, which counts as a change.
    """
    told: list[str] = []
    for part in (
        rule.name,
        repr(rule.on),
        *(_told_of_function(f) for f in _predicates(rule.on)),
        _told_of_function(rule.action),
        "" if rule.when is None else _told_of_function(rule.when),
        str(rule.coupling),
        repr(rule.priority),
        str(rule.on_abort),
        _told_of_value(rule.params),
        repr(rule.set_oriented),
        str(rule.condition_action),
        repr(rule.after),
    ):
        told.append(f"{len(part)}:{part}")
    return hashlib.blake2b(
        "".join(told).encode("utf-8", "backslashreplace"), digest_size=32
    ).hexdigest()


def _predicates(expression: Expression) -> list[Any]:
    """The functions in an expression, in its order."""
    inner = (*getattr(expression, "parts", ()), getattr(expression, "operand", None))
    found = [f for part in inner if part is not None for f in _predicates(part)]
    found += getattr(expression, "predicates", ())
    predicate = getattr(expression, "predicate", None)
    return found if predicate is None else [*found, predicate]


def _told_of_function(function: Any) -> str:
    where = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    code = getattr(function, "__code__", None)
    return where if code is None else f"{where} {_told_of_code(code)}"


def _told_of_code(code: CodeType) -> str:
    values = ", ".join(_told_of_value(value) for value in code.co_consts)
    return f"<{code.co_code.hex()} ({values}) {code.co_names} {code.co_varnames}>"


def _told_of_value(value: Any) -> str:
    """As `repr`, but the same in each process: without addresses and the order of hashes."""
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
