"""Recorder of what a function's calls do to tables: effects, and the locks that they take."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

from activedb.analysis._effects import (
    ALL_KINDS,
    ChangeEffect,
    Effects,
    LockEffect,
    ReadEffect,
    SignalEffect,
    Unresolved,
)
from activedb.analysis._values import Known, Sql, Table, Value, table_of

__all__ = ["Recorder"]


class Recorder:
    """Collector of the effects of one function.

    Parameters
    ----------
    file : str
        File name for reported places.
    """

    def __init__(self, file: str):
        self._file = file
        self._reads: list[ReadEffect] = []
        self._changes: list[ChangeEffect] = []
        self._signals: list[SignalEffect] = []
        self._unresolved: list[Unresolved] = []
        self._locks: list[LockEffect] = []

    def effects(self) -> Effects:
        """Return the effects found so far."""
        return Effects.of(self._reads, self._changes, self._signals, self._unresolved, self._locks)

    def place(self, node: ast.AST) -> str:
        """Return the file and line of a node."""
        return f"{self._file}:{getattr(node, 'lineno', 0)}"

    def unresolved(self, node: ast.AST, why: str, kinds: Collection[str] = ALL_KINDS) -> None:
        """Record that the effects of `node` cannot be determined."""
        self._unresolved.append(Unresolved(self.place(node), why, frozenset(kinds)))

    def reads_rows(
        self, node: ast.AST, of: Value, call: str, *, is_for_update: bool = False
    ) -> None:
        """Record that whole rows of a table are read by key."""
        for table in self._tables(node, of, call, {"reads"}):
            self._reads.append(ReadEffect(table.name, None, self.place(node)))
            self._locks_rows(node, table, is_write=is_for_update)

    def changes_rows(
        self, node: ast.AST, of: Value, kind: str, columns: Collection[str] | None = None
    ) -> None:
        """Record that rows of a table are changed; for an update, in these columns or in any."""
        for table in self._tables(node, of, f"{kind}()", {"writes", "reads"}):
            self._change(node, table, kind, columns)
            self._locks_rows(node, table, is_write=True)

    def reads_statement(self, node: ast.AST, statement: Value) -> None:
        """Record the reads of ``query(statement)``."""
        for atom in statement:
            if isinstance(atom, Sql) and atom.kind == "read":
                self._of_statement(node, atom, {"reads"})
            elif isinstance(atom, Known) and (table := table_of(atom.thing)) is not None:
                self._reads.append(ReadEffect(table.name, None, self.place(node)))
                self._locks_found_by(node, Sql.of(table))
            else:
                self.unresolved(node, "query() of a statement that cannot be told", {"reads"})

    def runs_statement(self, node: ast.AST, statement: Value, *, has_parameters: bool) -> None:
        """Record the reads and writes of ``execute(statement)``."""
        for atom in statement:
            if not isinstance(atom, Sql) or atom.kind == "read":
                self.unresolved(
                    node, "execute() of a statement that cannot be told", {"reads", "writes"}
                )
                continue
            self._of_statement(node, atom, {"reads", "writes"})
            if atom.target is not None:
                columns = None if has_parameters or not atom.columns else atom.columns
                kinds = ("insert", "update") if atom.kind == "upsert" else (atom.kind,)
                for kind in kinds:
                    self._change(node, atom.target, kind, columns)

    def raises_signal(self, node: ast.AST, names: Value) -> None:
        """Record that a signal is raised."""
        for atom in names:
            if isinstance(atom, Known) and type(atom.thing) is str:
                self._signals.append(SignalEffect(atom.thing, self.place(node)))
            else:
                self.unresolved(node, "signal() of a name that cannot be told", {"raises"})

    def raises_calls(self, node: ast.AST, function: str) -> None:
        """Record a call of a function whose calls are events."""
        for kind in ("call", "return"):
            self._signals.append(SignalEffect(function, self.place(node), kind))

    def _of_statement(self, node: ast.AST, sql: Sql, kinds: Collection[str]) -> None:
        if sql.problem:
            self.unresolved(node, sql.problem, kinds)
        self._locks_found_by(node, sql)
        for read in sorted(sql.reads, key=repr):
            if isinstance(read, Table):
                self._reads.append(ReadEffect(read.name, None, self.place(node)))
            else:
                self._reads.append(ReadEffect(read.table, read.name, self.place(node)))

    def _locks_rows(self, node: ast.AST, table: Table, *, is_write: bool) -> None:
        self._locks.append(LockEffect(table.name, "rows", is_write, table.key, self.place(node)))

    def _locks_found_by(self, node: ast.AST, sql: Sql) -> None:
        """Record the locks of a statement: of what it reads, and of what it writes."""
        keys = {
            read.name if isinstance(read, Table) else read.table: read.key for read in sql.reads
        }
        written: str | None = None
        if sql.target is not None and sql.kind in ("insert", "upsert"):
            self._locks_rows(node, sql.target, is_write=True)
        elif sql.target is not None:
            written = sql.target.name
            keys[written] = sql.target.key
        for table, (grain, columns) in _grains(sql, keys).items():
            is_write = table == written or sql.is_for_update
            self._locks.append(LockEffect(table, grain, is_write, columns, self.place(node)))

    def _change(
        self, node: ast.AST, table: Table, kind: str, columns: Collection[str] | None
    ) -> None:
        place = self.place(node)
        if kind != "update" or columns is None:
            self._changes.append(ChangeEffect(kind, table.name, None, place))
            return
        for name in sorted({*columns, *table.touched}):
            known = table.column(name)
            column = name if known is None else known.name
            self._changes.append(ChangeEffect(kind, table.name, column, place))

    def _tables(self, node: ast.AST, of: Value, call: str, kinds: Collection[str]) -> list[Table]:
        found = []
        for atom in of:
            table = table_of(atom.thing) if isinstance(atom, Known) else None
            if table is None:
                self.unresolved(node, f"{call} of a table that cannot be told", kinds)
            else:
                found.append(table)
        return sorted(found, key=lambda table: table.name)


def _grains(
    sql: Sql, keys: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return at which grain a statement locks each of its tables, and by which columns.

    Rows of a table are found by their keys, too, if these are compared with columns of tables whose
    rows are restricted. See `LockEffect`.

    Parameters
    ----------
    keys : mapping of str to tuple of str
        Primary key of each table; empty if it is not known.
    """
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    of_values: dict[str, dict[str, bool]] = {name: {} for name in keys}
    for each in sql.conditions:
        if each.other is None and each.column.table in of_values:
            compared = of_values[each.column.table]
            compared[each.column.name] = compared.get(each.column.name, False) or each.is_equality
    for name, key in keys.items():
        compared = of_values[name]
        if key and all(compared.get(column) for column in key):
            found[name] = ("rows", key)
        elif compared:
            found[name] = ("predicate", tuple(sorted(compared)))
    is_more = True
    while is_more:
        is_more = False
        for name, key in keys.items():
            pinned = {column for column, is_equality in of_values[name].items() if is_equality}
            for each in sql.conditions:
                other = each.other
                if each.column.table == name and other is not None and other.table in found:
                    pinned.add(each.column.name)
            if key and pinned.issuperset(key) and found.get(name, ("",))[0] != "rows":
                found[name] = ("rows", key)
                is_more = True
    coarsest = "unknown" if sql.is_restricted else "table"
    return {name: found.get(name, (coarsest, ())) for name in sorted(keys)}
