"""Objects behind the names of a source. They are inspected, never called.

Properties, ``__getattr__`` and ``__get__`` written in Python are not run. Values that only running
them would give are unknown.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, cast

from activedb.analysis._statements import is_of_sqlalchemy, of_object
from activedb.analysis._tables import column_of, table_of
from activedb.analysis._values import (
    DATA,
    UNKNOWN,
    Atom,
    Bound,
    Columns,
    Items,
    Known,
    Sql,
    Value,
)

__all__ = ["attribute", "elements", "emitted", "is_database", "items_of", "known", "subscript"]

_ITEMS_MAX = 1000
_EMITTING = "activedb.database._methods"
_CONTAINERS = (list, tuple, set, frozenset, dict)
_NAMED_FIELD: type = type(inspect.FullArgSpec.__dict__["args"])  # a field of a named tuple
_MISSING: Any = object()


def known(thing: Any) -> Atom:
    """Return the atom for an existing object."""
    if isinstance(thing, MethodType):
        if isinstance(thing.__func__, FunctionType):
            return Bound(Known(thing.__func__), (frozenset((known(thing.__self__),)),))
        return UNKNOWN
    if isinstance(thing, functools.partial):
        function = known(thing.func)
        if not isinstance(function, Known):
            return UNKNOWN
        named = tuple((name, frozenset((known(v),))) for name, v in thing.keywords.items())
        return Bound(function, tuple(frozenset((known(v),)) for v in thing.args), named)
    if table_of(thing) is not None:
        return Known(thing)
    column = column_of(thing)
    if column is not None:
        return Sql(reads=frozenset((column,)))
    if is_of_sqlalchemy(thing) and not callable(thing):
        return of_object(thing) or Known(thing)
    if isinstance(thing, bool | int | float | bytes) or thing is None:
        return DATA
    return Known(thing)


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
        return frozenset((Columns(table) if name in ("c", "columns") else DATA,))
    if is_of_sqlalchemy(thing):
        return frozenset((Sql(),))  # such as func.sum
    if isinstance(thing, ModuleType):
        found = vars(thing).get(name, _MISSING)
    else:
        found = inspect.getattr_static(thing, name, _MISSING)
    if found is _MISSING:
        return frozenset((UNKNOWN,))
    if isinstance(found, MemberDescriptorType | _NAMED_FIELD) and not isinstance(thing, type):
        try:
            found = cast(Any, found).__get__(thing)
        except AttributeError:
            return frozenset((UNKNOWN,))
    elif isinstance(found, staticmethod):
        found = found.__func__
    elif isinstance(found, classmethod):
        owner = thing if isinstance(thing, type) else type(thing)
        return frozenset((Bound(Known(found.__func__), (frozenset((Known(owner),)),)),))
    elif isinstance(found, FunctionType) and not isinstance(thing, type | ModuleType):
        return frozenset((Bound(Known(found), (frozenset((Known(thing),)),)),))
    elif hasattr(type(found), "__get__") and not isinstance(found, FunctionType):
        if table is not None and is_of_sqlalchemy(found):
            of_column = column_of(found)
            problem = "" if of_column else f"{name} of a mapped class may read other tables"
            reads = frozenset((of_column or table,))
            return frozenset((Sql(reads=reads, problem=problem),))
        return frozenset((UNKNOWN,))
    return frozenset((known(found),))


def subscript(thing: Any, key: Value) -> Value:
    """Return the value of ``thing[key]``."""
    if type(thing) is str:
        return frozenset((DATA,))
    if type(thing) is dict:
        names = [k.thing if isinstance(k, Known) and type(k.thing) is str else None for k in key]
        if names and None not in names and all(name in thing for name in names):
            return frozenset(known(thing[name]) for name in names)
        return _each(thing.values())
    return elements(thing)


def elements(thing: Any) -> Value:
    """Return the value of an element of `thing`, as in a loop."""
    return _each(thing) if type(thing) in _CONTAINERS else frozenset((UNKNOWN,))


def items_of(thing: Any, method: str) -> Value | None:
    """Return the value of ``thing.items()`` and the like; None if `thing` is no dict."""
    if type(thing) is not dict or method not in ("items", "keys", "values", "get"):
        return None
    values, keys = _each(thing.values()), _each(thing.keys())
    if method == "get":
        return values | {DATA}
    inside = {"keys": keys, "values": values}.get(method) or frozenset((Items(keys | values),))
    return frozenset((Items(inside),))


def _each(things: Iterable[Any]) -> Value:
    listed = list(things)
    if not listed or len(listed) > _ITEMS_MAX:
        return frozenset((UNKNOWN,))
    return frozenset(known(thing) for thing in listed)
