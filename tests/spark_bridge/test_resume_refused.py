"""Start of a query: what the database knows, what a checkpoint says, what is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import activedb as adb
from activedb.errors import CheckpointMismatch, ConfigurationError, FeedFailed
from activedb.streams import Marks, Positions, Source, StreamDeclaration

pytest.importorskip("pyspark", reason="no Spark: make test-all installs it")

from spark_bridge import SparkFeed
from spark_bridge._checkpoint import Beginning, beginning_of
from spark_bridge._replay_source import ReplayReader

RECORDING = adb.Replay(format="text")
KAFKA = adb.Kafka("127.0.0.1:9092", "clicks")
ROW = pyarrow.table({"event_type": ["A"], "event_time_us": [1], "event_id": [None], "raw": [None]})
PYTHON = {"source": {"kind": "Python"}, "punctuation_us": None}


def stream(source: Source, name: str = "x", **changes: Any) -> StreamDeclaration:
    given = {"type": "'A'", "timestamp": "t", "types": {"A": ()}}
    return StreamDeclaration(name, source=source, **(given | changes))


def marks(us: int | None) -> dict[str, Any]:
    return Marks({} if us is None else {"": (us, 0)}, {}, 0, 5, us).record()


def position(kind: str, us: int | None = 7, **source: Any) -> dict[str, Any]:
    return {"source": {"kind": kind, **source}, "punctuation_us": us, "marks": marks(us)}


def begin(source: Source, *known: Mapping[str, Any] | None) -> Beginning:
    return beginning_of(Path("/nowhere"), stream(source), Positions("q", 6, list(known)))


def test_query_begins_behind_what_the_last_position_says() -> None:
    offset = {"clicks": {"0": 23, "1": 42}}
    begun = begin(KAFKA, None, position("Kafka", 3, offset={}), position("Kafka", offset=offset))
    assert begun == Beginning(
        "x", "/nowhere", continues="q", first_batch_id=7, offset=offset, marks=marks(7)
    )
    assert begin(KAFKA, position("Kafka", offset=offset), PYTHON) == begun


def test_query_of_files_begins_behind_all_that_were_read() -> None:
    known = [position("Files", files=files) for files in (["/a", "/b"], [], ["/c"])]
    assert begin(adb.Files("text"), *known, PYTHON).files == ("/a", "/b", "/c")


def test_query_of_a_stream_that_python_has_fed_alone_begins_with_the_first_row() -> None:
    begun = begin(RECORDING, PYTHON)
    assert begun == Beginning("x", "/nowhere", continues="q", first_batch_id=7)


@pytest.mark.parametrize(
    ("source", "known", "why"),
    [
        (adb.Socket(9999), position("Socket"), "does not send again"),
        (adb.Rate(), position("Rate"), "does not send again"),
        (KAFKA, None, "older version"),
        (RECORDING, position("Files", files=[]), "fed from Files so far"),
        (adb.Files("text"), position("Files", files=[]) | {"elsewhere": True}, "scale_out"),
    ],
)
def test_query_that_nobody_can_tell_where_to_begin_is_refused(
    source: Source, known: Mapping[str, Any] | None, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        begin(source, known)


def test_files_of_another_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    known = Positions("q", 0, [position("Files", files=["/elsewhere/a.txt"])])
    with pytest.raises(ConfigurationError, match=r"/elsewhere/a\.txt"):
        SparkFeed(stream(adb.Files("text")), tmp_path, tmp_path / "new", resume=known)


def test_recording_that_ended_ends_again_for_the_query_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    reader = ReplayReader({"path": str(tmp_path)})
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert (end["line"], end["end"]) == (2, True)
    again = ReplayReader({"path": str(tmp_path), "startingOffset": json.dumps(end)})
    begin = again.initialOffset()
    assert (begin["line"], begin["end"]) == (2, False), "else no batch would say that it is over"
    assert again.latestOffset(begin, limit) == end


# -- checkpoints ---------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a checkpoint as two micro-batches leave it, the second one not committed."""
    folder = tmp_path / "checkpoint"
    for batch_id in (0, 1):
        for log, text in (
            ("offsets", 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":5}\n{"logOffset":0}'),
            ("commits", 'v1\n{"nextBatchWatermarkMs":0}'),
        ):
            (folder / log).mkdir(parents=True, exist_ok=True)
            (folder / log / str(batch_id)).write_text(text)
    (folder / "commits" / "1").unlink()
    (folder / "metadata").write_text('{"id":"7365cdd2"}')
    Beginning("x", str(folder)).write(folder)
    (folder / "files" / "groups").mkdir(parents=True)
    return folder


def feed(checkpoint: Path, name: str = "x") -> SparkFeed:
    recording = checkpoint.parent / "a.txt"
    recording.touch()
    return SparkFeed(stream(RECORDING, name), recording, checkpoint)


def test_checkpoint_that_is_whole_is_taken(checkpoint: Path) -> None:
    whole = feed(checkpoint)
    assert (whole.query_id, whole.next_batch_id, whole.continues) == ("7365cdd2", 1, None)


def cut(name: str, text: str = "") -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).write_text(text)


def remove(name: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (remove("metadata"), "metadata is missing"),
        (cut("metadata", '{"id":'), "metadata cannot be read"),
        (remove("offsets/0"), "offsets/0 is missing"),
        (cut("offsets/1"), "offsets/1 cannot be read"),
        (cut("offsets/1", 'v1\n{"batchWatermarkMs":0}\n{"logOff'), "offsets/1 cannot be read"),
        (remove("commits/0"), "commits/0 is missing"),
        (cut("commits/0", "v1"), "commits/0 cannot be read"),
        (cut("activedb.json", '{"stream":'), "activedb.json cannot be read"),
    ],
)
def test_checkpoint_that_is_damaged_is_refused_with_what_to_do(
    checkpoint: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(checkpoint)
    with pytest.raises(FeedFailed, match=f"is damaged: {said}.*--resume"):
        feed(checkpoint)


def test_checkpoint_without_its_list_of_files_is_refused(checkpoint: Path) -> None:
    (checkpoint / "files" / "groups").rmdir()
    (checkpoint.parent / "a.txt").touch()
    of_files = SparkFeed(stream(adb.Files("text")), checkpoint.parent / "a.txt", checkpoint)
    with pytest.raises(FeedFailed, match="is damaged: the list of files"):
        of_files.run(lambda batch: None)


def test_checkpoint_of_another_stream_is_refused(checkpoint: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="is the checkpoint of stream 'x'"):
        feed(checkpoint, "y")


def test_checkpoint_of_files_that_was_moved_is_refused(checkpoint: Path) -> None:
    moved = checkpoint.rename(checkpoint.with_name("moved"))
    with pytest.raises(CheckpointMismatch, match=f"was in {checkpoint}"):
        SparkFeed(stream(adb.Files("text")), moved.parent, moved)
    assert feed(moved).next_batch_id == 1, "a recording is found wherever the checkpoint is"


@pytest.mark.long
def test_batch_fed_from_python_between_those_of_spark_is_told_from_them() -> None:
    """The batch had the number of Spark's next one."""

    def batch(number: int) -> adb.AtomicBatch:
        where = position("Kafka", None, offset=number)
        return adb.AtomicBatch("x", "q", number, ROW, None, position=where)

    with adb.connect("memory://") as db:
        fed = db.stream("x", type="'A'", timestamp="t", types={"A": ()})
        run = fed.run
        run.apply(batch(0))
        run.apply(batch(0))
        fed.feed([])
        with pytest.raises(CheckpointMismatch, match="other rows"):
            run.apply(batch(1))
        assert run.totals()["events"] == 1


def test_checkpoint_that_has_lost_where_it_began_is_refused() -> None:
    """Batches of such a checkpoint would have numbers that others have had."""
    with adb.connect("memory://") as db:
        run = db.stream("x", type="'A'", timestamp="t", types={"A": ()}).run
        run.apply(adb.AtomicBatch("x", "q", 0, ROW, None))
        run.apply(adb.AtomicBatch("x", "q", 1, ROW, None))
        run.apply(adb.AtomicBatch("x", "r", 2, ROW, None, continues="q"))
        with pytest.raises(CheckpointMismatch, match=r"activedb\.json"):
            run.apply(adb.AtomicBatch("x", "r", 1, ROW, None))
        with pytest.raises(CheckpointMismatch, match="after query q"):
            run.apply(adb.AtomicBatch("x", "s", 3, ROW, None, continues="q"))
        run.apply(adb.AtomicBatch("x", "r", 3, ROW, None, continues="q"))
        assert run.waiting == 4
