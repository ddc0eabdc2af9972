"""Punctuations of several producers: the least of their marks, without those that are silent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from activedb.errors import DefinitionError, FeedFailed
from activedb.streams import Stream
from spark_bridge._producer_marks import ProducerMarks

SECOND_US = 1_000_000


def stream(**changes: Any) -> Stream:
    given: dict[str, Any] = {"type": "k", "timestamp": "t", "types": {"A": ()}, "producer": "who"}
    return Stream("x", **(given | changes))


def marks(folder: Path, **changes: Any) -> ProducerMarks:
    return ProducerMarks(stream(**changes), folder, 60.0)


def rows(*given: tuple[str | None, float | None]) -> Any:
    """A table of (producer, second)."""
    return pyarrow.table(
        {
            "event_producer": pyarrow.array([who for who, _ in given], pyarrow.string()),
            "event_time_us": pyarrow.array(
                [None if s is None else int(s * SECOND_US) for _, s in given], pyarrow.int64()
            ),
        }
    )


def punctuations(
    given: ProducerMarks, batches: Sequence[tuple[float, Any]], first: int = 0
) -> list[float | None]:
    """What each batch has, in seconds; batches are (second at which it was planned, table)."""
    found = []
    for number, (planned_s, table) in enumerate(batches, first):
        us = given.take(number, table, int(planned_s * 1000))
        found.append(None if us is None else us / SECOND_US)
    return found


def test_marks_punctuation_is_the_least_of_the_newest_times_less_the_delay(tmp_path: Path) -> None:
    found = punctuations(
        marks(tmp_path),
        [
            (1000, rows(("ann", 100), ("bob", 50), ("ann", 90))),
            (1001, rows(("bob", 70), ("bob", 60), (None, 20), ("ann", None))),
            (1002, rows(("bob", 300))),
            (1003, rows(("eve", 10))),  # not heard of before: what has been said stays
            (1004, rows(("eve", 200))),
            (1005, rows()),
        ],
    )
    assert found == [None, 50, 70, 100, 100, 100]


def test_marks_expected_producer_is_waited_for(tmp_path: Path) -> None:
    batches = [
        (1000, rows(("ann", 100))),
        (1001, rows(("ann", 200))),
        (1002, rows(("bob", 150))),
        (1003, rows()),
    ]
    given = marks(tmp_path, producers=("ann", "bob"))
    assert punctuations(given, batches) == [None, None, None, 150]


def test_marks_silent_producer_is_left_out_until_it_is_heard(tmp_path: Path) -> None:
    given = marks(tmp_path, silent_after=10, producers=("eve",))
    found = punctuations(
        given,
        [
            (1000, rows(("ann", 100), ("bob", 50))),
            (1004, rows(("ann", 200))),
            (1009, rows(("ann", 300))),  # nothing from eve
            (1012, rows(("ann", 400), ("bob", 310))),
            (1013, rows(("ann", 500))),  # eve and, until it was heard, bob were silent
            (1014, rows()),
        ],
    )
    assert found == [None, None, None, 300, 310, 310]


def test_marks_all_are_silent_the_newest_counts(tmp_path: Path) -> None:
    given = marks(tmp_path, silent_after=10)
    batches = [(1000.0, rows(("ann", 100), ("bob", 50)))]
    batches += [(1000.5 + sum(waits), rows()) for waits in ([], [5.0], [5.0, 5.0])]
    batches += [(1020, rows(("bob", 60)))]
    assert punctuations(given, [*batches, (1021, rows())]) == [None, 50, 50, 100, 100, 100]


def test_marks_pause_of_the_whole_feed_silences_nobody(tmp_path: Path) -> None:
    given = marks(tmp_path, silent_after=10)
    hour = 3600
    found = punctuations(
        given,
        [
            (1000, rows(("ann", 100), ("bob", 50))),
            (1000 + hour, rows(("ann", 200))),
            (1001 + hour, rows(("bob", 190))),
            (1002 + hour, rows()),
        ],
    )
    assert found == [None, 50, 50, 190]


def test_marks_time_from_the_future_is_none(tmp_path: Path) -> None:
    batches = [(1000, rows(("ann", 1061), ("bob", 500))), (1001, rows(("ann", 600)))]
    assert punctuations(marks(tmp_path), [*batches, (1002, rows())]) == [None, None, 500]


def test_marks_batch_that_comes_again_has_the_same_and_leaves_the_same(tmp_path: Path) -> None:
    batches = [
        (1000 + n, rows(("ann", 100 + n), ("bob", 50 + 3 * n), ("eve", 200 - n))) for n in range(6)
    ]
    for name in "xy":
        (tmp_path / name).mkdir()
    at_once = punctuations(marks(tmp_path / "x"), batches)
    found = []
    for number in range(6):
        again = batches[number : number + 1]
        first = punctuations(marks(tmp_path / "y"), again, number)
        assert punctuations(marks(tmp_path / "y"), again, number) == first
        found += first
    assert found == at_once
    assert sorted(p.name for p in (tmp_path / "y" / "producers").iterdir()) == ["4", "5"]


def test_marks_that_are_lost_are_missed(tmp_path: Path) -> None:
    with pytest.raises(FeedFailed, match="what was known of its producers before batch 3"):
        marks(tmp_path).take(3, rows(), 1000)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"producer": " "}, "producer must be a text"),
        ({"producers": ["ann"]}, "producers must be a tuple of names"),
        ({"producers": ("",)}, "a producer's name must be a text"),
        ({"producer": None, "producers": ("ann",)}, "give producer, too"),
        ({"silent_after": 0}, "silent_after must be positive"),
        ({"on_silent": print}, "only a stream of producers knows who is silent"),
        ({"membership": "weak"}, "membership is for events from Python: leave out one"),
    ],
)
def test_stream_producers_without_a_meaning_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        stream(**changes)
