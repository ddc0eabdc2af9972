"""The database object, which gives access to everything else."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from activedb.changes import ChangeCapture, ReplicationMarks
from activedb.clock import Clock, SystemClock
from activedb.config import Isolation, Settings, checked_isolation
from activedb.database._admin import Admin, Monitoring
from activedb.database._forks import track
from activedb.database._methods import emitting
from activedb.database._recording import open_recording
from activedb.database._rule_texts import find_reads
from activedb.database._rules import Rules
from activedb.database._workflows import Workflows
from activedb.errors import ConfigurationError, DefinitionError
from activedb.events import Occurrence, Timestamp
from activedb.firing import (
    DeadLetters,
    Decisions,
    DurableDetectors,
    FiringQueue,
    Launcher,
    Letter,
    TimeLines,
    Triggering,
    Worker,
)
from activedb.functions import checked_function
from activedb.internals import Internals
from activedb.metrics import NamedCounters
from activedb.rules import Action, Catalog, Rule, RuleOptions, Subscription
from activedb.spelling import check_options, did_you_mean
from activedb.store import Connection
from activedb.store.journals import DecisionRows, DetectorRows, Journal, RuleRows
from activedb.store.session import new_metadata, open_store
from activedb.streams import FutureLimit, Stream, StreamOptions, StreamRun, Streams
from activedb.timers import Timekeeper
from activedb.transactions import (
    Forest,
    Limit,
    Run,
    Runs,
    Transaction,
    TransactionNode,
    WatchedSessions,
    current_transaction,
)
from coupling import Coupling

if TYPE_CHECKING:
    from activedb.workflows import WorkflowDefinition

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
    if chosen.url != "memory://":
        chosen.check_recordable(chosen.isolation)
    return Database(chosen, clock or SystemClock(), fresh=fresh)


_MOVED = {
    "analyze_rules": "db.rules.analyze()",
    "batch_history": "db.workflows.history(name)",
    "batches": "db.workflows.open(workflow)",
    "counters": "db.admin.counters()",
    "declare_existing": "db.admin.declare_existing()",
    "feed": "stream.feed(events)",
    "follow": "db.changes.follow(…)",
    "following": "db.changes.follower(…)",
    "history": "db.admin.history()",
    "ignoring": "db.rules.ignoring(…)",
    "join": "db.wait_idle()",
    "locks": "db.admin.locks()",
    "monitor": "db.admin.monitor",
    "outputs": "stream.outputs(program)",
    "own": "db.admin.own(…)",
    "pending_firings": "db.admin.pending_firings()",
    "producers": "stream.producers",
    "program": "stream.program(…)",
    "recorded_workflows": "db.workflows.recorded()",
    "retry_letter": "db.dead_letters.retry(source, identity)",
    "retry_letters": "db.dead_letters.retry_all()",
    "row_counts": "db.admin.row_counts()",
    "rule_latency_s": "db.admin.rule_latency_s(quantile)",
    "stream_run": "stream.run",
    "take_staged": "stream.take_staged()",
    "unfollow": "db.changes.unfollow()",
    "work": "db.run_worker()",
}
"""Earlier names of a database, and what has taken their place."""


class Database:
    """Tables, rules and streams over one store; safe to use from many threads.

    `connect` opens a database. `close`, or the end of a ``with`` block, closes it.

    Attributes
    ----------
    metadata : sqlalchemy.MetaData
        Metadata in which your tables are declared.
    settings : Settings
        Settings that the database was opened with.
    rules : Rules
        Rules of the database, to list, create, change, disable, delete or analyze them.
    streams : Streams
        Declared streams by name; `stream` declares one.
    workflows : Workflows
        Workflows of atomic batches; `workflow` defines one.
    changes : ChangeCapture
        Rules triggered by the changes that any program commits.
    dead_letters : DeadLetters
        Events and firings that could not be processed, to list and retry them.
    decisions : Decisions
        Choices that timestamps alone do not determine.
    admin : Admin
        State, counters, history and tables, for operators.
    """

    _launcher: Launcher
    """Built while the forest is, which it needs."""

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
        self._catalog = Catalog(on_applied=self._rules_applied)
        self._store = open_store(
            self.metadata, settings, fresh=fresh, raised=ReplicationMarks(self._catalog)
        )
        self._streams: dict[str, Stream] = {}
        self._stream_runs: dict[str, StreamRun] = {}
        self._lines = TimeLines(self._streams, lambda each: self._timekeeper.moved(each))
        self._detector_rows = DetectorRows(self._store)
        counters = NamedCounters()
        self._kept = DurableDetectors(self._detector_rows, self._lines, counters)

        def triggering(queue: FiringQueue) -> Triggering:
            return Triggering(
                self._catalog,
                queue=queue,
                lines=self._lines,
                kept=self._kept,
                counters=counters,
                settings=settings,
                clock=clock,
                put_into_quarantine=lambda rule, reason: self.rules.quarantine(rule, reason),
                write_letters=self._write_letters,
                write_choices=lambda t, choices: self.decisions.record(t, choices),
            )

        def listening(forest: Forest) -> Triggering:
            is_queued = settings.firings == "queue" and settings.url != "memory://"
            journal = Journal(self._store, is_queued=is_queued)
            self._launcher = Launcher(forest, journal, self._catalog, settings, triggering)
            return self._launcher.triggering

        forest_counters = NamedCounters()
        recording = open_recording(settings, forest_counters)
        self._forest = Forest(
            self._store,
            settings,
            clock,
            listening,
            counters=forest_counters,
            new_log=None if recording is None else recording.log,
        )
        self._watched = WatchedSessions(self._forest)
        self._triggering = self._launcher.triggering
        self._timekeeper = Timekeeper(
            self._forest, clock, self._catalog, self._lines, self._triggering, self._launcher
        )
        self.decisions = Decisions(
            DecisionRows(self._store),
            catalog=self._catalog,
            lines=self._lines,
            kept=self._kept,
            forest=self._forest,
            triggering=self._triggering,
            batch_firings=self._launcher.batch_firings,
            clock=clock,
            streams=self._stream_runs.keys(),
            watch=self._timekeeper.watch,
        )
        self._worker = Worker(self._launcher, settings.threads)
        self.streams = Streams(
            self._streams,
            self._stream_runs,
            store=self._store,
            settings=settings,
            clock=clock,
            future=self._future,
            catalog=self._catalog,
            forest=self._forest,
            triggering=self._triggering,
            launcher=self._launcher,
            lines=self._lines,
            detector_rows=self._detector_rows,
            decisions=self.decisions,
            watch=self._timekeeper.watch,
        )
        self.rules = Rules(
            self._catalog,
            self._forest,
            RuleRows(self._store),
            lambda: self.metadata.tables,
            self._kept,
            streams=self._streams,
            raising=self.signal,
            checks=(
                self.streams.programs.check_rule,
                self.streams.columns.check_rule,
                self._check_coupling,
            ),
        )
        self.workflows = Workflows(self._store, self._forest, self._launcher)
        self.changes = ChangeCapture(
            store=self._store,
            catalog=self._catalog,
            forest=self._forest,
            triggering=self._triggering,
            launcher=self._launcher,
            tables=lambda: self.metadata.tables,
        )
        self.dead_letters = DeadLetters(
            self._launcher.journal, self._catalog, self._triggering, self._forest
        )
        self.admin = Admin(
            internals=Internals(
                self._store,
                self._catalog,
                self._forest,
                self._triggering,
                self._launcher,
                self._streams,
                self._stream_runs,
            ),
            recording=recording,
            monitor=lambda: None if self._monitoring is None else self._monitoring.monitor,
        )
        self._closed = False
        self._monitoring = Monitoring.open(self, settings)
        self._at_exit = _close_at_exit(self)
        track(self)

    def _rules_applied(self, subscriptions: list[Subscription]) -> None:
        self._timekeeper.applied(subscriptions)
        self.decisions.defined(subscriptions)

    def _define_again(self, before: Mapping[str, Any]) -> None:
        """Repeat the definitions that existed before a fork; see `_forks`."""
        self.streams.take_over(before["streams"])
        self._catalog.queries = before["_catalog"].queries
        for entry in before["_catalog"].committed():
            self.rules.define(entry.rule)
        self.streams.take_over_programs(before["streams"])
        self.workflows.take_over(before["workflows"])
        self._watched = before["_watched"]
        self._watched.moved_to(self._forest)

    def create_all(self) -> None:
        """Create the declared tables that do not exist yet."""
        self._store.create_all()

    # -- rules -----------------------------------------------------------------------------

    def rule(self, function: Any = None, /, **options: Unpack[RuleOptions]) -> Callable[[A], A]:
        """Define a rule with the decorated function as its action; it applies from now on.

        `rules` lists and changes the defined rules.

        Parameters
        ----------
        **options
            Options of the rule, such as ``on=event("EXIT")`` and ``coupling="deferred"``; see
            `RuleOptions`.

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
        check_options(options, RuleOptions, f"rule {options.get('name', '')}".rstrip())

        def define(action: A) -> A:
            self.rules.define(Rule.define(action, **options, find_reads=find_reads))
            return action

        return define

    # -- transactions and events -----------------------------------------------------------

    def transaction(
        self,
        *,
        connection: Any = None,
        timeout: float | None = None,
        isolation: Isolation | None = None,
    ) -> Transaction:
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
        isolation : str, optional
            ``"locks"`` or ``"serializable"``, by default the setting `isolation`. The isolation
            level of a `connection` must suit it: READ COMMITTED or SERIALIZABLE.

        Raises
        ------
        ConfigurationError
            If the connection goes to another database, commits each statement by itself, or has an
            isolation level that does not suit `isolation`.
        TransactionStateError
            If another block is open over the connection, or its transaction has failed.
        """
        policy = self._forest.settings.isolation
        if isolation is not None:
            policy = checked_isolation(isolation)
        if connection is not None:
            return Transaction(self._forest.joined.block(connection, policy, timeout=timeout))
        run = Run(of_application=True, isolation=policy)
        return Transaction(self._forest.top_level(run, Limit.after(timeout)))

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
        self._watched.watch(sessions)

    def run(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``function(t, …)`` in a top-level transaction; retry it when that is safe.

        For a time limit use ``db.with_timeout(seconds).run(function, …)``, for the server's
        SERIALIZABLE ``db.with_isolation("serializable").run(function, …)``.

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
        return Runs(self._forest).run(function, *args, **kwargs)

    def _check_coupling(self, rule: Rule) -> None:
        """Refuse rules that no transaction with the database's isolation policy can trigger."""
        is_serializable = self.settings.isolation == "serializable" and self._store.is_shared
        if is_serializable and rule.coupling is Coupling.EXCLUSIVE:
            raise DefinitionError(
                f"rule {rule.name}: exclusive rules need transactions with isolation='locks', and "
                f"the setting isolation is 'serializable'; use another coupling mode, or set "
                f"isolation to 'locks'"
            )

    def with_isolation(self, isolation: Isolation) -> Runs:
        """Return an object whose ``run`` has an isolation policy, other than the setting's.

        It can be combined with a time limit:
        ``db.with_isolation("serializable").with_timeout(5).run(f, …)``.

        Parameters
        ----------
        isolation : str
            ``"locks"`` or ``"serializable"``; see the setting `isolation`.

        Raises
        ------
        ConfigurationError
            If `isolation` is neither.
        """
        return Runs(self._forest).with_isolation(isolation)

    def with_timeout(self, timeout: float) -> Runs:
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
        return Runs(self._forest).with_timeout(timeout)

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
        self.streams.columns.check_raised(o)
        if timestamp is not None:
            self._future.check(f"event {name!r}", o.low_us)
        if t is not None and t.forest is self._forest:
            t.check_usable()
            undated = timestamp is None and not t.has_event_time
            self._triggering.occurred(t, o, undated=undated)
        else:
            own = Run(of_application=True, isolation=self._forest.settings.isolation)
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

    def run_worker(
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
        if on_progress is not None:
            checked_function(on_progress, "on_progress=")
        return self._worker.run(stop or threading.Event(), poll_s=poll_s, on_progress=on_progress)

    def wait_idle(self, timeout: float | None = None) -> None:
        """Wait for the rules in separate transactions that have started, or are due now, to end.

        A firing that other transactions kept from succeeding (a deadlock, a lost connection)
        restarts by itself after a pause; the call waits for it, too, and for the rules that follow
        a caller's transaction, once that has ended.

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
            raise ConfigurationError(f"wait_idle takes a number of seconds, not {timeout!r}")
        self._timekeeper.settle()
        self._launcher.join(timeout)

    # -- streams ---------------------------------------------------------------------------

    def stream(self, name: str, /, **options: Unpack[StreamOptions]) -> Stream:
        """Declare a stream of events.

        Parameters
        ----------
        name : str
            Unique name of the stream.
        **options
            Fields of `StreamDeclaration`: the declared ``types``, the ``source``, and so on.

        Raises
        ------
        DefinitionError
            If the declaration is invalid, the name is taken, or the stream is to be processed in
            columns (``columns=True``) and an existing definition does not allow that.
        ConfigurationError
            If ``columns=True`` needs a package that is not installed.
        """
        return self.streams.declare(name, **options)

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
        that compensates one of its transactions; `Workflows.open` returns what runs them. See
        docs/workflows.md.

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
        return self.workflows.define(
            name,
            sources=sources,
            on_failure=on_failure,
            mode=mode,
            allow_interference=allow_interference,
        )

    # -- the rest --------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for the detached rules, then release all resources. Idempotent.

        Raises
        ------
        TransactionStateError
            In a detached rule, which would wait for itself; everything stays open.
        """
        if self._closed:
            return
        self._launcher.check_may_wait()
        self._closed = True
        atexit.unregister(self._at_exit)
        with ExitStack() as parts:  # each is closed, also if one before it fails
            parts.callback(self._store.close)
            parts.callback(self._forest.close)
            parts.callback(self._watched.close)
            parts.callback(self._launcher.close)
            parts.callback(self._timekeeper.close)
            if self._monitoring is not None:
                parts.callback(self._monitoring.close)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            public = [known for known in dir(self) if not known.startswith("_")]
            raise AttributeError(
                f"db.{name} is now {_MOVED[name]}"
                if name in _MOVED
                else f"a database has no {name!r}; {did_you_mean(name, public)}",
                name=name,
                obj=self,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write_letters(self, t: TransactionNode, letters: list[Letter]) -> None:
        rows = [asdict(letter) for letter in letters]
        t.hierarchy.durable.append(
            lambda connection: self._launcher.journal.write_letters(connection, rows)
        )


def _close_at_exit(database: Database) -> Callable[[], None]:
    """Register a function that closes the database at interpreter exit, and return it."""
    reference = weakref.ref(database)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    atexit.register(close)
    return close
