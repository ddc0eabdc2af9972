"""The input's files, offered to Spark one group at a time in the order of their names.

Spark's file source reads by modification time, ties as the folder lists them, ignores files older
than its newest by a week, and takes no single file. None of that is what somebody means who has a
folder of files, and copying a folder changes it. So Spark reads a folder of ours, which only ever
shows it what it should read next::

    <checkpoint>/files/
        next/                    being filled; Spark does not look here
        pending/00000007/        the group Spark is reading: symbolic links to the user's files
        done/00000000/ ...       groups whose micro-batch is committed

A group moves from one folder to the next by one atomic rename, so one group is one micro-batch,
and a crash at any point leaves at most one group pending. The user's files are never touched.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, FeedFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from activedb.streams import Files

_LINK_NAME_CHARS_MAX = 200


class FileQueue:
    """Which files of an input have been read, are being read and come next.

    Parameters
    ----------
    source : Files
        What to read and how many files make a group.
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
        folder = checkpoint.resolve() / "files"
        self._next = folder / "next"
        self._done = folder / "done"
        self.pending = folder / "pending"
        self.schema = folder / "schema.json"

    def open(self) -> None:
        """Make the folders and read from them what earlier runs have done."""
        shutil.rmtree(self._next, ignore_errors=True)  # half filled when a run was cut off
        for folder in (self.pending, self._done):
            folder.mkdir(parents=True, exist_ok=True)
        groups = [*self._done.iterdir(), *self.pending.iterdir()]
        self._seen = {os.readlink(link) for group in groups for link in group.iterdir()}
        self._groups = max((int(group.name) for group in groups), default=-1) + 1

    def is_pending(self) -> bool:
        """Whether a group is with Spark that may not be processed yet."""
        return any(self.pending.iterdir())

    def list_new(self) -> list[Path]:
        """Return the files never offered before, in the order of their names.

        Raises
        ------
        FeedFailed
            If the input is gone.
        """
        return [file for file in self.list_all() if str(file) not in self._seen]

    def list_all(self) -> list[Path]:
        """Return all files of the input that the stream reads, new or not."""
        return [self._input] if self._input.is_file() else self._list_folder()

    def groups(self, files: list[Path]) -> Iterator[list[Path]]:
        """Cut files into groups of ``per_batch``."""
        rest = iter(files)
        while group := list(itertools.islice(rest, self._source.per_batch)):
            yield group

    def offer(self, group: list[Path]) -> None:
        """Show Spark one more group, all of it at once."""
        self._next.mkdir()
        for position, file in enumerate(group):
            # The suffix tells the compression. A colon would make the name an address for Spark.
            plain = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)[-_LINK_NAME_CHARS_MAX:]
            (self._next / f"{position:06d}-{plain}").symlink_to(file)
        self._next.rename(self.pending / f"{self._groups:08d}")
        self._groups += 1
        self._seen.update(map(str, group))

    def with_real_names(self, text: str) -> str:
        """Return ``text`` with the names of pending files in place of Spark's for them."""
        for link in self.pending.glob("*/*"):
            seen_by_spark = re.escape(f"/{link.parent.name}/{link.name}")
            target = os.readlink(link).replace("\\", r"\\")
            text = re.sub(rf"\S*{seen_by_spark}", target, text)
        return text

    def settle(self) -> None:
        """Put aside what is pending. REQUIRES: its micro-batch is committed."""
        for group in self.pending.iterdir():
            group.rename(self._done / group.name)

    def _list_folder(self) -> list[Path]:
        if not self._input.is_dir():
            raise FeedFailed(f"input {self._input} is gone")
        found = []
        for file in self._input.glob(self._source.glob or "*"):
            name = file.relative_to(self._input)
            if file.is_file() and not any(part[0] in "._" for part in name.parts):
                found.append((name.as_posix(), file))
        return [file for _, file in sorted(found)]
