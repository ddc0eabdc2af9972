"""Contents of the shared tables Word, Tweet and Cluster, and the functions that operators apply.

All values are immutable, because versions of them are kept; all functions are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from activedb.scheduling import Abort

__all__ = [
    "BURST_GROWTH",
    "BURST_TWEETS",
    "CLUSTER_WORDS",
    "EVENT_GROWTH",
    "EVENT_TWEETS",
    "IDLE",
    "LEARNING",
    "SIMILARITY",
    "UNKNOWN",
    "Cluster",
    "Event",
    "Tweet",
    "Word",
    "bursting",
    "counted",
    "event_of",
    "labelled",
    "merged",
    "most_similar",
    "registered",
    "rested",
]

BURST_TWEETS = 8  # minimum number of a window's tweets with a burst keyword
BURST_GROWTH = 3.0  # minimum ratio of its TF-IDF to the earlier one
UNKNOWN = 1.0  # assumed tweets per window with a rare or new word
LEARNING = 0.2  # weight of the newest window in a mean
SIMILARITY = 0.2  # minimum cosine of a tweet and its cluster
CLUSTER_WORDS = 64  # most frequent words that a cluster keeps
EVENT_TWEETS = 10  # minimum number of a window's tweets merged into an event
EVENT_GROWTH = 2.0  # minimum ratio of that number to its earlier mean
IDLE = 5  # windows after which a cluster without a tweet is removed


class Tweet(NamedTuple):
    """A registered tweet."""

    words: tuple[str, ...]
    window: int
    cluster: int | None = None


class Word(NamedTuple):
    """Statistics of a word."""

    window: int  # last window with the word
    tweets: int  # tweets of that window with the word
    mean: float  # mean number in earlier windows, without those in which it burst
    total: int  # tweets with the word, ever
    burst: int = -1  # last window in which it burst


class Cluster(NamedTuple):
    """Similar tweets; identified by the id of the first."""

    words: Mapping[str, int]  # most frequent words, with numbers of tweets; immutable
    squares: int  # sum of the squares of these numbers
    size: int
    grown: int  # tweets added in this window
    pace: float  # mean of `grown` in earlier windows
    window: int  # last window with a tweet


class Event(NamedTuple):
    """A cluster that was selected."""

    cluster: int
    window: int
    grown: int
    growth: float
    words: tuple[str, ...]  # the five most frequent


def registered(known: Tweet | None, words: tuple[str, ...], window: int) -> Tweet:
    """Return a new tweet."""
    if known is not None:
        raise Abort("the tweet is registered already")
    return Tweet(words, window)


def counted(word: Word | None, window: int) -> Word:
    """Return the statistics of a word after one more tweet with it."""
    if word is None:
        return Word(window, 1, 0.0, 1)
    if word.window == window:
        return word._replace(tweets=word.tweets + 1, total=word.total + 1)
    mean = word.mean
    if word.burst != word.window:
        mean += LEARNING * (word.tweets - mean)
    mean *= (1 - LEARNING) ** (window - word.window - 1)  # the windows without the word
    return Word(window, 1, mean, word.total + 1, word.burst)


def tf_idf(tf: float, tweets: int, tweets_with_it: int) -> float:
    """Return the weight of a word."""
    return tf * math.log(1 + tweets / tweets_with_it)


def labelled(word: Word, window: int, tweets: int, new_tweets: int) -> Word:
    """Return the statistics of a word, labelled if it bursts in this window.

    Parameters
    ----------
    word : Word
    window : int
    tweets : int
        Number of all tweets so far, including this window's.
    new_tweets : int
        Number of tweets in this window.
    """
    now = tf_idf(word.tweets, tweets, word.total)
    earlier = tweets - new_tweets + 1, word.total - word.tweets + 1  # plus one: never 0
    before = tf_idf(max(word.mean, UNKNOWN), *earlier)
    return word._replace(burst=window) if now >= BURST_GROWTH * before else word


def bursting(*values: Any) -> tuple[str, ...]:
    """Return the burst keywords among some words, given their states, names and the window."""
    *words, names, window = values
    return tuple(name for name, word in zip(names, words, strict=True) if word.burst == window)


def most_similar(clusters: Mapping[int, Cluster], words: tuple[str, ...]) -> int | None:
    """Return the most similar cluster, the oldest of equal ones; None if none is similar."""
    best, best_cosine = None, SIMILARITY
    for key, cluster in clusters.items():  # in the order of their keys
        if cluster.words.keys().isdisjoint(words):
            continue  # the usual case
        shared = sum(cluster.words.get(word, 0) for word in words)
        cosine = shared / math.sqrt(len(words) * cluster.squares)
        if cosine > best_cosine or (best is None and cosine == best_cosine):
            best, best_cosine = key, cosine
    return best


def merged(cluster: Cluster | None, words: tuple[str, ...], window: int) -> Cluster:
    """Return a cluster with one more tweet, or a new cluster if it is None."""
    old = cluster or Cluster({}, 0, 0, 0, 0.0, window)
    counts = dict(old.words)
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    if len(counts) > CLUSTER_WORDS:
        counts = dict(_most_frequent(counts)[:CLUSTER_WORDS])
    squares = sum(n * n for n in counts.values())
    return Cluster(counts, squares, old.size + 1, old.grown + 1, old.pace, window)


def _most_frequent(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))


def event_of(key: int, cluster: Cluster, window: int) -> Event | None:
    """Return the event that a cluster is at the end of a window; None if it is not an event."""
    growth = cluster.grown / max(cluster.pace, 1)
    if cluster.grown < EVENT_TWEETS or growth < EVENT_GROWTH:
        return None
    words = tuple(word for word, _ in _most_frequent(cluster.words)[:5])
    return Event(key, window, cluster.grown, growth, words)


def rested(cluster: Cluster, window: int) -> Cluster | None:
    """Return a cluster for the next window; None if it has been idle for too long."""
    if window - cluster.window >= IDLE:
        return None
    pace = cluster.pace + LEARNING * (cluster.grown - cluster.pace)
    return cluster._replace(grown=0, pace=pace)
