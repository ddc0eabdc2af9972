"""Transaction: the handle through which a user reads, writes, and begins children."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Never, ParamSpec, Self, TypeVar

from activedb.config import Isolation, checked_isolation
from activedb.errors import (
    DefinitionError,
    InvalidRow,
    LockNotAvailable,
    RowExists,
    RowNotFound,
    UnsupportedStatement,
)
from activedb.functions import checked_function, checked_result
from activedb.spelling import did_you_mean
from activedb.store.sql import Key, Parameters, Row, TableSpec
from activedb.transactions import _statements
from activedb.transactions._children import Child
from activedb.transactions._deadlines import Limit
from activedb.transactions._forest import Forest
from activedb.transactions._node import TransactionNode
from activedb.transactions._rows import read_free, read_row, read_rows, write_row
from activedb.transactions._run import Run
from activedb.transactions._spawning import begin_subtransaction, spawn
from activedb.transactions._statements import default_of, next_number
from activedb.transactions._states import State
from lockmgr import Mode

__all__ = ["Runs", "TimedSpawns", "Transaction", "work_of"]

P = ParamSpec("P")
T = TypeVar("T")


class Transaction:
    """Handle of a transaction, top-level or subtransaction.

    Reads see the transaction's own versions, then its ancestors', then the committed rows. Writes
    stay in its workspace until it commits: a subtransaction delegates them to its parent, a
    top-level transaction flushes them to the store. Tables are SQLAlchemy ``Table`` objects or
    mapped classes; a key is a value, or a tuple for a composite primary key.

    Only the thread that runs its block or function may use it; other threads may call `cancel`.
    Handles of the same transaction are equal.
    """

    __slots__ = ("_node",)

    def __init__(self, node: TransactionNode):
        self._node = node

    def __repr__(self) -> str:
        return repr(self._node)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transaction) and self._node is other._node

    def __hash__(self) -> int:
        return hash(self._node)

    def __enter__(self) -> Self:
        self._node.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._node.__exit__(kind, error, trace)

    @property
    def id(self) -> int:
        """Number of the transaction, unique in this process; later ones have greater numbers."""
        return self._node.id

    @property
    def path(self) -> str:
        """Place in the hierarchy, the same in every retry of the same work. O(depth)."""
        return self._node.path

    @property
    def parent(self) -> Transaction | None:
        """Parent of a subtransaction; None for a top-level transaction."""
        parent = self._node.parent
        return None if parent is None else Transaction(parent)

    @property
    def rule(self) -> str | None:
        """Name of the rule that runs in it; None if no rule does."""
        return self._node.rule

    @property
    def state(self) -> State:
        """State: active, committing, committed or aborted."""
        return self._node.state

    @property
    def is_rollback_only(self) -> bool:
        """True if it has to abort at its next step."""
        return self._node.rollback_reason is not None

    @property
    def timestamp(self) -> datetime | float:
        """Time of the event being processed, for an s-transaction and its inferiors; else now."""
        return self._node.timestamp

    # -- rows ------------------------------------------------------------------------------

    def get(
        self, table: Any, key: Any, *, for_update: bool = False, nowait: bool = False
    ) -> Row | None:
        """Return the row with this primary key, or None.

        Parameters
        ----------
        for_update : bool
            Take the write lock at once; recommended for a row that is about to be changed.
        nowait : bool
            With `for_update`: do not wait for a transaction that has the row locked, here or in
            another process.

        Raises
        ------
        LockNotAvailable
            With `nowait`, if another transaction has the row locked; this transaction continues.
        Deadlock, LockTimeout, InvalidRow
        """
        node = self._node
        node.check_usable()
        spec = node.forest.tables.spec(table)
        wanted = spec.key(key)
        if nowait:
            row = _got(node, spec, [wanted], for_update=for_update, nowait=nowait)[wanted]
        else:
            row = read_row(node, spec, wanted, Mode.X if for_update else Mode.S)
        return None if row is None else spec.shown(row)

    def get_many(
        self, table: Any, keys: Iterable[Any], *, for_update: bool = False, nowait: bool = False
    ) -> dict[Any, Row | None]:
        """Return rows by key, None where absent, in one round trip. See `get`."""
        node = self._node
        node.check_usable()
        spec = node.forest.tables.spec(table)
        wanted: dict[Any, Key] = {}
        try:
            for key in keys:
                normal = spec.key(key)
                if wanted.setdefault(key, normal) != normal:
                    raise InvalidRow(
                        f"table {spec.name}: get_many() returns rows by key, but two keys that are "
                        f"equal in Python, {key!r}, are not to the database; give times in UTC"
                    )
        except TypeError as error:
            raise InvalidRow(
                f"table {spec.name}: get_many() returns rows by key, so give keys that a dict can "
                f"have: {error}"
            ) from error
        rows = _got(
            node, spec, spec.in_order(set(wanted.values())), for_update=for_update, nowait=nowait
        )
        found = {key: rows[normal] for key, normal in wanted.items()}
        return {key: None if row is None else spec.shown(row) for key, row in found.items()}

    def insert(self, table: Any, values: Mapping[str, Any]) -> Row:
        """Insert a row; return it complete, with defaults and a generated key.

        Raises
        ------
        RowExists, InvalidRow, Deadlock, LockTimeout
        """
        node = self._node
        node.check_usable()
        if node.condition_of is not None:
            node.refuse_write("an insert")
        spec = node.forest.tables.spec(table)
        if type(values) is not dict and not isinstance(values, Mapping):
            raise InvalidRow(
                f"table {spec.name}: insert() takes one row, a mapping of columns to values, not "
                f"{type(values).__name__}; for several rows call it for each, or "
                f"t.execute(insert(table), rows)"
            )
        given = dict(values)
        missing = spec.missing_defaults(given)
        for column in missing:
            given[column] = default_of(node, spec, spec.defaults[column], given)
        if spec.generated:
            for column in spec.unnumbered(given):
                given[column] = next_number(node, spec, column)
        row = spec.complete(given)
        key = spec.key_of(row)
        if read_row(node, spec, key, Mode.X, inserting=True) is not None:
            raise RowExists(f"table {spec.name}: a row with key {key!r} exists; update it instead")
        write_row(node, spec, key, None, row)
        return spec.shown(row)

    def update(self, table: Any, key: Any, /, *wrong: Any, **values: Any) -> Row:
        """Change columns of one row; return the new row.

        Raises
        ------
        RowNotFound, InvalidRow, Deadlock, LockTimeout
        """
        node = self._node
        if wrong:
            raise InvalidRow(
                f"update() takes the new values by the names of their columns, "
                f"t.update(table, key, balance=5) or **{{...}}, not {wrong[0]!r}"
            )
        if node.condition_of is not None:
            node.refuse_write("an update")
        spec = node.forest.tables.spec(table)
        key, old = _existing(node, spec, key)
        for column, default in spec.onupdates.items():
            if column not in values:
                values[column] = default_of(node, spec, default, values)
        new = spec.changed(old, values)
        write_row(node, spec, key, old, new)
        return spec.shown(new)

    def delete(self, table: Any, key: Any) -> None:
        """Delete one row.

        Raises
        ------
        RowNotFound, InvalidRow, Deadlock, LockTimeout
        """
        node = self._node
        if node.condition_of is not None:
            node.refuse_write("a delete")
        spec = node.forest.tables.spec(table)
        key, old = _existing(node, spec, key)
        write_row(node, spec, key, old, None)

    def query(self, statement: Any, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the rows of a SELECT over the versions that this transaction sees.

        Takes S on every table read, so no phantoms can appear before the end. Beyond the server's
        work, O(dirty rows of those tables in the workspaces of this transaction and its
        ancestors). A server-side function that reads tables itself sees committed rows only.

        Parameters
        ----------
        statement : SELECT
            Built with SQLAlchemy from Tables or mapped classes, or ``text("SELECT …")`` over
            tables that are declared in ``db.metadata`` or were used before. Rows of mapped
            classes hold their objects, loaded and detached.

            ``with_for_update()`` locks the rows of a SELECT from one table for writing. With
            ``skip_locked=True`` it leaves out rows locked by other transactions; with
            ``nowait=True`` it fails at once if there are any. Neither locks the whole table, as job
            queues need it, so phantoms may appear; but with ``skip_locked=True`` it waits while
            another transaction has the whole table, as in plain SQL.
        parameters : mapping of str to value, optional
            Values for parameters in the statement.

        Raises
        ------
        UnsupportedStatement
            If the statement is not a SELECT, or not supported; nothing has been sent.
        LockNotAvailable
            With ``nowait=True``.
        Deadlock, LockTimeout, StoreError
        """
        node = self._node
        node.check_usable()
        return _statements.query(node, statement, parameters)

    def execute(self, statement: Any, parameters: Parameters = None) -> Any:
        """Run an UPDATE, DELETE or INSERT; return the number of rows written.

        With RETURNING, return its values for each row, in the order of the writes: the order of
        the keys, or for an INSERT the order of its rows. One read finds and locks the rows; then
        they are checked, written into the workspace together, and shown to the rules one by one.

        Parameters
        ----------
        statement : UPDATE, DELETE or INSERT
            On one Table or mapped class; it may read others.
        parameters : mapping, or sequence of mappings, optional
            Values for parameters in the statement, or the rows of an INSERT.

        Raises
        ------
        UnsupportedStatement, RowExists, InvalidRow, Deadlock, LockTimeout, StoreError
            No row of the statement is written then.
        """
        node = self._node
        node.check_usable()
        if node.condition_of is not None:
            node.refuse_write("execute()")
        return _statements.execute(node, statement, parameters)

    # -- children and the end --------------------------------------------------------------

    def subtransaction(self, *, timeout: float | None = None) -> Transaction:
        """Return a sequential child, used as ``with t.subtransaction() as s:`` on this thread.

        The parent's locks are offered to the child, and the parent must not be used until the
        block ends.

        Parameters
        ----------
        timeout : float, optional
            Seconds from now after which the child, and its inferiors, abort with
            `TransactionTimeout`. The parent may catch that and continue, unless the child was
            waiting on the server: then the flat transaction of the whole hierarchy is broken.
        """
        return Transaction(begin_subtransaction(self._node, timeout))

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """Run ``function(s, *args)`` as a parallel child and continue.

        This transaction's commit joins the child at the latest, and raises the child's error
        unless ``result()`` has raised it. A child that is chosen as a deadlock victim is retried.
        The locks of this transaction are offered to the child. For a time limit, use
        ``t.with_timeout(seconds).spawn(function, …)``.
        """
        return spawn(self._node, work_of(function, "spawn()", args, kwargs))

    def with_timeout(self, timeout: float) -> TimedSpawns:
        """Return an object to spawn children with a time limit: ``t.with_timeout(5).spawn(f, …)``.

        The limit is in seconds. When it is over, the child and its inferiors abort with
        `TransactionTimeout`, and are not retried.

        Raises
        ------
        ConfigurationError
            If `timeout` is not a positive number.
        """
        return TimedSpawns(self._node, timeout)

    def join(self) -> None:
        """Wait for the spawned children; raise the first undelivered error."""
        self._node.join()

    def abort(self, reason: str = "") -> Never:
        """Abort this transaction: its block ends here, and everything in its sphere is undone.

        Raises
        ------
        TransactionAborted
            Always; the ``with`` block of this transaction swallows it.
        WrongThread
            On another thread; use `cancel` there.
        """
        self._node.abort(reason)

    def cancel(self, reason: str = "") -> None:
        """Make this transaction and its inferiors abort at their next step; from any thread.

        Its next step raises `TransactionCancelled`. A wait for a lock and a running statement on
        the server end at once. The call has no effect on a transaction that has ended; one that
        is about to commit may still do so.
        """
        self._node.cancel(reason)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            why = _NO_NAMES.get(name)
            if why is None:
                shown = [each for each in dir(Transaction) if not each.startswith("_")]
                why = f"a transaction has no {name!r}; {did_you_mean(name, shown)}"
            raise AttributeError(why, name=name, obj=self)


_NO_NAMES = {
    "commit": "a transaction commits at the end of its block, or of the function that db.run() or "
    "spawn() calls",
    "is_doomed": "is_doomed is now called is_rollback_only",
}


class Runs:
    """Handle for runs with a time limit or an isolation policy; see `Database.with_timeout`.

    Immutable; each ``with_…`` returns another object.
    """

    __slots__ = ("_forest", "_isolation", "_timeout_s")

    def __init__(
        self, forest: Forest, isolation: Isolation | None = None, timeout_s: float | None = None
    ):
        self._forest = forest
        self._isolation = forest.settings.isolation if isolation is None else isolation
        self._timeout_s = timeout_s

    def with_isolation(self, isolation: Isolation) -> Runs:
        """Return such runs with an isolation policy; see `Database.with_isolation`."""
        return Runs(self._forest, checked_isolation(isolation), self._timeout_s)

    def with_timeout(self, timeout: float) -> Runs:
        """Return such runs with a time limit in seconds; see `Database.with_timeout`."""
        Limit.after(timeout)  # raises on an invalid limit at once
        return Runs(self._forest, self._isolation, timeout)

    def run(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run as ``db.run`` does; raise `TransactionTimeout` if all tries take too long."""
        return self._forest.run(
            work_of(function, "run()", args, kwargs),
            Run.of_function(function, self._isolation),
            timeout=self._timeout_s,
        )


class TimedSpawns:
    """Result of ``t.with_timeout(seconds)``: children with a time limit."""

    __slots__ = ("_parent", "_timeout_s")

    def __init__(self, parent: TransactionNode, timeout_s: float):
        Limit.after(timeout_s)
        self._parent = parent
        self._timeout_s = timeout_s

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """Spawn as ``t.spawn`` does; raise `TransactionTimeout` if the child takes too long.

        The limit begins now, and includes the wait for a thread and all tries.
        """
        return spawn(
            self._parent, work_of(function, "spawn()", args, kwargs), timeout=self._timeout_s
        )


def work_of(
    function: Callable[..., T], where: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[TransactionNode], T]:
    """Return work for a node: a call of the user's `function` with the handle, checked.

    Raises
    ------
    DefinitionError
        If `function` is not callable, or does no work when it is called.
    """
    if not callable(function):
        raise DefinitionError(
            f"{where} takes a function (t, …) and calls it with a transaction, not {function!r}"
        )
    checked_function(function, f"the function given to {where}")

    def call(node: TransactionNode) -> T:
        result = function(Transaction(node), *args, **kwargs)
        if result is None:
            return result
        return checked_result(result, f"the function given to {where}")

    return call


def _got(
    node: TransactionNode, spec: TableSpec, keys: list[Key], *, for_update: bool, nowait: bool
) -> dict[Key, Row | None]:
    if not nowait:
        return read_rows(node, spec, keys, Mode.X if for_update else Mode.S)
    if not for_update:
        raise UnsupportedStatement("nowait goes together with for_update=True")
    found = read_free(node, spec, keys)
    for key in keys:
        if key not in found:
            raise LockNotAvailable(f"table {spec.name}: another transaction has row {key!r}")
    return found


def _existing(node: TransactionNode, spec: TableSpec, key: Any) -> tuple[Key, Row]:
    wanted = spec.key(key)
    row = read_row(node, spec, wanted, Mode.X, to_write=True)
    if row is None:
        raise RowNotFound(f"table {spec.name}: no row has the key {wanted!r}")
    return wanted, row
