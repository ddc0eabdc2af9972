"""An independent recount of ``examples/streams/social_events.py``: dictionaries, one loop.

It shares nothing with the example but the list of stopwords and the thresholds. It keeps the counts
of every word in every window, and every cluster's tweets, and derives all else from these.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.examples.replay_crisis import keywords, written_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Thresholds(NamedTuple):
    window: int = 400
    burst_tweets: int = 8
    burst_growth: float = 3.0
    unknown: float = 1.0
    learning: float = 0.2
    similarity: float = 0.2
    cluster_words: int = 64
    event_tweets: int = 10
    event_growth: float = 2.0
    idle: int = 5


class Recount(NamedTuple):
    words: dict[str, tuple[int, int, int, bool]]  # last window, count in it, total, did it burst
    registered: dict[int, tuple[tuple[str, ...], int]]  # words, window
    cluster_of: dict[int, int]
    live: set[int]  # the clusters that are left
    events: list[tuple[int, int, int]]  # window, cluster, tweets merged


def recount(
    tweets: Sequence[tuple[int, str]], stopwords: frozenset[str], with_: Thresholds | None = None
) -> Recount:
    """Return what must be found in (id, text) pairs; of those with one id the first counts."""
    k = with_ or Thresholds()
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)  # by word, then window
    bursts: set[tuple[str, int]] = set()
    registered: dict[int, tuple[tuple[str, ...], int]] = {}
    cluster_of: dict[int, int] = {}
    vectors: dict[int, Counter[str]] = {}  # of the live clusters
    grown: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by cluster, then window
    events = []
    for window, ids in enumerate(_cut([id_ for id_, _ in tweets], k.window)):
        before = len(registered)
        new = {}
        for number, text in ((id_, text) for id_, text in tweets if id_ in ids):
            words = _words(text, stopwords)
            if words and number not in registered:
                registered[number] = (words, window)
                new[number] = words
                for word in words:
                    counts[word][window] += 1
        for word in {word for words in new.values() for word in words}:
            if counts[word][window] >= k.burst_tweets and _bursts(
                counts[word],
                window,
                before,
                len(registered),
                {w for w in bursts if w[0] == word},
                k,
            ):
                bursts.add((word, window))
        for number in sorted(new):
            words = new[number]
            if not any((word, window) in bursts for word in words):
                continue
            key = _home(vectors, words, k.similarity)
            if key is None:
                key = number
                vectors[key] = Counter()
            vectors[key] = _most_frequent(vectors[key] + Counter(words), k.cluster_words)
            cluster_of[number] = key
            grown[key][window] += 1
        for key in sorted(vectors):
            now = grown[key][window]
            pace = _mean((grown[key][w] for w in range(min(grown[key]), window)), k.learning)
            if now >= k.event_tweets and now / max(pace, 1) >= k.event_growth:
                events.append((window, key, now))
            if window - max(w for w, n in grown[key].items() if n) >= k.idle:
                del vectors[key]
    words_at_end = {
        word: (max(by), by[max(by)], sum(by.values()), (word, max(by)) in bursts)
        for word, by in counts.items()
    }
    return Recount(words_at_end, registered, cluster_of, set(vectors), events)


def _cut(ids: Iterable[int], size: int) -> list[set[int]]:
    """Windows of `size` rows; those of one millisecond stay together."""
    windows: list[list[int]] = [[]]
    for id_ in sorted(ids):
        if len(windows[-1]) >= size and written_ms(id_) != written_ms(windows[-1][-1]):
            windows.append([])
        windows[-1].append(id_)
    return [set(window) for window in windows]


def _words(text: str, stopwords: frozenset[str]) -> tuple[str, ...]:
    found = {word.lstrip("#") for word in keywords(text, frozenset())}
    return tuple(sorted(word for word in found - stopwords if len(word) >= 4))


def _mean(values: Iterable[float], learning: float) -> float:
    mean = 0.0
    for value in values:
        mean += learning * (value - mean)
    return mean


def _bursts(
    by_window: Counter[int],
    window: int,
    before: int,
    tweets: int,
    bursts: set[tuple[str, int]],
    k: Thresholds,
) -> bool:
    burst_in = {at for _, at in bursts}
    earlier = [w for w in range(min(by_window), window) if w not in burst_in]
    mean = _mean((by_window[w] for w in earlier), k.learning)
    total = sum(by_window[w] for w in range(window + 1))
    rest = total - by_window[window]
    now = by_window[window] * math.log(1 + tweets / total)
    then = max(mean, k.unknown) * math.log(1 + (before + 1) / (rest + 1))
    return now >= k.burst_growth * then


def _home(vectors: dict[int, Counter[str]], words: tuple[str, ...], least: float) -> int | None:
    cosines = []
    for key, vector in vectors.items():
        product = sum(vector[word] for word in words)
        squares = len(words) * sum(n * n for n in vector.values())
        cosines.append((-product / math.sqrt(squares), key))
    cosine, key = min(cosines, default=(0.0, 0))
    return key if -cosine >= least else None


def _most_frequent(vector: Counter[str], words: int) -> Counter[str]:
    ranked = sorted(vector, key=lambda word: (-vector[word], word))
    return Counter({word: vector[word] for word in ranked[:words]})
