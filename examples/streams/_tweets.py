"""Tweets of CrisisLexT6 in the order of time, and their words.

Olteanu et al. 2014, github.com/sajao/CrisisLex: one CSV per crisis, in no particular order; columns
tweet id (in single quotes), text, label. An id contains the millisecond in which the tweet was
written.
"""

from __future__ import annotations

import csv
import gzip
import html
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from activedb.errors import BadEvent, ConfigurationError

__all__ = ["WINDOW", "Post", "crises_of", "read_posts", "windows_of", "words_of", "written_us"]

WINDOW = 400  # tweets between two punctuations, as in the paper

_EPOCH_MS = 1_288_834_974_657  # epoch of the ids
_STOPWORDS = frozenset(
    Path(__file__).resolve().parents[1].joinpath("stopwords.txt").read_text("utf-8").split()
)
_NOISE = re.compile(r"https?://\S+|@\w+")
_WORD = re.compile(r"#\w{3,}|[^\W\d_]+(?:'[^\W\d_]+)?")
_LEAST_LETTERS = 4


class Post(NamedTuple):
    """A row of a file; the last two fields are for measuring, no operator sees them."""

    id: int
    text: str
    crisis: str
    is_on_topic: bool


def crises_of(folder: Path) -> list[str]:
    """Return the names of the crises with files in a folder, such as 2013_Alberta_Floods."""
    return sorted(path.name.removesuffix(".csv.gz") for path in folder.glob("*.csv.gz"))


def read_posts(folder: Path, crises: Collection[str]) -> list[Post]:
    """Return all rows of the files of some crises, in the order of files and rows.

    Raises
    ------
    ConfigurationError
        If a crisis has no file.
    BadEvent
        If a row is not a tweet.
    """
    found = crises_of(folder)
    if not found or not set(crises) <= set(found):
        missing = ", ".join(sorted(set(crises) - set(found))) or "any crisis"
        raise ConfigurationError(
            f"there is no file of {missing} in {folder}; it has {', '.join(found) or 'none'}"
        )
    posts = []
    for crisis in sorted(crises):
        path = folder / f"{crisis}.csv.gz"
        with gzip.open(path, "rt", encoding="utf-8", newline="") as lines:
            rows = csv.reader(lines)
            next(rows)
            for row in rows:
                try:
                    id_, text, label = row
                    posts.append(Post(int(id_.strip("'")), text, crisis, label == "on-topic"))
                except ValueError as error:
                    raise BadEvent(f"{path}: this row is not a tweet: {row}") from error
    return posts


def windows_of(posts: Sequence[Post], size: int = WINDOW) -> Iterator[list[Post]]:
    """Yield the tweets in windows of `size`; tweets of one millisecond share a window.

    Windows are in the order of time. The tweets of a window are in the given order, as they arrive.
    """
    numbered = sorted(enumerate(posts), key=lambda pair: (pair[1].id, pair[0]))
    window: list[tuple[int, Post]] = []
    for number, post in numbered:
        if len(window) >= size and written_us(post.id) > written_us(window[-1][1].id):
            yield [arrived for _, arrived in sorted(window)]
            window = []
        window.append((number, post))
    if window:
        yield [arrived for _, arrived in sorted(window)]


def written_us(tweet: int) -> int:
    """Return the time at which a tweet was written, in microseconds since 1970 (UTC)."""
    return ((tweet >> 22) + _EPOCH_MS) * 1000


def words_of(text: str) -> tuple[str, ...]:
    """Return the distinct longer words of a tweet, sorted; hashtags lose their #."""
    plain = _NOISE.sub(" ", html.unescape(text)).lower().replace("’", "'")
    found = {word.removesuffix("'s").removeprefix("#") for word in _WORD.findall(plain)}
    return tuple(
        sorted(word for word in found if len(word) >= _LEAST_LETTERS and word not in _STOPWORDS)
    )
