"""Encoding of a sink's rows for staging: a record batch in, pieces of some megabytes out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow

pa: Any = pyarrow

_PIECE_BYTES_MAX = 4 << 20  # of the rows in Arrow's memory; a statement's value may have 1 GB
_MICROSECOND = timedelta(microseconds=1)


def arrow_pieces(batch: Any) -> Iterator[bytes]:
    """Yield the rows as Arrow IPC streams, including their types."""
    for part in _parts(batch):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as stream:
            stream.write_batch(part)
        yield sink.getvalue().to_pybytes()


def json_pieces(batch: Any) -> Iterator[bytes]:
    """Yield the rows as JSON arrays of objects; Postgres reads all of its types from JSON.

    Non-finite numbers, decimals, times and bytes become texts, without loss.
    """
    for part in _parts(batch):
        columns = [_plain(column) for column in part.columns]
        names = part.schema.names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        text = json.dumps(rows, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        yield text.encode("utf-8", "surrogatepass")


def _parts(batch: Any) -> Iterator[Any]:
    if batch.num_rows == 0:
        return
    parts = math.ceil(batch.nbytes / _PIECE_BYTES_MAX)
    size = math.ceil(batch.num_rows / max(1, parts))
    for place in range(0, batch.num_rows, size):
        yield batch.slice(place, size)


def _plain(column: Any) -> list[Any]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        values: list[Any] = column.to_pylist()
        return values
    return [_value(value) for value in column.to_pylist(maps_as_pydicts="strict")]


def _value(value: Any) -> Any:
    """Return a value as JSON represents it and Postgres accepts it for a column of its type."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): _value(part) for key, part in value.items()}
        case list():
            return [_value(part) for part in value]
        case bytes():
            return rf"\x{value.hex()}"
        case date() | datetime() | time():
            return value.isoformat()
        case timedelta():
            return f"{value // _MICROSECOND} microseconds"
        case Decimal():
            return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written to a table: cast it")
