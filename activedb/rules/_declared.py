"""Declared effects of a rule: the tables and signals it reads, writes and raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from activedb.errors import DefinitionError, PatternError
from activedb.events import Expression, inserted

__all__ = ["Declared", "Part"]

Part: TypeAlias = tuple[str, str, str | None]
"""Access (read, insert, update, delete), its table, and its column (None: whole rows)."""

_ROW_EVENTS = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class Declared:
    """Declared effects of condition and action; None for an effect that is not declared.

    Attributes
    ----------
    reads, writes : frozenset of Part, or None
    raises : frozenset of str, or None
        Names of signals.
    """

    reads: frozenset[Part] | None = None
    writes: frozenset[Part] | None = None
    raises: frozenset[str] | None = None

    @classmethod
    def of(cls, rule: str, *, reads: Any, writes: Any, raises: Any) -> Declared:
        """Check a user's declarations and build from them.

        Parameters
        ----------
        rule : str
            Name of the rule, for errors.
        reads, writes : list, or None
            Tables, mapped classes, columns, ``"table"``, ``"table.column"``; in writes also
            ``inserted(table)``, ``updated(table, "column")``, ``deleted(table)``.
        raises : list of str, or None

        Raises
        ------
        DefinitionError
            If an argument is no list, or has an invalid item.
        """
        return cls(
            reads=_each(rule, "reads", reads, _read),
            writes=_each(rule, "writes", writes, _written),
            raises=_each(rule, "raises", raises, _raised),
        )


def _each(rule: str, option: str, given: Any, parts_of: Any) -> frozenset[Any] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple | set | frozenset):
        raise DefinitionError(f"rule {rule}: {option}= takes a list, [{given!r}], not {given!r}")
    found: set[Any] = set()
    for item in given:
        parts = parts_of(item)
        if parts is None:
            kinds = (
                "names of signals"
                if option == "raises"
                else 'tables, mapped classes, columns or "table.column"'
            )
            raise DefinitionError(f"rule {rule}: {option}= takes {kinds}, not {item!r}")
        found.update(parts)
    return frozenset(found)


def _read(item: Any) -> list[Part] | None:
    place = _place(item)
    return None if place is None else [("read", *place)]


def _written(item: Any) -> list[Part] | None:
    if isinstance(item, Expression):
        keys = [key for key in item.keys if key[0] in _ROW_EVENTS]
        if len(keys) != 1 or len(item.keys) != 1:
            return None
        ((kind, table),) = keys
        return [(kind, table, column) for column in getattr(item, "columns", ()) or (None,)]
    place = _place(item)
    if place is None:
        return None
    table, column = place
    return (
        [(kind, table, None) for kind in _ROW_EVENTS]
        if column is None
        else [("update", table, column)]
    )


def _raised(item: Any) -> list[str] | None:
    return [item] if isinstance(item, str) and item else None


def _place(item: Any) -> tuple[str, str | None] | None:
    """Return the table and column that `item` names, or None."""
    if isinstance(item, str):
        table, dot, column = item.rpartition(".")
        if not dot:
            return (column, None) if column else None
        return (table, column) if table and column else None
    if isinstance(item, Expression):
        return None
    element = item
    if hasattr(item, "__clause_element__") and not hasattr(item, "__table__"):
        element = item.__clause_element__()  # an attribute of a mapped class
    name = getattr(element, "name", None)
    of = getattr(getattr(element, "table", None), "fullname", None)
    if isinstance(name, str) and isinstance(of, str):
        return of, name
    return _table(item)


def _table(item: Any) -> tuple[str, None] | None:
    try:
        ((_, name),) = inserted(item).keys  # accepts the same tables as an event
    except PatternError:
        return None
    return name, None
