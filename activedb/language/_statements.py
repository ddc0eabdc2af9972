"""Statements of the rule language."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from activedb.events import Query
from activedb.rules import Rule

__all__ = ["AlterRule", "CreateQuery", "CreateRule", "Drop", "Statement"]


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
