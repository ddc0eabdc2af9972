"""The durable side of programs: versions that windows still need, outputs, rules' detectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from activedb.store.flush import ColumnRows, insert_rows
from activedb.store.journals._columns import ColumnJournal
from activedb.store.server import translated
from activedb.store.session import Store
from activedb.store.sql import Row, TableSpec
from activedb.store.system import outputs, program_states, versions

__all__ = ["ProgramJournal"]

_VERSIONS, _OUTPUTS = TableSpec(versions), TableSpec(outputs)


class ProgramJournal:
    """Reads and writes the rows of one stream's programs; writes go on a connection handed in.

    Attributes
    ----------
    columns : ColumnJournal
        What is kept in columns.
    """

    def __init__(self, store: Store, stream: str):
        self.columns = ColumnJournal(store, stream)
        self._store = store
        self._stream = stream

    def rows(self, spec: TableSpec) -> list[Row]:
        """Every committed row of a table; O(rows)."""
        with translated(f"load table {spec.name}"), self._store.short() as connection:
            return [spec.row(row) for row in connection.execute(select(spec.table))]

    def read_columns(self, rows: ColumnRows) -> tuple[Sequence[Any], Sequence[Any]]:
        """Keys and values of every committed row of a table; see `ColumnRows.read`."""
        with translated(f"load table {rows.spec.name}"), self._store.short() as connection:
            return rows.read(connection)

    def versions(self, table: str) -> list[Mapping[str, Any]]:
        """The versions that are kept of a table's rows, in the serial order."""
        c = versions.c
        statement = (
            select(c.key, c.us, c.arrival, c.value, c.removed)
            .where(c.name == table)
            .order_by(c.us, c.arrival)
        )
        with translated("read the versions"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def outputs(self, program: str) -> list[Mapping[str, Any]]:
        """Outputs of a program, in the serial order."""
        c = outputs.c
        statement = (
            select(outputs)
            .where(c.stream == self._stream, c.program == program)
            .order_by(c.us, c.arrival)
        )
        with translated("read the outputs"), self._store.short() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    def states(self) -> dict[str, Mapping[str, Any]]:
        """What the detectors of programs' rules keep, by program."""
        c = program_states.c
        statement = select(c.program, c.state).where(c.stream == self._stream)
        with translated("read the states of programs"), self._store.short() as connection:
            return {row.program: row.state for row in connection.execute(statement)}

    def write_states(self, connection: Connection, states: Mapping[str, Any]) -> None:
        """Write such states with a part, by program; two statements."""
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
