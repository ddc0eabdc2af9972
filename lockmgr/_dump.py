"""The lock table as text, for people and for tests that compare it to the letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._graph import lock_edges
from lockmgr._replies import resource_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lockmgr._modes import Mode
    from lockmgr._structures import Entry, Transaction

__all__ = ["dump"]


def dump(transactions: Iterable[Transaction], entries: Iterable[Entry]) -> str:
    """Draw the forest with its waits, then each resource with holders, retainers and queue.

    ::

        1
          2 waits for 3 (held)
          3
        accounts/7: held 3 X; retained 1 S; queue 2 X
    """
    roots = (t for t in transactions if t.parent is None)
    lines = [line for root in sorted(roots, key=_tid) for line in _tree(root, "")]
    lines += sorted(_entry(entry) for entry in entries)
    return "\n".join(lines) if lines else "empty"


def _tid(transaction: Transaction) -> int:
    return transaction.tid


def _tree(transaction: Transaction, indent: str) -> Iterator[str]:
    line = f"{indent}{transaction.tid}"
    if transaction.waiting is not None:
        edges = lock_edges(transaction.waiting)
        line += " waits for " + ", ".join(f"{edge.waited_for} ({edge.kind})" for edge in edges)
    yield line
    for child in sorted(transaction.children.values(), key=_tid):
        yield from _tree(child, indent + "  ")


def _entry(entry: Entry) -> str:
    parts = []
    if entry.holders:
        parts.append("held " + _locks(entry.holders))
    if entry.retainers:
        parts.append("retained " + _locks(entry.retainers))
    if entry.queue:
        waiting = (
            f"{request.transaction.tid} {request.mode.name}" + " upgrade" * request.upgrade
            for request in entry.queue
        )
        parts.append("queue " + ", ".join(waiting))
    return f"{resource_text(entry.resource)}: {'; '.join(parts)}"


def _locks(locks: Mapping[Transaction, Mode]) -> str:
    return ", ".join(f"{t.tid} {mode.name}" for t, mode in sorted(locks.items(), key=_by_tid))


def _by_tid(lock: tuple[Transaction, Mode]) -> int:
    return lock[0].tid
