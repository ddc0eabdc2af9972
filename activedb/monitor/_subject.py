"""Interface of a database object to the monitor, which is in a lower layer."""

from __future__ import annotations

from typing import Any, Protocol

from activedb.config import Settings
from activedb.rules import Catalog
from activedb.streams import Stream, StreamRun
from activedb.transactions import Forest

__all__ = ["Subject"]


class Subject(Protocol):
    """A `Database`; ``docs/architecture.md`` says why it is not imported here."""

    settings: Settings
    _forest: Forest
    _catalog: Catalog
    _streams: dict[str, Stream]
    _stream_runs: dict[str, StreamRun]
    _triggering: Any
    _launcher: Any
    _closed: bool
    rules: Any
    decisions: Any
    dead_letters: Any
    workflows: Any
    admin: Any
