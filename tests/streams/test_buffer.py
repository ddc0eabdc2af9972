"""The event-time buffer against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activedb.events import Occurrence
from activedb.streams import Arrival, EventTimeBuffer

TIMES = st.integers(0, 12)


def arrival(us: int, position: int, id: str | None = None) -> Arrival:
    return Arrival(Occurrence("E", us / 1_000_000, id=id), 0, position)


def times(arrivals: list[Arrival]) -> list[int]:
    return [a.occurrence.us for a in arrivals]


def test_first_orders_by_time_then_id_then_arrival() -> None:
    buffer = EventTimeBuffer()
    buffer.add([arrival(5, 0, "b"), arrival(5, 1, "a"), arrival(3, 2), arrival(5, 3, "a")])
    first, following = buffer.first(9, 10)
    assert [a.position for a in first] == [2, 1, 3, 0]
    assert following is None


def test_first_before_the_punctuation_only() -> None:
    buffer = EventTimeBuffer()
    buffer.add([arrival(us, us) for us in (1, 2, 3)])
    assert times(buffer.first(3, 10)[0]) == [1, 2]
    assert times(buffer.first(1, 10)[0]) == []
    assert times(buffer.first(None, 10)[0]) == [1, 2, 3]
    assert buffer.newest_us() == 3


@given(
    st.lists(st.lists(TIMES, max_size=8), max_size=6),
    st.one_of(st.none(), TIMES),
    st.integers(1, 5),
)
def test_first_taken_again_and_again_gives_everything_in_order(
    groups: list[list[int]], punctuation_us: int | None, count_max: int
) -> None:
    buffer = EventTimeBuffer()
    position = 0
    for group in groups:
        for us in group:
            buffer.add([arrival(us, position)])
            position += 1
    everything = sorted(us for group in groups for us in group)
    passed = [us for us in everything if punctuation_us is None or us < punctuation_us]
    taken: list[int] = []
    while True:
        first, following = buffer.first(punctuation_us, count_max)
        buffer.remove_first(len(first))
        taken += times(first)
        assert len(buffer) == len(everything) - len(taken)
        if following is None:
            break
        assert len(first) >= count_max
        assert first[-1].occurrence.us < following, "events of one time stay together"
    assert taken == passed
