"""Patterns over the tweets of a crisis, against plain SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from activedb.events import any_of, event, many, part, seq
from tests.events.real_data.streams import both

if TYPE_CHECKING:
    from tests.events.real_data.streams import Stream

pytestmark = pytest.mark.data


def test_first_tweet_on_topic_after_quiet_is_found(boston: Stream) -> None:
    first = both(
        seq(~any_of(event("TOPIC"), event("OTHER")), event("TOPIC", alias="start")).within(300),
        "SEQ(!ANY(TOPIC, OTHER), TOPIC AS start) WITHIN 5 min",
    )
    expected = boston.asked(
        """
        SELECT n AS start FROM e f WHERE type = 'TOPIC' AND NOT EXISTS (
            SELECT 1 FROM e x WHERE x.us < f.us AND x.us >= f.us - 300000000)
        """
    )
    assert boston.matches(first) == expected
    assert len(expected) > 10


BURST = seq(many(event("TOPIC"), 5, 5)).within(40).selecting("strict")
BURST_TEXT = "SEQ((TOPIC){5}) WITHIN 40s SELECT strict"
# Five tweets on topic one after another (what is off topic does not count), none at one time.
BURSTS = """
    WITH RECURSIVE tweets AS (
        SELECT n, us, row_number() OVER (ORDER BY us, n) AS i FROM e WHERE type = 'TOPIC'),
    bursts AS (
        SELECT a.i, json_array(a.n, b.n, c.n, d.n, f.n) AS five FROM tweets a
        JOIN tweets b ON b.i = a.i + 1 AND b.us > a.us
        JOIN tweets c ON c.i = a.i + 2 AND c.us > b.us
        JOIN tweets d ON d.i = a.i + 3 AND d.us > c.us
        JOIN tweets f ON f.i = a.i + 4 AND f.us > d.us AND f.us - a.us <= 40000000)
"""


def test_bursts_overlap_unless_they_are_skipped(boston: Stream) -> None:
    expected = boston.asked(f'{BURSTS} SELECT five AS "TOPIC" FROM bursts')
    assert boston.matches(both(BURST, BURST_TEXT)) == expected
    assert len(expected) > 50


@pytest.mark.parametrize(
    ("skip", "distance"), [("past_last", 5), ("to_last", 4)], ids=["past_last", "to_last"]
)
def test_bursts_after_a_skip_are_those_of_a_recursive_query(
    boston: Stream, skip: str, distance: int
) -> None:
    args = (skip,) if skip == "past_last" else (skip, "TOPIC")
    shown = " ".join(args)
    # The next burst made is the first that begins at that distance from the last one made.
    expected = boston.asked(
        f"""
        {BURSTS}, made AS (
            SELECT min(i) AS i FROM bursts
            UNION ALL
            SELECT (SELECT min(b.i) FROM bursts b WHERE b.i >= made.i + {distance})
            FROM made WHERE made.i IS NOT NULL)
        SELECT five AS "TOPIC" FROM bursts WHERE i IN (SELECT i FROM made)
        """
    )
    apart = both(BURST.skipping(*args), f"{BURST_TEXT} SKIP {shown}")
    assert boston.matches(apart) == expected
    assert 10 < len(expected) < len(boston.matches(BURST))


@pytest.mark.long
@pytest.mark.parametrize("args", [("to_next",), ("to_first", "TOPIC")], ids=" ".join)
def test_each_start_of_a_burst_is_made_once_with_the_skip_to_next(
    boston: Stream, args: tuple[str, ...]
) -> None:
    growing = seq(many(event("TOPIC"), 2, 4)).within(10).selecting("strict")
    once = both(
        growing.skipping(*args),
        f"SEQ((TOPIC){{2,4}}) WITHIN 10s SELECT strict SKIP {' '.join(args)}",
    )
    expected = boston.asked(
        """
        SELECT json_array(n, next) AS "TOPIC" FROM (
            SELECT n, us, lead(n) OVER w AS next, lead(us) OVER w AS next_us FROM e
            WHERE type = 'TOPIC' WINDOW w AS (ORDER BY us, n))
        WHERE next_us > us AND next_us - us <= 10000000
        """
    )
    assert boston.matches(once) == expected
    assert len(expected) > 50


def test_growing_tweets_are_found_with_the_one_before(boston: Stream) -> None:
    growing = both(
        seq(event("OTHER"), many(event("TOPIC"), 3, 3))
        .where(part("TOPIC").length > part("TOPIC").length.prev())
        .selecting("strict")
        .within(120),
        "SEQ(OTHER, (TOPIC){3}) WHERE TOPIC.length > PREV(TOPIC.length) SELECT strict WITHIN 2 min",
    )
    expected = boston.asked(
        """
        SELECT n AS "OTHER", json_array(n2, n3, n4) AS "TOPIC" FROM (
            SELECT n, type, us, lead(n) OVER w AS n2, lead(type) OVER w AS type2,
                   lead(us) OVER w AS us2, lead(length) OVER w AS length2,
                   lead(n, 2) OVER w AS n3, lead(type, 2) OVER w AS type3,
                   lead(us, 2) OVER w AS us3, lead(length, 2) OVER w AS length3,
                   lead(n, 3) OVER w AS n4, lead(type, 3) OVER w AS type4,
                   lead(us, 3) OVER w AS us4, lead(length, 3) OVER w AS length4
            FROM e WINDOW w AS (ORDER BY us, n))
        WHERE type = 'OTHER' AND type2 = 'TOPIC' AND type3 = 'TOPIC' AND type4 = 'TOPIC'
              AND us < us2 AND us2 < us3 AND us3 < us4 AND us4 - us <= 120000000
              AND length2 < length3 AND length3 < length4
        """
    )
    assert boston.matches(growing) == expected
    assert len(expected) > 20
