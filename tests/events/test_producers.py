"""Producers: membership, sync points, silence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

import json
from typing import Any

import pytest

from activedb.clock import ClockStatus
from activedb.errors import BadEvent, ConfigurationError, ProducerSilent
from activedb.events import AccuracyInterval, LocalClock, Occurrence, Producers

A, B = ("event", "A"), ("event", "B")
BOOT = LocalClock("boot-1", 10, 0, 1, 0)  # readings more than 11 µs apart are in order


def stamp(
    node: str, lower_us: int, upper_us: int, local_us: int | None = None, clock: LocalClock = BOOT
) -> AccuracyInterval:
    return AccuracyInterval(
        lower_us,
        lower_us,
        upper_us,
        ClockStatus.FIXED,
        node,
        local_us,
        None if local_us is None else clock,
    )


def event(
    node: str,
    lower_us: int,
    upper_us: int,
    local_us: int | None = None,
    *,
    name: str = "A",
    clock: LocalClock = BOOT,
) -> Occurrence:
    return Occurrence(name, stamp(node, lower_us, upper_us, local_us, clock))


def test_sync_point_is_that_of_the_slowest_producer_of_the_types() -> None:
    producers = Producers()
    producers.register("p", [A])
    producers.register("q", [B])
    producers.register("r")  # may send anything
    assert producers.sync_us() == Producers.NOT_YET_US
    producers.observe(event("p", 5, 9))
    producers.observe(event("q", 7, 8, name="B"))
    assert producers.sync_us([A]) == Producers.NOT_YET_US
    producers.heartbeat(stamp("r", 6, 7))
    assert (producers.sync_us([A]), producers.sync_us([B]), producers.sync_us()) == (5, 6, 5)
    assert (producers.of([A]), producers.of([B]), producers.of()) == (
        ("p", "r"),
        ("q", "r"),
        ("p", "q", "r"),
    )
    assert list(producers) == ["p", "q", "r"]
    assert len(producers) == 3
    assert "p" in producers


def test_sync_point_of_nobody_is_never() -> None:
    assert Producers().sync_us() == Producers.NEVER_US
    producers = Producers()
    producers.register("p", [A])
    assert producers.sync_us([B]) == Producers.NEVER_US


def test_sync_point_never_goes_back() -> None:
    producers = Producers()
    producers.register("p")
    producers.observe(event("p", 50, 60, 1000))
    assert (producers.sync_us(), producers.local_sync_us("p")) == (50, 989)
    producers.observe(event("p", 40, 90, 995))  # its synchronisation distance has grown
    assert (producers.sync_us(), producers.local_sync_us("p")) == (50, 989)
    producers.heartbeat(stamp("p", 45, 46, 990))
    producers.sync("p", 49)
    assert (producers.sync_us(), producers.local_sync_us("p")) == (50, 989)
    producers.sync("p", 51)
    producers.heartbeat(stamp("p", 50, 99, 1020))
    assert (producers.sync_us(), producers.local_sync_us("p")) == (51, 1009)


def test_sync_point_of_a_producer_in_any_order_is_moved_by_punctuation_only() -> None:
    producers = Producers()
    producers.register("stream", in_order=False)
    producers.observe(Occurrence("A", 7), "stream")
    producers.observe(Occurrence("A", 3), "stream")
    assert producers.sync_us() == Producers.NOT_YET_US
    producers.sync("stream", 5_000_000)
    assert producers.sync_us() == 5_000_000
    producers.sync("stream", Producers.NEVER_US)
    assert producers.sync_us() == Producers.NEVER_US


def test_event_is_past_once_all_others_can_only_follow_it() -> None:
    producers = Producers()
    producers.register("p", [A])
    producers.register("q", [A, B])
    x = event("p", 0, 100, 1000)
    producers.observe(x)
    producers.sync("q", 101)
    assert not producers.is_past(x)
    producers.heartbeat(stamp("p", 20, 120, 1011))
    assert not producers.is_past(x)
    producers.heartbeat(stamp("p", 21, 121, 1012))  # 12 µs later: locally past, globally not
    assert producers.sync_us() == 21
    assert producers.is_past(x)
    # The local clock of p says nothing of events of q, nor of others' readings.
    y = event("q", 0, 100, 1000, name="B")
    assert producers.is_past(y, [B])
    assert not producers.is_past(y, [A])
    assert not producers.is_past(event("p", 0, 100, 1000, clock=LocalClock("boot-2", 10, 0, 1)))
    assert not producers.is_past(Occurrence("A", 50e-6))
    # An event may still begin at a sync point, and so overlap one that ends there.
    assert producers.is_past(Occurrence("B", 100e-6), [B])
    assert not producers.is_past(Occurrence("B", 101e-6), [B])
    composite = Occurrence("Q", stamp("p", 0, 100, 1000), parts={"A": x})
    assert not producers.is_past(composite)


def test_event_of_an_unregistered_producer_is_refused_if_membership_is_atomic() -> None:
    producers = Producers("atomic")
    producers.register("p", [A])
    with pytest.raises(BadEvent, match=r"event 'A' is of producer 'q', which is not registered"):
        producers.observe(event("q", 1, 2))
    with pytest.raises(BadEvent, match="a heartbeat is of producer 'q'"):
        producers.heartbeat(stamp("q", 1, 2))
    with pytest.raises(BadEvent, match="a sync point is of producer 'q'"):
        producers.sync("q", 5)
    with pytest.raises(BadEvent, match=r"'p' is not registered for \('event', 'B'\)"):
        producers.observe(event("p", 1, 2, name="B"))
    assert list(producers) == ["p"]
    assert producers.sync_us() == Producers.NOT_YET_US


def test_event_that_does_not_tell_its_producer_is_refused() -> None:
    for membership in ("atomic", "weak"):
        producers = Producers(membership)
        with pytest.raises(BadEvent, match="event 'A' does not name its producer"):
            producers.observe(Occurrence("A", 1))


def test_producer_started_anew_is_refused_until_it_is_registered_again() -> None:
    producers = Producers("atomic")
    producers.register("p")
    producers.observe(event("p", 10, 20, 1000))
    anew = event("p", 30, 40, 5, clock=LocalClock("boot-2", 10, 0, 1))
    with pytest.raises(BadEvent, match="'p' has another local clock than before"):
        producers.observe(anew)
    assert producers.sync_us() == 10
    producers.observe(event("p", 12, 22))  # without a local reading there is nothing to compare
    producers.remove("p")
    producers.register("p")
    producers.observe(anew)
    assert (producers.sync_us(), producers.local_sync_us("p")) == (30, -6)


def test_producer_started_anew_has_its_local_sync_point_anew_if_membership_is_weak() -> None:
    producers = Producers("weak")
    producers.observe(event("p", 10, 20, 1000))
    producers.observe(event("p", 30, 40, 5, clock=LocalClock("boot-2", 10, 0, 1)))
    assert producers.local_sync_us("p") == -6
    assert producers.local_sync_us("nobody") == Producers.NOT_YET_US


def test_producer_is_discovered_by_its_first_event_of_a_type_if_membership_is_weak() -> None:
    producers = Producers("weak")
    producers.observe(event("p", 10, 20))
    assert (producers.of([A]), producers.of([B])) == (("p",), ())
    assert (producers.sync_us([A]), producers.sync_us([B])) == (10, Producers.NEVER_US)
    producers.observe(event("p", 30, 40, name="B"))
    assert producers.of([B]) == ("p",)
    producers.heartbeat(stamp("q", 1, 2))
    assert "q" in producers
    assert producers.of([A]) == ("p",)


def test_producer_registered_twice_or_removed_twice_is_refused() -> None:
    producers = Producers()
    producers.register("p")
    with pytest.raises(ConfigurationError, match="'p' is registered already"):
        producers.register("p")
    producers.remove("p")
    with pytest.raises(ConfigurationError, match="no producer 'p' to remove; registered are none"):
        producers.remove("p")


@pytest.mark.parametrize(
    "build",
    [
        lambda: Producers("strong"),  # type: ignore[arg-type]  # the mistake under test
        lambda: Producers(silent_after_us=-1),
        lambda: Producers().register("p", silent_after_us=-1),
    ],
)
def test_producers_with_a_parameter_without_meaning_are_refused(build: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"membership is|silent_after_us is"):
        build()


def test_producer_that_joins_later_starts_where_all_is_stable() -> None:
    producers = Producers()
    assert producers.register("p") == Producers.NOT_YET_US
    producers.note_stable(70)
    producers.note_stable(60)
    assert producers.stable_us == 70
    assert producers.register("q") == 70
    producers.sync("p", 90)
    assert producers.sync_us() == 70


def test_silent_producer_is_told_once_until_it_is_heard_again() -> None:
    told: list[tuple[str, str]] = []
    producers = Producers(
        silent_after_us=100, on_silent=lambda error: told.append((error.producer, str(error)))
    )
    producers.register("p")
    producers.register("patient", silent_after_us=1000)
    assert producers.timeouts(0) == []
    assert producers.timeouts(100) == []
    assert producers.timeouts(101) == ["p"]
    assert producers.timeouts(102) == []
    for _ in range(2):
        assert producers.timeouts(202) == []
        producers.restore(producers.records())
    assert producers.silent_from_us() == 1001
    beats: tuple[Callable[[], object], ...] = (
        lambda: producers.observe(event("p", 1, 2)),
        lambda: producers.heartbeat(stamp("p", 1, 2)),
        lambda: producers.sync("p", 2),
    )
    for beat_us, beat in enumerate(beats, start=203):
        beat()
        assert producers.timeouts(beat_us) == []
        assert producers.silent_from_us() == beat_us + 101
    assert producers.timeouts(305) == []
    assert producers.timeouts(306) == ["p"]
    producers.remove("p")
    assert producers.timeouts(1000) == []
    assert producers.timeouts(1001) == ["patient"]
    assert [name for name, _ in told] == ["p", "p", "patient"]
    assert "'p' has been silent for 101 µs, and may be for 100" in told[0][1]


def test_silent_producers_without_a_callback_are_raised_one_by_one() -> None:
    producers = Producers(silent_after_us=10)
    producers.register("p")
    producers.register("q")
    assert producers.timeouts(0) == []
    found = set()
    for now_us in (20, 40):  # at each look both are silent: neither hides the other
        with pytest.raises(ProducerSilent) as caught:
            producers.timeouts(now_us)
        found.add(caught.value.producer)
    assert found == {"p", "q"}
    assert producers.timeouts(60) == []


def test_producer_that_may_be_silent_for_ever_never_is() -> None:
    producers = Producers()
    producers.register("p")
    assert producers.timeouts(0) == []
    assert producers.timeouts(10**18) == []


def test_silent_producer_removed_by_the_callback_is_gone() -> None:
    producers = Producers(silent_after_us=10, on_silent=lambda e: producers.remove(e.producer))
    producers.register("p")
    producers.register("q")
    producers.sync("q", 7)
    producers.timeouts(0)
    producers.heartbeat(stamp("q", 8, 9))
    assert producers.timeouts(11) == ["p"]
    assert list(producers) == ["q"]
    assert producers.sync_us() == 8


def test_restored_producers_are_those_that_were_recorded() -> None:
    producers = Producers(silent_after_us=10)
    producers.register("p", [A], silent_after_us=7)
    producers.register("q", in_order=False)
    producers.observe(event("p", 5, 9, 100))
    producers.sync("q", Producers.NEVER_US)
    records = json.loads(json.dumps(producers.records()))
    again = Producers()
    again.restore(records)
    assert again.records() == producers.records()
    assert (list(again), again.sync_us(), again.local_sync_us("p")) == (["p", "q"], 5, 89)
    with pytest.raises(BadEvent, match="not registered for"):
        again.observe(event("p", 20, 30, name="B"))
    with pytest.raises(BadEvent, match="was restarted"):
        again.observe(event("p", 20, 30, 200, clock=LocalClock("boot-2")))
    again.observe(event("q", 1, 2))
    assert again.sync_us() == 5


def test_restore_goes_back_to_sync_points_and_keeps_who_was_heard() -> None:
    producers = Producers("weak", silent_after_us=10)
    producers.observe(event("p", 5, 9))
    producers.note_time(0)
    before = producers.records()
    producers.observe(event("p", 50, 60))
    producers.observe(event("q", 50, 60))
    producers.note_time(8)
    producers.restore(before)
    assert (list(producers), producers.sync_us()) == (["p"], 5)
    assert producers.timeouts(18) == []
    producers.note_heard("p")
    producers.note_heard("nobody")
    assert producers.timeouts(30) == []
    with pytest.raises(ProducerSilent, match="silent for 11"):
        producers.timeouts(41)
