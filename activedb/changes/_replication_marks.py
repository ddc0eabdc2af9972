"""Which rules hear of what this process writes: marked in the server's log for who follows it."""

from __future__ import annotations

import json

from activedb.errors import StoreError
from activedb.rules import Catalog

__all__ = ["DATA_KINDS", "Raised", "heard_by"]

DATA_KINDS = frozenset(("insert", "update", "delete"))


class Raised:
    """Tells which rules hear of what this process writes.

    All that are on changes of rows and defined here, however they are coupled: also one that is
    disabled or ignored is not to hear of it from elsewhere. O(1), and O(rules) after a change.
    """

    def __init__(self, catalog: Catalog, schema: str):
        self._catalog = catalog
        self._schema = schema
        self._known: tuple[int, str] = (0, "")

    def __call__(self) -> str:
        version = self._catalog.version
        known = self._known
        if known[0] != version:
            rules = sorted(
                rule.name
                for rule in self._catalog
                if any(kind in DATA_KINDS for kind, _ in rule.on.keys)
            )
            said = json.dumps({"schema": self._schema, "rules": rules}) if rules else ""
            known = self._known = (version, said)
        return known[1]


def heard_by(content: bytes, schema: str) -> frozenset[str]:
    """The rules of the database in `schema` that `content`, a mark, says have heard.

    Raises
    ------
    StoreError
        If it is no mark.
    """
    if not content:
        return frozenset()
    try:
        said = json.loads(content)
        return frozenset(said["rules"]) if said["schema"] == schema else frozenset()
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"a mark in the server's log is damaged: {content!r}") from error
