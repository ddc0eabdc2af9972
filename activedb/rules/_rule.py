"""A rule: event, condition, action, and how they are coupled."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from activedb.errors import DefinitionError, RuleSignatureError
from activedb.events import Expression, Occurrence
from activedb.transactions import Transaction
from coupling import Coupling

__all__ = ["Action", "Condition", "OnAbort", "Rule"]

Condition: TypeAlias = Callable[[Transaction, Occurrence], Any]
E = TypeVar("E", bound=StrEnum)
Action: TypeAlias = Callable[[Transaction, Occurrence], Any]


class OnAbort(StrEnum):
    """What a rule that fails takes along."""

    RULE = "rule"
    TRIGGERING = "triggering"


@dataclass(frozen=True, slots=True)
class Rule:
    """An ECA rule.

    Attributes
    ----------
    name : str
        Unique in its catalog.
    on : Expression
        The event.
    action : callable ``(t, o)``
    when : callable ``(t, o)`` or None
        The condition, evaluated in the rule's own subtransaction before the action.
    coupling : Coupling
    priority : int or None
        Higher first; None is the lowest.
    on_abort : OnAbort
        What aborts when the rule raises: its own subtransaction only, or the triggering one.
    """

    name: str
    on: Expression
    action: Action
    when: Condition | None
    coupling: Coupling
    priority: int | None
    on_abort: OnAbort

    @classmethod
    def define(
        cls,
        action: Action,
        *,
        on: Any,
        when: Condition | None,
        coupling: str,
        priority: int | None,
        on_abort: str,
        name: str | None,
    ) -> Rule:
        """A rule from what a user wrote, checked.

        Raises
        ------
        RuleSignatureError
            If action or condition cannot be called as ``fn(t, o)``.
        DefinitionError
            If the event, coupling, priority or on_abort is not one that exists.
        """
        name = name or getattr(action, "__name__", "")
        if not name or name == "<lambda>":
            raise DefinitionError("give the rule a name: @db.rule(..., name='…')")
        if not isinstance(on, Expression):
            raise DefinitionError(
                f"rule {name}: on= takes an event expression such as event('EXIT'), "
                f"updated(table) or seq(…), not {on!r}"
            )
        on.check()
        _check_callable(name, "action", action)
        if when is not None:
            _check_callable(name, "condition (when=)", when)
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
            raise DefinitionError(f"rule {name}: priority takes an integer, not {priority!r}")
        return cls(
            name=name,
            on=on,
            action=action,
            when=when,
            coupling=_one_of(Coupling, coupling, name, "coupling"),
            priority=priority,
            on_abort=_one_of(OnAbort, on_abort, name, "on_abort"),
        )


def _one_of(choices: type[E], value: str, rule: str, option: str) -> E:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(repr(str(choice)) for choice in choices)
        raise DefinitionError(f"rule {rule}: {option}={value!r} is not one of {known}") from None


def _check_callable(rule: str, what: str, function: Any) -> None:
    if not callable(function):
        raise RuleSignatureError(f"rule {rule}: the {what} is not a function: {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a built-in that does not tell; calling it will
    try:
        signature.bind(None, None)
    except TypeError as error:
        shown = f"{getattr(function, '__name__', 'function')}{signature}"
        raise RuleSignatureError(
            f"rule {rule}: the {what} {shown} cannot be called with (t, o): {error}; "
            f"write def {rule}(t, o)"
        ) from None
