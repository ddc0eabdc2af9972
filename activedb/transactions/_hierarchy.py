"""What all transactions of one hierarchy share: the flat transaction beneath them."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from activedb.store.flush import Change
from activedb.store.server import PatientLatch
from activedb.store.session import Durable, Session
from activedb.store.sql import Key, Row, Tables, TableSpec
from activedb.transactions._base import Base
from activedb.transactions._lending import Lending

if TYPE_CHECKING:
    from activedb.transactions._transaction import Transaction

__all__ = ["Hierarchy", "Run", "Workspace"]

_GUARDS_MAX = 128  # keys of a table; who needs more guards the whole table

Rows: TypeAlias = dict[TableSpec, dict[Key, Row | None]]
"""Row versions per table; None is a tombstone."""


@dataclass(slots=True)
class Workspace:
    """The row versions of one transaction.

    Attributes
    ----------
    rows : dict
        The newest version of each row it wrote.
    log : list
        All versions, in the order in which they were written.
    """

    rows: Rows = field(default_factory=dict)
    log: list[tuple[TableSpec, Key, Row | None]] = field(default_factory=list)

    def write(self, spec: TableSpec, key: Key, row: Row | None) -> None:
        """Add a version."""
        rows = self.rows.get(spec)
        if rows is None:
            rows = self.rows[spec] = {}
        rows[key] = row
        self.log.append((spec, key, row))

    def take(self, child: Workspace) -> None:
        """Add the versions of a child that commits, which is of no use then. O(its versions)."""
        for spec, rows in child.rows.items():
            mine = self.rows.get(spec)
            if mine is None:
                self.rows[spec] = rows
            else:
                mine.update(rows)
        self.log += child.log

    def joined(self, child: Workspace) -> Workspace:
        """A workspace with the versions of both."""
        both = Workspace()
        for part in (self, child):
            both.take(Workspace({spec: dict(rows) for spec, rows in part.rows.items()}, part.log))
        return both

    def clear(self) -> None:
        """Forget every version."""
        self.rows.clear()
        self.log.clear()


class _Names:
    """Names that no other transaction has, in this process or another.

    A UUID for each would take a hundredth of a small transaction's time.
    """

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._process = uuid.uuid4().hex[:20]
        self._numbers = itertools.count()

    def __call__(self) -> str:
        """One more name, of 32 hexadecimal digits."""
        return f"{self._process}{next(self._numbers):012x}"


_new_name: Callable[[], str] = _Names()


@dataclass(slots=True)
class Run:
    """What stays the same when a top-level transaction is tried again.

    Attributes
    ----------
    name : str
        Identity of the work; firings of detached rules are named after it.
    is_batch, is_detached : bool
        Whether it is a batch of a stream, or a detached rule: both are done again after a crash.
    lazily : bool
        Whether the commit need not wait for the disk, because somebody replays what a crash of
        the server may lose.
    careful : bool
        Whether the rows of each child of the top-level transaction are checked by the server as
        the child commits, so that a refused row aborts that child alone.
    is_retried : bool
        Whether somebody makes further tries, and says when the work has failed for good.
    of_application : bool
        Whether the application began it, so that its begin, commit and abort are events.
    fired : set of str
        Detached firings that this and earlier tries have triggered.
    tries : int
        Top-level transactions that were begun for it in this process.
    called : str
        Name of the application's function that runs in it, for who watches; may be empty.
    rule, coupling : str or None
        Of a firing: its rule, and the mode in which that was triggered.
    origin : str or None
        Of a firing: what its record carries of the transaction that triggered it, for who watches.
    """

    name: str = field(default_factory=_new_name)
    is_batch: bool = False
    is_detached: bool = False
    lazily: bool = False
    careful: bool = False
    is_retried: bool = False
    of_application: bool = False
    fired: set[str] = field(default_factory=set)
    tries: int = 0
    called: str = ""
    rule: str | None = None
    coupling: str | None = None
    origin: str | None = None


class Hierarchy:
    """One top-level transaction with its inferiors, as the store sees it.

    Attributes
    ----------
    session : Session
        The flat transaction on the server.
    latch : PatientLatch
        Guards `base`; held while the server works. Taken before the session's latch.
    base : Base
        Committed rows this hierarchy has read, and what it has locked on the server.
    durable : list
        Writes that must be durable together with the top-level commit.
    top_id : int
        Id of the top-level transaction.
    members : set of int
        Ids of the live transactions, the top-level one included.
    lends : bool
        Whether causally dependent transactions may use the session: not if it is a caller's.
    lending : Lending or None
        Who uses the session that does not belong to the hierarchy; None if nobody ever has.
    cause : Transaction or None
        In whom that was triggered, on which the top-level transaction causally depends.
    causes : tuple of int
        On whom it depended in the lock manager when it began.
    """

    cause: ClassVar[Transaction | None] = None
    causes: tuple[int, ...] = ()

    def __init__(self, session: Session, run: Run, *, lends: bool = True):
        self.session = session
        self.lends = lends
        self.run = run
        self.latch = PatientLatch()
        self.base = Base()
        self.durable: list[Durable] = []
        self.top_id = 0
        self.members: set[int] = set()
        self.lending: Lending | None = None

    def read(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool, inserting: bool = False
    ) -> dict[Key, Row | None]:
        """Committed rows, locked on the server once per hierarchy and mode.

        One round trip for rows that are there, and for one key that is going to be inserted; two
        for others that are absent, three for several of them; none when the hierarchy has locked
        all of `keys` before.

        Parameters
        ----------
        inserting : bool
            The keys are probably absent, and going to be inserted.
        """
        base = self.base
        with self.latch:
            absent = [key for key in keys if base.is_absent(spec, key)] if inserting else []
            unread = base.unread(spec, keys, exclusive=exclusive)
            if not unread:
                self._guard(spec, absent, exclusive=True)
                return base.rows(spec, keys)
            rows = self._locked(spec, unread, absent, exclusive=exclusive)
            if None in rows.values():
                absent = [key for key in unread if rows[key] is None]
                absent = self._unguarded(spec, absent, exclusive=exclusive)
                if absent:
                    # Somebody may have inserted them before they were guarded.
                    rows |= self._locked(spec, absent, absent, exclusive=exclusive)
            base.fetched(spec, rows, exclusive=exclusive)
            return base.rows(spec, keys)

    def read_free(self, spec: TableSpec, keys: Sequence[Key]) -> dict[Key, Row | None]:
        """As `read` with `exclusive`, at once: rows that others have locked are left out."""
        base = self.base
        with self.latch:
            unread = base.unread(spec, keys, exclusive=True)
            rows = self.session.lock_free_rows(spec, unread) if unread else {}
            absent = [key for key, row in rows.items() if row is None]
            if absent:
                self._guard(spec, absent, exclusive=True)
            base.fetched(spec, rows, exclusive=True)
            taken = {key for key in unread if key not in rows}
            return base.rows(spec, [key for key in keys if key not in taken])

    def lend(
        self,
        asker: Hierarchy,
        spec: TableSpec,
        keys: Sequence[Key],
        *,
        exclusive: bool,
        inserting: bool = False,
    ) -> dict[Key, Row | None]:
        """As `read`, for a hierarchy that reads through this one."""
        return self.read(spec, keys, exclusive=exclusive, inserting=inserting)

    def lend_free(
        self, asker: Hierarchy, spec: TableSpec, keys: Sequence[Key]
    ) -> dict[Key, Row | None]:
        """As `read_free`, for a hierarchy that reads through this one."""
        return self.read_free(spec, keys)

    def take_back(self, asker: Hierarchy, asked: Mapping[TableSpec, Collection[Key]]) -> None:
        """Take note that a hierarchy reads no longer through this one, and has no locks."""

    def _locked(
        self, spec: TableSpec, keys: list[Key], absent: list[Key], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        """Rows read from the server, after those of the keys that may be absent are guarded."""
        if absent:
            if (
                len(keys) == 1
                and self._unguarded(spec, absent, exclusive=exclusive) == keys
                and self.base.guards(spec) < _GUARDS_MAX
            ):
                rows = self.session.lock_rows(spec, keys, exclusive=exclusive, guarding=True)
                self.base.guarded(spec, keys, exclusive=exclusive)
                return rows
            self._guard(spec, absent, exclusive=exclusive)
        return self.session.lock_rows(spec, keys, exclusive=exclusive)

    def _unguarded(self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool) -> list[Key]:
        """Those of `keys` that have to be guarded yet."""
        if not keys or not self.session.is_shared:
            return []
        return self.base.unguarded(spec, keys, exclusive=exclusive)

    def _guard(self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool) -> None:
        """Guard those of `keys` that are not guarded yet."""
        new = self._unguarded(spec, keys, exclusive=exclusive)
        if new:
            wanted = None if self.base.guards(spec) + len(new) > _GUARDS_MAX else new
            # Many keys are guarded by their table, and then exclusively.
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
    ) -> list[Any]:
        """Rows of a SELECT over the committed state with `dirty` laid over it; see `Session`."""
        return self.session.query(statement, tables, dirty, parameters)

    def changes(self, workspace: Rows) -> list[Change]:
        """Write set of a workspace against the committed rows."""
        with self.latch:
            return [
                Change(spec, key, committed[key], new)
                for spec, rows in workspace.items()
                for committed in (self.base.of(spec),)
                for key, new in rows.items()
            ]

    def has_read(self, spec: TableSpec, key: Key) -> bool:
        """Whether it has the row, or knows that there is none."""
        with self.latch:
            return key in self.base.of(spec)

    def forget_rows(self, spec: TableSpec, keys: Collection[Key]) -> None:
        """Read some rows anew. REQUIRES: no workspace of the hierarchy has one of them."""
        with self.latch:
            self.base.discard(spec, keys)

    def forget(self, *, locks: bool = False) -> None:
        """Read every row anew, because somebody else has used the flat transaction.

        REQUIRES: no workspace of the hierarchy has a version.

        Parameters
        ----------
        locks : bool
            Whether the server has gone back to a savepoint, so that locks are gone, too.
        """
        with self.latch:
            self.base.forget(locks=locks)
            if locks:
                self.session.recover()

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Keep the flat transaction usable if the server refuses something inside.

        For one child of the top-level transaction at a time. What was read inside is forgotten
        on an error, because the server gives up the locks.
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
        """Have the server accept what a child of the top-level transaction wrote.

        Where sessions write at the same time the versions are written now and become the base.
        Otherwise they are only tried, on top of those the child's parent has, because a session
        that has written keeps all others waiting.

        Raises
        ------
        ConstraintViolation, InvalidRow
            When the server refuses a row; see `undoing`.
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
                self.base.written(change.spec, change.key, change.new)
            child.clear()

    def commit(self, versions: Workspace) -> None:
        """Write `versions` and what is durable with it, and commit on the server.

        Raises
        ------
        ConstraintViolation, InvalidRow, SerializationConflict, ConnectionLost
            When the server refuses; nothing is written then.
        """
        if self.lending is not None:
            self.lending.close()
        with self.latch:
            changes = self.changes(versions.rows)
            self.session.confirm_absent(self.base.absent(but=versions.rows))
            self.session.commit(changes, versions.log, self.durable, lazily=self.run.lazily)
