"""Transactions in a history: events, parent, superiors and outcome of each."""

from __future__ import annotations

from coupling.acta._events import Abort, Begin, Commit, Delegate, Operation, Spawn, SpawnMode
from coupling.acta._history import History

__all__ = ["RecordedTransaction", "RecordedTransactions"]


class RecordedTransaction:
    """One transaction, with the positions of its events and of the events that spawn it.

    Attributes
    ----------
    begins, commits, aborts, delegates : list of int
        Positions of its events of these kinds.
    operations : list of int
        Positions of its operations.
    own : list of int
        Positions of all events that it invokes.
    spawns : list of (int, Spawn)
        Events of other transactions that spawn it.
    children : list of (int, Spawn)
        Events by which it spawns others.
    parent : int or None
        Parent, as first recorded.
    enter, leave : int
        Place in a walk over the forest: inferiors lie between the two.
    top : int
        Top-level transaction of its hierarchy.
    """

    __slots__ = (
        "aborts",
        "begins",
        "children",
        "commits",
        "delegates",
        "enter",
        "id",
        "inferiors",
        "leave",
        "operations",
        "own",
        "parent",
        "spawns",
        "top",
    )

    def __init__(self, id: int):
        self.id = id
        self.begins: list[int] = []
        self.commits: list[int] = []
        self.aborts: list[int] = []
        self.delegates: list[int] = []
        self.operations: list[int] = []
        self.own: list[int] = []
        self.spawns: list[tuple[int, Spawn]] = []
        self.children: list[tuple[int, Spawn]] = []
        self.parent: int | None = None
        self.inferiors: list[int] = []
        self.enter = self.leave = -1
        self.top = id

    @property
    def is_child(self) -> bool:
        """True if it is a subtransaction: spawned in immediate or deferred mode."""
        return any(spawn.mode.is_child for _, spawn in self.spawns)

    @property
    def ends(self) -> list[int]:
        """Positions of its terminating events."""
        return sorted(self.commits + self.aborts)

    @property
    def is_promise(self) -> bool:
        """True if it was spawned in a detached mode and no event of it is recorded."""
        return not self.own and bool(self.spawns) and not self.is_child

    @property
    def mode(self) -> SpawnMode | None:
        """Mode in which it was spawned first."""
        return self.spawns[0][1].mode if self.spawns else None


class RecordedTransactions:
    """Transactions of a history. Construction is O(n).

    Attributes
    ----------
    of : dict of int to Life
    causes : dict of int to int
        Transactions spawned in causally dependent mode, and their spawning transactions.
    """

    def __init__(self, history: History):
        self.of: dict[int, RecordedTransaction] = {}
        self.causes: dict[int, int] = {}
        for position, event in enumerate(history.events):
            life = self._life(event.by)
            life.own.append(position)
            match event:
                case Operation():
                    life.operations.append(position)
                case Spawn(child=child, mode=mode):
                    life.children.append((position, event))
                    self._life(child).spawns.append((position, event))
                    if mode is SpawnMode.CAUSAL:
                        self.causes.setdefault(child, event.by)
                case Begin():
                    life.begins.append(position)
                    if event.parent is not None and not life.spawns:
                        life.parent = event.parent
                case Commit():
                    life.commits.append(position)
                case Abort():
                    life.aborts.append(position)
                case Delegate():
                    life.delegates.append(position)
        for life in self.of.values():
            if life.spawns:
                life.parent = life.spawns[0][1].parent
        self._walk()

    def _life(self, id: int) -> RecordedTransaction:
        life = self.of.get(id)
        if life is None:
            life = self.of[id] = RecordedTransaction(id)
        return life

    def _walk(self) -> None:
        """Number the transactions so that a sphere is an interval.

        If parents form a cycle, the walk begins at the first member that it meets.
        """
        roots: list[RecordedTransaction] = []
        for life in self.of.values():
            parent = None if life.parent is None else self.of.get(life.parent)
            if parent is None:
                roots.append(life)
            else:
                parent.inferiors.append(life.id)
        count = 0
        for root in (*roots, *self.of.values()):
            if root.enter >= 0:
                continue
            stack = [(root, iter(root.inferiors))]
            root.enter, root.top = count, root.id
            while stack:
                life, rest = stack[-1]
                child = next((c for c in rest if self.of[c].enter < 0), None)
                if child is None:
                    life.leave = count
                    stack.pop()
                    continue
                count += 1
                found = self.of[child]
                found.enter, found.top = count, root.id
                stack.append((found, iter(found.inferiors)))
            count += 1

    def is_within(self, id: int, superior: int) -> bool:
        """Return whether `id` is `superior` or an inferior of it. O(1)."""
        one, other = self.of[id], self.of[superior]
        return other.enter <= one.enter <= other.leave

    def may_use(self, id: int, owner: int) -> bool:
        """Return whether operations that `owner` is responsible for are open to `id`.

        They are open to `owner` and its inferiors, and to transactions that causally depend on one
        of these. O(1 + causal dependencies above `id`).
        """
        if self.is_within(id, owner):
            return True
        seen: set[int] = set()
        while self.causes:
            top = self.of[id].top
            cause = self.causes.get(top)
            if cause is None or cause in seen:
                return False
            if self.is_within(cause, owner):
                return True
            seen.add(cause)
            id = cause
        return False

    def line(self, id: int) -> list[RecordedTransaction]:
        """Return a transaction and its superiors, upwards. O(depth)."""
        found: dict[int, RecordedTransaction] = {}
        next_id: int | None = id
        while next_id is not None and next_id in self.of and next_id not in found:
            found[next_id] = self.of[next_id]
            next_id = found[next_id].parent
        return list(found.values())

    def undone_at(self, id: int) -> int | None:
        """Return the position of the first abort in a line of superiors, or None. O(depth)."""
        aborts = [position for life in self.line(id) for position in life.aborts]
        return min(aborts, default=None)

    def durable_at(self, id: int) -> int | None:
        """Return the position of the last commit of a transaction and its superiors.

        None if one of them has not committed.
        """
        line = self.line(id)
        if any(not life.commits or life.aborts for life in line):
            return None
        return max(life.commits[0] for life in line)
