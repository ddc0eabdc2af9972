"""The event-time buffer against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activedb.columns import Arrival
from activedb.events import AccuracyInterval, LocalClock, Occurrence
from activedb.streams import EventTimeBuffer

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


def test_first_of_intervals_is_what_the_punctuation_has_passed_with_all_before() -> None:
    """The wide one is not stable, so what begins after it waits; what overlaps is told."""
    buffer = EventTimeBuffer()
    ends = [(0, 5), (2, 50), (10, 12), (20, 60), (70, 80)]
    buffer.add(
        Arrival(Occurrence("E", AccuracyInterval(low, low, high)), 0, position)
        for position, (low, high) in enumerate(ends)
    )

    def taken(punctuation_us: int | None, count_max: int) -> tuple[list[int], int | None]:
        first, following = buffer.first(punctuation_us, count_max)
        return [a.position for a in first], following

    assert taken(50, 9) == ([0], None)
    assert taken(51, 9) == ([0, 1, 2], None)
    assert taken(None, 2) == ([0, 1, 2], 60), "what ends before 50 stays with the one that does"
    assert taken(60, 9) == ([0, 1, 2], None)
    assert (buffer.passed(51), buffer.passed(None)) == (3, 0)
    assert [o.low_us for o in buffer.overlapping(1)] == [10, 20]
    assert buffer.overlapping(4) == []
    assert (buffer.lowest_us(3), buffer.lowest_us(5), buffer.newest_us()) == (20, None, 80)


def test_events_of_one_node_with_equal_lower_ends_are_in_the_order_of_the_local_clock() -> None:
    clock = LocalClock("boot")

    def stamped(reading_us: int, high_us: int, local_us: int) -> Arrival:
        stamp = AccuracyInterval(
            reading_us, 0, high_us, node="p", local_us=local_us, local_clock=clock
        )
        return Arrival(Occurrence("E", stamp), 0, local_us)

    buffer = EventTimeBuffer()
    buffer.add([stamped(10, 20, 300), stamped(30, 90, 100), stamped(20, 40, 200)])
    assert [a.position for a in buffer.first(None, 9)[0]] == [100, 200, 300]
