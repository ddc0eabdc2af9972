"""Readers of Spark's own checkpoint of a query.

Spark writes ``offsets/<batch id>`` before it runs a micro-batch and reads it back, unchanged, when
it runs the micro-batch again after a failure. The watermark in it is therefore the same at every
replay, which a watermark kept in memory would not be.

The start is recorded in ``<checkpoint>/activedb.json``, written before Spark writes anything, and
unchanged for the life of the checkpoint::

    database: batches 0 … 7 of query A        A's checkpoint is lost
                            │ positions
                            ▼
    new checkpoint: query B continues A with batch 8; what Spark calls batch 0 is 8, 1 is 9, …

The batches of a stream are therefore numbered across its queries. The database checks with B's
first batch that B continues where A ended: if another process has fed the stream in the meantime,
that batch is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from activedb.errors import CheckpointMismatch, ConfigurationError, FeedFailed
from activedb.streams import Files, Kafka, Replay

if TYPE_CHECKING:
    from pathlib import Path

    from activedb.streams import Positions, StreamDeclaration


_LOGS = ("offsets", "commits")
_LINES_MIN = {"metadata": 1, "offsets": 3, "commits": 2}


def has_query(checkpoint: Path) -> bool:
    """Return whether a query has begun with this checkpoint."""
    return (checkpoint / "metadata").exists() or any(_logged(checkpoint, log) for log in _LOGS)


def check_whole(checkpoint: Path) -> None:
    """Check that no file that Spark needs to continue is missing or cut off.

    Raises
    ------
    FeedFailed
        If one is.
    """
    if not has_query(checkpoint):
        return
    planned, done = (_logged(checkpoint, log) for log in _LOGS)
    needed = ["metadata"]
    needed += [f"offsets/{batch_id}" for batch_id in {*planned[-1:], *done[-1:]}]
    needed += [f"commits/{batch_id}" for batch_id in done[-1:]]
    if planned and planned[-1] > 0 and planned[-1] not in done:
        needed.append(f"commits/{planned[-1] - 1}")
    for name in needed:
        try:
            _check_readable(checkpoint / name, _LINES_MIN[name.partition("/")[0]])
        except (OSError, ValueError) as error:
            what = "is missing" if isinstance(error, FileNotFoundError) else "cannot be read"
            raise damaged(checkpoint, f"{name} {what}") from error


def remove_half_written(checkpoint: Path) -> None:
    """Remove a half-written plan of the first micro-batch. REQUIRES: no query runs.

    A process that is killed while planning leaves files in the folders of Spark's logs. Spark wants
    these folders empty then, and otherwise refuses to start for good.
    """
    if not _logged(checkpoint, "offsets"):
        for log in _LOGS:
            for file in (checkpoint / log).glob(".*"):
                file.unlink()


def damaged(checkpoint: Path, what: str) -> FeedFailed:
    """Return the error that says what is wrong with a checkpoint, and what to do."""
    return FeedFailed(
        f"the checkpoint {checkpoint} is damaged: {what}. Restore it from a copy; or move it away "
        "and continue after the last batch of the database, with an empty one (activedb run "
        "--resume)"
    )


def _check_readable(file: Path, lines_min: int) -> None:
    """Check that a file of Spark has a version, unless it has only one line, and lines of JSON."""
    lines = file.read_text(encoding="utf-8").splitlines()
    if len(lines) < lines_min:
        raise ValueError("it is cut off")
    for line in lines[1 if lines_min > 1 else 0 :]:
        _parsed(line)


def _parsed(line: str) -> Any:
    return None if line == "-" else json.loads(line)  # a source of several that has no rows yet


def _logged(checkpoint: Path, log: str) -> list[int]:
    """Return the micro-batches for which a log has a file, in order."""
    return sorted(int(path.name) for path in (checkpoint / log).glob("[0-9]*"))


def read_offsets(checkpoint: Path, batch_id: int) -> list[Any]:
    """Return the offset of each source behind a micro-batch, as the source writes it."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    return [_parsed(line) for line in text.splitlines()[2:]]


def read_query_id(checkpoint: Path) -> str:
    """Return the query's id, which Spark writes before the first micro-batch of the first run."""
    text = (checkpoint / "metadata").read_text(encoding="utf-8")
    return str(json.loads(text)["id"])


def read_punctuation_us(checkpoint: Path, batch_id: int) -> int | None:
    """Return the punctuation of a micro-batch, in microseconds since 1970 UTC.

    Spark keeps its watermark in whole milliseconds, rounded down, so the product with 1000 never
    claims more than has been seen. Spark starts it at 0 and does not distinguish "nothing seen"
    from "1970-01-01"; both are None here.
    """
    # Line 1 is the format's version, line 2 the metadata, the others one offset per source.
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    return _punctuation_us(json.loads(text.splitlines()[1])["batchWatermarkMs"])


def read_next_punctuation_us(checkpoint: Path, batch_id: int) -> int | None:
    """Return the punctuation of the batch after a committed micro-batch, if there is one."""
    text = (checkpoint / "commits" / str(batch_id)).read_text(encoding="utf-8")
    return _punctuation_us(json.loads(text.splitlines()[1])["nextBatchWatermarkMs"])


def _punctuation_us(watermark_ms: int) -> int | None:
    return watermark_ms * 1000 if watermark_ms > 0 else None


def next_batch_id(checkpoint: Path) -> int:
    """Return the id of the micro-batch after the last one that Spark has committed."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    return max(done, default=-1) + 1


def is_planned(checkpoint: Path, batch_id: int) -> bool:
    """Return whether Spark has planned a micro-batch."""
    return (checkpoint / "offsets" / str(batch_id)).exists()


def is_committed(checkpoint: Path, batch_id: int) -> bool:
    """Return whether Spark has committed a micro-batch; valid for the last hundred."""
    return (checkpoint / "commits" / str(batch_id)).exists()


def planned_ms(checkpoint: Path, batch_id: int) -> int:
    """Return the time at which Spark planned a micro-batch, in milliseconds since 1970 UTC."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    return int(json.loads(text.splitlines()[1])["batchTimestampMs"])


def has_ended(checkpoint: Path, since: int = 0) -> bool:
    """Return whether the last committed micro-batch is the last of its source.

    REQUIRES: the query has one source, which is one of ours, whose offsets have ``"end"``.

    Parameters
    ----------
    since : int
        The first micro-batch that counts.
    """
    done = next_batch_id(checkpoint) - 1
    if done < since:
        return False
    text = (checkpoint / "offsets" / str(done)).read_text(encoding="utf-8")
    return bool(json.loads(text.splitlines()[2]).get("end"))


def names_of_files(checkpoint: Path, batch_id: int) -> set[str]:
    """Return the names of the files of a micro-batch. REQUIRES: its only source is of files.

    O(its files), every tenth time O(files read).
    """
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    number = int(json.loads(text.splitlines()[2])["logOffset"])
    logs = checkpoint / "sources" / "0"
    log = logs / str(number)
    if not log.exists():
        log = logs / f"{number}.compact"  # holds the earlier ones, too
    lines = log.read_text(encoding="utf-8").splitlines()[1:]
    entries = (json.loads(line) for line in lines if f'"batchId":{number}' in line)
    return {entry["path"].rpartition("/")[2] for entry in entries if entry["batchId"] == number}


def has_read_file(checkpoint: Path, name: str) -> bool:
    """Return whether a file of this name is part of any micro-batch so far. O(files read)."""
    # One line of JSON per file, in one log per micro-batch; every tenth log holds all earlier ones.
    logs = (checkpoint / "sources" / "0").glob("[0-9]*")
    return any(f'/{name}"' in log.read_text(encoding="utf-8") for log in logs)


# -- start of a checkpoint's query: at the beginning, or behind the progress of a lost query -------


_NAME = "activedb.json"
_OURS = ("files", "source", "marks")
_PYTHON = "Python"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Start of a query.

    Attributes
    ----------
    stream : str
        The stream's name.
    place : str
        Path of the checkpoint when it was created.
    continues : str or None
        The previous query; None: this is the first one.
    first_batch_id : int
        The database's number of the batch that Spark calls 0.
    files : tuple of str
        Files that were read before, for a stream of files.
    offset : Any
        The offset behind which the query begins, as the source writes it; None: none.
    marks : mapping or None
        The marks, which determine punctuation, at the start.
    """

    stream: str
    place: str
    continues: str | None = None
    first_batch_id: int = 0
    files: tuple[str, ...] = ()
    offset: Any = None
    marks: Mapping[str, Any] | None = None

    def write(self, checkpoint: Path) -> None:
        """Write the record before the query begins. Does nothing if it is written already."""
        if _read(checkpoint) == self:
            return
        checkpoint.mkdir(parents=True, exist_ok=True)
        if not has_query(checkpoint):
            for name in _OURS:  # left by a run that did not get as far as a query
                shutil.rmtree(checkpoint / name, ignore_errors=True)
        new = checkpoint / f"{_NAME}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(checkpoint / _NAME)


def beginning_of(
    checkpoint: Path, stream: StreamDeclaration, positions: Positions | None
) -> Beginning:
    """Return the start of the query of a checkpoint, existing or new.

    Parameters
    ----------
    checkpoint : Path
    stream : StreamDeclaration
    positions : Positions or None
        Where to begin if the checkpoint has no query yet; None: at the beginning.

    Raises
    ------
    CheckpointMismatch
        If the checkpoint belongs to another stream, or was moved.
    ConfigurationError
        If the source cannot continue from those positions.
    FeedFailed
        If the checkpoint is damaged.
    """
    found = _read(checkpoint)
    if found is not None and found.stream != stream.name:
        raise CheckpointMismatch(
            f"stream {stream.name!r}: {checkpoint} is the checkpoint of stream {found.stream!r}; "
            "give this stream a folder of its own (--checkpoint)"
        )
    if not has_query(checkpoint):
        if positions is not None:
            return _behind(checkpoint, stream, positions)
        return found or Beginning(stream.name, str(checkpoint))
    if found is None:
        return Beginning(stream.name, str(checkpoint))
    if isinstance(stream.source, Files) and found.place != str(checkpoint):
        raise CheckpointMismatch(
            f"stream {stream.name!r}: the checkpoint {checkpoint} was in {found.place}, and Spark "
            "knows the files that it has read by that path. Move it back; or continue after the "
            "last batch of the database, with an empty one (activedb run --resume)"
        )
    return found


def _read(checkpoint: Path) -> Beginning | None:
    try:
        text = (checkpoint / _NAME).read_text(encoding="utf-8")
        kept = json.loads(text)
        return Beginning(**{**kept, "files": tuple(kept["files"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(checkpoint, f"{_NAME} cannot be read ({error})") from None


def _behind(checkpoint: Path, stream: StreamDeclaration, positions: Positions) -> Beginning:
    """Return the start of a query that continues behind the last batch of the database."""
    source = stream.source
    if not isinstance(source, Files | Replay | Kafka):
        what = type(source).__name__
        raise ConfigurationError(
            f"stream {stream.name!r} cannot continue without its checkpoint: a {what} does "
            "not send again what it has sent once, so it is unknown what is missing. Restore the "
            "checkpoint, or start over with an empty database"
        )
    # Batches fed from Python are not part of the source.
    known = [each for each in positions.known if each is None or _kind(each) != _PYTHON]
    _check_known(stream, known)
    last = known[-1] if known else None
    files = [name for each in known if each for name in each["source"].get("files", ())]
    return Beginning(
        stream.name,
        str(checkpoint),
        continues=positions.query_id,
        first_batch_id=positions.batch_id + 1,
        files=tuple(files),
        offset=None if last is None else last["source"].get("offset"),
        marks=None if last is None else last.get("marks"),
    )


def _check_known(stream: StreamDeclaration, known: list[Mapping[str, Any] | None]) -> None:
    """Check that positions determine where a stream's source continues."""
    if not known:
        return
    needed = known if isinstance(stream.source, Files) else known[-1:]
    why = None
    if None in needed:
        why = (
            "the database does not know how far its source was read in batches of an older version"
        )
    elif any(each is not None and each.get("elsewhere") for each in known):
        why = "its partial matches are in Spark's state there (the setting scale_out)"
    if why is not None:
        raise ConfigurationError(
            f"stream {stream.name!r} cannot continue without its checkpoint: {why}. Restore it, or "
            "start over with an empty database"
        )
    kinds = {_kind(each) for each in needed if each is not None}
    if kinds != {type(stream.source).__name__}:
        raise ConfigurationError(
            f"stream {stream.name!r} was fed from {', '.join(sorted(kinds))} so far, and is "
            f"declared with {type(stream.source).__name__}: it is unknown how far that was read. "
            "Declare the source that it was, or start over with an empty database"
        )


def _kind(position: Mapping[str, Any]) -> str:
    return str(position["source"]["kind"])
