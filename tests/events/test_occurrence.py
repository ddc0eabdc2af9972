from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.clock import ClockStatus
from activedb.errors import BadEvent
from activedb.events import AccuracyInterval, Occurrence, occurrence

BERLIN = ZoneInfo("Europe/Berlin")


class Color(IntEnum):
    RED = 1


class Moment(datetime):
    """A datetime with fields of its own, as some libraries have."""


@pytest.mark.parametrize(
    ("timestamp", "us"),
    [
        (0, 0),
        (2, 2_000_000),
        (-3, -3_000_000),
        (1.5, 1_500_000),
        (-0.0, 0),
        (1356087434.123456, 1356087434123456),
        (1.000009, 1_000_009),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2))), 1782900000_000000),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253402300799_999999),
        # The hour that the end of summer time repeats: fold tells the two apart.
        (datetime(2025, 10, 26, 2, 30, tzinfo=BERLIN), 1761438600_000000),
        (datetime(2025, 10, 26, 2, 30, fold=1, tzinfo=BERLIN), 1761442200_000000),
    ],
)
def test_occurrence_with_a_timestamp_keeps_it_and_its_microseconds(timestamp: Any, us: int) -> None:
    o = Occurrence("EXIT", timestamp)
    assert o.timestamp is timestamp
    assert o.us == us
    assert type(o.us) is int


@given(st.datetimes(timezones=st.timezones()))
def test_occurrence_at_a_datetime_has_exact_microseconds(timestamp: datetime) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert timedelta(microseconds=Occurrence("EXIT", timestamp).us) == timestamp - epoch


@pytest.mark.parametrize(
    ("timestamp", "reason"),
    [
        (datetime(2026, 1, 1), "is naive: say which time zone"),
        (True, "is of type bool"),
        (Color.RED, "is of type Color"),
        (Moment(2026, 1, 1, tzinfo=UTC), "is of type Moment"),
        (math.nan, "nan is not within the years"),
        (math.inf, "inf is not within the years"),
        (1e300, "within the years 1 to 9999"),
        (2**63, "within the years 1 to 9999"),
        pytest.param(10**5000, "within the years 1 to 9999", id="too long to print"),
        (None, "is of type NoneType"),
        ("2", "is of type str"),
        (Decimal(2), "is of type Decimal"),
    ],
)
def test_occurrence_with_an_unusable_timestamp_is_refused(timestamp: Any, reason: str) -> None:
    with pytest.raises(BadEvent, match=reason) as caught:
        Occurrence("EXIT", timestamp)
    assert "event 'EXIT'" in str(caught.value)


@pytest.mark.parametrize("name", ["", None, 7])
def test_occurrence_without_a_name_is_refused(name: Any) -> None:
    with pytest.raises(BadEvent, match="needs a name"):
        Occurrence(name, 1)


def test_occurrence_with_an_id_that_is_no_string_is_refused() -> None:
    with pytest.raises(BadEvent, match="id of event 'EXIT' must be a string or None, not 7"):
        Occurrence("EXIT", 1, id=7)  # type: ignore[arg-type]  # the mistake under test


def test_occurrence_with_params_that_are_no_mapping_is_refused() -> None:
    with pytest.raises(BadEvent, match="must be mappings"):
        Occurrence("EXIT", 1, [("worker", 7)])  # type: ignore[arg-type]  # the mistake under test


def test_occurrence_of_an_event_has_params_and_no_rows() -> None:
    o = occurrence("EXIT", timestamp=2, id="e1", worker=7, name="Ann")
    assert (o.name, o.timestamp, o.id) == ("EXIT", 2, "e1")
    assert o.params == {"worker": 7, "name": "Ann"}
    assert (o.old, o.new, dict(o.parts)) == (None, None, {})
    assert o.key == ("event", "EXIT")


@pytest.mark.parametrize(
    ("old", "new", "key", "params"),
    [
        (None, {"id": 1, "balance": 5}, ("insert", "accounts"), {"id": 1, "balance": 5}),
        ({"id": 1}, {"id": 1, "balance": 6}, ("update", "accounts"), {"id": 1, "balance": 6}),
        ({"id": 1}, None, ("delete", "accounts"), {"id": 1}),
        ({}, {}, ("update", "accounts"), {}),
    ],
)
def test_occurrence_of_a_data_change_takes_its_params_from_its_rows(
    old: Any, new: Any, key: Any, params: Any
) -> None:
    o = Occurrence("accounts", 1, old=old, new=new)
    assert (o.key, o.old, o.new, o.params) == (key, old, new, params)


def test_occurrence_with_rows_and_params_is_refused() -> None:
    with pytest.raises(BadEvent, match="takes its parameters from its rows"):
        Occurrence("accounts", 1, {"id": 1}, new={"id": 1})


def test_occurrence_with_parts_is_composite() -> None:
    part = occurrence("EXIT", timestamp=2)
    o = Occurrence("Q1", 2, {}, parts={"EXIT": part})
    assert o.parts["EXIT"] is part
    assert o.key == ("composite", "Q1")


def test_occurrence_at_an_exact_time_lies_at_it() -> None:
    o = occurrence("EXIT", timestamp=2)
    assert (o.us, o.low_us, o.high_us) == (2_000_000,) * 3
    assert (o.stamp, o.producer) == (None, None)


def test_occurrence_at_an_interval_lies_within_it() -> None:
    stamp = AccuracyInterval(10, 7, 12, ClockStatus.SYNCHRONIZED, "ward-3")
    o = occurrence("EXIT", timestamp=stamp)
    assert o.timestamp is stamp
    assert o.stamp is stamp
    assert (o.low_us, o.us, o.high_us, o.producer) == (7, 10, 12, "ward-3")
    assert repr(o) == "<Occurrence EXIT at [7, 12]us {}>"


def spread(name: str, low_us: int, high_us: int) -> Occurrence:
    return Occurrence(name, AccuracyInterval(high_us, low_us, high_us))


@pytest.mark.parametrize(
    ("timestamp", "parts", "extent"),
    [
        (3e-6, {"A": spread("A", 1, 1), "B": spread("B", 3, 3)}, (1, 3)),
        (4e-6, {"A": spread("A", 1, 9), "B": spread("B", 2, 4)}, (1, 9)),
        (8e-6, {"A": spread("A", 1, 2), "B": spread("B", 2, 4)}, (1, 8)),  # a window's end
        (0, {"A": spread("A", 1, 2)}, (0, 2)),
        (5e-6, {"A": (), "B": spread("B", 4, 5)}, (4, 5)),
        (5e-6, {"A": (spread("A", 2, 7), spread("A", 3, 6)), "B": spread("B", 4, 5)}, (2, 7)),
        (5e-6, {"A": ()}, (5, 5)),
        (AccuracyInterval(5, 3, 8), {"A": spread("A", 4, 4)}, (3, 8)),
        (4e-6, {"Q": Occurrence("Q", 4e-6, parts={"A": (spread("A", 1, 9),)})}, (1, 9)),
    ],
)
def test_occurrence_with_parts_lies_around_them_and_its_time(
    timestamp: Any, parts: Any, extent: tuple[int, int]
) -> None:
    o = Occurrence("Q1", timestamp, {}, parts=parts)
    assert (o.low_us, o.high_us) == extent
    assert o.key == ("composite", "Q1")


def test_occurrence_with_kleene_parts_has_flat_constituents() -> None:
    first, *middle, last = [occurrence("A", timestamp=i) for i in range(5)]
    o = Occurrence("Q1", 4, parts={"A": first, "B": tuple(middle), "C": (), "D": last})
    assert o.constituents == (first, *middle, last)
    assert o.parts["B"] == tuple(middle)
    assert first.constituents == ()


@pytest.mark.parametrize("part", [None, 7, [occurrence("A", timestamp=1)], ("A",)])
def test_occurrence_with_parts_of_another_type_is_refused(part: Any) -> None:
    with pytest.raises(BadEvent, match="parts of 'Q1' must be occurrences or tuples of them"):
        Occurrence("Q1", 1, parts={"A": part})


@pytest.mark.parametrize("kind", ["event", "clock", "late", "call", "return", "transaction"])
def test_occurrence_of_a_kind_has_it_in_its_key(kind: str) -> None:
    assert Occurrence("EXIT", 1, {"a": 1}, kind=kind).key == (kind, "EXIT")


@pytest.mark.parametrize("kind", ["", "insert", "composite", "EVENT", None, 7])
def test_occurrence_of_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(BadEvent, match="event 'EXIT': its kind is one of event, clock, late"):
        Occurrence("EXIT", 1, kind=kind)


@pytest.mark.parametrize(
    "fields", [{"new": {"a": 1}}, {"old": {}}, {"parts": {"A": occurrence("A", timestamp=1)}}]
)
def test_occurrence_with_rows_or_parts_has_no_other_kind(fields: Any) -> None:
    with pytest.raises(BadEvent, match="is a data change or composite"):
        Occurrence("t", 1, kind="late", **fields)


def test_occurrence_is_immutable() -> None:
    params = {"worker": 7}
    o = Occurrence("EXIT", 2, params)
    params["worker"] = 8
    assert o.params["worker"] == 7
    with pytest.raises(AttributeError, match="immutable: us cannot be set"):
        o.us = 3
    with pytest.raises(AttributeError, match="immutable: us cannot be deleted"):
        del o.us
    with pytest.raises(AttributeError):
        o.color = "red"
    mappings: list[Any] = [o.params, o.parts, Occurrence("t", 1, new={"a": 1}).new]
    for mapping in mappings:
        with pytest.raises(TypeError):
            mapping["worker"] = 8


def test_occurrences_with_equal_fields_are_two() -> None:
    assert occurrence("EXIT", timestamp=2) != occurrence("EXIT", timestamp=2)


def test_occurrence_repr_shows_what_happened_and_when() -> None:
    assert (
        repr(occurrence("EXIT", timestamp=2, id="e", w=7))
        == "<Occurrence EXIT at 2 id='e' {'w': 7}>"
    )
    assert repr(Occurrence("t", 2, old={"a": 1})) == "<Occurrence DELETE t at 2 {'a': 1}>"
