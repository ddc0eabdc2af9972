"""Drive of a query over files, shown to Spark one group at a time in the order of their names.

Spark's file source reads by modification time, ties as the folder lists them, ignores files older
than its newest by a week, and takes no single file. Users expect none of this of a folder of files,
and copying a folder changes it. So Spark reads a folder of ours::

    <checkpoint>/files/
        groups/00000007/00000007-000000-b.csv.gz     symbolic links to the user's files
        current -> groups/00000007                   what Spark reads
        settled -> groups/00000006                   the last group known to be processed
        read                                         the files of groups before, which are removed
        schema.json                                  columns, where the stream declares none
        nothing                                      an empty file, for a group without rows

A group is complete before ``current`` moves to it, in one atomic step, so one group is one
micro-batch. A group behind ``current`` was never shown. The state after a crash is therefore
unambiguous: the group that is current and not settled is shown again, and Spark knows whether it
has committed it. The user's files are never touched.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activedb.errors import ConfigurationError, FeedFailed
from activedb.streams import Files
from spark_bridge._batch_size import BatchSize, Idle, idle_waits_s
from spark_bridge._checkpoint import (
    damaged,
    has_read_file,
    is_committed,
    is_planned,
    names_of_files,
    next_batch_id,
)
from spark_bridge._session import session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from activedb.streams import StreamDeclaration
    from spark_bridge._checkpoint import Beginning
    from spark_bridge._run import QueryRun


_PLAIN_NAME_CHARS_MAX = 200
_GROUPS_MAX = 100  # groups kept until the names of their files are compacted


class FileQueue:
    """Queue of an input's files: read, being read and still to come.

    Parameters
    ----------
    source : Files
        Selection of the files to read.
    input : Path
        A folder or a single file.
    checkpoint : Path
        The query's checkpoint folder.
    done : sequence of str
        Files that were read before the checkpoint was created.

    Raises
    ------
    ConfigurationError
        If the input does not exist, or differs from that of the files `done`.
    """

    def __init__(
        self, source: Files, input: Path, checkpoint: Path, done: Sequence[str] = ()
    ) -> None:
        self._source = source
        self._done = done
        self._input = input.resolve()
        if not self._input.exists():
            raise ConfigurationError(f"input {input} does not exist; give a file or a folder")
        folder = self._input if self._input.is_dir() else self._input.parent
        if done and not any(Path(name).is_relative_to(folder) for name in done):
            raise ConfigurationError(
                f"none of the files that were read so far is in {folder}, the last one was "
                f"{done[-1]}: give the input that it was, as files are known by their paths"
            )
        self._checkpoint = checkpoint.resolve()
        folder = self._checkpoint / "files"
        self._groups = folder / "groups"
        self._settled = folder / "settled"
        self.current = folder / "current"
        self._read = folder / "read"
        self._nothing = folder / "nothing"
        self.schema = folder / "schema.json"

    def open(self) -> None:
        """Read the record of earlier runs. REQUIRES: no query of this checkpoint is running.

        Raises
        ------
        FeedFailed
            If the record is missing.
        """
        if is_planned(self._checkpoint, 0) and not self.current.is_dir():
            raise damaged(self._checkpoint, "the list of files, files/groups, is missing")
        self._groups.mkdir(parents=True, exist_ok=True)
        shown = _number(self.current)
        self._next = 0 if shown is None else shown + 1
        self._seen = {*self._done, *self._names_read()}
        for group in self._groups.iterdir():
            if int(group.name) < self._next:
                self._seen.update(os.readlink(link) for link in group.iterdir())
            else:
                shutil.rmtree(group)

    def is_pending(self) -> bool:
        """Return whether the current group may still have to be processed."""
        return _number(self.current) != _number(self._settled)

    def list_all(self) -> list[Path]:
        """Return all files of the input that the stream reads, in the order of their names."""
        return [self._input] if self._input.is_file() else self._list_folder()

    def list_new(self) -> list[Path]:
        """Return the files never shown before.

        Raises
        ------
        FeedFailed
            If the input is gone.
        """
        return [file for file in self.list_all() if str(file) not in self._seen]

    def groups(self, files: list[Path], size: BatchSize) -> Iterator[list[Path]]:
        """Cut files into groups, each of the size that applies when it is requested."""
        rest = iter(files)
        while group := list(itertools.islice(rest, size.size)):
            yield group

    def show(self, group: list[Path]) -> None:
        """Show Spark the next group, all of it at once. REQUIRES: none is pending."""
        folder = self._groups / f"{self._next:08d}"
        folder.mkdir()
        for position, file in enumerate(group):
            # The suffix identifies the compression. Spark would take a name with a colon for a URI.
            plain = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)[-_PLAIN_NAME_CHARS_MAX:]
            (folder / f"{folder.name}-{position:06d}-{plain}").symlink_to(file)
        _move(self.current, folder.name)
        self._next += 1
        self._seen.update(map(str, group))

    def show_nothing(self) -> None:
        """Show Spark a group without rows. REQUIRES: none is pending."""
        self._nothing.touch()
        self.show([self._nothing])

    def names(self) -> set[str]:
        """Return the names under which Spark sees the files of the current group."""
        return {link.name for link in self.current.iterdir()}

    def position(self, batch_id: int) -> dict[str, Any]:
        """Return the identity of a micro-batch: its files, in the order of their names."""
        names = sorted(names_of_files(self._checkpoint, batch_id))
        links = [self._groups / name.partition("-")[0] / name for name in names]
        files = [os.readlink(link) for link in links]
        return {"kind": "Files", "files": [file for file in files if file != str(self._nothing)]}

    def settle(self) -> None:
        """Mark the current group as processed. REQUIRES: Spark has nothing left to read.

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
        if len(os.listdir(self._groups)) > _GROUPS_MAX:
            self._forget_groups()

    def _forget_groups(self) -> None:
        """Remove the groups before the current one; only the names of their files are still needed.

        A crash on the way leaves names in both places, or half a line.
        """
        groups = sorted(self._groups.iterdir())[:-1]
        names = [os.readlink(link) for group in groups for link in sorted(group.iterdir())]
        with self._read.open("a", encoding="utf-8") as file:
            file.write("\n")  # keeps a partial line separate
            file.writelines(f"{json.dumps(name)}\n" for name in names)
            file.flush()
            os.fsync(file.fileno())  # before removing what it replaces
        for group in groups:
            shutil.rmtree(group)

    def _names_read(self) -> Iterator[str]:
        if self._read.exists():
            for line in self._read.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # half a line, whose group still exists
                    yield json.loads(line)

    def with_real_names(self, text: str) -> str:
        """Return ``text`` with the real names of current files in place of Spark's."""
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
    """Point a pointer to another group, in one atomic step."""
    new = pointer.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.symlink_to(f"groups/{group}")
    new.replace(pointer)


# -- driver of a query over files, one group at a time ---------------------------------------------


_FOLLOW_S = 0.05  # interval between looks for new files
_FOLLOW_SHARE = 4  # but the longer a look takes, the less often
_FOLLOWING = {"processingTime": "50 milliseconds"}  # an idle query takes a twentieth of a core
_COMMIT_S = 0.01  # interval between checks whether a micro-batch is committed
_PLAN_S_MAX = 1.0  # time within which Spark plans a micro-batch for a new group, if it is going to
_FILES_MAX = 10_000


class FileDrive:
    """Driver that shows a query one group of files after the other.

    Parameters
    ----------
    stream : StreamDeclaration
    source : Files
        Source of the stream.
    input : Path
        A folder, or a single file.
    checkpoint : Path
    follow : bool
        Wait for new files.
    beginning : Beginning
        Start of the query.
    spark : Mapping[str, str]
        See `session`.
    stopping : threading.Event
        When set: end after the present group of files.

    Raises
    ------
    ConfigurationError
        If the input does not exist, or no file in it matches and new files are not awaited.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        source: Files,
        input: Path,
        checkpoint: Path,
        *,
        follow: bool,
        beginning: Beginning,
        spark: Mapping[str, str],
        stopping: threading.Event,
    ) -> None:
        self._stream = stream
        self._source = source
        self._checkpoint = checkpoint
        self._files = FileQueue(source, input, checkpoint, beginning.files)
        self._size = BatchSize(source.per_batch, stream.latency_max_s, most=_FILES_MAX)
        self._idle = Idle(idle_waits_s(stream.silent_after_us))
        self._follow = follow
        self._spark = spark
        self._stop = stopping
        if not follow and not self._files.list_all():
            raise ConfigurationError(f"no file in {input} matches {source.glob or '*'!r}")

    def begin(self) -> bool:
        """Return whether there is work to do. REQUIRES: no query of this checkpoint runs."""
        self._files.open()
        return self._follow or self._files.is_pending() or bool(self._files.list_new())

    def produce(self, run: QueryRun) -> None:
        """Run the query until all files have been processed, or it is stopped."""
        if not self._await_first_group():
            return
        run.source_at = self._files.position
        with session(self._spark) as spark:
            from spark_bridge._projection import events
            from spark_bridge._reading import FILE_ORDER, read_files

            is_ordered = self._source.per_batch > 1 or self._stream.latency_max is not None
            path, schema_file = self._files.current, self._files.schema
            df, corrupt = read_files(
                spark, self._stream, self._source, path, schema_file, is_ordered=is_ordered
            )
            order = FILE_ORDER if is_ordered else ()
            columns = events(df, self._stream, order=order, corrupt=corrupt)
            trigger = _FOLLOWING if self._follow else {"processingTime": "0 seconds"}
            try:
                with run.query(columns, trigger=trigger, order=order) as query:
                    self._drive(query)
            except FeedFailed as error:
                raise FeedFailed(self._files.with_real_names(str(error))) from error.__cause__

    def _await_first_group(self) -> bool:
        """Have a group pending, from an earlier run or new; return False if stopped before."""
        while not self._files.is_pending():
            for group in self._files.groups(self._files.list_new(), self._size):
                self._files.show(group)
                break
            else:
                if self._stop.wait(_FOLLOW_S):
                    return False
        return True

    def _drive(self, query: StreamingQuery) -> None:
        self._idle.note_rows()
        self._settle(query)  # the duration of the first batch is mostly Spark's start
        while not self._stop.is_set():
            looked_s = time.monotonic()
            new = self._files.list_new()
            looking_s = time.monotonic() - looked_s
            for group in self._files.groups(new, self._size):
                began_s = time.monotonic()
                self._process(query, group)
                self._size.note(len(group), time.monotonic() - began_s)
                self._idle.note_rows()
                if self._stop.is_set():
                    return
            if not self._follow:
                return
            if new:
                continue
            if self._idle.is_due():
                self._process(query, [])
            self._stop.wait(max(_FOLLOW_S, looking_s * _FOLLOW_SHARE))

    def _process(self, query: StreamingQuery, group: list[Path]) -> None:
        """Show a group of files, or one without rows, and wait until it is processed."""
        batch_id = next_batch_id(self._checkpoint)
        if group:
            self._files.show(group)
        else:
            self._files.show_nothing()
        if self._is_committed(query, batch_id):
            self._files.settle()
        else:
            self._settle(query)

    def _is_committed(self, query: StreamingQuery, batch_id: int) -> bool:
        """Wait until a micro-batch is committed; return False if it lacks a part of the group.

        A group appears as a whole, so normally there is only one micro-batch to wait for.
        """
        planned_by_s = time.monotonic() + _PLAN_S_MAX
        while not query.awaitTermination(_COMMIT_S):
            if is_committed(self._checkpoint, batch_id):
                return self._files.names() <= names_of_files(self._checkpoint, batch_id)
            if time.monotonic() > planned_by_s and not is_planned(self._checkpoint, batch_id):
                return False
        return False

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until Spark has read everything that is shown, and settle the group."""
        # The first call may be answered by a listing of the folder from before the group was in it;
        # listings happen one after the other, so the second call is answered by a later one.
        query.processAllAvailable()
        query.processAllAvailable()
        if not query.isActive:
            raise FeedFailed(f"stream {self._stream.name!r}: the query was stopped from outside")
        self._files.settle()
