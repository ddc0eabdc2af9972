"""Conversion of columns to floats, with the kind of their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from activedb.columns.detect._arrow import pa, pc
from activedb.columns.detect._columns import ABSENT
from activedb.columns.detect._keys import ValueNumbers
from activedb.errors import BadEvent

__all__ = ["EXACT_MAX", "Floats", "Kind", "joined", "numbers_of"]

EXACT_MAX: Final = 2**53
"""Limit up to which floats hold integers exactly."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a term's result: number, truth value, text, or NULL only.

    Attributes
    ----------
    name : {"number", "text", "truth", "null"}
    most : int
        Upper bound on the absolute value of its integers; 0 if it has only floats.
    """

    name: str
    most: int = 0


def numbers_of(
    name: str, column: Any, texts: ValueNumbers
) -> tuple[Kind, Floats, npt.NDArray[np.bool_]]:
    """Return a column as floats, with texts replaced by their numbers."""
    kind = None
    if isinstance(column, np.ndarray) and column.dtype.kind in "OUS":
        kind, column = _objects(name, column.astype(object))
    elif isinstance(column, np.ndarray):
        return _plain(name, column), column.astype(np.float64), np.zeros(len(column), bool)
    unknown = column.is_null().to_numpy(zero_copy_only=False)
    type_ = column.type
    if unknown.all():  # an all-NULL column carries no kind, whatever its type
        return Kind("null"), np.zeros(len(column)), unknown
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return Kind("text"), texts.number(column, name).astype(np.float64), unknown
    if pa.types.is_boolean(type_):
        filled = pc.fill_null(column, False)
    elif pa.types.is_integer(type_) or pa.types.is_floating(type_):
        filled = pc.fill_null(column, 0)
    else:
        raise BadEvent(
            f"the attribute {name!r} has values of the type {type_}, which compiled conditions "
            "do not compare: use a Detector"
        )
    whole = filled.to_numpy(zero_copy_only=False)
    return kind or _plain(name, whole), whole.astype(np.float64), unknown


def joined(name: str, a: Kind, b: Kind) -> Kind:
    if "null" in (a.name, b.name):
        return b if a.name == "null" else a
    if a.name != b.name:
        raise BadEvent(f"the attribute {name!r} is a {a.name} in some events, a {b.name} in others")
    return Kind(a.name, max(a.most, b.most))


def _plain(name: str, column: npt.NDArray[Any]) -> Kind:
    """Return the kind of an array of numbers."""
    if column.dtype.kind == "b":
        return Kind("truth")
    if column.dtype.kind == "f":
        return Kind("number")
    most = max(abs(int(column.min())), abs(int(column.max()))) if len(column) else 0
    if most > EXACT_MAX:
        raise BadEvent(
            f"the attribute {name!r} has integers beyond 2**53, which compiled conditions do not "
            "compare exactly: use a Detector"
        )
    return Kind("number", most)


def _objects(name: str, column: npt.NDArray[Any]) -> tuple[Kind, Any]:
    """Return the kind of an array of objects, and a pyarrow array of floats or texts."""
    values = column.tolist()
    types = {type(value) for value in values} - {type(None)}
    if type(ABSENT) in types:
        raise BadEvent(f"an event has no attribute {name!r}, which a condition needs")
    if not types:
        return Kind("null"), pa.nulls(len(values))
    if types == {str}:
        return Kind("text"), pa.array(values, pa.string())
    most = max((abs(value) for value in values if type(value) is int), default=0)
    if types <= {int, float} and most <= EXACT_MAX:
        kind = Kind("number", most)
    elif types == {bool}:
        kind = Kind("truth")
    else:
        raise BadEvent(
            f"the attribute {name!r} has values that compiled conditions do not compare: use a "
            "Detector"
        )
    return kind, pa.array([None if v is None else float(v) for v in values], pa.float64())
