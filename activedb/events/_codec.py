"""Lossless JSON encoding of occurrences.

JSON would change some values silently: tuples become lists, NaN is not a number, ``1e20`` comes
back as an int. ``jsonb`` changes more: it stores numbers as numeric and rejects NUL. Values that
plain JSON does not preserve are therefore written as tagged values, ``{"$": tag, "v": ...}``. A
dict that could be mistaken for a tagged value is written as a list of pairs under the tag ``dict``.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, EnumMeta
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from activedb.clock import ClockStatus
from activedb.errors import BadEvent
from activedb.events._accuracy import AccuracyInterval, LocalClock, Timestamp
from activedb.events._occurrence import Occurrence

__all__ = [
    "decode",
    "decode_params",
    "decode_timestamp",
    "encode",
    "encode_params",
    "encode_timestamp",
    "register_type",
]

_TAG = "$"
_DEPTH_MAX = 64
_LIST_OF = (
    "None, bool, int, float, str, list, dict, datetime, date, time, timedelta, Decimal, bytes, "
    "UUID, an address or network of ipaddress, or a member of an Enum that a module defines"
)


def encode_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return `params` as a JSON-serialisable dict from which `decode_params` restores them exactly.

    Parameters
    ----------
    params : mapping
        Names to values of exactly the types None, bool, int, float, str, list, dict, datetime,
        date, time, timedelta, Decimal, bytes, UUID, those of ``ipaddress`` and of `register_type`,
        nested at most 64 deep, or members of an Enum.
        A datetime or time may be naive or carry a ``datetime.timezone`` or a keyed
        ``zoneinfo.ZoneInfo``. An Enum is encoded by the names of its module and class.

    Raises
    ------
    BadEvent
        If a value is of another type (subclasses included), or of an Enum that cannot be found by
        its name, such as one defined in a function. The message names the parameter.
    """
    return _encode_row(params, "parameter")


def decode_params(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that `encode_params` encoded.

    Raises
    ------
    BadEvent
        If `data` does not come from `encode_params`, or names a time zone unknown on this system,
        or an Enum whose module is not imported.
    """
    params = _decode(data)
    if not isinstance(params, dict):
        raise BadEvent(f"encoded parameters must be a JSON object, not {data!r}")
    return params


def register_type(
    kind: type, name: str, take_apart: Callable[[Any], Any], restore: Callable[[Any], Any]
) -> None:
    """Let values of a further type be encoded, under a name of their own.

    Parameters
    ----------
    take_apart : callable ``(value)``
        Return what `restore` needs, in values that can be encoded.
    restore : callable ``(parts)``
        Return the value.
    """
    _TAKEN_APART[kind] = name, take_apart
    _DECODERS[name] = lambda data: restore(_decode(data["v"]))


def encode(o: Occurrence) -> dict[str, Any]:
    """Return `o`, with its rows and parts, as a JSON-serialisable dict for `decode`.

    A Kleene part is a list of encoded occurrences. An accuracy interval is stored under ``"stamp"``
    instead of ``"timestamp"``. The kind ``"event"`` is the default and omitted.

    Raises
    ------
    BadEvent
        As for `encode_params`; the message names the parameter or column.
    """
    data: dict[str, Any] = {"name": _encode(o.name, "the name", 0)}
    if o.stamp is None:
        data["timestamp"] = _encode(o.timestamp, "the timestamp", 0)
    else:
        data["stamp"] = _encode_stamp(o.stamp)
    if o.id is not None:
        data["id"] = _encode(o.id, "the id", 0)
    if o.old is not None:
        data["old"] = _encode_row(o.old, "column")
    if o.new is not None:
        data["new"] = _encode_row(o.new, "column")
    if o.old is None and o.new is None:
        data["params"] = _encode_row(o.params, "parameter")
        if o.key[0] not in ("event", "composite"):
            data["kind"] = o.key[0]
    if o.parts:
        # Pairs keep the time order of the parts; jsonb would sort the keys of an object.
        data["parts"] = [
            [
                _encode(name, "a part", 0),
                [encode(o) for o in part] if isinstance(part, tuple) else encode(part),
            ]
            for name, part in o.parts.items()
        ]
    return data


def decode(data: Mapping[str, Any]) -> Occurrence:
    """Return an occurrence equal, field by field, to the one passed to `encode`.

    Raises
    ------
    BadEvent
        If `data` does not come from `encode`, or names a time zone unknown on this system.
    """
    try:
        rows = {name: decode_params(data[name]) for name in ("old", "new") if name in data}
        return Occurrence(
            _decode(data["name"]),
            _decode_stamp(data["stamp"]) if "stamp" in data else _decode(data["timestamp"]),
            None if rows else decode_params(data["params"]),
            id=_decode(data.get("id")),
            old=rows.get("old"),
            new=rows.get("new"),
            parts={
                _decode(name): tuple(map(decode, part)) if isinstance(part, list) else decode(part)
                for name, part in data.get("parts", ())
            },
            kind=data.get("kind", "event"),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadEvent(f"not an encoded occurrence ({error!r}): {data!r}") from error


def encode_timestamp(timestamp: Timestamp) -> Any:
    """Return a timestamp of any kind as JSON-serialisable data for `decode_timestamp`."""
    if isinstance(timestamp, AccuracyInterval):
        return _encode_stamp(timestamp)
    return _encode(timestamp, "the timestamp", 0)


def decode_timestamp(data: Any) -> Timestamp:
    """Return the timestamp that `encode_timestamp` encoded.

    Raises
    ------
    BadEvent
        If `data` does not come from `encode_timestamp`, or names an unknown time zone.
    """
    if isinstance(data, dict) and "us" in data:
        return _decode_stamp(data)
    found: Timestamp = _decode(data)
    return found


def _encode_stamp(stamp: AccuracyInterval) -> dict[str, Any]:
    """Return `stamp` as a JSON-serialisable dict for `_decode_stamp`."""
    data: dict[str, Any] = {
        "us": [stamp.reading_us, stamp.lower_us, stamp.upper_us],
        "status": stamp.status.value,
    }
    if stamp.node is not None:
        data["node"] = _encode(stamp.node, "the node", 0)
    clock = stamp.local_clock
    if clock is not None:
        data["local_us"] = _encode_int(stamp.local_us or 0)
        data["local_clock"] = [
            _encode(clock.incarnation, "the incarnation", 0),
            clock.detection_delay_us,
            clock.drift_ppb,
            clock.granularity_us,
            clock.adjustment_us,
        ]
    return data


def _decode_stamp(data: Mapping[str, Any]) -> AccuracyInterval:
    """Return the stamp that `_encode_stamp` encoded."""
    clock = data.get("local_clock")
    reading_us, lower_us, upper_us = data["us"]
    return AccuracyInterval(
        reading_us,
        lower_us,
        upper_us,
        status=ClockStatus(data["status"]),
        node=_decode(data.get("node")),
        local_us=_decode(data.get("local_us")),
        local_clock=None if clock is None else LocalClock(*map(_decode, clock)),
    )


def _encode_row(row: Mapping[str, Any], kind: str) -> dict[str, Any]:
    for name, value in row.items():
        if type(name) is not str or not name.isascii() or name == _TAG or "\0" in name:
            break
        type_ = type(value)
        if type_ is str:
            if not value.isascii() or "\0" in value:
                break
        elif type_ is int:
            if not -(2**63) <= value < 2**63:
                break
        elif type_ is not bool and value is not None:
            break
    else:  # the common case: nothing needs a tag
        return dict(row)
    for name in row:
        if type(name) is not str:
            raise BadEvent(f"the name of a {kind} must be a string, not {name!r}")
    encoded = {name: _encode(value, f"{kind} {name!r}", 0) for name, value in row.items()}
    return encoded if _is_plain_object(row) else _pairs(row, kind, -1)


def _encode(value: Any, where: str, depth: int) -> Any:
    """Encode one value; `where` names it in errors, `depth` is its nesting depth."""
    kind = type(value)
    if kind is list or kind is dict:
        if depth == _DEPTH_MAX:
            raise BadEvent(f"{where} is nested more than {_DEPTH_MAX} deep, or contains itself")
        if kind is list:
            return [_encode(item, where, depth + 1) for item in value]
        if _is_plain_object(value):
            return {key: _encode(item, where, depth + 1) for key, item in value.items()}
        return _pairs(value, where, depth)
    if kind in _TAKEN_APART:
        name, take_apart = _TAKEN_APART[kind]
        return _tagged(name, _encode(take_apart(value), where, depth + 1))
    encoder = _ENCODERS.get(kind) or (_encode_member if isinstance(value, Enum) else None)
    if encoder is None:
        raise BadEvent(f"{where} is a {kind.__qualname__}: use {_LIST_OF} (no subclass of them)")
    try:
        return encoder(value)
    except ValueError as error:
        raise BadEvent(f"{where}: {error}") from None


def _pairs(mapping: Mapping[Any, Any], where: str, depth: int) -> dict[str, Any]:
    return _tagged(
        "dict",
        [
            [_encode(key, where, depth + 1), _encode(item, where, depth + 1)]
            for key, item in mapping.items()
        ],
    )


def _is_plain_object(mapping: Mapping[Any, Any]) -> bool:
    return _TAG not in mapping and all(type(key) is str and _is_plain(key) for key in mapping)


def _is_plain(text: str) -> bool:
    """Return whether Postgres can store `text`: it has no NUL and no lone surrogate."""
    return "\0" not in text and (
        text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
    )


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {_TAG: tag, "v": value}


def _encode_int(value: int) -> Any:
    # JSON readers differ beyond 64 bits; hex has no limit on the number of digits.
    return value if -(2**63) <= value < 2**63 else _tagged("int", hex(value))


def _encode_float(value: float) -> Any:
    text = repr(value)
    # numeric keeps decimals like 0.1 and 1.0, but has no exponent and no negative zero.
    if math.isfinite(value) and "e" not in text and text != "-0.0":
        return value
    return _tagged("float", text)


def _encode_str(value: str) -> Any:
    if _is_plain(value):
        return value
    return _tagged("str", value.encode("utf-8", "surrogatepass").hex())


def _encode_datetime(value: datetime | time) -> Any:
    zone, tag = value.tzinfo, type(value).__name__
    if zone is None or type(zone) is timezone:
        data = {_TAG: tag, "v": value.isoformat()}
    elif type(zone) is ZoneInfo and zone.key is not None:
        data = {_TAG: tag, "v": value.replace(tzinfo=None).isoformat(), "zone": zone.key}
    else:
        raise ValueError(
            f"the time zone {zone!r} cannot be restored: use datetime.timezone or zoneinfo.ZoneInfo"
        )
    return {**data, "fold": 1} if value.fold else data


def _decode_datetime(data: Mapping[str, Any]) -> datetime | time:
    kind: type[datetime | time] = datetime if data[_TAG] == "datetime" else time
    value = kind.fromisoformat(data["v"])
    if "zone" in data:
        value = value.replace(tzinfo=ZoneInfo(data["zone"]))
    return value.replace(fold=data.get("fold", 0))


def _encode_member(value: Enum) -> Any:
    kind = type(value)
    module = _script() if kind.__module__ == "__main__" else kind.__module__
    if _enum(module, kind.__qualname__) is not kind or value.name not in kind.__members__:
        raise ValueError(
            f"{value!r} cannot be found again: define its class in a module, not in a function, "
            "and use a single member"
        )
    return _tagged("Enum", [module, kind.__qualname__, value.name])


def _decode_member(data: Mapping[str, Any]) -> Any:
    module, name, member = data["v"]
    kind = _enum(module, name)
    if kind is None:
        raise ValueError(f"no imported module {module} defines the Enum {name}")
    return kind[member]


def _enum(module: str, name: str) -> Any:
    """Return the Enum of this name in an imported module, or None; imports and runs nothing."""
    found: Any = sys.modules.get("__main__" if module == _script() else module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, EnumMeta) else None


def _script() -> str:
    """Return the name that the module ``__main__`` has where a command runs its file."""
    return Path(getattr(sys.modules.get("__main__"), "__file__", None) or "__main__").stem


def _same(value: Any) -> Any:
    return value


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    type(None): _same,
    bool: _same,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    datetime: _encode_datetime,
    date: lambda value: _tagged("date", value.isoformat()),
    time: _encode_datetime,
    timedelta: lambda value: _tagged("timedelta", [value.days, value.seconds, value.microseconds]),
    Decimal: lambda value: _tagged("Decimal", str(value)),
    bytes: lambda value: _tagged("bytes", base64.b64encode(value).decode("ascii")),
    UUID: lambda value: _tagged("UUID", value.hex),
}

_TAKEN_APART: dict[type, tuple[str, Callable[[Any], Any]]] = {}

_DECODERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "int": lambda data: int(data["v"], 16),
    "float": lambda data: float(data["v"]),
    "str": lambda data: bytes.fromhex(data["v"]).decode("utf-8", "surrogatepass"),
    "datetime": _decode_datetime,
    "date": lambda data: date.fromisoformat(data["v"]),
    "time": _decode_datetime,
    "timedelta": lambda data: timedelta(*data["v"]),
    "Enum": _decode_member,
    "Decimal": lambda data: Decimal(data["v"]),
    "bytes": lambda data: base64.b64decode(data["v"], validate=True),
    "UUID": lambda data: UUID(data["v"]),
    "dict": lambda data: {_decode(key): _decode(item) for key, item in data["v"]},
}

for _kind in (IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network):
    register_type(_kind, _kind.__name__, str, _kind)


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    if _TAG not in data:
        return {key: _decode(item) for key, item in data.items()}
    try:
        return _DECODERS[data[_TAG]](data)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadEvent(f"not an encoded value ({error!r}): {data!r}") from error
