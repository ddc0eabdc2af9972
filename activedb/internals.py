"""Parts of an open database that monitors and test helpers look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from activedb.firing import Launcher, Triggering
from activedb.rules import Catalog
from activedb.store import Store
from activedb.streams import Stream, StreamRun
from activedb.transactions import Forest

__all__ = ["Internals"]


@dataclass(frozen=True, eq=False, slots=True)
class Internals:
    """Parts of an open database, as ``db.admin.internals``; they may change with any release.

    Attributes
    ----------
    streams, runs : mapping of str to Stream or StreamRun
        The declared streams, and the runs of those that have been used; both live.
    """

    store: Store
    catalog: Catalog
    forest: Forest
    triggering: Triggering
    launcher: Launcher
    streams: Mapping[str, Stream]
    runs: Mapping[str, StreamRun]
