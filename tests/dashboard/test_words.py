"""Numbers, durations and moments as people read them."""

from __future__ import annotations

import pytest

from activedb.dashboard._words import clock_time, count, duration, rate, short


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (0, "0 µs"),
        (0.000_012, "12 µs"),
        (0.0034, "3.4 ms"),
        (0.9999, "1 s"),
        (5.61, "5.6 s"),
        (123, "2 min 3 s"),
        (4 * 3600 + 300, "4 h 5 min"),
        (1e9, "11,574 days"),
        (-2, "−2.0 s"),
    ],
)
def test_duration_of_any_size_has_a_unit_that_suits_it(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_counts_and_rates_have_thousands_set_apart() -> None:
    assert (count(12_345), count(None), rate(0), rate(1.25), rate(1234.5)) == (
        "12,345",
        "–",
        "0",
        "1.2",
        "1,234",
    )


def test_clock_time_out_of_range_is_left_out() -> None:
    assert clock_time(1e300) == clock_time(None) == "–"


def test_short_text_has_one_line_and_only_printable_characters() -> None:
    assert short("a\n  b\x00\x1b[31m") == "a b··[31m"
    assert short("x" * 200, 10) == "xxxxxxxxx…"
    assert short(None) == ""
