"""The database object, which gives access to everything else."""

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

from activedb.changes import Follower, FollowProgress, ReplicationMarks, follow, tables_of_rules
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
        ``postgresql+psycopg://…`` for Postgres 15 or newer, or ``memory://`` for the memory twin.
        By default the value of ``ACTIVEDB_URL`` or ``[tool.activedb]``; if neither is set, the
        embedded Postgres in ``.activedb/`` of the working folder is started.
    clock : Clock, optional
        Source of the current time; the system clock by default.
    fresh : bool, default False
        Drop everything in the schema named by ``db_schema`` first; for demos and tests.
    **settings
        Fields of `Settings`, such as ``threads=8``. They take precedence over the environment and
        ``[tool.activedb]``.

    Returns
    -------
    Database
        The open database. Close it, or use it in a ``with`` statement.

    Raises
    ------
    InvalidURL
        If the URL cannot be parsed, or names an unsupported database.
    ServerUnreachable
        If no server answers at the URL, or the embedded server does not start.
    UnsuitablePooler
        If a pooler in front of the server does not preserve sessions.
    UntrustedFile
        If every account may write the ``pyproject.toml`` with ``[tool.activedb]``.
    ConfigurationError
        If another setting is invalid or unknown, or `fresh` is given without ``db_schema``.
    """
    chosen = Settings.load(url=url, **settings)
    if fresh and chosen.db_schema is None and chosen.url != "memory://":
        raise ConfigurationError("fresh=True drops a schema: say which with db_schema=")
    return Database(chosen, clock or SystemClock(), fresh=fresh)


class Database:
    """Tables, rules and streams over one store; safe to use from many threads.

    `connect` opens a database. `close`, or the end of a ``with`` block, closes it.

    Attributes
    ----------
    metadata : sqlalchemy.MetaData
        Metadata in which your tables are declared.
    settings : Settings
        Settings that the database was opened with.
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
            self._store.raised = ReplicationMarks(self._catalog, self._store.schema)
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
            run_in_background=self._launcher.run_in_background,
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
        """Repeat the definitions that existed before a fork; see `_forks`."""
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
        """Create the declared tables that do not exist yet."""
        self._store.create_all()

    def declare_existing(self) -> None:
        """Declare the tables that exist in the database, except activedb's own.

        Tables that are declared already stay as they are declared.
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
        """Define a rule with the decorated function as its action; it applies from now on.

        `rules` lists and changes the defined rules.

        Parameters
        ----------
        on : event expression, optional
            Event that triggers the rule: ``event("EXIT")``, ``inserted(table)``,
            ``updated(table, "column")``, ``deleted(table)``, ``every(60)``, several of them with
            ``any_of(…)`` or ``|``, ``seq(…)``, and the other operators in ``docs/rules.md``. By
            default any change of what the condition reads, according to `reads` or its source.
        when : callable ``(t, o)``, optional
            Condition, evaluated in the rule's own subtransaction; by default the action always
            runs. A condition may only read: a write raises `ConditionWrites`, and the rule fails.
        coupling : {"immediate", "deferred", "detached", "causal", "sequential", "exclusive"}
            Coupling mode. As a child of the triggering transaction, the rule runs at the event
            (immediate) or at the commit point of that transaction (deferred). As a top-level
            transaction, it runs at the event, independently of the triggering transaction's outcome
            (detached); at the event, committing only after the triggering transaction and aborting
            with it (causal); after the triggering transaction has committed (sequential); or if it
            aborts (exclusive).
        priority : int, optional
            Order among rules that are triggered together, or due at the same time: higher
            priorities run first, equal ones in parallel, and None last (``docs/coupling.md``). Not
            allowed with ``coupling="causal"``.
        on_abort : {"triggering", "rule"}
            Scope of the abort when the rule raises: the triggering transaction, which gets
            `RuleFailed`, or only the rule's own subtransaction, in which case the dead-letter table
            keeps the reason. A rule in a separate top-level transaction always fails alone.
        name : str, optional
            Unique name of the rule; the function's name by default.
        params : mapping of str to value, optional
            Keyword arguments for action and condition; each gets the ones it takes.
        set_oriented : bool, default False
            If True, all triggering events of one statement, or of one deferred cycle for a deferred
            rule, fire the rule once. Its occurrence ``o`` has the individual occurrences in
            ``o.occurrences`` and their rows in ``o.rows``.
        condition_action : {"immediate", "sequential", "deferred", "detached"}
            Coupling of the action to the condition. Immediate: right after the condition, in its
            transaction. Sequential: at the same time, and undone unless the condition turns out
            true. Deferred: at the commit point of the triggering transaction. Detached: in a
            separate top-level transaction.
        after : list of str, optional
            Names of rules that end before this one starts, if they are triggered together: by one
            event with ``coupling="immediate"``, in one cycle with ``"deferred"``. This order takes
            precedence over priorities.
        partials_max : int, optional
            Upper bound on the occurrences that the detector of the event keeps for later matches;
            by default the setting of the same name.
        on_full : {"drop_oldest", "refuse"}
            Policy when the detector has reached `partials_max`: it forgets the oldest occurrence
            (``db.rules[name].dropped`` counts them), or refuses the event with `PartialsExceeded`.
        matches_max : int or None, default 10,000
            Upper bound on the matches that one event may complete; None: unbounded.
        on_many : {"refuse", "truncate"}
            Policy when an event would complete more than `matches_max` matches: the event is
            refused with `MatchesExceeded`, or it triggers the rule for the most preferred matches
            (``db.rules[name].truncated`` counts such events). The end of a window is no event that
            could be refused, so it always makes the most preferred matches.
        on_uncertain : {"raise", "certain", "possible", "reading"} or callable
            Policy for events whose timestamps do not determine their order; the default is
            ``"certain"``. Certain: make the certain matches, and leave the others open
            (`decisions`). Raise: the same, with a dead letter. Possible: make all possible matches.
            Reading: go by the clock readings. A callable gets the `UncertainOrder`, and returns its
            choice.
        reads, writes : list, optional
            Tables, mapped classes, columns or ``"table.column"`` that condition and action may read
            and write; `writes` may also have ``inserted(table)``, ``updated(…)`` and
            ``deleted(table)``. Used by `analyze_rules`, and for rules without `on`. By default they
            are inferred from the source.
        raises : list of str, optional
            Signals that condition and action may raise; used by `analyze_rules`. By default they
            are inferred from the source.

        Returns
        -------
        callable
            Decorator that defines the rule and returns the function unchanged.

        Raises
        ------
        RuleSignatureError
            If action or condition cannot be called as ``fn(t, o)`` with the parameters it takes, or
            a parameter is taken by neither of them.
        DefinitionError
            If the definition is invalid in another way, or the name is taken.
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
        """Rules of the database, to list, create, change, disable or delete them at run time."""
        return self._rules

    def ignoring(self, *names: str) -> AbstractContextManager[None]:
        """Keep events from triggering some rules: ``with db.ignoring("rule", …):``.

        Use the block inside a transaction. It affects the events that the transaction open on this
        thread, and its inferiors, raise inside the block. The detectors of these rules do not
        receive the events either.

        Parameters
        ----------
        *names : str
            Names of the rules to ignore.

        Raises
        ------
        DefinitionError
            If there is no such rule.
        TransactionStateError
            If no transaction of this database is open on this thread.
        """
        return self._rules.ignoring(*names)

    def analyze_rules(self) -> Analysis:
        """Analyse without running them whether the enabled rules terminate and are confluent.

        The effects of a rule are inferred from its source unless ``reads=``, ``writes=`` and
        ``raises=`` declare them. See `activedb.analysis.analyze`.
        """
        from activedb.analysis import analyze  # imports networkx, which takes 0.1 s

        return analyze(entry.rule for entry in self._rules if entry.enabled)

    # -- transactions and events -----------------------------------------------------------

    def transaction(self, *, connection: Any = None, timeout: float | None = None) -> Transaction:
        """Return a new top-level transaction, to be used as ``with db.transaction() as t:``.

        It commits at the end of the block, and aborts if the block raises. Deadlocks and
        serialization conflicts are raised; use `run` to retry them. The transaction belongs to the
        thread that enters the block.

        Parameters
        ----------
        connection : sqlalchemy.Connection or sqlalchemy.orm.Session, optional
            Run inside the current transaction of this connection, which is never committed here.
            Your own SQL sees the writes of the block when the block ends, and they are committed or
            undone with the connection's transaction, which also keeps the locks until its end. If
            the server refuses a row, only the block is undone.
        timeout : float, optional
            Time limit in seconds from now; by default there is none. When it is exceeded, the
            transaction aborts with `TransactionTimeout`, at its next step or while it waits.

        Raises
        ------
        ConfigurationError
            If the connection goes to another database, commits each statement by itself, or reads
            from a snapshot.
        TransactionStateError
            If another block is open over the connection, or its transaction has failed.
        """
        if connection is not None:
            return self._forest.joined.block(connection, timeout=timeout)
        return self._forest.top_level(Run(of_application=True), timeout=timeout)

    def connection(self) -> AbstractContextManager[Connection]:
        """Return a SQLAlchemy connection for plain SQL: ``with db.connection() as c:``.

        Outside of ``db.transaction(connection=c)`` it behaves like a program without activedb: its
        changes trigger no rules, and on Postgres the server's locks isolate it from transactions.
        On ``memory://`` it blocks all other work from its first statement to the end of the block.
        """
        return self._store.connection()

    def watch(self, sessions: Any) -> None:
        """Turn the flushes of plain SQLAlchemy sessions into data events, until `close`.

        The rules run inside the session's transaction, right after the flush. If a rule fails that
        aborts its triggering transaction, the flush fails. Bulk statements
        (``session.execute(update(…))``) and ``secondary`` tables raise no events.

        Parameters
        ----------
        sessions : Session, sessionmaker or Session class
            One session, or the source of sessions; they must use the database of this object.
        """
        self._forest.watched.watch(sessions)

    def own(self, *tables: Any) -> None:
        """Keep tables in the memory of this process, which becomes their only user.

        Reads of their rows do not go to the server; each commit still writes them there. Loading
        takes O(rows) per table, once. On ``memory://``, where all tables are in memory, the call
        has no effect.

        Parameters
        ----------
        *tables : Table or mapped class
            Tables to own.

        Raises
        ------
        TableOwned
            If another process owns or uses a table. Later operations on the table raise it if the
            connection was lost and the table has had another owner since.
        DefinitionError
            If the server itself changes rows of a table (triggers, cascading foreign keys, …), or
            the table is declared twice.
        """
        for table in tables:
            self._forest.own(self._forest.tables.spec(table))

    def run(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``function(t, …)`` in a top-level transaction; retry it when that is safe.

        For a time limit use ``db.with_timeout(seconds).run(function, …)``.

        Parameters
        ----------
        function : callable
            Takes the transaction `t` first. It may run several times.
        *args, **kwargs
            Further arguments of `function`.

        Returns
        -------
        object
            Result of `function` in the try that committed.

        Raises
        ------
        TransactionAborted
            If `function` aborts the transaction.
        Deadlock, LockTimeout, SerializationConflict, ConnectionLost
            If ``retries_max`` retries did not help. A lost connection is retried only if nothing
            was committed.
        """
        run = Run(of_application=True, called=getattr(function, "__qualname__", ""))
        return self._forest.run(calling(function, "run()", args, kwargs), run)

    def with_timeout(self, timeout: float) -> TimedRuns:
        """Return an object whose ``run`` has a time limit: ``db.with_timeout(5).run(f, …)``.

        The limit covers all tries and the pauses between them. When it is exceeded, the transaction
        aborts with `TransactionTimeout` and is not retried; this takes 2 to 4 s longer if the
        server does not respond.

        Parameters
        ----------
        timeout : float
            Time limit in seconds.

        Raises
        ------
        ConfigurationError
            If `timeout` is not a positive number.
        """
        return TimedRuns(self._forest, timeout)

    def signal(self, name: str, /, *, timestamp: Timestamp | None = None, **params: Any) -> None:
        """Raise an application event, in the transaction open on this thread or in a new one.

        Parameters
        ----------
        name : str
            Name of the event.
        timestamp : int, float, datetime or AccuracyInterval, optional
            Time of the event: seconds since the epoch, an aware datetime, or ``node.stamp()`` with
            the uncertainty of the node's clock. The current time by default.
        **params
            Parameters of the event.

        Raises
        ------
        BadEvent
            If the timestamp or a parameter is invalid, the timestamp is too far in the future
            (setting `future_max_s`), or the event belongs to a stream that is processed in columns.
        RuleFailed
            If a rule fails that aborts its triggering transaction.
        """
        self._raise("event", name, params, timestamp)

    def emits(self, function: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function so that its calls raise events: ``called(f)`` and ``returned(f)``.

        The events are raised in the transaction open on the calling thread, or in a new one. If a
        rule on the call fails, the function is not called. On a method, put the decorator below
        ``@property``, ``@classmethod`` or ``@staticmethod``. A call costs two additional look-ups
        while no rule listens.

        Raises
        ------
        DefinitionError
            If `function` is not a plain function, or is a coroutine function or a generator
            function.
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
        """Raise an event in the transaction open on this thread, or in a new one."""
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

        Call it once, after the rules are defined. Firings of a live process are left to that
        process; with ``firings="queue"`` the firings of all other processes are left to the
        workers.

        The call also takes over partial matches of processes that have ended since the rules were
        defined.

        Returns
        -------
        int
            Number of firings started.
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
        """Run as a worker: execute firings that other processes have recorded, until stopped.

        Several workers share the firings that no process runs: those of processes with
        ``firings="queue"``, and those of processes that have died. Define the rules first; a worker
        leaves firings of other rules to other workers.

        Parameters
        ----------
        stop : threading.Event, optional
            Set it from another thread or a signal handler to end the call; firings that have
            started are finished. Without it, only an exception such as Ctrl-C ends the call.
        poll_s : float, default 5.0
            Upper bound on the seconds between two looks, if no notification arrives.
        on_progress : callable ``(taken, running)``, optional
            Called on this thread several times a second, and once after the stop, with the numbers
            of firings taken over so far and running now.

        Returns
        -------
        int
            Number of firings taken over.

        Raises
        ------
        ConfigurationError
            On ``memory://``, which no other process can see, or if `poll_s` is not a positive
            number.
        TransactionStateError
            Inside a transaction, or if another thread already works on this database object.
        """
        _check_callback(on_progress, "on_progress=")
        return self._worker.run(stop or threading.Event(), poll_s=poll_s, on_progress=on_progress)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the rules in separate transactions that have started, or are due now, to end.

        A firing that other transactions kept from succeeding (a deadlock, a lost connection)
        restarts by itself after a pause; `join` waits for it, too.

        Parameters
        ----------
        timeout : float, optional
            Upper bound on the wait, in seconds; unbounded by default.

        Raises
        ------
        FiringsLeft
            If some firings have not ended by then. Inside a transaction or a block of `connection`,
            raised at once when all remaining firings have to be restarted, because they may wait
            for its locks.
        SelfDeadlock
            If a firing waits for a transaction, or a block of `connection`, that is open on this
            thread.
        TransactionStateError
            In a detached rule, which would wait for itself, or in a rule of a stream.
        ConfigurationError
            If `timeout` is not a number of seconds.
        """
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and 0 <= timeout < threading.TIMEOUT_MAX):
            raise ConfigurationError(f"join takes a number of seconds, not {timeout!r}")
        self._timekeeper.settle()
        self._launcher.join(timeout)

    def pending_firings(self) -> list[PendingFiring]:
        """Return the recorded, unfinished firings of rules in separate transactions, oldest first.

        The list includes firings that run at this moment. O(n log n).
        """
        return read_pending(self._launcher.journal)

    # -- changes by any program ------------------------------------------------------------

    def follow(
        self,
        *tables: Any,
        slot: str = "activedb",
        stop: threading.Event | None = None,
        poll_s: float = 1.0,
        on_progress: Callable[[FollowProgress], None] | None = None,
        whole_rows: bool = False,
    ) -> FollowProgress:
        """Trigger rules by the changes that any program commits to tables, until told to stop.

        Each change by another program, or by an activedb process that does not have the rule,
        becomes one occurrence with the time of its commit. It fires each detached, sequential or
        causal rule exactly once, even across crashes. Changes for which an activedb process, this
        or another one, has already triggered a rule do not trigger that rule again. Immediate,
        deferred and exclusive rules do not run, because the transaction is over. Define the rules
        first.

        Parameters
        ----------
        *tables : Table or mapped class
            Tables to follow; by default all tables whose changes such rules listen to.
        slot : str, default "activedb"
            Name of the server's replication slot and publication. The first call creates both. From
            then on the server keeps its log until it is consumed; `unfollow` ends that.
        stop : threading.Event, optional
            Set it from another thread or a signal handler to end the call; firings that have
            started are finished.
        poll_s : float, default 1.0
            Seconds between two looks while there are no changes.
        on_progress : callable ``(progress)``, optional
            Called on this thread after each look, with a `FollowProgress`.
        whole_rows : bool, default False
            Run ``ALTER TABLE … REPLICA IDENTITY FULL``, so that updates and deletes have the
            complete old row. Otherwise old rows have only the primary key, and a rule on
            ``updated(table, "column")`` is refused.

        Returns
        -------
        FollowProgress
            Progress at the end.

        Raises
        ------
        ConfigurationError
            On ``memory://``; if the server's wal_level is not logical, the role lacks a privilege,
            the slot is lost, belongs to something else, or has a follower; or if a rule needs old
            values that the server does not send.
        LockTimeout
            If transactions stay open that were open when a table was first followed.
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
        """Return a follower that is driven step by step.

        Use it as ``with db.following(table) as follower: follower.step()``. Each step takes the
        committed changes. Parameters and errors are those of `follow`.
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
        """Drop a slot that `follow` has created, with everything that belongs to it.

        Changes that have not been taken are lost.

        Parameters
        ----------
        slot : str, default "activedb"
            Name of the slot.

        Returns
        -------
        bool
            False if there was no such slot.

        Raises
        ------
        ConfigurationError
            If the slot has a follower, or belongs to something else.
        """
        return self._store.slot(slot).drop()

    def _spec_named(self, name: str) -> TableSpec | None:
        if name in self.metadata.tables:
            return self._forest.tables.spec(self.metadata.tables[name])
        return self._forest.tables.named(name)

    # -- dead letters ----------------------------------------------------------------------

    def dead_letters(self, source: str | None = None, *, kind: str | None = None) -> list[Letter]:
        """Return the events and firings that could not be processed, each with the reason.

        The letters are in the order of source and identity. O(n log n).

        Parameters
        ----------
        source : str, optional
            Only the letters of this source: a stream's name, or ``"rule <name>"``.
        kind : {"event", "rule"}, optional
            Only the letters of this kind.

        Raises
        ------
        ConfigurationError
            If there is no such kind.
        """
        return self._dead_letters.read(source, kind=kind)

    def retry_letter(self, source: str, identity: str) -> Retried:
        """Run the rule of one dead letter again, in a separate top-level transaction.

        The letter is deleted in the commit of the rule's effects. The effects therefore happen
        once, even if this process is killed or another process retries the letter at the same time.
        If the rule fails again, the letter stays, with the new reason. The rule's coupling does not
        matter, nor whether the rule is enabled.

        Parameters
        ----------
        source, identity : str
            Source and identity of the letter, as in `dead_letters`.

        Raises
        ------
        RowNotFound
            If there is no such letter.
        TransactionStateError
            Inside a transaction.
        ConnectionLost
            If the connection was lost; the rule ran if and only if the letter is gone.
        """
        return self._dead_letters.retry(source, identity)

    def retry_letters(
        self,
        source: str | None = None,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[Retried]:
        """Run the rules of all dead letters again, or of one source's; see `retry_letter`.

        The letters are retried one after another, each in a separate transaction. Letters of
        events, and of rules that are not defined here, are left; the results report them.

        Parameters
        ----------
        source : str, optional
            Only the letters of this source.
        on_progress : callable ``(number, of)``, optional
            Called after each letter, with the number of letters retried and of all letters.
        """
        _check_callback(on_progress, "on_progress=")
        return self._dead_letters.retry_all(source, on_progress)

    @property
    def decisions(self) -> Decisions:
        """Choices that timestamps alone do not determine; see `Decisions`."""
        return self._decisions

    # -- streams ---------------------------------------------------------------------------

    def stream(self, name: str, /, *, source: Source | None = None, **declaration: Any) -> Stream:
        """Declare a stream of events.

        Parameters
        ----------
        name : str
            Unique name of the stream.
        source : Files, Rate, Socket, Replay, Kafka or Staged, optional
            Source of the rows; None for a stream fed from a DataFrame or from Python.
        **declaration
            Other fields of `Stream`.

        Raises
        ------
        DefinitionError
            If the declaration is invalid, the name is taken, or the stream is to be processed in
            columns (``columns=True``) and an existing definition does not allow that.
        ConfigurationError
            If ``columns=True`` needs a package that is not installed.
        """
        if name in self._streams:
            raise DefinitionError(f"there is a stream named {name!r} already")
        stream = Stream(name=name, source=source, **declaration)
        self._columns.declare(stream)
        self._streams[name] = stream
        return stream

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Declared streams."""
        return tuple(self._streams.values())

    def stream_run(self, stream: Stream) -> StreamRun:
        """Return the run of a stream, which processes its batches and resumes where it stopped.

        There is one run per stream. Define the rules first: when the run is created, it feeds them
        the events that they may still need.

        Raises
        ------
        ConfigurationError
            If `stream` is not a stream.
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
        """Process the events of a stream durably with a program.

        Call it before the stream is fed, as for rules. The s-transactions of a part commit
        together, with their rows, versions and outputs and the ledger row. They run after the rules
        on the events of the part. An s-transaction that aborts leaves an `Output` with the reason;
        an event from which no s-transaction can be made becomes a dead letter.

        Parameters
        ----------
        program : Program
            Program with its state accesses.
        stream : Stream
            Stream whose events it processes.
        tables : mapping of SharedTable to Table or mapped class
            Table that keeps the rows of each shared table: the primary key is the key, and the
            other column is the value, or a dict of the columns if there are several. From the first
            feed on, this process owns these tables (`own`), and nothing else writes them.
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
        """Return a program's committed outputs, and its aborted s-transactions, in serial order.

        O(n log n).

        Raises
        ------
        DefinitionError
            If there is no such program.
        """
        name = program if isinstance(program, str) else program.name
        journal = ProgramJournal(self._store, self._programs.stream_of(name))
        return [Output.restore(record) for record in journal.outputs(name)]

    def producers(self, stream: Stream) -> StreamProducers:
        """Return the producers of a stream that was declared with ``membership=``.

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
        """Process events of a stream from Python, without Spark, as one batch.

        An event that does not fit the stream, or is too far in the future (setting `future_max_s`),
        becomes a dead letter; it advances neither the punctuation nor the sync points.

        Each call is a new batch, and nothing records whether its events were fed before. See
        docs/guarantees.md ("Streams") for what to do after a crash.

        Parameters
        ----------
        stream : Stream
            Stream to feed.
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
        ConfigurationError
            If `stream` is not a stream.
        ProducerSilent
            If a producer is silent, and the stream was declared without `on_silent`; nothing has
            been taken then.
        StreamFull
            If more events would have to wait than allowed; nothing has been taken then.
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
        """Process the batches that a Spark query publishes for a stream, each exactly once.

        The query is ``df.writeStream.format("activedb")`` (docs/sources.md). It may belong to
        another program on another computer; this process needs no Spark. Define the rules first. A
        batch is deleted after it has taken effect. A batch whose processing was interrupted is
        taken again, with the same result.

        Parameters
        ----------
        stream : Stream
            Stream, declared as in the program that runs Spark.
        follow : bool, default False
            Go on until told to stop, instead of returning when all published batches are taken.
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
        """Define a workflow, whose programs process each batch completely or not at all.

        ``@workflow.program(reads=…)`` adds a program, and ``@that_program.compensation`` the action
        that compensates one of its transactions; `batches` runs them. See docs/workflows.md.

        Parameters
        ----------
        name : str
            Unique name, under which batches are recorded.
        sources : str or iterable of str
            Streams that come from outside.
        on_failure : {"stop", "compensate"}
            Reaction when a program raises. Stop: raise `ProgramFailed`; the transaction is due
            until it succeeds or its batch is given up. Compensate: compensate its batches at once.
        mode : {"full", "non-intrusive", "independent cover"}
            Mode of that compensation.
        allow_interference : bool, default False
            If True, that compensation may affect the completion of other batches; if False,
            `ProgramFailed` is raised instead.

        Raises
        ------
        DefinitionError
            If an argument is invalid, or the name is taken.
        """
        from activedb.workflows import WorkflowDefinition  # imports networkx, which is slow

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
        """Return the run of a workflow, which takes its batches and resumes where it stopped.

        There is one run per workflow. Define all programs first. Work left by a crash is done by
        the run's ``resume``, or before its next batch.

        Raises
        ------
        ConfigurationError
            If no such workflow is defined here.
        WorkflowError
            If its programs do not form a valid workflow.
        WorkflowChanged
            If the definition differs from the one under which batches were recorded.
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
        """Return the recorded batches of a workflow, as of now. O(rows).

        The workflow need not be defined here.

        Raises
        ------
        ConfigurationError
            If no batches of the workflow are recorded.
        """
        from activedb.workflows import BatchHistory

        return BatchHistory(self._store, workflow)

    def recorded_workflows(self) -> list[str]:
        """Return the names of the workflows with recorded batches."""
        return workflow_names(self._store)

    # -- the rest --------------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Return counts since opening: transactions by outcome, matches, rules fired.

        Three further values describe the present state: ``partials``, the occurrences that the
        detectors of all rules keep for later matches; ``partials_dropped``, the occurrences that
        these detectors forgot because there were too many; and ``events_waiting``, the events of
        streams that neither punctuation nor producers have passed. O(rules).
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
        """Return the recorded history of the hierarchies that have ended and are still kept.

        ``db.history().write(path)`` writes a file for ``activedb audit``. O(n log n) for n events.

        Raises
        ------
        ConfigurationError
            If the setting `recording` is off.
        """
        if self._recording is None:
            raise ConfigurationError(
                "nothing is recorded; open the database with recording='full' or 'sampled'"
            )
        return self._recording.history()

    def locks(self) -> Snapshot:
        """Return a snapshot of the locks held and retained, and of the waits; ``.text()`` draws it.

        O(locks and waits).
        """
        return self._forest.locks.snapshot()

    @property
    def monitor(self) -> Monitor | None:
        """Monitor with the activity of this process; None if the setting `monitor` is off."""
        return None if self._monitoring is None else self._monitoring.monitor

    def row_counts(self) -> dict[str, int]:
        """Return the number of committed rows of each declared table, by name."""
        return self._store.row_counts()

    def rule_latency_s(self, quantile: float) -> float:
        """Return a quantile of the seconds from the start of a rule to the end of its action."""
        return self._triggering.figures.latencies().quantile(quantile)

    def close(self) -> None:
        """Wait for the detached rules, then release all resources. Idempotent."""
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
        """Return the arguments of a `StreamRun` that run the programs of the stream."""
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
    """Register a function that closes the database at interpreter exit, and return it."""
    reference = weakref.ref(database)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    atexit.register(close)
    return close
