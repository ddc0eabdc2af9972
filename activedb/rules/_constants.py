"""Constants that a rule's expression demands of the attributes of an event."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from activedb.events import Expression, Primitive, Sequence
from activedb.events.terms import And, Attribute, Comparison, Literal

__all__ = ["Demand", "demands_of"]

_TEXTS = frozenset((str,))
_NUMBERS = frozenset((int, float, bool, Decimal))
"""Types whose values compare exactly with each other, and have equal hashes if they are equal."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Equalities with constants that a primitive event evaluates first.

    An event that has all these attributes, each of a type of its kind, but not all these values, is
    not taken, and no later condition is evaluated. For any other event, a demand implies nothing.

    Attributes
    ----------
    names : tuple of str
        Attributes, in the order of evaluation.
    kinds : tuple of frozenset of type
        Types that compare with the constants without an error.
    values : tuple
        Constants; none is unequal to itself, as NaN is.
    """

    names: tuple[str, ...]
    kinds: tuple[frozenset[type], ...]
    values: tuple[Any, ...]


def demands_of(expression: Expression) -> dict[tuple[str, str], frozenset[Demand]]:
    """Return, by event key, the demands of which an event must fulfil one to be taken.

    Keys with a primitive event, negated or not, that demands no constant are left out. The result
    is empty if the expression reacts to events that it does not take, as the selection strict does.
    """
    found: dict[tuple[str, str], frozenset[Demand]] = {}
    undemanding: set[tuple[str, str]] = set()
    for part in _walk(expression):
        if isinstance(part, Sequence) and part.selection.value == "strict":
            return {}
        if isinstance(part, Primitive) and part.schedule is None:
            demand = _demand_of(part)
            if demand is None:
                undemanding.add(part.key)
            else:
                found[part.key] = found.get(part.key, frozenset()) | {demand}
    return {key: demands for key, demands in found.items() if key not in undemanding}


def _walk(expression: Expression) -> Iterator[Expression]:
    yield expression
    for part in expression.children:
        yield from _walk(part)


def _demand_of(primitive: Primitive) -> Demand | None:
    """Return the leading equalities; None if there are none, or a missing column may fail first."""
    if primitive.columns:
        return None
    equalities: list[tuple[str, frozenset[type], Any]] = []
    for condition in _conditions(primitive.predicate):
        equality = _equality_of(condition)
        if equality is None:
            break
        equalities.append(equality)
    if not equalities:
        return None
    names, kinds, values = zip(*equalities, strict=True)
    return Demand(names, kinds, values)


def _conditions(term: object) -> Iterator[object]:
    """Yield the conjuncts in the order of evaluation, which stops at the first false one."""
    if type(term) is And:
        for condition in term.conditions:
            yield from _conditions(condition)
    else:
        yield term


def _equality_of(term: object) -> tuple[str, frozenset[type], Any] | None:
    """Return the attribute of the event itself, and the constant that it is compared with."""
    if type(term) is not Comparison or term.operator != "=":
        return None
    left, right = term.left, term.right
    if type(left) is Literal:
        left, right = right, left
    if type(left) is not Attribute or type(right) is not Literal:
        return None
    if left.part is not None or left.old:
        return None
    value = right.value
    for kind in (_TEXTS, _NUMBERS):
        if type(value) in kind and _is_like_itself(value):
            return left.name, kind, value
    return None


def _is_like_itself(value: Any) -> bool:
    try:
        return bool(value == value)
    except ArithmeticError:  # a signalling NaN
        return False
