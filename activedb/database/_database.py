"""The database object: what users hold in their hands."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from activedb.changes import Follower, FollowProgress, Raised, follow, tables_of_rules
from activedb.clock import Clock, SystemClock
from activedb.config import Settings
from activedb.database._forks import track
from activedb.database._methods import emitting
from activedb.database._monitoring import Monitoring
from activedb.database._reads import find_reads
from activedb.database._recording import open_recording
from activedb.database._rules import Rules
from activedb.errors import ConfigurationError, DefinitionError, TransactionStateError
from activedb.events import MATCHES_MAX, Occurrence, Timestamp
from activedb.firing import (
    DeadLetters,
    Decisions,
    KeptPartials,
    Launcher,
    Letter,
    PendingFiring,
    Quarantine,
    Restarts,
    Retried,
    TimeLines,
    Triggering,
    Worker,
    read_pending,
)
from activedb.functions import calling, checked_function
from activedb.metrics import Counters
from activedb.rules import Action, Catalog, Condition, OnUncertain, Rule, Subscription
from activedb.scheduling import Program, Scheduler, SharedTable
from activedb.spelling import did_you_mean
from activedb.store import Connection
from activedb.store.journals import (
    DecisionRows,
    DetectorRows,
    Journal,
    ProgramJournal,
    RuleRows,
    StagedJournal,
    StreamJournal,
    WorkflowJournal,
    workflow_names,
)
from activedb.store.session import new_metadata, open_store
from activedb.store.sql import TableSpec
from activedb.streams import (
    FutureLimit,
    InColumns,
    Membership,
    Output,
    ProgramDecisions,
    Programs,
    Source,
    StagedTaker,
    Stream,
    StreamColumns,
    StreamProducers,
    StreamPrograms,
    StreamRun,
    StreamTime,
)
from activedb.timers import Timekeeper
from activedb.transactions import Forest, Run, Snapshot, TimedRuns, Transaction, current_transaction
from coupling.acta import History

if TYPE_CHECKING:
    from activedb.analysis import Analysis
    from activedb.monitor import Monitor
    from activedb.workflows import BatchHistory, BatchRun, WorkflowDefinition

__all__ = ["Database", "connect"]

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A", bound=Action)


def connect(
    url: str | None = None, *, clock: Clock | None = None, fresh: bool = False, **settings: Any
) -> Database:
    """Open a database.

    Parameters
    ----------
    url : str, optional
        ``postgresql+psycopg://…`` for a Postgres 15 or newer, ``memory://`` for the memory twin.
        Without it ``ACTIVEDB_URL`` or ``[tool.activedb]`` decides, else the embedded Postgres in
        ``.activedb/`` of the working folder is started.
    clock : Clock, optional
        Where "now" comes from.
    fresh : bool
        Drop everything in the schema named by ``db_schema`` first; for demos and tests.
    **settings
        Any field of `Settings`, such as ``threads=8``.

    Raises
    ------
    InvalidURL, ServerUnreachable, ConfigurationError
    """
    chosen = Settings.load(url=url, **settings)
    if fresh and chosen.db_schema is None and chosen.url != "memory://":
        raise ConfigurationError("fresh=True drops a schema: say which with db_schema=")
    return Database(chosen, clock or SystemClock(), fresh=fresh)


class Database:
    """Tables, rules and streams over one store; safe to use from many threads.

    Attributes
    ----------
    metadata : sqlalchemy.MetaData
        Where the users' tables are declared.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        *,
        fresh: bool = False,
        metadata: Any = None,
    ):
        self.metadata = new_metadata() if metadata is None else metadata
        self.settings = settings
        self._clock = clock
        self._future = FutureLimit(clock, settings.future_max_s)
        self._store = open_store(self.metadata, settings, fresh=fresh)
        self._catalog = Catalog()
        self._streams: dict[str, Stream] = {}
        self._stream_runs: dict[str, StreamRun] = {}
        self._memberships: dict[str, Membership] = {}
        self._workflows: dict[str, WorkflowDefinition] = {}
        self._batch_runs: dict[str, BatchRun] = {}
        self._opening_batches = threading.Lock()
        is_queued = settings.firings == "queue" and settings.url != "memory://"
        journal = Journal(self._store, is_queued=is_queued)
        self._launcher = Launcher(
            journal, self._catalog, Restarts(clock, settings), settings.restarts_max
        )
        self._lines = TimeLines(self._streams)
        self._detector_rows = DetectorRows(self._store)
        counters = Counters()
        self._kept = KeptPartials(self._detector_rows, self._lines, counters)
        self._triggering = Triggering(
            self._catalog,
            launcher=self._launcher,
            lines=self._lines,
            kept=self._kept,
            counters=counters,
            write_letters=self._write_letters,
            write_choices=lambda t, choices: self._decisions.record(t, choices),
            cycles_max=settings.cycles_max,
            cascade_max=settings.cascade_max,
            breadth_first=settings.cascade_order == "breadth_first",
        )
        self._forest = Forest(self._store, settings, clock, self._triggering)
        self._recording = open_recording(settings, self._forest.counters)
        if self._recording is not None:
            self._forest.new_log = self._recording.log
        self._programs = Programs(self._forest.tables.spec, self._catalog)
        self._columns = StreamColumns(self._streams, self._catalog)
        self._launcher.forest = self._forest
        self._launcher.triggering = self._triggering
        self._dead_letters = DeadLetters(
            self._launcher.journal, self._catalog, self._triggering, self._forest
        )
        self._timekeeper = Timekeeper(clock, self._catalog, self._lines, self._launcher)
        self._timekeeper.forest = self._forest
        self._timekeeper.triggering = self._triggering
        self._decisions = Decisions(
            DecisionRows(self._store),
            catalog=self._catalog,
            lines=self._lines,
            kept=self._kept,
            forest=self._forest,
            triggering=self._triggering,
            clock=clock,
            streams=self._stream_runs.keys(),
            watch=self._timekeeper.watch,
        )
        self._worker = Worker(self._launcher, settings.threads)
        if self._store.is_shared:
            self._store.raised = Raised(self._catalog, self._store.schema)
        self._lines.on_clock = self._timekeeper.moved
        self._catalog.on_applied = self._rules_applied
        rows = RuleRows(self._store)
        self._rules = Rules(
            self._catalog, self._forest, rows, lambda: self.metadata.tables, self._kept
        )
        self._rules.texts.raising, self._rules.texts.streams = self.signal, self._streams
        self._rules.checks = (self._programs.check_rule, self._columns.check_rule)
        self._triggering.runner.quarantine = Quarantine(
            self._catalog,
            after=settings.quarantine_after,
            clock=clock,
            counters=self._triggering.counters,
            aside=self._launcher.aside,
            put=self._rules.quarantine,
            refused=self._triggering.figures.refused,
        )
        self._given_programs: list[dict[str, Any]] = []
        self._closed = False
        self._monitoring = Monitoring.open(self, settings)
        self._at_exit = _close_at_exit(self)
        track(self)

    def _rules_applied(self, subscriptions: list[Subscription]) -> None:
        self._timekeeper.applied(subscriptions)
        self._decisions.defined(subscriptions)

    def _define_again(self, before: Mapping[str, Any]) -> None:
        """Define what was defined before a fork; see `_forks`."""
        for stream in before["_streams"].values():
            self._columns.declare(stream)
            self._streams[stream.name] = stream
        self._rules.texts.queries.update(before["_rules"].texts.queries)
        for entry in before["_catalog"].committed():
            self._rules.define(entry.rule)
        for given in before["_given_programs"]:
            self.program(**given)
        self._workflows.update(before["_workflows"])
        self._forest.watch_on(before["_watched"])

    def create_all(self) -> None:
        """Create the declared tables that are missing."""
        self._store.create_all()

    def declare_existing(self) -> None:
        """Declare the tables of the database as they are there, activedb's own apart.

        Those that are declared already stay as they are declared.
        """
        self.metadata.reflect(
            self._store.engine, only=lambda name, _: not name.startswith("activedb_")
        )

    # -- rules -----------------------------------------------------------------------------

    def rule(
        self,
        function: Any = None,
        /,
        *,
        on: Any = None,
        when: Condition | None = None,
        coupling: str = "immediate",
        priority: int | None = None,
        on_abort: str = "triggering",
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        set_oriented: bool = False,
        condition_action: str = "immediate",
        after: Iterable[str] = (),
        partials_max: int | None = None,
        on_full: str = "drop_oldest",
        matches_max: int | None = MATCHES_MAX,
        on_many: str = "refuse",
        on_uncertain: OnUncertain = "certain",
        reads: Any = None,
        writes: Any = None,
        raises: Any = None,
    ) -> Callable[[A], A]:
        """Make the decorated function the action of a rule, from now on; see `rules`.

        Parameters
        ----------
        on : event expression, optional
            ``event("EXIT")``, ``inserted(table)``, ``updated(table, "column")``,
            ``deleted(table)``, ``every(60)``, several of them with ``any_of(…)`` or ``|``,
            ``seq(…)``, and what else ``docs/rules.md`` shows. Left out: whatever changes what the
            condition reads, as `reads` says or its source tells.
        when : callable ``(t, o)``, optional
            The condition, evaluated in the rule's own subtransaction. It may only read: what it
            writes is refused with `ConditionWrites`, and the rule fails.
        coupling : {"immediate", "deferred", "detached", "causal", "sequential", "exclusive"}
            When it runs. As a child of the triggering transaction: at the event (immediate), or at
            its commit point (deferred). As a top-level transaction: at the event, whatever becomes
            of the triggering one (detached), or so that it commits only after that one and aborts
            with it (causal); after the triggering commit (sequential); if the triggering one aborts
            (exclusive).
        priority : int, optional
            Higher first among rules that are triggered together or due at one moment, equal ones in
            parallel, None last (``docs/coupling.md``). Not with ``coupling="causal"``.
        on_abort : {"triggering", "rule"}
            What a rule that raises takes along: the triggering transaction (which gets
            `RuleFailed`), or only its own subtransaction (and the dead-letter table keeps the
            reason). One with a top-level transaction of its own always fails alone.
        name : str, optional
            The function's name by default; unique.
        params : mapping of str to value, optional
            Keyword arguments for action and condition: each is given those it takes.
        set_oriented : bool
            What triggers the rule in one statement, or if it is deferred in one deferred cycle,
            fires it once, with an occurrence ``o`` of which ``o.occurrences`` are the parts,
            ``o.rows`` their rows.
        condition_action : {"immediate", "sequential", "deferred", "detached"}
            When the action runs: right after the condition, in its transaction; at the same time,
            undone unless the condition turns out true; at the commit point of the triggering
            transaction; in a top-level transaction of its own.
        after : list of str, optional
            Rules that end before this one starts, if they are triggered together with it: with
            ``coupling="immediate"`` by one event, with ``"deferred"`` in one cycle. That counts
            more than priorities.
        partials_max : int, optional
            How many occurrences the detector of the event keeps at most for later matches; the
            setting of this name by default.
        on_full : {"drop_oldest", "refuse"}
            What happens when it would have to keep more: it forgets the oldest
            (``db.rules[name].dropped`` counts them), or the event is refused with
            `PartialsExceeded`.
        matches_max : int or None
            How many matches one event may complete; None: any number.
        on_many : {"refuse", "truncate"}
            What happens when it would complete more: the event is refused with `MatchesExceeded`,
            or triggers the rule for the most preferred ones (``db.rules[name].truncated`` counts
            such events). At the end of a window, where there is no event, these are made.
        on_uncertain : {"raise", "certain", "possible", "reading"} or callable
            What to make of events whose timestamps do not tell their order: what is certain, and
            the rest is left open (`decisions`); the same with a dead letter ("raise"); all that is
            possible; as the readings say; or what the function chooses, which gets the
            `UncertainOrder`.
        reads, writes : list, optional
            For `analyze_rules`, and for rules without `on`: what condition and action may read
            and write; tables, mapped classes, columns or ``"table.column"``, of writes also
            ``inserted(table)`` and its kin. Not given: what their source says.
        raises : list of str, optional
            For `analyze_rules`: the signals they may raise.

        Raises
        ------
        RuleSignatureError
            If action or condition cannot be called as ``fn(t, o)`` with the parameters it takes,
            or a parameter is taken by neither.
        DefinitionError
            If something else about the rule has no meaning.
        """
        if function is not None:
            raise DefinitionError(
                f"db.rule takes what follows it in parentheses, and has got {function!r}: write "
                f"@db.rule(on=…) above the function, with the event that triggers it"
            )

        def define(action: A) -> A:
            self._rules.define(
                Rule.define(
                    action,
                    on=on,
                    when=when,
                    coupling=coupling,
                    priority=priority,
                    on_abort=on_abort,
                    name=name,
                    params=params,
                    set_oriented=set_oriented,
                    condition_action=condition_action,
                    after=after,
                    partials_max=partials_max,
                    on_full=on_full,
                    matches_max=matches_max,
                    on_many=on_many,
                    on_uncertain=on_uncertain,
                    reads=reads,
                    writes=writes,
                    raises=raises,
                    find_reads=find_reads,
                )
            )
            return action

        return define

    @property
    def rules(self) -> Rules:
        """The rules, to be listed, created, changed, disabled or deleted while the program runs."""
        return self._rules

    def ignoring(self, *names: str) -> AbstractContextManager[None]:
        """Let events not trigger some rules: ``with db.ignoring("rule", …):`` in a transaction.

        It is about the events that the transaction open on this thread, and its inferiors, raise
        inside the block; the detectors of those rules are not shown them either.

        Raises
        ------
        DefinitionError
            If there is no such rule.
        TransactionStateError
            If no transaction of this database is open on this thread.
        """
        return self._rules.ignoring(*names)

    def analyze_rules(self) -> Analysis:
        """Tell without running them whether the enabled rules terminate and are confluent.

        See `activedb.analysis.analyze`. What a rule may do is read in its source where ``reads=``,
        ``writes=``, ``raises=`` do not say it.
        """
        from activedb.analysis import analyze  # networkx takes a tenth of a second to import

        return analyze(entry.rule for entry in self._rules if entry.enabled)

    # -- transactions and events -----------------------------------------------------------

    def transaction(self, *, connection: Any = None, timeout: float | None = None) -> Transaction:
        """A top-level transaction, used as ``with db.transaction() as t:``.

        It commits at the end of the block and aborts when the block raises. Deadlocks and
        serialization conflicts are raised; `run` retries them. It belongs to the thread that
        enters the block.

        Parameters
        ----------
        connection : sqlalchemy.Connection or sqlalchemy.orm.Session, optional
            Run inside the transaction of this connection, which is never committed here: what the
            block wrote is there for the caller's own SQL when the block ends, and is committed or
            undone with it. The locks are kept until then. A row that the server refuses undoes
            the block alone.
        timeout : float, optional
            Seconds from now after which it aborts with `TransactionTimeout`, at its next step or
            out of what it waits for.

        Raises
        ------
        ConfigurationError
            If the connection goes elsewhere, commits each statement by itself, or reads from a
            snapshot.
        TransactionStateError
            If another block is open over the connection, or its transaction has failed.
        """
        if connection is not None:
            return self._forest.joined.block(connection, timeout=timeout)
        return self._forest.top_level(Run(of_application=True), timeout=timeout)

    def connection(self) -> AbstractContextManager[Connection]:
        """A SQLAlchemy connection for SQL of your own: ``with db.connection() as c:``.

        What it does without ``db.transaction(connection=c)`` is that of a plain program: no rule
        hears of it, and on Postgres the server's locks keep it apart from transactions. On
        ``memory://`` it keeps all others waiting from its first statement to the end of the block.
        """
        return self._store.connection()

    def watch(self, sessions: Any) -> None:
        """Turn the flushes of ordinary SQLAlchemy sessions into data events, until `close`.

        The rules run inside the session's transaction, right after the flush; if one fails that
        takes its triggering transaction along, the flush fails. Bulk statements
        (``session.execute(update(…))``) and ``secondary`` tables raise no events.

        Parameters
        ----------
        sessions : Session, sessionmaker or Session class
            Whose sessions go to the database of this object.
        """
        self._forest.watched.watch(sessions)

    def own(self, *tables: Any) -> None:
        """Keep tables in the memory of this process, which is their only user from now on.

        Their rows are read without the server; each commit still writes them there. O(rows) each,
        once. Nothing changes on ``memory://``, where all tables are in memory.

        Raises
        ------
        TableOwned
            If another process owns one or uses it; later, if the connection was lost meanwhile and
            the table has had another owner since.
        DefinitionError
            If the server itself changes rows of one (triggers, cascading foreign keys, …), or it is
            declared twice.
        """
        for table in tables:
            self._forest.own(self._forest.tables.spec(table))

    def run(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``function(t, *args)`` in a top-level transaction, again when that is safe.

        For a limit of time: ``db.with_timeout(seconds).run(function, …)``.

        Raises
        ------
        TransactionAborted
            If `function` aborts the transaction.
        Deadlock, LockTimeout, SerializationConflict, ConnectionLost
            When ``retries_max`` more tries did not help; a lost connection is tried again only
            if nothing was committed.
        """
        run = Run(of_application=True, called=getattr(function, "__qualname__", ""))
        return self._forest.run(calling(function, "run()", args, kwargs), run)

    def with_timeout(self, timeout: float) -> TimedRuns:
        """What can be done with a limit of time, in seconds: ``db.with_timeout(5).run(f, …)``.

        The time counts all tries and the pauses between them. When it is over the transaction
        aborts with `TransactionTimeout` and is not tried again; 2 to 4 s later if the server has
        fallen silent.

        Raises
        ------
        ConfigurationError
            If `timeout` is no positive number.
        """
        return TimedRuns(self._forest, timeout)

    def signal(self, name: str, /, *, timestamp: Timestamp | None = None, **params: Any) -> None:
        """Raise an application event, in the transaction open on this thread or in one of its own.

        Parameters
        ----------
        timestamp : int, float, datetime or AccuracyInterval, optional
            When it happened: seconds since the epoch, an aware datetime, or ``node.stamp()`` with
            the node's own uncertainty. Now, if it is not given.

        Raises
        ------
        BadEvent
            If the timestamp or a parameter has no meaning, or the timestamp is from the future
            (setting `future_max_s`), or it is an event of a stream that stays in columns.
        RuleFailed
            If a rule that takes its triggering transaction along fails.
        """
        self._raise("event", name, params, timestamp)

    def emits(self, function: Callable[P, T]) -> Callable[P, T]:
        """Make the calls of the decorated function events: ``called(f)`` and ``returned(f)``.

        They are raised in the transaction open on the calling thread, or in one of their own. A
        rule on the call that fails keeps the function from being called. Of a method it goes below
        ``@classmethod`` and its kin. While no rule listens a call costs two look-ups more.

        Raises
        ------
        DefinitionError
            If it is no plain function.
        """
        return emitting(function, self._raise_if_heard)

    def _raise_if_heard(self, kind: str, name: str, params: Mapping[str, Any]) -> None:
        if (kind, name) in self._catalog.by_key or self._catalog.drafts:
            self._raise(kind, name, params)

    def _raise(
        self,
        kind: str,
        name: str,
        params: Mapping[str, Any],
        timestamp: Timestamp | None = None,
    ) -> None:
        """Raise an event in the transaction open on this thread, or in one of its own."""
        t = current_transaction()
        when = self._clock.now() if timestamp is None else timestamp
        if timestamp is None and t is not None:
            when = t.timestamp
        o = Occurrence(name, when, params, kind=kind).apart()  # the caller may change its lists
        self._columns.check_raised(o)
        if timestamp is not None:
            self._future.check(f"event {name!r}", o.low_us)
        if t is not None and t.forest is self._forest:
            t.check_usable()
            undated = timestamp is None and not t.has_event_time
            self._triggering.occurred(t, o, undated=undated)
        else:
            own = Run(of_application=True)
            self._forest.run(lambda top: self._triggering.occurred(top, o), own)

    # -- detached rules --------------------------------------------------------------------

    def recover(self) -> int:
        """Start detached rules that an earlier process recorded and did not finish.

        Call it once, after the rules are defined. Returns how many were started. Those of a
        process that lives are its own; with ``firings="queue"`` all are the workers'.

        Partial matches that processes have left which have ended since the rules were defined
        are taken over, too.
        """
        stateful = [e.subscription for e in self._catalog.entries() if e.subscription.is_stateful]
        if stateful and self._detector_rows.is_durable:
            self._forest.run(lambda t: self._kept.recover(t, stateful))
        return self._launcher.recover()

    def work(
        self,
        stop: threading.Event | None = None,
        *,
        poll_s: float = 5.0,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Be a worker: run the firings that other processes have recorded, until told to stop.

        Several processes share what nobody runs: that of processes with ``firings="queue"``, and
        of those that have died. Define the rules first; firings of other rules are left to others.

        Parameters
        ----------
        stop : threading.Event, optional
            Set by another thread or a signal handler. What runs then is ended. None: it does not
            return but by an exception, such as Ctrl-C.
        poll_s : float
            Seconds until it looks even if nothing has told it that there is something to do.
        on_progress : callable ``(taken, running)``, optional
            Called on this thread, several times a second, and once when it has been told to stop.

        Returns
        -------
        int
            How many firings it has taken over.

        Raises
        ------
        ConfigurationError
            On ``memory://``, which no other process can see.
        TransactionStateError
            Inside a transaction, or if another thread is at it.
        """
        _check_callback(on_progress, "on_progress=")
        return self._worker.run(stop or threading.Event(), poll_s=poll_s, on_progress=on_progress)

    def join(self, timeout: float | None = None) -> None:
        """Wait until every rule that has started, or is due now, has ended.

        Those in top-level transactions of their own. One that others were in the way of (a
        deadlock, a lost connection) is started again by itself, after a pause, and waited for.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; without it as long as that takes.

        Raises
        ------
        FiringsLeft
            If some have not ended by then. Inside a transaction, or a block of `connection`, at
            once, when all that are left have to be started again: they may wait for its locks.
        SelfDeadlock
            If one waits for what this thread has in a transaction or a block of `connection`.
        TransactionStateError
            In a detached rule, which would wait for itself, or in a rule of a stream.
        ConfigurationError
            If `timeout` is no number of seconds.
        """
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and 0 <= timeout < threading.TIMEOUT_MAX):
            raise ConfigurationError(f"join takes a number of seconds, not {timeout!r}")
        self._timekeeper.settle()
        self._launcher.join(timeout)

    def pending_firings(self) -> list[PendingFiring]:
        """Rules due in top-level transactions of their own: recorded, not done; the oldest first.

        Those that run at this moment are among them. O(n log n).
        """
        return read_pending(self._launcher.journal)

    # -- changes by anybody ----------------------------------------------------------------

    def follow(
        self,
        *tables: Any,
        slot: str = "activedb",
        stop: threading.Event | None = None,
        poll_s: float = 1.0,
        on_progress: Callable[[FollowProgress], None] | None = None,
        whole_rows: bool = False,
    ) -> FollowProgress:
        """Let what anybody commits in tables trigger rules, until told to stop.

        Each change by other programs, and by activedb processes that have not the rule, becomes
        one occurrence with the time of its commit; it fires each detached, sequential or causal
        rule once, also over crashes. What this or another process of activedb has raised for a
        rule itself is not raised for it again. Immediate, deferred and exclusive rules are not run:
        the transaction is over. Define the rules first.

        Parameters
        ----------
        *tables : Table or mapped class
            None: all on whose changes such rules are.
        slot : str
            Name of the server's replication slot, and publication, made by the first call. From
            then on the server keeps its log until it is followed: `unfollow` ends that.
        stop : threading.Event, optional
            Set by another thread or a signal handler. What runs then is ended.
        poll_s : float
            Seconds between two looks when there is nothing to do.
        on_progress : callable ``(progress)``, optional
            Called on this thread after each look.
        whole_rows : bool
            ``ALTER TABLE … REPLICA IDENTITY FULL``, so that updates and deletes come with the
            whole row before. Otherwise old rows have the primary key alone, and a rule on
            ``updated(table, "column")`` is refused.

        Raises
        ------
        ConfigurationError
            On ``memory://``; if the server's wal_level is not logical, the role may not, the slot
            is lost, another one's, or followed already; if a rule needs old values that are not
            sent.
        LockTimeout
            If transactions that were open when a table was first followed do not end.
        TransactionStateError
            Inside a transaction.
        """
        _check_callback(on_progress, "on_progress=")
        if isinstance(poll_s, bool) or not isinstance(poll_s, int | float) or not 0 < poll_s < 1e6:
            raise ConfigurationError(f"poll_s takes a positive number of seconds, not {poll_s!r}")
        return follow(
            self.following(*tables, slot=slot, whole_rows=whole_rows),
            self._launcher,
            stop or threading.Event(),
            poll_s=poll_s,
            on_progress=on_progress,
        )

    def following(self, *tables: Any, slot: str = "activedb", whole_rows: bool = False) -> Follower:
        """Follow step by step: ``with db.following(table) as follower: follower.step()``.

        As `follow`, which see for parameters and errors; each step takes what has committed.
        """
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(f"{t.path} cannot follow changes; do it outside")
        known = self._store.slot(slot)
        spec = self._forest.tables.spec
        specs = [spec(table) for table in tables]
        if not specs:
            specs = tables_of_rules(self._catalog, self._spec_named)
        return Follower(
            known,
            specs,
            is_whole=whole_rows,
            forest=self._forest,
            triggering=self._triggering,
            launcher=self._launcher,
            trigger=lambda point: self._store.trigger(point),
        )

    def unfollow(self, slot: str = "activedb") -> bool:
        """Drop a slot that `follow` has made, with all that belongs to it.

        Changes that have not been taken are not told any more. False: there was none.

        Raises
        ------
        ConfigurationError
            If it is being followed, or is another one's.
        """
        return self._store.slot(slot).drop()

    def _spec_named(self, name: str) -> TableSpec | None:
        if name in self.metadata.tables:
            return self._forest.tables.spec(self.metadata.tables[name])
        return self._forest.tables.named(name)

    # -- dead letters ----------------------------------------------------------------------

    def dead_letters(self, source: str | None = None, *, kind: str | None = None) -> list[Letter]:
        """What could not be processed, with the reason, by source and identity. O(n log n).

        Parameters
        ----------
        source : str, optional
            Only those of a stream, or of ``"rule <name>"``.
        kind : {"event", "rule"}, optional

        Raises
        ------
        ConfigurationError
            If there is no such kind.
        """
        return self._dead_letters.read(source, kind=kind)

    def retry_letter(self, source: str, identity: str) -> Retried:
        """Run the rule of one dead letter again, in a top-level transaction of its own.

        The letter is deleted in the same commit as the rule's effects: once, also if this process
        is killed, or another one retries it at the same time. If the rule fails again the letter
        stays, with the new reason. It does not matter how the rule is coupled, or whether it is
        enabled.

        Raises
        ------
        RowNotFound
            If there is no such letter.
        TransactionStateError
            Inside a transaction.
        ConnectionLost
            The letter tells whether it was done.
        """
        return self._dead_letters.retry(source, identity)

    def retry_letters(
        self,
        source: str | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Retried]:
        """Run the rules of all dead letters again, or of one source's; see `retry_letter`.

        One after another, each alone. Letters of events, and of rules that are not defined here,
        are left; the results say so.

        Parameters
        ----------
        on_progress : callable ``(number, of)``, optional
            Called after each letter.
        """
        _check_callback(on_progress, "on_progress=")
        return self._dead_letters.retry_all(source, on_progress)

    @property
    def decisions(self) -> Decisions:
        """Choices that the timestamps alone do not decide; see `Decisions`."""
        return self._decisions

    # -- streams ---------------------------------------------------------------------------

    def stream(self, name: str, /, *, source: Source | None = None, **declaration: Any) -> Stream:
        """Declare a stream of events; the fields are those of `Stream`.

        Raises
        ------
        DefinitionError
            If the declaration has no meaning, the name is taken, or it is to stay in columns
            (``columns=True``) and something that is defined already does not go with that.
        ConfigurationError
            If ``columns=True`` needs what is not installed.
        """
        if name in self._streams:
            raise DefinitionError(f"there is a stream named {name!r} already")
        stream = Stream(name=name, source=source, **declaration)
        self._columns.declare(stream)
        self._streams[name] = stream
        return stream

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The declared streams."""
        return tuple(self._streams.values())

    def stream_run(self, stream: Stream) -> StreamRun:
        """What a stream's atomic batches are handed to; one per stream, from where it stopped.

        Define the rules first: it shows them the events they may still need.

        Raises
        ------
        ConfigurationError
            If it is no stream.
        """
        if not isinstance(stream, Stream):
            raise ConfigurationError(
                f"{stream!r} is no stream: give what db.stream(…) has returned"
            )
        run = self._stream_runs.get(stream.name)
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
            run = self._stream_runs[stream.name] = StreamRun(
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
                watch=self._timekeeper.watch,
                **self._programs_of(stream),
            )
            self._decisions.do_chosen(stream.name)
        return run

    def program(
        self,
        program: Program,
        *,
        stream: Stream,
        tables: Mapping[SharedTable, Any],
        scheduler: str | Scheduler | None = None,
        outputs: Any = None,
    ) -> Program:
        """Let a program process the events of a stream, durably: before it is fed, as rules.

        The s-transactions of a part commit with it: rows, versions, outputs, and the ledger row.
        They run after the rules on the events of the part. One that aborts leaves an `Output` with
        the reason; an event of which none can be made becomes a dead letter.

        Parameters
        ----------
        program : Program
            With its state accesses.
        stream : Stream
        tables : mapping of SharedTable to Table or mapped class
            Where the rows of each are kept: the primary key is the key, the other column the value;
            of several columns it is a dict. From the first feed on this process owns them (`own`),
            and nothing else writes them.
        scheduler : str or Scheduler, optional
            Who runs them, one for all programs of a stream: ``"serial"``, the default, ``"sei"``,
            ``"s2pl"``, ``"lwm"``, ``"tpg"``, or an object of such a class with other arguments; or
            ``"columns"``: one program of numbers alone, over columns, hundreds of thousands of
            events a second (docs/streams.md says what that takes).
        outputs : Table or mapped class, optional
            Where outputs are inserted: mappings of columns, or lists of such. By default they are
            kept for `outputs`.

        Raises
        ------
        DefinitionError
            If something about it has no meaning, cannot be in columns, or the stream has been fed
            already.
        ConfigurationError
            If ``"columns"`` needs what is not installed.
        """
        if not isinstance(stream, Stream) or self._streams.get(stream.name) is not stream:
            raise DefinitionError(
                f"{stream!r} is no stream of this database: give what db.stream(…) has returned"
            )
        if stream.name in self._stream_runs:
            raise DefinitionError(
                f"stream {stream.name} runs already: define its programs before it is fed"
            )
        how = {"tables": tables, "scheduler": scheduler, "outputs": outputs}
        self._programs.define(program, stream, **how)
        self._given_programs.append({"program": program, "stream": stream, **how})
        return program

    def outputs(self, program: Program | str) -> list[Output]:
        """What a program has put out, and which of its s-transactions aborted, in serial order.

        As committed. O(n log n).

        Raises
        ------
        DefinitionError
            If there is no such program.
        """
        name = program if isinstance(program, str) else program.name
        journal = ProgramJournal(self._store, self._programs.stream_of(name))
        return [Output.restore(record) for record in journal.outputs(name)]

    def producers(self, stream: Stream) -> StreamProducers:
        """Who sends the events of a stream that was declared with ``membership=``.

        Define the rules first, as for `stream_run`.

        Raises
        ------
        ConfigurationError
            If the stream has no producers.
        """
        if stream.membership is None:
            raise ConfigurationError(
                f'stream {stream.name} has no producers: declare it with membership="atomic" or '
                '"weak"'
            )
        run = self.stream_run(stream)
        return StreamProducers(run, self._memberships[stream.name])

    def feed(
        self,
        stream: Stream,
        events: Iterable[Occurrence],
        punctuation: datetime | float | None = None,
    ) -> None:
        """Process events of a stream that come from Python, without Spark, as one batch.

        Parameters
        ----------
        events : iterable of Occurrence
            In any order; of each producer in the order of detection.
        punctuation : datetime or seconds, optional
            Every event before it has been seen. None: these are all, process every event; but of a
            stream of producers those that are stable, while the others wait.

        An event that is none of the stream's, or is from the future (setting `future_max_s`),
        becomes a dead letter; it moves neither punctuation nor sync points.

        Each call is a batch of its own, and nothing tells whether its events were fed before: what
        to do after a crash is in docs/guarantees.md ("Streams").

        Raises
        ------
        BadEvent
            If something among the events is no occurrence; nothing has been taken then.
        ConfigurationError
            If `stream` is no stream.
        ProducerSilent
            If a producer is silent, and the stream was declared without `on_silent`; nothing has
            been taken then.
        StreamFull
            If more events would have to wait than may; nothing has been taken then.
        """
        run = self.stream_run(stream)
        if punctuation is None and stream.membership is not None:
            run.feed(events)
        elif punctuation is None:
            run.feed(events)
            run.finish()
        else:
            run.feed(events, Occurrence("punctuation", punctuation).us)

    def take_staged(
        self,
        stream: Stream,
        *,
        follow: bool = False,
        stop: threading.Event | None = None,
        poll_s: float = 1.0,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> int:
        """Process the batches that a query of Spark publishes for a stream, each once.

        The query is ``df.writeStream.format("activedb")`` (docs/sources.md), perhaps of another
        program on another computer; no Spark is needed here. Define the rules first. What is taken
        is deleted when it has taken effect; a batch that was cut off comes again, the same.

        Parameters
        ----------
        stream : Stream
            Declared as where Spark runs.
        follow : bool
            Go on until told to stop, instead of returning when everything published is taken.
        stop : threading.Event, optional
            Set by another thread or a signal handler: return after the batch at hand.
        poll_s : float
            Seconds between two looks, if nothing tells that there is a batch.
        on_batch : callable ``(batch_id, rows)``, optional
            Called on this thread after each batch.

        Returns
        -------
        int
            How many batches were taken.

        Raises
        ------
        ConfigurationError
            On ``memory://``, which Spark cannot see; if nothing was ever published for the stream,
            and it is not followed.
        CheckpointMismatch
            If another query has fed the stream.
        DefinitionError
            If the columns of a batch are not those of the stream.
        BatchFailed
            As `StreamRun.apply`.
        TransactionStateError
            Inside a transaction.
        """
        _check_callback(on_batch, "on_batch=")
        if not self._store.is_shared:
            raise ConfigurationError(
                "memory:// belongs to this process, Spark cannot write to it: set ACTIVEDB_URL to "
                "a Postgres that both can reach"
            )
        run = self.stream_run(stream)
        taker = StagedTaker(
            run, StagedJournal(self._store, stream.name), self.settings.future_max_s
        )
        return taker.take(
            stop or threading.Event(),
            follow=follow,
            poll_s=poll_s,
            on_batch=on_batch or (lambda batch_id, rows: None),
        )

    # -- workflows of atomic batches ---------------------------------------------------------

    def workflow(
        self,
        name: str,
        /,
        *,
        sources: str | Iterable[str],
        on_failure: str = "stop",
        mode: str = "full",
        allow_interference: bool = False,
    ) -> WorkflowDefinition:
        """Define a workflow, whose programs process batches completely or not at all.

        ``@workflow.program(reads=…)`` adds a program, and ``@that_program.compensation`` what
        undoes one of its transactions; `batches` runs them. See docs/workflows.md.

        Parameters
        ----------
        name : str
            Unique; what is recorded has it.
        sources : str or iterable of str
            The streams that come from outside.
        on_failure : {"stop", "compensate"}
            What happens when a program raises: `ProgramFailed` is raised, and the transaction is
            due until it succeeds or its batch is given up; or its batches are compensated at once.
        mode : {"full", "non-intrusive", "independent cover"}
            How they are compensated then.
        allow_interference : bool
            Whether that may affect the completion of other batches; `ProgramFailed` if not.

        Raises
        ------
        DefinitionError
            If something has no meaning, or the name is taken.
        """
        from activedb.workflows import WorkflowDefinition  # networkx takes its time

        if name in self._workflows:
            raise DefinitionError(f"there is a workflow named {name!r} already")
        definition = WorkflowDefinition(
            name,
            sources=sources,
            on_failure=on_failure,
            mode=mode,
            allow_interference=allow_interference,
        )
        self._workflows[definition.name] = definition
        return definition

    def batches(self, workflow: WorkflowDefinition | str) -> BatchRun:
        """What a workflow's batches are handed to; one per workflow, from where it stopped.

        Define all programs first. What a crash has left is run by its `resume`, or before the next
        batch.

        Raises
        ------
        ConfigurationError
            If no such workflow is defined here.
        WorkflowError, WorkflowChanged
            If its programs make no workflow, or not the one of which batches are recorded.
        """
        from activedb.workflows import BatchRun

        name = workflow if isinstance(workflow, str) else workflow.name
        definition = self._workflows.get(name)
        if definition is None or workflow not in (name, definition):
            raise ConfigurationError(
                f"no workflow {name!r} is defined here: define it with db.workflow(…), or look at "
                f"what is recorded with db.batch_history(…); {did_you_mean(name, self._workflows)}"
            )
        with self._opening_batches:
            run = self._batch_runs.get(name)
            if run is None:
                run = self._batch_runs[name] = BatchRun(
                    definition,
                    forest=self._forest,
                    launcher=self._launcher,
                    journal=WorkflowJournal(self._store, name),
                )
        return run

    def batch_history(self, workflow: str) -> BatchHistory:
        """The recorded batches of a workflow, as of now; it need not be defined here. O(rows).

        Raises
        ------
        ConfigurationError
            If none are recorded.
        """
        from activedb.workflows import BatchHistory

        return BatchHistory(self._store, workflow)

    def recorded_workflows(self) -> list[str]:
        """The workflows of which something is recorded, by name."""
        return workflow_names(self._store)

    # -- the rest --------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Counts since the database was opened: transactions by outcome, matches, rules fired.

        And of the detectors of all rules as they are now: ``partials``, occurrences kept for later
        matches, and ``partials_dropped``, those forgotten as there were too many. And
        ``events_waiting``, events of streams that punctuation or producers have not passed.
        O(rules).
        """
        kept = [e.subscription for e in self._catalog.entries() if e.subscription.is_stateful]
        return {
            **self._forest.counters.snapshot(),
            **self._triggering.counters.snapshot(),
            "partials": sum(subscription.partials for subscription in kept),
            "partials_dropped": sum(subscription.dropped for subscription in kept),
            "events_waiting": sum(run.waiting for run in list(self._stream_runs.values())),
        }

    def history(self) -> History:
        """What transactions did: the recorded hierarchies that have ended, as far as they are kept.

        ``db.history().write(path)`` makes a file for ``activedb audit``. O(n log n) for n events.

        Raises
        ------
        ConfigurationError
            If nothing is recorded.
        """
        if self._recording is None:
            raise ConfigurationError(
                "nothing is recorded; open the database with recording='full' or 'sampled'"
            )
        return self._recording.history()

    def locks(self) -> Snapshot:
        """Who holds, retains and waits for which lock at this moment; ``.text()`` draws it.

        O(locks and waits).
        """
        return self._forest.locks.snapshot()

    @property
    def monitor(self) -> Monitor | None:
        """What is kept of this process for those who look; None if the setting `monitor` is off."""
        return None if self._monitoring is None else self._monitoring.monitor

    def row_counts(self) -> dict[str, int]:
        """Committed rows of each declared table, by name."""
        return self._store.row_counts()

    def rule_latency_s(self, quantile: float) -> float:
        """Quantile of the time from a rule's start to the end of its action, in seconds."""
        return self._triggering.figures.latencies().quantile(quantile)

    def close(self) -> None:
        """Wait for the detached rules, then give everything back; safe to call again."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        if self._monitoring is not None:
            self._monitoring.close()
        self._timekeeper.close()
        self._launcher.close()
        self._forest.close()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _programs_of(self, stream: Stream) -> dict[str, Any]:
        """What runs the programs of a stream, as its `StreamRun` takes it."""
        of = self._programs.of(stream.name)
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
            threads=min(self.settings.threads, os.cpu_count() or 1),
        )
        return {"programs": programs, "columns": columns}

    def _write_letters(self, t: Transaction, letters: list[Letter]) -> None:
        rows = [asdict(letter) for letter in letters]
        t.hierarchy.durable.append(
            lambda connection: self._launcher.journal.write_letters(connection, rows)
        )


def _check_callback(function: Callable[..., Any] | None, what: str) -> None:
    if function is not None:
        checked_function(function, what)


def _close_at_exit(database: Database) -> Callable[[], None]:
    """Close a database that is still open when the interpreter ends."""
    reference = weakref.ref(database)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    atexit.register(close)
    return close
