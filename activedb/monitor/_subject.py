"""Interface of a database object to the monitor, which is in a lower layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from activedb.config import Settings
from activedb.rules import Catalog
from activedb.streams import Stream
from activedb.transactions import Forest

__all__ = ["Subject"]


class Subject(Protocol):
    """A `Database`; ``docs/architecture.md`` says why it is not imported here."""

    settings: Settings
    _forest: Forest
    _catalog: Catalog
    _streams: dict[str, Stream]
    _triggering: Any
    _launcher: Any
    _rules: Any
    _closed: bool

    @property
    def _stream_runs(self) -> Mapping[str, Any]: ...

    def counters(self) -> dict[str, int]:
        """See `Database`."""
        ...

    @property
    def decisions(self) -> Any:
        """See `Database`."""
        ...

    def dead_letters(self) -> list[Any]:
        """See `Database`."""
        ...

    def pending_firings(self) -> list[Any]:
        """See `Database`."""
        ...

    def recorded_workflows(self) -> list[str]:
        """See `Database`."""
        ...

    def batch_history(self, workflow: str) -> Any:
        """See `Database`."""
        ...
