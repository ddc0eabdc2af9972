"""SQL in the rule language: SELECTs in conditions, and writes in actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from activedb.errors import DefinitionError, RuleSyntaxError, StoreError
from activedb.events.terms import Attribute, KeyRead, Literal, Subquery, Term
from activedb.language._names import Referring, Scope, columns_of, named
from activedb.language._parser import SourceText
from activedb.rules import Part
from activedb.spelling import did_you_mean
from activedb.store.sql import SqlPiece, delete_of, insert_of, insert_of_rows, update_of

__all__ = ["SqlNames", "SqlWrite", "subquery_of", "write_of"]


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


_DIALECT = "postgres"
_WRITES = (exp.Update, exp.Insert, exp.Delete)


@dataclass(frozen=True, slots=True)
class SqlWrite:
    """An UPDATE, INSERT or DELETE of an action.

    Attributes
    ----------
    sql : str
        Original SQL.
    kind : {"update", "insert", "delete"}
    table : str
        Full name of the table.
    columns : tuple of str
        Columns that are assigned.
    rows : tuple of tuple of SqlPiece
        Values assigned to them: one row for an update, none for an insert of a SELECT.
    where : SqlPiece or None
        Condition; for an insert, the SELECT.
    references : tuple of Attribute
        Attributes that the parameters ``ref_1``, … in the pieces stand for.
    reads, writes : frozenset of Part
    declared : Table or None
        Table; None if the text was read without tables: it cannot run then.
    by_key : KeyWrite or None
        Form without SQL, under a row lock, if there is one.
    """

    sql: str
    kind: str
    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[SqlPiece, ...], ...]
    where: SqlPiece | None
    references: tuple[Attribute, ...]
    reads: frozenset[Part]
    writes: frozenset[Part]
    declared: Any = field(default=None, compare=False, repr=False)
    by_key: KeyWrite | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """Source text of the step."""
        # A comment at the end must not swallow the semicolon.
        return f"{self.sql}\n" if "--" in self.sql.rpartition("\n")[2] else self.sql

    def run(self, t: Any, o: Any) -> None:
        """Execute it in `t` for the event `o`.

        Raises
        ------
        StoreError
            If the store refuses the statement; the message names the statement.
        """
        try:
            self._run(t, o)
        except StoreError as error:
            raise error.during(f"in {self.sql}") from error.__cause__

    def _run(self, t: Any, o: Any) -> None:
        table = self.declared
        if table is None:
            raise DefinitionError(
                f"{self.sql!r} cannot run: read the rule with tables=, as db.rules.load_text does"
            )
        if self.by_key is not None and self.by_key.run(t, o, table):
            return
        values = {
            f"ref_{number}": reference.evaluate(o.parts, o)
            for number, reference in enumerate(self.references, 1)
        }
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        if self.kind == "update":
            statement = update_of(table, rows[0], self.where, values)
        elif self.kind == "delete":
            statement = delete_of(table, self.where, values)
        elif self.where is None:
            statement = insert_of_rows(table, rows, values)
        else:
            statement = insert_of(table, self.columns, self.where, values)
        t.execute(statement)


def subquery_of(
    source: SourceText, offset: int, sql: str, scope: Scope, tables: Mapping[str, Any] | None
) -> Subquery:
    """Return the term of a SELECT that begins at `offset` of a text.

    Raises
    ------
    RuleSyntaxError
        If it is no SELECT of one column, or a name does not exist.
    """
    referring, tree = _parsed(source, offset, sql, scope)
    names = SqlNames(referring, tables, scope.names)
    if not isinstance(tree, exp.Select | exp.SetOperation):
        raise source.error(offset, "a subquery is a SELECT")
    for node in tree.walk():
        if isinstance(node, (*_WRITES, exp.Into, exp.Lock)):
            raise names.error(node, "a condition only reads: no INTO, FOR UPDATE, or writes in it")
    names.resolve(tree)
    statement, _ = referring.parameters(tree.sql(dialect=_DIALECT))
    read = {table for table, _ in names.reads}
    declared = (tables or {}).get(next(iter(read))) if len(read) == 1 else None
    by_key = None if declared is None else key_read(tree, declared, referring)
    references = tuple(referring.references)
    return Subquery(sql.strip(), statement, references, frozenset(names.reads), by_key)


def width_of(subquery: Subquery) -> int | None:
    """Return the number of columns of a subquery, or None if its text does not determine it."""
    tree = sqlglot.parse_one(subquery.statement.replace("\\:", ":"), read=_DIALECT)
    while isinstance(tree, exp.SetOperation):
        tree = tree.left
    if not isinstance(tree, exp.Select) or tree.is_star:
        return None
    return len(tree.expressions)


def write_of(
    source: SourceText, offset: int, sql: str, scope: Scope, tables: Mapping[str, Any] | None
) -> SqlWrite:
    """Return the statement of an action that begins at `offset` of a text.

    Raises
    ------
    RuleSyntaxError
        If it is no INSERT, UPDATE or DELETE of one table, or a name does not exist.
    """
    referring, tree = _parsed(source, offset, sql, scope)
    names = SqlNames(referring, tables, scope.names)
    if not isinstance(tree, _WRITES):
        is_read = isinstance(tree, exp.Query)
        what = "this reads, and does nothing with it" if is_read else "this is something else"
        raise source.error(offset, f"an action is INSERT, UPDATE, DELETE, SIGNAL or CALL; {what}")
    for part, shown in (
        ("returning", "RETURNING"),
        ("from_", "FROM: name the other table in a subquery"),
        ("using", "USING: name the other table in a subquery"),
        ("conflict", "ON CONFLICT: say WHERE NOT EXISTS (…) in an INSERT … SELECT"),
        ("with_", "WITH before it: write it in a subquery"),
    ):
        if tree.args.get(part):
            raise names.error(tree, f"an action's statement takes no {shown}")
    made = {exp.Update: _update, exp.Insert: _insert, exp.Delete: _delete}[type(tree)]
    return made(names, tree)


def _update(names: SqlNames, tree: Any) -> SqlWrite:
    table, declared, own = _target(names, tree.this)
    columns: list[str] = []
    pieces: list[SqlPiece] = []
    for assignment in tree.expressions:
        target = assignment.this
        if not isinstance(assignment, exp.EQ) or not isinstance(target, exp.Column):
            raise names.error(assignment, "SET takes column = value, column by column")
        is_quoted = bool(target.this.args.get("quoted"))
        column = names.column_of(declared, target.name, target, is_quoted=is_quoted)
        if column in columns:
            raise names.error(target, f"the column {column!r} is assigned twice")
        columns.append(column)
        pieces.append(_piece(names, assignment.expression, own))
    if not columns:
        raise names.error(tree, "SET takes column = value, column by column")
    where = _where(names, tree, own)
    writes = frozenset(("update", table, column) for column in columns)
    made = _made(names, "update", table, declared, columns, (tuple(pieces),), where, writes)
    values = [assignment.expression for assignment in tree.expressions]
    return _keyed(made, columns, values, tree, names)


def _delete(names: SqlNames, tree: Any) -> SqlWrite:
    table, declared, own = _target(names, tree.this)
    where = _where(names, tree, own)
    writes: frozenset[Part] = frozenset((("delete", table, None),))
    made = _made(names, "delete", table, declared, (), (), where, writes)
    return _keyed(made, (), (), tree, names)


def _insert(names: SqlNames, tree: Any) -> SqlWrite:
    schema = tree.this
    table, declared, _ = _target(names, schema.this if isinstance(schema, exp.Schema) else schema)
    if isinstance(schema, exp.Schema):
        columns = [
            names.column_of(declared, c.name, c, is_quoted=bool(c.args.get("quoted")))
            for c in schema.expressions
        ]
    elif declared is not None:
        columns = [column.name for column in declared.columns]
    else:
        raise names.error(tree, f"name the columns: INSERT INTO {table} (…)")
    found, select, rows = tree.expression, None, []
    if isinstance(found, exp.Values):
        for row in found.expressions:
            cells = row.expressions if isinstance(row, exp.Tuple) else [row]
            if len(cells) != len(columns):
                raise names.error(row, f"{len(columns)} columns need as many values")
            rows.append(tuple(_piece(names, cell, {}) for cell in cells))
    elif isinstance(found, exp.Query):
        select = _piece(names, found, {})
    else:
        raise names.error(tree, "INSERT takes VALUES or a SELECT")
    writes: frozenset[Part] = frozenset((("insert", table, None),))
    return _made(names, "insert", table, declared, columns, tuple(rows), select, writes)


def _made(
    names: SqlNames,
    kind: str,
    table: str,
    declared: Any,
    columns: Any,
    rows: tuple[tuple[SqlPiece, ...], ...],
    where: SqlPiece | None,
    writes: frozenset[Part],
) -> SqlWrite:
    return SqlWrite(
        sql=names.referring.sql.strip(),
        kind=kind,
        table=table,
        columns=tuple(columns),
        rows=rows,
        where=where,
        references=tuple(names.referring.references),
        reads=frozenset(("read", *place) for place in names.reads),
        writes=writes,
        declared=declared,
    )


def _keyed(
    made: SqlWrite, columns: Sequence[str], values: Sequence[exp.Expr], tree: Any, names: SqlNames
) -> SqlWrite:
    if made.declared is None:
        return made
    where = tree.args.get("where")
    by_key = key_write(columns, values, where, made.declared, names.referring)
    return replace(made, by_key=by_key)


def _target(names: SqlNames, node: exp.Expr) -> tuple[str, Any, Any]:
    if not isinstance(node, exp.Table):
        raise names.error(node, "an action's statement is about one table")
    if node.alias:
        raise names.error(node, "the table that is written takes no other name with AS")
    return names.table(node)


def _where(names: SqlNames, tree: exp.Expr, own: Any) -> SqlPiece | None:
    where = tree.args.get("where")
    return None if where is None else _piece(names, where.this, own)


def _piece(names: SqlNames, node: exp.Expr, own: Any) -> SqlPiece:
    # Resolving changes the node's names in place, and may replace a lone column node itself.
    names.resolve(node, own)
    return SqlPiece(*names.referring.parameters(node.sql(dialect=_DIALECT)))


def _parsed(source: SourceText, offset: int, sql: str, scope: Scope) -> tuple[Referring, Any]:
    referring = Referring.of(source, offset, sql, scope)
    try:
        found = [tree for tree in sqlglot.parse(referring.text, read=_DIALECT) if tree is not None]
    except ParseError as error:
        said = error.errors[0] if error.errors else {}
        at = _offset(referring.text, said.get("line"), said.get("col"))
        at -= len(said.get("highlight") or "")
        what = said.get("description") or str(error).partition("\n")[0]
        if what.startswith("Required keyword"):  # sqlglot mentions its class here
            what = "something is missing here"
        raise source.error(referring.place(max(at, 0)), f"SQL: {what.rstrip('.')}") from None
    except SqlglotError as error:
        raise source.error(offset, f"SQL: {str(error).partition(chr(10))[0]}") from None
    except RecursionError:
        raise source.error(offset, "SQL: this is nested too deeply") from None
    if len(found) != 1:
        raise source.error(offset, "one statement stands here")
    for node in found[0].find_all(exp.Placeholder, exp.Parameter, exp.SessionParameter):
        raise source.error(
            offset,
            f"SQL: {node.name or '?'} is a parameter without a value: write a value, "
            "or an attribute of the event such as NEW.x",
        )
    return referring, found[0]


def _offset(text: str, line: int | None, column: int | None) -> int:
    lines = text.split("\n")
    if line is None or column is None:
        return 0
    return sum(len(each) + 1 for each in lines[: line - 1]) + column


# -- SQL on the one row that a key names, read and written by that key under a row lock --------


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
    if not isinstance(value, exp.Literal):
        return None
    try:
        return Literal(value.this if value.is_string else int(value.this))
    except ValueError:  # a fraction, or more digits than Python converts
        return None


def _type(column: Any) -> type | None:
    try:
        kind: type = column.type.python_type
    except NotImplementedError:
        return None
    return None if column.type.__visit_name__ in _PADDED else kind
