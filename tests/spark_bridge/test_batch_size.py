"""The size of batches, fitted to latencies that are simulated."""

from __future__ import annotations

import random

import pytest

from spark_bridge._batch_size import BatchSize


def run(size: BatchSize, row_s: float, batch_s: float, batches: int, seed: int = 0) -> list[float]:
    """Return how long full batches take whose cost is linear, a tenth more or less."""
    choice = random.Random(seed)
    found = []
    for _ in range(batches):
        seconds = (batch_s + size.size * row_s) * choice.uniform(0.9, 1.1)
        size.note(size.size, seconds)
        found.append(seconds)
    return found


@pytest.mark.parametrize("first", [1, 10_000, 1_000_000])
@pytest.mark.parametrize("row_us", [1, 50, 2_000])
def test_batch_size_comes_to_rest_near_the_largest_that_holds_the_bound(
    first: int, row_us: float
) -> None:
    size = BatchSize(first, 2.0)
    run(size, row_us / 1e6, 0.1, 60)
    settled = run(size, row_us / 1e6, 0.1, 200, seed=1)
    assert max(settled) < 2.0
    assert sum(seconds <= 1.0 for seconds in settled) > 0.8 * len(settled)
    best = min((1.0 - 0.1) / (row_us / 1e6), 1_000_000)
    assert 0.6 * best < size.size <= 1.2 * best


def test_batch_size_follows_when_rows_become_dearer_and_cheaper() -> None:
    size = BatchSize(1_000, 1.0)
    run(size, 10e-6, 0.05, 50)
    cheap = size.size
    run(size, 100e-6, 0.05, 6)
    dear = size.size
    assert dear < cheap / 5
    run(size, 10e-6, 0.05, 60)
    assert size.size > cheap / 2


def test_batch_size_of_batches_that_are_not_full_stays() -> None:
    size = BatchSize(1_000, 1.0)
    for count in (0, 1, 999):
        size.note(count, 0.01)
    assert size.size == 1_000
    size.note(1_000, 0.01)
    assert size.size == 2_000


def test_batch_size_cut_of_a_small_batch_goes_below_it() -> None:
    size = BatchSize(100_000, 1.0)
    size.note(1_000, 0.625)
    assert size.size == 800


def test_batch_size_never_goes_below_one_nor_beyond_its_most() -> None:
    size = BatchSize(4, 1.0, most=20)
    for _ in range(20):
        size.note(size.size, 100.0)
    assert size.size == 1
    for _ in range(100):
        size.note(size.size, 0.0)
    assert size.size == 20


def test_batch_size_without_a_bound_is_fixed() -> None:
    size = BatchSize(7, None)
    size.note(7, 1e9)
    size.note(7, 0.0)
    assert size.size == 7
