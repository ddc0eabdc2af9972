"""Quality of the detection of events, measured by the labels of the tweets.

A tweet is *detected* if the cluster it was merged into was selected as an event, in any window.
Precision is the share of on-topic tweets among the detected ones; recall is the share of detected
tweets among the on-topic ones. (On-topic tweets concern the crisis whose file contains them.)

A cluster counts for a crisis if more than half of its tweets are on-topic, and most of these are in
that crisis's file. A crisis is *first detected* at the end of the first window in which a cluster
was selected that counts for it with the tweets it had by then. The *delay* is the time from the
crisis's first on-topic tweet to that moment. It can hardly be shorter than a window, which lasts
hours because the data is a sample of all tweets. Some tweets labelled on-topic are older than the
crisis, for the Texas explosion by a day.

The *summit* of a crisis is the window with most of its on-topic tweets. The summit of its detection
is the window with most tweets merged into clusters that, in the end, count for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from _tweets import Post, written_us
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["Detections", "show"]

_HOUR_US = 3_600_000_000


class Detections:
    """Collector of the selected clusters, window by window, and of the resulting measures.

    Parameters
    ----------
    posts : sequence of Post
        All tweets. If several rows have the same id, the first counts.
    """

    def __init__(self, posts: Sequence[Post]):
        self._posts: dict[int, Post] = {}
        for post in posts:
            self._posts.setdefault(post.id, post)
        self._window_of: dict[int, int] = {}
        self._ends_us: list[int] = []
        self._selected: dict[int, tuple[int, tuple[str, ...]]] = {}  # first window, words
        self._events = 0
        self._members: dict[int, list[Post]] = {}

    def window_ended(self, posts: Iterable[Post], events: Mapping[int, tuple[str, ...]]) -> None:
        """Add the next window's tweets, and the clusters selected at its end with their words."""
        window = len(self._ends_us)
        ids = [post.id for post in posts]
        self._ends_us.append(written_us(max(ids)))
        for id_ in ids:
            self._window_of.setdefault(id_, window)
        for cluster, words in events.items():
            self._selected.setdefault(cluster, (window, words))
        self._events += len(events)

    def clustered(self, cluster_of: Mapping[int, int | None]) -> None:
        """Set each tweet's cluster, at the end."""
        members = defaultdict(list)
        for id_, cluster in sorted(cluster_of.items()):
            if cluster is not None:
                members[cluster].append(self._posts[id_])
        self._members = dict(members)

    def figures(self) -> dict[str, Any]:
        """Return the measures over all tweets."""
        detected = [post for cluster in self._selected for post in self._members[cluster]]
        right = sum(post.is_on_topic for post in detected)
        return {
            "windows": len(self._ends_us),
            "clusters": len(self._members),
            "clusters_selected": len(self._selected),
            "events": self._events,
            "clustered": sum(map(len, self._members.values())),
            "detected": len(detected),
            "on_topic": sum(post.is_on_topic for post in self._posts.values()),
            "precision": _share(right, len(detected)),
            "recall": _share(right, sum(post.is_on_topic for post in self._posts.values())),
        }

    def crises(self) -> list[dict[str, Any]]:
        """Return the measures of each crisis, in the order of their first on-topic tweets."""
        detected = {post.id for cluster in self._selected for post in self._members[cluster]}
        clusters_of = defaultdict(list)
        for cluster in self._selected:
            clusters_of[_crisis_of(self._members[cluster])].append(cluster)
        found = self._first_detections()
        rows = []
        for crisis in {post.crisis: None for post in self._posts.values()}:
            own = [post for post in self._posts.values() if post.crisis == crisis]
            topic = [post for post in own if post.is_on_topic]
            hits = [post for post in own if post.id in detected]
            right = sum(post.is_on_topic for post in hits)
            row: dict[str, Any] = {
                "crisis": crisis,
                "on_topic": len(topic),
                "precision": _share(right, len(hits)),
                "recall": _share(right, len(topic)),
                "first_on_topic": None,
                "first_detected": None,
                "delay_h": None,
                "delay_windows": None,
                "words": [],
                "summit_windows_off": None,
            }
            if topic:
                first = min(topic, key=lambda post: post.id)
                row["first_on_topic"] = _time(written_us(first.id))
            if topic and crisis in found:
                window, words = found[crisis]
                end_us = self._ends_us[window]
                row["first_detected"] = _time(end_us)
                row["delay_h"] = round((end_us - written_us(first.id)) / _HOUR_US, 2)
                row["delay_windows"] = window - self._window_of[first.id]
                row["words"] = list(words)
                merged = [post for key in clusters_of[crisis] for post in self._members[key]]
                if merged:
                    row["summit_windows_off"] = self._summit(merged) - self._summit(topic)
            rows.append(row)
        return sorted(rows, key=lambda row: str(row["first_on_topic"]))

    def _first_detections(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        found: dict[str, tuple[int, tuple[str, ...]]] = {}
        for cluster, (window, words) in self._selected.items():  # in the order of selection
            posts = [p for p in self._members[cluster] if self._window_of[p.id] <= window]
            crisis = _crisis_of(posts)
            if crisis is not None and (crisis not in found or window < found[crisis][0]):
                found[crisis] = (window, words)
        return found

    def _summit(self, posts: Iterable[Post]) -> int:
        counts = Counter(self._window_of[post.id] for post in posts)
        return min(counts, key=lambda window: (-counts[window], window))


def _crisis_of(posts: Sequence[Post]) -> str | None:
    """Return the crisis for which a cluster with these tweets counts, or None."""
    counts = Counter(post.crisis for post in posts if post.is_on_topic)
    if 2 * sum(counts.values()) <= len(posts):
        return None
    return min(counts, key=lambda crisis: (-counts[crisis], crisis))


def _share(some: int, of: int) -> float | None:
    return round(some / of, 4) if of else None


def _time(us: int) -> str:
    return f"{datetime.fromtimestamp(us // 1_000_000, UTC):%Y-%m-%d %H:%M:%S}"


def show(figures: Mapping[str, Any], crises: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of the crises, and the figures."""
    table = Table("crisis, and the words of its first event", show_lines=True)
    for name in ("delay h", "windows", "precision", "recall"):
        table.add_column(name, justify="right")
    for row in crises:
        cells = (row["delay_h"], row["delay_windows"], row["precision"], row["recall"])
        name = row["crisis"].replace("_", " ")
        shown = ("never" if cell is None else str(cell) for cell in cells)
        table.add_row(Text(f"{name}\n{' '.join(row['words'])}"), *shown)  # words are no markup
    console = Console()
    console.print(table)
    for name, value in figures.items():
        console.print(f"{name.replace('_', ' ')}: {value}", highlight=False)
