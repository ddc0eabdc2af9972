"""Terms that read the shared store as of the event's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from activedb.errors import BadEvent, PatternError, StoreError
from activedb.events.terms._term import ATOM, SUM, Compiled, NegatedInside, Term, Value, written
from activedb.events.terms._values import equal

__all__ = ["Exists", "InSubquery", "KeyRead", "Subquery"]


@dataclass(frozen=True, slots=True)
class KeyRead:
    """Read of a single row by its key, equivalent to a SELECT.

    Attributes
    ----------
    table : Table
    key : Term
    key_type : type
        The key column's type; a key of another type is left to SQL.
    column : str or None
        The column that is read; None: only whether the row exists.
    """

    table: Any
    key: Term
    key_type: type
    column: str | None

    def row(self, parts: Mapping[str, Any], this: Any, reader: Any) -> tuple[bool, Any]:
        """Return whether the key determines the row, and the row (None if it does not exist)."""
        key = self.key.compiled(parts, this, reader)
        if reader is None or type(key) is not self.key_type:
            return False, None
        return True, reader.get(self.table, key)


@dataclass(frozen=True, eq=False, repr=False)
class Subquery(Term):
    """SELECT over the shared store, with values from events; built by the rule language.

    Its value is that of the single column of its single row, or NULL if there is no row.

    Attributes
    ----------
    sql : str
        The text as written.
    statement : str
        The statement sent: tables and columns as declared, ``:ref_1``, ``:ref_2``, … for references
        to events, and a backslash before any other colon.
    references : tuple of Term
        The terms that the ``:ref_…`` placeholders stand for.
    reads : frozenset of (str, str or None)
        The tables and columns read.
    by_key : KeyRead or None
        An equivalent read without SQL, under the lock of one row, if there is one. It does not
        count in comparisons of terms.
    """

    sql: str
    statement: str
    references: tuple[Term, ...] = ()
    reads: frozenset[tuple[str, str | None]] = frozenset()
    by_key: KeyRead | None = None

    def _structure(self) -> tuple[Any, ...]:
        return (Subquery, self.sql, self.statement, self.references, self.reads)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "by_key": None}

    @property
    def operands(self) -> tuple[Term, ...]:
        return self.references

    @cached_property
    def is_reading(self) -> bool:
        return True

    def rows(self, parts: Mapping[str, Any], this: Any, reader: Any) -> list[Any]:
        """Return the rows of the SELECT, read through `reader`.

        Raises
        ------
        PatternError
            If there is no reader.
        StoreError
            If the store refuses the statement, which the message names.
        """
        # Imported here, so that events alone need no database library.
        from activedb.store.sql import Piece, select_of

        if reader is None:
            raise PatternError(
                f"{self!r} reads the shared store: judge it in a transaction, as a rule does, or "
                "give detect() a reader="
            )
        values = {
            f"ref_{number}": reference.compiled(parts, this, reader)
            for number, reference in enumerate(self.references, 1)
        }
        select = select_of(Piece(self.statement, tuple(values)), values)
        try:
            found: list[Any] = reader.query(select)
        except StoreError as error:
            raise error.during(f"in {self!r}") from error.__cause__
        return found

    def _compiled(self) -> Compiled:
        by_key = self.by_key

        def scalar(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            if by_key is not None and by_key.column is not None:
                is_told, row = by_key.row(parts, this, reader)
                if is_told:
                    return None if row is None else row[by_key.column]
            rows = self.rows(parts, this, reader)
            if len(rows) > 1:
                raise BadEvent(
                    f"{self!r} finds {len(rows)} rows where a value is needed: narrow it, use an "
                    "aggregate, or IN"
                )
            return rows[0][0] if rows else None

        return scalar

    def _text(self) -> tuple[str, int]:
        # A comment at the end of the text must not swallow the bracket.
        ends_in_comment = "--" in self.sql.rpartition("\n")[2]
        return f"({self.sql}\n)" if ends_in_comment else f"({self.sql})", ATOM


@dataclass(frozen=True, eq=False, repr=False)
class Exists(Term):
    """Condition that a SELECT finds a row.

    Attributes
    ----------
    subquery : Subquery
    """

    subquery: Subquery

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.subquery,)

    def _compiled(self) -> Compiled:
        by_key, rows = self.subquery.by_key, self.subquery.rows

        def exists(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            if by_key is not None:
                is_told, row = by_key.row(parts, this, reader)
                if is_told:
                    return row is not None
            return bool(rows(parts, this, reader))

        return exists

    def _text(self) -> tuple[str, int]:
        return f"EXISTS {self.subquery!r}", ATOM


@dataclass(frozen=True, eq=False, repr=False)
class InSubquery(NegatedInside):
    """Condition that a SELECT finds a value. If it does not but finds NULL, unknown.

    Attributes
    ----------
    operand : Term
    subquery : Subquery
        A SELECT of one column.
    """

    operand: Term
    subquery: Subquery

    @property
    def operands(self) -> tuple[Term, ...]:
        return (self.operand, self.subquery)

    def _compiled(self) -> Compiled:
        operand, rows = self.operand.compiled, self.subquery.rows

        def found_by(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            value = operand(parts, this, reader)
            if value is None:
                return None
            found: Value = False
            for row in rows(parts, this, reader):
                try:
                    if row[0] is None:
                        found = None
                    elif equal(value, row[0]):
                        return True
                except (TypeError, ArithmeticError, ValueError):
                    raise BadEvent(f"{self!r}: {value!r} and {row[0]!r} do not compare") from None
            return found

        return found_by

    def _test_text(self, negation: str) -> str:
        return f"{written(self.operand, SUM)} {negation}IN {self.subquery!r}"
