"""Event occurrences: what happened, when, with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Never

from activedb.errors import BadEvent
from activedb.events._timestamps import Timestamp, microseconds

__all__ = ["Occurrence", "occurrence"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Occurrence:
    """One occurrence of an event; immutable.

    Two occurrences with equal fields are still two occurrences: equality is identity.

    Parameters
    ----------
    name : str
        The event's name. Of a data change: the full name of the table. Of a composite
        occurrence: the name of the expression it matched.
    timestamp : int, float or datetime
        When it happened: seconds since the epoch, or an aware datetime.
    params : mapping, optional
        The parameters by name. Left out for a data change, which takes them from its rows.
    id : str, optional
        The event's id; breaks ties between equal timestamps.
    old, new : mapping, optional
        The row before and after a data change: an insert has only `new`, a delete only `old`.
    parts : mapping of str to Occurrence, optional
        The constituents of a composite occurrence by part name.

    Attributes
    ----------
    name, timestamp, params, id, old, new, parts
        As given. The mappings are read-only copies (shallow); `params` of a data change is the
        new row, of a delete the old row. `parts` is empty unless composite.
    us : int
        `timestamp` in microseconds since the epoch: the order key.
    key : tuple of (str, str)
        What an expression listens to: ``("event", name)``, or ``("insert" | "update" | "delete",
        table)``, or ``("composite", name)``.

    Raises
    ------
    BadEvent
        If the name, timestamp, parameters or id have the wrong type or no meaning.
    """

    __slots__ = ("id", "key", "name", "new", "old", "params", "parts", "timestamp", "us")

    name: str
    timestamp: Timestamp
    us: int
    params: Mapping[str, Any]
    id: str | None
    # Any, not an optional mapping: a rule on updates may write o.new["balance"] < o.old["balance"],
    # as the event it is on says that both rows are there.
    old: Any
    new: Any
    parts: Mapping[str, Occurrence]
    key: tuple[str, str]

    def __init__(
        self,
        name: str,
        timestamp: Timestamp,
        params: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        old: Mapping[str, Any] | None = None,
        new: Mapping[str, Any] | None = None,
        parts: Mapping[str, Occurrence] | None = None,
    ):
        if not isinstance(name, str) or not name:
            raise BadEvent(f"an event needs a name, a non-empty string, not {name!r}")
        if id is not None and not isinstance(id, str):
            raise BadEvent(f"the id of event {name!r} must be a string or None, not {id!r}")
        try:
            us = microseconds(timestamp)
        except BadEvent as error:
            raise BadEvent(f"event {name!r}: {error}") from None
        # Building one takes about a microsecond and a half; that is cheap enough to leave
        # immutability to object.__setattr__.
        put = object.__setattr__
        put(self, "name", name)
        put(self, "timestamp", timestamp)
        put(self, "us", us)
        put(self, "id", id)
        put(self, "parts", _NOTHING if parts is None else MappingProxyType(dict(parts)))
        if old is None and new is None:
            put(self, "key", ("composite" if parts else "event", name))
            put(self, "params", _NOTHING if params is None else _read_only(params, name))
            put(self, "old", None)
            put(self, "new", None)
            return
        if params is not None or parts:
            raise BadEvent(
                f"the data change on {name!r} takes its parameters from its rows: "
                "leave out params and parts"
            )
        before = None if old is None else _read_only(old, name)
        after = None if new is None else _read_only(new, name)
        change = "insert" if before is None else "delete" if after is None else "update"
        put(self, "key", (change, name))
        put(self, "params", before if after is None else after)
        put(self, "old", before)
        put(self, "new", after)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"an occurrence is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"an occurrence is immutable: {name} cannot be deleted")

    def __repr__(self) -> str:
        kind, name = self.key
        shown = name if kind in ("event", "composite") else f"{kind.upper()} {name}"
        id_ = "" if self.id is None else f" id={self.id!r}"
        return f"<Occurrence {shown} at {self.timestamp!s}{id_} {dict(self.params)!r}>"


def occurrence(
    name: str, /, *, timestamp: Timestamp, id: str | None = None, **params: Any
) -> Occurrence:
    """Return an occurrence of the application or stream event `name`.

    Parameters
    ----------
    name : str
        The event's name.
    timestamp : int, float or datetime
        Seconds since the epoch, or an aware datetime.
    id : str, optional
        Breaks ties between equal timestamps.
    **params
        The parameters by name. (One called ``timestamp`` or ``id`` needs `Occurrence` itself.)

    Raises
    ------
    BadEvent
        As `Occurrence`.

    Examples
    --------
    >>> occurrence("EXIT", timestamp=2, worker=7)
    <Occurrence EXIT at 2 {'worker': 7}>
    """
    return Occurrence(name, timestamp, params, id=id)


def _read_only(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if type(mapping) is not dict and not isinstance(mapping, Mapping):
        raise BadEvent(f"parameters and rows of {name!r} must be mappings, not {mapping!r}")
    return MappingProxyType(dict(mapping))
