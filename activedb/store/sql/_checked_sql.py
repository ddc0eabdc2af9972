"""Statements built from checked pieces of SQL text: those of the rule language.

`execute` analyses statements, so a write is built from the table, its columns and pieces of text;
values accompany the text as bound parameters, and are never part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table, TextClause, delete, insert, text, type_coerce, update

__all__ = ["Piece", "delete_of", "insert_of", "insert_of_rows", "select_of", "update_of"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Piece of SQL.

    Attributes
    ----------
    sql : str
        Text with ``:name`` for each parameter; any other colon has a backslash before it.
    names : tuple of str
        The parameters in it.
    """

    sql: str
    names: tuple[str, ...] = ()

    def bound(self, values: Mapping[str, Any], *, brackets: bool = True) -> TextClause:
        """Return the piece with the values of its parameters."""
        made = text(f"({self.sql})" if brackets else self.sql)
        return made.bindparams(**{name: values[name] for name in self.names})


def select_of(piece: Piece, values: Mapping[str, Any]) -> Any:
    """Build a SELECT, for `query`."""
    return piece.bound(values, brackets=False)


def update_of(
    table: Table,
    assigned: Mapping[str, Piece],
    where: Piece | None,
    values: Mapping[str, Any],
) -> Any:
    """Build an UPDATE of the columns named in `assigned`, for `execute`."""
    made = update(table).values(_cells(table, assigned, values))
    return made if where is None else made.where(where.bound(values))


def delete_of(table: Table, where: Piece | None, values: Mapping[str, Any]) -> Any:
    """Build a DELETE, for `execute`."""
    made = delete(table)
    return made if where is None else made.where(where.bound(values))


def insert_of_rows(
    table: Table, rows: Sequence[Mapping[str, Piece]], values: Mapping[str, Any]
) -> Any:
    """Build an INSERT of rows, for `execute`."""
    return insert(table).values([_cells(table, row, values) for row in rows])


def insert_of(
    table: Table, columns: Sequence[str], select: Piece, values: Mapping[str, Any]
) -> Any:
    """Build an INSERT of a SELECT's rows, for `execute`."""
    found = select.bound(values, brackets=False).columns(*(table.c[name] for name in columns))
    return insert(table).from_select(list(columns), found)


def _cells(table: Table, pieces: Mapping[str, Piece], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by column: a lone parameter stays as it is, to get the column's type."""
    return {
        name: values[piece.names[0]]
        if piece.names and piece.sql == f":{piece.names[0]}"
        else type_coerce(piece.bound(values), table.c[name].type)
        for name, piece in pieces.items()
    }
