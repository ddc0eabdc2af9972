"""Drafts: uncommitted changes to the catalog."""

from __future__ import annotations

from activedb.rules._registered import RegisteredRule
from activedb.transactions import Node

__all__ = ["Draft", "Drafts"]


class Draft:
    """Changes of one transaction, and the rules it ignores.

    Attributes
    ----------
    entries : dict
        Rule name to the changed rule; None if it is deleted.
    by_key : dict
        Event key to the rules of `entries` that listen to it, by name.
    ignored : dict
        For each open ``ignoring`` block, names of rules that events of the transaction do not
        trigger.
    """

    __slots__ = ("by_key", "entries", "ignored")

    def __init__(self) -> None:
        self.entries: dict[str, RegisteredRule | None] = {}
        self.by_key: dict[tuple[str, str], dict[str, RegisteredRule]] = {}
        self.ignored: dict[object, frozenset[str]] = {}

    def put(self, name: str, entry: RegisteredRule | None) -> None:
        """Record a change of a rule; O(event keys of the rule)."""
        before = self.entries.get(name)
        if before is not None:
            for key in before.keys:
                del self.by_key[key][name]
        self.entries[name] = entry
        if entry is not None:
            for key in entry.keys:
                self.by_key.setdefault(key, {})[name] = entry


class Drafts(dict[int, dict[int, Draft]]):
    """Drafts of live transactions, by id of the top-level transaction and then by transaction id.

    False as long as there is none, and tested as a dict, which is faster than a method. The
    catalog's latch guards this object.
    """

    def of(self, t: Node) -> Draft:
        """Return the draft of a live transaction, empty if it had none."""
        return self.setdefault(t.hierarchy.top_id, {}).setdefault(t.id, Draft())

    def line(self, t: Node | None) -> list[Draft]:
        """Return the drafts that `t` sees, its own and its superiors', nearest first; O(depth)."""
        if t is None:
            return []
        drafts = self.get(t.hierarchy.top_id)
        found: list[Draft] = []
        node: Node | None = t if drafts else None
        while node is not None and drafts:
            draft = drafts.get(node.id)
            if draft is not None:
                found.append(draft)
            node = node.parent
        return found

    def others_have(self, t: Node | None, name: str) -> bool:
        """Return whether a hierarchy other than that of `t` has changed a rule."""
        mine = None if t is None else t.hierarchy.top_id
        return any(
            name in draft.entries
            for top, drafts in self.items()
            if top != mine
            for draft in drafts.values()
        )

    def stop_ignoring(self, t: Node, token: object) -> None:
        """End an ``ignoring`` block, unless `t` has ended."""
        drafts = self.get(t.hierarchy.top_id, {})
        draft = drafts.get(t.id)
        if draft is None:
            return
        draft.ignored.pop(token, None)
        if not draft.ignored and not draft.entries:
            self._drop(t)

    def end(self, t: Node, *, committed: bool) -> dict[str, RegisteredRule | None]:
        """Remove the draft of a transaction that has ended; return the changes that this commits.

        A subtransaction that has committed hands its draft to its parent.
        """
        draft = self._drop(t)
        if draft is None or not committed:
            return {}
        if t.parent is None:
            return draft.entries
        if draft.entries:
            above = self.of(t.parent)
            for name, entry in draft.entries.items():
                above.put(name, entry)
        return {}

    def _drop(self, t: Node) -> Draft | None:
        drafts = self.get(t.hierarchy.top_id)
        if drafts is None:
            return None
        draft = drafts.pop(t.id, None)
        if not drafts:
            del self[t.hierarchy.top_id]
        return draft
