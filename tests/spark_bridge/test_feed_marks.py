"""Punctuations of a feed: kept beside its checkpoint, the same when a batch comes again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from activedb.errors import DefinitionError, FeedFailed
from activedb.streams import StreamDeclaration
from spark_bridge._run import FeedMarks

SECOND_US = 1_000_000


def stream(**changes: Any) -> StreamDeclaration:
    given: dict[str, Any] = {"type": "k", "timestamp": "t", "types": {"A": ()}, "producer": "who"}
    return StreamDeclaration("x", **(given | changes))


def marks(folder: Path, **changes: Any) -> FeedMarks:
    return FeedMarks(stream(**changes), folder, 60.0)


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
    given: FeedMarks, batches: Sequence[tuple[float, Any]], first: int = 0
) -> list[float | None]:
    """Return the punctuation of each batch, in seconds.

    Batches are (second at which it was planned, table).
    """
    found = []
    for number, (planned_s, table) in enumerate(batches, first):
        us = given.take(number, table, int(planned_s * 1000)).punctuation_us
        found.append(None if us is None else us / SECOND_US)
    return found


# -- several producers ---------------------------------------------------------------------


def test_marks_punctuation_is_the_least_of_the_newest_times(tmp_path: Path) -> None:
    found = punctuations(
        marks(tmp_path),
        [
            (1000, rows(("ann", 100), ("bob", 50), ("ann", 90))),
            (1001, rows(("bob", 70), ("bob", 60), (None, 20), ("ann", None))),
            (1002, rows(("bob", 300))),
            (1003, rows(("eve", 10))),  # not heard of before: what has been said stays
            (1004, rows(("eve", 200))),
            (1005, rows(("ann", 400))),
            (1006, rows()),
        ],
    )
    assert found == [50, 70, 100, 100, 100, 200, 200]


def test_marks_expected_producer_is_waited_for(tmp_path: Path) -> None:
    batches = [(1000, rows(("ann", 100))), (1001, rows(("ann", 200))), (1002, rows(("bob", 150)))]
    given = marks(tmp_path, expected_producers=("ann", "bob"))
    assert punctuations(given, batches) == [None, None, 150]


def test_marks_silent_producer_is_left_out_until_it_is_heard(tmp_path: Path) -> None:
    given = marks(tmp_path, silent_after=10, expected_producers=("eve",))
    found = punctuations(
        given,
        [
            (1000, rows(("ann", 100), ("bob", 50))),
            (1004, rows(("ann", 200))),
            (1009, rows(("ann", 300))),  # nothing from eve
            (1012, rows(("ann", 400))),  # eve and bob are silent
            (1013, rows(("bob", 310))),  # what has been said stays
            (1014, rows(("ann", 500))),
            (1015, rows(("bob", 450))),
        ],
    )
    assert found == [None, None, None, 400, 400, 400, 450]


def test_marks_producer_that_is_heard_again_counts_with_the_batch_that_has_it(
    tmp_path: Path,
) -> None:
    batches = [
        (1000, rows(("ann", 100), ("bob", 50))),
        (1005, rows(("ann", 200))),
        (1010, rows(("ann", 300))),
        (1015, rows(("ann", 400), ("bob", 310))),
    ]
    assert punctuations(marks(tmp_path, silent_after=10), batches) == [50, 50, 50, 310]


def test_marks_all_are_silent_the_newest_counts(tmp_path: Path) -> None:
    given = marks(tmp_path, silent_after=10)
    batches = [(1000.0, rows(("ann", 100), ("bob", 50)))]
    batches += [(1000.5 + sum(waits), rows()) for waits in ([], [5.0], [5.0, 5.0])]
    batches += [(1020, rows(("bob", 60)))]
    assert punctuations(given, batches) == [50, 50, 50, 100, 100]


def test_marks_pause_of_the_whole_feed_silences_nobody(tmp_path: Path) -> None:
    given = marks(tmp_path, silent_after=10)
    hour = 3600
    found = punctuations(
        given,
        [
            (1000, rows(("ann", 100), ("bob", 50))),
            (1000 + hour, rows(("ann", 200))),
            (1001 + hour, rows(("bob", 190))),
        ],
    )
    assert found == [50, 50, 190]


def test_marks_time_from_the_future_is_none(tmp_path: Path) -> None:
    batches = [
        (1000, rows(("ann", 1060.000001), ("bob", 500))),
        (1001, rows(("ann", 600))),
        (1001, rows(("bob", 1061))),
    ]
    assert punctuations(marks(tmp_path), batches) == [None, 500, 600]


# -- no producers --------------------------------------------------------------------------


def of_nobody(*times_us: int | None) -> Any:
    return pyarrow.table({"event_time_us": pyarrow.array(times_us, pyarrow.int64())})


@pytest.mark.parametrize(
    ("times_us", "before_us", "reached_us"),
    [
        ([], None, None),
        ([], 5_000, 5_000),
        ([None], 5_000, 5_000),
        ([20_000_999, None, 3], None, 9_999_000),
        ([20_000_000], 12_000_000, 12_000_000),
        ([9_000_000], None, None),  # it would be before 1970
        ([20_000_000, 100_000_001], None, 9_999_000),  # beyond what is believed
        ([20_000_000, 100_000_000], None, 89_999_000),
    ],
)
def test_marks_of_nobody_are_the_newest_believed_time_less_the_delay(
    tmp_path: Path, times_us: list[int | None], before_us: int | None, reached_us: int | None
) -> None:
    """Spark's watermark of the next batch is the same."""
    delayed = stream(producer=None, delay=timedelta(microseconds=10_000_001))
    given = FeedMarks(delayed, tmp_path, 10.0)
    newest_us = None if before_us is None else before_us + 10_001_000
    assert given.take(0, of_nobody(newest_us), 90_000).punctuation_us == before_us
    assert given.take(1, of_nobody(*times_us), 90_000).punctuation_us == reached_us


def test_marks_of_intervals_are_their_lower_ends(tmp_path: Path) -> None:
    uncertain = stream(producer=None, accuracy=timedelta(seconds=1))
    table = pyarrow.table({"event_time_us": [5_000_000], "event_low_us": [4_000_000]})
    assert FeedMarks(uncertain, tmp_path, 60.0).take(0, table, 9_000).punctuation_us == 4_000_000


def test_marks_believe_all_times_if_no_future_is_too_far(tmp_path: Path) -> None:
    given = FeedMarks(stream(producer=None), tmp_path, float("inf"))
    assert given.take(0, of_nobody(2**60), 0).punctuation_us == 2**60 // 1000 * 1000


# -- what is kept --------------------------------------------------------------------------


def some_batches() -> list[tuple[float, Any]]:
    of = random.Random(5)
    sent = [[(of.choice("abc"), 100 * n + of.randint(1, 300)) for _ in "123"] for n in range(8)]
    return [(1000 + 4 * n, rows(*some)) for n, some in enumerate(sent)]


@pytest.mark.parametrize(
    "changes", [{"silent_after": 10}, {"producer": None, "delay": timedelta(seconds=5)}]
)
def test_marks_batch_that_comes_again_has_the_same_and_leaves_the_same(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    def kept(folder: Path) -> dict[str, str]:
        return {path.name: path.read_text() for path in (folder / "marks").iterdir()}

    batches, once, twice = some_batches(), tmp_path / "once", tmp_path / "twice"
    once.mkdir()
    twice.mkdir()
    at_once = punctuations(marks(once, **changes), batches)
    found = []
    for number in range(len(batches)):
        again = batches[number : number + 1]
        first = punctuations(marks(twice, **changes), again, number)
        assert punctuations(marks(twice, **changes), again, number) == first
        found += first
    assert found == at_once
    assert len(set(found)) > 3
    assert kept(once) == kept(twice)
    assert sorted(kept(once)) == ["6", "7"]


@pytest.mark.parametrize(
    "changes", [{"silent_after": 10, "expected_producers": ("d",)}, {"producer": None}]
)
@pytest.mark.parametrize("lost", range(1, 8))
def test_marks_go_on_behind_a_lost_checkpoint(
    tmp_path: Path, changes: dict[str, Any], lost: int
) -> None:
    batches, whole, first, rest = some_batches(), *(tmp_path / name for name in "xyz")
    for folder in (whole, first, rest):
        folder.mkdir()
    undisturbed = punctuations(marks(whole, **changes), batches)
    punctuations(marks(first, **changes), batches[:lost])
    # As a ledger has kept it with the batch before.
    planned_s, table = batches[lost - 1]
    known = marks(first, **changes).take(lost - 1, table, int(planned_s * 1000))
    before = json.loads(json.dumps(known.record()))
    again = FeedMarks(stream(**changes), rest, 60.0, before)
    assert punctuations(again, batches[lost:]) == undisturbed[lost:]
    assert undisturbed[-1] is not None


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text()[:-9]),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text("null"),
        lambda path: path.write_text('{"marked": {}}'),
    ],
)
def test_marks_that_are_lost_or_damaged_are_missed(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    punctuations(marks(tmp_path), some_batches()[:3])
    damage(tmp_path / "marks" / "2")
    said = "what was known before batch 3 of when its events are complete .*/marks.* --resume"
    with pytest.raises(FeedFailed, match=said):
        marks(tmp_path).take(3, rows(), 2_000_000)
    (tmp_path / "marks" / "1.new").touch()  # of a process that was killed
    assert marks(tmp_path).take(2, rows(("a", 5)), 1_008_000), "the one before is there"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"producer": " "}, "producer must be a text"),
        ({"expected_producers": ["ann"]}, "expected_producers must be a tuple of names"),
        ({"expected_producers": ("",)}, "a producer's name must be a text"),
        ({"producer": None, "expected_producers": ("ann",)}, "give producer, too"),
        ({"silent_after": 0}, "silent_after must be positive"),
        ({"on_silent": print}, "only a stream of producers knows who is silent"),
        ({"membership": "weak"}, "membership is for events from Python: leave out one"),
    ],
)
def test_stream_producers_without_a_meaning_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        stream(**changes)
