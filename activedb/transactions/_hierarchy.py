"""Hierarchy: state shared by a top-level transaction and its inferiors, on one flat transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from activedb.errors import ConstraintViolation, SerializationConflict
from activedb.store.flush import Change, answer_changed
from activedb.store.server import PatientLatch
from activedb.store.session import Durable, Session
from activedb.store.sql import Key, LockedRows, Row, Tables, TableSpec
from activedb.transactions._base import Base
from activedb.transactions._run import Run
from lockmgr import Predicate

__all__ = ["Hierarchy", "Kin", "Lending", "Workspace"]


T = TypeVar("T")


_PREDICATES_MAX = 64  # of a table; beyond that the whole table is locked
_GUARDS_MAX = 128  # keys of a table; beyond that the whole table is guarded

Rows: TypeAlias = dict[TableSpec, dict[Key, Row | None]]
"""Row versions per table; None is a tombstone."""


@dataclass(slots=True)
class Workspace:
    """Row versions of one transaction.

    Attributes
    ----------
    rows : dict
        The newest version of each written row.
    log : list
        All versions, statement by statement.
    """

    rows: Rows = field(default_factory=dict)
    log: list[tuple[TableSpec, Mapping[Key, Row | None]]] = field(default_factory=list)

    def write(self, spec: TableSpec, versions: Mapping[Key, Row | None]) -> None:
        """Add the versions that one statement writes."""
        if versions:
            self.rows.setdefault(spec, {}).update(versions)
            self.log.append((spec, versions))

    def take(self, child: Workspace) -> None:
        """Take the versions of a committing child, whose workspace is void then. O(versions)."""
        for spec, rows in child.rows.items():
            mine = self.rows.get(spec)
            if mine is None:
                self.rows[spec] = rows
            else:
                mine.update(rows)
        self.log += child.log

    def joined(self, child: Workspace) -> Workspace:
        """Return a new workspace with the versions of both."""
        both = Workspace()
        for part in (self, child):
            both.take(Workspace({spec: dict(rows) for spec, rows in part.rows.items()}, part.log))
        return both

    def clear(self) -> None:
        """Forget every version."""
        self.rows.clear()
        self.log.clear()


class Hierarchy:
    """Top-level transaction with its inferiors, as the store sees it.

    Attributes
    ----------
    session : Session
        The flat transaction on the server.
    latch : PatientLatch
        Guards `base`; held during calls to the server. Taken before the session's latch.
    base : Base
        Committed rows that this hierarchy has read, and its locks on the server.
    durable : list
        Writes that become durable together with the top-level commit.
    top_id : int
        Id of the top-level transaction.
    members : set of int
        Ids of the live transactions, including the top-level one.
    lends : bool
        True if causally dependent transactions may use the session; False for a caller's session,
        and under SERIALIZABLE, where the server has to see who reads what.
    asks_predicates : bool
        True if predicates may be locked in place of tables: it checks at its own commit that other
        processes have inserted no row that satisfies one.
    is_parallel : bool
        True if a transaction may run beside others that share its rows: once one has spawned.
    space : str or None
        Under SERIALIZABLE, what its locks add to the names of tables, so that they are its own;
        else None.
    detectors : set of str
        Rules whose detectors it has locked.
    lending : Lending or None
        Use of the session by other hierarchies; None if no other hierarchy has used it.
    causes : tuple of int
        Ids of the transactions on which it depended in the lock manager at its begin.
    """

    causes: tuple[int, ...] = ()

    def __init__(self, session: Session, run: Run, *, lends: bool = True):
        self.session = session
        self.lends = lends and not session.is_serializable
        self.asks_predicates = lends
        self.is_parallel = False
        self.space: str | None = None
        self.detectors: set[str] = set()
        self.run = run
        self.latch = PatientLatch()
        self.base = Base()
        self.durable: list[Durable] = []
        self.top_id = 0
        self.members: set[int] = set()
        self.lending: Lending | None = None

    def read(
        self,
        spec: TableSpec,
        keys: Sequence[Key],
        *,
        exclusive: bool,
        inserting: bool = False,
        to_write: bool = False,
        asker: Hierarchy | None = None,
    ) -> dict[Key, Row | None]:
        """Return committed rows, locked on the server once per hierarchy and mode.

        Under SERIALIZABLE, rows that are only read are not locked.

        Takes one round trip for existing rows, and for a single key about to be inserted; two for
        another absent key, three for several absent keys; none if the hierarchy has locked all of
        `keys` before.

        Parameters
        ----------
        inserting : bool
            True if the keys are probably absent, and about to be inserted.
        to_write : bool
            True if the rows are about to be written. Those that are locked for reading are locked
            for writing along with the write, in the same round trip; under SERIALIZABLE at once,
            so that a conflict shows early.
        asker : Hierarchy, optional
            The hierarchy that reads through this one; only a `CausalHierarchy` has to know.
        """
        is_late = to_write and self.session.locks_late(spec)
        with self.latch:
            if self.lending is not None and asker is None:
                self.lending.reads(spec, keys)
            base = self.base.of(spec)
            absent = [key for key in keys if base.is_absent(key)] if inserting else []
            unread = base.unread(keys, exclusive=exclusive and not is_late)
            if not unread:
                if absent:
                    self._guard(spec, absent, exclusive=True)
                return {key: base.rows[key] for key in keys}
            rows: dict[Key, Row | None] = {}
            if inserting and self.session.is_serializable:
                rows = dict.fromkeys(self.session.absent_now(spec, unread))
                unread = [key for key in unread if key not in rows]
            if unread:
                found = self._locked(spec, unread, absent, exclusive=exclusive)
                rows = {**rows, **found} if rows else found
            if None in rows.values():
                absent = [key for key, row in rows.items() if row is None]
                absent = self._unguarded(spec, absent, exclusive=exclusive)
                if absent:
                    # Another transaction may have inserted them before they were guarded.
                    rows |= self._locked(spec, absent, absent, exclusive=exclusive)
            if base.predicates:
                self._check_answers(spec, rows)
            base.fetched(rows, exclusive=exclusive)
            return rows if len(rows) == len(keys) else {key: base.rows[key] for key in keys}

    def may_ask(self, spec: TableSpec) -> bool:
        """Return whether another predicate may be locked in place of a table."""
        with self.latch:
            return (
                self.asks_predicates
                and not self.base.is_locked(spec)
                and len(self.base.of(spec).predicates) < _PREDICATES_MAX
            )

    def read_single(self, spec: TableSpec, predicate: Predicate, *, exclusive: bool) -> list[Key]:
        """Read the row that satisfies a predicate, locked, if it is the only one and free.

        Returns the keys of all rows that do, at most one more than `KEYS_PINNED_MAX`. One round
        trip.
        """
        with self.latch:
            base = self.base.of(spec)
            row, keys = self.session.lock_single_row(spec, predicate, exclusive=exclusive)
            key = None if row is None else spec.key_of(row)
            # A key that was read as absent stays absent, which the commit checks.
            if key is not None and base.may_be(key):
                self._check_answers(spec, {key: row})
                base.fetched({key: row}, exclusive=exclusive)
            return keys

    def asked(self, spec: TableSpec, predicate: Predicate, keys: Collection[Key]) -> None:
        """Note that all rows which satisfy a predicate have been read; see `commit`."""
        with self.latch:
            self.base.of(spec).asked(predicate, keys)

    def has_answered(self, spec: TableSpec, rows: Iterable[Row] | None) -> bool:
        """Return whether rows, if they are written, change an answer that was given before."""
        with self.latch:
            predicates = self.base.of(spec).predicates
            if rows is None:
                return bool(predicates)
            return any(predicate.covers(row) for row in rows for predicate in predicates)

    def _check_answers(self, spec: TableSpec, rows: Mapping[Key, Row | None]) -> None:
        """Raise `SerializationConflict` if rows, just read, should have been in an earlier answer.

        Then another process has written them since.
        """
        base = self.base.of(spec)
        if not (base.predicates and self.session.relies_on_locks):
            return
        for key, row in rows.items():
            if row is None or base.is_known(key):
                continue
            if any(predicate.covers(row) for predicate in base.predicates):
                raise answer_changed(spec, key)

    def read_free(
        self, spec: TableSpec, keys: Sequence[Key], *, asker: Hierarchy | None = None
    ) -> dict[Key, Row | None]:
        """Read exclusively without waiting; rows locked by other transactions are left out."""
        with self.latch:
            if self.lending is not None and asker is None:
                self.lending.reads(spec, keys)
            base = self.base.of(spec)
            unread = base.unread(keys, exclusive=True)
            rows = self.session.lock_free_rows(spec, unread) if unread else {}
            self._check_answers(spec, rows)
            absent = [key for key, row in rows.items() if row is None]
            if absent:
                self._guard(spec, absent, exclusive=True)
            base.fetched(rows, exclusive=True)
            taken = {key for key in unread if key not in rows}
            return {key: base.rows[key] for key in keys if key not in taken}

    def shows_unwritten(self, spec: TableSpec, keys: Collection[Key]) -> bool:
        """Return False: rows are read from the server; a `CausalHierarchy` asks its cause."""
        return False

    def take_back(self, asker: Hierarchy, asked: Mapping[TableSpec, Collection[Key]]) -> None:
        """Do nothing; a `CausalHierarchy` records which hierarchies read through it."""

    def _locked(
        self, spec: TableSpec, keys: list[Key], absent: list[Key], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        """Read rows from the server, after guarding the keys that may be absent."""
        if absent:
            if (
                len(keys) == 1
                and self._unguarded(spec, absent, exclusive=exclusive) == keys
                and len(self.base.of(spec).guards) < _GUARDS_MAX
            ):
                rows = self.session.lock_rows(spec, keys, exclusive=exclusive, guarding=True)
                self.base.guarded(spec, keys, exclusive=exclusive)
                return rows
            self._guard(spec, absent, exclusive=exclusive)
        return self.session.lock_rows(spec, keys, exclusive=exclusive)

    def _unguarded(self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool) -> list[Key]:
        """Return the `keys` that still need a guard."""
        if not keys or not self.session.relies_on_locks:
            return []
        return self.base.unguarded(spec, keys, exclusive=exclusive)

    def _guard(self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool) -> None:
        """Guard the `keys` that are not guarded yet."""
        new = self._unguarded(spec, keys, exclusive=exclusive)
        if new:
            guards = len(self.base.of(spec).guards)
            wanted = None if guards + len(new) > _GUARDS_MAX else new
            # Many keys share the guard of their table, which is always exclusive.
            self.session.guard(spec, wanted, exclusive=exclusive or wanted is None)
            self.base.guarded(spec, wanted, exclusive=exclusive)

    def lock_table(self, spec: TableSpec) -> None:
        """Lock a whole table on the server, once per hierarchy."""
        with self.latch:
            if not self.base.is_locked(spec):
                self.session.lock_table(spec)
                self.base.locked(spec)

    def query(
        self,
        statement: Any,
        tables: Tables,
        dirty: Mapping[TableSpec, Mapping[Key, Row | None]],
        parameters: Mapping[str, Any] | None = None,
        locked: LockedRows | None = None,
    ) -> list[Any]:
        """Return rows of a SELECT over the committed state overlaid with `dirty`; see `Session`."""
        committed = {}
        inexact = [spec for spec, rows in dirty.items() if rows and spec.inexact]
        if inexact:  # else no wait for a sibling that reads
            with self.latch:
                committed = {spec: self.base.of(spec).rows for spec in inexact}
        return self.session.query(statement, tables, dirty, parameters, locked, committed)

    def look_up(self, question: Callable[[Session], T]) -> T:
        """Return the answer to a question that reads no rows: the next key of a table, say."""
        return question(self.session)

    def changes(self, workspace: Rows) -> Sequence[Change]:
        """Return the write set of a workspace relative to the committed rows.

        REQUIRES: the latch.
        """
        found: list[Change] = []
        for spec, rows in workspace.items():
            base, locks = self.base.of(spec), self.session.locks_rows(spec)
            shared = base.shared(rows) if locks else ()
            found += [
                Change(spec, key, base.rows[key], new, key in shared) for key, new in rows.items()
            ]
        return found

    def has_read(self, spec: TableSpec, key: Key) -> bool:
        """Return whether the hierarchy has read the row, or its absence."""
        with self.latch:
            return key in self.base.of(spec).rows

    def forget_rows(self, spec: TableSpec, keys: Collection[Key]) -> None:
        """Have rows read again that only borrowers have read, now ended.

        REQUIRES: no workspace of the hierarchy has one.
        """
        with self.latch:
            own = set() if self.lending is None else self.lending.own.get(spec, set())
            self.base.of(spec).discard([key for key in keys if key not in own])

    def forget(self, *, locks: bool = False) -> None:
        """Have every row read again, because the caller has used the flat transaction.

        REQUIRES: no workspace of the hierarchy has a version.

        Parameters
        ----------
        locks : bool
            True if the server has rolled back to a savepoint, so that locks are gone, too.
        """
        with self.latch:
            self.base.forget(locks=locks)
            if locks:
                self.session.recover()

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Keep the flat transaction usable if the server refuses a statement in the block.

        For one child of the top-level transaction at a time. On an error, the rows read in the
        block are forgotten, because the server releases their locks.
        """
        with self.latch:
            self.base.mark()
        try:
            with self.session.savepoint() if self.session.writes_early else nullcontext():
                yield
        except BaseException:
            with self.latch:
                self.base.go_back()
                self.session.recover()
            raise
        finally:
            with self.latch:
                self.base.drop_mark()

    def check(self, child: Workspace, above: Workspace) -> None:
        """Have the server check the rows written by a child of the top-level transaction.

        If sessions can write concurrently, the versions are written now and become the base.
        Otherwise they are only tried, on top of the versions of the child's parent, because a
        session that has written blocks all others.

        Raises
        ------
        ConstraintViolation, InvalidRow
            If the server refuses a row; see `undoing`.
        """
        with self.latch:
            if not self.session.writes_early:
                both = above.joined(child)
                self.session.trial(self.changes(both.rows), both.log)
                return
            changes = self.changes(child.rows)
            if changes:
                self.session.flush(changes, child.log)
            for change in changes:
                self.base.of(change.spec).wrote(change.key, change.new)
            child.clear()

    def commit(self, versions: Workspace) -> None:
        """Write `versions` and the `durable` writes, and commit on the server.

        Raises
        ------
        ConstraintViolation, InvalidRow, SerializationConflict, ConnectionLost
            If the server refuses; nothing is written then.
        """
        if self.lending is not None:
            self.lending.close()
        with self.latch:
            changes = self.changes(versions.rows)
            absent = self.base.absent(but=versions.rows)
            if absent:
                self.session.confirm_absent(absent)
            try:
                self.session.commit(
                    changes,
                    versions.log,
                    self.durable,
                    asked=self.base.asked_of(),
                    lazily=self.run.lazily,
                )
            except ConstraintViolation as refused:
                self._try_once_more(refused)
                raise

    def _try_once_more(self, refused: ConstraintViolation) -> None:
        """Raise `SerializationConflict` if a row may be refused only because of the snapshot.

        Under SERIALIZABLE, a function may have looked for the row that is in the way, which was
        committed since. In the next try it sees it.
        """
        if self.session.is_serializable and self.run.is_retried and not self.run.is_refused:
            self.run.is_refused = True
            raise SerializationConflict(
                f"{refused}; tried once more, as that may have been committed after the snapshot"
            ) from refused


# -- latch and pauses shared by the transactions of one hierarchy ------------------------------


class Kin:
    """Latch for one hierarchy's links, states, workspaces and rollback reasons; its paused threads.

    The latch is held for moments only, never during a call to the store, so that a transaction can
    be marked rollback-only while the server works for it. Only the lock manager's latch is taken
    under it.
    """

    __slots__ = ("_pausing", "latch")

    def __init__(self) -> None:
        self.latch = threading.Lock()
        self._pausing: set[threading.Event] = set()

    def pause(self, wait: Callable[[threading.Event], object], over: Callable[[], bool]) -> None:
        """Call `wait` with an event that `notify_all` sets, until it times out or `over()` is true.

        Parameters
        ----------
        wait : callable
            Returns when the event is set, or after its own timeout.
        over : callable
            Returns whether the pause is over; called before the first wait and after each
            `notify_all`.
        """
        event = threading.Event()
        with self.latch:
            self._pausing.add(event)
        try:
            while not over():
                wait(event)
                if not event.is_set():
                    return
                event.clear()
        finally:
            with self.latch:
                self._pausing.discard(event)

    def notify_all(self) -> None:
        """Wake all pausing threads, so that they check again. REQUIRES: the latch."""
        for event in self._pausing:
            event.set()


# -- lending of a hierarchy's connection to other hierarchies, until its commit ----------------


class Lending:
    """Gate for causally dependent transactions that use the connection of another hierarchy.

    Attributes
    ----------
    own : dict of TableSpec to set of Key
        What the hierarchy itself has read since it lends. Guarded by its latch.
    """

    def __init__(self) -> None:
        self.own: dict[TableSpec, set[Key]] = {}
        self._changed = threading.Condition()
        self._users = 0
        self._is_open = True

    @contextmanager
    def use(self) -> Iterator[bool]:
        """Use the connection for one read; yield False if that is no longer allowed."""
        with self._changed:
            is_open = self._is_open
            self._users += is_open
        try:
            yield is_open
        finally:
            if is_open:
                with self._changed:
                    self._users -= 1
                    self._changed.notify_all()

    def reads(self, spec: TableSpec, keys: Iterable[Key]) -> None:
        """Note that the hierarchy itself reads rows. REQUIRES: its latch."""
        self.own.setdefault(spec, set()).update(keys)

    def shut(self) -> None:
        """Refuse further uses, without waiting for the present ones."""
        with self._changed:
            self._is_open = False

    def close(self) -> None:
        """Refuse further uses, and wait until the present ones have ended."""
        self.shut()
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
