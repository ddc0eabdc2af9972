"""Rewriting of a statement's text so that it names the shadows of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from activedb.errors import UnsupportedStatement
from activedb.store.sql._names import Names
from activedb.store.sql._plain_text import Edit, PlainText
from activedb.store.sql._sql_text import Reference, SelectAnalysis
from activedb.store.sql._tables import TableSpec

__all__ = ["Targets", "edits_of"]

Targets: TypeAlias = Sequence[tuple[Reference, TableSpec | None]]
"""Meaning of each reference; None for a system table of the server."""


def edits_of(
    plain: PlainText,
    understood: SelectAnalysis,
    targets: Targets,
    shadows: Mapping[TableSpec, str],
    names: Names,
    expressions: Sequence[str],
) -> list[Edit]:
    """Return the edits to the text; everything else stays as it was written.

    Parameters
    ----------
    shadows : mapping of TableSpec to str
        Names that replace the tables.
    expressions : sequence of str
        Common table expressions that define these names.

    Raises
    ------
    UnsupportedStatement
        If a column's table is ambiguous.
    """
    rewriting = _Rewriting(plain, understood, targets, shadows, names)
    edits = [*understood.comments, *rewriting.of_tables()]
    edits += rewriting.of_columns()
    if expressions:
        head, listed = understood.head, ", ".join(expressions)
        edits.append(Edit(head, head, f" {listed}," if understood.has_with else f"WITH {listed} "))
    return edits


class _Rewriting:
    """Edits of one statement.

    Each table keeps its alias, or gets its own name as one; so the columns need no change, unless
    they are also qualified with a schema.
    """

    def __init__(
        self,
        plain: PlainText,
        understood: SelectAnalysis,
        targets: Targets,
        shadows: Mapping[TableSpec, str],
        names: Names,
    ):
        self._plain = plain
        self._understood = understood
        self._targets = targets
        self._shadows = shadows
        self._names = names
        self._double = _of_two_tables(targets)
        self._prefixes: dict[TableSpec, str] = {}

    def of_tables(self) -> Iterator[Edit]:
        """Yield the edits that replace table names by their shadows."""
        for reference, spec in self._targets:
            if spec is None:
                continue
            if spec in self._shadows:
                name = self._shadows[spec]
            elif self._names.must_qualify and self._is_hidden(reference):
                name = self._names.real(spec)
            else:
                continue
            alias = self._alias(reference, spec)
            if reference.grouping is not None and spec in self._shadows:
                yield from self._of_grouping(reference, spec, alias or name)
            if alias is not None and not reference.is_named and reference.takes_alias:
                self._prefixes[spec] = alias
                name = f"{name} AS {alias}"
            elif not reference.is_named:
                self._prefixes[spec] = name
            yield Edit(reference.start, reference.end, name)

    def of_columns(self) -> Iterator[Edit]:
        """Yield the edits of qualified columns, for the new names. REQUIRES: `of_tables`."""
        for column in self._understood.qualified:
            table = self._names.find(column)
            for spec, prefix in self._prefixes.items():
                if spec.table is table:
                    yield Edit(column.start, column.end, prefix)

    def _is_hidden(self, reference: Reference) -> bool:
        """Return whether a common table expression elsewhere has the table's name."""
        return reference.schema is None and reference.name in self._understood.ctes

    def _alias(self, reference: Reference, spec: TableSpec) -> str | None:
        """Return the table's alias in the statement; None to use the name of its shadow."""
        grouping = reference.grouping
        if reference.is_named:
            return None if grouping is None else grouping.prefix
        if reference.name in self._double and spec in self._shadows:
            if reference.name in self._understood.prefixes:
                raise UnsupportedStatement(
                    f"the statement reads several tables called {reference.name}, some of them "
                    f"with uncommitted rows: give each an alias"
                )
            return None
        return self._plain.restored(reference.written)

    def _of_grouping(self, reference: Reference, spec: TableSpec, prefix: str) -> Iterator[Edit]:
        """Add the columns to GROUP BY that functionally depend on the table's primary key."""
        grouping = reference.grouping
        assert grouping is not None
        places = dict(grouping.columns)
        if not places.keys() >= set(spec.key_columns):
            return
        more = [
            f", {prefix}.{self._names.quoted(name)}"
            for name in (str(c.name) for c in spec.table.columns)
            if name not in places and (grouping.has_star or name in grouping.named)
        ]
        end = places[spec.key_columns[-1]]
        yield Edit(end, end, "".join(more))


def _of_two_tables(targets: Targets) -> set[str]:
    """Return the names under which more than one table is read without an alias."""
    meanings: dict[str, set[Any]] = {}
    for reference, spec in targets:
        if not reference.is_named:
            meant = (reference.schema, reference.name) if spec is None else spec
            meanings.setdefault(reference.name, set()).add(meant)
    return {name for name, meant in meanings.items() if len(meant) > 1}
