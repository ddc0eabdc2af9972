"""Events in columns, as they are kept and as they come from Python, are what they were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import activedb as adb
from activedb.columns import Arrival
from activedb.columns.events._bytes import events_of_bytes, events_to_bytes
from activedb.columns.events._events import ColumnEvents

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.decimals(allow_nan=False),
    st.lists(st.integers(), max_size=2),
)
TIMES = st.one_of(
    st.integers(-(10**9), 10**9),
    st.floats(0, 10**9),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(
        lambda when: when.replace(tzinfo=timezone(timedelta(hours=1)))
    ),
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(
        lambda when: when.replace(tzinfo=UTC, fold=0)
    ),
)
PARAMS = st.one_of(
    st.dictionaries(st.sampled_from(["a", "b", ""]), VALUES),
    st.fixed_dictionaries({"n": st.integers(0, 300)}),
    st.fixed_dictionaries({"x": st.floats(0, 1)}),
)
ARRIVALS = st.lists(
    st.builds(
        lambda name, when, params, id_, batch: (adb.Occurrence(name, when, params, id=id_), batch),
        st.sampled_from("AB"),
        TIMES,
        PARAMS,
        st.one_of(st.none(), st.text(max_size=1)),
        st.integers(0, 2**40),
    ),
    max_size=12,
).map(lambda drawn: [Arrival(o, batch, n) for n, (o, batch) in enumerate(drawn)])


def shown(arrivals: list[Arrival]) -> list[str]:
    """All that there is to each."""
    found = []
    for arrival in arrivals:
        o = arrival.occurrence
        params = [f"{name!r}: {o.params[name]!r}" for name in sorted(o.params)]
        place = (arrival.batch_id, arrival.position)
        found.append(str((place, o.name, o.timestamp, o.us, o.id, params)))
    return sorted(found)


@pytest.mark.long
@given(ARRIVALS, ARRIVALS)
@settings(max_examples=60, deadline=None)
def test_events_in_columns_are_what_they_were(first: list[Arrival], second: list[Arrival]) -> None:
    parts = []
    for arrivals in (first, second):
        events, rest = ColumnEvents.of_arrivals(arrivals)
        assert rest == []
        parts.append(events_of_bytes(events_to_bytes(events)))
    joined = ColumnEvents.joined(parts)
    assert shown(joined.arrivals()) == shown([*first, *second])
    assert [a.order for a in joined.in_order().arrivals()] == sorted(
        a.order for a in [*first, *second]
    )


def test_values_beyond_columns_are_kept_as_they_are() -> None:
    values = [2**70, Decimal("1.50"), [1, None], None, True, 1, 1.0, "é\0"]
    arrivals = [
        Arrival(adb.Occurrence("A", n, {"v": value}), 0, n) for n, value in enumerate(values)
    ]
    events, _ = ColumnEvents.of_arrivals(arrivals)
    kept = [a.occurrence.params["v"] for a in events_of_bytes(events_to_bytes(events)).arrivals()]
    assert list(map(repr, kept)) == list(map(repr, values))
