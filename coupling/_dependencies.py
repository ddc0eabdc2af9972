"""Dependencies between live transactions: permission to proceed, waits, and required aborts.

::

    DependencyError
    ├── DependencyCycle        no transaction in the cycle could ever commit
    └── DependencyUsageError   a call that is invalid in this state: a mistake in the caller
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, Generic, TypeVar

__all__ = [
    "Answer",
    "Consequences",
    "Dependency",
    "DependencyCycle",
    "DependencyError",
    "DependencyGraph",
    "DependencyKind",
    "DependencyUsageError",
    "Verdict",
]

T = TypeVar("T", bound=Hashable)


# -- kinds of dependency between two transactions, in one table that all other code consults -------


@dataclass(frozen=True, slots=True)
class _DependencyMeaning:
    holds_begin: bool
    """The dependent may not begin while the other lives."""
    holds_commit: bool
    """The dependent may not commit while the other lives."""
    aborts_after_commit: bool
    """The dependent must abort once the other has committed."""
    aborts_after_abort: bool
    """The dependent must abort once the other has aborted."""


class DependencyKind(StrEnum):
    """Kind of dependency of transaction *d* on transaction *t*, read "d AD t".

    (Saygin, Ulusoy, Chakravarthy, section 3.3.) ``→`` is "before", ``H`` the history.

    ==== ========== ============================================ ============= =================
    kind name       formula                                      d waits to    d must abort when
    ==== ========== ============================================ ============= =================
    CD   commit     Commit d ∈ H ⇒ (Commit t ∈ H ⇒               commit
                    Commit t → Commit d)
    AD   abort      Abort t ∈ H ⇒ Abort d ∈ H                    commit        t aborts
    WD   weak abort Abort t ∈ H ⇒ (¬(Commit d → Abort t) ⇒                     t aborts
                    Abort d ∈ H)
    ED   exclusion  Commit t ∈ H ⇒ Abort d ∈ H                   commit        t commits
    SQD  sequential Begin d ∈ H ⇒ (Commit t → Begin d)           begin         t aborts
    ==== ========== ============================================ ============= =================

    The waits follow from the formulas: if d acted too early, a later, free choice of t could be
    a violation that d could not undo.

    Notes
    -----
    The paper's formula for SQD has the two transactions in the opposite order to its axiom 22 and
    its text, "a child transaction cannot start its execution until its parent commits". This table
    follows axiom 22 and the text.
    """

    CD = "CD"
    AD = "AD"
    WD = "WD"
    ED = "ED"
    SQD = "SQD"

    @property
    def holds_begin(self) -> bool:
        """True if the dependent may not begin while the other transaction is live."""
        return _MEANINGS[self].holds_begin

    @property
    def holds_commit(self) -> bool:
        """True if the dependent may not commit while the other transaction is live."""
        return _MEANINGS[self].holds_commit

    @property
    def waits(self) -> bool:
        """True if the dependent cannot commit before the other transaction has ended."""
        return self.holds_begin or self.holds_commit

    def aborts_dependent(self, *, committed: bool) -> bool:
        """Return whether the dependent must abort after the other's commit or abort."""
        meaning = _MEANINGS[self]
        return meaning.aborts_after_commit if committed else meaning.aborts_after_abort


_MEANINGS: Final = {
    DependencyKind.CD: _DependencyMeaning(False, True, False, False),
    DependencyKind.AD: _DependencyMeaning(False, True, False, True),
    DependencyKind.WD: _DependencyMeaning(False, False, False, True),
    DependencyKind.ED: _DependencyMeaning(False, True, True, False),
    DependencyKind.SQD: _DependencyMeaning(True, False, False, True),
}


@dataclass(frozen=True, slots=True)
class Dependency(Generic[T]):
    """Edge of the graph: `dependent` depends on `on`."""

    dependent: T
    kind: DependencyKind
    on: T

    def __str__(self) -> str:
        return f"{self.dependent} {self.kind} {self.on}"


class Answer(StrEnum):
    """Outcome of an attempt to begin or to commit."""

    GO = "go"
    """The transaction may proceed now."""
    WAIT = "wait"
    """The transaction must wait; ``may_begin`` or ``may_commit`` of a later end will name it."""
    ABORT = "abort"
    """The transaction must abort."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """Answer to an attempt, and the dependencies that caused it, oldest first.

    ``reasons`` is empty for `Answer.GO`. Otherwise its ``on`` are the transactions to wait for, or
    the ones whose end forces the abort.
    """

    answer: Answer
    reasons: tuple[Dependency[T], ...] = ()


@dataclass(frozen=True, slots=True)
class Consequences(Generic[T]):
    """Consequences of the end of a transaction for its dependents.

    Each tuple is in the order in which the dependencies were added to the ended transaction.

    Attributes
    ----------
    must_abort : tuple of Dependency
        Dependencies whose dependents must abort now. No dependent is named twice, in this or a
        later reply.
    may_begin : tuple
        Transactions that waited to begin, and have begun now.
    may_commit : tuple
        Transactions that waited to commit, and may do so now.
    handed_over : tuple of Dependency
        Dependencies on the ended subtransaction, now on its parent. For waiting dependents, they
        are new edges for a deadlock detector.
    """

    must_abort: tuple[Dependency[T], ...] = ()
    may_begin: tuple[T, ...] = ()
    may_commit: tuple[T, ...] = ()
    handed_over: tuple[Dependency[T], ...] = ()


class DependencyError(Exception):
    """Base class of the errors that the dependency graph raises; the graph is unchanged."""


class DependencyCycle(DependencyError):
    """The dependency would close a cycle of transactions that wait for each other's end.

    Attributes
    ----------
    cycle : tuple of Dependency
        Dependencies of the cycle, beginning with the refused one. The ``on`` of each, or a
        superior up to which its commit would have to come, is the ``dependent`` of the next; the
        last one leads to the first.
    """

    def __init__(self, cycle: Iterable[Dependency[Any]]):
        self.cycle = tuple(cycle)
        refused, *others = self.cycle
        super().__init__(
            f"{refused} would close a cycle of transactions that wait for each other's end: "
            + ", ".join(str(edge) for edge in others)
        )


class DependencyUsageError(DependencyError):
    """The call is invalid in the present state of the transactions."""


class Phase(Enum):
    NEW = "has not begun"
    BEGINNING = "waits to begin"
    ACTIVE = "is active"
    COMMITTING = "waits to commit"
    LEAVING = "may commit"


class DependencyNode(Generic[T]):
    """A live transaction."""

    __slots__ = (
        "begin_held",
        "commit_held",
        "dependents",
        "name",
        "needs",
        "parent",
        "phase",
        "reasons",
    )

    def __init__(self, name: T, parent: DependencyNode[T] | None):
        self.name = name
        self.parent = parent
        self.phase = Phase.NEW
        self.needs: dict[DependencyEdge[T], None] = {}
        self.dependents: dict[tuple[T, DependencyKind], DependencyEdge[T]] = {}
        self.begin_held = self.commit_held = 0  # number of `needs` that hold
        self.reasons: list[Dependency[T]] = []  # reasons why it must abort

    def line(self) -> Iterator[DependencyNode[T]]:
        """Yield the transaction and its superiors, upwards."""
        node: DependencyNode[T] | None = self
        while node is not None:
            yield node
            node = node.parent


class DependencyEdge(Generic[T]):
    """A dependency; at a commit of `on` it moves to the parent of `on`, up to `last`."""

    __slots__ = ("dependent", "kind", "last", "on")

    def __init__(self, dependent: DependencyNode[T], kind: DependencyKind, on: DependencyNode[T]):
        self.dependent = dependent
        self.kind = kind
        self.on = on
        over = {id(node) for node in dependent.line()}
        self.last = on
        while self.last.parent is not None and id(self.last.parent) not in over:
            self.last = self.last.parent

    def shown(self) -> Dependency[T]:
        return Dependency(self.dependent.name, self.kind, self.on.name)

    def line(self) -> Iterator[DependencyNode[T]]:
        """Yield the transactions for whose end the dependent waits, now or after handing over.

        These are `on` and its superiors up to `last`.
        """
        for node in self.on.line():
            yield node
            if node is self.last or node.reasons:  # no handing over after an abort
                return


def holding(node: DependencyNode[T]) -> Iterator[DependencyEdge[T]]:
    """Yield the edges that block a waiting transaction."""
    for edge in node.needs:
        if edge.kind.holds_begin if node.phase is Phase.BEGINNING else edge.kind.holds_commit:
            yield edge


def tie(edge: DependencyEdge[T]) -> None:
    dependent = edge.dependent
    edge.on.dependents[dependent.name, edge.kind] = edge
    dependent.needs[edge] = None
    dependent.begin_held += edge.kind.holds_begin
    dependent.commit_held += edge.kind.holds_commit


def untie(edge: DependencyEdge[T]) -> None:
    """Remove an edge from its dependent; `on`, whose edges are discarded, has ended."""
    dependent = edge.dependent
    del dependent.needs[edge]
    dependent.begin_held -= edge.kind.holds_begin
    dependent.commit_held -= edge.kind.holds_commit


def hand_over(edge: DependencyEdge[T]) -> bool:
    """Move an edge from a committed subtransaction to its parent.

    Return False if the parent already has such an edge.
    """
    parent = edge.on.parent
    assert parent is not None, "an edge is handed over up to `last`, which is a superior"
    key = (edge.dependent.name, edge.kind)
    if key in parent.dependents:
        untie(edge)  # the other edge holds the dependent for as long and for the same reason
        return False
    edge.on = parent
    parent.dependents[key] = edge
    return True


# -- detection of cycles of transactions that would wait for each other's end ----------------------


def refuse_cycle(new: DependencyEdge[T]) -> None:
    """Raise `DependencyCycle` if an edge would make transactions wait for each other in a cycle.

    The search is breadth first, so the cycle reported is a shortest one. A live child depends on
    its parent, so a transaction without dependents has no live children, and no path leads to it.
    """
    start = new.dependent
    if start.reasons or not start.dependents:
        return  # it will never wait, or no transaction waits for it
    came_by: dict[DependencyNode[T], DependencyEdge[T]] = {}
    seen = dict.fromkeys(new.line())
    queue = list(seen)
    for node in queue:
        if node is start:
            path = []
            while node in came_by:
                path.append(came_by[node])
                node = came_by[node].dependent
            raise DependencyCycle(edge.shown() for edge in (new, *reversed(path)))
        if node.reasons:
            continue  # it will never wait, as it can only abort
        for edge in node.needs:
            if not edge.kind.waits:
                continue
            for follower in edge.line():
                if follower not in seen:
                    seen[follower] = None
                    came_by[follower] = edge
                    queue.append(follower)


_HAS_BEGUN: Final = (Phase.ACTIVE, Phase.COMMITTING, Phase.LEAVING)
_MAY_HAVE_CHILDREN: Final = (Phase.ACTIVE, Phase.COMMITTING)


class DependencyGraph(Generic[T]):
    """Dependencies between live transactions, and their consequences.

    A transaction is any hashable name. It is `add`-ed, attempts to `begin` and to `commit`, and is
    removed when its end is reported by `committed` or `aborted`. A child automatically has the two
    dependencies of a subtransaction: it depends on its parent weakly (WD), and its parent depends
    on its commit (CD).

    A dependency on a subtransaction extends to its superiors: at its commit the dependency is
    handed over to its parent. It ends only with the top-level transaction, or below the first
    common superior of both (whose abort undoes both, so that no other outcome is possible).

    There are no threads and no clock; the caller must serialise calls. A call that raises has
    changed nothing.

    Notes
    -----
    `begin`, `commit`, `committed` and `aborted` are O(dependencies of that transaction), `add` is
    O(depth). `depend` is O(depth of both) if no transaction depends on the dependent yet, else at
    most O(graph).
    """

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: dict[T, DependencyNode[T]] = {}

    # -- queries ---------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of live transactions."""
        return len(self._nodes)

    def __contains__(self, name: object) -> bool:
        """Return whether a transaction is in the graph: added, and not ended."""
        return name in self._nodes

    def dependencies(self) -> tuple[Dependency[T], ...]:
        """Return all dependencies in force, by dependent, oldest first. O(graph)."""
        return tuple(edge.shown() for node in self._nodes.values() for edge in node.needs)

    def waits(self) -> tuple[Dependency[T], ...]:
        """Return the dependencies that cause waits now, for a deadlock detector. O(graph)."""
        return tuple(edge for name in self._nodes for edge in self.waits_of(name))

    def waits_of(self, name: T) -> tuple[Dependency[T], ...]:
        """Return the dependencies that block this transaction now; empty if it does not wait."""
        node = self._live(name)
        if node.reasons or node.phase not in (Phase.BEGINNING, Phase.COMMITTING):
            return ()
        return tuple(edge.shown() for edge in holding(node))

    # -- additions -------------------------------------------------------------------------

    def add(self, name: T, *, parent: T | None = None) -> None:
        """Add a transaction that has not begun yet; with `parent`, a subtransaction.

        Raises
        ------
        DependencyUsageError
            If a live transaction has the name, or the parent is not live, has not begun or has
            been allowed to commit.
        """
        if name in self._nodes:
            raise DependencyUsageError(f"transaction {name} is in the graph already")
        over = None if parent is None else self._live(parent)
        if over is not None and over.phase not in _MAY_HAVE_CHILDREN:
            raise DependencyUsageError(
                f"transaction {parent} {over.phase.value}: {name} cannot become its child"
            )
        node = self._nodes[name] = DependencyNode(name, over)
        if over is not None:
            tie(DependencyEdge(node, DependencyKind.WD, over))
            tie(DependencyEdge(over, DependencyKind.CD, node))

    def depend(self, dependent: T, kind: DependencyKind, on: T) -> None:
        """Make `dependent` depend on `on`; do nothing if it already does.

        Raises
        ------
        DependencyCycle
            If several transactions would have to wait for each other's end in a cycle.
        DependencyUsageError
            If one of the two is not live, if they are the same, or if it is too late: the
            dependent has begun (for SQD) or has been allowed to commit.
        """
        below, above = self._live(dependent), self._live(on)
        if below is above:
            raise DependencyUsageError(f"transaction {dependent} cannot depend on itself")
        late = below.phase is Phase.LEAVING or (kind.holds_begin and below.phase in _HAS_BEGUN)
        if late:
            raise DependencyUsageError(
                f"transaction {dependent} {below.phase.value}: too late for {kind} on {on}"
            )
        if (dependent, kind) in above.dependents:
            return
        edge = DependencyEdge(below, kind, above)
        if kind.waits:
            refuse_cycle(edge)
        tie(edge)

    # -- attempts --------------------------------------------------------------------------

    def begin(self, name: T) -> Verdict[T]:
        """Attempt to begin; after `Answer.GO` the transaction is active.

        Raises
        ------
        DependencyUsageError
            If the transaction is not live, or has begun before.
        """
        node = self._live(name)
        if node.phase in _HAS_BEGUN:
            raise DependencyUsageError(f"transaction {name} has begun before")
        return _attempt(node, waiting=Phase.BEGINNING, done=Phase.ACTIVE, held=node.begin_held)

    def commit(self, name: T) -> Verdict[T]:
        """Attempt to commit; after `Answer.GO` the caller commits and then reports `committed`.

        Until it reports, the end of another transaction may still force an abort (WD).

        Raises
        ------
        DependencyUsageError
            If the transaction is not live, or has not begun.
        """
        node = self._live(name)
        if node.phase not in _HAS_BEGUN:
            raise DependencyUsageError(f"transaction {name} {node.phase.value}: it cannot commit")
        return _attempt(node, waiting=Phase.COMMITTING, done=Phase.LEAVING, held=node.commit_held)

    # -- ends ------------------------------------------------------------------------------

    def committed(self, name: T) -> Consequences[T]:
        """Record a commit that `commit` or ``may_commit`` has allowed.

        Raises
        ------
        DependencyUsageError
            If the transaction is not live, was not allowed to commit, or must abort.
        """
        node = self._live(name)
        if node.reasons:
            raise DependencyUsageError(f"transaction {name} must abort: {node.reasons[0]}")
        if node.phase is not Phase.LEAVING:
            raise DependencyUsageError(f"transaction {name} {node.phase.value}: ask to commit")
        return self._end(node, committed=True)

    def aborted(self, name: T) -> Consequences[T]:
        """Record an abort. An abort never waits, in any state before the end.

        Raises
        ------
        DependencyUsageError
            If the transaction is not live.
        """
        return self._end(self._live(name), committed=False)

    # -- internals -------------------------------------------------------------------------

    def _live(self, name: T) -> DependencyNode[T]:
        node = self._nodes.get(name)
        if node is None:
            raise DependencyUsageError(
                f"transaction {name} is not in the graph: it was never added, or has ended"
            )
        return node

    def _end(self, node: DependencyNode[T], *, committed: bool) -> Consequences[T]:
        del self._nodes[node.name]
        for edge in node.needs:
            del edge.on.dependents[node.name, edge.kind]
        must_abort, handed_over = [], []
        touched: dict[DependencyNode[T], None] = {}
        for edge in node.dependents.values():
            dependent = edge.dependent
            if committed and edge.last is not node:
                if hand_over(edge):
                    handed_over.append(edge.shown())
                continue
            shown = edge.shown()
            untie(edge)
            touched[dependent] = None
            if edge.kind.aborts_dependent(committed=committed):
                if not dependent.reasons:
                    must_abort.append(shown)
                dependent.reasons.append(shown)
        may_begin, may_commit = [], []
        for dependent in touched:
            if dependent.reasons:
                continue
            if dependent.phase is Phase.BEGINNING and not dependent.begin_held:
                dependent.phase = Phase.ACTIVE
                may_begin.append(dependent.name)
            elif dependent.phase is Phase.COMMITTING and not dependent.commit_held:
                dependent.phase = Phase.LEAVING
                may_commit.append(dependent.name)
        return Consequences(
            tuple(must_abort), tuple(may_begin), tuple(may_commit), tuple(handed_over)
        )


def _attempt(node: DependencyNode[T], *, waiting: Phase, done: Phase, held: int) -> Verdict[T]:
    if node.reasons:
        return Verdict(Answer.ABORT, tuple(node.reasons))
    node.phase = waiting if held else done
    if held:
        return Verdict(Answer.WAIT, tuple(edge.shown() for edge in holding(node)))
    return Verdict(Answer.GO)
