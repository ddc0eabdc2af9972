"""Resolution of the table names in a statement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, MetaData, Table, text

from activedb.errors import UnsupportedStatement
from activedb.store.sql._sql_text import Reference
from activedb.store.sql._tables import Tables, TableSpec

__all__ = ["Namespace", "TableNames"]

_SYSTEM_SCHEMAS = {"pg_catalog", "information_schema"}
_KIND = {
    "postgresql": text(
        "SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = to_regclass(:name)"
    ),
    "sqlite": text(
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
