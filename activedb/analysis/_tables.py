"""Tables and columns among the objects that a rule's source names.

No object is called or imported. SQLAlchemy stays in the store: an object with a full name and
columns counts as a table, as for events.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

__all__ = ["Column", "Table", "column_of", "table_of"]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes
    ----------
    name : str
        Full name.
    columns : tuple of (str, str)
        Key and name of each column. The key is the name of the Python attribute.
    touched : frozenset of str
        Columns that every update changes: ``onupdate``, computed ones.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    touched: frozenset[str]

    def column(self, key: str) -> Column | None:
        """Return the column with this key or name, or None."""
        for known, name in self.columns:
            if key in (known, name):
                return Column(self.name, name)
        return None


@dataclass(frozen=True, slots=True)
class Column:
    """A column, by the full name of its table and its own name."""

    table: str
    name: str


def table_of(thing: Any) -> Table | None:
    """Return the table that a Table or a mapped class stands for, or None. O(columns)."""
    if isinstance(thing, type):
        mapper = inspect.getattr_static(thing, "__mapper__", None)
        thing = getattr(mapper, "local_table", None)
    if not _is_of_sqlalchemy(thing) or not isinstance(getattr(thing, "fullname", None), str):
        return None
    columns = list(thing.columns)
    return Table(
        str(thing.fullname),
        tuple((str(column.key), str(column.name)) for column in columns),
        frozenset(str(column.name) for column in columns if _changes_by_itself(column)),
    )


def column_of(thing: Any) -> Column | None:
    """Return the column that a Column or an attribute of a mapped class stands for, or None."""
    if not _is_of_sqlalchemy(thing):
        return None
    if hasattr(thing, "__clause_element__"):
        thing = thing.__clause_element__()
    table, name = getattr(thing, "table", None), getattr(thing, "name", None)
    known = None if table is None else table_of(table)
    return known.column(name) if known is not None and isinstance(name, str) else None


def _is_of_sqlalchemy(thing: Any) -> bool:
    return str(type(thing).__module__).partition(".")[0] == "sqlalchemy"


def _changes_by_itself(column: Any) -> bool:
    return any(
        getattr(column, name, None) is not None
        for name in ("onupdate", "server_onupdate", "computed")
    )
