"""Abort dependencies between live transactions, and causally dependent transactions.

```
  cause is live  ── reads, queries, locks, ─► like a child of the cause, on its connection;
                    new keys                  the rows seen are noted
  cause commits  ── its locks on the server are gone: the dependent locks the same rows and tables
                    on its own connection, and checks that the results are unchanged
  after that     ── like any other top-level transaction
```

The writes of the dependent stay in its own workspace throughout. (Saygin, Ulusoy, Chakravarthy,
sections 2.1 and 3.3.2.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from activedb.errors import (
    Deadlock,
    SerializationConflict,
    TransactionAborted,
    TransactionCancelled,
    TransactionStateError,
)
from activedb.store.session import Session
from activedb.store.sql import Key, LockedRows, Row, Tables, TableSpec, Unlocked
from activedb.transactions._hierarchy import Hierarchy, Workspace
from activedb.transactions._node import TransactionNode, current_transaction
from activedb.transactions._run import Run
from activedb.transactions._states import State
from activedb.transactions._threads import (
    Standstill,
    falls_asleep,
    is_anybody_stalled,
    wait_is_over,
)
from coupling import (
    Answer,
    Consequences,
    Dependency,
    DependencyCycle,
    DependencyGraph,
    DependencyKind,
)
from lockmgr import Deadlock as LockDeadlock
from lockmgr import EdgeKind, WaitCancelled

if TYPE_CHECKING:
    from activedb.transactions._forest import Forest

__all__ = ["CausalHierarchy", "Dependencies"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Scan:
    """Query that was answered through the cause, with its result."""

    statement: Any
    parameters: Mapping[str, Any] | None
    tables: Tables
    dirty: Mapping[TableSpec, Mapping[Key, Row | None]]
    locked: LockedRows | None
    rows: list[Any]


class CausalHierarchy(Hierarchy):
    """Hierarchy of a top-level transaction that causally depends on another transaction.

    Parameters
    ----------
    cause : TransactionNode
        The transaction in which the rule that runs here was triggered.
    heir : int
        Id of the transaction that decides the fate of the cause: the cause itself, or a superior
        to which it has committed.

    Attributes
    ----------
    cause : TransactionNode
        As given.
    ended : threading.Event
        Set when its top-level transaction has ended and released its locks.
    """

    def __init__(self, session: Session, run: Run, cause: TransactionNode, heir: int):
        super().__init__(session, run)
        self.asks_predicates = False
        self.is_parallel = True  # beside the cause
        self.cause = cause
        self.causes = (heir,)
        self.ended = threading.Event()
        self._seen: dict[TableSpec, dict[Key, Row | None]] = {}
        self._exclusive: dict[TableSpec, set[Key]] = {}
        self._brought: dict[TableSpec, set[Key]] = {}
        self._unwritten: dict[TableSpec, set[Key]] = {}
        # Hierarchies whose locks protect each row as read: this one, or those reading through it.
        self._askers: dict[TableSpec, dict[Key, set[Hierarchy]]] = {}
        self._tables: dict[TableSpec, None] = {}
        self._scans: list[_Scan] = []
        self._is_alone = False

    # -- reading, through the cause while it is live -----------------------------------------

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
        """Return rows as the cause sees them, locked on the server for its hierarchy."""
        self._note_asker(asker or self, spec, keys)
        with self._lender() as lender:
            if lender is None:
                return super().read(
                    spec, keys, exclusive=exclusive, inserting=inserting, asker=asker
                )
            self._bring(lender, spec, keys)
            base = lender.read(spec, keys, exclusive=exclusive, inserting=inserting, asker=self)
            return self._noted(spec, base, exclusive=exclusive)

    def read_free(
        self, spec: TableSpec, keys: Sequence[Key], *, asker: Hierarchy | None = None
    ) -> dict[Key, Row | None]:
        """Read exclusively without waiting; rows locked by other transactions are left out."""
        self._note_asker(asker or self, spec, keys)
        with self._lender() as lender:
            if lender is None:
                return super().read_free(spec, keys, asker=asker)
            self._bring(lender, spec, keys)
            return self._noted(spec, lender.read_free(spec, keys, asker=self), exclusive=True)

    def lock_table(self, spec: TableSpec) -> None:
        """Lock a whole table on the server, for the hierarchy of the cause while that is live."""
        with self._lender() as lender:
            if lender is None:
                super().lock_table(spec)
            else:
                lender.lock_table(spec)
                self._tables[spec] = None

    def query(
        self,
        statement: Any,
        tables: Tables,
        dirty: Mapping[TableSpec, Mapping[Key, Row | None]],
        parameters: Mapping[str, Any] | None = None,
        locked: LockedRows | None = None,
    ) -> list[Any]:
        """Return rows of a SELECT over the rows that the cause sees, overlaid with `dirty`."""
        with self._lender() as lender:
            if lender is None:
                return super().query(statement, tables, dirty, parameters, locked)
            seen = {spec: {**self.cause.dirty(spec), **rows} for spec, rows in dirty.items()}
            rows = lender.query(statement, tables, seen, parameters, locked)
            if dirty:  # else it reads no table, and no write can have changed its result
                self._scans.append(_Scan(statement, parameters, tables, dirty, locked, rows))
            return rows

    def shows_unwritten(self, spec: TableSpec, keys: Collection[Key]) -> bool:
        """Return whether a row was read as the cause, or a cause of that, has it in memory."""
        with self.latch:
            if not self._unwritten.get(spec, set()).isdisjoint(keys):
                return True
        return not self._is_alone and self.cause.hierarchy.shows_unwritten(spec, keys)

    def look_up(self, question: Callable[[Session], T]) -> T:
        """See `Hierarchy`."""
        with self._lender() as lender:
            return super().look_up(question) if lender is None else lender.look_up(question)

    def commit(self, versions: Workspace) -> None:
        """Commit on the server, after `Dependencies.await_leave` has allowed it; see `Hierarchy`.

        Raises
        ------
        SerializationConflict
            If a row or a query result has changed since it was read.
        """
        self._take_over()
        super().commit(versions)

    def leave(self) -> None:
        """Drop, on abort and before the locks are released, rows from the base of the cause.

        These are the rows that only this transaction has read. Without its locks no transaction
        protects them from writers. If the cause needs them, it reads them again.
        """
        above = self.cause.hierarchy
        for spec, keys in self._brought.items():
            above.forget_rows(spec, keys)
        with self.latch:
            asked = {spec: list(keys) for spec, keys in self._askers.items()}
        above.take_back(self, asked)

    def take_back(self, asker: Hierarchy, asked: Mapping[TableSpec, Collection[Key]]) -> None:
        """Remove `asker` from rows; the take-over does not check rows without askers."""
        freed: dict[TableSpec, list[Key]] = {}
        with self.latch:
            for spec, keys in asked.items():
                askers = self._askers.get(spec, {})
                for key in keys:
                    of_key = askers.get(key, set())
                    of_key.discard(asker)
                    if not of_key and askers.pop(key, None) is not None:
                        freed.setdefault(spec, []).append(key)
            for spec, keys in freed.items():
                self.base.of(spec).discard(keys)
                for key in keys:
                    self._seen.get(spec, {}).pop(key, None)
                    self._exclusive.get(spec, set()).discard(key)
                    self._brought.get(spec, set()).discard(key)
        if freed and not self._is_alone:
            self.cause.hierarchy.take_back(self, freed)

    def has_read(self, spec: TableSpec, key: Key) -> bool:
        """Return whether this hierarchy, or the one it reads through, has read the row."""
        if super().has_read(spec, key):
            return True
        return not self._is_alone and self.cause.hierarchy.has_read(spec, key)

    def forget_rows(self, spec: TableSpec, keys: Collection[Key]) -> None:
        """Forget rows, here and in the hierarchy that this one reads through."""
        super().forget_rows(spec, keys)
        if not self._is_alone:
            self.cause.hierarchy.forget_rows(spec, keys)

    # -- inside ----------------------------------------------------------------------------

    @contextmanager
    def _lender(self) -> Iterator[Hierarchy | None]:
        """Yield the hierarchy of the cause, kept from committing; None for our own connection."""
        if not self._is_alone:
            above = self.cause.hierarchy
            assert above.lending is not None, "set before another transaction can depend on it"
            with above.lending.use() as is_open:
                if is_open:
                    yield above
                    return
            self._take_over()
        yield None

    def _note_asker(self, asker: Hierarchy, spec: TableSpec, keys: Sequence[Key]) -> None:
        with self.latch:
            askers = self._askers.setdefault(spec, {})
            for key in keys:
                askers.setdefault(key, set()).add(asker)

    def _bring(self, lender: Hierarchy, spec: TableSpec, keys: Sequence[Key]) -> None:
        """Note the rows that the lender has not read itself; they are locked for this hierarchy."""
        new = [key for key in keys if not lender.has_read(spec, key)]
        if new:
            with self.latch:
                self._brought.setdefault(spec, set()).update(new)

    def _noted(
        self, spec: TableSpec, base: Mapping[Key, Row | None], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        found = {key: self.cause.version(spec, key, row) for key, row in base.items()}
        unwritten = [key for key, row in found.items() if row is not base[key]]
        with self.latch:
            seen = self._seen.setdefault(spec, {})
            for key, row in found.items():
                seen.setdefault(key, row)  # what it saw first must be true at the take-over
            if unwritten:
                self._unwritten.setdefault(spec, set()).update(unwritten)
            if exclusive:
                self._exclusive.setdefault(spec, set()).update(found)
        return found

    def _take_over(self) -> None:
        """Lock on the server, after the commit of the cause, all that was locked through it.

        Another process may have changed rows between that commit and this call.

        Raises
        ------
        TransactionAborted
            If the cause has aborted.
        SerializationConflict
            If a row or a query result has changed since it was read.
        """
        self.cause.forest.dependencies.await_commit(self.cause)
        with self.latch:
            if self._is_alone:
                return
            for spec in self._tables:
                super().lock_table(spec)
            for spec, seen in self._seen.items():
                strong = self._exclusive.get(spec, set())
                for exclusive in (True, False):
                    keys = spec.in_order([key for key in seen if (key in strong) is exclusive])
                    found = super().read(spec, keys, exclusive=exclusive) if keys else {}
                    self._compare(spec, found, {key: seen[key] for key in keys})
            for scan in self._scans:
                try:
                    rows = super().query(
                        scan.statement, scan.tables, scan.dirty, scan.parameters, scan.locked
                    )
                except Unlocked as more:  # its values differ each time it is sent
                    raise _changed("the result of a query") from more
                now, before = [*map(_plain, rows)], [*map(_plain, scan.rows)]
                if not _is_ordered(scan.statement):
                    now, before = sorted(now, key=repr), sorted(before, key=repr)
                if not _is_same(now, before):
                    raise _changed("the result of a query")
            self._is_alone = True
            self._seen.clear()
            self._scans.clear()

    def _compare(
        self, spec: TableSpec, found: Mapping[Key, Row | None], seen: Mapping[Key, Row | None]
    ) -> None:
        """Raise `SerializationConflict` if rows have changed since they were seen.

        What the cause had in memory is compared as the server shows it: with computed columns, text
        padded, numbers rounded.
        """
        unequal = {key: row for key, row in seen.items() if not _is_same(found[key], row)}
        if not unequal:
            return
        keys = [key[0] if len(key) == 1 else key for key in unequal]
        tables = self.cause.forest.tables
        rows = super().query(spec.plain_select, tables, {spec: unequal}, {"keys": keys})
        shown = {spec.key_of(row): row for row in map(spec.row, rows)}
        for key in unequal:
            if not _is_same(found[key], shown.get(key)):
                raise _changed(f"row {key!r} of {spec.name}")


def _is_ordered(statement: Any) -> bool:
    """Return whether a statement says in which order its rows come, or may do so, as text."""
    return bool(getattr(statement, "_order_by_clauses", True))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether values are equal; NaN equals itself, as it does at the server."""
    if one == other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one != one and other != other)


def _plain(row: Any) -> Any:
    """Return a row in a comparable form; objects of mapped classes by their loaded attributes."""
    values = []
    for value in row:
        loaded = getattr(value, "__dict__", None)
        is_mapped = loaded is not None and "_sa_instance_state" in loaded
        values.append(
            {name: v for name, v in loaded.items() if name != "_sa_instance_state"}
            if is_mapped and loaded is not None
            else value
        )
    return values


def _changed(what: str) -> SerializationConflict:
    return SerializationConflict(
        f"{what} has changed since a causally dependent transaction saw it; retry the transaction"
    )


# -- abort dependencies between live transactions, and the waits and aborts that follow from them


class Dependencies:
    """Dependency graph of one forest, with its consequences.

    A transaction is in the graph, with its superiors, from its first dependency to its end. The
    forest itself handles the relations between parents and children.

    The waits are also edges of the lock manager's wait-for graph, so that the deadlock detector
    sees them. (Saygin, Ulusoy, Chakravarthy, sections 3.3.2 and 4.2.2.)

    Attributes
    ----------
    latch : threading.RLock
        Guards the graph. Taken before the lock manager's latch, after no other. A transaction in
        the graph takes it before it passes on its locks; see `pinned`.
    """

    def __init__(self, forest: Forest):
        self.latch = threading.RLock()
        self._forest = forest
        self._graph: DependencyGraph[int] = DependencyGraph()
        self.nodes: dict[int, TransactionNode] = {}
        self._causal: dict[int, CausalHierarchy] = {}
        self._waiting: dict[int, TransactionNode] = {}
        self._is_closed = False

    def depend(self, dependent: TransactionNode, on: TransactionNode) -> None:
        """Add an abort dependency: `dependent` aborts if `on` does, and commits after it.

        If `on` has committed, the dependency is on the superior that has inherited from it. If all
        superiors have committed, too, no dependency is added.

        O(depth of both), if no transaction depends on the dependent yet.

        Raises
        ------
        TransactionAborted
            If `on`, or one of these superiors, has aborted.
        TransactionStateError
            If the dependency would close a cycle of transactions that wait for each other's ends.
        """
        with self.latch:
            heir = self.pinned(on)
            if heir is None or heir in dependent.line[1:]:
                return  # it has committed, or shares the fate of a common superior
            self._enter(dependent)
            try:
                self._graph.depend(dependent.id, DependencyKind.AD, heir.id)
            except DependencyCycle as error:
                raise TransactionStateError(
                    f"{dependent.path} cannot depend on {on.path}: {self._told(error.cycle)}"
                ) from error

    def pinned(self, node: TransactionNode) -> TransactionNode | None:
        """Return the heir as `heir` does; it does not pass on its locks while the latch is held.

        REQUIRES: the latch.
        """
        while True:
            heir = self.heir(node)
            if heir is None:
                return None
            is_new = heir.id not in self.nodes
            self._enter(heir)
            if not heir.state.is_final:
                self._forest.enrol(heir)
                return heir  # from now on it takes the latch when it ends
            if is_new:
                self._take_out(heir)  # it may have ended without the latch

    def heir(self, node: TransactionNode) -> TransactionNode | None:
        """Return the transaction that decides the fate of `node`; None if all have committed.

        This is `node` itself, or the superior to which it has committed.

        Raises
        ------
        TransactionAborted
            If one of these transactions has aborted.
        """
        found: TransactionNode | None = node
        while found is not None:
            if found.state is State.ABORTED:
                raise _broken(f"a transaction triggered in {node.path} depends on it", found)
            if found.state is not State.COMMITTED:
                return found
            found = found.parent
        return None

    def await_leave(self, node: TransactionNode) -> None:
        """Wait until the dependencies of `node`, one of `nodes`, allow its commit.

        Raises
        ------
        TransactionAborted
            If a dependency forces it to abort.
        Deadlock
            If it is chosen as a deadlock victim.
        """
        while True:
            with self.latch:
                verdict = self._graph.commit(node.id)
            if verdict.answer is Answer.GO:
                break
            on = verdict.reasons[0].on
            if verdict.answer is Answer.ABORT:
                raise _broken(f"{node.path} depends on transaction {on}", None)
            self._await_end(node, on)
        if node.id in self._causal:
            # The cause has ended, but releases its locks a moment later; wait for that, too.
            self._forest.locks.await_causes(node.id)

    def await_commit(self, cause: TransactionNode) -> None:
        """Block the current transaction until `cause`, and all its superiors, have committed.

        Raises the errors of `await_leave`.
        """
        node = current_transaction()
        assert node is not None
        while True:
            with self.latch:
                heir = self.heir(cause)
            if heir is None:
                return
            self._forest.enrol(heir)
            self._await_end(node, heir.id)

    def _await_end(self, node: TransactionNode, of: int) -> None:
        forest = self._forest
        self._waiting[node.id] = node
        try:
            if self._is_closed:
                raise _closed(node)
            with forest.pool.resting():
                if not (node.is_enrolled and node.is_prepared):
                    forest.prepare(node)
                on_sleep = partial(falls_asleep, node)
                forest.locks.await_end(node.id, of, on_wait=node.on_wait, on_sleep=on_sleep)
        except Standstill as stop:
            raise stop.error_of(node) from None
        except LockDeadlock as error:
            raise forest.deadlock(node, error) from error
        except WaitCancelled:
            raise node.rollback_error() from None
        finally:
            if is_anybody_stalled():
                wait_is_over(node)
            del self._waiting[node.id]

    def ending(self, node: TransactionNode) -> None:
        """Notify the dependents of `node`, which has committed or aborted but still has its locks.

        There are none unless it is one of `nodes`. After an abort, returns only when all causal
        dependents that may use its locks have ended.
        """
        with self.latch:
            if node.id not in self.nodes:
                return
            bound = [
                self.nodes[dependency.dependent] for dependency in self._take_out(node).must_abort
            ]
        for dependent in bound:
            dependent.mark_rollback_only(_broken(f"{dependent.path} depends on {node.path}", node))
        if node.state is State.ABORTED:
            self._await_causal_inferiors(node)

    def began(self, dependent: TransactionNode, heir: TransactionNode) -> None:
        """Add the causal dependency of `dependent`, just begun, on `heir`.

        An abort of `heir` waits for the abort of `dependent`. REQUIRES: the latch, and `heir` was
        pinned under it.
        """
        assert isinstance(dependent.hierarchy, CausalHierarchy)
        self._causal[dependent.id] = dependent.hierarchy
        self._enter(dependent)
        self._graph.depend(dependent.id, DependencyKind.AD, heir.id)

    def ended(self, dependent: TransactionNode) -> None:
        """Note that a causally dependent transaction has ended and released its locks."""
        assert isinstance(dependent.hierarchy, CausalHierarchy)
        with self.latch:
            self._causal.pop(dependent.id, None)
        dependent.hierarchy.ended.set()

    def _await_causal_inferiors(self, node: TransactionNode) -> None:
        """Wait for the causal dependents that use the locks of `node`, which has aborted.

        All of them are rollback-only, or are about to end anyway.
        """
        with self.latch:
            found = [h for h in self._causal.values() if node in h.cause.line]
        if found and node.parent is None:
            node.hierarchy.session.cancel()  # a dependent may be using its connection
        interrupt: BaseException | None = None
        for hierarchy in found:
            while not hierarchy.ended.is_set():
                try:
                    hierarchy.ended.wait()
                except BaseException as error:
                    interrupt = error
        if interrupt is not None:
            raise interrupt

    def make_room(self, node: TransactionNode, error: LockDeadlock | Standstill) -> bool:
        """Break a cycle by aborting dependents that began at their own risk; False if none did.

        Such a dependent is a causally dependent transaction, or one that waits for the end of a
        sibling. It aborts in place of `node`, whose request has closed the cycle.
        """
        edges = error.report.cycle
        waiters = {edge.waiter for edge in edges}
        with self.latch:
            found: list[TransactionNode] = [
                other
                for other in map(self.nodes.get, self._causal)
                if other is not None
                and other.hierarchy is not node.hierarchy
                and waiters & other.hierarchy.members
            ]
        for edge in edges:
            waiter = self._waiting.get(edge.waiter)
            if edge.kind is EdgeKind.DEPENDENCY and waiter is not None and waiter is not node:
                found.append(waiter)
        for other in found:
            deadlock = Deadlock(
                f"deadlock, and {other.path} is the victim, because it depends on a transaction "
                f"that has not ended: {error}"
            )
            deadlock.exhausted = other.parent is None
            if other.mark_rollback_only(deadlock):
                self._forest.counters.add("dependents_rolled_back")
                if other.observer is not None:
                    other.observer.deadlocked(other, error.report)
        return bool(found)

    def close(self) -> None:
        """Abort all transactions that wait for the end of a transaction that was left open."""
        self._is_closed = True
        for node in list(self._waiting.values()):
            node.mark_rollback_only(_closed(node))

    # -- inside; REQUIRES: the latch ---------------------------------------------------------

    def _enter(self, node: TransactionNode) -> None:
        line: list[TransactionNode] = []
        found: TransactionNode | None = node
        while found is not None and found.id not in self.nodes:
            line.append(found)
            found = found.parent
        for node in reversed(line):
            self._graph.add(node.id, parent=None if node.parent is None else node.parent.id)
            self._graph.begin(node.id)
            self.nodes[node.id] = node

    def _take_out(self, node: TransactionNode) -> Consequences[int]:
        """Remove a transaction that has ended from the graph; return the consequences."""
        del self.nodes[node.id]
        if node.state is State.COMMITTED:
            self._graph.commit(node.id)
            return self._graph.committed(node.id)
        return self._graph.aborted(node.id)

    def _told(self, cycle: tuple[Dependency[int], ...]) -> str:
        return "; ".join(
            f"{self.nodes[edge.dependent].path} waits for the end of {self.nodes[edge.on].path}"
            for edge in cycle
        )


def _closed(node: TransactionNode) -> TransactionCancelled:
    return TransactionCancelled(
        f"the database was closed while {node.path} waited for the end of another transaction"
    )


def _broken(what: str, ended: TransactionNode | None) -> TransactionAborted:
    which = "that one" if ended is None else ended.path
    return TransactionAborted(
        f"{what}, and {which} aborted", transaction=0 if ended is None else ended.id
    )
