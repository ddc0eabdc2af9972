"""Deadlocks, kept as they were detected, to be replayed step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from activedb.monitor._records import TransactionRecord
from activedb.monitor._redaction import Redaction
from activedb.transactions import Link
from lockmgr import DeadlockReport, Edge, EdgeKind

__all__ = ["DeadlockSnapshot", "Deadlocks", "Wait", "edge_text", "replay", "summary"]

_KEPT = 50
_WAITS_MAX = 50
_DEPENDENT = "the dependent transaction is the victim"


class Wait(NamedTuple):
    """One edge of a cycle; ids of the server's processes are negative.

    Attributes
    ----------
    waiter, blocker : int
    kind : str
        An `lockmgr.EdgeKind`; in a deadlock through the server, the place where the waiter waits.
    resource : tuple or None
    mode, against : str or None
        The requested mode, and the mode in which the blocker holds or requests the resource.
    """

    waiter: int
    blocker: int
    kind: str
    resource: tuple[Hashable, ...] | None
    mode: str | None
    against: str | None


class DeadlockSnapshot(NamedTuple):
    """Snapshot of a deadlock, taken when it was detected.

    Attributes
    ----------
    n : int
        Number of the deadlock in this process, from 1.
    at_s : float
    victim : int
    policy : str
        The policy that chose the victim.
    nodes : tuple of dict
        The members of the cycle: id, label, path, called, rule.
    waits : tuple of Wait
        The edges of the cycle in the order in which the waits began if that order is known, else in
        the order of the cycle.
    left_out : int
        Number of edges that are not kept.
    is_ordered : bool
        True if the order of the waits is known.
    """

    n: int
    at_s: float
    victim: int
    policy: str
    nodes: tuple[dict[str, Any], ...]
    waits: tuple[Wait, ...]
    left_out: int
    is_ordered: bool


class Deadlocks:
    """The most recent deadlocks. Not thread-safe: the owner guards it with a latch."""

    def __init__(self) -> None:
        self._kept: deque[DeadlockSnapshot] = deque(maxlen=_KEPT)
        self.total = 0

    def all(self) -> list[DeadlockSnapshot]:
        """Return the deadlocks that are kept, the oldest first."""
        return list(self._kept)

    def get(self, n: int) -> DeadlockSnapshot | None:
        """Return the `n`-th deadlock, or None if it is no longer kept."""
        return next((found for found in self._kept if found.n == n), None)

    def add(
        self,
        at_s: float,
        victim: int,
        cycle: DeadlockReport | tuple[Link, ...],
        known: Callable[[int], TransactionRecord | None],
    ) -> DeadlockSnapshot:
        """Keep a deadlock.

        Parameters
        ----------
        cycle : DeadlockReport or tuple of Link
            The cycle as the lock manager reports it, or as links through the server.
        known : callable
            Returns the record of a transaction by its id, or None.
        """
        if isinstance(cycle, DeadlockReport):
            waits = [_wait(edge) for edge in cycle.waits or cycle.cycle]
            policy = cycle.policy if cycle.victim == victim else _DEPENDENT
            is_ordered = bool(cycle.waits)
        else:
            waits = [_crossing(link) for link in cycle]
            policy, is_ordered = "youngest hierarchy", False
        kept = tuple(waits[:_WAITS_MAX])
        ids = dict.fromkeys(each for wait in kept for each in (wait.waiter, wait.blocker))
        ids[victim] = None  # a whole hierarchy, while the waits name its inferiors
        self.total += 1
        found = DeadlockSnapshot(
            self.total,
            at_s,
            victim,
            policy,
            tuple(_node(each, known(each)) for each in ids),
            kept,
            len(waits) - len(kept),
            is_ordered,
        )
        self._kept.append(found)
        return found


def summary(found: DeadlockSnapshot, redaction: Redaction) -> dict[str, Any]:
    """Return a short description of a deadlock."""
    resources = dict.fromkeys(w.resource for w in found.waits if w.resource is not None)
    return {
        "n": found.n,
        "at_s": found.at_s,
        "victim": found.victim,
        "ids": [node["id"] for node in found.nodes],
        "resources": [redaction.resource(resource) for resource in resources],
    }


def replay(found: DeadlockSnapshot, redaction: Redaction) -> dict[str, Any]:
    """Return a deadlock step by step: the waits as they arose, the cycle, the victim."""
    edges = [
        {
            "waiter": wait.waiter,
            "blocker": wait.blocker,
            "kind": wait.kind,
            "resource": None if wait.resource is None else redaction.resource(wait.resource),
            "mode": wait.mode,
        }
        for wait in found.waits
    ]
    names = {node["id"]: _name(node) for node in found.nodes}
    steps = []
    for place, wait in enumerate(found.waits):
        text = _capital(wait_text(wait, redaction, names)) + "."
        steps.append({"text": text, "edges": edges[: place + 1]})
    cycle = "That closes a cycle: no transaction in it can proceed."
    if not found.is_ordered:
        cycle = "Together they are a cycle; which wait came first is not known."
    if found.left_out:
        cycle += f" {found.left_out} further waits were not kept."
    steps.append({"text": cycle, "edges": edges})
    victim = names.get(found.victim, str(found.victim))
    steps.append(
        {
            "text": f"{_capital(victim)} is the victim (policy: {found.policy}). Its request "
            f"is withdrawn, and it aborts.",
            "edges": [edge for edge in edges if edge["waiter"] != found.victim],
        }
    )
    return {
        "n": found.n,
        "at_s": found.at_s,
        "victim": found.victim,
        "policy": found.policy,
        "nodes": list(found.nodes),
        "steps": steps,
    }


def wait_text(wait: Wait, redaction: Redaction, names: dict[int, str] | None = None) -> str:
    """Describe which transaction waits for which, and why."""
    of = names or {}
    waiter, blocker = of.get(wait.waiter, str(wait.waiter)), of.get(wait.blocker, str(wait.blocker))
    if wait.resource is not None:
        why = {
            EdgeKind.HELD: f"which holds it in {wait.against}",
            EdgeKind.RETAINED: f"which retains it in {wait.against}",
            EdgeKind.SOFT: f"which has asked earlier for {wait.against}",
        }[EdgeKind(wait.kind)]
        wanted = f"{wait.mode} on {redaction.resource(wait.resource)}"
        return f"{waiter} wants {wanted} and waits for {blocker}, {why}"
    if wait.kind == EdgeKind.COMMIT:
        return f"{waiter} waits for its child {blocker} to end"
    if wait.kind == EdgeKind.INLINE:
        return f"{waiter} runs on the thread of its superior {blocker}, which waits"
    if wait.kind == EdgeKind.DEPENDENCY:
        return f"{waiter} waits for the end of {blocker}, on which it depends"
    return f"{waiter} waits {wait.kind} for {blocker}"


def edge_text(edge: Edge, redaction: Redaction) -> str:
    """Describe an edge of the lock manager, like `wait_text`."""
    return wait_text(_wait(edge), redaction)


def _wait(edge: Edge) -> Wait:
    return Wait(
        edge.waiter,
        edge.waited_for,
        str(edge.kind),
        edge.resource,
        None if edge.mode is None else edge.mode.name,
        None if edge.against is None else edge.against.name,
    )


def _crossing(link: Link) -> Wait:
    waiter, blocker = (x if isinstance(x, int) else x.id for x in (link.waiter, link.waited_for))
    if isinstance(link.waiter, int):
        waiter = -waiter
    if isinstance(link.waited_for, int):
        blocker = -blocker
    return Wait(waiter, blocker, link.where, None, None, None)


def _node(number: int, life: TransactionRecord | None) -> dict[str, Any]:
    if life is not None:
        return {
            "id": number,
            "label": life.label,
            "path": life.path,
            "called": life.called,
            "rule": life.rule,
        }
    label = f"process {-number} of the server" if number < 0 else str(number)
    return {"id": number, "label": label, "path": label, "called": "", "rule": None}


def _name(node: dict[str, Any]) -> str:
    if node["id"] < 0:
        return str(node["label"])
    what = f"rule {node['rule']}" if node["rule"] else node["called"]
    return f"transaction {node['id']}" + (f" ({what})" if what else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
