"""History in one total order, and its form as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coupling.acta._events import (
    Abort,
    AbortOperation,
    Begin,
    Commit,
    CommitOperation,
    Delegate,
    Event,
    Operation,
    OperationKind,
    Spawn,
    SpawnMode,
)

__all__ = ["BadLine", "History"]


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
        case Operation(by, number, kind, object, saw):
            record = {"event": kind.value, "by": by, "number": number, "object": list(object)}
            return record if saw is None else {**record, "saw": saw}
        case Spawn(by, child, mode, parent, priority, cycle, group):
            record = {"event": mode.value, "by": by, "child": child, "parent": parent}
            more = {"priority": priority, "cycle": cycle, "group": group}
            return record | {name: value for name, value in more.items() if value is not None}
        case Delegate(by, to, operations):
            record = {"event": "delegate", "by": by, "to": to}
            return record if operations is None else {**record, "operations": list(operations)}
        case Begin(by, parent):
            record = {"event": "begin", "by": by}
            return record if parent is None else {**record, "parent": parent}
        case Commit(by):
            return {"event": "commit", "by": by}
        case Abort(by):
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
            raise ValueError(f"{name!r} is no whole number: {json.dumps(value)[:60]}")
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
            raise ValueError(f"{name!r} is no list of whole numbers")
        return tuple(value)

    def path(self, name: str) -> tuple[str, ...]:
        value = self.take(name)
        if not isinstance(value, list) or not value or any(type(p) is not str for p in value):
            raise ValueError(f"{name!r} is no list of one or more strings")
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
        return Operation(f.number("by"), number, kind, f.path("object"), saw)

    return read


def _spawn(mode: SpawnMode) -> Callable[[_Fields], Event]:
    return lambda f: Spawn(
        f.number("by"),
        f.number("child"),
        mode,
        f.number_or_none("parent", required=True),
        f.number_or_none("priority"),
        f.number_or_none("cycle"),
        f.number_or_none("group"),
    )


_READERS: dict[str, Callable[[_Fields], Event]] = {
    "begin": lambda f: Begin(f.number("by"), f.number_or_none("parent")),
    "commit": lambda f: Commit(f.number("by")),
    "abort": lambda f: Abort(f.number("by")),
    "delegate": lambda f: Delegate(f.number("by"), f.number("to"), f.numbers_or_none("operations")),
    "commit_operation": lambda f: CommitOperation(f.number("by"), f.number("operation")),
    "abort_operation": lambda f: AbortOperation(f.number("by"), f.number("operation")),
    **{kind.value: _operation(kind) for kind in OperationKind},
    **{mode.value: _spawn(mode) for mode in SpawnMode},
}


def _event(number: int, line: str | bytes) -> Event:
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise ValueError("this is no JSON object")
        fields = _Fields(record)
        name = fields.take("event")
        reader = _READERS.get(name) if isinstance(name, str) else None
        if reader is None:
            known = ", ".join(_READERS)
            raise ValueError(f"unknown event {json.dumps(name)[:60]}; known are: {known}")
        event = reader(fields)
        fields.finish()
    except json.JSONDecodeError as error:
        raise BadLine(number, f"this is no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise BadLine(number, str(error)) from error
    return event
