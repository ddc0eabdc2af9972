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
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from activedb.columns import PARAM_PREFIX, EventTable
from activedb.errors import (
    ConfigurationError,
    DefinitionError,
    StoreError,
    TransactionStateError,
)
from activedb.spelling import did_you_mean
from activedb.store.journals import StagedBatch, StagedJournal
from activedb.store.session import Wakeups
from activedb.streams._arrivals import AtomicBatch
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._run import StreamRun
from activedb.transactions import current_transaction

__all__ = ["Marks", "StagedConsumer", "newest_times"]


_OPTIONAL = ("event_low_us", "event_high_us", "event_producer")
_TIMES = ("event_time_us", "event_low_us", "event_high_us")
_STOP_S_MAX = 0.2  # maximum delay until a waiting thread notices the stop event


class StagedConsumer:
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
        """Take the published batches; with `follow`, continue until `stop`. Return their number.

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


# -- punctuations of a stream fed in batches, derived from the newest time per producer --------


_ANONYMOUS = ""  # the producer of a stream without named producers


@dataclass(frozen=True, slots=True)
class Marks:
    """Progress of a stream's producers after a batch.

    Attributes
    ----------
    marks : mapping of str to (int or None, int)
        Per producer: its newest time, and the time it was last heard, both in microseconds. The
        latter is on a clock that continues from batch to batch.
    awaited : mapping of str to int
        Declared producers that were never heard, each with the time since when it is awaited.
    clock_us : int
        Current time of that clock. Between two batches it advances by at most half of the stream's
        `silent_after`, so a pause of the whole feed makes no producer silent.
    made_us : int or None
        Time when the batch was planned, or published; None before the first batch.
    punctuation_us : int or None
        Punctuation of the batch: every event before it has been seen by the end of the batch.
    """

    marks: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    awaited: Mapping[str, int] = field(default_factory=dict)
    clock_us: int = 0
    made_us: int | None = None
    punctuation_us: int | None = None

    @classmethod
    def restore(cls, stream: StreamDeclaration, record: Mapping[str, Any] | None) -> Self:
        """Restore from `record`; None: no batch has been taken yet.

        The stream's declared producers may have changed since, or have been removed.
        """
        known = cls() if record is None else cls(**record)
        marks = _as_declared(stream, known)
        awaited = {
            name: known.awaited.get(name, known.clock_us)
            for name in stream.expected_producers
            if name not in marks
        }
        return replace(known, marks=marks, awaited=awaited)

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; `restore` is the inverse."""
        return asdict(self)

    def after(
        self, stream: StreamDeclaration, newest: Mapping[str, int | None], made_us: int
    ) -> Marks:
        """Return the marks after one more batch; O(producers).

        Parameters
        ----------
        newest : mapping of str to int or None
            Result of `newest_times`.
        made_us : int
            Time when the batch was planned, or published.
        """
        silent_us = stream.silent_after_us
        step_us = 0 if self.made_us is None else max(0, made_us - self.made_us)
        clock_us = self.clock_us + (step_us if silent_us is None else min(step_us, silent_us // 2))
        marks = dict(self.marks)
        for name, us in newest.items():
            known = [each for each in (us, marks.get(name, (None, 0))[0]) if each is not None]
            marks[name] = (max(known, default=None), clock_us)
        awaited = {name: us for name, us in self.awaited.items() if name not in marks}
        waited_for = [*marks.values(), *((None, since_us) for since_us in awaited.values())]
        reached_us = _reached_us(stream, waited_for, clock_us)
        known = [us for us in (self.punctuation_us, reached_us) if us is not None]
        return Marks(marks, awaited, clock_us, made_us, max(known, default=None))


def _as_declared(stream: StreamDeclaration, known: Marks) -> dict[str, tuple[int | None, int]]:
    """Return the marks of the producers of the stream as it is declared now."""
    if stream.producer is None:
        times = [us for us, _ in known.marks.values() if us is not None]
        return {_ANONYMOUS: (max(times), known.clock_us)} if times else {}
    return {name: mark for name, mark in known.marks.items() if name != _ANONYMOUS}


def _reached_us(
    stream: StreamDeclaration, marks: Sequence[tuple[int | None, int]], clock_us: int
) -> int | None:
    """Return the punctuation by the marks alone; None if unknown."""
    silent_us = stream.silent_after_us
    waited_for = [
        us for us, heard_us in marks if silent_us is None or clock_us - heard_us <= silent_us
    ]
    known = [us for us, _ in marks if us is not None]
    # An awaited producer without a mark was never heard, or none of its times is credible.
    if not known or None in waited_for:
        return None
    behind_us = min((us for us in waited_for if us is not None), default=max(known))
    reached_ms = behind_us // 1000 + -stream.delay // timedelta(milliseconds=1)
    return reached_ms * 1000 if reached_ms > 0 else None


def newest_times(
    stream: StreamDeclaration, table: EventTable, latest_us: int | None
) -> dict[str, int | None]:
    """Return the newest time of each producer with rows in a table; O(rows), in columns.

    Parameters
    ----------
    table : pyarrow.Table
        Event columns. The lower end of an interval counts.
    latest_us : int or None
        Latest credible time; later ones are ignored. None: all times are credible.

    Returns
    -------
    dict of str to int or None
        None: no time of the producer is credible. Rows with an empty or NULL name don't count.
    """
    import pyarrow
    import pyarrow.compute

    pa: Any = pyarrow
    pc: Any = pyarrow.compute
    us: Any = table.column("event_time_us" if stream.accuracy is None else "event_low_us")
    if latest_us is not None:
        us = pc.if_else(pc.less_equal(us, latest_us), us, pa.scalar(None, pa.int64()))
    if stream.producer is None:
        newest_us = pc.max(us).as_py()
        return {} if newest_us is None else {_ANONYMOUS: newest_us}
    rows = pa.table({"name": table.column("event_producer"), "us": us})
    rows = rows.filter(pc.not_equal(rows.column("name"), _ANONYMOUS))  # this drops NULL, too
    newest = rows.group_by("name").aggregate([("us", "max")])
    names, times = newest.column("name").to_pylist(), newest.column("us_max").to_pylist()
    return dict(sorted(zip(names, times, strict=True)))
