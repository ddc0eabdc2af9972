"""SQL on the one row that a key names, read and written by that key under a row lock.

Statements that are run as SQL lock their tables. Access by key locks one row, so rules for
different rows run in parallel, and needs no SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from activedb.events.terms import KeyRead, Literal, Term
from activedb.language._references import Referring

__all__ = ["KeyWrite", "key_read", "key_write"]

_KEY_TYPES = (int, str)
_PADDED = ("CHAR", "NCHAR")  # types whose values may be equal but not identical


@dataclass(frozen=True, slots=True)
class KeyWrite:
    """UPDATE or DELETE of the row with a key.

    Attributes
    ----------
    key : Term
    key_type : type
        Type of the key column; a key of another type is left to SQL.
    values : tuple of (str, Term, type)
        Columns, the values assigned to them, and their types.
    """

    key: Term
    key_type: type
    values: tuple[tuple[str, Term, type], ...] = ()

    def run(self, t: Any, o: Any, table: Any) -> bool:
        """Write in `t` for the event `o`; return False if a type needs SQL."""
        key = self.key.evaluate(o.parts, o)
        if type(key) is not self.key_type:
            return False
        changed: dict[str, Any] = {}
        for column, term, kind in self.values:
            value = changed[column] = term.evaluate(o.parts, o)
            if value is not None and type(value) is not kind:
                return False
        if t.get(table, key, for_update=True) is None:
            return True
        if self.values:
            t.update(table, key, **changed)
        else:
            t.delete(table, key)
        return True


def key_read(query: exp.Expr, table: Any, referring: Referring) -> KeyRead | None:
    """Return the by-key form of a resolved SELECT of one row of a declared table, or None."""
    given = {name for name, value in query.args.items() if value}
    if not isinstance(query, exp.Select) or not given <= {"expressions", "from_", "where"}:
        return None
    found = _key(query.args.get("where"), table, referring)
    if found is None or len(query.expressions) != 1:
        return None
    (chosen,) = query.expressions
    if isinstance(chosen, exp.Literal):
        return KeyRead(table, *found, None)
    if isinstance(chosen, exp.Column) and chosen.name in table.columns:
        return KeyRead(table, *found, chosen.name)
    return None


def key_write(
    columns: Sequence[str], values: Sequence[exp.Expr], where: Any, table: Any, referring: Referring
) -> KeyWrite | None:
    """Return the by-key form of an UPDATE of `columns`, or of a DELETE, of one row, or None."""
    found = _key(where, table, referring)
    if found is None or any(table.columns[name].primary_key for name in columns):
        return None
    assigned: list[tuple[str, Term, type]] = []
    for name, value in zip(columns, values, strict=True):
        term, kind = _plain(value, referring), _type(table.columns[name])
        if term is None or kind is None:
            return None
        assigned.append((name, term, kind))
    return KeyWrite(*found, tuple(assigned))


def _key(where: Any, table: Any, referring: Referring) -> tuple[Term, type] | None:
    """Return key and key type if a condition equates the only key column with a key, else None."""
    condition = None if where is None else where.this.unnest()
    if not isinstance(condition, exp.EQ) or table is None:
        return None
    keys = list(table.primary_key.columns)
    for one, other in (
        (condition.this, condition.expression),
        (condition.expression, condition.this),
    ):
        key = _plain(other, referring)
        is_column = isinstance(one, exp.Column) and len(keys) == 1 and one.name == keys[0].name
        if is_column and key is not None and _plain(one, referring) is None:
            kind = _type(keys[0])
            return None if kind not in _KEY_TYPES else (key, kind)
    return None


def _plain(value: exp.Expr, referring: Referring) -> Term | None:
    """Return the term of a reference to an event, a string or a whole number, else None."""
    value = value.unnest()
    if isinstance(value, exp.Column) and not value.table and referring.is_reference(value.name):
        return referring.references[int(value.name[len(referring.mark) :]) - 1]
    if isinstance(value, exp.Literal):
        if value.is_string:
            return Literal(value.this)
        return Literal(int(value.this)) if value.this.isdigit() else None
    return None


def _type(column: Any) -> type | None:
    try:
        kind: type = column.type.python_type
    except NotImplementedError:
        return None
    return None if column.type.__visit_name__ in _PADDED else kind
