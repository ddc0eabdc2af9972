"""Auditor of a history against the 30 axioms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from coupling.acta._axioms import AxiomViolation, check_lives, check_order
from coupling.acta._history import (
    History,
    ObjectOperation,
    RecordedTransaction,
    RecordedTransactions,
    SpawnMode,
)
from coupling.acta._responsibility import Responsibility

__all__ = [
    "audit",
    "check_serial",
]


def audit(history: History) -> list[AxiomViolation]:
    """Check a history against the axioms of rule execution.

    Returns
    -------
    list of AxiomViolation
        By last position, which is the order in which they become apparent; empty if the history
        is legal.

    Notes
    -----
    O(n log n + n · depth · length of paths) for a legal history of n events; one that breaks
    axioms 9 and 17 throughout may cost more. The reading of each axiom is in ``README.md`` of this
    folder. (Saygin, Ulusoy, Chakravarthy, section 3.3.)
    """
    lives = RecordedTransactions(history)
    responsibility = Responsibility(history, lives)
    found = [
        *check_lives(history, lives),
        *responsibility.check(),
        *check_serial(history, lives, responsibility.aborted_at),
        *check_dependencies(lives),
        *check_order(lives),
    ]
    return sorted(found, key=lambda violation: (violation.positions[-1:], violation.axiom))


# -- axioms 19 and 21 to 23: commit, abort, sequential and exclusion dependencies ------------------


def check_dependencies(lives: RecordedTransactions) -> Iterator[AxiomViolation]:
    """Yield the violations of axioms 19 and 21 to 23. O(transactions · depth)."""
    for child in lives.of.values():
        for position, spawn in child.spawns:
            spawning = lives.of[spawn.by]
            if spawn.mode.is_child:
                yield from _child(position, child, spawning)
            elif child.own:
                if spawn.mode is SpawnMode.CAUSAL:
                    yield from _causal(lives, child, spawning)
                elif spawn.mode is SpawnMode.SEQUENTIAL:
                    yield from _sequential(lives, child, spawning)
                elif spawn.mode is SpawnMode.EXCLUSIVE:
                    yield from _exclusive(lives, child, spawning)


def _child(
    position: int, child: RecordedTransaction, parent: RecordedTransaction
) -> Iterator[AxiomViolation]:
    if parent.aborts and not child.aborts:
        aborted = parent.aborts[0]
        if not child.commits or child.commits[0] > aborted:
            yield AxiomViolation(
                19,
                child.id,
                f"transaction {parent.id} aborts, and its child {child.id}, which has not "
                f"committed before, does not abort",
                (*sorted((aborted, *child.commits[:1])),),
            )
    if parent.commits:
        committed = parent.commits[0]
        ends = child.ends
        if not ends or ends[0] >= committed:
            yield AxiomViolation(
                19,
                child.id,
                f"transaction {parent.id} commits before its child {child.id} has ended",
                (position, committed, *ends[:1])
                if position < committed
                else (committed, position, *ends[:1]),
            )


def _causal(
    lives: RecordedTransactions, child: RecordedTransaction, spawning: RecordedTransaction
) -> Iterator[AxiomViolation]:
    aborted = lives.undone_at(spawning.id)
    if aborted is not None and not child.aborts:
        yield AxiomViolation(
            21,
            child.id,
            f"transaction {spawning.id} is aborted, and {child.id}, which causally depends on it, "
            f"does not abort",
            (*sorted((aborted, *child.commits[:1])),),
        )


def _sequential(
    lives: RecordedTransactions, child: RecordedTransaction, spawning: RecordedTransaction
) -> Iterator[AxiomViolation]:
    committed, started = lives.durable_at(spawning.id), child.own[0]
    if committed is None or started < committed:
        yield AxiomViolation(
            22,
            child.id,
            f"transaction {child.id} starts, and {spawning.id}, which it is to follow, has not "
            f"committed up to its top-level transaction",
            (started,) if committed is None else (started, committed),
        )


def _exclusive(
    lives: RecordedTransactions, child: RecordedTransaction, spawning: RecordedTransaction
) -> Iterator[AxiomViolation]:
    committed, aborted = lives.durable_at(spawning.id), lives.undone_at(spawning.id)
    if committed is not None and not child.aborts:
        yield AxiomViolation(
            23,
            child.id,
            f"transaction {spawning.id} commits, and {child.id}, which is its alternative, does "
            f"not abort",
            (*sorted((committed, *child.commits[:1])),),
        )
    elif child.commits and (aborted is None or child.commits[0] < aborted):
        yield AxiomViolation(
            23,
            child.id,
            f"transaction {child.id} commits, and {spawning.id}, whose alternative it is, has not "
            f"aborted",
            (child.commits[0],) if aborted is None else (child.commits[0], aborted),
        )


# -- axiom 11: no transaction that commits is in a cycle of conflicts ------------------------------

_Vertex: TypeAlias = int | str
"""A transaction, or (text) a phase, whose vertex replaces many edges by few."""
_Graph: TypeAlias = dict[_Vertex, dict[_Vertex, tuple[int, ...]]]
"""Vertex to successors, each with positions of the operations that cause the edge."""


def check_serial(
    history: History, lives: RecordedTransactions, aborted_at: Mapping[int, int]
) -> Iterator[AxiomViolation]:
    """Yield the cycles of conflicts as violations.

    Two conflicting operations of transactions, neither of which is a superior of the other, order
    two children of the nearest common superior: the ones above the operations. Without a common
    superior, they order the two top-level transactions. Operations that are undone are ignored. O(n
    · depth · length of paths), if no transaction writes inside an object that many of its siblings
    have read whole.
    """
    graph: _Graph = {}
    groups: dict[tuple[int | None, tuple[str, ...]], _ObjectAccesses] = {}
    only: dict[int | None, bool] = {}
    for position, event in enumerate(history.events):
        if not isinstance(event, ObjectOperation) or position in aborted_at:
            continue
        path = event.object
        for life in lives.line(event.by):
            above = life.parent if life.parent in lives.of else None
            if above not in only:
                only[above] = above is not None and len(lives.of[above].inferiors) < 2
            if only[above]:
                continue
            for length in range(1, len(path) + 1):
                key = (above, path[:length])
                accesses = groups.get(key)
                if accesses is None:
                    accesses = groups[key] = _ObjectAccesses(graph, f"{len(groups)}")
                accesses.add(life.id, position, reads=event.is_read, whole=length == len(path))
    for component in _components(graph):
        committed = [v for v in component if isinstance(v, int) and lives.of[v].commits]
        if committed:
            start = min(committed)
            cycle, positions = _cycle(graph, start, component)
            names = " → ".join(map(str, [*cycle, start]))
            yield AxiomViolation(
                11,
                start,
                f"transaction {start} commits and is in the cycle of conflicts {names}",
                positions,
            )


class _ObjectAccesses:
    """Siblings that have used an object, as far as later operations conflict with theirs.

    There are four sorts of access, which conflict as lock modes do: S and X for the object as a
    whole, IS and IX for objects inside it. Edges that others imply are left out:

    * After an X, every access conflicts with it, and it conflicts with all before. So all earlier
      accesses are forgotten.
    * S and IX come in phases. Every access of one phase is before every access of the next phase of
      the other sort. A separate vertex between the two phases stands for these edges.
    """

    __slots__ = ("_graph", "_is", "_ix", "_name", "_phase", "_phases", "_s", "_x")

    def __init__(self, graph: _Graph, name: str):
        self._graph = graph
        self._name = name
        self._is: dict[int, int] = {}
        self._s: dict[int, int] = {}
        self._ix: dict[int, int] = {}
        self._x: tuple[int, int] | None = None
        self._phase = ""
        self._phases = 0

    def add(self, id: int, position: int, *, reads: bool, whole: bool) -> None:
        """Add an operation."""
        if whole and not reads:
            self._exclusive(id, position)
        elif whole:
            if self._phase != "s":
                self._begin("s")
                self._s = {}
            self._shared(id, position, self._s, self._ix)
        elif not reads:
            if self._phase != "ix":
                self._begin("ix")
                self._ix = {}
            self._shared(id, position, self._ix, self._s)
        elif id not in self._is:
            self._is[id] = position
            if self._x is not None:
                self._edge(*self._x, id, position)

    def _begin(self, phase: str) -> None:
        self._phase = phase
        self._phases += 1

    def _shared(self, id: int, position: int, mine: dict[int, int], others: dict[int, int]) -> None:
        if id in mine:
            return
        mine[id] = position
        if self._x is not None:
            self._edge(*self._x, id, position)
        if id in others:  # through the phase's vertex it would precede itself
            for other, before in others.items():
                self._edge(other, before, id, position)
        elif others:
            self._link(self._vertex(self._phases - 1), id, (position,))
        self._link(id, self._vertex(self._phases), (position,))

    def _exclusive(self, id: int, position: int) -> None:
        if self._x is not None:
            self._edge(*self._x, id, position)
        for before in (self._is, self._s, self._ix):
            for other, other_position in before.items():
                self._edge(other, other_position, id, position)
        self._is, self._s, self._ix = {}, {}, {}
        self._x = (id, position)
        self._begin("")

    def _vertex(self, phase: int) -> str:
        return f"{self._name}/{phase}"

    def _edge(self, one: int, before: int, other: int, after: int) -> None:
        if one != other:
            self._link(one, other, (before, after))

    def _link(self, one: _Vertex, other: _Vertex, positions: tuple[int, ...]) -> None:
        self._graph.setdefault(one, {}).setdefault(other, positions)


def _components(graph: _Graph) -> Iterator[list[_Vertex]]:
    """Strongly connected components of more than one vertex. O(edges) (Tarjan 1972)."""
    index: dict[_Vertex, int] = {}
    low: dict[_Vertex, int] = {}
    stack: list[_Vertex] = []
    on_stack: set[_Vertex] = set()
    for root in graph:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(graph[root]))]
        while work:
            vertex, rest = work[-1]
            for target in rest:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(graph.get(target, ()))))
                    break
                if target in on_stack:
                    low[vertex] = min(low[vertex], index[target])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[vertex])
                if low[vertex] == index[vertex]:
                    component: list[_Vertex] = []
                    while not component or component[-1] != vertex:
                        component.append(stack.pop())
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        yield component


def _cycle(
    graph: _Graph, start: int, component: list[_Vertex]
) -> tuple[list[int], tuple[int, ...]]:
    """Return a shortest cycle through `start`: its transactions, and its operations' positions."""
    inside = set(component)
    came: dict[_Vertex, _Vertex] = {}
    queue: list[_Vertex] = [start]
    for vertex in queue:  # grows during iteration
        for target in graph.get(vertex, ()):
            if target in inside and target not in came:
                came[target] = vertex
                if target == start:
                    queue.clear()
                    break
                queue.append(target)
    cycle: list[int] = []
    positions: set[int] = set()
    after: _Vertex = start
    while True:
        before = came[after]
        positions.update(graph[before][after])
        after = before
        if isinstance(after, int):
            cycle.append(after)
        if after == start:
            return cycle[::-1], tuple(sorted(positions))
