"""An independent recount of ``examples/crisis.py``: plain dictionaries, tweets in order of time.

It shares nothing with the example but the list of stopwords. It keeps every tweet of every hour of
every keyword and derives the tables at the end, where the example counts as it goes.
"""

from __future__ import annotations

import csv
import gzip
import html
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

HOUR_MS = 3_600_000


def read_tweets(folder: Path) -> list[tuple[int, str]]:
    """Return (tweet id, text) of every row of every file, in the order of files and rows."""
    tweets = []
    for path in sorted(folder.glob("*.csv.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines)
            next(rows)
            tweets += [(int(tweet_id.strip("'")), text) for tweet_id, text, _ in rows]
    return tweets


def written_ms(tweet_id: int) -> int:
    """Return the ms since 1970 (UTC) at which the tweet with this id was written."""
    return (tweet_id >> 22) + 1_288_834_974_657


def instant(ms: int) -> datetime:
    """Return the aware datetime `ms` after 1970 (UTC)."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def keywords(text: str, stopwords: frozenset[str]) -> set[str]:
    """Return the keywords of `text`, scanned character by character."""
    text = _without_links_and_mentions(html.unescape(text)).lower().replace("’", "'") + " "
    found = set()
    at = 0
    while at < len(text):
        end = at + 1
        if text[at] == "#":
            while _is_word(text[end : end + 1]):
                end += 1
            if end - at < 4:  # too short for a hashtag: what follows is read as a word
                end = at + 1
        elif _is_letter(text[at]):
            while _is_letter(text[end]):
                end += 1
            if text[end] == "'" and _is_letter(text[end + 1 : end + 2]):
                end += 1
                while _is_letter(text[end]):
                    end += 1
            if text[at:end].endswith("'s"):
                found.add(text[at : end - 2])
        found.add(text[at:end])
        at = end
    return {
        word
        for word in found
        if len(word) >= 4 and not word.endswith("'s") and word not in stopwords
    }


def _is_letter(char: str) -> bool:
    return char.isalnum() and not char.isdecimal()


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _without_links_and_mentions(text: str) -> str:
    kept = ""
    at = 0
    while at < len(text):
        head = next((h for h in ("http://", "https://") if text.startswith(h, at)), "")
        end = at + len(head)
        if head:
            while end < len(text) and not text[end].isspace():
                end += 1
            if end == at + len(head):
                head = ""
        elif text[at] == "@":
            end += 1
            while end < len(text) and _is_word(text[end]):
                end += 1
            head = text[at + 1 : end]
        kept += " " if head else text[at]
        at = end if head else at + 1
    return kept


def replay(
    tweets: Iterable[tuple[int, str]],
    stopwords: frozenset[str],
    *,
    burst_count: int = 15,
    burst_factor: int = 4,
) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the tables must hold: table name to its rows, sorted, columns in table order."""
    hours_of: dict[str, dict[int, list[int]]] = {}
    raised: dict[tuple[int, str], tuple[int, int, int]] = {}  # at (ms), count, count before
    for tweet_id, text in sorted(tweets):  # the time is the id's upper part: this is time order
        hour = written_ms(tweet_id) // HOUR_MS
        for word in keywords(text, stopwords):
            hours = hours_of.setdefault(word, {})
            ids = hours.setdefault(hour, [])
            if tweet_id in ids:
                continue
            ids.append(tweet_id)
            before = len(hours.get(hour - 1, []))
            if (
                (hour, word) not in raised
                and len(ids) >= burst_count
                and len(ids) >= burst_factor * before
            ):
                raised[hour, word] = (written_ms(tweet_id), len(ids), before)

    words = []
    for word, hours in hours_of.items():
        for hour, ids in hours.items():
            burst = (hour, word) in raised
            mentions = ids[: raised[hour, word][1]] if burst else ids
            words.append((instant(hour * HOUR_MS), word, len(ids), ids[-1], burst, mentions))
    alerts, alert_tweets, audit = [], [], []
    for (hour, word), (at_ms, count, before) in raised.items():
        start = instant(hour * HOUR_MS)
        alerts.append((start, word, instant(at_ms), count, before))
        alert_tweets += [(start, word, tweet_id) for tweet_id in hours_of[word][hour][:count]]
        audit.append((start, word, f"{count} tweets, {before} in the hour before"))
    return {
        "words": sorted(words),
        "alerts": sorted(alerts),
        "alert_tweets": sorted(alert_tweets),
        "audit": sorted(audit),
    }
