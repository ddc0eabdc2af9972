"""Event occurrences: name, time and parameters of what happened, and their certain order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Never, Self

from activedb.errors import BadEvent
from activedb.events._accuracy import AccuracyInterval, Timestamp, certainly_before, microseconds
from activedb.values import IMMUTABLE, NamedValues, containers_copied, copied

__all__ = ["Occurrence", "Parts", "leaves", "occurrence", "precedes", "row_change"]


Parts = Mapping[str, "Occurrence | tuple[Occurrence, ...]"]
Row = Mapping[str, Any]

_KINDS = ("event", "clock", "late", "call", "return", "transaction")
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Occurrence:
    """One occurrence of an event; immutable.

    Occurrences with equal fields are still different occurrences: equality is identity.

    Parameters
    ----------
    name : str
        The event's name. For a data change: the full name of the table. For a composite
        occurrence: the name of the expression it matched.
    timestamp : int, float, datetime or AccuracyInterval
        When it happened: seconds since the epoch, an aware datetime, or an interval if the time is
        not known exactly. For a composite: the timestamp of its last constituent, or the moment
        that completed it, such as the end of a window.
    params : mapping, optional
        The parameters by name. Omit for a data change, which takes them from its rows.
    id : str, optional
        The event's id; breaks ties between equal timestamps.
    old, new : mapping, optional
        The row before and after a data change: an insert has only `new`, a delete only `old`.
    parts : mapping of str to Occurrence or tuple of Occurrence, optional
        The constituents of a composite occurrence by part name; a Kleene part is a tuple of all its
        elements, possibly empty.
    kind : str, optional
        The kind of event, if it is neither a data change nor composite: ``"event"``, sent by
        applications and streams; ``"clock"``, a time was reached; ``"late"``, an event came too
        late; ``"call"`` and ``"return"`` of a method; ``"transaction"``.

    Attributes
    ----------
    name, timestamp, params, id, old, new, parts
        As given. The mappings are read-only shallow copies; `params` of a data change is the new
        row, or the old row for a delete. `parts` is empty unless composite.
    us : int
        `timestamp` in microseconds since the epoch, for an interval the reading: the sort key.
    stamp : AccuracyInterval or None
        `timestamp` if it is an interval; None if it is exact.
    low_us, high_us : int
        Bounds on its time: the ends of the interval; both `us` for an exact timestamp. For a
        composite, the lower end of its earliest constituent and the upper end of its latest, or of
        its own timestamp if that lies beyond them.
    key : tuple of (str, str)
        The key that expressions match: ``(kind, name)``, or ``("insert" | "update" | "delete",
        table)``, or ``("composite", name)``.

    Raises
    ------
    BadEvent
        If the name, timestamp, parameters, id, parts or kind are invalid.
    """

    __slots__ = (
        "high_us",
        "id",
        "key",
        "low_us",
        "name",
        "new",
        "old",
        "params",
        "parts",
        "stamp",
        "timestamp",
        "us",
    )

    name: str
    timestamp: Timestamp
    us: int
    stamp: AccuracyInterval | None
    low_us: int
    high_us: int
    params: Mapping[str, Any]
    id: str | None
    # Any, not an optional mapping: a rule on updates may write o.new["balance"] < o.old["balance"],
    # as its event guarantees both rows.
    old: Any
    new: Any
    # Likewise: the author of the expression knows which of its parts are Kleene.
    parts: Mapping[str, Any]
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
        parts: Parts | None = None,
        kind: str = "event",
    ):
        if not isinstance(name, str) or not name:
            raise BadEvent(f"an event needs a name, a non-empty string, not {name!r}")
        if id is not None and not isinstance(id, str):
            raise BadEvent(f"the id of event {name!r} must be a string or None, not {id!r}")
        try:
            us = microseconds(timestamp)
        except BadEvent as error:
            raise BadEvent(f"event {name!r}: {error}") from None
        # This is the most frequently called constructor: it takes about 1.5 µs. The slots' own
        # setters need half the time of object.__setattr__, which has to look them up first.
        _put_name(self, name)
        _put_timestamp(self, timestamp)
        _put_us(self, us)
        _put_id(self, id)
        if type(timestamp) is AccuracyInterval:
            _put_stamp(self, timestamp)
            low_us, high_us = timestamp.lower_us, timestamp.upper_us
        else:
            _put_stamp(self, None)
            low_us = high_us = us
        if parts is None:
            _put_parts(self, _NOTHING)
        else:
            _put_parts(self, MappingProxyType(dict(parts)))
            if parts:
                low_us, high_us = _extent(name, parts, low_us, high_us)
        _put_low_us(self, low_us)
        _put_high_us(self, high_us)
        if old is None and new is None:
            if kind != "event":
                _check_kind(kind, name, parts)
            _put_key(self, ("composite" if parts else kind, name))
            _put_params(self, _NOTHING if params is None else _read_only(params, name))
            _put_old(self, None)
            _put_new(self, None)
            return
        if kind != "event":
            _check_kind(kind, name, True)
        if params is not None or parts:
            raise BadEvent(
                f"the data change on {name!r} takes its parameters from its rows: "
                "leave out params and parts"
            )
        before = None if old is None else _row(old, name)
        after = None if new is None else _row(new, name)
        change = "insert" if before is None else "delete" if after is None else "update"
        _put_key(self, (change, name))
        _put_params(self, before if after is None else after)
        _put_old(self, before)
        _put_new(self, after)

    def apart(self) -> Self:
        """Return an occurrence that shares no mutable lists or dicts with this one.

        That is the occurrence itself if it has none. O(parameters) in that case.
        """
        old, new, parts = self.old, self.new, self.parts
        if old is None and new is None:
            params = _separated(self.params, containers_copied)
            is_same = params is self.params
            if parts:
                own = {}
                for name, part in parts.items():
                    own[name] = found = _part_apart(part)
                    is_same = is_same and found is part
                parts = own
        else:
            old = None if old is None else _separated(old, copied)
            new = None if new is None else _separated(new, copied)
            params = new or old or _NOTHING
            is_same = old is self.old and new is self.new
        if is_same:
            return self
        found = object.__new__(type(self))
        for slot in Occurrence.__slots__:
            object.__setattr__(found, slot, getattr(self, slot))
        _put_params(found, params)
        _put_old(found, old)
        _put_new(found, new)
        if parts:
            _put_parts(found, MappingProxyType(parts))
        return found

    @property
    def producer(self) -> str | None:
        """The node that detected the event; None if its timestamp does not name one."""
        return None if self.stamp is None else self.stamp.node

    @property
    def constituents(self) -> tuple[Occurrence, ...]:
        """All parts in order, Kleene parts flattened; empty unless composite. O(n)."""
        found: list[Occurrence] = []
        for part in self.parts.values():
            found.extend(part if isinstance(part, tuple) else (part,))
        return tuple(found)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(f"an occurrence is immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"an occurrence is immutable: {name} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        kind, _ = self.key
        is_change = self.old is not None or self.new is not None
        params = None if is_change else dict(self.params)
        rows = (None if row is None else dict(row) for row in (self.old, self.new))
        own = kind if kind in _KINDS else "event"
        return _again, (self.name, self.timestamp, params, self.id, *rows, dict(self.parts), own)

    def __repr__(self) -> str:
        kind, name = self.key
        shown = name if kind in ("event", "composite") else f"{kind.upper()} {name}"
        id_ = "" if self.id is None else f" id={self.id!r}"
        stamp = self.stamp
        at = self.timestamp if stamp is None else f"[{stamp.lower_us}, {stamp.upper_us}]us"
        return f"<Occurrence {shown} at {at!s}{id_} {dict(self.params)!r}>"


# See __init__. (mypy knows a slot by its type, not by its descriptor.)
_put_high_us = Occurrence.__dict__["high_us"].__set__
_put_id = Occurrence.__dict__["id"].__set__
_put_key = Occurrence.__dict__["key"].__set__
_put_low_us = Occurrence.__dict__["low_us"].__set__
_put_name = Occurrence.__dict__["name"].__set__
_put_new = Occurrence.__dict__["new"].__set__
_put_old = Occurrence.__dict__["old"].__set__
_put_params = Occurrence.__dict__["params"].__set__
_put_parts = Occurrence.__dict__["parts"].__set__
_put_stamp = Occurrence.__dict__["stamp"].__set__
_put_timestamp = Occurrence.__dict__["timestamp"].__set__
_put_us = Occurrence.__dict__["us"].__set__


def occurrence(
    name: str, /, *, timestamp: Timestamp, id: str | None = None, **params: Any
) -> Occurrence:
    """Return an occurrence of the application or stream event `name`.

    Parameters
    ----------
    name : str
        The event's name.
    timestamp : int, float, datetime or AccuracyInterval
        Seconds since the epoch, an aware datetime, or an interval.
    id : str, optional
        The event's id; breaks ties between equal timestamps.
    **params
        The parameters by name. (One called ``timestamp`` or ``id`` needs `Occurrence` itself.)

    Raises
    ------
    BadEvent
        As for `Occurrence`.

    Examples
    --------
    >>> occurrence("EXIT", timestamp=2, worker=7)
    <Occurrence EXIT at 2 {'worker': 7}>
    """
    return Occurrence(name, timestamp, params, id=id)


def row_change(
    key: tuple[str, str], timestamp: Timestamp, old: Row | None, new: Row | None
) -> Occurrence:
    """Return the occurrence of a data change, without a copy of the rows.

    REQUIRES: the rows are read-only, and neither they nor their values change.

    Parameters
    ----------
    key : tuple of (str, str)
        ``"insert"``, ``"update"`` or ``"delete"``, and the full name of the table.
    timestamp : int, float, datetime or AccuracyInterval
    old, new : mapping, optional
        The row before and after.
    """
    o = object.__new__(Occurrence)
    us = microseconds(timestamp)
    stamp = timestamp if type(timestamp) is AccuracyInterval else None
    _put_key(o, key)
    _put_name(o, key[1])
    _put_timestamp(o, timestamp)
    _put_us(o, us)
    _put_stamp(o, stamp)
    _put_low_us(o, us if stamp is None else stamp.lower_us)
    _put_high_us(o, us if stamp is None else stamp.upper_us)
    _put_params(o, old if new is None else new)
    _put_id(o, None)
    _put_old(o, old)
    _put_new(o, new)
    _put_parts(o, _NOTHING)
    return o


def _again(
    name: str,
    timestamp: Timestamp,
    params: Mapping[str, Any] | None,
    id: str | None,
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any] | None,
    parts: Parts,
    kind: str,
) -> Occurrence:
    """Restore an occurrence from its pickled fields."""
    return Occurrence(
        name, timestamp, params, id=id, old=old, new=new, parts=parts or None, kind=kind
    )


def _read_only(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if type(mapping) is not dict and not isinstance(mapping, Mapping):
        raise BadEvent(f"parameters and rows of {name!r} must be mappings, not {mapping!r}")
    return MappingProxyType(dict(mapping))


def _check_kind(kind: str, name: str, is_taken: object) -> None:
    if kind not in _KINDS:
        raise BadEvent(f"event {name!r}: its kind is one of {', '.join(_KINDS)}, not {kind!r}")
    if is_taken:
        raise BadEvent(f"{name!r} is a data change or composite by its rows or parts: no {kind!r}")


def _extent(name: str, parts: Parts, low_us: int, high_us: int) -> tuple[int, int]:
    """Return the least interval that contains the given one and those of all parts."""
    try:
        for part in parts.values():
            for o in part if isinstance(part, tuple) else (part,):
                if o.low_us < low_us:
                    low_us = o.low_us
                if o.high_us > high_us:
                    high_us = o.high_us
    except AttributeError:
        raise BadEvent(
            f"the parts of {name!r} must be occurrences or tuples of them, not {part!r}"
        ) from None
    return low_us, high_us


def _separated(values: Mapping[str, Any], own: Callable[[Any], Any]) -> Mapping[str, Any]:
    """Return `values`, with its mutable values copied; the same mapping if there are none."""
    for value in values.values():
        if type(value) not in IMMUTABLE:
            break
    else:
        return values
    pairs = ((n, v if type(v) in IMMUTABLE else own(v)) for n, v in values.items())
    return MappingProxyType(NamedValues(pairs) if own is copied else dict(pairs))


def _part_apart(part: Occurrence | tuple[Occurrence, ...]) -> Occurrence | tuple[Occurrence, ...]:
    """Return a part, Kleene or not, with each occurrence as `Occurrence.apart` returns it."""
    if not isinstance(part, tuple):
        return part.apart()
    own = tuple([o.apart() for o in part])
    return own if any(a is not b for a, b in zip(own, part, strict=True)) else part


def _row(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a row of the table `name` as a read-only mapping."""
    return MappingProxyType(NamedValues(_read_only(mapping, name)))


# -- certain temporal order of two occurrences -----------------------------------------------------


def leaves(o: Occurrence) -> Iterator[Occurrence]:
    """Yield the primitive events that an occurrence is composed of, and its ticks."""
    if not o.parts:
        yield o
    for part in o.constituents:
        yield from leaves(part)


def precedes(a: Occurrence, b: Occurrence) -> bool:
    """Return whether `a` certainly ended before `b` began; equal times are not ordered.

    Either the extents decide, ``a.high_us < b.low_us``, or one node stamped all constituents of
    `a` before all constituents of `b`, and the node's local clock orders them. O(1); O(n m) for
    composites whose extents overlap, with n and m constituents.
    """
    if a.high_us < b.low_us:
        return True
    if a.stamp is None or b.stamp is None:
        return False
    if not a.parts and not b.parts:
        return certainly_before(a.stamp, b.stamp)
    ends, starts = _stamps(a), _stamps(b)
    if ends is None or starts is None:
        return False
    return all(certainly_before(end, start) for end in ends for start in starts)


def _stamps(o: Occurrence) -> list[AccuracyInterval] | None:
    """Return the stamps of `o` and of all its constituents, or None if one of them has no stamp."""
    if o.stamp is None:
        return None
    found = [o.stamp]
    for part in o.constituents:
        inner = _stamps(part)
        if inner is None:
            return None
        found += inner
    return found
