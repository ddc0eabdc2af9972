"""The input's files, shown to Spark one group at a time in the order of their names.

Spark's file source reads by modification time, ties as the folder lists them, ignores files older
than its newest by a week, and takes no single file. None of that is what somebody means who has a
folder of files, and copying a folder changes it. So Spark reads a folder of ours::

    <checkpoint>/files/
        groups/00000007/00000007-000000-b.csv.gz     symbolic links to the user's files
        current -> groups/00000007                   what Spark reads
        settled -> groups/00000006                   the last group known to be processed
        schema.json                                  columns, where the stream declares none
        nothing                                      an empty file, for a group without rows

A group is complete before ``current`` moves to it, in one atomic step, so one group is one
micro-batch. A group behind ``current`` was never shown. Whatever a crash leaves is therefore
plain: the group that is current and not settled is shown again, and Spark knows whether it has
committed it. The user's files are never touched.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, FeedFailed
from spark_bridge._checkpoint import has_read_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from activedb.streams import Files
    from spark_bridge._batch_size import BatchSize

_PLAIN_NAME_CHARS_MAX = 200


class FileQueue:
    """Which files of an input have been read, are being read and come next.

    Parameters
    ----------
    source : Files
        Which files to read.
    input : Path
        A folder or a single file.
    checkpoint : Path
        The query's checkpoint folder.

    Raises
    ------
    ConfigurationError
        If there is no such input.
    """

    def __init__(self, source: Files, input: Path, checkpoint: Path) -> None:
        self._source = source
        self._input = input.resolve()
        if not self._input.exists():
            raise ConfigurationError(f"input {input} does not exist; give a file or a folder")
        self._checkpoint = checkpoint.resolve()
        folder = self._checkpoint / "files"
        self._groups = folder / "groups"
        self._settled = folder / "settled"
        self.current = folder / "current"
        self._nothing = folder / "nothing"
        self.schema = folder / "schema.json"

    def open(self) -> None:
        """Read what earlier runs have done. REQUIRES: no query of this checkpoint is running."""
        self._groups.mkdir(parents=True, exist_ok=True)
        shown = _number(self.current)
        self._next = 0 if shown is None else shown + 1
        self._seen: set[str] = set()
        for group in self._groups.iterdir():
            if int(group.name) < self._next:
                self._seen.update(os.readlink(link) for link in group.iterdir())
            else:
                shutil.rmtree(group)

    def is_pending(self) -> bool:
        """Whether the current group may not be processed yet."""
        return _number(self.current) != _number(self._settled)

    def list_all(self) -> list[Path]:
        """Return all files of the input that the stream reads, in the order of their names."""
        return [self._input] if self._input.is_file() else self._list_folder()

    def list_new(self) -> list[Path]:
        """Return those never shown before.

        Raises
        ------
        FeedFailed
            If the input is gone.
        """
        return [file for file in self.list_all() if str(file) not in self._seen]

    def groups(self, files: list[Path], size: BatchSize) -> Iterator[list[Path]]:
        """Cut files into groups, each of the size that holds when it is asked for."""
        rest = iter(files)
        while group := list(itertools.islice(rest, size.size)):
            yield group

    def show(self, group: list[Path]) -> None:
        """Show Spark the next group, all of it at once. REQUIRES: none is pending."""
        folder = self._groups / f"{self._next:08d}"
        folder.mkdir()
        for position, file in enumerate(group):
            # The suffix tells the compression. A colon would make the name an address for Spark.
            plain = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)[-_PLAIN_NAME_CHARS_MAX:]
            (folder / f"{folder.name}-{position:06d}-{plain}").symlink_to(file)
        _move(self.current, folder.name)
        self._next += 1
        self._seen.update(map(str, group))

    def show_nothing(self) -> None:
        """Show Spark a group without rows. REQUIRES: none is pending."""
        self._nothing.touch()
        self.show([self._nothing])

    def settle(self) -> None:
        """Note that the current group is processed. REQUIRES: Spark has nothing left to read.

        Raises
        ------
        FeedFailed
            If a file has disappeared before Spark saw it.
        """
        for link in self.current.iterdir():
            if not link.exists() and not has_read_file(self._checkpoint, link.name):
                raise FeedFailed(
                    f"input file {os.readlink(link)} is gone and was not read; put it back, or an "
                    "empty file in its place"
                )
        _move(self._settled, os.readlink(self.current).rpartition("/")[2])

    def with_real_names(self, text: str) -> str:
        """Return ``text`` with the names of current files in place of Spark's for them."""
        for link in self.current.iterdir():
            target = os.readlink(link).replace("\\", r"\\")
            text = re.sub(rf"\S*/{re.escape(link.name)}", target, text)
        return text

    def _list_folder(self) -> list[Path]:
        if not self._input.is_dir():
            raise FeedFailed(f"input {self._input} is gone")
        found = []
        for file in self._input.glob(self._source.glob or "*"):
            name = file.relative_to(self._input)
            if file.is_file() and not any(part[0] in "._" for part in name.parts):
                found.append((name.as_posix(), file))
        return [file for _, file in sorted(found)]


def _number(pointer: Path) -> int | None:
    """Return the number of the group that a pointer points to, None before there is one."""
    return int(os.readlink(pointer).rpartition("/")[2]) if pointer.is_symlink() else None


def _move(pointer: Path, group: str) -> None:
    """Let a pointer point to another group, in one atomic step."""
    new = pointer.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(f"groups/{group}")
    new.replace(pointer)
