"""A rule as the analysis sees it: what it listens to, what it may do."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import FunctionType
from typing import Any

from activedb.analysis._effects import Change, Effects, Read, Signal, Unresolved
from activedb.analysis._objects import known
from activedb.analysis._reading import Reading
from activedb.analysis._recorder import Recorder
from activedb.analysis._source import file_of
from activedb.analysis._values import DATA, TRANSACTION, Bound, Known, Value
from activedb.events import Disjunction, Expression, Negation, Primitive, Sequence
from activedb.rules import Part, Rule
from coupling import ConditionAction, Coupling

__all__ = ["Listening", "Profile", "Role", "reads_of"]


class Role(StrEnum):
    """What an event does for a rule that listens to it.

    ``COMPLETES``: it triggers the rule. ``CONTRIBUTES``: it is an earlier part of a sequence.
    ``FORBIDS``: it is a negated part.
    """

    COMPLETES = "completes"
    CONTRIBUTES = "contributes"
    FORBIDS = "forbids"


@dataclass(frozen=True, slots=True)
class Listening:
    """A primitive event that a rule listens to.

    Attributes
    ----------
    key : tuple of (str, str)
        As in `Expression.keys`.
    columns : tuple of str
        Of an update: one of them must change. Empty: any.
    role : Role
    """

    key: tuple[str, str]
    columns: tuple[str, ...]
    role: Role

    def hears(self, effect: Change | Signal) -> bool:
        """Whether `effect` may be such an event."""
        if isinstance(effect, Signal):
            return self.key == ("event", effect.name)
        return self.key == (effect.kind, effect.table) and (
            not self.columns or effect.column is None or effect.column in self.columns
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """A rule as the analysis sees it.

    Attributes
    ----------
    name : str
    event : str
        Its expression, as text.
    coupling : Coupling
    priority : int or None
    listens : tuple of Listening
    effects : Effects
        Of condition and action together.
    condition_action : ConditionAction
    after : tuple of str
        Rules that end before it starts, if they are triggered together.
    """

    name: str
    event: str
    coupling: Coupling
    priority: int | None
    listens: tuple[Listening, ...]
    effects: Effects
    condition_action: ConditionAction = ConditionAction.IMMEDIATE
    after: tuple[str, ...] = ()

    @classmethod
    def of(cls, rule: Rule) -> Profile:
        """The profile of a rule: as declared, else as its source tells.

        O(its source, with the functions of its module that it calls). Nothing of it is run.
        """
        return cls(
            rule.name,
            repr(rule.on),
            rule.coupling,
            rule.priority,
            _listening(rule.on),
            _effects(rule),
            rule.condition_action,
            rule.after,
        )

    @property
    def acts_in(self) -> Coupling:
        """How the action's transaction is coupled to the triggering one.

        A child's deferred action waits like a deferred rule, and its detached one runs like a
        detached rule; all others are coupled as the rule.
        """
        if not self.coupling.is_child:
            return self.coupling
        if self.condition_action is ConditionAction.DEFERRED:
            return Coupling.DEFERRED
        if self.condition_action is ConditionAction.DETACHED:
            return Coupling.DETACHED
        return self.coupling

    @property
    def completing(self) -> frozenset[tuple[str, str]]:
        """Keys of the events that trigger it."""
        return frozenset(part.key for part in self.listens if part.role is Role.COMPLETES)


def _listening(on: Expression) -> tuple[Listening, ...]:
    if isinstance(on, Primitive):
        return (Listening(on.key, on.columns, Role.COMPLETES),)
    if isinstance(on, Disjunction):
        found = [Listening(part.key, part.columns, Role.COMPLETES) for part in on.parts]
        return tuple(dict.fromkeys(found))
    if isinstance(on, Sequence):
        *_, last = on.parts
        found = []
        for part in on.parts:
            primitive = part.operand if isinstance(part, Negation) else part
            role = Role.FORBIDS if part is not primitive else Role.CONTRIBUTES
            role = Role.COMPLETES if part is last else role
            found.append(Listening(primitive.key, primitive.columns, role))
        return tuple(dict.fromkeys(found))
    return tuple(Listening(key, (), Role.COMPLETES) for key in sorted(on.keys))


def reads_of(function: Any, params: Mapping[str, Any]) -> list[Part] | str:
    """Tables and columns that a function ``(t, o)`` reads, or why its source does not tell."""
    effects = _of_function(function, params)
    for each in effects.unresolved:
        if "reads" in each.kinds:
            return str(each)
    return [("read", read.table, read.column) for read in effects.reads]


def _effects(rule: Rule) -> Effects:
    declared = rule.declared
    said = {name for name in ("reads", "writes", "raises") if getattr(declared, name) is not None}
    found = Effects()
    if len(said) < 3:
        found = _inferred(rule)
    reads = found.reads
    if declared.reads is not None:
        reads = tuple(Read(table, column) for _, table, column in declared.reads)
    changes = found.changes
    if declared.writes is not None:
        changes = tuple(Change(kind, table, column) for kind, table, column in declared.writes)
    signals = found.signals
    if declared.raises is not None:
        signals = tuple(Signal(name) for name in declared.raises)
    unresolved = [
        Unresolved(each.place, each.why, each.kinds - said)
        for each in found.unresolved
        if each.kinds - said
    ]
    return Effects.of(reads, changes, signals, unresolved)


def _inferred(rule: Rule) -> Effects:
    parts = [_of_function(rule.action, rule.params)]
    if rule.when is not None:
        parts.insert(0, _of_function(rule.when, rule.params))
    return Effects.of(
        [each for part in parts for each in part.reads],
        [each for part in parts for each in part.changes],
        [each for part in parts for each in part.signals],
        [each for part in parts for each in part.unresolved],
    )


def _of_function(function: Any, params: Mapping[str, Any]) -> Effects:
    args: list[Value] = [frozenset((TRANSACTION,)), frozenset((DATA,))]
    named = {name: frozenset((known(value),)) for name, value in params.items()}
    atom = known(function)
    if isinstance(atom, Bound):
        args, named = [*atom.first, *args], dict(atom.named) | named
        atom = atom.function
    thing = atom.thing if isinstance(atom, Known) else function
    if not isinstance(thing, FunctionType):
        method = inspect.getattr_static(type(thing), "__call__", None)
        if not isinstance(method, FunctionType):
            shown = getattr(type(thing), "__qualname__", "a callable")
            why = f"{shown} has no source in Python"
            return Effects(unresolved=(Unresolved(shown, why),))
        args = [frozenset((Known(thing),)), *args]
        thing = method
    found = Recorder(file_of(thing))
    reading = Reading(found, file=thing.__code__.co_filename)
    node = inspect.signature(thing).parameters
    takes = {name for name in named if name in node or _takes_all(node)}
    at = ast.Pass(lineno=thing.__code__.co_firstlineno)  # where it begins
    reading.follow(Known(thing), args, {name: named[name] for name in takes}, at)
    return found.effects()


def _takes_all(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in parameters.values())
