"""Stable events, against the definition over all that will ever have happened."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.errors import BadEvent
from activedb.events import (
    AccuracyInterval,
    Node,
    Occurrence,
    Producers,
    Stabilizer,
    occurrence,
    precedes,
)

from .polist import POList
from .simulation import Arrival, Happening, World, deliver, run
from .test_nodes import Script
from .test_producers import A, B, event, stamp

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))

worlds = st.builds(
    World,
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 4),
    events=st.integers(1, 40),
    gap_us=st.sampled_from([1, 1000, 50_000]),
    error_us=st.sampled_from([0, 1000, 50_000]),
    drift_rate=st.sampled_from([1e-6, 1e-2]),
    detection_delay_us=st.sampled_from([0, 800]),
    resync_s=st.sampled_from([None, 0.1]),
)


def place(o: Occurrence) -> tuple[int, int]:
    return o.high_us, o.low_us


def registered(happenings: list[Happening]) -> Producers:
    producers = Producers()
    for name in sorted({h.stamp.node or "" for h in happenings}):
        producers.register(name)
    return producers


def tell(stabilizer: Stabilizer, arrival: Arrival) -> None:
    if arrival.event is None:
        stabilizer.heartbeat(arrival.stamp)
    else:
        stabilizer.add(arrival.event)


@pytest.mark.long
@settings(max_examples=400 * SCALE, deadline=None)
@given(worlds, st.floats(0, 0.9))
def test_stable_events_are_those_that_nothing_to_come_can_precede_or_overlap(
    world: World, beats: float
) -> None:
    happenings = run(world)
    draw = random.Random(world.seed)
    arrivals = deliver(happenings, draw, beats=beats)
    producers = registered(happenings)
    stabilizer = Stabilizer(producers)
    history: list[Occurrence] = []
    points = dict.fromkeys(producers, Producers.NOT_YET_US)
    taken: list[Occurrence] = []
    for number, arrival in enumerate(arrivals):
        tell(stabilizer, arrival)
        if arrival.event is not None:
            history.append(arrival.event)
        points[arrival.producer] = max(points[arrival.producer], arrival.stamp.lower_us)
        if draw.random() < 0.5:
            continue
        fresh = stabilizer.take_stable()
        # By the definition, over all that has arrived: no more, no less.
        sync_us = min(points.values())
        stable = [o for o in history if o.high_us < sync_us]
        assert set(fresh) == set(stable) - set(taken)
        taken += fresh
        assert [place(o) for o in taken] == sorted(place(o) for o in stable)
        # And by what it is for, over all that will arrive.
        for later in arrivals[number + 1 :]:
            if later.event is not None:
                assert all(o.high_us < later.event.low_us for o in taken)
        waiting = [o for o in history if o not in taken]
        assert len(stabilizer) == len(waiting)
        for x in history:
            overlapping = [
                o for o in waiting if o is not x and o.low_us <= x.high_us and o.high_us >= x.low_us
            ]
            found = stabilizer.contemporaries(x)
            assert set(found) == set(overlapping)
            assert [o.low_us for o in found] == sorted(o.low_us for o in found)
    assert stabilizer.take_late() == []
    for name in producers:
        producers.sync(name, Producers.NEVER_US)
    taken += stabilizer.take_stable()
    assert [place(o) for o in taken] == sorted(place(o) for o in history)
    assert set(taken) == set(history)
    assert len(stabilizer) == 0


def test_stable_events_come_with_heartbeats_alone() -> None:
    happenings = run(World(seed=2, events=60))
    arrivals = deliver(happenings, random.Random(2), beats=0.2)
    producers = registered(happenings)
    stabilizer = Stabilizer(producers)
    for arrival in arrivals:
        tell(stabilizer, arrival)
    before = len(stabilizer)
    assert before > 0
    end_us = max(h.stamp.upper_us for h in happenings)
    for name in producers:
        stabilizer.heartbeat(stamp(name, end_us + 1, end_us + 2))
    assert len(stabilizer.take_stable()) > 0
    assert len(stabilizer) == 0


def oldest(events: list[Occurrence]) -> set[Occurrence]:
    """The definition of section V, literally."""
    return {e for e in events if not any(precedes(other, e) for other in events)}


def oldest_following(events: list[Occurrence], firsts: list[Occurrence]) -> set[Occurrence]:
    first = min(firsts, key=lambda f: f.low_us)
    following = [e for e in events if e is not first and not precedes(e, first)]
    return oldest(following)


@pytest.mark.long
@settings(max_examples=400 * SCALE, deadline=None)
@given(worlds, st.booleans())
def test_stable_oldest_sets_are_those_of_the_whole_history(world: World, is_local: bool) -> None:
    happenings = run(world)
    if not is_local:
        happenings = [
            replace(h, stamp=replace(h.stamp, local_us=None, local_clock=None)) for h in happenings
        ]
    arrivals = deliver(happenings, random.Random(world.seed))
    producers = registered(happenings)
    lists = {key: POList(producers, [key]) for key in (A, B)}
    arrived: dict[tuple[str, str], list[Occurrence]] = {A: [], B: []}
    whole: dict[tuple[str, str], list[Occurrence]] = {A: [], B: []}
    for arrival in arrivals:
        if arrival.event is not None:
            whole[arrival.event.key].append(arrival.event)
    for arrival in arrivals:
        o = arrival.event
        if o is None:
            producers.heartbeat(arrival.stamp)
        else:
            producers.observe(o)
            lists[o.key].add(o)
            arrived[o.key].append(o)
        for key, polist in lists.items():
            assert list(polist) == arrived[key]
            found = polist.oldest()
            assert set(found) == oldest(arrived[key])
            if polist.is_stable(found):
                assert set(found) == oldest(whole[key])
            newest = {
                e for e in arrived[key] if not any(precedes(e, other) for other in arrived[key])
            }
            assert set(polist.newest()) == newest
        candidates = lists[A].oldest()
        if candidates:
            following = lists[B].oldest_following(candidates)
            assert set(following) == oldest_following(arrived[B], candidates)
            if lists[B].is_stable(following):
                assert set(following) == oldest_following(whole[B], candidates)
    assert not lists[A].is_stable([])


def test_stable_oldest_set_is_found_sooner_by_the_local_clock_of_a_single_producer() -> None:
    """Section V: with one producer of a type there is no need to relate to reference time."""
    happenings = run(World(seed=4, nodes=1, events=30, gap_us=1000, error_us=10**6))
    producers = registered(happenings)
    polist = POList(producers)
    o = Occurrence("A", happenings[0].stamp)
    polist.add(o)
    producers.observe(o)
    assert not polist.is_stable(polist.oldest())
    for happening in happenings[1:]:
        producers.heartbeat(happening.stamp)
        if polist.is_stable(polist.oldest()):
            break
    assert polist.is_stable(polist.oldest())
    assert producers.sync_us() < o.high_us  # reference time could not tell yet


def test_polist_of_the_papers_figure_3_is_stable_when_the_paper_says_so() -> None:
    producers = Producers()
    producers.register("PA", [A])
    producers.register("P1B", [B])
    producers.register("P2B", [B])
    a_list, b_list = POList(producers, [A]), POList(producers, [B])

    def arrive(o: Occurrence) -> None:
        producers.observe(o)
        (a_list if o.key == A else b_list).add(o)

    a0 = event("PA", 10, 20)
    b10 = event("P1B", 30, 40, name="B")
    arrive(a0)
    arrive(b10)  # t1: a tentative composite, but another A may be on its way
    assert not a_list.is_stable(a_list.oldest())
    arrive(event("PA", 50, 60))  # t2: a0 is the oldest for sure
    assert a_list.oldest() == [a0]
    assert a_list.is_stable([a0])
    assert not b_list.is_stable(b_list.oldest())
    b20 = event("P2B", 35, 45, name="B")
    arrive(b20)
    arrive(event("P1B", 70, 80, name="B"))
    assert not b_list.is_stable(b_list.oldest())  # P2B's sync point is at 35 still
    arrive(event("P2B", 75, 85, name="B"))  # t3
    assert b_list.oldest() == [b10, b20]  # two: their order is uncertain
    assert b_list.is_stable(b_list.oldest())
    assert b_list.oldest_following([a0]) == [b10, b20]


def test_polist_with_an_event_removed_has_others_as_its_oldest() -> None:
    polist = POList(Producers())
    first, second = (occurrence("A", timestamp=at) for at in (1, 2))
    polist.add(second)
    polist.add(first)
    assert (polist.oldest(), polist.newest(), len(polist)) == ([first], [second], 2)
    polist.remove(first)
    assert polist.oldest() == polist.newest() == [second]
    with pytest.raises(KeyError):
        polist.remove(first)
    polist.remove(second)
    assert polist.oldest() == polist.newest() == []


def test_oldest_following_leaves_out_what_is_exactly_at_the_same_time() -> None:
    polist = POList(Producers())
    before, tie, after = (occurrence("B", timestamp=at) for at in (1, 2, 3))
    for o in (before, tie, after):
        polist.add(o)
    assert polist.oldest_following([occurrence("A", timestamp=2)]) == [after]
    assert polist.oldest_following([tie]) == [after]
    uncertain = Occurrence("A", AccuracyInterval(2_000_000, 1_500_000, 2_500_000))
    assert polist.oldest_following([uncertain]) == [tie]


def test_exact_event_is_stable_once_its_own_producer_is_past_it_too() -> None:
    producers = Producers()
    producers.register("p")
    stabilizer = Stabilizer(producers)
    first, tie, later = (
        occurrence("A", timestamp=at, id=i) for at, i in ((1, "b"), (1, "a"), (2, "c"))
    )
    stabilizer.add(first, "p")
    stabilizer.add(tie, "p")
    assert stabilizer.take_stable() == []  # another may be at the same time
    stabilizer.add(later, "p")
    assert stabilizer.take_stable() == [tie, first]
    assert stabilizer.stable_us == 2_000_000
    assert stabilizer.contemporaries(later) == []
    assert stabilizer.contemporaries(first) == []


def test_events_of_a_stream_in_any_order_are_stable_and_sorted_at_its_punctuation() -> None:
    producers = Producers()
    producers.register("stream", in_order=False)
    stabilizer = Stabilizer(producers)
    times = [5, 1, 9, 3, 7, 1]
    events = [occurrence("A", timestamp=at) for at in times]
    for o in events:
        stabilizer.add(o, "stream")
    assert stabilizer.take_stable() == []
    stabilizer.sync("stream", 7_000_000)
    assert [o.timestamp for o in stabilizer.take_stable()] == [1, 1, 3, 5]
    late = occurrence("A", timestamp=6)
    stabilizer.add(late, "stream")
    assert stabilizer.take_stable() == []
    assert stabilizer.take_late() == [late]
    assert stabilizer.take_late() == []
    assert stabilizer.late_count == 1
    stabilizer.sync("stream", Producers.NEVER_US)
    assert [o.timestamp for o in stabilizer.take_stable()] == [7, 9]


def test_late_joiner_under_weak_membership_is_reported_not_dropped() -> None:
    producers = Producers("weak")
    stabilizer = Stabilizer(producers, [A])
    stabilizer.add(event("p", 10, 20))
    stabilizer.add(event("p", 50, 60))
    [x] = stabilizer.take_stable()
    before = event("q", 5, 8)
    overlapping = event("q", 15, 30)
    still_good = event("q", 50, 55)
    for o in (before, overlapping, still_good):
        stabilizer.add(o)
    assert stabilizer.take_late() == [before, overlapping]
    assert stabilizer.late_count == 2
    assert stabilizer.contemporaries(x) == []
    # From now on q counts.
    stabilizer.add(event("p", 100, 110))
    assert stabilizer.take_stable() == []
    stabilizer.add(event("q", 90, 91))
    assert [place(o) for o in stabilizer.take_stable()] == [(55, 50), (60, 50)]


@settings(max_examples=400 * SCALE, deadline=None)
@given(worlds)
def test_late_joiners_under_weak_membership_are_either_in_order_or_reported(world: World) -> None:
    arrivals = deliver(run(world), random.Random(world.seed), beats=0.1)
    stabilizer = Stabilizer(Producers("weak"))
    taken: list[Occurrence] = []
    for arrival in arrivals:
        tell(stabilizer, arrival)
        taken += stabilizer.take_stable()
    for name in stabilizer.producers:
        stabilizer.sync(name, Producers.NEVER_US)
    taken += stabilizer.take_stable()
    late = stabilizer.take_late()
    sent = {arrival.event for arrival in arrivals if arrival.event is not None}
    assert set(taken) | set(late) == sent
    assert len(taken) + len(late) == len(sent)
    assert [place(o) for o in taken] == sorted(place(o) for o in taken)


def test_weak_membership_is_late_where_atomic_membership_is_not() -> None:
    happenings = run(World(seed=8, nodes=3, events=60))
    arrivals = deliver(happenings, random.Random(8))
    counts = {}
    for membership, producers in (
        ("atomic", registered(happenings)),
        ("weak", Producers("weak")),
    ):
        stabilizer = Stabilizer(producers)
        for arrival in arrivals:
            tell(stabilizer, arrival)
            stabilizer.take_stable()
        counts[membership] = stabilizer.late_count
    assert counts["atomic"] == 0
    assert counts["weak"] > 0


def test_joiner_under_atomic_membership_that_begins_where_it_is_told_is_never_late() -> None:
    producers = Producers()
    producers.register("p")
    stabilizer = Stabilizer(producers)
    stabilizer.add(event("p", 100, 110))
    stabilizer.add(event("p", 200, 210))
    assert len(stabilizer.take_stable()) == 1
    # Its clock is so bad that without being told its event would reach back before 100.
    rough = Script((220, 500), (230, 500))
    node = Node("q", rough)
    node.begin_after(producers.register("q"))
    stabilizer.add(Occurrence("A", node.stamp()))
    assert stabilizer.late_count == 0
    untold = Node("q", Script((220, 500)))
    assert untold.stamp().lower_us < stabilizer.stable_us
    assert stabilizer.take_stable() == []
    stabilizer.add(event("p", 900, 910))
    assert stabilizer.take_stable() == []  # q counts: its next event may be at 200 still
    stabilizer.producers.remove("q")
    assert [place(o) for o in stabilizer.take_stable()] == [(210, 200), (720, 200)]


def test_growing_synchronisation_distance_makes_no_event_of_a_node_late() -> None:
    """Section V, footnote 1."""
    readings = ((1000, 10), (1100, 10), (1200, 900), (1300, 900), (5000, 10), (6000, 10))
    node = Node("p", Script(*readings))
    producers = Producers()
    producers.register("p")
    stabilizer = Stabilizer(producers)
    taken = []
    for _ in readings:
        stabilizer.add(Occurrence("A", node.stamp()))
        taken += stabilizer.take_stable()
    assert stabilizer.late_count == 0
    assert len(taken) == 5
    # Stamped as the paper writes it down, the third would reach back to 300, which is stable.
    raw = Stabilizer(Producers("weak"))
    for reading_us, error_us in readings:
        raw.add(event("p", reading_us - error_us, reading_us + error_us))
        raw.take_stable()
    assert raw.late_count == 2


def test_event_refused_leaves_everything_as_it_was() -> None:
    producers = Producers()
    producers.register("p", [A])
    stabilizer = Stabilizer(producers, [A])
    for refused, match in (
        (event("p", 5, 6, name="B"), "not among the event types"),
        (event("q", 5, 6), "not registered"),
        (occurrence("A", timestamp=1), "does not name its producer"),
    ):
        with pytest.raises(BadEvent, match=match):
            stabilizer.add(refused)
    assert (len(stabilizer), producers.sync_us()) == (0, Producers.NOT_YET_US)


def test_events_whose_producers_are_all_removed_are_stable() -> None:
    producers = Producers()
    producers.register("p")
    producers.register("q")
    stabilizer = Stabilizer(producers)
    stabilizer.add(event("p", 5, 60))
    stabilizer.add(event("p", 7, 30))
    assert stabilizer.take_stable() == []
    producers.remove("q")
    assert stabilizer.take_stable() == []
    producers.remove("p")
    assert [place(o) for o in stabilizer.take_stable()] == [(30, 7), (60, 5)]
    # Only what there was is declared stable: who joins may send what happened after that.
    assert stabilizer.stable_us == 61
    assert stabilizer.take_stable() == []
    assert producers.register("r") == 61


def test_stabilizers_that_share_producers_wait_for_their_own_types_only() -> None:
    producers = Producers()
    producers.register("p", [A])
    producers.register("q", [B])
    only_a, both = Stabilizer(producers, [A]), Stabilizer(producers, [A, B])
    x = event("p", 5, 6)
    for stabilizer in (only_a, both):
        stabilizer.add(x)
    producers.heartbeat(stamp("p", 8, 9))
    assert only_a.take_stable() == [x]
    assert both.take_stable() == []
    producers.heartbeat(stamp("q", 7, 8))
    assert both.take_stable() == [x]
    assert (only_a.stable_us, both.stable_us, producers.stable_us) == (8, 7, 8)
    # What is stable elsewhere makes nothing late here.
    new = Stabilizer(producers, [B])
    new.add(event("q", 7, 9, name="B"))
    assert (new.stable_us, new.late_count, len(new)) == (Producers.NOT_YET_US, 0, 1)
