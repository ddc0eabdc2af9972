"""Patterns over a day of one-minute bars, against plain SQL."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import pytest

from activedb.events import (
    all_of,
    any_of,
    aperiodic,
    at,
    attr,
    cron,
    event,
    every,
    optional,
    part,
    periodic,
    query,
    seq,
)
from tests.events.real_data.streams import both, parts_of

if TYPE_CHECKING:
    from activedb.events import Disjunction
    from tests.events.real_data.streams import Stream

pytestmark = pytest.mark.data

SECOND = 1_000_000


def bar(alias: str) -> Disjunction:
    """A bar of any kind."""
    return any_of(*(event(kind, alias=alias) for kind in ("UP", "DOWN", "FLAT")))


def bar_text(alias: str) -> str:
    """The same in the rule language."""
    return f"ANY(UP AS {alias}, DOWN AS {alias}, FLAT AS {alias})"


SURGE = event("UP", where=attr("close") >= attr("open") * 1.002, alias="surge")
SURGE_TEXT = "UP AS surge WHERE close >= open * 1.002"


# -- sequences and selections ------------------------------------------------------------------


def test_three_rising_bars_in_a_row_are_those_of_window_functions(bars: Stream) -> None:
    rising = both(
        seq(bar("a"), bar("b"), bar("c"))
        .same("ticker")
        .where(part("b").close > part("a").close)
        .where(part("c").close > part("b").close)
        .selecting("strict"),
        f"SEQ({bar_text('a')}, {bar_text('b')}, {bar_text('c')}) SAME ticker "
        "WHERE b.close > a.close WHERE c.close > b.close SELECT strict",
    )
    expected = bars.asked(
        """
        SELECT n AS a, b, c FROM (
            SELECT n, close, lead(n) OVER w AS b, lead(close) OVER w AS close_b,
                   lead(n, 2) OVER w AS c, lead(close, 2) OVER w AS close_c
            FROM e WINDOW w AS (PARTITION BY ticker ORDER BY us))
        WHERE close_b > close AND close_c > close_b
        """
    )
    assert bars.matches(rising) == expected
    assert len(expected) > 100


def test_every_drop_with_a_recovery_is_found_within_twenty_minutes(bars: Stream) -> None:
    recovery = both(
        seq(bar("a"), bar("b"), bar("c"))
        .same("ticker")
        .where(part("b").close < part("a").close * 0.99)
        .where(part("c").close >= part("a").close)
        .within(1200),
        f"SEQ({bar_text('a')}, {bar_text('b')}, {bar_text('c')}) SAME ticker "
        "WHERE b.close < a.close * 0.99 WHERE c.close >= a.close WITHIN 20 min",
    )
    expected = bars.asked(
        """
        SELECT a.n AS a, b.n AS b, c.n AS c
        FROM e a
        JOIN e b ON b.ticker = a.ticker AND b.us > a.us AND b.us <= a.us + 1200000000
        JOIN e c ON c.ticker = a.ticker AND c.us > b.us AND c.us <= a.us + 1200000000
        WHERE b.close < a.close * 0.99 AND c.close >= a.close
        """
    )
    assert bars.matches(recovery) == expected
    assert len(expected) > 10


def test_first_drop_and_first_recovery_are_found_with_next(bars: Stream) -> None:
    recovery = both(
        seq(bar("a"), bar("b"), bar("c"))
        .same("ticker")
        .where(part("b").close < part("a").close * 0.995)
        .where(part("c").close >= part("a").close)
        .within(1200)
        .selecting("next"),
        f"SEQ({bar_text('a')}, {bar_text('b')}, {bar_text('c')}) SAME ticker "
        "WHERE b.close < a.close * 0.995 WHERE c.close >= a.close WITHIN 1200s SELECT next",
    )
    expected = bars.asked(
        """
        WITH dropped AS (
            SELECT a.*, (SELECT b.n FROM e b WHERE b.ticker = a.ticker AND b.us > a.us
                         AND b.us <= a.us + 1200000000 AND b.close < a.close * 0.995
                         ORDER BY b.us LIMIT 1) AS b
            FROM e a),
        recovered AS (
            SELECT d.n AS a, d.b AS b,
                   (SELECT c.n FROM e c WHERE c.ticker = d.ticker AND c.us <= d.us + 1200000000
                    AND c.us > (SELECT us FROM e WHERE n = d.b) AND c.close >= d.close
                    ORDER BY c.us LIMIT 1) AS c
            FROM dropped d WHERE d.b IS NOT NULL)
        SELECT * FROM recovered WHERE c IS NOT NULL
        """
    )
    assert bars.matches(recovery) == expected
    assert len(expected) > 10


@pytest.mark.long
def test_neighbours_are_bounded_by_the_gap(bars: Stream) -> None:
    climbing = both(
        seq(event("UP", alias="a"), event("UP", alias="b"), event("UP", alias="c"))
        .same("ticker")
        .gap(120),
        "SEQ(UP AS a, UP AS b, UP AS c) SAME ticker GAP 2 min",
    )
    expected = bars.asked(
        """
        SELECT a.n AS a, b.n AS b, c.n AS c FROM e a
        JOIN e b ON b.ticker = a.ticker AND b.us > a.us AND b.us - a.us <= 120000000
        JOIN e c ON c.ticker = a.ticker AND c.us > b.us AND c.us - b.us <= 120000000
        WHERE a.type = 'UP' AND b.type = 'UP' AND c.type = 'UP'
        """
    )
    assert bars.matches(climbing) == expected
    assert len(expected) > 100


def test_optional_part_may_be_missing(bars: Stream) -> None:
    turn = both(
        seq(event("DOWN"), optional(event("FLAT")), event("UP")).same("ticker").selecting("strict"),
        "SEQ(DOWN, (FLAT)?, UP) SAME ticker SELECT strict",
    )
    expected = bars.asked(
        """
        WITH neighbours AS (
            SELECT n, type, lead(n) OVER w AS n2, lead(type) OVER w AS type2,
                   lead(n, 2) OVER w AS n3, lead(type, 2) OVER w AS type3
            FROM e WINDOW w AS (PARTITION BY ticker ORDER BY us))
        SELECT n AS "DOWN", json_array() AS "FLAT", n2 AS "UP" FROM neighbours
        WHERE type = 'DOWN' AND type2 = 'UP'
        UNION ALL
        SELECT n, json_array(n2), n3 FROM neighbours
        WHERE type = 'DOWN' AND type2 = 'FLAT' AND type3 = 'UP'
        """
    )
    assert bars.matches(turn) == expected
    assert len(expected) > 100


# -- contexts ----------------------------------------------------------------------------------

TURN = seq(event("UP"), event("DOWN")).same("ticker")
TURN_TEXT = "SEQ(UP, DOWN) SAME ticker"
FIRST_DOWN = """
    SELECT u.n AS up, (SELECT d.n FROM e d WHERE d.type = 'DOWN' AND d.ticker = u.ticker
                       AND d.us > u.us ORDER BY d.us LIMIT 1) AS down
    FROM e u WHERE u.type = 'UP'
"""


def test_unrestricted_pairs_are_all_pairs(bars: Stream) -> None:
    expression = both(TURN.within(600), f"{TURN_TEXT} WITHIN 10 min")
    expected = bars.asked(
        """
        SELECT u.n AS "UP", d.n AS "DOWN" FROM e u
        JOIN e d ON d.ticker = u.ticker AND d.us > u.us AND d.us <= u.us + 600000000
        WHERE u.type = 'UP' AND d.type = 'DOWN'
        """
    )
    assert bars.matches(expression) == expected


def test_recent_pairs_take_the_latest_initiator(bars: Stream) -> None:
    expression = both(TURN.context("recent"), f"{TURN_TEXT} CONTEXT recent")
    expected = bars.asked(
        """
        SELECT * FROM (
            SELECT (SELECT u.n FROM e u WHERE u.type = 'UP' AND u.ticker = d.ticker
                    AND u.us < d.us ORDER BY u.us DESC LIMIT 1) AS "UP", d.n AS "DOWN"
            FROM e d WHERE d.type = 'DOWN')
        WHERE "UP" IS NOT NULL
        """
    )
    assert bars.matches(expression) == expected


def test_chronicle_pairs_are_those_of_a_queue_per_ticker(bars: Stream) -> None:
    expression = both(TURN.context("chronicle"), f"{TURN_TEXT} CONTEXT chronicle")
    # The i-th DOWN has u(i) UPs before it. Of the first i, as many get one as
    # s(i) = min(i, min over k <= i of u(k) + i - k); the i-th does if s(i) > s(i - 1), the s(i)-th.
    expected = bars.asked(
        """
        WITH ups AS (
            SELECT n, ticker, row_number() OVER (PARTITION BY ticker ORDER BY us) AS j
            FROM e WHERE type = 'UP'),
        downs AS (
            SELECT d.n, d.ticker, row_number() OVER (PARTITION BY d.ticker ORDER BY d.us) AS i,
                   (SELECT count(*) FROM e u WHERE u.type = 'UP' AND u.ticker = d.ticker
                    AND u.us < d.us) AS u
            FROM e d WHERE d.type = 'DOWN'),
        served AS (
            SELECT *, min(i, i + min(u - i) OVER (PARTITION BY ticker ORDER BY i)) AS s FROM downs),
        steps AS (
            SELECT *, lag(s, 1, 0) OVER (PARTITION BY ticker ORDER BY i) AS before FROM served)
        SELECT ups.n AS "UP", steps.n AS "DOWN" FROM steps
        JOIN ups ON ups.ticker = steps.ticker AND ups.j = steps.s
        WHERE steps.s > steps.before
        """
    )
    assert bars.matches(expression) == expected
    assert 400 < len(expected) < 662  # some DOWN finds no UP left


@pytest.mark.long
def test_continuous_pairs_end_with_the_first_terminator(bars: Stream) -> None:
    expression = both(TURN.context("continuous"), f"{TURN_TEXT} CONTEXT continuous")
    expected = bars.asked(
        f'SELECT up AS "UP", down AS "DOWN" FROM ({FIRST_DOWN}) WHERE down IS NOT NULL'
    )
    assert bars.matches(expression) == expected


def test_cumulative_matches_collect_all_initiators(bars: Stream) -> None:
    expression = both(TURN.context("cumulative"), f"{TURN_TEXT} CONTEXT cumulative")
    expected = bars.asked(
        f"""
        SELECT json_group_array(up) AS "UP", json_array(down) AS "DOWN"
        FROM ({FIRST_DOWN}) WHERE down IS NOT NULL GROUP BY down
        """
    )
    assert bars.matches(expression) == expected
    ups = [cast("tuple[int, ...]", dict(match)["UP"]) for match in expected]
    assert max(len(up) for up in ups) > 3


# -- other operators ---------------------------------------------------------------------------


def test_conjunction_comes_in_any_order(bars: Stream) -> None:
    both_up = both(
        all_of(
            event("UP", where=attr("ticker") == "MSFT", alias="msft"),
            event("UP", where=attr("ticker") == "ORLY", alias="orly"),
        ).within(60),
        "ALL(UP AS msft WHERE ticker = 'MSFT', UP AS orly WHERE ticker = 'ORLY') WITHIN 1 min",
    )
    expected = bars.asked(
        """
        SELECT m.n AS msft, o.n AS orly FROM e m JOIN e o ON abs(m.us - o.us) <= 60000000
        WHERE m.type = 'UP' AND o.type = 'UP' AND m.ticker = 'MSFT' AND o.ticker = 'ORLY'
        """
    )
    assert bars.matches(both_up) == expected
    assert len(expected) > 100


def test_conjunction_inside_a_sequence_ends_before_the_next_part(bars: Stream) -> None:
    nested = both(
        seq(
            all_of(
                event("UP", where=attr("ticker") == "MSFT", alias="msft"),
                event("UP", where=attr("ticker") == "ORLY", alias="orly"),
            ).within(60),
            event("DOWN", where=attr("ticker") == "MSFT", alias="stop"),
        ).within(120),
        "SEQ((ALL(UP AS msft WHERE ticker = 'MSFT', UP AS orly WHERE ticker = 'ORLY') WITHIN 60s), "
        "DOWN AS stop WHERE ticker = 'MSFT') WITHIN 2 min",
    )
    expected = bars.asked(
        """
        SELECT m.n AS msft, o.n AS orly, d.n AS stop FROM e m
        JOIN e o ON abs(m.us - o.us) <= 60000000
        JOIN e d ON d.us > max(m.us, o.us) AND d.us - min(m.us, o.us) <= 120000000
        WHERE m.type = 'UP' AND o.type = 'UP' AND m.ticker = 'MSFT' AND o.ticker = 'ORLY'
              AND d.type = 'DOWN' AND d.ticker = 'MSFT'
        """
    )
    assert bars.matches(nested) == expected
    assert len(expected) > 50


def test_disjunction_of_patterns_finds_what_each_finds(bars: Stream) -> None:
    extremes = both(
        any_of(
            event("UP", where=attr("close") > attr("open") * 1.004),
            seq(event("DOWN", alias="a"), event("DOWN", alias="b")).same("ticker").within(60),
        ),
        "ANY(UP WHERE close > open * 1.004, (SEQ(DOWN AS a, DOWN AS b) SAME ticker WITHIN 60s))",
    )
    expected = bars.asked(
        "SELECT n AS \"UP\" FROM e WHERE type = 'UP' AND close > open * 1.004"
    ) | bars.asked(
        """
        SELECT a.n AS a, b.n AS b FROM e a
        JOIN e b ON b.ticker = a.ticker AND b.us > a.us AND b.us - a.us <= 60000000
        WHERE a.type = 'DOWN' AND b.type = 'DOWN'
        """
    )
    assert bars.matches(extremes) == expected


def test_negation_at_the_start_looks_back_over_the_window(bars: Stream) -> None:
    after_quiet = both(
        seq(~bar("x"), event("UP")).same("ticker").within(300),
        f"SEQ(!{bar_text('x')}, UP) SAME ticker WITHIN 5 min",
    )
    expected = bars.asked(
        """
        SELECT n AS "UP" FROM e u WHERE type = 'UP' AND NOT EXISTS (
            SELECT 1 FROM e x WHERE x.ticker = u.ticker AND x.us < u.us
            AND x.us >= u.us - 300000000)
        """
    )
    assert bars.matches(after_quiet) == expected
    assert expected


def test_aperiodic_occurs_at_each_event_before_the_end(bars: Stream) -> None:
    falls = both(
        aperiodic(SURGE, event("DOWN"), event("FLAT")).same("ticker"),
        f"APERIODIC({SURGE_TEXT}, DOWN, FLAT) SAME ticker",
    )
    expected = bars.asked(
        """
        SELECT s.n AS surge, d.n AS "DOWN" FROM e s
        JOIN e d ON d.ticker = s.ticker AND d.us > s.us AND d.type = 'DOWN'
        WHERE s.type = 'UP' AND s.close >= s.open * 1.002 AND NOT EXISTS (
            SELECT 1 FROM e f WHERE f.ticker = s.ticker AND f.type = 'FLAT'
            AND f.us > s.us AND f.us < d.us)
        """
    )
    assert bars.matches(falls) == expected
    assert len(expected) > 20


def test_collected_aperiodic_occurs_at_the_first_end_with_all_between(bars: Stream) -> None:
    falls = both(
        aperiodic(SURGE, event("DOWN"), event("FLAT"), collected=True).same("ticker"),
        f"APERIODIC*({SURGE_TEXT}, DOWN, FLAT) SAME ticker",
    )
    expected = bars.asked(
        """
        SELECT s.n AS surge, f.n AS "FLAT",
               (SELECT json_group_array(d.n) FROM e d WHERE d.ticker = s.ticker
                AND d.type = 'DOWN' AND d.us > s.us AND d.us < f.us) AS "DOWN"
        FROM e s JOIN e f ON f.n = (
            SELECT n FROM e WHERE ticker = s.ticker AND type = 'FLAT' AND us > s.us
            ORDER BY us LIMIT 1)
        WHERE s.type = 'UP' AND s.close >= s.open * 1.002
        """
    )
    assert bars.matches(falls) == expected
    assert len(expected) > 20


def test_query_returns_what_it_says(bars: Stream) -> None:
    rise = query(
        "Rise",
        seq(event("DOWN"), event("UP")).same("ticker").within(60),
        {"ticker": part("UP").ticker, "gain": part("UP").close - part("DOWN").close},
    )
    found = {(parts_of(o), o.name, o.params["ticker"], o.params["gain"]) for o in bars.found(rise)}
    expected = {
        ((("DOWN", row["d"]), ("UP", row["u"])), "Rise", row["ticker"], row["gain"])
        for row in bars.rows(
            """
            SELECT d.n AS d, u.n AS u, u.ticker AS ticker, u.close - d.close AS gain FROM e d
            JOIN e u ON u.ticker = d.ticker AND u.us > d.us AND u.us - d.us <= 60000000
            WHERE d.type = 'DOWN' AND u.type = 'UP'
            """
        )
    }
    assert found == expected
    assert len(expected) > 100


# -- time --------------------------------------------------------------------------------------


def test_plus_occurs_a_while_later(bars: Stream) -> None:
    later = both(SURGE.after(90), f"AFTER(90s, {SURGE_TEXT})")
    expected = {
        ((("surge", row["n"]),), row["us"] + 90 * SECOND)
        for row in bars.rows(
            "SELECT n, us FROM e WHERE type = 'UP' AND close >= open * 1.002 AND us + 90000000 <= "
            "(SELECT max(us) FROM e)"
        )
    }
    found = {((("surge", o.params["n"]),), o.us) for o in bars.found(later)}
    assert found == expected
    assert len(expected) > 20


def test_drop_without_a_recovery_times_out(bars: Stream) -> None:
    lost = both(
        seq(
            event("DOWN", where=attr("close") < attr("open") * 0.998, alias="fall"),
            bar("back"),
        )
        .same("ticker")
        .where(part("back").close >= part("fall").open)
        .within(1200)
        .timed_out(),
        "TIMEOUT((SEQ(DOWN AS fall WHERE close < open * 0.998, "
        f"{bar_text('back')}) SAME ticker WHERE back.close >= fall.open WITHIN 20 min))",
    )
    expected = {
        ((("fall", row["n"]),), row["us"] + 1200 * SECOND)
        for row in bars.rows(
            """
            SELECT n, us FROM e a WHERE type = 'DOWN' AND close < open * 0.998 AND NOT EXISTS (
                SELECT 1 FROM e b WHERE b.ticker = a.ticker AND b.us > a.us
                AND b.us <= a.us + 1200000000 AND b.close >= a.open)
            AND us + 1200000000 <= (SELECT max(us) FROM e)
            """
        )
    }
    assert set(bars.times(lost).items()) == expected
    assert len(expected) > 10


OPEN_TO_CLOSE = """
    SELECT s.n, s.us, (SELECT f.n FROM e f WHERE f.type = 'FLAT' AND f.us > s.us
                       AND f.volume > 100000 ORDER BY f.us LIMIT 1) AS closing
    FROM e s WHERE s.type = 'UP' AND s.close >= s.open * 1.002
"""
CLOSING = event("FLAT", where=attr("volume") > 100_000, alias="calm")


def test_periodic_ticks_from_each_start_to_the_end(bars: Stream) -> None:
    ticks = both(
        periodic(SURGE, 300, CLOSING),
        f"PERIODIC({SURGE_TEXT}, 5 min, FLAT AS calm WHERE volume > 100000)",
    )
    expected = bars.asked(
        f"""
        WITH RECURSIVE open AS (
            SELECT n, us, coalesce((SELECT us FROM e WHERE n = closing),
                                   (SELECT max(us) + 1 FROM e)) AS until
            FROM ({OPEN_TO_CLOSE})),
        ticks AS (
            SELECT n, until, us + 300000000 AS tick FROM open
            UNION ALL SELECT n, until, tick + 300000000 FROM ticks WHERE tick < until)
        SELECT n AS surge, tick FROM ticks WHERE tick < until
        """
    )
    assert bars.matches(ticks) == expected
    assert len(expected) > 50


def test_collected_periodic_occurs_at_the_end_with_all_ticks(bars: Stream) -> None:
    ticks = both(
        periodic(SURGE, 300, CLOSING, collected=True),
        f"PERIODIC*({SURGE_TEXT}, 300s, FLAT AS calm WHERE volume > 100000)",
    )
    expected = bars.asked(
        f"""
        WITH RECURSIVE numbers AS (SELECT 1 AS k UNION ALL SELECT k + 1 FROM numbers WHERE k < 200)
        SELECT o.n AS surge, o.closing AS calm,
               (SELECT json_group_array(o.us + k * 300000000) FROM numbers
                WHERE o.us + k * 300000000 < c.us) AS tick
        FROM ({OPEN_TO_CLOSE}) o JOIN e c ON c.n = o.closing
        """
    )
    assert bars.matches(ticks) == expected
    assert len(expected) > 10


def test_first_bar_after_each_full_hour_is_found_with_cron(bars: Stream) -> None:
    hourly = both(
        seq(cron("0 * * * *", alias="hour"), event("UP", where=attr("ticker") == "MSFT")).selecting(
            "next"
        ),
        "SEQ(CRON '0 * * * *' AS hour, UP WHERE ticker = 'MSFT') SELECT next",
    )
    expected = bars.asked(
        """
        WITH RECURSIVE hours AS (
            SELECT (min(us) / 3600000000 + 1) * 3600000000 AS hour FROM e
            UNION ALL SELECT hour + 3600000000 FROM hours
            WHERE hour + 3600000000 <= (SELECT max(us) FROM e))
        SELECT * FROM (
            SELECT hour, (SELECT n FROM e WHERE ticker = 'MSFT' AND type = 'UP' AND us > hour
                          ORDER BY us LIMIT 1) AS "UP" FROM hours)
        WHERE "UP" IS NOT NULL
        """
    )
    assert bars.matches(hourly) == expected
    assert len(expected) >= 6


def test_ten_minutes_without_a_trade_are_found_between_clock_events(bars: Stream) -> None:
    idle = both(
        seq(
            every(600, alias="start"),
            ~any_of(
                *(event(kind, where=attr("ticker") == "CBRL") for kind in ("UP", "DOWN", "FLAT"))
            ),
            every(600, alias="stop"),
        ).within(600),
        "SEQ(EVERY 10 min AS start, !ANY(UP WHERE ticker = 'CBRL', DOWN WHERE ticker = 'CBRL', "
        "FLAT WHERE ticker = 'CBRL'), EVERY 600s AS stop) WITHIN 10 min",
    )
    expected = bars.asked(
        """
        WITH RECURSIVE marks AS (
            SELECT (min(us) / 600000000 + 1) * 600000000 AS mark FROM e
            UNION ALL SELECT mark + 600000000 FROM marks
            WHERE mark + 600000000 <= (SELECT max(us) FROM e))
        SELECT mark AS start, mark + 600000000 AS stop FROM marks
        WHERE mark + 600000000 <= (SELECT max(us) FROM e) AND NOT EXISTS (
            SELECT 1 FROM e WHERE ticker = 'CBRL' AND us > mark AND us < mark + 600000000)
        """
    )
    assert bars.matches(idle) == expected
    assert expected


def test_what_comes_after_a_moment_is_found_with_at(bars: Stream) -> None:
    noon = datetime(2008, 2, 1, 17, tzinfo=UTC)
    afternoon = both(
        seq(at(noon, alias="noon"), SURGE),
        f"SEQ(AT '2008-02-01T12:00:00-05:00' AS noon, {SURGE_TEXT})",
    )
    noon_us = int(noon.timestamp()) * SECOND
    expected = bars.asked(
        "SELECT :noon AS noon, n AS surge FROM e WHERE type = 'UP' AND close >= open * 1.002 "
        "AND us > :noon",
        noon=noon_us,
    )
    assert bars.matches(afternoon) == expected
    assert expected
