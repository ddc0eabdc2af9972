"""The statements of the rule language."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from activedb.events import Query
from activedb.rules import Rule

__all__ = ["AlterRule", "CreateQuery", "CreateRule", "Drop", "Statement"]


@dataclass(frozen=True, slots=True)
class CreateQuery:
    """CREATE QUERY.

    Attributes
    ----------
    query : Query
    replace : bool
        Whether one of this name may be there already.
    line : int
        Where the statement begins.
    """

    query: Query
    replace: bool = False
    line: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class CreateRule:
    """CREATE RULE.

    Attributes
    ----------
    rule : Rule
    replace, line
        As of `CreateQuery`.
    """

    rule: Rule
    replace: bool = False
    line: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class Drop:
    """DROP QUERY or DROP RULE.

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
    """ALTER RULE.

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
