"""Analysis of the text of a SELECT: the tables and columns it reads, and their positions.

Every statement is judged by the text that would be sent: built with SQLAlchemy, generated for a
mapped class, or written by hand. Text that cannot be analysed is refused, so no statement runs
whose tables are unknown::

    text ──► PlainText (normalised placeholders) ──► tokens, tree ──► SelectAnalysis
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, MetaData, Table
from sqlalchemy import text as sql_text
from sqlglot import Token, TokenType, exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from activedb.errors import UnsupportedStatement
from activedb.store.sql._tables import Tables, TableSpec

__all__ = [
    "Edit",
    "Namespace",
    "PlainText",
    "Reference",
    "RowGrouping",
    "SelectAnalysis",
    "TableNames",
    "analyse_select",
    "folded",
    "is_cte",
]


_LANGUAGES = {"postgresql": "postgres", "sqlite": "sqlite"}
_REPEATED = 8  # consecutive placeholders merged as one: IN lists of any length are alike
_PYFORMAT = re.compile(
    r"%\([^)]*\)s(?P<cast>(?:::[A-Za-z_ ]+(?:\(\d+(?:, \d+)?\))?(?:\[\])*)?)"
    r"(?:, %\([^)]*\)s(?P=cast)){" + str(_REPEATED - 1) + r",}"
    r"|%\([^)]*\)s|%%"
)
_NAMES = re.compile(r"%\(([^)]*)\)s")
_QMARKS = re.compile(
    r"'[^']*'|\"[^\"]*\"|`[^`]*`|\[[^]]*\]|--[^\n]*|/\*[\s\S]*?\*/"  # what merely contains one
    r"|(?P<marks>\?(?:, \?){" + str(_REPEATED - 1) + r",}|\?)"
)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement for the plain text from `start` up to `end`."""

    start: int
    end: int
    text: str


class PlainText:
    """Statement text with normalised placeholders.

    psycopg's ``%(name)s`` becomes ``$1`` and its ``%%`` becomes ``%``; long runs of placeholders
    become one, so that IN lists of any length give the same text.

    Parameters
    ----------
    sql : str
    dialect : {"postgresql", "sqlite"}

    Attributes
    ----------
    text : str
    language : str
        sqlglot's name of the dialect.
    """

    MARK = "activedb_"

    def __init__(self, sql: str, dialect: str):
        self.language = _LANGUAGES[dialect]
        self._is_pyformat = dialect == "postgresql"
        self._kept: list[tuple[int, int, str]] = []
        parts: list[str] = []
        length = done = 0
        for found in (_PYFORMAT if self._is_pyformat else _QMARKS).finditer(sql):
            if not self._is_pyformat and found.group("marks") is None:
                continue
            before = sql[done : found.start()]
            if self._is_pyformat:
                known = found.group()
                plain = "%" if known == "%%" else "$1" + (found.group("cast") or "")
            else:
                known, plain = found.group(), "?"
            parts += [before, plain]
            start = length + len(before)
            length = start + len(plain)
            if known != "%%":
                self._kept.append((start, length, known))
            done = found.end()
        parts.append(sql[done:])
        self.text = "".join(parts)

    @property
    def places(self) -> frozenset[int]:
        """Start positions of the placeholders."""
        return frozenset(start for start, _, _ in self._kept)

    @property
    def numbered(self) -> str:
        """The text with a name of its own, `MARK` and its number, for each placeholder."""
        parts: list[str] = []
        done = 0
        for number, (start, end, _) in enumerate(self._kept):
            cast = self.text[start:end].lstrip("$1?")
            parts += [self.text[done:start], f":{self.MARK}{number}{cast}"]
            done = end
        return "".join([*parts, self.text[done:]])

    def values(self, number: int, parameters: Any) -> list[Any] | None:
        """Return the values of a placeholder, one unless it stands for several; None if unsure.

        Parameters
        ----------
        number : int
            As in `numbered`.
        parameters : mapping or sequence
            The values sent with the statement.
        """
        if self._is_pyformat:
            return [parameters[name] for name in _NAMES.findall(self._kept[number][2])]
        counts = [known.count("?") for _, _, known in self._kept]
        if sum(counts) != len(parameters):
            return None
        start = sum(counts[:number])
        return list(parameters[start : start + counts[number]])

    def edited(self, edits: Iterable[Edit]) -> str:
        """Return the statement's text with `edits` applied. REQUIRES: they do not overlap."""
        changes = [(start, end, kept) for start, end, kept in self._kept]
        changes += [(edit.start, edit.end, edit.text) for edit in edits]
        parts: list[str] = []
        done = 0
        for start, end, text in sorted(changes):
            assert start >= done, "edits overlap"
            parts += [self.restored(self.text[done:start]), text]
            done = end
        parts.append(self.restored(self.text[done:]))
        return "".join(parts)

    def restored(self, plain: str) -> str:
        """Return plain text in the statement's own syntax."""
        return plain.replace("%", "%%") if self._is_pyformat else plain


_BEGINNINGS = {TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN}
_REFUSED: tuple[tuple[type[exp.Expr], str], ...] = (
    (exp.Into, "SELECT … INTO makes a table; use execute(insert(table).from_select(…))"),
    (exp.DML, "it writes; use execute() with insert(), update() or delete()"),
    (exp.DDL, "it changes the schema; do that outside of transactions"),
    (exp.Command, "it is not a SELECT"),
    (exp.Lock, "only the outermost select() of SQLAlchemy can lock rows: with_for_update()"),
    (exp.TableSample, "TABLESAMPLE reads what is on the disk; use ORDER BY random() LIMIT …"),
)
_OF_TABLES = {"this", "db", "alias", "joins", "laterals", "rows_from", "ordinality"}
_READ_BEHIND = re.compile(
    r"(query|table|schema|database|cursor)_to_xml\w*|dblink\w*|ts_stat|set_config|load_extension"
    r"|lo_(creat|create|from_bytea|import|put|truncate(64)?|unlink)|lowrite"
)
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # databases fold only ASCII letters
_HIDDEN_COLUMNS = {
    "postgres": {"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"},
    "sqlite": {"rowid", "oid", "_rowid_"},
}


@dataclass(frozen=True, slots=True)
class RowGrouping:
    """Grouping of a table's rows in the query that reads it.

    Postgres lets a query that groups by a table's primary key name its other columns.

    Attributes
    ----------
    columns : tuple of (str, int)
        Columns in GROUP BY that may be the table's, with the position where each ends.
    prefix : str or None
        The table's alias, as written.
    named : frozenset of str
        Names of columns in the query that may be the table's.
    has_star : bool
        True if the query names all columns.
    """

    columns: tuple[tuple[str, int], ...]
    prefix: str | None
    named: frozenset[str]
    has_star: bool


@dataclass(frozen=True, slots=True)
class Reference:
    """Position where a table is read.

    Attributes
    ----------
    schema : str or None
    name : str
        As the database understands them: folded, without quotes.
    start, end : int
        Position of the name, with its schema.
    written : str
        The name as written, without its schema.
    is_named : bool
        True if the table has an alias here.
    takes_alias : bool
        True if an alias is possible here.
    grouping : RowGrouping or None
    """

    schema: str | None
    name: str
    start: int
    end: int
    written: str
    is_named: bool
    takes_alias: bool
    grouping: RowGrouping | None = None


@dataclass(frozen=True, slots=True)
class SelectAnalysis:
    """Result of the analysis of one SELECT.

    Attributes
    ----------
    references : tuple of Reference
        Each position where a table is read that is not a common table expression.
    qualified : tuple of Reference
        Each position where a column is qualified with table and schema; `start` and `end` are
        those of table and schema.
    prefixes : frozenset of str
        Names that qualify columns, without schema.
    ctes : frozenset of str
        Names of the common table expressions.
    hidden_columns : frozenset of str
        Names that mean a system column, unless a table has a column of that name.
    is_whole : bool
        True if the result depends on the set of a table's columns: ``*``, NATURAL, whole rows.
    head : int
        Position at which further common table expressions can be inserted.
    has_with : bool
        True if there are some at that position already.
    comments : tuple of Edit
        Edits that remove the comments, so that the text sent is the text analysed.
    may_write : bool
        True if it calls a function that is not known to write nothing.
    """

    references: tuple[Reference, ...]
    qualified: tuple[Reference, ...]
    prefixes: frozenset[str]
    ctes: frozenset[str]
    hidden_columns: frozenset[str]
    is_whole: bool
    head: int
    has_with: bool
    comments: tuple[Edit, ...]
    may_write: bool


_READING = (
    exp.Abs,
    exp.AggFunc,
    exp.Case,
    exp.Cast,
    exp.Ceil,
    exp.Coalesce,
    exp.Concat,
    exp.Connector,
    exp.CurrentDate,
    exp.CurrentTimestamp,
    exp.Exists,
    exp.Extract,
    exp.Floor,
    exp.Greatest,
    exp.Least,
    exp.Length,
    exp.Lower,
    exp.Nullif,
    exp.Round,
    exp.RowNumber,
    exp.Substring,
    exp.Trim,
    exp.Upper,
)
"""Functions and operators that write nothing. All others may."""


def analyse_select(plain: PlainText) -> SelectAnalysis:
    """Analyse a SELECT. Results are cached by text.

    Raises
    ------
    UnsupportedStatement
        If the text is not exactly one SELECT, or cannot be analysed.
    """
    return _understand(plain.text, plain.language, plain.places)


@lru_cache(maxsize=512)
def _understand(text: str, dialect: str, places: frozenset[int]) -> SelectAnalysis:
    language = Dialect.get_or_raise(dialect)
    try:
        tokens = language.tokenize(text)
        _check_tokens(tokens, text, dialect, places)
        trees = [tree for tree in language.parser().parse(tokens, text) if tree is not None]
    except (SqlglotError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is nested too deeply"
        raise _refusal(text, f"it cannot be understood ({reason})") from error
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        raise _refusal(text, "query() takes one SELECT; use execute() for writes")
    return _SyntaxReader(trees[0], text, dialect).understood(tokens)


def _check_tokens(tokens: list[Token], text: str, dialect: str, places: frozenset[int]) -> None:
    if not tokens or (
        tokens[0].token_type not in _BEGINNINGS and tokens[0].text.upper() != "TABLE"
    ):
        raise _refusal(text, "query() takes one SELECT; use execute() for writes")
    numbered = (t.start for t in tokens if t.token_type is TokenType.PARAMETER and t.text == "$")
    if dialect == "postgres" and not places.issuperset(numbered):
        raise _refusal(text, "write parameters as :name")


def _refusal(text: str, reason: str) -> UnsupportedStatement:
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 200 else f"{shown[:200]}…"
    return UnsupportedStatement(f"cannot run {shown!r}: {reason}")


class _SyntaxReader:
    """Reader of one syntax tree."""

    def __init__(self, tree: exp.Query, text: str, dialect: str):
        self._tree = tree
        self._text = text
        self._dialect = dialect

    def understood(self, tokens: list[Token]) -> SelectAnalysis:
        self._refuse()
        before = {b.start: a.text.upper() for a, b in pairwise(tokens)}
        after = {a.end + 1: b.token_type for a, b in pairwise(tokens)}
        references = tuple(self._references(before, after))
        names = {self._name(c.args["alias"].this) for c in self._tree.find_all(exp.CTE)}
        columns = list(self._tree.find_all(exp.Column))
        with_ = self._tree.args.get("with_")
        head = 0
        if with_ is not None and tokens[0].token_type is TokenType.WITH:
            head = tokens[1 if with_.args.get("recursive") else 0].end + 1
        return SelectAnalysis(
            references=references,
            qualified=tuple(self._qualified(columns)),
            prefixes=frozenset(
                self._name(c.args["table"])
                for c in columns
                if c.args.get("table") is not None and c.args.get("db") is None
            ),
            ctes=frozenset(names),
            hidden_columns=frozenset(
                name
                for c in columns
                if isinstance(c.this, exp.Identifier)
                and (name := self._name(c.this)) in _HIDDEN_COLUMNS[self._dialect]
            ),
            is_whole=self._is_whole(columns),
            head=head,
            has_with=head > 0,
            comments=tuple(self._comments(tokens)),
            may_write=any(not isinstance(f, _READING) for f in self._tree.find_all(exp.Func)),
        )

    def _refuse(self) -> None:
        for node in self._tree.walk():
            for kind, reason in _REFUSED:
                if isinstance(node, kind):
                    raise _refusal(self._text, reason)
            if isinstance(node, exp.In) and isinstance(node.args.get("field"), exp.Column):
                raise _refusal(self._text, "write IN (SELECT … FROM table)")
            if isinstance(node, exp.Anonymous) and _READ_BEHIND.fullmatch(str(node.this).lower()):
                raise _refusal(
                    self._text,
                    f"the effect of {node.this}() is not visible in the statement; write it out",
                )

    # -- tables ----------------------------------------------------------------------------

    def _references(
        self, before: dict[int, str], after: dict[int, TokenType]
    ) -> Iterator[Reference]:
        for table in self._tree.find_all(exp.Table):
            for name, value in table.args.items():
                if value and name not in _OF_TABLES:
                    raise _refusal(self._text, f"{table.sql(self._dialect)!r} is not supported")
            if not isinstance(table.this, exp.Identifier):
                if isinstance(table.this, exp.Dot):
                    raise _refusal(
                        self._text, f"{table.sql(self._dialect)!r} is not in this database"
                    )
                continue  # a table function
            schema = table.args.get("db")
            if schema is None and is_cte(table, self._dialect):
                continue
            start, _ = _place(schema if schema is not None else table.this)
            end = _place(table.this)[1]
            if after.get(end) is TokenType.STAR:
                raise _refusal(self._text, f"leave out the * after {table.name}")
            yield Reference(
                schema=None if schema is None else self._name(schema),
                name=self._name(table.this),
                start=start,
                end=end,
                written=self._text[slice(*_place(table.this))],
                is_named=bool(table.alias),
                takes_alias=before.get(start) != "TABLE",
                grouping=self._grouping(table),
            )

    def _grouping(self, table: exp.Table) -> RowGrouping | None:
        if self._dialect == "sqlite":
            return None  # it lets a query name any column
        query = table.parent_select
        group = None if query is None else query.args.get("group")
        alias = table.args.get("alias")
        if query is None or group is None or (alias is not None and alias.args.get("columns")):
            return None
        own = alias.this if alias is not None and table.alias else None
        name = self._name(own or table.this)

        def may_be_its(column: exp.Column) -> bool:
            prefix = column.args.get("table")
            return prefix is None or self._name(prefix) == name

        grouped = [
            (column, place)
            for column, place in _grouped(query, group, self._name)
            if may_be_its(column)
        ]
        named = [c.this for c in query.find_all(exp.Column) if may_be_its(c)]
        return RowGrouping(
            columns=tuple((self._name(c.this), _place(p)[1]) for c, p in grouped),
            prefix=None if own is None else self._text[slice(*_place(own))],
            named=frozenset(self._name(n) for n in named if isinstance(n, exp.Identifier)),
            has_star=any(isinstance(star.parent, exp.Select) for star in query.find_all(exp.Star))
            or any(isinstance(n, exp.Star) for n in named),
        )

    # -- columns ---------------------------------------------------------------------------

    def _qualified(self, columns: list[exp.Column]) -> Iterator[Reference]:
        for column in columns:
            schema, table = column.args.get("db"), column.args.get("table")
            if schema is None or table is None:
                continue
            start, end = _place(schema)[0], _place(table)[1]
            written = self._text[slice(*_place(table))]
            names = self._name(schema), self._name(table)
            yield Reference(*names, start, end, written, is_named=False, takes_alias=False)

    def _is_whole(self, columns: list[exp.Column]) -> bool:
        if any(not isinstance(star.parent, exp.Count) for star in self._tree.find_all(exp.Star)):
            return True
        if any(join.args.get("method") == "NATURAL" for join in self._tree.find_all(exp.Join)):
            return True
        names = {
            self._name(t.args["alias"].this if t.alias else t.this)
            for t in self._tree.find_all(exp.Table)
            if isinstance(t.this, exp.Identifier)
        }
        return any(
            column.args.get("table") is None
            and isinstance(column.this, exp.Identifier)
            and self._name(column.this) in names
            for column in columns
        )

    def _name(self, identifier: Any) -> str:
        return folded(identifier, self._dialect)

    # -- the text --------------------------------------------------------------------------

    def _comments(self, tokens: list[Token]) -> Iterator[Edit]:
        ends = [0, *(token.end + 1 for token in tokens)]
        starts = [*(token.start for token in tokens), len(self._text)]
        for start, end in zip(ends, starts, strict=True):
            between = self._text[start:end].strip()
            if between:
                if not between.startswith(("--", "/*")):
                    raise _refusal(self._text, f"{between!r} cannot be understood")
                yield Edit(start, end, " ")


def _grouped(
    query: exp.Query, group: exp.Group, name_of: Callable[[Any], str]
) -> Iterator[tuple[exp.Column, exp.Expr]]:
    """Yield the columns by which a query may group, with the part of GROUP BY that ends there.

    A number or a name there may mean a column of the result.
    """
    items = list(group.expressions)
    while items:
        item = items.pop(0)
        if isinstance(item, exp.Tuple):
            items[:0] = item.expressions
            continue
        item = item.unnest()
        meant: list[Any] = []
        if isinstance(item, exp.Literal) and item.is_int:
            first = query.selects[: int(item.name)]
            if len(first) == int(item.name) and not any(each.is_star for each in first):
                meant = first[-1:]
        elif isinstance(item, exp.Column) and isinstance(item.this, exp.Identifier):
            yield item, item.this
            if item.args.get("table") is None:
                name = name_of(item.this)
                meant = [each for each in query.selects if _has_alias(each, name, name_of)]
        for each in meant:
            column = each.unalias().unnest()
            if isinstance(column, exp.Column) and isinstance(column.this, exp.Identifier):
                yield column, item if isinstance(item, exp.Literal) else item.this


def _has_alias(result: exp.Expr, name: str, name_of: Callable[[Any], str]) -> bool:
    return isinstance(result, exp.Alias) and name_of(result.args["alias"]) == name


def _place(identifier: Any) -> tuple[int, int]:
    return identifier.meta["start"], identifier.meta["end"] + 1


def folded(identifier: Any, dialect: str) -> str:
    """Return a name as the database compares it."""
    name = str(identifier.name)
    if dialect == "sqlite" or not identifier.args.get("quoted"):
        return name.translate(_LOWER)
    return name


def is_cte(table: exp.Table, dialect: str) -> bool:
    """Return whether a name means a common table expression: the nearest in scope."""
    wanted = folded(table.this, dialect)
    child: exp.Expr = table
    parent = table.parent
    while parent is not None:
        visible: list[exp.Expr] = []
        if isinstance(parent, exp.With):
            visible = list(parent.expressions)
            if not parent.args.get("recursive"):
                visible = visible[: next(i for i, c in enumerate(visible) if c is child)]
        elif (with_ := parent.args.get("with_")) is not None and with_ is not child:
            visible = list(with_.expressions)
        if any(folded(c.args["alias"].this, dialect) == wanted for c in visible):
            return True
        child, parent = parent, parent.parent
    return False


# -- resolution of the table names in a statement --------------------------------------------------

_SYSTEM_SCHEMAS = {"pg_catalog", "information_schema"}
_KIND = {
    "postgresql": sql_text(
        "SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = to_regclass(:name)"
    ),
    "sqlite": sql_text(
        "SELECT type FROM main.sqlite_master WHERE type IN ('table', 'view') AND name = :bare"
    ),
}
_TABLES = {"r", "p", "table"}


class Namespace(Protocol):
    """Database as its statements see it.

    Attributes
    ----------
    engine : sqlalchemy.Engine
        Its dialect quotes names.
    metadata : sqlalchemy.MetaData
        Declared tables.
    schema : str
        Schema of unqualified tables.
    """

    engine: Engine
    metadata: MetaData
    schema: str


_tables_proper: WeakKeyDictionary[Namespace, set[str]] = WeakKeyDictionary()


class TableNames:
    """Resolver of table names in statements.

    Parameters
    ----------
    store : Namespace
        Tables declared in its metadata are known.
    tables : Tables
        Tables used before, which are known, too.
    """

    def __init__(self, store: Namespace, tables: Tables):
        self._store = store
        self._met = tables
        self._dialect = store.engine.dialect
        self._is_postgres = self._dialect.name == "postgresql"

    def table(self, reference: Reference) -> Table | None:
        """Return the table that a reference means; None for a system table of the server.

        Raises
        ------
        UnsupportedStatement
            If the table is unknown here.
        """
        if self._is_postgres and reference.schema in _SYSTEM_SCHEMAS:
            return None
        table = self.find(reference)
        if table is not None:
            return table
        name = reference.name
        shown = name if reference.schema is None else f"{reference.schema}.{name}"
        hint = ""
        if reference.schema is None and name.startswith("pg_"):
            hint = f"; if the server's own is meant, write pg_catalog.{name}"
        raise UnsupportedStatement(
            f"the statement reads {shown}, which is not known here, and so can neither be locked "
            f"nor show uncommitted rows: declare it as a Table in db.metadata or reflect it into "
            f"db.metadata; instead of a view, write out its SELECT{hint}"
        )

    def find(self, reference: Reference) -> Table | None:
        """Return the known table of this name, or None."""
        schema, name = reference.schema, reference.name
        default = self._store.schema
        if schema is None:
            full_names = [name, f"{default}.{name}"]
        elif schema == default:
            full_names = [f"{schema}.{name}", name]
        else:
            full_names = [f"{schema}.{name}"]
        return next((t for n in full_names if (t := self._known(n)) is not None), None)

    @property
    def must_qualify(self) -> bool:
        """True if a common table expression hides a table of its name even from itself."""
        return not self._is_postgres

    def quoted(self, name: str) -> str:
        """Return a name as written in a statement, quoted if necessary."""
        return self._dialect.identifier_preparer.quote(name)

    def real(self, spec: TableSpec) -> str:
        """Return the table's name with its schema, quoted if necessary."""
        quote = self._dialect.identifier_preparer.quote
        return f"{quote(spec.table.schema or self._store.schema)}.{quote(str(spec.table.name))}"

    def refuse_views(self, connection: Connection, specs: Iterable[TableSpec]) -> None:
        """Refuse views among the tables that a statement reads. Asks the server once per table.

        Raises
        ------
        UnsupportedStatement
        """
        proper = _tables_proper.setdefault(self._store, set())
        for spec in specs:
            if spec.name in proper:
                continue
            name = {"name": self.real(spec), "bare": str(spec.table.name)}
            kind = connection.scalar(_KIND[connection.dialect.name], name)
            if kind in _TABLES:
                proper.add(spec.name)
            elif kind is not None:
                raise UnsupportedStatement(
                    f"{spec.name} is not a table: the uncommitted rows of the tables beneath it "
                    f"would not show; write out its SELECT instead"
                )

    def _known(self, full_name: str) -> Table | None:
        spec = self._met.named(full_name)
        if spec is not None:
            return spec.table
        declared = self._store.metadata.tables
        table = declared.get(full_name)
        if table is None and not self._is_postgres:
            # SQLite ignores the case of names.
            lower = full_name.lower()
            table = next((t for name, t in declared.items() if name.lower() == lower), None)
        return table
