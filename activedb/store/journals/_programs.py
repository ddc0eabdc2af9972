"""Rows of programs: versions that windows still need, outputs, and states of rules' detectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from activedb.store.flush import ColumnRows, insert_rows
from activedb.store.journals._columns import ColumnJournal
from activedb.store.server import translate_errors
from activedb.store.session import Store
from activedb.store.sql import Row, TableSpec
from activedb.store.system import outputs, program_states, versions

__all__ = ["ProgramJournal"]

_VERSIONS, _OUTPUTS = TableSpec(versions), TableSpec(outputs)


class ProgramJournal:
    """Rows of one stream's programs; writes use the connection that the caller passes.

    Attributes
    ----------
    columns : ColumnJournal
        Rows that are kept column by column.
    """

    def __init__(self, store: Store, stream: str):
        self.columns = ColumnJournal(store, stream)
        self._store = store
        self._stream = stream

    def rows(self, spec: TableSpec) -> list[Row]:
        """Return every committed row of a table; O(rows)."""
        with translate_errors(f"load table {spec.name}"), self._store.short() as connection:
            return [spec.row(row) for row in connection.execute(select(spec.table))]

    def read_columns(self, rows: ColumnRows) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the key and value columns of a table's committed rows; see `ColumnRows.read`."""
        with translate_errors(f"load table {rows.spec.name}"), self._store.short() as connection:
            return rows.read(connection)

    def versions(self, table: str) -> list[Mapping[str, Any]]:
        """Return the kept versions of a table's rows, in the serial order."""
        c = versions.c
        statement = (
            select(c.key, c.us, c.arrival, c.value, c.removed)
            .where(c.name == table)
            .order_by(c.us, c.arrival)
        )
        with translate_errors("read the versions"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def outputs(self, program: str) -> list[Mapping[str, Any]]:
        """Return the outputs of a program, in the serial order."""
        c = outputs.c
        statement = (
            select(outputs)
            .where(c.stream == self._stream, c.program == program)
            .order_by(c.us, c.arrival)
        )
        with translate_errors("read the outputs"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def states(self) -> dict[str, Mapping[str, Any]]:
        """Return the states of the detectors of programs' rules, by program."""
        c = program_states.c
        statement = select(c.program, c.state).where(c.stream == self._stream)
        with translate_errors("read the states of programs"), self._store.short() as connection:
            return {row.program: row.state for row in connection.execute(statement)}

    def write_states(self, connection: Connection, states: Mapping[str, Any]) -> None:
        """Write detector states with a part, by program; two statements."""
        if not states:
            return
        c = program_states.c
        connection.execute(
            delete(program_states).where(c.stream == self._stream, c.program.in_(list(states)))
        )
        rows = [
            {"stream": self._stream, "program": name, "state": state}
            for name, state in states.items()
        ]
        connection.execute(insert(program_states), rows)

    def write_versions(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write versions with a part; two round trips."""
        insert_rows(connection, _VERSIONS, list(rows))

    def forget_versions(self, connection: Connection, table: str, before_us: int) -> None:
        """Delete versions that no window reaches any more; two statements."""
        c = versions.c
        connection.execute(delete(versions).where(c.name == table, c.us < before_us))
        self.columns.forget(connection, before_us, table)

    def write_outputs(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write outputs with a part; two round trips."""
        insert_rows(connection, _OUTPUTS, [{"stream": self._stream, **row} for row in rows])
