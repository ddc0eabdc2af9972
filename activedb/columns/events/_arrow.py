"""Columns of an atomic batch's table as arrays; those of Arrow without an object per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from activedb.columns._arrival import EventTable
from activedb.columns.events._events import NULL, THERE, Column, Ints, Values, objects

__all__ = ["arrow", "codes_of", "numpy_of", "texts_of", "values_of"]


def values_of(column: Any) -> Values:
    """Return a numeric column as a numeric array, any other column as objects."""
    if not _is_arrow(column):
        return Values.of(column.to_pylist())
    pa = arrow()
    kind = column.type
    is_integer = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or is_integer or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return Values.of(column.to_pylist())
    missing = None
    if column.null_count:
        missing = np.where(numpy_of(column.is_null()), NULL, THERE).astype(np.uint8)
    if is_text:
        return Values(numpy_of(column), missing)
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    array = numpy_of(column)
    if is_integer:
        return Values(array.astype(np.int64, copy=False), missing)
    if pa.types.is_floating(kind):
        return Values(array.astype(np.float64, copy=False), missing)
    return Values(array.astype(np.bool_, copy=False), missing)


def codes_of(column: Any, types: Sequence[str]) -> Ints:
    """Return per row the index of its text in `types`; -1 if it is not among them."""
    if _is_arrow(column):
        pa = arrow()
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
        if any(is_kind(column.type) for is_kind in kinds):
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            found = pa.compute.index_in(column, value_set=pa.array(types, column.type))
            return numpy_of(found.fill_null(-1)).astype(np.int64)
    places = {name: place for place, name in enumerate(types)}
    return np.array([places.get(text, -1) for text in column.to_pylist()], np.int64)


def texts_of(table: EventTable, name: str) -> Column | None:
    """Return a column of texts as objects; None if all are NULL."""
    column: Any = table.column(name)
    if _is_arrow(column) and column.null_count == len(column):
        return None
    texts = column.to_pylist()
    return objects(texts) if any(text is not None for text in texts) else None


def arrow() -> Any:
    """Return pyarrow untyped; it is installed whenever its columns occur."""
    import pyarrow.compute

    return pyarrow


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "null_count") and hasattr(column, "type")


def numpy_of(column: Any) -> Column:
    """Convert an Arrow column without NULLs to a writable array, as the kernels require."""
    given = (
        {} if hasattr(column, "chunks") else {"zero_copy_only": False}
    )  # only arrays take this argument
    return np.require(column.to_numpy(**given), requirements="W")
