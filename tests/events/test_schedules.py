"""Moments of clock events, against counting."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.clock import in_microseconds
from activedb.errors import PatternError
from activedb.events import At, Cron, Detector, Every, Occurrence, Schedule, at, cron, every
from tests import drawing

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VIENNA = ZoneInfo("Europe/Vienna")


def us_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moments(schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    """Return the moments after the start and before the end, each found from the one before."""
    found = []
    us = schedule.next_us(us_of(start))
    while us is not None and us < us_of(end):
        found.append(EPOCH + timedelta(microseconds=us))
        us = schedule.next_us(us)
    return found


def minutes(start: datetime, end: datetime) -> list[datetime]:
    """All whole minutes after the start and before the end."""
    count = (end - start) // timedelta(minutes=1)
    return [
        start + timedelta(minutes=n)
        for n in range(1, count + 1)
        if n * 60 < (end - start).total_seconds()
    ]


@given(st.integers(-10, 10), st.integers(-10, 10))
def test_at_is_next_only_before_its_moment(us: int, after_us: int) -> None:
    assert At(us).next_us(after_us) == (us if after_us < us else None)


@given(st.integers(1, 9), st.integers(0, 20), st.integers(-40, 40))
def test_every_is_next_at_the_first_multiple_after(
    period_us: int, offset_us: int, after_us: int
) -> None:
    expected = next(
        us for us in range(after_us + 1, after_us + 99) if (us - offset_us) % period_us == 0
    )
    assert Every(period_us, offset_us).next_us(after_us) == expected


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("* * * * *", lambda m: True),
        ("*/5 * * * *", lambda m: m.minute % 5 == 0),
        ("7 3 * * *", lambda m: (m.hour, m.minute) == (3, 7)),
        (
            "0,30 8-17 * * 1-5",
            lambda m: m.minute in (0, 30) and 8 <= m.hour <= 17 and m.isoweekday() < 6,
        ),
        ("0 0 1 * *", lambda m: (m.day, m.hour, m.minute) == (1, 0, 0)),
        ("15 12 29 2 *", lambda m: (m.month, m.day, m.hour, m.minute) == (2, 29, 12, 15)),
        ("0 6 * * SUN", lambda m: (m.isoweekday(), m.hour, m.minute) == (7, 6, 0)),
        # Either of day and weekday, if both are given: crontab(5).
        (
            "0 0 13 * 5",
            lambda m: (m.hour, m.minute) == (0, 0) and (m.day == 13 or m.isoweekday() == 5),
        ),
    ],
)
def test_cron_in_utc_equals_trying_every_minute(expression: str, matches: object) -> None:
    assert callable(matches)
    start, end = datetime(2024, 2, 12, 23, 59, tzinfo=UTC), datetime(2024, 3, 14, tzinfo=UTC)
    if "*/5" in expression or expression == "* * * * *":
        end = start + timedelta(hours=30)
    expected = [moment for moment in minutes(start, end) if matches(moment)]
    assert expected
    assert moments(Cron.of(expression), start, end) == expected


def test_cron_with_six_fields_counts_seconds() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    found = moments(Cron.of("*/20 * * * * *"), start, start + timedelta(minutes=1, seconds=1))
    assert [(m - start).total_seconds() for m in found] == [20, 40, 60]


def test_cron_between_whole_seconds_is_next_after_that_moment() -> None:
    schedule = Cron.of("* * * * *")
    assert schedule.next_us(60 * SECOND_US - 1) == 60 * SECOND_US
    assert schedule.next_us(60 * SECOND_US) == 120 * SECOND_US
    assert schedule.next_us(60 * SECOND_US + 1) == 120 * SECOND_US


@pytest.mark.parametrize(
    "change", [datetime(2025, 3, 30, tzinfo=VIENNA), datetime(2025, 10, 26, tzinfo=VIENNA)]
)
def test_cron_in_a_time_zone_keeps_to_its_wall_clock(change: datetime) -> None:
    schedule = Cron.of("30 8 * * *", "Europe/Vienna")
    start, end = change - timedelta(days=3), change + timedelta(days=4)
    found = moments(schedule, start, end)
    expected = [
        moment
        for moment in minutes(start.astimezone(UTC), end.astimezone(UTC))
        if (local := moment.astimezone(VIENNA)).hour == 8 and local.minute == 30
    ]
    assert found == expected
    assert {moment.hour for moment in found} == {6, 7}


def test_cron_of_an_hour_that_is_left_out_occurs_once_after_the_change() -> None:
    # There is no 02:30 on 30 March 2025; as Debian's cron does, it is made up for at 03:00.
    schedule = Cron.of("30 2 * * *", "Europe/Vienna")
    found = moments(
        schedule, datetime(2025, 3, 29, tzinfo=VIENNA), datetime(2025, 4, 1, tzinfo=VIENNA)
    )
    assert found == [
        datetime(2025, 3, 29, 1, 30, tzinfo=UTC),
        datetime(2025, 3, 30, 1, 0, tzinfo=UTC),
        datetime(2025, 3, 31, 0, 30, tzinfo=UTC),
    ]


def test_cron_of_an_hour_that_comes_twice_occurs_once() -> None:
    # 02:30 comes twice on 26 October 2025.
    schedule = Cron.of("30 2 * * *", "Europe/Vienna")
    found = moments(
        schedule, datetime(2025, 10, 25, tzinfo=VIENNA), datetime(2025, 10, 28, tzinfo=VIENNA)
    )
    assert found == [
        datetime(2025, 10, 25, 0, 30, tzinfo=UTC),
        datetime(2025, 10, 26, 0, 30, tzinfo=UTC),
        datetime(2025, 10, 27, 1, 30, tzinfo=UTC),
    ]


def test_cron_of_every_minute_has_all_minutes_of_both_changes() -> None:
    for day in (datetime(2025, 3, 30, tzinfo=VIENNA), datetime(2025, 10, 26, tzinfo=VIENNA)):
        start = day.astimezone(UTC)
        end = start + timedelta(hours=5)
        assert moments(Cron.of("* * * * *", "Europe/Vienna"), start, end) == minutes(start, end)


def test_cron_that_never_comes_is_refused() -> None:
    with pytest.raises(PatternError, match="is not a cron expression"):
        Cron.of("0 0 30 2 *")


def test_schedules_are_values_with_texts() -> None:
    assert cron("*/5   * * * *").schedule == Cron("*/5 * * * *")
    assert every(1.5, offset=0.5).schedule == Every(1_500_000, 500_000)
    assert at(EPOCH + timedelta(days=1)).schedule == At(24 * HOUR_US)
    assert at(86400) == at(EPOCH + timedelta(days=1))
    assert Every(1).text == "EVERY 0.000001s"
    assert Cron("0 3 * * *", "Europe/Vienna").text == "CRON '0 3 * * *' ZONE 'Europe/Vienna'"


@pytest.mark.parametrize("expression", [at(7), every(3), every(2, offset=1), cron("* * * * *")])
def test_clock_event_occurs_at_the_moments_before_the_time_told_each_once(
    expression: object,
) -> None:
    schedule = expression.schedule  # type: ignore[attr-defined]
    detector = Detector(expression)  # type: ignore[arg-type]
    told_us, end_us = 3 * SECOND_US, 200 * SECOND_US
    detector.feed(Occurrence("A", 3))
    found: list[int] = []
    for us in range(told_us, end_us, 7 * SECOND_US):
        due_us = detector.due_us
        made = [o.us for o in detector.advance(us)]
        if due_us is None or due_us >= us:
            assert not made
        found += made
    found += [o.us for o in detector.advance(end_us)]
    expected, us = [], schedule.next_us(told_us)
    while us is not None and us < end_us:
        expected.append(us)
        us = schedule.next_us(us)
    assert found == expected


ZONES = ["Europe/Paris", "America/New_York", "Australia/Lord_Howe", "America/Havana", "UTC"]


@pytest.mark.parametrize("zone", ZONES)
def test_cron_is_always_after_the_moment_that_it_is_asked_for(zone: str) -> None:
    drawn = drawing.drawn("cron", zone)
    for month in (3, 4, 10, 11):  # with the days on which clocks change
        start = datetime(2024, month, 1, tzinfo=UTC)
        for _ in range(20 * drawing.SCALE):
            fields = f"{drawn.choice(['*', '*/20', str(drawn.randrange(60))])} {drawn.randrange(4)}"
            schedule = Cron.of(f"{fields} * * *", zone)
            at = start + timedelta(minutes=drawn.randrange(31 * 24 * 60))
            found_us = schedule.next_us(in_microseconds(at))
            assert found_us is not None
            assert found_us > in_microseconds(at), (fields, at)


def test_cron_in_the_repeated_hour_is_not_that_of_the_first_time() -> None:
    at = in_microseconds(datetime(2024, 10, 27, 1, 0, tzinfo=UTC))  # 02:00 in Paris, again
    found_us = Cron.of("30 2 * * *", "Europe/Paris").next_us(at)
    assert found_us == in_microseconds(datetime(2024, 10, 28, 1, 30, tzinfo=UTC))
