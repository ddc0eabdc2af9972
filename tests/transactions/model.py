"""A naive model of nested transactions: versions, visibility, delegation, abort.

Written from the rules alone (DESIGN, section 5; Saygin, Ulusoy, Chakravarthy, sections 2.2 and 3):

* a write goes to the writer's own workspace, as a row version or a tombstone;
* a read sees its own version, then the nearest superior's, then the committed row;
* a subtransaction that commits hands its workspace to its parent;
* a top-level transaction that commits makes its workspace the committed state;
* an abort drops the workspace, and with it what committed inferiors had handed over, and aborts
  the live inferiors; nothing else;
* no transaction commits before its children have ended.

No locks, no threads, no store: its user decides in which order things happen.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

__all__ = ["Model", "Node"]

Item: TypeAlias = Hashable
TOMBSTONE: Any = object()


class Node:
    """A transaction of the model.

    Attributes
    ----------
    parent : Node or None
    workspace : dict
        The versions it is responsible for, by item; `TOMBSTONE` where it deleted.
    children : list of Node
        Those that have not ended.
    state : str
        ``active``, ``committed`` or ``aborted``.
    """

    def __init__(self, parent: Node | None):
        self.parent = parent
        self.workspace: dict[Item, Any] = {}
        self.children: list[Node] = []
        self.state = "active"


class Model:
    """Committed rows by item, and what transactions do to them."""

    def __init__(self, committed: dict[Any, Any] | None = None):
        self.committed: dict[Any, Any] = dict(committed or {})

    def begin(self, parent: Node | None = None) -> Node:
        """Begin a transaction, top-level or as a child."""
        node = Node(parent)
        if parent is not None:
            assert parent.state == "active"
            parent.children.append(node)
        return node

    def read(self, node: Node, item: Item) -> Any:
        """Return what `node` sees of an item, or None where there is nothing."""
        seeker: Node | None = node
        while seeker is not None:
            if item in seeker.workspace:
                version = seeker.workspace[item]
                return None if version is TOMBSTONE else version
            seeker = seeker.parent
        return self.committed.get(item)

    def scan(self, node: Node) -> dict[Any, Any]:
        """Return all that `node` sees, by item."""
        line = []
        seeker: Node | None = node
        while seeker is not None:
            line.append(seeker)
            seeker = seeker.parent
        seen = dict(self.committed)
        for superior in reversed(line):
            seen.update(superior.workspace)
        return {item: version for item, version in seen.items() if version is not TOMBSTONE}

    def write(self, node: Node, item: Item, value: Any) -> None:
        """Write a version, or a tombstone if `value` is None."""
        assert node.state == "active"
        node.workspace[item] = TOMBSTONE if value is None else value

    def commit(self, node: Node) -> None:
        """Commit: delegate to the parent, or make the versions the committed state."""
        assert node.state == "active"
        assert not node.children, "children end before their parent"
        node.state = "committed"
        if node.parent is not None:
            node.parent.workspace.update(node.workspace)
            node.parent.children.remove(node)
            return
        for item, version in node.workspace.items():
            if version is TOMBSTONE:
                self.committed.pop(item, None)
            else:
                self.committed[item] = version

    def abort(self, node: Node) -> None:
        """Abort: the live inferiors too; all that the sphere wrote is gone."""
        assert node.state == "active"
        for child in list(node.children):
            self.abort(child)
        node.state = "aborted"
        node.workspace.clear()
        if node.parent is not None:
            node.parent.children.remove(node)
