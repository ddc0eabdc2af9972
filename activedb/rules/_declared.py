"""Declared effects of a rule, and rules without an event.

A rule without an event is triggered by any change of the tables that its condition reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from activedb.errors import DefinitionError, PatternError
from activedb.events import Expression, Primitive, any_of, inserted
from activedb.spelling import did_you_mean

__all__ = ["Declared", "FindReads", "Part", "check_columns", "event_of_reads"]


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


def check_columns(rule: str, declared: Declared, tables: Mapping[str, Any]) -> None:
    """Refuse declared reads and writes of columns that their tables do not have.

    Parameters
    ----------
    rule : str
        Name of the rule, for errors.
    tables : mapping of str to Table
        Declared tables by full name. Columns of other tables are not checked.

    Raises
    ------
    DefinitionError
        If there is no such column; the message suggests similar names.
    """
    for _, name, column in sorted({*(declared.reads or ()), *(declared.writes or ())}, key=repr):
        table = tables.get(name)
        if table is None or column is None:
            continue
        known = [each.name for each in table.columns]
        if column not in known:
            raise DefinitionError(
                f"rule {rule}: table {name} has no column {column!r}; {did_you_mean(column, known)}"
            )


FindReads: TypeAlias = Callable[[Any, Mapping[str, Any]], Iterable[Part] | str]
"""Function from condition and params to its reads, or to the reason why they are unknown."""


def event_of_reads(
    rule: str,
    when: Any,
    params: Any,
    declared: Declared,
    find_reads: FindReads | None,
) -> Expression:
    """Return the event of a rule whose author has left it out.

    It is each insert into, and delete from, the tables that the condition reads, and each update
    of the columns that it reads, or of any column of a table whose rows it reads whole.

    Parameters
    ----------
    declared : Declared
        Declared reads, which take precedence.
    find_reads : callable, optional
        Called if no reads are declared.

    Raises
    ------
    DefinitionError
        If there is no condition, or its reads are unknown.
    """
    if when is None:
        raise DefinitionError(
            f"rule {rule}: without on= it needs a condition, when=, which is evaluated when what "
            f"it reads changes"
        )
    reads: Iterable[Part] | str | None = declared.reads
    if reads is None and find_reads is not None and callable(when):
        reads = find_reads(when, params if isinstance(params, Mapping) else {})
    if reads is None or isinstance(reads, str):
        why = f" ({reads})" if isinstance(reads, str) else ""
        raise DefinitionError(
            f"rule {rule}: without on= it must be known what the condition reads, and its source "
            f"does not tell{why}; write reads=[table, …], or on="
        )
    columns: dict[str, set[str | None]] = {}
    for _, table, column in reads:
        columns.setdefault(table, set()).add(column)
    if not columns:
        raise DefinitionError(
            f"rule {rule}: the condition reads no table, so nothing would ever trigger the rule; "
            f"write on=, or reads=[table, …]"
        )
    parts = []
    for table, read in sorted(columns.items()):
        narrowed = () if None in read else tuple(sorted(c for c in read if c is not None))
        parts += [
            Primitive(("insert", table), (), None, None),
            Primitive(("update", table), narrowed, None, None),
            Primitive(("delete", table), (), None, None),
        ]
    return any_of(*parts)
