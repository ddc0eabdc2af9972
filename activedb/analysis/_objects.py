"""Objects behind the names of a source: inspected, never called or imported.

Properties, ``__getattr__`` and ``__get__`` written in Python are not run. Values that only running
them would give are unknown.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import replace
from types import CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, cast

from activedb.analysis._statements import of_object
from activedb.analysis._values import (
    ANYTHING,
    DATA,
    NOTHING,
    SLICE,
    SOME_DATA,
    Atom,
    BoundFunction,
    Columns,
    Items,
    Known,
    Method,
    Sql,
    Value,
    column_of,
    is_of_sqlalchemy,
    join,
    only,
    strings,
    table_of,
)

__all__ = [
    "attribute",
    "elements",
    "emitted",
    "entries",
    "functions_in",
    "is_database",
    "known",
    "subscript",
]

_ITEMS_MAX = 1000
_EMITTING = "activedb.database._methods"
_CONTAINERS = (list, tuple, set, frozenset, dict)
_NAMED_FIELD: type = type(inspect.FullArgSpec.__dict__["args"])  # a field of a named tuple
_MISSING: Any = object()


def known(thing: Any) -> Atom:
    """Return the atom for an existing object."""
    if isinstance(thing, MethodType):
        if is_database(thing.__self__) and isinstance(thing.__func__, FunctionType):
            return Method("database", thing.__func__.__name__)
        return _bound(known(thing.__func__), (thing.__self__,), {})
    if isinstance(thing, functools.partial):
        return _bound(known(thing.func), thing.args, thing.keywords)
    if table_of(thing) is not None:
        return Known(thing)
    column = column_of(thing)
    if column is not None:
        return Sql.of(column)
    if is_of_sqlalchemy(thing) and not callable(thing):
        return of_object(thing) or Known(thing)
    if isinstance(thing, bool | int | float | bytes) or thing is None:
        return DATA
    return SLICE if isinstance(thing, slice) else Known(thing)


def _bound(function: Atom, args: tuple[Any, ...], named: Mapping[str, Any]) -> BoundFunction:
    first = tuple(only(known(each)) for each in args)
    last = {name: only(known(each)) for name, each in named.items()}
    if isinstance(function, BoundFunction):  # such as a partial of a method
        first, last = (*function.first, *first), dict(function.named) | last
        function = function.function
    return BoundFunction(function, first, tuple(sorted(last.items())))


def is_database(thing: Any) -> bool:
    """Return whether an object is, or looks like, a database.

    `Database` is in a higher layer and cannot be imported here.
    """
    kind = type(thing)
    return all(
        callable(inspect.getattr_static(kind, name, None))
        for name in ("signal", "transaction", "rule")
    )


def emitted(thing: Any) -> FunctionType | None:
    """Return the function wrapped by `Database.emits`, or None if `thing` is no such wrapper."""
    # Recognised by its module, as that layer cannot be imported here.
    if isinstance(thing, FunctionType) and thing.__globals__.get("__name__") == _EMITTING:
        below = inspect.getattr_static(thing, "__wrapped__", None)
        return below if isinstance(below, FunctionType) else None
    return None


def attribute(thing: Any, name: str) -> Value:
    """Return the value of ``thing.name``."""
    table = table_of(thing)
    if table is not None and not isinstance(thing, type):
        return only(Columns(table) if name in ("c", "columns") else DATA)
    if is_of_sqlalchemy(thing):
        return only(Sql())  # such as func.sum
    if isinstance(thing, ModuleType):
        found = vars(thing).get(name, _MISSING)
    else:
        found = inspect.getattr_static(thing, name, _MISSING)
    if found is _MISSING:
        return ANYTHING
    if isinstance(found, MemberDescriptorType | _NAMED_FIELD) and not isinstance(thing, type):
        try:
            found = cast("Any", found).__get__(thing)
        except AttributeError:
            return ANYTHING
    elif isinstance(found, staticmethod):
        found = found.__func__
    elif isinstance(found, classmethod):
        owner = thing if isinstance(thing, type) else type(thing)
        return only(BoundFunction(Known(found.__func__), (only(Known(owner)),)))
    elif isinstance(found, FunctionType) and not isinstance(thing, type | ModuleType):
        return only(BoundFunction(Known(found), (only(Known(thing)),)))
    elif hasattr(type(found), "__get__") and not isinstance(found, FunctionType):
        if table is not None and is_of_sqlalchemy(found):
            of_column = column_of(found)
            problem = "" if of_column else f"{name} of a mapped class may read other tables"
            return only(replace(Sql.of(of_column or table), problem=problem))
        return ANYTHING
    return only(known(found))


def functions_in(thing: Any) -> list[FunctionType]:
    """Return the functions that a property, method or decorated function calls, as far as seen."""
    found: list[Any]
    if isinstance(thing, property):
        found = [thing.fget, thing.fset, thing.fdel]
    elif isinstance(thing, functools.cached_property):
        found = [thing.func]
    elif isinstance(thing, staticmethod | classmethod):
        found = [thing.__func__]
    else:
        found = [inspect.getattr_static(thing, "__wrapped__", None)]
    if isinstance(thing, FunctionType):
        found += [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
    return [each for each in found if isinstance(each, FunctionType)]


# -- contents of containers ------------------------------------------------------------------------


def subscript(atom: Atom, keys: Value) -> Value:
    """Return the value of ``atom[key]``."""
    if isinstance(atom, Sql) or (isinstance(atom, Items) and SLICE in keys):
        return only(atom)
    names = strings(keys)
    if isinstance(atom, Columns):
        found = [atom.table.column(name) for name in names or [""]]
        return frozenset(Sql.of(column or atom.table) for column in found)
    if isinstance(atom, Known) and type(atom.thing) is str:
        return SOME_DATA
    if isinstance(atom, Known) and SLICE in keys:
        return only(Items(_each(atom.thing), frozenset((atom,)))) | _itself(atom)
    if isinstance(atom, Known) and type(atom.thing) is dict:
        if names and all(name in atom.thing for name in names):
            return frozenset(known(atom.thing[name]) for name in names)
        return _each(list(atom.thing.values()))
    return _element(atom)


def elements(value: Value) -> Value:
    """Return the value of an element of `value`, as in a loop."""
    return join(map(_element, value))


def _element(atom: Atom) -> Value:
    if isinstance(atom, Items):
        return atom.inside or ANYTHING
    if isinstance(atom, Known):
        return _each(atom.thing) | _itself(atom)
    return SOME_DATA if atom == DATA else ANYTHING | only(atom)


def _itself(atom: Known) -> Value:
    """Return the atom itself if it may be from a container that was flattened."""
    is_container = type(atom.thing) in (str, *_CONTAINERS)  # its elements are known
    return NOTHING if is_container else only(atom)


def entries(thing: Any, method: str) -> Value | None:
    """Return the value of ``thing.items()`` and the like; None if `thing` is no dict."""
    if type(thing) is not dict or method not in ("items", "keys", "values", "get"):
        return None
    values, keys = _each(list(thing.values())), _each(thing)
    if method == "get":
        return values | SOME_DATA
    sites = frozenset((Known(thing),))
    inside = {"keys": keys, "values": values}.get(method) or only(Items(keys | values, sites))
    return only(Items(inside, sites))


def _each(thing: Any) -> Value:
    """Return the value of an element of an object; unknown if it is no container, or too large."""
    if type(thing) not in _CONTAINERS or not 0 < len(thing) <= _ITEMS_MAX:
        return ANYTHING
    return frozenset(map(known, thing))
