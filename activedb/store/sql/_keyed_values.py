"""View of a table as keys and values: the rows of programs' shared tables."""

from __future__ import annotations

import datetime
import json
from typing import Any

from sqlalchemy import (
    CHAR,
    JSON,
    REAL,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Uuid,
)

from activedb.errors import DefinitionError, InvalidRow
from activedb.store.sql._tables import Row, TableSpec

__all__ = ["KeyedValues"]

_EXACT = (Boolean, Date, DateTime, Enum, Integer, JSON, LargeBinary, String, Uuid)
_SINGLE_BITS = 24  # a float of at most this precision is a float4


class KeyedValues:
    """Converter between rows and pairs of key and value.

    The key is the value of the primary key, a tuple if it has several columns; the value is that
    of the other column, a dict if there are several. Converting a pair to a row and back yields
    the original pair.

    Attributes
    ----------
    spec : TableSpec
    columns : tuple of str
        Columns of the value.

    Raises
    ------
    DefinitionError
        If the table has only key columns, or a column that may return another value than it was
        given.
    """

    def __init__(self, spec: TableSpec):
        self.spec = spec
        self.columns = tuple(
            str(c.name) for c in spec.table.columns if c.name not in spec.key_columns
        )
        if not self.columns:
            raise DefinitionError(
                f"table {spec.name} has nothing but its key: a program's table has a column for "
                "the value, or several"
            )
        for column in spec.table.columns:
            if not _is_exact(column):
                raise DefinitionError(
                    f"table {spec.name}: column {column.name} of type {column.type!r} may return "
                    "another value than it was given, so a program cannot go on from it after a "
                    "restart; take Integer, Float, Numeric, String, Boolean, Date, DateTime, Uuid, "
                    "Enum, LargeBinary or JSON"
                )
        self._json = {str(c.name) for c in spec.table.columns if isinstance(c.type, JSON)}
        self._plain_times = {
            str(c.name)
            for c in spec.table.columns
            if isinstance(c.type, DateTime) and not c.type.timezone
        }

    @property
    def holds_floats(self) -> bool:
        """True if a value is one float."""
        return len(self.columns) == 1 and isinstance(
            self.spec.table.columns[self.columns[0]].type, Float
        )

    @property
    def has_number_key(self) -> bool:
        """True if a key is one integer."""
        names = self.spec.key_columns
        return len(names) == 1 and isinstance(self.spec.table.columns[names[0]].type, Integer)

    def pair(self, row: Row) -> tuple[Any, Any]:
        """Return the key and the value of a row."""
        key = self.spec.key_of(row)
        values = {name: row[name] for name in self.columns}
        return (
            key[0] if len(key) == 1 else key,
            values if len(values) > 1 else values[self.columns[0]],
        )

    def row(self, key: Any, value: Any) -> Row:
        """Return the row of a key and a value.

        Raises
        ------
        InvalidRow
            If the table does not accept them, or would return something else.
        """
        spec = self.spec
        given = dict(zip(spec.key_columns, spec.key(key), strict=True))
        if given != dict(zip(spec.key_columns, key if type(key) is tuple else (key,), strict=True)):
            raise InvalidRow(f"table {spec.name}: the key {key!r} comes back as {spec.key(key)!r}")
        given |= self._values(key, value)
        row = spec.complete(given)
        for name in self.columns:
            self._check_same(name, given[name], row[name])
        return row

    def _values(self, key: Any, value: Any) -> dict[str, Any]:
        if len(self.columns) == 1:
            return {self.columns[0]: value}
        if not isinstance(value, dict) or value.keys() != set(self.columns):
            raise InvalidRow(
                f"table {self.spec.name}: the value of {key!r} is a dict of "
                f"{', '.join(self.columns)}, not {value!r}"
            )
        return value

    def _check_same(self, name: str, given: Any, kept: Any) -> None:
        spec = self.spec
        if name in self._json:
            try:
                kept = json.loads(json.dumps(given))
            except (TypeError, ValueError) as error:
                raise InvalidRow(
                    f"table {spec.name}: column {name} cannot keep {given!r}: {error}"
                ) from error
        if isinstance(given, datetime.datetime) and given.tzinfo and name in self._plain_times:
            raise InvalidRow(
                f"table {spec.name}: column {name} has no time zone; give {given!r} without one"
            )
        if given != kept and given == given:  # NaN is unequal to itself, but is kept
            raise InvalidRow(
                f"table {spec.name}: column {name} would return {kept!r} for {given!r}; write what "
                "it can keep"
            )


def _is_exact(column: Column[Any]) -> bool:
    """Return whether the values that a column returns can be predicted from those it is given."""
    kind = column.type
    if column.computed is not None or not type(kind).__module__.startswith("sqlalchemy."):
        return False
    if isinstance(kind, Float):
        is_single = isinstance(kind, REAL) or (
            kind.precision is not None and kind.precision <= _SINGLE_BITS
        )
        return not kind.asdecimal and (isinstance(kind, Double) or not is_single)
    if isinstance(kind, Numeric):
        return kind.asdecimal
    return isinstance(kind, _EXACT) and not isinstance(kind, CHAR)
