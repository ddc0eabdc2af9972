"""Marks in the server's log: the rules that a process triggers itself for its own writes."""

from __future__ import annotations

import json

from activedb.errors import StoreError
from activedb.rules import Catalog

__all__ = ["DATA_KINDS", "ReplicationMarks", "heard_by"]

DATA_KINDS = frozenset(("insert", "update", "delete"))


class ReplicationMarks:
    """Source of the mark with the rules that this process triggers itself for its own writes.

    The mark lists all rules on row changes that are defined here, in any coupling mode: a follower
    must not trigger disabled or ignored rules either. O(1); O(rules) after a change of the catalog.

    It is called with the schema of the database.
    """

    def __init__(self, catalog: Catalog):
        self._catalog = catalog
        self._known: tuple[int, str] = (0, "")

    def __call__(self, schema: str) -> str:
        version = self._catalog.version
        known = self._known
        if known[0] != version:
            rules = sorted(
                rule.name
                for rule in self._catalog
                if any(kind in DATA_KINDS for kind, _ in rule.on.keys)
            )
            said = json.dumps({"schema": schema, "rules": rules}) if rules else ""
            known = self._known = (version, said)
        return known[1]


def heard_by(content: bytes, schema: str) -> frozenset[str]:
    """Return the rules of the database in `schema` that a mark lists as already triggered.

    Raises
    ------
    StoreError
        If `content` is not a mark.
    """
    if not content:
        return frozenset()
    try:
        said = json.loads(content)
        return frozenset(said["rules"]) if said["schema"] == schema else frozenset()
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"a mark in the server's log is damaged: {content!r}") from error
