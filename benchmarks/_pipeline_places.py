"""Inputs and tables of the pipeline benchmark: folders of Parquet files, fresh schemas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet
from psycopg import sql

from benchmarks._nested_rows import Server

__all__ = ["TIME", "TYPE", "fresh_schema", "resident_mb", "write_files"]

pa: Any = pyarrow  # it has no types
pq: Any = pyarrow.parquet
TYPE: Final = "kind"
TIME: Final = "at"
_MB: Final = 1_000_000


@contextmanager
def fresh_schema(server: Server, name: str) -> Iterator[Server]:
    """Yield the same server with an empty schema, which is dropped at the end."""
    with server.connection() as connection:
        connection.autocommit = True
        schema = sql.Identifier(name)
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema))
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        try:
            yield Server(server.url, name, server.description)
        finally:
            connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(schema))


def write_files(folder: Path, columns: Any, size: int) -> list[Path]:
    """Write events as Parquet files, `size` events each, in their order; return the files.

    Parameters
    ----------
    folder : Path
        Created if missing.
    columns : GeneratedEvents
        See ``examples/streams/_columns.py``.
    size : int
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = pa.array(list(columns.takes))
    files = []
    for number, start in enumerate(range(0, len(columns), size)):
        part = columns.part(slice(start, start + size))
        kinds = pa.DictionaryArray.from_arrays(part.codes.astype("int32"), names)
        table = pa.table(
            {
                TIME: pa.array(part.us, pa.timestamp("us", "UTC")),
                TYPE: kinds,
                **{name: pa.array(values) for name, values in part.params.items()},
            }
        )
        files.append(folder / f"{number:06d}.parquet")
        pq.write_table(table, files[-1])
    return files


def resident_mb(process_id: int) -> float:
    """Return the present memory of a process, in MB. REQUIRES: a system with ``/proc``."""
    status = Path(f"/proc/{process_id}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1_024 / _MB
