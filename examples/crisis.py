"""Keywords that burst in 60,082 tweets of six crises, found by rules while the tweets stream in.

The data is CrisisLexT6 (Olteanu et al. 2014, github.com/sajao/CrisisLex): one CSV per crisis, in
no order; a tweet's id holds the millisecond it was written. Run it over the folder of the files::

    activedb run examples/crisis.py --input ../shared/data/crisislex

Each tweet is one s-transaction. Its rule updates one row per keyword: how many tweets of the
current hour have it, how many of the hour before had it. A keyword *bursts* when an hour has
``BURST_COUNT`` tweets with it and ``BURST_FACTOR`` times as many as the hour before. That inserts
an alert, and the alert triggers two more rules: one keeps the tweets that caused it, in the same
s-transaction; one writes the audit, detached, in a transaction of its own. As a row carries the
hour before along, the result is right only if tweets are processed in the order of their time,
whatever order they arrive in. A few tweets are in the files twice: they count once. Afterwards::

    SELECT * FROM alerts ORDER BY raised_at;
"""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, DateTime, Integer, Table, Text

import activedb as adb

if TYPE_CHECKING:
    from collections.abc import Mapping

HOUR = timedelta(hours=1)
BURST_COUNT = 15
BURST_FACTOR = 4

STOPWORDS = frozenset(Path(__file__).with_name("stopwords.txt").read_text("utf-8").split())
_NOISE = re.compile(r"https?://\S+|@\w+")
_WORD = re.compile(r"#\w{3,}|[^\W\d_]+(?:'[^\W\d_]+)?")

db = adb.connect()

words = Table(
    "words",
    db.metadata,
    Column("word", Text, primary_key=True),
    Column("hour", DateTime(timezone=True), nullable=False),  # the newest hour with the word
    Column("count", Integer, nullable=False),  # its tweets in that hour ...
    Column("before", Integer, nullable=False),  # ... in the hour before ...
    Column("total", Integer, nullable=False),  # ... and ever
    Column("last_tweet", BigInteger, nullable=False),
    Column("burst", Boolean, nullable=False),  # the hour's alert has been raised
    Column("mentions", JSON, nullable=False),  # ids of the hour's tweets, up to its alert
)
alerts = Table(
    "alerts",
    db.metadata,
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("word", Text, primary_key=True),
    Column("raised_at", DateTime(timezone=True), nullable=False),
    Column("count", Integer, nullable=False),
    Column("baseline", Integer, nullable=False),
)
alert_tweets = Table(
    "alert_tweets",
    db.metadata,
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("word", Text, primary_key=True),
    Column("tweet_id", BigInteger, primary_key=True),
)
audit = Table(
    "audit",
    db.metadata,
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("word", Text, primary_key=True),
    Column("message", Text, nullable=False),
)

_ID = "CAST(replace(tweet_id, '\\'', '') AS BIGINT)"
tweets = db.stream(
    "tweets",
    source=adb.Files(
        format="csv",
        schema="tweet_id STRING, tweet STRING, label STRING",
        glob="*.csv.gz",
        options={"header": "true", "multiLine": "true", "escape": '"'},  # texts hold \n and \
    ),
    type="'TWEET'",
    timestamp=f"timestamp_millis(shiftright({_ID}, 22) + 1288834974657)",
    id="tweet_id",
    params={"tweet_id": _ID, "text": "tweet"},
    types={"TWEET": ("tweet_id", "text")},
    delay=timedelta(days=160),  # a file reaches back 156 days behind those named before it
)


def keywords(text: str) -> list[str]:
    """Return the hashtags and longer words of a tweet, sorted: done again, it does the same."""
    plain = _NOISE.sub(" ", html.unescape(text)).lower().replace("’", "'")
    found = {word.removesuffix("'s") for word in _WORD.findall(plain)}
    return sorted(word for word in found if len(word) >= 4 and word not in STOPWORDS)


def mentioned(row: Mapping[str, Any] | None, hour: datetime, tweet_id: int) -> dict[str, Any]:
    """Return what changes about a keyword with one more tweet, written in `hour`."""
    new: dict[str, Any] = {"total": row["total"] + 1 if row else 1, "last_tweet": tweet_id}
    if row is None or row["hour"] != hour:
        before = row["count"] if row and row["hour"] == hour - HOUR else 0
        new |= {"hour": hour, "count": 1, "before": before, "burst": False, "mentions": [tweet_id]}
    else:
        new["count"] = row["count"] + 1
        if not row["burst"]:  # the mentions of a burst stay those that caused it
            new["burst"] = new["count"] >= max(BURST_COUNT, BURST_FACTOR * row["before"])
            new["mentions"] = [*row["mentions"], tweet_id]
    return new


@db.rule(on=adb.event("TWEET"))
def count_keywords(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Count the tweet for each of its keywords; insert an alert for each that bursts with it."""
    tweet_id = o.params["tweet_id"]
    hour = datetime.fromtimestamp(o.us // 3_600_000_000 * 3_600, UTC)
    for word, row in t.get_many(words, keywords(o.params["text"]), for_update=True).items():
        new = mentioned(row, hour, tweet_id)
        if row is None:
            t.insert(words, {"word": word, **new})
        elif row["last_tweet"] != tweet_id:  # the files hold some tweets twice
            t.update(words, word, **new)
            if new.get("burst"):
                counts = {"count": new["count"], "baseline": row["before"]}
                t.insert(alerts, {"hour": hour, "word": word, "raised_at": o.timestamp, **counts})


@db.rule(on=adb.inserted(alerts))
def keep_evidence(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Keep the tweets that caused the alert, as part of the s-transaction that raised it."""
    alert = {"hour": o.params["hour"], "word": o.params["word"]}
    row = t.get(words, o.params["word"])
    for tweet_id in row["mentions"] if row else ():
        t.insert(alert_tweets, alert | {"tweet_id": tweet_id})


@db.rule(on=adb.inserted(alerts), coupling="detached")
def report(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Write the audit, in a transaction of its own that stands even if the batch is undone."""
    key = (o.params["hour"], o.params["word"])
    if t.get(audit, key) is None:  # else the batch is processed again
        message = f"{o.params['count']} tweets, {o.params['baseline']} in the hour before"
        t.insert(audit, {"hour": key[0], "word": key[1], "message": message})
