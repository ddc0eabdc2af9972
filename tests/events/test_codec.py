from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from ipaddress import ip_interface, ip_network
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.clock import ClockStatus
from activedb.errors import BadEvent
from activedb.events import (
    AccuracyInterval,
    LocalClock,
    Occurrence,
    decode,
    decode_params,
    encode,
    encode_params,
    event,
    seq,
)
from activedb.events import detect as detect_in
from activedb.events._accuracy import FIRST_US, LAST_US
from tests.drawing import SCALE


class Label(StrEnum):
    SPAM = "spam"
    JUNK = "spam"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Side(Flag):
    LEFT = 1
    RIGHT = 2


class Table:
    class Leg(Enum):
        FRONT = (1, 2)
        BACK = Decimal("NaN")


class Bag(set[int]):
    pass


def local() -> Enum:
    return Enum("Hidden", ["A"]).A  # type: ignore[attr-defined, no-any-return]


class Sidereal(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(seconds=1)

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "sidereal"


# A str may hold NUL and lone surrogates, which neither UTF-8 nor Postgres can.
texts = st.text(st.characters(codec=None, exclude_categories=())) | st.sampled_from(
    ["", "$", "v", "\0", "\ud83d\ude00", "\U0001f600", "naïve"]
)
zones = st.none() | st.timezones() | st.just(timezone(timedelta(minutes=-90, seconds=1)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63 - 1, 2**63, -(2**63) - 1])
    | st.floats(allow_nan=True)
    | st.sampled_from([-0.0, 1e20, 1e-300, 1.0, 0.1])
    | texts
    | st.datetimes(timezones=zones)
    | st.dates()
    | st.times(timezones=zones)
    | st.timedeltas()
    | st.sampled_from([*Label, *Level, *Side, *Table.Leg])
    | st.decimals()
    | st.binary()
    | st.uuids()
    | st.ip_addresses()
    | st.ip_addresses().map(ip_network)
    | st.ip_addresses().map(ip_interface)
)
keys = texts | st.none() | st.booleans() | st.integers() | st.dates() | st.binary() | st.uuids()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)
rows = st.dictionaries(texts, values, max_size=5)


def identical(a: Any, b: Any) -> bool:
    """Return whether two values are equal down to types, signs, exponents, zones and folds."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, dict):
        # Equal keys may still differ (1, 1.0, True), so each has to find its own like.
        return len(a) == len(b) and all(
            any(identical(key, other) and identical(a[key], b[other]) for other in b) for key in a
        )
    if isinstance(a, datetime | time):
        naive_a, naive_b = a.replace(tzinfo=None), b.replace(tzinfo=None)
        return bool(naive_a == naive_b) and a.fold == b.fold and a.tzinfo == b.tzinfo
    if isinstance(a, float | Decimal):
        return repr(a) == repr(b)
    return bool(a == b)


def through_json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def through_jsonb(data: Any) -> Any:
    """Convert like jsonb: numbers are numeric (no exponent, no negative zero), keys are sorted."""

    def numeric(text: str) -> int | float:
        digits = f"{Decimal(text):f}"
        digits = digits.removeprefix("-") if Decimal(text) == 0 else digits
        return float(digits) if "." in digits else int(digits)

    text = json.dumps(data, allow_nan=False, sort_keys=True)
    assert not re.search(r"(?<!\\)(\\\\)*\\u0000", text)  # a text of these six characters may be
    decoded = json.loads(text, parse_float=numeric)
    json.dumps(decoded, ensure_ascii=False).encode()  # fails on lone surrogates
    return decoded


@pytest.mark.long
@settings(max_examples=200 * SCALE, deadline=None)
@given(rows)
def test_params_through_json_and_jsonb_come_back_exactly(params: dict[str, Any]) -> None:
    for through in (through_json, through_jsonb):
        assert identical(decode_params(through(encode_params(params))), params)


@pytest.mark.parametrize(
    "value",
    [
        {"$": "Decimal", "v": "1.5"},
        {"$": "bytes"},
        {1: "a", "1": "b"},
        {None: 1, "None": 2},
        {b"k": [date(2026, 1, 2), datetime(2026, 1, 2)]},
        r"\u0000",
        "\\\0",
        Decimal("1.500"),
        Decimal("sNaN"),
        Decimal("-Infinity"),
        math.nan,
        datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(2025, 10, 26, 2, 30, fold=1),
        UUID(int=7),
        Label.JUNK,
        Level.HIGH,
        Table.Leg.BACK,
        {Level.LOW: 1, 1.5: Side.RIGHT},
        time(2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        timedelta.min,
        timedelta.max,
        [[[]]],
        pytest.param(10**5000, id="an int too long to print"),
    ],
)
def test_params_with_a_value_easily_mistaken_come_back_exactly(value: Any) -> None:
    for through in (through_json, through_jsonb):
        assert identical(decode_params(through(encode_params({"p": value})))["p"], value)


def test_params_in_a_named_zone_come_back_in_that_zone() -> None:
    zone = ZoneInfo("Europe/Berlin")
    when = datetime(2025, 7, 1, tzinfo=zone)
    restored = decode_params(through_json(encode_params({"p": when})))["p"]
    assert restored.tzinfo is zone


def test_params_that_json_keeps_are_encoded_as_they_are() -> None:
    params = {"a": None, "b": True, "c": 7, "d": 1.5, "e": "x", "f": [1, {"g": 2}]}
    assert encode_params(params) == params


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ((1, 2), "'p' is a tuple"),
        ({1}, "'p' is a set"),
        ([1, [object()]], "'p' is a object"),
        ({(1, 2): 3}, "'p' is a tuple"),
        (Bag(), "'p' is a Bag"),
        (local(), "'p': .* cannot be found again"),
        (Side.LEFT | Side.RIGHT, "'p': .* cannot be found again"),
        (bytearray(b"x"), "'p' is a bytearray"),
        (datetime(2026, 1, 1, tzinfo=Sidereal()), "'p': the time zone .* cannot be restored"),
    ],
)
def test_params_with_another_type_are_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(BadEvent, match=f"parameter {reason}"):
        encode_params({"fine": 1, "p": value})


def test_params_that_contain_themselves_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadEvent, match="parameter 'p' is nested more than 64 deep"):
        encode_params({"p": endless})


def test_params_nested_as_deep_as_allowed_come_back() -> None:
    nested: Any = 1
    for level in range(64):
        nested = [nested] if level % 2 else {1: nested}
    assert decode_params(through_json(encode_params({"p": nested}))) == {"p": nested}
    with pytest.raises(BadEvent, match="nested"):
        encode_params({"p": [nested]})


def test_params_with_a_name_that_is_no_string_are_refused() -> None:
    with pytest.raises(BadEvent, match="name of a parameter must be a string, not 1"):
        encode_params({1: 2})  # type: ignore[dict-item]  # the mistake under test


@pytest.mark.parametrize(
    "data",
    [
        {"p": {"$": "Complex", "v": "1"}},
        {"p": {"$": "Decimal", "v": "one"}},
        {"p": {"$": "Decimal"}},
        {"p": {"$": "dict", "v": [[[1], 2]]}},
        {"p": {"$": ["int"], "v": "0x1"}},
        {"p": {"$": "datetime", "v": "2026-01-01T00:00:00", "zone": "Nowhere/Atlantis"}},
        {"p": {"$": "Enum", "v": ["os", "environ", "HOME"]}},
        {"p": {"$": "Enum", "v": ["os", "path.join", "a"]}},
        {"p": {"$": "Enum", "v": ["not_imported", "Label", "SPAM"]}},
        {"p": {"$": "Enum", "v": [__name__, "Label", "MISSING"]}},
        {"p": {"$": "Enum", "v": [__name__, "Label", ["SPAM"]]}},
        {"p": {"$": "Enum", "v": [__name__, 1, "SPAM"]}},
        {"p": {"$": "Enum", "v": [[], "Label", "SPAM"]}},
        {"p": {"$": "Enum", "v": [__name__, "Label"]}},
        {"p": {"$": "time", "v": "25:00"}},
        {"p": {"$": "timedelta", "v": [1, 2, "three"]}},
        {"p": {"$": "timedelta", "v": [10**10, 0, 0]}},
        {"$": "int", "v": "0x1"},
        [1],
    ],
)
def test_decode_params_of_something_else_is_refused(data: Any) -> None:
    with pytest.raises(BadEvent, match="encoded"):
        decode_params(data)


def fields(o: Occurrence) -> Any:
    return [
        o.name,
        o.timestamp,
        o.us,
        [o.stamp, o.low_us, o.high_us],
        o.id,
        list(o.key),
        dict(o.params),
        None if o.old is None else dict(o.old),
        None if o.new is None else dict(o.new),
        [
            [name, list(map(fields, part)) if isinstance(part, tuple) else fields(part)]
            for name, part in o.parts.items()
        ],
    ]


microseconds = st.integers(FIRST_US, LAST_US)
parameters = st.integers(0, 2**70)
local_clocks = st.builds(
    LocalClock, texts, parameters, parameters, parameters.map(lambda g: g + 1), parameters
)
stamps = st.builds(
    lambda ends, status, node, local: AccuracyInterval(
        ends[1], ends[0], ends[2], status, node, *(local if node is not None else (None, None))
    ),
    st.tuples(microseconds, microseconds, microseconds).map(sorted),
    st.sampled_from(ClockStatus),
    st.none() | texts.filter(bool),
    st.just((None, None)) | st.tuples(st.integers(), local_clocks),
)
instants = (
    st.integers(-(10**9), 10**9)
    | st.floats(-1e9, 1e9)
    | st.datetimes(timezones=st.timezones() | st.just(UTC))
    | stamps
)
kinds = st.sampled_from(["event", "clock", "late", "call", "return", "transaction"])
primitives = st.builds(
    Occurrence, texts.filter(bool), instants, rows, id=st.none() | texts, kind=kinds
) | st.builds(
    lambda old, new, **rest: (
        Occurrence(old=old, new=None if old is None else new, **rest)
        if old is not None
        else Occurrence(new=new or {}, **rest)
    ),
    old=st.none() | rows,
    new=st.none() | rows,
    name=texts.filter(bool),
    timestamp=instants,
    id=st.none() | texts,
)


@pytest.mark.long
@settings(max_examples=100 * SCALE, deadline=None)
@given(
    primitives,
    st.dictionaries(texts, primitives | st.lists(primitives, max_size=2).map(tuple), max_size=2),
)
def test_occurrence_through_json_comes_back_exactly(o: Occurrence, parts: dict[str, Any]) -> None:
    composite = Occurrence("Q1", o.timestamp, o.params, parts={**parts, "last": o})
    for original in (o, composite):
        for through in (through_json, through_jsonb):
            assert identical(fields(decode(through(encode(original)))), fields(original))


def test_match_through_json_comes_back_with_its_parts_in_time_order() -> None:
    [match] = detect_in(
        seq(event("Z"), event("A", alias="Y"), event("B")),
        [Occurrence(name, at, {name: at}) for at, name in enumerate("ZAB")],
    )
    restored = decode(through_jsonb(encode(match)))
    assert list(restored.parts) == ["Z", "Y", "B"]
    assert identical(fields(restored), fields(match))


def test_decode_of_what_earlier_releases_encoded_gives_the_same() -> None:
    part = {"name": "A", "timestamp": 1, "params": {"x": 1}}
    o = decode({"name": "Q1", "timestamp": 2.5, "id": "e", "params": {}, "parts": [["A", part]]})
    assert (o.key, o.timestamp, o.id, o.stamp) == (("composite", "Q1"), 2.5, "e", None)
    assert (o.parts["A"].key, o.parts["A"].us) == (("event", "A"), 1_000_000)
    assert (o.low_us, o.high_us) == (1_000_000, 2_500_000)


def test_encode_of_an_exact_event_is_what_earlier_releases_encoded() -> None:
    part = Occurrence("A", 1, {"x": 1})
    o = Occurrence("Q1", 2.5, {}, id="e", parts={"A": part})
    assert encode(o) == {
        "name": "Q1",
        "timestamp": 2.5,
        "id": "e",
        "params": {},
        "parts": [["A", {"name": "A", "timestamp": 1, "params": {"x": 1}}]],
    }


def test_encode_of_a_row_with_another_type_names_the_column() -> None:
    with pytest.raises(BadEvent, match="column 'tags' is a set"):
        encode(Occurrence("accounts", 1, new={"tags": {1}}))


@pytest.mark.parametrize(
    "data",
    [
        {},
        None,
        {"name": "A", "timestamp": 1},
        {"name": "A", "timestamp": 1, "params": 7},
        {"name": "A", "timestamp": "x", "params": {}},
        {"name": "A", "timestamp": 1, "params": {}, "parts": [1]},
        {"name": "A", "timestamp": 1, "params": {}, "parts": [["B", [1]]]},
        {"name": "A", "timestamp": 1, "params": {}, "kind": "insert"},
        {"name": "A", "timestamp": 1, "params": {}, "kind": ["event"]},
        {"name": "A", "stamp": {}, "params": {}},
        {"name": "A", "stamp": {"us": [1, 1], "status": "fixed"}, "params": {}},
        {"name": "A", "stamp": {"us": [1, 2, 1], "status": "fixed"}, "params": {}},
        {"name": "A", "stamp": {"us": [1, 1, 1], "status": "exact"}, "params": {}},
        {"name": "A", "stamp": {"us": [1, 1, 1], "status": "fixed", "local_us": 1}, "params": {}},
    ],
)
def test_decode_of_something_else_is_refused(data: Any) -> None:
    with pytest.raises(BadEvent):
        decode(data)
