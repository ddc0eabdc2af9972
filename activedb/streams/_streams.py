"""The streams of a database: declared, fed, and processed by rules and programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from activedb.clock import Clock
from activedb.config import Settings
from activedb.errors import ConfigurationError, DefinitionError
from activedb.events import Occurrence
from activedb.firing import Decisions, Launcher, TimeLines, Triggering
from activedb.functions import checked_function
from activedb.rules import Catalog
from activedb.scheduling import Program, Scheduler, SharedTable
from activedb.spelling import check_options, did_you_mean
from activedb.store import Store
from activedb.store.journals import (
    DecisionRows,
    DetectorRows,
    ProgramJournal,
    StagedJournal,
    StreamJournal,
)
from activedb.store.sql import KeyedValues
from activedb.streams._declaration import StreamDeclaration, StreamOptions
from activedb.streams._future import FutureLimit
from activedb.streams._membership import Membership
from activedb.streams._producers import StreamProducers
from activedb.streams._program_decisions import ProgramDecisions
from activedb.streams._programs import InColumns, Output, Programs
from activedb.streams._run import StreamRun
from activedb.streams._staged import StagedConsumer
from activedb.streams._stream_columns import StreamColumns
from activedb.streams._stream_programs import StreamPrograms
from activedb.streams._time import StreamTime
from activedb.transactions import Forest

__all__ = ["Stream", "Streams"]


class Stream(StreamDeclaration):
    """Declared stream of a database; `Database.stream` returns it.

    It has the fields of its declaration, which `StreamDeclaration` describes.
    """

    _streams: Streams

    def __init__(self, streams: Streams, name: str, /, **declaration: Any):
        super().__init__(name, **declaration)
        self._move_to(streams)

    def _move_to(self, streams: Streams) -> None:
        object.__setattr__(self, "_streams", streams)  # a declaration is frozen

    @property
    def declaration(self) -> StreamDeclaration:
        """Declaration alone, as a value without a database; `dataclasses.replace` can vary it."""
        return StreamDeclaration(**{each.name: getattr(self, each.name) for each in fields(self)})

    @property
    def run(self) -> StreamRun:
        """Run of the stream, which processes its batches and resumes where it stopped.

        Define the rules first: when the run is first used, it feeds them the events that they may
        still need.
        """
        return self._streams.run_of(self)

    def feed(
        self, events: Iterable[Occurrence], punctuation: datetime | float | None = None
    ) -> None:
        """Process events from Python, without Spark, as one batch.

        An event that does not fit the stream, or is too far in the future (setting `future_max_s`),
        becomes a dead letter; it advances neither the punctuation nor the sync points.

        Each call is a new batch, and nothing records whether its events were fed before. See
        docs/guarantees.md ("Streams") for what to do after a crash.

        Parameters
        ----------
        events : iterable of Occurrence
            Events in any order; those of one producer in the order of detection.
        punctuation : datetime or float, optional
            Time, as an aware datetime or in seconds since the epoch, before which no further event
            will come. By default every event has come, so all are processed; in a stream of
            producers only the stable events are processed, and the others wait.

        Raises
        ------
        BadEvent
            If one of the events is not an occurrence; nothing has been taken then.
        ProducerSilent
            If a producer is silent, and the stream was declared without `on_silent`; nothing has
            been taken then.
        StreamFull
            If more events would have to wait than allowed; nothing has been taken then.
        """
        run = self.run
        if punctuation is None and self.membership is not None:
            run.feed(events)
        elif punctuation is None:
            run.feed(events, ends=True)
        else:
            run.feed(events, Occurrence("punctuation", punctuation).us)

    def program(
        self,
        program: Program,
        *,
        tables: Mapping[SharedTable, Any],
        scheduler: str | Scheduler | None = None,
        outputs: Any = None,
    ) -> Program:
        """Process the events durably with a program.

        Call it before the stream is fed, as for rules. The s-transactions of a part commit
        together, with their rows, versions and outputs and the ledger row. They run after the rules
        on the events of the part. An s-transaction that aborts leaves an `Output` with the reason;
        an event from which no s-transaction can be made becomes a dead letter.

        Parameters
        ----------
        program : Program
            Program with its state accesses.
        tables : mapping of SharedTable to Table or mapped class
            Table that keeps the rows of each shared table: the primary key is the key, and the
            other column is the value, or a dict of the columns if there are several. From the first
            feed on, this process owns these tables (`Admin.own`), and nothing else writes them.
        scheduler : str or Scheduler, optional
            Scheduler of the s-transactions, one for all programs of a stream: ``"serial"`` (the
            default), ``"sei"``, ``"s2pl"``, ``"lwm"``, ``"tpg"``, or an object of such a class with
            other arguments; or ``"columns"``, which runs one purely numeric program over columns at
            hundreds of thousands of events per second (docs/streams.md lists the requirements).
        outputs : Table or mapped class, optional
            Table into which outputs are inserted; they are then mappings of columns, or lists of
            such mappings. By default outputs are kept for `outputs`.

        Returns
        -------
        Program
            The given program.

        Raises
        ------
        DefinitionError
            If the definition is invalid, the program cannot run over columns, or the stream has
            been fed already.
        ConfigurationError
            If ``"columns"`` needs a package that is not installed.
        """
        self._streams.define_program(
            self, program, tables=tables, scheduler=scheduler, outputs=outputs
        )
        return program

    def outputs(self, program: Program | str) -> list[Output]:
        """Return a program's committed outputs, and its aborted s-transactions, in serial order.

        O(n log n).

        Raises
        ------
        DefinitionError
            If the stream has no such program.
        """
        return self._streams.outputs(self, program if isinstance(program, str) else program.name)

    @property
    def producers(self) -> StreamProducers:
        """Producers of a stream that was declared with ``membership=``.

        Define the rules first, as for `run`.

        Raises
        ------
        ConfigurationError
            If the stream has no producers.
        """
        if self.membership is None:
            raise ConfigurationError(
                f'stream {self.name} has no producers: declare it with membership="atomic" or '
                '"weak"'
            )
        return self._streams.producers_of(self)

    def take_staged(
        self,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        poll_s: float = 1.0,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> int:
        """Process the batches that a Spark query publishes for the stream, each exactly once.

        The query is ``df.writeStream.format("activedb")`` (docs/sources.md). It may belong to
        another program on another computer, which declares the stream in the same way; this process
        needs no Spark. Define the rules first. A batch is deleted after it has taken effect. A
        batch whose processing was interrupted is taken again, with the same result.

        Parameters
        ----------
        follow : bool, default False
            Continue until told to stop, instead of returning when all published batches are taken.
        stop : threading.Event, optional
            Set it from another thread or a signal handler to return after the current batch.
        poll_s : float, default 1.0
            Seconds between two looks, if no notification of a batch arrives.
        on_batch : callable ``(batch_id, rows)``, optional
            Called on this thread after each batch, with its number of rows.

        Returns
        -------
        int
            Number of batches taken.

        Raises
        ------
        ConfigurationError
            On ``memory://``, which Spark cannot see; or, unless `follow` is True, if no batch was
            ever published for the stream.
        CheckpointMismatch
            If another query has fed the stream.
        DefinitionError
            If the columns of a batch do not match the stream.
        BatchFailed
            As for `StreamRun.apply`.
        TransactionStateError
            Inside a transaction.
        """
        if on_batch is not None:
            checked_function(on_batch, "on_batch=")
        return self._streams.taker_of(self).take(
            stop or threading.Event(),
            follow=follow,
            poll_s=poll_s,
            on_batch=on_batch or (lambda batch_id, rows: None),
        )


class Streams:
    """Declared streams, by name; iterating yields them in the order of declaration.

    Parameters
    ----------
    declared : dict of str to Stream
        Declared streams; shared with the objects that have to know them.
    runs : dict of str to StreamRun
        Runs of the streams in use; shared likewise.
    watch : callable
        Watches the time of an object, as `Timekeeper.watch` does.
    """

    def __init__(
        self,
        declared: dict[str, Stream],
        runs: dict[str, StreamRun],
        *,
        store: Store,
        settings: Settings,
        clock: Clock,
        future: FutureLimit,
        catalog: Catalog,
        forest: Forest,
        triggering: Triggering,
        launcher: Launcher,
        lines: TimeLines,
        detector_rows: DetectorRows,
        decisions: Decisions,
        watch: Callable[..., Any],
    ):
        self._declared = declared
        self._runs = runs
        self._memberships: dict[str, Membership] = {}
        self._given_programs: list[tuple[Stream, Program, dict[str, Any]]] = []
        self._store = store
        self._settings = settings
        self._clock = clock
        self._future = future
        self._catalog = catalog
        self._forest = forest
        self._triggering = triggering
        self._launcher = launcher
        self._lines = lines
        self._detector_rows = detector_rows
        self._decisions = decisions
        self._watch = watch
        self.programs = Programs(forest.tables.spec, catalog, _check_in_columns)
        self.columns = StreamColumns(declared, catalog)

    def __iter__(self) -> Iterator[Stream]:
        return iter(tuple(self._declared.values()))

    def __len__(self) -> int:
        return len(self._declared)

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def __getitem__(self, name: str) -> Stream:
        """Return the stream with this name.

        Raises
        ------
        DefinitionError
            If there is none; the message suggests similar names.
        """
        if name not in self._declared:
            raise DefinitionError(
                f"there is no stream {name!r}; {did_you_mean(name, self._declared)}"
            )
        return self._declared[name]

    def declare(self, name: str, /, **options: Any) -> Stream:
        """Declare a stream; see `Database.stream`."""
        if name in self._declared:
            raise DefinitionError(f"there is a stream named {name!r} already")
        if "producers" in options:
            raise DefinitionError("producers= is called expected_producers=")
        check_options(options, StreamOptions, f"stream {name!r}")
        if "types" not in options:
            raise DefinitionError(
                f"stream {name!r}: types= is missing, the event types with the parameters that "
                f'each requires: types={{"ENTER": ("person",)}}'
            )
        stream = Stream(self, name, **options)
        self.columns.declare(stream)
        self._declared[name] = stream
        return stream

    def take_over(self, before: Streams) -> None:
        """Take the streams over from before a fork."""
        for stream in before:
            self.columns.declare(stream)
            self._declared[stream.name] = stream
            stream._move_to(self)

    def take_over_programs(self, before: Streams) -> None:
        """Take the programs over from before a fork; the rules come before."""
        for stream, program, options in before._given_programs:
            self.define_program(stream, program, **options)

    # -- parts of a stream -----------------------------------------------------------------

    def run_of(self, stream: Stream) -> StreamRun:
        """Return the run of a stream; create it at the first call."""
        run = self._runs.get(stream.name)
        if run is None:
            journal = StreamJournal(self._store, stream.name)
            membership = None
            if stream.membership is not None:
                membership = self._memberships[stream.name] = Membership(
                    stream,
                    journal=journal,
                    clock=self._clock,
                    future=self._future,
                    counters=self._triggering.counters,
                )
            run = self._runs[stream.name] = StreamRun(
                stream,
                forest=self._forest,
                triggering=self._triggering,
                launcher=self._launcher,
                journal=journal,
                time=StreamTime(
                    stream,
                    catalog=self._catalog,
                    lines=self._lines,
                    rows=self._detector_rows,
                    counters=self._triggering.counters,
                ),
                future=self._future,
                membership=membership,
                rows=self._detector_rows,
                watch=self._watch,
                **self._programs_of(stream),
            )
            self._decisions.do_chosen(stream.name)
        return run

    def producers_of(self, stream: Stream) -> StreamProducers:
        """Return the producers of a stream with membership."""
        run = self.run_of(stream)
        return StreamProducers(run, self._memberships[stream.name])

    def define_program(self, stream: Stream, program: Program, **options: Any) -> None:
        """Define a program on a stream; see `Stream.program`."""
        if stream.name in self._runs:
            raise DefinitionError(
                f"stream {stream.name} runs already: define its programs before it is fed"
            )
        self.programs.define(program, stream, **options)
        self._given_programs.append((stream, program, options))

    def outputs(self, stream: Stream, program: str) -> list[Output]:
        """Return the outputs of a stream's program; see `Stream.outputs`."""
        found = self.programs.stream_of(program)
        if found != stream.name:
            raise DefinitionError(f"program {program!r} is on the stream {found}")
        journal = ProgramJournal(self._store, stream.name)
        return [Output.restore(record) for record in journal.outputs(program)]

    def taker_of(self, stream: Stream) -> StagedConsumer:
        """Return the taker of a stream's published batches; see `Stream.take_staged`."""
        if not self._store.is_shared:
            raise ConfigurationError(
                "memory:// belongs to this process, Spark cannot write to it: set ACTIVEDB_URL to "
                "a Postgres that both can reach"
            )
        journal = StagedJournal(self._store, stream.name)
        return StagedConsumer(self.run_of(stream), journal, self._settings.future_max_s)

    def _programs_of(self, stream: Stream) -> dict[str, Any]:
        """Return the arguments of a `StreamRun` that run the programs of the stream."""
        of = self.programs.of(stream.name)
        if of is None:
            return {}
        journal, counters = ProgramJournal(self._store, stream.name), self._triggering.counters
        decisions = ProgramDecisions(
            stream.name,
            DecisionRows(self._store),
            clock=self._clock,
            counters=counters,
            figures=self._triggering.figures,
        )
        programs = StreamPrograms(
            stream,
            of,
            forest=self._forest,
            journal=journal,
            counters=counters,
            decisions=decisions,
        )
        if not isinstance(of.scheduler, InColumns):
            return {"programs": programs}
        from activedb.streams.columns import ColumnProgram

        columns = ColumnProgram(
            stream,
            of,
            rows=programs,
            forest=self._forest,
            journal=journal,
            counters=counters,
            threads=min(self._settings.threads, os.cpu_count() or 1),
        )
        return {"programs": programs, "columns": columns}


def _check_in_columns(
    program: Program, stream: StreamDeclaration, kept: Iterable[KeyedValues], is_alone: bool
) -> None:
    """Check that a program can run in columns, with the packages that columns need."""
    from activedb.streams.columns import check_in_columns

    check_in_columns(program, stream, kept, is_alone=is_alone)
