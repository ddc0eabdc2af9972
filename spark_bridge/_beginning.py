"""Where the query of a checkpoint has begun: with nothing, or behind what a lost one had done.

What is needed for that is in ``<checkpoint>/activedb.json``, written before Spark writes anything,
and the same as long as there is the checkpoint::

    database: batches 0 … 7 of query A        A's checkpoint is lost
                            │ positions
                            ▼
    new checkpoint: query B continues A with batch 8; what Spark calls batch 0 is 8, 1 is 9, …

The batches of one stream are therefore numbered on over its queries. That B goes on where A ended
is checked by the database with B's first batch: if somebody else has fed the stream meanwhile, that
batch is refused.
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

    from activedb.streams import Positions, Stream

_NAME = "activedb.json"
_OURS = ("files", "source", "marks")
_PYTHON = "Python"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a query has begun.

    Attributes
    ----------
    stream : str
        The stream's name.
    place : str
        The checkpoint, as its path was.
    continues : str or None
        The query before; None: this is the first one.
    first_batch_id : int
        What the database calls the batch that Spark calls 0.
    files : tuple of str
        Files that were read before, of a stream of files.
    offset : Any
        The offset behind which it has begun, as the source writes it; None: none.
    marks : mapping or None
        What was known of when events are complete.
    """

    stream: str
    place: str
    continues: str | None = None
    first_batch_id: int = 0
    files: tuple[str, ...] = ()
    offset: Any = None
    marks: Mapping[str, Any] | None = None

    def write(self, checkpoint: Path) -> None:
        """Keep it, before the query begins. Does nothing if it is kept already."""
        if _read(checkpoint) == self:
            return
        checkpoint.mkdir(parents=True, exist_ok=True)
        if not has_query(checkpoint):
            for name in _OURS:  # of a run that has not come to a query
                shutil.rmtree(checkpoint / name, ignore_errors=True)
        new = checkpoint / f"{_NAME}.new"
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(checkpoint / _NAME)


def beginning_of(checkpoint: Path, stream: Stream, positions: Positions | None) -> Beginning:
    """Return where the query of a checkpoint has begun, or will.

    Parameters
    ----------
    checkpoint : Path
    stream : Stream
    positions : Positions or None
        Where to begin if the checkpoint has no query yet; None: with nothing.

    Raises
    ------
    CheckpointMismatch
        If the checkpoint is another stream's, or was moved.
    ConfigurationError
        If the source cannot go on from those positions.
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


def _behind(checkpoint: Path, stream: Stream, positions: Positions) -> Beginning:
    """Return the beginning of a query that goes on behind the last batch of the database."""
    source = stream.source
    if not isinstance(source, Files | Replay | Kafka):
        what = type(source).__name__
        raise ConfigurationError(
            f"stream {stream.name!r} cannot go on without its checkpoint: what a {what} has sent "
            "once it does not send again, so nobody can tell what is missing. Restore the "
            "checkpoint, or start over with an empty database"
        )
    # What was fed from Python is no part of the source.
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


def _check_known(stream: Stream, known: list[Mapping[str, Any] | None]) -> None:
    """Check that positions tell where a stream's source goes on."""
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
            f"declared with {type(stream.source).__name__}: nobody can tell how far that was read. "
            "Declare the source that it was, or start over with an empty database"
        )


def _kind(position: Mapping[str, Any]) -> str:
    return str(position["source"]["kind"])
