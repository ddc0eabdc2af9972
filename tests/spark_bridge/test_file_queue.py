from __future__ import annotations

import os
from pathlib import Path

import pytest

from activedb.errors import ConfigurationError, FeedFailed
from activedb.streams import Files
from spark_bridge._batch_size import BatchSize
from spark_bridge._file_drive import FileQueue


def make(tmp_path: Path, *names: str, source: Files | None = None) -> FileQueue:
    for position, name in enumerate(names):
        path = tmp_path / "input" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        os.utime(path, (10_000 - position, 10_000 - position))  # newest first
    files = FileQueue(source or Files("text"), tmp_path / "input", tmp_path / "checkpoint")
    files.open()
    return files


def show_all(files: FileQueue) -> None:
    for group in files.groups(files.list_new(), BatchSize(1, None)):
        files.show(group)
        assert files.is_pending()
        files.settle()
        assert not files.is_pending()


def names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


def shown(files: FileQueue) -> list[str]:
    """Return what Spark can read: the text of each file."""
    return [link.read_text() for link in sorted(files.current.iterdir())]


def test_file_queue_new_files_are_ordered_by_name_not_by_age(tmp_path: Path) -> None:
    files = make(tmp_path, "b.csv", "a.csv", "c.csv", "B.csv")
    assert names(files.list_new()) == ["B.csv", "a.csv", "b.csv", "c.csv"]


def test_file_queue_groups_hold_per_batch_files_in_order(tmp_path: Path) -> None:
    files = make(tmp_path, *"edcba", source=Files("text"))
    groups = list(files.groups(files.list_new(), BatchSize(2, None)))
    assert [names(group) for group in groups] == [["a", "b"], ["c", "d"], ["e"]]
    files.show(groups[0])
    assert shown(files) == ["a", "b"]


def test_file_queue_glob_chooses_and_hidden_files_are_skipped(tmp_path: Path) -> None:
    written = ("a.csv", "b.txt", ".c.csv", "_d.csv", "sub/e.csv", "_sub/f.csv")
    assert names(make(tmp_path, *written).list_new()) == ["a.csv", "b.txt"]
    files = make(tmp_path, source=Files("csv", glob="**/*.csv"))
    assert names(files.list_new()) == ["a.csv", "e.csv"]


def test_file_queue_file_is_shown_once_over_several_runs(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b")
    show_all(files)
    assert files.list_new() == []
    again = make(tmp_path, "0")
    assert names(again.list_new()) == ["0"]
    show_all(again)
    assert again.list_new() == make(tmp_path).list_new() == []


def test_file_queue_cut_off_while_pending_shows_the_same_group_again(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b")
    files.show(files.list_new()[:1])
    again = make(tmp_path)
    assert again.is_pending()
    assert shown(again) == ["a"]
    assert names(again.list_new()) == ["b"]


def test_file_queue_cut_off_while_filling_shows_the_files_later(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b")
    files.show(files.list_new()[:1])
    files.settle()
    group = tmp_path / "checkpoint" / "files" / "groups" / "00000001"
    group.mkdir()
    (group / "00000001-000000-b").symlink_to(tmp_path / "input" / "b")
    again = make(tmp_path)
    assert not again.is_pending()
    assert names(again.list_new()) == ["b"]
    show_all(again)
    assert shown(again) == ["b"]


def test_file_queue_same_name_in_another_folder_is_another_file(tmp_path: Path) -> None:
    show_all(make(tmp_path, "a"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "a").write_text("other a")
    files = FileQueue(Files("text"), other, tmp_path / "checkpoint")
    files.open()
    assert files.list_new() == [other / "a"]


def test_file_queue_name_that_spark_cannot_read_gets_one_it_can(tmp_path: Path) -> None:
    awkward = "2024-01-01T00:00 [é]{x}" + "y" * 200 + ".csv.gz"
    files = make(tmp_path, awkward)
    files.show(files.list_new())
    (link,) = files.current.iterdir()
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


def test_file_queue_file_gone_before_it_was_read_is_an_error(tmp_path: Path) -> None:
    files = make(tmp_path, "a", "b", source=Files("text"))
    files.show(files.list_new())
    gone = tmp_path / "input" / "b"
    gone.unlink()
    with pytest.raises(FeedFailed, match=f"input file {gone} is gone and was not read"):
        files.settle()
    assert files.is_pending()
    # Spark's own log of the files of its first micro-batch.
    log = tmp_path / "checkpoint" / "sources" / "0" / "0"
    log.parent.mkdir(parents=True)
    line = '{"path":"file:///x/files/current/00000000-%06d-%s","timestamp":1,"batchId":0}'
    log.write_text("\n".join(["v1", line % (0, "a"), line % (1, "b")]))
    files.settle()
    assert not files.is_pending()


def killed(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_file_queue_of_many_groups_keeps_the_names_and_few_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_bridge._file_drive._GROUPS_MAX", 3)
    folder = tmp_path / "checkpoint" / "files"
    many = [f"{number:02d}" for number in range(20)]
    show_all(make(tmp_path, *many))
    assert len(list((folder / "groups").iterdir())) <= 3
    assert make(tmp_path).list_new() == []
    # Killed while names are written, and again before the groups are removed.
    with (folder / "read").open("a") as file:
        file.write('"/half/a')
    kept = list((folder / "groups").iterdir())
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            show_all(make(tmp_path, "x0", "x1", "x2", "x3"))
    assert set(kept) < set((folder / "groups").iterdir())
    again = make(tmp_path)
    assert names(again.list_new()) == ["x2", "x3"]
    show_all(again)
    assert make(tmp_path).list_new() == []
    assert len(list((folder / "groups").iterdir())) <= 3
