"""Patterns over a year of hourly observations at three airports, against plain SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from activedb.events import any_of, attr, detect, event, many, part, seq, some_of
from tests.events.real_data.streams import both

if TYPE_CHECKING:
    from activedb.events import Disjunction, Sequence
    from tests.events.real_data.streams import Stream

pytestmark = pytest.mark.data

HOUR = 3600
HOUR_US = 3_600_000_000


def observation(alias: str) -> Disjunction:
    """An observation, with rain or without."""
    return any_of(event("RAIN", alias=alias), event("DRY", alias=alias))


def observation_text(alias: str) -> str:
    """The same in the rule language."""
    return f"ANY(RAIN AS {alias}, DRY AS {alias})"


# -- negations and windows ---------------------------------------------------------------------


@pytest.mark.long
def test_temperature_that_falls_without_rain_is_found(weather: Stream) -> None:
    fall = both(
        seq(observation("a"), ~event("RAIN"), observation("b"))
        .same("origin")
        .where(part("b").temp <= part("a").temp - 5)
        .within(3 * HOUR),
        f"SEQ({observation_text('a')}, !RAIN, {observation_text('b')}) SAME origin "
        "WHERE b.temp <= a.temp - 5 WITHIN 3 h",
    )
    expected = weather.asked(
        """
        SELECT a.n AS a, b.n AS b FROM e a
        JOIN e b ON b.origin = a.origin AND b.us > a.us AND b.us <= a.us + 10800000000
        WHERE b.temp <= a.temp - 5 AND NOT EXISTS (
            SELECT 1 FROM e r WHERE r.origin = a.origin AND r.type = 'RAIN'
            AND r.us > a.us AND r.us < b.us)
        """
    )
    assert weather.matches(fall) == expected
    assert len(expected) > 1000


@pytest.mark.long
def test_silence_of_an_airport_is_told_three_hours_later(weather: Stream) -> None:
    silence = both(
        seq(observation("last"), ~observation("x")).same("origin").within(3 * HOUR),
        f"SEQ({observation_text('last')}, !{observation_text('x')}) SAME origin WITHIN 3 h",
    )
    expected = {
        ((("last", row["n"]),), row["us"] + 3 * HOUR_US)
        for row in weather.rows(
            """
            SELECT n, us FROM e a WHERE us + 10800000000 <= (SELECT max(us) FROM e)
            AND NOT EXISTS (SELECT 1 FROM e x WHERE x.origin = a.origin AND x.us > a.us
                            AND x.us <= a.us + 10800000000)
            """
        )
    }
    assert set(weather.times(silence).items()) == expected
    assert len(expected) > 5
    # A trial run in any order, whose time goes on to the end of the year, finds the last ones, too.
    year_end = datetime(2014, 1, 1, tzinfo=UTC)
    found = detect(silence, weather.events[::-1], until=year_end)
    assert len(found) == len(expected) + 3


def test_gusts_at_two_of_three_airports_within_an_hour_are_found(weather: Stream) -> None:
    airports = {
        name: any_of(
            *(
                event(
                    kind,
                    where=(attr("origin") == name) & (attr("gust") >= 40),
                    alias=name.lower(),
                )
                for kind in ("RAIN", "DRY")
            )
        )
        for name in ("EWR", "JFK", "LGA")
    }
    text = ", ".join(
        f"ANY(RAIN AS {name.lower()} WHERE origin = '{name}' AND gust >= 40, "
        f"DRY AS {name.lower()} WHERE origin = '{name}' AND gust >= 40)"
        for name in airports
    )
    storm = both(some_of(2, *airports.values()).within(HOUR), f"SOME(2, {text}) WITHIN 1 h")
    expected = weather.asked(
        """
        WITH gusts AS (SELECT n, origin, us FROM e WHERE gust >= 40)
        SELECT a.n AS ewr, b.n AS jfk, NULL AS lga FROM gusts a JOIN gusts b
        ON a.origin = 'EWR' AND b.origin = 'JFK' AND abs(a.us - b.us) <= 3600000000
        UNION ALL SELECT a.n, NULL, b.n FROM gusts a JOIN gusts b
        ON a.origin = 'EWR' AND b.origin = 'LGA' AND abs(a.us - b.us) <= 3600000000
        UNION ALL SELECT NULL, a.n, b.n FROM gusts a JOIN gusts b
        ON a.origin = 'JFK' AND b.origin = 'LGA' AND abs(a.us - b.us) <= 3600000000
        """
    )
    assert weather.matches(storm) == expected
    assert len(expected) > 100


def test_first_rain_after_a_strong_gust_is_found_with_next(weather: Stream) -> None:
    front = both(
        seq(event("DRY", where=attr("gust") >= 35, alias="gust"), event("RAIN"))
        .same("origin")
        .within(12 * HOUR)
        .selecting("next"),
        "SEQ(DRY AS gust WHERE gust >= 35, RAIN) SAME origin WITHIN 12 h SELECT next",
    )
    expected = weather.asked(
        """
        SELECT * FROM (
            SELECT g.n AS gust, (
                SELECT r.n FROM e r WHERE r.origin = g.origin AND r.type = 'RAIN'
                AND r.us > g.us AND r.us <= g.us + 12 * 3600000000 ORDER BY r.us LIMIT 1) AS "RAIN"
            FROM e g WHERE g.type = 'DRY' AND g.gust >= 35)
        WHERE "RAIN" IS NOT NULL
        """
    )
    assert weather.matches(front) == expected
    assert len(expected) > 20


# -- Kleene ------------------------------------------------------------------------------------


SPELL = (
    seq(event("DRY", alias="dry"), many(event("RAIN")), event("DRY", alias="again"))
    .same("origin")
    .within(48 * HOUR)
    .selecting("strict")
)
SPELL_TEXT = "SEQ(DRY AS dry, (RAIN)+, DRY AS again) SAME origin WITHIN 2 days SELECT strict"
SPELLS = """
    WITH numbered AS (
        SELECT *, row_number() OVER (PARTITION BY origin ORDER BY us) AS place FROM e),
    islands AS (
        SELECT *, place - row_number() OVER (PARTITION BY origin ORDER BY us) AS island
        FROM numbered WHERE type = 'RAIN'),
    spells AS (
        SELECT origin, json_group_array(n) AS hours, min(place) AS first, max(place) AS last
        FROM islands GROUP BY origin, island),
    framed AS (
        SELECT origin, a.n AS dry, hours, b.n AS again,
               row_number() OVER (PARTITION BY origin ORDER BY first) AS number
        FROM spells
        JOIN numbered a USING (origin) JOIN numbered b USING (origin)
        WHERE a.place = first - 1 AND b.place = last + 1 AND b.us - a.us <= 48 * 3600000000)
"""


def test_spells_of_rain_are_islands_between_dry_hours(weather: Stream) -> None:
    expected = weather.asked(f'{SPELLS} SELECT dry, hours AS "RAIN", again FROM framed')
    assert weather.matches(both(SPELL, SPELL_TEXT)) == expected
    assert len(expected) > 200


@pytest.mark.long
def test_spells_that_share_a_dry_hour_are_skipped_past_the_last(weather: Stream) -> None:
    apart = both(SPELL.skipping("past_last"), f"{SPELL_TEXT} SKIP past_last")
    # A spell is made unless its first hour is the last hour of the one made before it.
    expected = weather.asked(
        f"""
        {SPELLS.replace("WITH numbered", "WITH RECURSIVE numbered")},
        made AS (
            SELECT origin, number, again FROM framed WHERE number = 1
            UNION ALL
            SELECT f.origin, f.number, CASE WHEN f.dry = m.again THEN -1 ELSE f.again END
            FROM made m JOIN framed f ON f.origin = m.origin AND f.number = m.number + 1)
        SELECT dry, hours AS "RAIN", framed.again FROM framed
        JOIN made USING (origin, number) WHERE made.again <> -1
        """
    )
    assert weather.matches(apart) == expected
    assert 0 < len(expected) < len(weather.asked(f"{SPELLS} SELECT dry FROM framed"))


def halves(*, greedy: bool) -> Sequence:
    """Two to four hours of rain without a break, in two parts."""
    return (
        seq(
            many(event("RAIN", alias="x"), 1, 2, greedy=greedy),
            many(event("RAIN", alias="y"), 1, 2, greedy=greedy),
        )
        .same("origin")
        .gap(HOUR)
        .selecting("strict")
    )


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "reluctant"])
def test_three_hours_of_rain_are_shared_as_the_first_part_prefers(
    weather: Stream, *, greedy: bool
) -> None:
    mark = "" if greedy else "?"
    expression = both(
        halves(greedy=greedy),
        f"SEQ((RAIN AS x){{1,2}}{mark}, (RAIN AS y){{1,2}}{mark}) SAME origin GAP 1 h "
        "SELECT strict",
    )
    three = "json_array(n, n2) AS x, json_array(n3) AS y"
    if not greedy:
        three = "json_array(n) AS x, json_array(n2, n3) AS y"
    runs = """
        WITH runs AS (
            SELECT n, us, lead(n) OVER w AS n2, lead(us) OVER w AS us2,
                   lead(n, 2) OVER w AS n3, lead(us, 2) OVER w AS us3,
                   lead(n, 3) OVER w AS n4, lead(us, 3) OVER w AS us4
            FROM e WHERE type = 'RAIN' WINDOW w AS (PARTITION BY origin ORDER BY us))
    """
    one, two, last = (
        f"{later} - {earlier} <= 3600000000"
        for earlier, later in (("us", "us2"), ("us2", "us3"), ("us3", "us4"))
    )
    expected = weather.asked(
        f"""
        {runs} SELECT json_array(n) AS x, json_array(n2) AS y FROM runs WHERE {one}
        UNION ALL SELECT {three} FROM runs WHERE {one} AND {two}
        UNION ALL SELECT json_array(n, n2), json_array(n3, n4) FROM runs
        WHERE {one} AND {two} AND {last}
        """
    )
    assert weather.matches(expression) == expected
    assert len(expected) > 1000


def test_every_choice_of_hours_is_found_without_selection(weather: Stream) -> None:
    between = both(
        seq(
            event("DRY", where=attr("gust") >= 30, alias="a"),
            many(event("RAIN"), 1, 2),
            event("DRY", where=attr("gust") >= 30, alias="b"),
        )
        .same("origin")
        .within(6 * HOUR),
        "SEQ(DRY AS a WHERE gust >= 30, (RAIN){1,2}, DRY AS b WHERE gust >= 30) SAME origin "
        "WITHIN 6 h",
    )
    frame = """
        FROM e a JOIN e b ON b.origin = a.origin AND b.us > a.us AND b.us <= a.us + 6 * 3600000000
        AND a.type = 'DRY' AND b.type = 'DRY' AND a.gust >= 30 AND b.gust >= 30
        JOIN e r ON r.origin = a.origin AND r.type = 'RAIN' AND r.us > a.us AND r.us < b.us
    """
    expected = weather.asked(
        f"""
        SELECT a.n AS a, json_array(r.n) AS "RAIN", b.n AS b {frame}
        UNION ALL SELECT a.n, json_array(r.n, s.n), b.n {frame}
        JOIN e s ON s.origin = a.origin AND s.type = 'RAIN' AND s.us > r.us AND s.us < b.us
        """
    )
    assert weather.matches(between) == expected
    assert len(expected) > 20


@pytest.mark.long
def test_sums_over_a_spell_are_those_of_sql(weather: Stream) -> None:
    heavy = both(
        SPELL.where(part("RAIN").rain.sum() > 0.505).where(part("RAIN").count() <= 4),
        "SEQ(DRY AS dry, (RAIN)+, DRY AS again) SAME origin "
        "WHERE SUM(RAIN.rain) > 0.505 WHERE COUNT(RAIN) <= 4 WITHIN 2 days SELECT strict",
    )
    expected = weather.asked(
        f"""
        {SPELLS} SELECT dry, hours AS "RAIN", again FROM framed
        WHERE json_array_length(hours) <= 4 AND (
            SELECT sum(e.rain) FROM json_each(hours) j JOIN e ON e.n = j.value) > 0.505
        """
    )
    assert weather.matches(heavy) == expected
    assert len(expected) > 5
