"""The crisis example against its independent recount, on paper and on real tweets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from tests.examples.replay_crisis import instant, keywords, read_tweets, replay, written_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import ModuleType

NOON = datetime(2013, 4, 18, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def tweet_id(at: datetime, number: int = 0) -> int:
    """Return the id of the tweet with this number written at that time."""
    return ((round(at.timestamp() * 1000) - 1_288_834_974_657) << 22) + number


def each_minute(start: datetime, *texts: str) -> list[tuple[int, str]]:
    """Return one tweet a minute."""
    return [(tweet_id(start + timedelta(minutes=i)), text) for i, text in enumerate(texts)]


def events(tweets: Iterable[tuple[int, str]], seed: int) -> list[adb.Occurrence]:
    """Return tweets as the stream's events, shuffled."""
    shuffled = [
        adb.Occurrence(
            "TWEET", instant(written_ms(id_)), {"tweet_id": id_, "text": text}, id=f"'{id_}'"
        )
        for id_, text in tweets
    ]
    Random(seed).shuffle(shuffled)
    return shuffled


TEXTS = [
    ("Huge explosion at the plant", {"huge", "explosion", "plant"}),
    ("EXPLOSION explosion Explosion", {"explosion"}),
    ("#WestTX #a1b2 #ab", {"#westtx", "#a1b2"}),
    ("#ab#abcd", {"#abcd"}),
    ("@sheriff sees fire: http://t.co/x9flood https://t.co/y", {"sees", "fire"}),
    ("safehttp://t.co/flood", {"safe"}),
    ("http:// flood", {"http", "flood"}),
    ("Boston's people don't y’all", {"boston"}),
    ("tornado2013 storm_surge", {"tornado", "storm", "surge"}),
    ("rain &amp; floods &lt;3 &quot;wind&quot;", {"rain", "floods", "wind"}),
    ("inundación ÉNORME 洪水洪水", {"inundación", "énorme", "洪水洪水"}),
    ("", set()),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_keywords_example_and_recount_find_the_same(
    load_example: Callable[[str], ModuleType], text: str, expected: set[str]
) -> None:
    crisis = load_example("crisis")
    assert crisis.keywords(text) == sorted(expected)
    assert keywords(text, crisis.STOPWORDS) == expected


def test_replay_keyword_over_three_hours_keeps_a_count_per_hour() -> None:
    tweets = each_minute(NOON, "flood", "flood") + each_minute(NOON + HOUR, "flood")
    tables = replay(tweets, frozenset())
    ids = [id_ for id_, _ in tweets]
    rows = [
        (NOON, "flood", 2, ids[1], False, ids[:2]),
        (NOON + HOUR, "flood", 1, ids[2], False, ids[2:]),
    ]
    assert tables["words"] == rows
    tweets += each_minute(NOON + 3 * HOUR, "flood")
    tables = replay(tweets, frozenset())
    last = tweets[-1][0]
    assert tables["words"] == [*rows, (NOON + 3 * HOUR, "flood", 1, last, False, [last])]


def test_replay_burst_raises_one_alert_with_the_tweets_that_caused_it() -> None:
    tweets = each_minute(NOON, *["flood"] * 5)
    ids = [id_ for id_, _ in tweets]
    assert replay(tweets, frozenset(), burst_count=3) == {
        "words": [(NOON, "flood", 5, ids[4], True, ids[:3])],
        "alerts": [(NOON, "flood", NOON + timedelta(minutes=2), 3, 0)],
        "alert_tweets": [(NOON, "flood", id_) for id_ in ids[:3]],
        "audit": [(NOON, "flood", "3 tweets, 0 in the hour before")],
    }


def test_replay_burst_must_outgrow_the_hour_before() -> None:
    tweets = each_minute(NOON, "flood", "flood") + each_minute(NOON + HOUR, *["flood"] * 7)
    assert replay(tweets, frozenset(), burst_count=3)["alerts"] == []
    tweets += each_minute(NOON + HOUR + timedelta(minutes=7), "flood")
    at = NOON + HOUR + timedelta(minutes=7)
    assert replay(tweets, frozenset(), burst_count=3)["alerts"] == [
        (NOON + HOUR, "flood", at, 8, 2)
    ]


def test_replay_tweet_that_occurs_twice_counts_once_per_keyword() -> None:
    once = (tweet_id(NOON), "flood warning")
    again = (once[0], "flood &amp; warnings")
    other = (tweet_id(NOON, 1), "flood")
    tables = replay([once, again, other], frozenset())
    assert {word: count for _, word, count, *_ in tables["words"]} == {
        "flood": 2,
        "warning": 1,
        "warnings": 1,
    }


def test_example_hand_written_tweets_in_any_order_give_the_recounted_tables(
    load_example: Callable[[str], ModuleType],
    rows_of: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crisis = load_example("crisis")
    monkeypatch.setattr(crisis, "BURST_COUNT", 3)
    monkeypatch.setattr(crisis, "BURST_FACTOR", 2)
    tweets = each_minute(NOON, "fire near plant", "explosion, fire", "explosion", "EXPLOSION!")
    tweets += each_minute(NOON + HOUR, "fire", "fire", *["explosion"] * 9, "fire", "fire")
    tweets += each_minute(NOON + 3 * HOUR, *["explosion at the plant"] * 4)
    tweets += [tweets[2], (tweets[0][0], "fire &amp; smoke near plant")]
    expected = replay(tweets, crisis.STOPWORDS, burst_count=3, burst_factor=2)
    assert [alert[:2] for alert in expected["alerts"]] == [
        (NOON, "explosion"),
        (NOON + HOUR, "explosion"),
        (NOON + HOUR, "fire"),
        (NOON + 3 * HOUR, "explosion"),
        (NOON + 3 * HOUR, "plant"),
    ]
    crisis.tweets.feed(events(tweets, seed=3))
    assert (
        rows_of(crisis.db, crisis.words, crisis.alerts, crisis.alert_tweets, crisis.audit)
        == expected
    )


@pytest.mark.long
@pytest.mark.data
def test_keywords_of_real_tweets_example_and_recount_find_the_same(
    load_example: Callable[[str], ModuleType], data_folder: Path, scale: int
) -> None:
    crisis = load_example("crisis")
    tweets = read_tweets(data_folder / "crisislex")
    assert len(tweets) == 60_082
    for _, text in Random(4).sample(tweets, min(5_000 * scale, len(tweets))):
        assert crisis.keywords(text) == sorted(keywords(text, crisis.STOPWORDS))


@pytest.mark.long
@pytest.mark.data
def test_example_night_of_an_explosion_gives_the_recounted_tables(
    load_example: Callable[[str], ModuleType],
    rows_of: Callable[..., dict[str, Any]],
    data_folder: Path,
    scale: int,
) -> None:
    crisis = load_example("crisis")
    start = datetime(2013, 4, 18, 1, tzinfo=UTC)
    tweets = [
        (id_, text)
        for id_, text in read_tweets(data_folder / "crisislex")
        if start <= instant(written_ms(id_)) < start + 3 * scale * HOUR
    ]
    expected = replay(tweets, crisis.STOPWORDS)
    assert (start, "explosion") in [alert[:2] for alert in expected["alerts"]]
    crisis.tweets.feed(events(tweets, seed=5))
    assert (
        rows_of(crisis.db, crisis.words, crisis.alerts, crisis.alert_tweets, crisis.audit)
        == expected
    )
