"""What the shared tables Word, Tweet and Cluster hold, and what the operators compute of it.

All values are immutable, as versions of them are kept; all functions are pure.
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

BURST_TWEETS = 8  # of a window, the least with a burst keyword
BURST_GROWTH = 3.0  # the least ratio of its TF-IDF to what it was
UNKNOWN = 1.0  # tweets per window with a word of which little or nothing is known
LEARNING = 0.2  # what the newest window counts in a mean
SIMILARITY = 0.2  # the least cosine of a tweet and its cluster
CLUSTER_WORDS = 64  # that a cluster keeps, the most frequent
EVENT_TWEETS = 10  # of a window, the least merged into an event
EVENT_GROWTH = 2.0  # the least ratio of that to what it was
IDLE = 5  # windows after which a cluster without a tweet is removed


class Tweet(NamedTuple):
    """A registered tweet."""

    words: tuple[str, ...]
    window: int
    cluster: int | None = None


class Word(NamedTuple):
    """What is known of a word."""

    window: int  # the last with the word
    tweets: int  # of that window, with the word
    mean: float  # that of the windows before, without those it burst in
    total: int  # tweets with the word, ever
    burst: int = -1  # the last window in which it burst


class Cluster(NamedTuple):
    """Tweets that are alike; known by the id of the first."""

    words: Mapping[str, int]  # the most frequent, with the number of tweets; never changed in place
    squares: int  # the sum of the squares of these numbers
    size: int
    grown: int  # by so many tweets in this window
    pace: float  # the mean of that, before
    window: int  # the last with a tweet


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
    """Return what is known of a word after one more tweet with it."""
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
    """Return how much a word tells."""
    return tf * math.log(1 + tweets / tweets_with_it)


def labelled(word: Word, window: int, tweets: int, new_tweets: int) -> Word:
    """Return what is known of a word after it has been seen whether it bursts in this window.

    Parameters
    ----------
    word : Word
    window : int
    tweets, new_tweets : int
        How many there have been, with those of this window, and how many there are in it.
    """
    now = tf_idf(word.tweets, tweets, word.total)
    earlier = tweets - new_tweets + 1, word.total - word.tweets + 1  # one more: none is a number
    before = tf_idf(max(word.mean, UNKNOWN), *earlier)
    return word._replace(burst=window) if now >= BURST_GROWTH * before else word


def bursting(*values: Any) -> tuple[str, ...]:
    """Return the burst keywords among some words: given are their states, names and the window."""
    *words, names, window = values
    return tuple(name for name, word in zip(names, words, strict=True) if word.burst == window)


def most_similar(clusters: Mapping[int, Cluster], words: tuple[str, ...]) -> int | None:
    """Return the cluster with the largest cosine, the oldest of several; None: none is alike."""
    best, best_cosine = None, SIMILARITY
    for key, cluster in clusters.items():  # in the order of their keys
        if cluster.words.keys().isdisjoint(words):
            continue  # most of them
        shared = sum(cluster.words.get(word, 0) for word in words)
        cosine = shared / math.sqrt(len(words) * cluster.squares)
        if cosine > best_cosine or (best is None and cosine == best_cosine):
            best, best_cosine = key, cosine
    return best


def merged(cluster: Cluster | None, words: tuple[str, ...], window: int) -> Cluster:
    """Return a cluster with one more tweet; of None a new one."""
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
    """Return the event that a cluster is at the end of a window; None: it is none."""
    growth = cluster.grown / max(cluster.pace, 1)
    if cluster.grown < EVENT_TWEETS or growth < EVENT_GROWTH:
        return None
    words = tuple(word for word, _ in _most_frequent(cluster.words)[:5])
    return Event(key, window, cluster.grown, growth, words)


def rested(cluster: Cluster, window: int) -> Cluster | None:
    """Return a cluster as it goes into the next window; None: it has been idle for too long."""
    if window - cluster.window >= IDLE:
        return None
    pace = cluster.pace + LEARNING * (cluster.grown - cluster.pace)
    return cluster._replace(grown=0, pace=pace)
