"""Resolution of table and column names in SQL to their declared spelling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from activedb.errors import RuleSyntaxError
from activedb.language._references import Referring
from activedb.language._tables import columns_of, named
from activedb.spelling import did_you_mean

__all__ = ["SqlNames"]


@dataclass(frozen=True, slots=True)
class _From:
    """Source that columns may belong to.

    Attributes
    ----------
    columns : mapping of str to Column, or None
        None if they are unknown: a subquery, or an undeclared table.
    table : str or None
        Full name of the table.
    written : str or None
        Qualifier to write before a dot, if it differs from the text.
    """

    columns: Mapping[str, Any] | None = None
    table: str | None = None
    written: str | None = None


_ANYTHING = _From()
_Sources = dict[str, _From]


@dataclass(slots=True)
class SqlNames:
    """Resolver of the names in one statement, in place, which collects the reads.

    Attributes
    ----------
    referring : Referring
    tables : mapping of str to Table, or None
        Declared tables; None: names are left unchanged.
    events : tuple of str
        Names of events, for errors.
    reads : set of (str, str or None)
        Tables and columns that are read.
    """

    referring: Referring
    tables: Mapping[str, Any] | None
    events: tuple[str, ...] = ()
    reads: set[tuple[str, str | None]] = field(default_factory=set)

    def error(self, node: exp.Expr, message: str) -> RuleSyntaxError:
        """Return an error at a node of the statement."""
        at = next((n.meta["start"] for n in node.walk() if "start" in n.meta), 0)
        return self.referring.source.error(self.referring.place(at), message)

    def table(self, node: exp.Table) -> tuple[str, Any, _Sources]:
        """Look up a table: return its full name, the declared table or None, and its sources.

        Raises
        ------
        RuleSyntaxError
            If there is no table of this name.
        """
        parts = node.parts
        if not all(isinstance(part, exp.Identifier) for part in parts):
            raise self.error(node, "a table is named here, not computed")
        name = ".".join(part.name for part in parts)
        visible = node.alias_or_name
        if visible in self.referring.names:
            raise self.error(
                node,
                f"{visible} is an event and a table here: give the table another name with AS",
            )
        if self.tables is None:
            return name, None, {visible: _From(table=name)}
        is_quoted = any(part.args.get("quoted") for part in parts)
        found = named(name, self.tables, is_quoted=is_quoted)
        if found is None:
            known = did_you_mean(name, self.tables)
            raise self.error(node, f"no table {name!r} is declared; {known}")
        table = self.tables[found]
        node.set("this", _quoted(table.name))
        if getattr(table, "schema", None):
            node.set("db", _quoted(table.schema))
        written = None if node.alias else table.name
        return found, table, {visible: _From(columns_of(table), found, written)}

    def column_of(self, table: Any, name: str, node: exp.Expr, *, is_quoted: bool) -> str:
        """Return the column of a declared table that a name denotes.

        Raises
        ------
        RuleSyntaxError
            If there is no such column.
        """
        if table is None:
            return name
        columns = columns_of(table)
        found = named(name, columns, is_quoted=is_quoted)
        if found is None:
            raise self.error(
                node, f"table {table.name} has no column {name!r}; {did_you_mean(name, columns)}"
            )
        return found

    def resolve(self, node: exp.Expr, *outer: _Sources) -> None:
        """Resolve all names in an expression or query, given the sources of the queries around it.

        Raises
        ------
        RuleSyntaxError
            If a table or column does not exist.
        """
        if isinstance(node, exp.Select | exp.SetOperation):
            self._query(node, outer)
        elif isinstance(node, exp.Column):
            self._column(node, outer)
        else:
            for child in node.iter_expressions():
                self.resolve(child, *outer)

    def _query(self, query: exp.Expr, outer: tuple[_Sources, ...]) -> None:
        named_here: _Sources = {}
        with_ = query.args.get("with_")
        for cte in () if with_ is None else with_.expressions:
            if with_ is not None and with_.args.get("recursive"):
                named_here[cte.alias] = _ANYTHING
            self.resolve(cte.this, named_here, *outer)
            named_here[cte.alias] = _ANYTHING
        if not isinstance(query, exp.Select):
            for child in query.iter_expressions():
                if child is not with_:
                    self.resolve(child, named_here, *outer)
            return
        sources: _Sources = {}
        places = tuple(_places(query))
        for place in places:
            self._add(place, sources, named_here, outer)
        outputs = {e.alias: _ANYTHING for e in query.expressions if isinstance(e, exp.Alias)}
        around = (sources, *outer)
        for child in query.iter_expressions():
            if child is with_ or child is query.args.get("from_"):
                continue
            if child in (query.args.get("joins") or ()):
                for inner in child.iter_expressions():
                    if not any(inner is place for place in places):
                        self.resolve(inner, *around)
            elif isinstance(child, exp.Order | exp.Group | exp.Having):
                for column in tuple(child.find_all(exp.Column)):
                    if column.table or column.name not in outputs:
                        self.resolve(column, *around)
                for inner in child.find_all(exp.Select):
                    self.resolve(inner, *around)
            else:
                self.resolve(child, *around)

    def _add(
        self, place: exp.Expr, sources: _Sources, ctes: _Sources, outer: tuple[_Sources, ...]
    ) -> None:
        """Add an item of FROM or JOIN to the sources."""
        if isinstance(place, exp.Table) and isinstance(place.this, exp.Identifier):
            levels = (ctes, *outer)
            if not place.db and any(level.get(place.name) is _ANYTHING for level in levels):
                sources[place.alias_or_name] = _ANYTHING
                return
            name, _, found = self.table(place)
            self.reads.add((name, None))
            sources.update(found)
            return
        self.resolve(place, sources, ctes, *outer)
        sources[place.alias_or_name] = _ANYTHING

    def _column(self, column: exp.Column, around: tuple[_Sources, ...]) -> None:
        name, identifier = column.name, column.this
        if isinstance(identifier, exp.Star):
            return
        if self.referring.is_reference(name) and not column.table:
            return
        is_quoted = bool(identifier.args.get("quoted"))
        if column.table:
            source = self._source(column, around)
            if source.columns is not None:
                found = named(name, source.columns, is_quoted=is_quoted)
                if found is None:
                    near = did_you_mean(name, source.columns)
                    raise self.error(identifier, f"{column.table} has no column {name!r}; {near}")
                self._write(column, source, found)
            return
        known: list[str] = []
        for sources in around:
            for source in sources.values():
                found = named(name, source.columns or (), is_quoted=is_quoted)
                if found is not None:
                    self._write(column, source, found)
                    return
                known += source.columns or ()
            if any(source.columns is None for source in sources.values()):
                return  # may be a column of that source
        near = did_you_mean(name, known)
        raise self.error(identifier, f"there is no column {name!r} here; {near}")

    def _source(self, column: exp.Column, around: tuple[_Sources, ...]) -> _From:
        identifier = column.args["table"]
        is_quoted = bool(identifier.args.get("quoted"))
        for sources in around:
            found = named(column.table, sources, is_quoted=is_quoted)
            if found is not None:
                return sources[found]
        known = [*(name for sources in around for name in sources), *self.events]
        near = did_you_mean(column.table, known)
        raise self.error(identifier, f"there is no table or event {column.table!r} here; {near}")

    def _write(self, column: exp.Column, source: _From, found: str) -> None:
        column.set("this", _quoted(found))
        if column.table and source.written is not None:
            column.set("table", _quoted(source.written))
        if source.table is not None:
            self.reads.add((source.table, found))


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _places(query: exp.Select) -> Iterator[exp.Expr]:
    """Yield the items of FROM and JOIN."""
    from_ = query.args.get("from_")
    if from_ is not None:
        yield from_.this
    for join in query.args.get("joins") or ():
        yield join.this
