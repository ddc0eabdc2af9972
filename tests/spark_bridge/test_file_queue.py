from __future__ import annotations

import os
from pathlib import Path

import pytest

from activedb.errors import ConfigurationError, FeedFailed
from activedb.streams import Files
from spark_bridge._file_queue import FileQueue


def make(tmp_path: Path, *names: str, source: Files | None = None) -> FileQueue:
    for position, name in enumerate(names):
        path = tmp_path / "input" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (10_000 - position, 10_000 - position))  # newest first
    files = FileQueue(source or Files("text"), tmp_path / "input", tmp_path / "checkpoint")
    files.open()
    return files


def offer_all(files: FileQueue) -> None:
    for group in files.groups(files.list_new()):
        files.offer(group)
        files.settle()


def names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


def shown(files: FileQueue) -> list[list[str]]:
    """What Spark can read: the text in each pending file, by group."""
    groups = sorted(files.pending.iterdir())
    return [[link.read_text() for link in sorted(group.iterdir())] for group in groups]


def test_file_queue_new_files_are_ordered_by_name_not_by_age(tmp_path: Path) -> None:
    files = make(tmp_path, "b.csv", "a.csv", "c.csv", "B.csv")
    assert names(files.list_new()) == ["B.csv", "a.csv", "b.csv", "c.csv"]


def test_file_queue_groups_hold_per_batch_files_in_order(tmp_path: Path) -> None:
    files = make(tmp_path, *"edcba", source=Files("text", per_batch=2))
    groups = list(files.groups(files.list_new()))
    assert [names(group) for group in groups] == [["a", "b"], ["c", "d"], ["e"]]
    files.offer(groups[0])
    assert shown(files) == [["a", "b"]]


def test_file_queue_glob_chooses_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    written = ("a.csv", "b.txt", ".c.csv", "_d.csv", "sub/e.csv", "_sub/f.csv")
    assert names(make(tmp_path, *written).list_new()) == ["a.csv", "b.txt"]
    files = make(tmp_path, source=Files("csv", glob="**/*.csv"))
    assert names(files.list_new()) == ["a.csv", "e.csv"]


def test_file_queue_file_is_offered_once_over_several_runs(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b")
    offer_all(files)
    assert files.list_new() == []
    again = make(tmp_path, "0")
    assert names(again.list_new()) == ["0"]
    offer_all(again)
    assert sorted(p.name for p in (again.pending.parent / "done").iterdir()) == [
        "00000000",
        "00000001",
        "00000002",
    ]


def test_file_queue_cut_off_while_pending_shows_the_same_group_again(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b")
    files.offer(files.list_new()[:1])
    again = make(tmp_path)
    assert again.is_pending()
    assert shown(again) == [["a"]]
    assert names(again.list_new()) == ["b"]


def test_file_queue_cut_off_while_filling_offers_the_files_again(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b")
    half = files.pending.parent / "next"
    half.mkdir()
    (half / "000000-a").symlink_to(tmp_path / "input" / "a")
    again = make(tmp_path)
    offer_all(again)
    assert names(again.list_all()) == ["a", "b"]
    assert again.list_new() == []


def test_file_queue_same_name_in_another_folder_is_another_file(tmp_path: Path) -> None:
    offer_all(make(tmp_path, "a"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("other a")
    files = FileQueue(Files("text"), other, tmp_path / "checkpoint")
    files.open()
    assert files.list_new() == [other / "a"]


def test_file_queue_name_that_spark_cannot_read_gets_one_it_can(tmp_path: Path) -> None:
    awkward = "2024-01-01T00:00 [é]{x}" + "y" * 200 + ".csv.gz"
    files = make(tmp_path, awkward)
    files.offer(files.list_new())
    (group,) = files.pending.iterdir()
    (link,) = group.iterdir()
    assert link.read_text() == awkward
    assert link.name.endswith("y.csv.gz")
    assert link.name.isascii()
    assert not set(link.name) & set(":[]{} ")


def test_file_queue_single_file_is_an_input(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    files = FileQueue(Files("text"), tmp_path / "input" / "b", tmp_path / "checkpoint")
    files.open()
    assert names(files.list_new()) == ["b"]


def test_file_queue_input_missing_or_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere does not exist; give a file or a folder"):
        FileQueue(Files("text"), tmp_path / "nowhere", tmp_path / "checkpoint")
    files = make(tmp_path, "a")
    (tmp_path / "input" / "a").unlink()
    (tmp_path / "input").rmdir()
    with pytest.raises(FeedFailed, match="is gone"):
        files.list_new()
