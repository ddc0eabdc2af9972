"""Random legal histories: a small system that keeps the rules, one step of one transaction."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from coupling.acta import (
    AbortEvent,
    AbortOperation,
    BeginEvent,
    CommitEvent,
    CommitOperation,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
)

__all__ = ["legal_history"]

OBJECTS = [("a",), ("a", "1"), ("a", "2"), ("b", "1"), ("b", "1", "x"), ("c",)]


@dataclass
class Node:
    id: int
    parent: Node | None = None
    mode: SpawnMode | None = None
    cause: Node | None = None
    priority: int | None = None
    group: int | None = None
    state: str = "active"  # promised, active, at its commit point, committed, aborted
    deferred: list[tuple[int, int | None]] = field(default_factory=list)  # (cycle, priority)
    children: list[Node] = field(default_factory=list)
    access: list[ObjectOperation] = field(default_factory=list)
    tells: bool = False
    cycle: int = 0

    @property
    def is_live(self) -> bool:
        return self.state in ("active", "at its commit point")

    @property
    def line(self) -> list[Node]:
        return [self, *([] if self.parent is None else self.parent.line)]

    @property
    def is_durable(self) -> bool:
        return all(node.state == "committed" for node in self.line)

    @property
    def is_undone(self) -> bool:
        return any(node.state == "aborted" for node in self.line)

    @property
    def open_to(self) -> list[Node]:
        top = self.line[-1]
        cause = top.cause if top.mode is SpawnMode.CAUSAL else None
        return self.line + ([] if cause is None else cause.open_to)


class System:
    def __init__(self, chance: random.Random):
        self.chance = chance
        self.nodes: list[Node] = []
        self.events: list[Event] = []
        self.written: list[ObjectOperation] = []
        self.numbers = 0

    def new(self, **fields: Any) -> Node:
        node = Node(len(self.nodes) + 1, **fields)
        node.tells = self.chance.random() < 0.3
        self.nodes.append(node)
        return node

    def step(self) -> None:
        live = [node for node in self.nodes if node.state in ("active", "promised")]
        waiting = [node for node in self.nodes if node.state == "at its commit point"]
        if waiting and self.chance.random() < 0.6:
            self.commit(self.chance.choice(waiting))
        elif not live or self.chance.random() < 0.08:
            self.events.append(BeginEvent(self.new().id))
        else:
            node = self.chance.choice(live)
            if node.state == "promised":
                self.start(node)
            else:
                do = self.chance.choices(
                    [self.operate, self.spawn, self.defer, self.commit, self.abort],
                    [8, 3, 1, 2, 0.5],
                )
                do[0](node)

    def start(self, node: Node) -> None:
        cause = node.cause
        assert cause is not None
        if node.mode is SpawnMode.SEQUENTIAL and not cause.is_durable:
            return
        if node.mode is SpawnMode.CAUSAL and cause.is_undone:
            return
        node.state = "active"
        self.events.append(BeginEvent(node.id))

    def operate(self, node: Node) -> None:
        kind, path = self.chance.choice(list(OperationKind)), self.chance.choice(OBJECTS)
        operation = ObjectOperation(node.id, self.numbers + 1, kind, path)
        if node.mode is SpawnMode.IMMEDIATE:
            assert node.parent is not None
            for mate in node.parent.children:
                higher = (mate.priority or -9) > (node.priority or -9)
                if not higher or mate.group != node.group:
                    continue
                if mate.is_live and mate.mode is SpawnMode.IMMEDIATE:
                    return
        for other in self.nodes:
            if other not in node.open_to and any(operation.conflicts_with(o) for o in other.access):
                return
        if kind is OperationKind.READ and self.chance.random() < 0.7:
            versions = [w.number for w in self.written if w.object == path[: len(w.object)]]
            operation = ObjectOperation(
                node.id, operation.number, kind, path, max(versions, default=0)
            )
        self.numbers += 1
        self.events.append(operation)
        node.access.append(operation)
        if not operation.is_read:
            self.written.append(operation)

    def spawn(self, node: Node) -> None:
        mode = self.chance.choice(list(SpawnMode))
        if mode is SpawnMode.DEFERRED:
            return
        priority = self.chance.choice([None, None, 1, 2, 3])
        if mode.is_child:
            group = self.chance.choice([None, None, 1])
            child = self.new(parent=node, mode=mode, priority=priority, group=group)
            node.children.append(child)
        else:
            child = self.new(mode=mode, cause=node, state="promised")
            priority = group = None
        parent = node.id if mode.is_child else None
        self.events.append(SpawnEvent(node.id, child.id, mode, parent, priority, group=group))

    def defer(self, node: Node) -> None:
        owner, cycle = node, 0
        if node.mode is SpawnMode.DEFERRED:
            assert node.parent is not None
            owner, cycle = node.parent, node.cycle + 1
        owner.deferred.append((cycle, self.chance.choice([None, 1, 2])))

    def commit(self, node: Node) -> None:
        if any(child.is_live for child in node.children):
            return
        node.state = "at its commit point"
        if node.deferred:
            node.deferred.sort(key=lambda d: (d[0], d[1] is None, -(d[1] or 0)))
            cycle, priority = node.deferred.pop(0)
            child = self.new(parent=node, mode=SpawnMode.DEFERRED, priority=priority)
            child.cycle = cycle
            node.children.append(child)
            self.events.append(
                SpawnEvent(node.id, child.id, SpawnMode.DEFERRED, node.id, priority, cycle)
            )
            return
        cause = node.cause
        if node.mode is SpawnMode.CAUSAL:
            assert cause is not None
            if not cause.is_durable:
                return
        if node.mode is SpawnMode.EXCLUSIVE:
            assert cause is not None
            if not cause.is_undone:
                if cause.is_durable:
                    self.abort(node)
                return
        if node.parent is not None:
            numbers = tuple(operation.number for operation in node.access)
            self.events.append(
                DelegateEvent(node.id, node.parent.id, numbers if node.tells else None)
            )
            node.parent.access += node.access
        elif node.tells:
            self.events += [CommitOperation(node.id, o.number) for o in node.access]
        node.access = []
        node.state = "committed"
        self.events.append(CommitEvent(node.id))

    def abort(self, node: Node) -> None:
        for child in node.children:
            if child.is_live:
                self.abort(child)
        if not node.is_live:
            return  # an abort below has come back here
        if node.tells:
            self.events += [AbortOperation(node.id, o.number) for o in node.access]
        self.written = [w for w in self.written if w not in node.access]
        node.access = []
        node.state = "aborted"
        self.events.append(AbortEvent(node.id))
        for other in self.nodes:
            if other.mode is SpawnMode.CAUSAL and other.is_live:
                assert other.cause is not None
                if other.cause.is_undone:
                    self.abort(other)

    def finish(self) -> None:
        """End all live transactions, the newest first; abort those that would wait for ever."""
        rounds = 0
        while live := [node for node in reversed(self.nodes) if node.is_live]:
            rounds += 1
            for node in live:
                if node.is_live:
                    self.commit(node)
            if rounds > 20:
                self.abort(live[-1])


def legal_history(seed: int, steps: int = 60) -> History:
    """Return a possible history of a system that keeps all rules; the same for the same seed."""
    system = System(random.Random(seed))
    for _ in range(steps):
        system.step()
    system.finish()
    return History(tuple(system.events))
