"""What Spark's own checkpoint says about a query.

Spark writes ``offsets/<batch id>`` before it runs a micro-batch and reads it back, unchanged, when
it runs the micro-batch again after a failure. The watermark in it is therefore the same at every
replay, which a watermark kept in memory would not be.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_query_id(checkpoint: Path) -> str:
    """Return the query's id, which Spark writes before the first micro-batch of the first run."""
    text = (checkpoint / "metadata").read_text(encoding="utf-8")
    return str(json.loads(text)["id"])


def read_punctuation_us(checkpoint: Path, batch_id: int) -> int | None:
    """Return the punctuation of a micro-batch, in microseconds since 1970 UTC.

    Spark keeps its watermark in whole milliseconds, rounded down, so the product with 1000 never
    claims more than has been seen. Spark starts it at 0 and does not tell "nothing seen" from
    "1970-01-01"; both are None here.
    """
    # Line 1 is the format's version, line 2 the metadata, the others one offset per source.
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    watermark_ms = int(json.loads(text.splitlines()[1])["batchWatermarkMs"])
    return watermark_ms * 1000 if watermark_ms > 0 else None


def next_batch_id(checkpoint: Path) -> int:
    """Return the id of the micro-batch after the last one that Spark counts as processed."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    return max(done, default=-1) + 1


def planned_ms(checkpoint: Path, batch_id: int) -> int:
    """Return when Spark has planned a micro-batch, in milliseconds since 1970 UTC."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
    return int(json.loads(text.splitlines()[1])["batchTimestampMs"])


def has_ended(checkpoint: Path, since: int = 0) -> bool:
    """Whether the last micro-batch that counts as processed is the last of its source.

    REQUIRES: the query has one source, one of ours, whose offsets say ``"end"``.

    Parameters
    ----------
    since : int
        The first micro-batch that may be it.
    """
    done = next_batch_id(checkpoint) - 1
    if done < since:
        return False
    text = (checkpoint / "offsets" / str(done)).read_text(encoding="utf-8")
    return bool(json.loads(text.splitlines()[2]).get("end"))


def has_read_file(checkpoint: Path, name: str) -> bool:
    """Whether a file of this name is part of any micro-batch so far. O(files read)."""
    # One line of JSON per file, in one log per micro-batch; every tenth holds all before it.
    logs = (checkpoint / "sources" / "0").glob("[0-9]*")
    return any(f'/{name}"' in log.read_text(encoding="utf-8") for log in logs)
