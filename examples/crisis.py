"""Keyword bursts in 60,082 tweets of six crises, found by rules while the tweets stream in.

The data is CrisisLexT6 (Olteanu et al. 2014, github.com/sajao/CrisisLex): one CSV per crisis, in
no particular order; a tweet's id contains the millisecond in which it was written. Run the program
over the folder of the files::

    activedb run examples/crisis.py --input ../shared/data/crisislex

Each tweet is one s-transaction. A rule on it counts the tweet in one row per keyword and hour. A
keyword *bursts* when an hour has ``BURST_COUNT`` tweets with it and ``BURST_FACTOR`` times as many
as the hour before. That change triggers a second rule, in the same s-transaction, which inserts an
alert with the tweets that caused it. The alert triggers a third rule, which writes the audit,
detached, in a separate transaction. The result is right only if tweets are processed in the order
of their time, whatever order they arrive in. A few tweets are in the files twice; they count once.
Afterwards::

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
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("word", Text, primary_key=True),
    Column("count", Integer, nullable=False),  # the hour's tweets with the word
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
    delay=timedelta(days=160),  # a file reaches 156 days further back than earlier files
)


def keywords(text: str) -> list[str]:
    """Return the hashtags and longer words of a tweet, sorted so that a rerun does the same."""
    plain = _NOISE.sub(" ", html.unescape(text)).lower().replace("’", "'")
    found = {word.removesuffix("'s") for word in _WORD.findall(plain)}
    return sorted(word for word in found if len(word) >= 4 and word not in STOPWORDS)


@db.rule(on=adb.event("TWEET"))
def count_keywords(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Count the tweet for each of its keywords; mark the keywords that burst with it."""
    tweet_id = o.params["tweet_id"]
    hour = datetime.fromtimestamp(o.us // 3_600_000_000 * 3_600, UTC)
    keys = [(hour, word) for word in keywords(o.params["text"])]
    for (_, word), row in t.get_many(words, keys, for_update=True).items():
        if row is None:
            new = {"count": 1, "last_tweet": tweet_id, "burst": False, "mentions": [tweet_id]}
            t.insert(words, {"hour": hour, "word": word, **new})
        elif row["last_tweet"] != tweet_id:  # the files hold some tweets twice
            t.update(words, (hour, word), **mentioned(t, row, tweet_id))


def mentioned(t: adb.Transaction, row: Mapping[str, Any], tweet_id: int) -> dict[str, Any]:
    """Return the changed columns of a keyword's hour after one more tweet."""
    new: dict[str, Any] = {"count": row["count"] + 1, "last_tweet": tweet_id}
    if not row["burst"]:  # the mentions of a burst are the tweets that caused it
        new["mentions"] = [*row["mentions"], tweet_id]
        new["burst"] = new["count"] >= max(BURST_COUNT, BURST_FACTOR * before(t, row, new["count"]))
    return new


def before(t: adb.Transaction, row: Mapping[str, Any], count: int) -> int:
    """Return the count of the hour before, which no further tweet can change."""
    if count < BURST_COUNT:
        return 0  # too few for a burst, so the hour before is irrelevant
    previous = t.get(words, (row["hour"] - HOUR, row["word"]))
    return previous["count"] if previous else 0


@db.rule(on=adb.updated(words, "burst"))
def raise_alert(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Insert an alert with the tweets that caused it, in the s-transaction of the last of them."""
    row = o.params
    alert = {"hour": row["hour"], "word": row["word"]}
    counts = {"count": row["count"], "baseline": before(t, row, row["count"])}
    t.insert(alerts, {**alert, **counts, "raised_at": o.timestamp})
    for tweet_id in row["mentions"]:
        t.insert(alert_tweets, {**alert, "tweet_id": tweet_id})


@db.rule(on=adb.inserted(alerts), coupling="detached")
def report(t: adb.Transaction, o: adb.Occurrence) -> None:
    """Write the audit in a separate transaction, which stands even if the batch is undone."""
    message = f"{o.params['count']} tweets, {o.params['baseline']} in the hour before"
    t.insert(audit, {"hour": o.params["hour"], "word": o.params["word"], "message": message})
