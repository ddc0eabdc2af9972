"""Validation, encoding and partition of the rows of batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from activedb.batches import Piece
from activedb.errors import BadEvent
from activedb.events import decode_params, encode_params
from activedb.functions import checked_result
from activedb.streams import AtomicBatch

__all__ = ["Row", "decoded", "encoded", "given_out", "part_of", "rows_of_micro_batch"]

Row = dict[str, Any]

_SHOWN_MAX = 60  # characters


def encoded(rows: object, whose: str) -> list[Any]:
    """Return rows as JSON-serialisable data, from which `decoded` makes equal rows. O(values).

    Raises
    ------
    BadEvent
        If they are not a list of mappings of names to encodable values; the message begins with
        `whose`, and names the row.
    """
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise BadEvent(f"{whose} is a list of rows, each a dict of values by name; not {_s(rows)}")
    found = []
    for place, row in enumerate(rows):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise BadEvent(f"{whose}: row {place} is no dict of values by name, but {_s(row)}")
        try:
            found.append(encode_params(row))
        except BadEvent as error:
            raise BadEvent(f"{whose}: row {place}: {error}") from error
    return found


def decoded(rows: Iterable[Any]) -> list[Row]:
    """Return the rows given to `encoded`, as dicts. O(values)."""
    return [decode_params(row) for row in rows]


def given_out(program: str, rows: object) -> list[Any] | None:
    """Return the output of a program, encoded; None if there is none. Raises as `encoded`."""
    checked_result(rows, f"program {program}", may_yield=True)
    return None if rows is None else encoded(rows, f"what program {program} gives out")


def part_of(rows: Sequence[Row], piece: Piece) -> list[Row]:
    """Return the rows of a piece: one of n equal consecutive parts, in the order of the rows."""
    count = len(rows)
    first = count * (piece.part - 1) // piece.parts
    return list(rows[first : count * piece.part // piece.parts])


def rows_of_micro_batch(
    batch: AtomicBatch,
) -> tuple[list[Any], list[tuple[int, Mapping[str, Any], BadEvent]]]:
    """Return the encoded rows of a micro-batch, and the rows that are not valid events. O(values).

    A row has the parameters by name, and ``event_type``, ``event_time_us``, ``event_id``.

    Returns
    -------
    list, list of (int, mapping, BadEvent)
        The encoded rows; and the invalid rows by position, each with its known data and the reason.
    """
    table = batch.table
    raw = table.column("raw").to_pylist()
    of_events = {name: name for name in ("event_type", "event_time_us", "event_id")}
    taken = {**{f"p_{name}": name for name in batch.param_names}, **of_events}
    columns = {name: table.column(column).to_pylist() for column, name in taken.items()}
    rows: list[Any] = []
    bad: list[tuple[int, Mapping[str, Any], BadEvent]] = []
    for place in range(table.num_rows):
        if raw[place] is not None:
            error = BadEvent(
                "no event can be made of the row: its type, its time or a parameter is missing, or "
                "cannot be understood"
            )
            bad.append((place, {"raw": raw[place]}, error))
            continue
        row = {name: values[place] for name, values in columns.items()}
        try:
            rows.append(encode_params(row))
        except BadEvent as error:
            bad.append((place, {"raw": repr(row)}, error))
    return rows, bad


def _s(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
