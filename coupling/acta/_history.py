"""History in one total order: its events and transactions, and its form as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = [
    "AbortEvent",
    "AbortOperation",
    "BadLine",
    "BeginEvent",
    "CommitEvent",
    "CommitOperation",
    "DelegateEvent",
    "Event",
    "History",
    "ObjectOperation",
    "OperationKind",
    "RecordedTransaction",
    "RecordedTransactions",
    "SpawnEvent",
    "SpawnMode",
]


class SpawnMode(StrEnum):
    """Coupling mode in which a transaction is spawned; the values are the events' names."""

    IMMEDIATE = "spawn_imm"
    DEFERRED = "spawn_def"
    DETACHED = "spawn_detach"
    CAUSAL = "spawn_caus"
    SEQUENTIAL = "spawn_seq"
    EXCLUSIVE = "spawn_exc"

    @property
    def is_child(self) -> bool:
        """True if the spawned transaction is a child of the spawning one (else top-level)."""
        return self is SpawnMode.IMMEDIATE or self is SpawnMode.DEFERRED


class OperationKind(StrEnum):
    """Effect of an operation on its object."""

    READ = "read"
    WRITE = "write"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class BeginEvent:
    """Start of a top-level transaction.

    Attributes
    ----------
    by : int
        The transaction.
    parent : int or None
        Parent, as recorded; a value breaks axiom 16.
    """

    by: int
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class SpawnEvent:
    """Start of a transaction by another one.

    Attributes
    ----------
    by, child : int
        The spawning and the spawned transaction.
    mode : SpawnMode
    parent : int or None
        Parent of `child`, as recorded: `by` for immediate and deferred mode, else None.
    priority : int or None
        Priority of `child`; None is the lowest.
    cycle : int or None
        Deferred mode: cycle of the commit point of `by` in which the child runs, if the recorder
        knows it. All children without a cycle count as one cycle.
    group : int or None
        Immediate mode: identifier shared with other children of `by` spawned at once, such as the
        rules of one event. Priorities order the children of a group. All children without one are
        a group.
    """

    by: int
    child: int
    mode: SpawnMode
    parent: int | None
    priority: int | None = None
    cycle: int | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """Commit of a transaction; if it is top-level, of every operation it is responsible for."""

    by: int


@dataclass(frozen=True, slots=True)
class AbortEvent:
    """Abort of a transaction, and of every operation it is responsible for."""

    by: int


@dataclass(frozen=True, slots=True)
class DelegateEvent:
    """Transfer of the responsibility for operations to another transaction.

    Attributes
    ----------
    by, to : int
    operations : tuple of int or None
        Numbers of the operations; None: its whole access set.
    """

    by: int
    to: int
    operations: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CommitOperation:
    """Commit of one operation, by number, for recorders that report single outcomes."""

    by: int
    operation: int


@dataclass(frozen=True, slots=True)
class AbortOperation:
    """Outcome of one operation that is undone; as `CommitOperation`."""

    by: int
    operation: int


@dataclass(frozen=True, slots=True)
class ObjectOperation:
    """An operation of a transaction on an object.

    Attributes
    ----------
    by : int
    number : int
        At least 1 and unique in the history.
    kind : OperationKind
    object : tuple of str
        Path of the object, such as ``("accounts",)`` for a table, ``("accounts", "7")`` for a row
        in it. Two objects overlap if one path begins the other.
    saw : int or None
        For a read: number of the operation that wrote the version read, 0 for a version older than
        the history, None if the recorder does not know.
    """

    by: int
    number: int
    kind: OperationKind
    object: tuple[str, ...]
    saw: int | None = None

    @property
    def is_read(self) -> bool:
        """True if the operation leaves the object unchanged."""
        return self.kind is OperationKind.READ

    def conflicts_with(self, other: ObjectOperation) -> bool:
        """Return whether the order of the two operations matters.

        It does if their objects overlap, unless both are reads.
        """
        if self.is_read and other.is_read:
            return False
        length = min(len(self.object), len(other.object))
        return self.object[:length] == other.object[:length]


Event = (
    BeginEvent
    | SpawnEvent
    | CommitEvent
    | AbortEvent
    | DelegateEvent
    | CommitOperation
    | AbortOperation
    | ObjectOperation
)
"""Any entry of a history; its field `by` is the transaction that invokes it."""


class BadLine(ValueError):
    """A line that is no event of a history.

    Attributes
    ----------
    line : int
        Number of the line, from 1.
    reason : str
    """

    def __init__(self, line: int, reason: str):
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True, slots=True)
class History:
    """Events of a set of transactions, in the order in which they happened.

    The position of an event is its index, from 0; in a file its line is one more. Transactions
    are numbers. A transaction that began must end in the same history.
    """

    events: tuple[Event, ...] = ()

    def __len__(self) -> int:
        return len(self.events)

    def lines(self) -> Iterator[str]:
        """Yield the events as JSON, one line each, without line terminators."""
        for event in self.events:
            yield json.dumps(_record(event), ensure_ascii=False, separators=(",", ":"))

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the history as JSON lines, replacing the file atomically."""
        whole = Path(path)
        part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
        try:
            with part.open("w", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in self.lines())
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> History:
        """Return the history in a file that `write` wrote.

        Raises
        ------
        BadLine
            If a line is no event; the error names the first such line.
        OSError
            If the file cannot be read.
        """
        with Path(path).open("rb") as file:
            return cls.of_lines(file)

    @classmethod
    def of_lines(cls, lines: Iterable[str | bytes]) -> History:
        """Return the history in JSON lines, bytes in UTF-8. O(length).

        Raises
        ------
        BadLine
        """
        return cls(tuple(_event(number, line) for number, line in enumerate(lines, 1)))


def _record(event: Event) -> dict[str, Any]:
    record: dict[str, Any]
    match event:
        case ObjectOperation(by, number, kind, object, saw):
            record = {"event": kind.value, "by": by, "number": number, "object": list(object)}
            return record if saw is None else {**record, "saw": saw}
        case SpawnEvent(by, child, mode, parent, priority, cycle, group):
            record = {"event": mode.value, "by": by, "child": child, "parent": parent}
            more = {"priority": priority, "cycle": cycle, "group": group}
            return record | {name: value for name, value in more.items() if value is not None}
        case DelegateEvent(by, to, operations):
            record = {"event": "delegate", "by": by, "to": to}
            return record if operations is None else {**record, "operations": list(operations)}
        case BeginEvent(by, parent):
            record = {"event": "begin", "by": by}
            return record if parent is None else {**record, "parent": parent}
        case CommitEvent(by):
            return {"event": "commit", "by": by}
        case AbortEvent(by):
            return {"event": "abort", "by": by}
        case CommitOperation(by, operation):
            return {"event": "commit_operation", "by": by, "operation": operation}
        case AbortOperation(by, operation):
            return {"event": "abort_operation", "by": by, "operation": operation}


class _Fields:
    """Fields of one record, removed one by one."""

    def __init__(self, record: dict[str, Any]):
        self._left = record

    def take(self, name: str) -> Any:
        if name not in self._left:
            raise ValueError(f"{name!r} is missing")
        return self._left.pop(name)

    def number(self, name: str) -> int:
        value = self.take(name)
        if type(value) is not int:
            raise ValueError(f"{name!r} is not a whole number: {json.dumps(value)[:60]}")
        return value

    def number_or_none(self, name: str, *, required: bool = False) -> int | None:
        if not required and name not in self._left:
            return None
        if self._left.get(name, ...) is None:
            del self._left[name]
            return None
        return self.number(name)

    def numbers_or_none(self, name: str) -> tuple[int, ...] | None:
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or any(type(number) is not int for number in value):
            raise ValueError(f"{name!r} is not a list of whole numbers")
        return tuple(value)

    def path(self, name: str) -> tuple[str, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not value or any(type(p) is not str for p in value):
            raise ValueError(f"{name!r} is not a list of one or more strings")
        return tuple(value)

    def finish(self) -> None:
        if self._left:
            raise ValueError(f"unknown field {next(iter(self._left))!r}")


def _operation(kind: OperationKind) -> Callable[[_Fields], Event]:
    def read(f: _Fields) -> Event:
        number = f.number("number")
        if number < 1:
            raise ValueError("'number' is less than 1")
        saw = f.number_or_none("saw") if kind is OperationKind.READ else None
        return ObjectOperation(f.number("by"), number, kind, f.path("object"), saw)

    return read


def _spawn(mode: SpawnMode) -> Callable[[_Fields], Event]:
    return lambda f: SpawnEvent(
        f.number("by"),
        f.number("child"),
        mode,
        f.number_or_none("parent", required=True),
        f.number_or_none("priority"),
        f.number_or_none("cycle"),
        f.number_or_none("group"),
    )


_READERS: dict[str, Callable[[_Fields], Event]] = {
    "begin": lambda f: BeginEvent(f.number("by"), f.number_or_none("parent")),
    "commit": lambda f: CommitEvent(f.number("by")),
    "abort": lambda f: AbortEvent(f.number("by")),
    "delegate": lambda f: DelegateEvent(
        f.number("by"), f.number("to"), f.numbers_or_none("operations")
    ),
    "commit_operation": lambda f: CommitOperation(f.number("by"), f.number("operation")),
    "abort_operation": lambda f: AbortOperation(f.number("by"), f.number("operation")),
    **{kind.value: _operation(kind) for kind in OperationKind},
    **{mode.value: _spawn(mode) for mode in SpawnMode},
}


def _event(number: int, line: str | bytes) -> Event:
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("this is not a JSON object")
        fields = _Fields(record)
        name = fields.take("event")
        reader = _READERS.get(name) if isinstance(name, str) else None
        if reader is None:
            known = ", ".join(_READERS)
            raise ValueError(f"unknown event {json.dumps(name)[:60]}; known are: {known}")
        event = reader(fields)
        fields.finish()
    except json.JSONDecodeError as error:
        raise BadLine(number, f"this is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadLine(number, str(error)) from error
    return event


# -- transactions in a history: events, parent, superiors and outcome of each ----------------------


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
    spawns : list of (int, SpawnEvent)
        Events of other transactions that spawn it.
    children : list of (int, SpawnEvent)
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
        self.spawns: list[tuple[int, SpawnEvent]] = []
        self.children: list[tuple[int, SpawnEvent]] = []
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
                case ObjectOperation():
                    life.operations.append(position)
                case SpawnEvent(child=child, mode=mode):
                    life.children.append((position, event))
                    self._life(child).spawns.append((position, event))
                    if mode is SpawnMode.CAUSAL:
                        self.causes.setdefault(child, event.by)
                case BeginEvent():
                    life.begins.append(position)
                    if event.parent is not None and not life.spawns:
                        life.parent = event.parent
                case CommitEvent():
                    life.commits.append(position)
                case AbortEvent():
                    life.aborts.append(position)
                case DelegateEvent():
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
