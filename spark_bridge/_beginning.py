"""Start of a checkpoint's query: at the beginning, or behind the progress of a lost query.

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

from activedb.errors import CheckpointMismatch, ConfigurationError
from activedb.streams import Files, Kafka, Replay
from spark_bridge._checkpoint import damaged, has_query

if TYPE_CHECKING:
    from pathlib import Path

    from activedb.streams import Positions, StreamDeclaration

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
            "knows the files that it has read by that path. Move it back; or go on behind the last "
            "batch of the database, with an empty one (activedb run --resume)"
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
            f"stream {stream.name!r} cannot go on without its checkpoint: what a {what} has sent "
            "once it does not send again, so it is unknown what is missing. Restore the "
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
        why = "what its patterns keep is there, with Spark (the setting scale_out)"
    if why is not None:
        raise ConfigurationError(
            f"stream {stream.name!r} cannot go on without its checkpoint: {why}. Restore it, or "
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
