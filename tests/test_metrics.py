from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.metrics import _BASE, Histogram, NamedCounters

durations_s = st.floats(min_value=1e-9, max_value=1e6)
fractions = st.floats(min_value=0, max_value=1)


@given(st.lists(durations_s, min_size=1), fractions)
def test_histogram_quantile_is_within_one_percent_of_the_exact_one(
    recorded_s: list[float], q: float
) -> None:
    histogram = Histogram()
    for seconds in recorded_s:
        histogram.record(seconds)
    exact_s = sorted(recorded_s)[max(1, math.ceil(q * len(recorded_s))) - 1]
    assert histogram.quantile(q) == pytest.approx(exact_s, rel=0.01)
    assert histogram.count == len(recorded_s)
    assert histogram.total == pytest.approx(math.fsum(recorded_s))


@given(st.integers(min_value=-1000, max_value=650), st.sampled_from([-math.inf, 0, math.inf]))
def test_histogram_at_the_bound_of_a_bucket_is_within_one_percent(power: int, side: float) -> None:
    seconds = math.nextafter(_BASE**power, side)
    histogram = Histogram()
    for other in (1e-12, seconds, 1e12):  # or the exact extremes would be the answer
        histogram.record(other)
    assert histogram.quantile(0.5) == pytest.approx(seconds, rel=0.01)


def test_histogram_extreme_durations_are_kept_apart_from_the_rest() -> None:
    histogram = Histogram()
    for seconds in (0.0, 1.0, 1e30):
        histogram.record(seconds)
    assert histogram.quantile(0) == 0.0
    assert histogram.quantile(0.5) == pytest.approx(1.0, rel=0.01)
    assert histogram.quantile(1) >= 0.99e6


def test_histogram_with_nothing_recorded_reads_zero() -> None:
    histogram = Histogram()
    assert (histogram.quantile(0.99), histogram.count, histogram.total) == (0.0, 0, 0.0)


@given(st.lists(durations_s), st.lists(durations_s, min_size=1, unique=True))
def test_histogram_distribution_counts_what_is_no_longer_than_each_bound(
    recorded_s: list[float], bounds_s: list[float]
) -> None:
    histogram = Histogram()
    for seconds in recorded_s:
        histogram.record(seconds)
    bounds_s.sort()
    found = histogram.distribution(bounds_s)
    for bound, count in zip(bounds_s, found.at_most, strict=True):
        at_least = sum(seconds <= bound for seconds in recorded_s)
        assert at_least <= count <= sum(seconds <= bound * 1.0205 for seconds in recorded_s)
    assert list(found.at_most) == sorted(found.at_most)
    assert (found.count, found.total_s) == (histogram.count, histogram.total)


def test_histogram_distribution_has_what_is_too_short_and_too_long_for_a_bucket() -> None:
    histogram = Histogram()
    for seconds in (0.0, 1e-12, 1.0, 1e30):
        histogram.record(seconds)
    assert histogram.distribution([1e-10, 1e-9, 2.0, 1e7]).at_most == (2, 2, 3, 4)
    assert histogram.distribution([]).at_most == ()


@pytest.mark.parametrize("bounds_s", [[2.0, 1.0], [1.0, 1.0], [0.0], [-1.0, 1.0], [math.nan]])
def test_histogram_asked_for_bounds_that_do_not_rise_refuses_them(bounds_s: list[float]) -> None:
    with pytest.raises(ValueError, match="not rising, positive bounds"):
        Histogram().distribution(bounds_s)


@given(st.lists(st.lists(durations_s), max_size=4), fractions)
def test_histogram_merged_is_as_if_all_were_recorded_in_one(
    parts_s: list[list[float]], q: float
) -> None:
    parts, whole = [Histogram() for _ in parts_s], Histogram()
    for part, seconds in zip(parts, parts_s, strict=True):
        for each in seconds:
            part.record(each)
            whole.record(each)
    merged = Histogram.merged(parts)
    assert merged.quantile(q) == whole.quantile(q)
    assert merged.count == whole.count
    assert merged.total == pytest.approx(whole.total)


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_histogram_given_no_duration_refuses_it(seconds: float) -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="not a duration"):
        histogram.record(seconds)
    assert histogram.count == 0


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_histogram_asked_for_no_quantile_refuses_it(q: float) -> None:
    with pytest.raises(ValueError, match="not a quantile"):
        Histogram().quantile(q)


def test_histogram_needs_little_memory_for_durations_that_are_alike() -> None:
    few, all_there_are = Histogram(), Histogram()
    for n in range(5):
        few.record(100e-6 + n * 5e-6)
    for power in range(-1050, 700):
        all_there_are.record(_BASE**power)
    assert memory(few) < 1_000
    assert memory(all_there_are) < 24_000


def memory(histogram: Histogram) -> int:
    """Bytes that belong to it alone, but for the small ones of its latch."""
    parts = [histogram, histogram._pages, *histogram._pages.values()]
    numbers = (histogram._count, histogram._total_s, histogram._shortest_s, histogram._longest_s)
    return sum(map(sys.getsizeof, (*parts, *numbers)))


def test_histogram_recorded_by_many_threads_loses_nothing() -> None:
    histogram = Histogram()

    def record(_: int) -> None:
        for _ in range(2_000):
            histogram.record(0.25)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(record, range(4)))
    assert (histogram.count, histogram.total) == (8_000, 2_000.0)


def test_counters_added_by_many_threads_lose_nothing() -> None:
    counters = NamedCounters()

    def add(_: int) -> None:
        for _ in range(2_000):
            counters.add("firings")
            counters.add("events", 3)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, range(4)))
    assert counters.snapshot() == {"events": 24_000, "firings": 8_000}


def test_counters_snapshot_is_a_copy() -> None:
    counters = NamedCounters()
    counters.add("firings")
    counters.snapshot()["firings"] = 5
    assert counters.snapshot() == {"firings": 1}
