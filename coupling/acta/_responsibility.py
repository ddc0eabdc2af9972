"""Axioms 7 (second half) to 10, 12 to 15, 17, 24, 25: responsibility for operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterator
from typing import TypeAlias

from coupling.acta._axioms import AxiomViolation
from coupling.acta._history import (
    AbortEvent,
    AbortOperation,
    CommitEvent,
    CommitOperation,
    DelegateEvent,
    History,
    ObjectOperation,
    RecordedTransactions,
)

__all__ = ["Responsibility", "shown"]

_Path: TypeAlias = tuple[str, ...]
_Owners: TypeAlias = dict[int, dict[int, None]]
"""Responsible transactions, each with the positions of its operations."""


def shown(path: _Path) -> str:
    """Return the text of an object in a message."""
    return "/".join(path)


class _Place:
    """Operations in progress on one object, and on those inside it."""

    __slots__ = ("inside_reads", "inside_writes", "reads", "writes")

    def __init__(self) -> None:
        self.reads: _Owners = {}
        self.writes: _Owners = {}
        self.inside_reads: _Owners = {}
        self.inside_writes: _Owners = {}


class Responsibility:
    """Walk through a history that tracks the access set of each transaction.

    An operation is in progress until it has its own outcome, or the responsible transaction aborts,
    or the top-level transaction of the responsible one ends. O(n · depth · length of paths), if the
    history obeys axioms 9, 17 and 25.

    Attributes
    ----------
    aborted_at : dict of int to int
        Position of each undone operation to that of the event that undid it.
    """

    def __init__(self, history: History, lives: RecordedTransactions):
        self._events = history.events
        self._lives = lives
        self._places: defaultdict[_Path, _Place] = defaultdict(_Place)
        self._access: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._by_number: dict[int, int] = {}
        self._versions: defaultdict[_Path, list[int]] = defaultdict(list)
        self._busy: defaultdict[int, set[int]] = defaultdict(set)
        """Per top-level transaction, members of its hierarchy that may have operations."""
        self._tells_outcomes: set[int] = set()
        self._ended: set[int] = set()
        self.aborted_at: dict[int, int] = {}

    def check(self) -> Iterator[AxiomViolation]:
        """Walk through the history, yielding violations."""
        for position, event in enumerate(self._events):
            match event:
                case ObjectOperation():
                    yield from self._operation(position, event)
                case DelegateEvent():
                    yield from self._delegate(position, event)
                case CommitOperation() | AbortOperation():
                    yield from self._outcome(position, event)
                case CommitEvent() | AbortEvent():
                    yield from self._end(position, event)
        for id, life in self._lives.of.items():
            if life.is_child and life.commits and not life.delegates:
                yield AxiomViolation(
                    24,
                    id,
                    f"transaction {id} commits and does not delegate to its parent {life.parent}",
                    (life.commits[0],),
                )
        yield from self._traces()

    # -- operations ------------------------------------------------------------------------

    def _operation(self, position: int, operation: ObjectOperation) -> Iterator[AxiomViolation]:
        t = operation.by
        other = self._by_number.setdefault(operation.number, position)
        if other != position:
            yield AxiomViolation(
                7,
                t,
                f"two operations have the number {operation.number}",
                (other, position),
            )
        yield from self._view(operation, position)
        yield from self._conflicts(operation, position)
        if not operation.is_read:
            self._versions[operation.object].append(position)
        self._add(position, t)

    def _view(self, operation: ObjectOperation, position: int) -> Iterator[AxiomViolation]:
        if operation.saw is None or not operation.is_read:
            return
        newest = -1
        path = operation.object
        for length in range(1, len(path) + 1):
            versions = self._versions.get(path[:length])
            while versions and versions[-1] in self.aborted_at:
                versions.pop()
            if versions:
                newest = max(newest, versions[-1])
        seen = -1 if operation.saw == 0 else self._by_number.get(operation.saw)
        if seen != newest:
            current = "its first version"
            if newest >= 0:
                current = f"that of operation {self._at(newest).number}"
            yield AxiomViolation(
                8,
                operation.by,
                f"transaction {operation.by} sees the version of operation {operation.saw} of "
                f"{shown(path)}, and the current one is {current}",
                tuple(sorted({position, *(p for p in (seen, newest) if p is not None and p >= 0)})),
            )

    def _conflicts(self, operation: ObjectOperation, position: int) -> Iterator[AxiomViolation]:
        t, path, lives = operation.by, operation.object, self._lives
        found: list[_Owners] = []
        for length in range(1, len(path)):
            if (place := self._places.get(path[:length])) is not None:
                found.append(place.writes)
                if not operation.is_read:
                    found.append(place.reads)
        if (place := self._places.get(path)) is not None:
            found += (place.writes, place.inside_writes)
            if not operation.is_read:
                found += (place.reads, place.inside_reads)
        below: int | None = None
        outside: int | None = None
        for owners in found:
            for owner, positions in owners.items():
                if owner == t:
                    continue
                if lives.is_within(owner, t):
                    below = min(positions) if below is None else min(below, *positions)
                elif not lives.may_use(t, owner):
                    outside = min(positions) if outside is None else min(outside, *positions)
        if below is not None:
            first = self._events[below]
            yield AxiomViolation(
                25,
                t,
                f"transaction {t} invokes {operation.kind} on {shown(path)}, and its inferior "
                f"{first.by} has not delegated its operation there to it",
                (below, position),
            )
        if outside is not None:
            first = self._events[outside]
            yield AxiomViolation(
                17 if lives.of[t].is_child else 9,
                t,
                f"transaction {t} invokes {operation.kind} on {shown(path)}, which conflicts with "
                f"an operation of {first.by} in progress",
                (outside, position),
            )

    # -- delegation and ends ---------------------------------------------------------------

    def _delegate(self, position: int, event: DelegateEvent) -> Iterator[AxiomViolation]:
        t, life, access = event.by, self._lives.of[event.by], self._access[event.by]
        handed = list(access)
        wrong = ""
        if event.operations is not None:
            handed = yield from self._named(position, t, event.operations, "delegates")
            if len(handed) < len(access):
                missing = min(set(access).difference(handed))
                wrong = f"and keeps operation {self._at(missing).number} of its access set"
        if not life.is_child or not life.commits:
            wrong = "and is not a subtransaction that commits"
        elif event.to != life.parent:
            wrong = f"which is not its parent {life.parent}"
        elif len(life.delegates) > 1 and position != life.delegates[0]:
            wrong = "for the second time"
        if wrong:
            yield AxiomViolation(
                24, t, f"transaction {t} delegates to {event.to}, {wrong}", (position,)
            )
        if event.to in self._lives.of:
            for operation in handed:
                self._remove(operation, t)
                self._add(operation, event.to)

    def _outcome(
        self, position: int, event: CommitOperation | AbortOperation
    ) -> Iterator[AxiomViolation]:
        t, life = event.by, self._lives.of[event.by]
        self._tells_outcomes.add(t)
        if isinstance(event, CommitOperation):
            doing = "commits"
            if life.is_child or not life.commits:
                why = "is not a top-level transaction" if life.is_child else "does not commit"
                yield AxiomViolation(
                    12,
                    t,
                    f"transaction {t} commits operation {event.operation} and {why}",
                    (position,),
                )
        else:
            doing = "aborts"
            if not life.aborts:
                yield AxiomViolation(
                    14,
                    t,
                    f"transaction {t} aborts operation {event.operation} and does not abort",
                    (position,),
                )
        for operation in (yield from self._named(position, t, (event.operation,), doing)):
            self._remove(operation, t)
            if isinstance(event, AbortOperation):
                self.aborted_at[operation] = position

    def _named(
        self, position: int, t: int, numbers: tuple[int, ...], doing: str
    ) -> Generator[AxiomViolation, None, list[int]]:
        """Return positions of operations by number, yielding those outside the access set."""
        found: dict[int, None] = {}
        for number in numbers:
            operation = self._by_number.get(number)
            if operation is None or operation not in self._access[t]:
                yield AxiomViolation(
                    7,
                    t,
                    f"transaction {t} {doing} operation {number}, for which it is not responsible",
                    (position,) if operation is None else (operation, position),
                )
            else:
                found[operation] = None
        return list(found)

    def _end(self, position: int, event: CommitEvent | AbortEvent) -> Iterator[AxiomViolation]:
        t, life = event.by, self._lives.of[event.by]
        if t in self._ended:
            return
        self._ended.add(t)
        is_abort = isinstance(event, AbortEvent)
        access = self._access[t]
        if access and t in self._tells_outcomes and (is_abort or not life.is_child):
            yield AxiomViolation(
                15 if is_abort else 13,
                t,
                f"transaction {t} {'aborts' if is_abort else 'commits'}, but not operation "
                f"{self._at(min(access)).number}, for which it is responsible",
                (*sorted(access), position),
            )
        if is_abort:
            self._release(t, position, is_abort=True)
        if not life.is_child:
            for member in {t, *self._busy.pop(t, ())}:
                self._release(member, position, is_abort=is_abort)

    def _release(self, t: int, position: int, *, is_abort: bool) -> None:
        for operation in list(self._access[t]):
            self._remove(operation, t)
            if is_abort:
                self.aborted_at[operation] = position

    def _at(self, position: int) -> ObjectOperation:
        operation = self._events[position]
        assert isinstance(operation, ObjectOperation)
        return operation

    def _add(self, position: int, t: int) -> None:
        self._access[t][position] = None
        self._busy[self._lives.of[t].top].add(t)
        operation = self._at(position)
        path, places = operation.object, self._places
        if operation.is_read:
            for length in range(1, len(path)):
                places[path[:length]].inside_reads.setdefault(t, {})[position] = None
            places[path].reads.setdefault(t, {})[position] = None
        else:
            for length in range(1, len(path)):
                places[path[:length]].inside_writes.setdefault(t, {})[position] = None
            places[path].writes.setdefault(t, {})[position] = None

    def _remove(self, position: int, t: int) -> None:
        del self._access[t][position]
        operation = self._at(position)
        path, is_read = operation.object, operation.is_read
        for length in range(1, len(path) + 1):
            place = self._places[path[:length]]
            if length == len(path):
                owners = place.reads if is_read else place.writes
            else:
                owners = place.inside_reads if is_read else place.inside_writes
            positions = owners[t]
            del positions[position]
            if not positions:
                del owners[t]

    # -- atomic objects --------------------------------------------------------------------

    def _traces(self) -> Iterator[AxiomViolation]:
        """Find operations between a write and its undoing that were not undone themselves."""
        at: dict[_Path, tuple[int, int]] = {}
        inside: dict[_Path, tuple[int, int]] = {}
        none = (-1, -1)
        for position, event in enumerate(self._events):
            if not isinstance(event, ObjectOperation):
                continue
            path = event.object
            prefixes = [path[:length] for length in range(1, len(path))]
            undone = self.aborted_at.get(position)
            if undone is None:
                until, write = max(
                    at.get(path, none),
                    inside.get(path, none),
                    *(at.get(prefix, none) for prefix in prefixes),
                )
                if until > position:
                    other = self._events[write]
                    yield AxiomViolation(
                        10,
                        event.by,
                        f"transaction {event.by} invokes {event.kind} on {shown(path)} after "
                        f"{other.by} has written it and before that is undone",
                        (write, position, until),
                    )
            elif not event.is_read:
                entry = (undone, position)
                at[path] = max(at.get(path, none), entry)
                for prefix in prefixes:
                    inside[prefix] = max(inside.get(prefix, none), entry)
