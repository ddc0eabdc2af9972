"""Recorder of the effects found in the source of a rule."""

from __future__ import annotations

import ast
from collections.abc import Collection

from activedb.analysis._effects import ALL_KINDS, Change, Effects, Read, Signal, Unresolved
from activedb.analysis._tables import Table, table_of
from activedb.analysis._values import Known, Sql, Value

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
        self._reads: list[Read] = []
        self._changes: list[Change] = []
        self._signals: list[Signal] = []
        self._unresolved: list[Unresolved] = []

    def effects(self) -> Effects:
        """Return the effects found so far."""
        return Effects.of(self._reads, self._changes, self._signals, self._unresolved)

    def place(self, node: ast.AST) -> str:
        """Return the file and line of a node."""
        return f"{self._file}:{getattr(node, 'lineno', 0)}"

    def unresolved(self, node: ast.AST, why: str, kinds: Collection[str] = ALL_KINDS) -> None:
        """Record that the effects of `node` cannot be determined."""
        self._unresolved.append(Unresolved(self.place(node), why, frozenset(kinds)))

    def reads_rows(self, node: ast.AST, of: Value, call: str) -> None:
        """Record that whole rows of a table are read."""
        for table in self._tables(node, of, call, {"reads"}):
            self._reads.append(Read(table.name, None, self.place(node)))

    def changes_rows(
        self, node: ast.AST, of: Value, kind: str, columns: Collection[str] | None = None
    ) -> None:
        """Record that rows of a table are changed; for an update, in these columns or in any."""
        for table in self._tables(node, of, f"{kind}()", {"writes", "reads"}):
            self._change(node, table, kind, columns)

    def reads_statement(self, node: ast.AST, statement: Value) -> None:
        """Record the reads of ``query(statement)``."""
        for atom in statement:
            if isinstance(atom, Sql) and atom.kind == "read":
                self._of_statement(node, atom, {"reads"})
            elif isinstance(atom, Known) and (table := table_of(atom.thing)) is not None:
                self._reads.append(Read(table.name, None, self.place(node)))
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
                self._signals.append(Signal(atom.thing, self.place(node)))
            else:
                self.unresolved(node, "signal() of a name that cannot be told", {"raises"})

    def raises_calls(self, node: ast.AST, function: str) -> None:
        """Record a call of a function whose calls are events."""
        for kind in ("call", "return"):
            self._signals.append(Signal(function, self.place(node), kind))

    def _of_statement(self, node: ast.AST, sql: Sql, kinds: Collection[str]) -> None:
        if sql.problem:
            self.unresolved(node, sql.problem, kinds)
        for read in sorted(sql.reads, key=repr):
            if isinstance(read, Table):
                self._reads.append(Read(read.name, None, self.place(node)))
            else:
                self._reads.append(Read(read.table, read.name, self.place(node)))

    def _change(
        self, node: ast.AST, table: Table, kind: str, columns: Collection[str] | None
    ) -> None:
        place = self.place(node)
        if kind != "update" or columns is None:
            self._changes.append(Change(kind, table.name, None, place))
            return
        for name in sorted({*columns, *table.touched}):
            known = table.column(name)
            column = name if known is None else known.name
            self._changes.append(Change(kind, table.name, column, place))

    def _tables(self, node: ast.AST, of: Value, call: str, kinds: Collection[str]) -> list[Table]:
        found = []
        for atom in of:
            table = table_of(atom.thing) if isinstance(atom, Known) else None
            if table is None:
                self.unresolved(node, f"{call} of a table that cannot be told", kinds)
            else:
                found.append(table)
        return sorted(found, key=lambda table: table.name)
