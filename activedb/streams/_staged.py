"""Consumer of the batches that Spark's sink has published for a stream; needs no Spark.

```
   activedb_staged_batches ──► first ──► Arrow table, punctuation ──► StreamRun.apply (ledger)
            ▲                                                               │ took effect
            └──────────────────────── deleted, marks recorded ◄─────────────┘
```

A batch is deleted after it has taken effect. If the process is interrupted in between, it finds the
batch again and computes the same result, and the ledger shows that the batch took effect already.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from activedb.columns import PARAM_PREFIX
from activedb.errors import (
    ConfigurationError,
    DefinitionError,
    StoreError,
    TransactionStateError,
)
from activedb.spelling import did_you_mean
from activedb.store.journals import StagedBatch, StagedJournal
from activedb.store.session import Wakeups
from activedb.streams._batch import AtomicBatch
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._marks import Marks, newest_times
from activedb.streams._run import StreamRun
from activedb.transactions import current_transaction

__all__ = ["StagedTaker"]

_OPTIONAL = ("event_low_us", "event_high_us", "event_producer")
_TIMES = ("event_time_us", "event_low_us", "event_high_us")
_STOP_S_MAX = 0.2  # maximum delay until a waiting thread notices the stop event


class StagedTaker:
    """Consumer of one stream's published batches, in order.

    Parameters
    ----------
    run : StreamRun
        Receiver of the batches.
    journal : StagedJournal
        Storage of the batches.
    future_max_s : float
        Bound on times ahead of the batch's publication; a time beyond it moves no punctuation.
    """

    def __init__(self, run: StreamRun, journal: StagedJournal, future_max_s: float):
        self._run = run
        self._stream = run.stream
        self._journal = journal
        self._future_max_us = future_max_s * 1_000_000

    def take(
        self,
        stop: threading.Event,
        *,
        follow: bool,
        poll_s: float,
        on_batch: Callable[[int, int], None],
    ) -> int:
        """Take the published batches; with `follow`, go on until `stop`. Return their number.

        Parameters
        ----------
        on_batch : callable ``(batch_id, rows)``
            Called after each batch.

        Raises
        ------
        ConfigurationError
            On ``memory://``; or if no batch was ever published for the stream, without `follow`.
        DefinitionError
            If the columns of a batch do not match the stream.
        TransactionStateError
            Inside a transaction.
        """
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(f"{t.path} cannot take batches; do it outside")
        if isinstance(poll_s, bool) or not isinstance(poll_s, int | float) or not 0 < poll_s < 1e6:
            raise ConfigurationError(f"poll_s takes a positive number of seconds, not {poll_s!r}")
        if not follow:
            self._check_published()
        taken = 0
        with closing(self._journal.wakeups()) as wakeups:
            while not stop.is_set():
                batch = self._journal.first()
                if batch is not None:
                    self._take(batch)
                    taken += 1
                    on_batch(batch.batch_id, batch.rows)
                elif follow:
                    _wait(wakeups, stop, poll_s)
                else:
                    break
        return taken

    def _take(self, batch: StagedBatch) -> None:
        stream = self._stream
        table = _table(stream, self._journal.pieces(batch))
        if table.num_rows != batch.rows:
            raise StoreError(
                f"batch {batch.batch_id} of stream {stream.name} has {batch.rows} rows, and "
                f"{table.num_rows} are there: another process takes the batches of this stream, "
                "too. Let one do so, and start this one again if it is the one"
            )
        latest_us = batch.published_us + self._future_max_us
        newest = newest_times(stream, table, round(latest_us) if latest_us < 2**62 else None)
        marks = Marks.restore(stream, batch.known).after(stream, newest, batch.published_us)
        self._run.apply(
            AtomicBatch(
                stream=stream.name,
                query_id=batch.query_id,
                batch_id=batch.batch_id,
                table=table,
                punctuation_us=marks.punctuation_us,
                position={
                    "source": {"kind": "Staged", "batch": batch.batch_id},
                    "punctuation_us": marks.punctuation_us,
                },
            )
        )
        self._journal.taken(batch, marks.record())

    def _check_published(self) -> None:
        streams = self._journal.streams()
        if self._stream.name not in streams:
            raise ConfigurationError(
                f"no query of Spark has published anything for stream {self._stream.name} in this "
                f"database; {did_you_mean(self._stream.name, streams)}. Start the query first, "
                'df.writeStream.format("activedb"), or wait for it: follow=True'
            )


def _wait(wakeups: Wakeups, stop: threading.Event, wait_s: float) -> None:
    """Wait for a hint of a new batch, for the next poll, or for the stop event."""
    end_s = time.monotonic() + wait_s
    while not stop.is_set() and (left_s := end_s - time.monotonic()) > 0:
        if wakeups.wait(min(left_s, _STOP_S_MAX)):
            return


def _table(stream: StreamDeclaration, pieces: Sequence[bytes]) -> Any:
    """Return the rows of a batch as a pyarrow table."""
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigurationError(
            "what Spark has staged is in Arrow's format: pip install pyarrow"
        ) from error
    pa: Any = pyarrow
    if not pieces:
        return _no_rows(stream, pa)
    table = pa.concat_tables([pa.ipc.open_stream(data).read_all() for data in pieces])
    needed = _columns(stream)
    missing = [name for name in needed if name not in table.column_names]
    odd = [name for name in _OPTIONAL if name in table.column_names and name not in needed]
    if missing or odd:
        what = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(odd)}"
        raise DefinitionError(
            f"what is staged for stream {stream.name} {what}: the stream is declared differently "
            "where Spark runs. Declare it once, for both, and make the columns with "
            "spark_bridge.events(df, stream)"
        )
    return table


def _columns(stream: StreamDeclaration) -> list[str]:
    names = ["event_type", "event_time_us", "event_id", "raw"]
    if stream.accuracy is not None:
        names += ["event_low_us", "event_high_us"]
    if stream.producer is not None:
        names.append("event_producer")
    return names + [PARAM_PREFIX + name for name in stream.params or ()]


def _no_rows(stream: StreamDeclaration, pa: Any) -> Any:
    kinds = [(name, pa.int64() if name in _TIMES else pa.string()) for name in _columns(stream)]
    return pa.schema(kinds).empty_table()
