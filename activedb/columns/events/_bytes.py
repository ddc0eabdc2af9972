"""Binary encoding of columns for storage: numbers verbatim, each text once, the rest as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from activedb.columns.events._events import Column, ColumnEvents, Ints, Values, arrow, objects
from activedb.events import decode_params, encode_params

__all__ = [
    "arrays_of_bytes",
    "arrays_to_bytes",
    "events_of_bytes",
    "events_to_bytes",
    "note_of_bytes",
    "note_to_bytes",
    "noted_places",
    "pieces_of",
    "places_of_bytes",
    "places_to_bytes",
]


_HEAD_BYTES = 8  # width of the head's length field
_PIECE = 500_000  # rows per piece; a database takes up to 1 GB in one value


def pieces_of(count: int) -> list[slice]:
    """Return slices of rows, each small enough for one database value."""
    return [slice(start, start + _PIECE) for start in range(0, count, _PIECE)]


def arrays_to_bytes(arrays: Mapping[str, Column], more: Any = None) -> bytes:
    """Encode arrays of one length, and `more`, any JSON-serialisable value.

    Integers are stored as offsets from their minimum (``least``), in the narrowest width that fits.
    """
    parts: list[bytes] = []
    columns = []
    for name, array in arrays.items():
        least: int | None = None
        if array.dtype == object and (texts := _texts(array)) is not None:
            kind, data = "texts", texts
        elif array.dtype == object:
            kind, data = "", json.dumps(encode_params({"": array.tolist()})).encode()
        else:
            if array.dtype == np.int64:
                array, least = _narrowed(array)
            kind = array.dtype.newbyteorder("<").str
            data = array.astype(kind, copy=False).tobytes()
        columns.append([name, kind, least, len(data)])
        parts.append(data)
    count = max(map(len, arrays.values()), default=0)
    head = json.dumps({"count": count, "columns": columns, "more": more}).encode()
    return b"".join([len(head).to_bytes(_HEAD_BYTES, "little"), head, *parts])


def arrays_of_bytes(data: bytes) -> tuple[dict[str, Column], Any]:
    """Decode the result of `arrays_to_bytes`."""
    place = _HEAD_BYTES + int.from_bytes(data[:_HEAD_BYTES], "little")
    head = json.loads(data[_HEAD_BYTES:place])
    arrays: dict[str, Column] = {}
    for name, kind, least, size in head["columns"]:
        part = data[place : place + size]
        place += size
        if not kind:
            arrays[name] = objects(decode_params(json.loads(part))[""])
            continue
        if kind == "texts":
            arrays[name] = _of_texts(part)
            continue
        array = np.frombuffer(part, kind)
        if least is not None:
            whole = np.full(head["count"], least, np.int64)
            whole[: len(array)] += array.astype(np.int64)
            arrays[name] = whole
        else:
            arrays[name] = array.astype(array.dtype.newbyteorder("="))
    return arrays, head["more"]


def _texts(array: Column) -> bytes | None:
    """Encode texts and None as codes, each text once; None if there is any other value.

    Complexity: O(rows); only distinct texts cost time in Python.
    """
    values = array.tolist()
    if not set(map(type, values)) <= {str, type(None)}:
        return None
    pa = arrow()
    try:
        coded = pa.array(values, pa.string()).dictionary_encode(null_encoding="encode")
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return arrays_to_bytes(
        {"codes": coded.indices.to_numpy().astype(np.int64)}, coded.dictionary.to_pylist()
    )


def _of_texts(data: bytes) -> Column:
    """Decode the result of `_texts`."""
    arrays, known = arrays_of_bytes(data)
    return objects(known)[arrays["codes"]]


def _narrowed(array: Ints) -> tuple[Column, int | None]:
    """Return integers as narrow offsets from their minimum, and the minimum.

    The offsets are empty if all values are equal. Return the array itself and None if the range is
    too wide, or if the array is empty.
    """
    if not len(array):
        return array, None
    least, most = int(array.min()), int(array.max())
    if least == most:
        return np.empty(0, np.uint8), least
    if most - least >= 2**32:
        return array, None
    return (array - least).astype(np.min_scalar_type(most - least)), least


def events_to_bytes(events: ColumnEvents) -> bytes:
    """Encode events; O(events), in Python only for non-numeric columns."""
    arrays: dict[str, Column] = {
        "codes": events.codes,
        "us": events.us,
        "batch_ids": events.batch_ids,
        "positions": events.positions,
    }
    for name, column in (("ids", events.ids), ("stamps", events.stamps)):
        if column is not None:
            arrays[name] = column
    for number, values in enumerate(events.params.values()):
        arrays[f"p{number}"] = values.array
        if values.array.dtype == object:
            arrays[f"p{number}"] = objects(values.objects())
        if values.missing is not None:
            arrays[f"m{number}"] = values.missing
    return arrays_to_bytes(arrays, [list(events.types), list(events.params)])


def events_of_bytes(data: bytes) -> ColumnEvents:
    """Decode the result of `events_to_bytes`."""
    arrays, (types, names) = arrays_of_bytes(data)
    return ColumnEvents(
        tuple(types),
        arrays["codes"],
        arrays["us"],
        arrays["batch_ids"],
        arrays["positions"],
        {
            name: Values(arrays[f"p{number}"], arrays.get(f"m{number}"))
            for number, name in enumerate(names)
        },
        arrays.get("ids"),
        arrays.get("stamps"),
    )


def places_to_bytes(places: Sequence[tuple[str, Ints]]) -> bytes:
    """Encode arrays of event places (batch and position), each under a name; O(places)."""
    rows = np.concatenate([some for _, some in places])
    counts = [[name, len(some)] for name, some in places]
    return arrays_to_bytes({"batch_ids": rows[:, 0], "positions": rows[:, 1]}, counts)


def places_of_bytes(data: bytes) -> list[tuple[str, Ints]]:
    """Decode the result of `places_to_bytes`."""
    arrays, counts = arrays_of_bytes(data)
    rows = np.column_stack((arrays["batch_ids"], arrays["positions"]))
    ends = np.cumsum([count for _, count in counts])
    parts = np.split(rows, ends[:-1])
    return [(name, part) for (name, _), part in zip(counts, parts, strict=True)]


def noted_places(notes: Iterable[bytes]) -> list[tuple[str, Ints]]:
    """Decode several results of `places_to_bytes`, in sequence."""
    return [named for data in notes for named in places_of_bytes(data)]


def note_to_bytes(note: Mapping[str, Any]) -> bytes:
    """Encode a note: a JSON-serialisable record without arrays."""
    return arrays_to_bytes({}, note)


def note_of_bytes(data: bytes) -> Any:
    """Decode the result of `note_to_bytes`."""
    return arrays_of_bytes(data)[1]
