"""Record of a program of nested transactions, written by its own threads.

A history is a list of events, each with the moment at which it was written. They come from one
recorder per process; the moments are those of the machine's monotonic clock, which processes share.
Each event goes out at once, so what a process did before it was killed is known::

    begin node parent          before the node's first operation
    append node key value      before the append is tried
    appended value             when it has returned
    read node key values since (it was asked for at `since`)
    committing node            before the node's commit is tried
    end node outcome           when its end has been reported
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

NEVER = math.inf


class Outcome(StrEnum):
    """Outcome of a transaction, as far as its program knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Node:
    """A transaction of the forest.

    Attributes
    ----------
    began, committing, ended : float
        When it began, when its commit was tried, when its end was known; NEVER if not.
    """

    name: str
    parent: Node | None
    began: float
    outcome: Outcome = Outcome.UNKNOWN
    committing: float = NEVER
    ended: float = NEVER

    def __str__(self) -> str:
        return self.name

    def line(self) -> Iterator[Node]:
        """The node and its superiors, upwards."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def top(self) -> Node:
        """The top-level transaction of its hierarchy."""
        return list(self.line())[-1]

    def outside(self, other: Node | None) -> list[Node]:
        """The part of its line, upwards, that `other` is not within; other None: all of it."""
        within = set() if other is None else {id(node) for node in other.line()}
        found = []
        for node in self.line():
            if id(node) in within:
                break
            found.append(node)
        return found


def is_committed(nodes: Iterable[Node]) -> bool:
    """Return whether all of them have committed."""
    return all(node.outcome is Outcome.COMMITTED for node in nodes)


@dataclass(slots=True)
class Append:
    node: Node
    key: str
    value: int
    began: float
    ended: float = NEVER


@dataclass(slots=True)
class Read:
    node: Node
    key: str
    values: tuple[int, ...]
    began: float
    ended: float
    is_scan: bool = False


@dataclass(slots=True)
class History:
    """All nodes and operations, and the lists as they were when everything had ended."""

    nodes: dict[str, Node] = field(default_factory=dict)
    appends: dict[int, Append] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    final: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _by_key: dict[str, list[Append]] = field(default_factory=lambda: defaultdict(list))
    _appends: dict[str, list[Append]] = field(default_factory=lambda: defaultdict(list))
    _reads: dict[str, list[Read]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, events: Iterable[dict[str, Any]], final: dict[str, Iterable[int]]) -> History:
        """Build a history from the events of all recorders, each recorder's in its own order."""
        history = cls(final={key: tuple(values) for key, values in final.items()})
        for event in events:
            history._add(event)
        return history

    @classmethod
    def parse(cls, text: str) -> History:
        """Read a history written by hand, one event per line, in the order in which they happen.

        ::

            T1 append x 1        a transaction begins with its first line
            T1.1 read x 1        T1.1 is a child of T1; "scan" instead of "read" for a scan
            T1.1 abort           or commit; T1 without either: unknown
            final x 1            the list at the end
        """
        events: list[dict[str, Any]] = []
        final: dict[str, list[int]] = {}
        seen: set[str] = set()
        for at, line in enumerate(filter(None, map(str.strip, text.splitlines()))):
            name, verb, *rest = line.split()
            if name == "final":
                final[verb] = [int(value) for value in rest]
                continue
            parts = name.split(".")
            for depth in range(1, len(parts) + 1):
                node = ".".join(parts[:depth])
                if node not in seen:
                    seen.add(node)
                    parent = ".".join(parts[: depth - 1]) or None
                    events.append({"is": "begin", "node": node, "parent": parent, "at": at})
            event: dict[str, Any] = {"is": verb, "node": name, "at": at}
            if verb == "append":
                event |= {"key": rest[0], "value": int(rest[1])}
                events += [event, {"is": "appended", "value": int(rest[1]), "at": at}]
            elif verb in ("read", "scan"):
                event |= {"is": "read", "key": rest[0], "since": at, "scan": verb == "scan"}
                events.append(event | {"values": [int(value) for value in rest[1:]]})
            else:
                outcome = {"commit": Outcome.COMMITTED, "abort": Outcome.ABORTED}[verb]
                if outcome is Outcome.COMMITTED:
                    events.append({"is": "committing", "node": name, "at": at})
                events.append({"is": "end", "node": name, "outcome": outcome, "at": at})
        return cls.of(events, final)  # type: ignore[arg-type]

    def appends_to(self, key: str) -> list[Append]:
        """All appends to one list, aborted ones too."""
        return self._by_key[key]

    def appends_within(self, top: Node | None) -> list[Append]:
        """The appends of one hierarchy, or of all."""
        return list(self.appends.values()) if top is None else self._appends[top.name]

    def reads_within(self, top: Node | None) -> list[Read]:
        """The reads of one hierarchy, or of all."""
        return self.reads if top is None else self._reads[top.name]

    def _add(self, event: dict[str, Any]) -> None:
        at = event["at"]
        match event["is"]:
            case "begin":
                parent = None if event["parent"] is None else self.nodes[event["parent"]]
                self.nodes[event["node"]] = Node(event["node"], parent, at)
            case "append":
                node, value = self.nodes[event["node"]], event["value"]
                assert value not in self.appends, f"{value} is appended twice"
                append = self.appends[value] = Append(node, event["key"], value, at)
                self._by_key[append.key].append(append)
                self._appends[node.top.name].append(append)
            case "appended":
                self.appends[event["value"]].ended = at
            case "read":
                node, values = self.nodes[event["node"]], tuple(event["values"])
                read = Read(node, event["key"], values, event["since"], at, event["scan"])
                self.reads.append(read)
                self._reads[node.top.name].append(read)
            case "committing":
                self.nodes[event["node"]].committing = at
            case "end":
                node = self.nodes[event["node"]]
                node.outcome, node.ended = Outcome(event["outcome"]), at


class Recorder:
    """Recorder of events; safe to use from many threads if `write` is.

    Parameters
    ----------
    write : callable
        Takes one event as a line of JSON. It should not return before the line is safe.
    """

    def __init__(self, write: Callable[[str], object]):
        self._write = write

    def begin(self, node: str, parent: str | None) -> None:
        self._put("begin", node=node, parent=parent)

    def append(self, node: str, key: str, value: int) -> None:
        self._put("append", node=node, key=key, value=value)

    def appended(self, value: int) -> None:
        self._put("appended", value=value)

    def read(self, node: str, key: str, values: list[int], since: int, *, scan: bool) -> None:
        self._put("read", node=node, key=key, values=values, since=since, scan=scan)

    def committing(self, node: str) -> None:
        self._put("committing", node=node)

    def end(self, node: str, outcome: Outcome) -> None:
        self._put("end", node=node, outcome=outcome)

    @staticmethod
    def now() -> int:
        """The moment, in nanoseconds, on a clock that all processes of the machine share."""
        return time.monotonic_ns()

    def _put(self, what: str, **values: Any) -> None:
        self._write(json.dumps({"is": what, "at": self.now(), **values}))


def parsed(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Events from lines; the last one may have been cut off by a kill."""
    found = []
    for line in lines:
        if line.endswith("}"):
            found.append(json.loads(line))
    return found
