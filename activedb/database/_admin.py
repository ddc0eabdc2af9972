"""Operation of a database: its state, counters, history, tables and monitor."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from activedb.config import Settings
from activedb.database._recording import Recording
from activedb.errors import ConfigurationError
from activedb.firing import PendingFiring, read_pending
from activedb.internals import Internals
from activedb.transactions import Snapshot, own_table
from coupling.acta import History

if TYPE_CHECKING:
    from activedb.database._database import Database
    from activedb.monitor import Exposition, Metrics, Monitor, MonitorServer

__all__ = ["Admin", "Monitoring"]


class Monitoring:
    """A monitor and its server, opened and closed together.

    Attributes
    ----------
    monitor : Monitor
    server : MonitorServer
    """

    def __init__(self, monitor: Monitor, server: MonitorServer):
        self.monitor = monitor
        self.server = server

    @classmethod
    def open(cls, db: Database, settings: Settings) -> Self | None:
        """Open both for a new database object; return None if the settings do not enable them.

        Raises
        ------
        ConfigurationError
            If the server may not, or cannot, listen at the address in the settings. The store is
            closed.
        """
        if settings.monitor == "off":
            return None
        # Slow to import: asyncio, http.client, and for the server uvicorn.
        from activedb.monitor import Monitor, MonitorServer

        monitor = Monitor(db)
        try:
            return cls(monitor, MonitorServer(monitor, settings, metrics=_metrics(db)))
        except ConfigurationError:
            monitor.close()
            db.admin.internals.store.close()
            raise

    def close(self) -> None:
        """Stop the server and the monitor."""
        self.server.close()
        self.monitor.close()


def _metrics(db: Database) -> Metrics | None:
    """Return the source of Prometheus metrics, made on first use; None if the extra is missing."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None

    @functools.cache
    def exposition() -> Exposition:
        from activedb.monitor import Exposition

        return Exposition(db)

    return lambda accept: exposition().text(accept)


class Admin:
    """State, counters, history and tables of a database, as this process knows them.

    Attributes
    ----------
    internals : Internals
        Parts of the database, for monitors and test helpers.
    """

    def __init__(
        self,
        *,
        internals: Internals,
        recording: Recording | None,
        monitor: Callable[[], Monitor | None],
    ):
        self.internals = internals
        self._monitor = monitor
        self._recording = recording

    @property
    def monitor(self) -> Monitor | None:
        """Monitor with the activity of this process; None if the setting `monitor` is off."""
        return self._monitor()

    def counters(self) -> dict[str, int]:
        """Return counts since opening: transactions by outcome, matches, rules fired.

        ``partials_dropped`` counts the occurrences that the detectors of all rules forgot because
        there were too many. Two further values describe the present state: ``partials``, the
        occurrences that these detectors keep for later matches; and ``events_waiting``, the events
        of streams that neither punctuation nor producers have passed. O(rules).
        """
        kept = [
            e.subscription for e in self.internals.catalog.entries() if e.subscription.is_stateful
        ]
        return {
            **self.internals.forest.counters.snapshot(),
            **self.internals.triggering.counters.snapshot(),
            "partials": sum(subscription.partials for subscription in kept),
            "partials_dropped": sum(subscription.dropped for subscription in kept),
            "events_waiting": sum(run.waiting for run in list(self.internals.runs.values())),
        }

    def history(self) -> History:
        """Return the recorded history of the hierarchies that have ended and are still kept.

        ``db.admin.history().write(path)`` writes a file for ``activedb audit``. O(n log n) for n
        events.

        Raises
        ------
        ConfigurationError
            If the setting `recording` is off.
        """
        if self._recording is None:
            raise ConfigurationError(
                "nothing is recorded; open the database with recording='full' or 'sampled'"
            )
        return self._recording.history()

    def locks(self) -> Snapshot:
        """Return a snapshot of the locks held and retained, and of the waits; ``.text()`` draws it.

        O(locks and waits).
        """
        return self.internals.forest.locks.snapshot()

    def row_counts(self) -> dict[str, int]:
        """Return the number of committed rows of each declared table, by name."""
        return self.internals.store.row_counts()

    def rule_latency_s(self, quantile: float) -> float:
        """Return a quantile of the seconds from the start of a rule to the end of its action."""
        return self.internals.triggering.figures.latencies().quantile(quantile)

    def pending_firings(self) -> list[PendingFiring]:
        """Return the recorded, unfinished firings of rules in separate transactions, oldest first.

        The list includes firings that run at this moment. O(n log n).
        """
        return read_pending(self.internals.launcher.journal)

    def own(self, *tables: Any) -> None:
        """Keep tables in the memory of this process, which becomes their only user.

        Reads of their rows do not go to the server; each commit still writes them there. Loading
        takes O(rows) per table, once. On ``memory://``, where all tables are in memory, the call
        has no effect.

        Parameters
        ----------
        *tables : Table or mapped class
            Tables to own.

        Raises
        ------
        TableOwned
            If another process owns or uses a table. Later operations on the table raise it if the
            connection was lost and the table has had another owner since.
        DefinitionError
            If the server itself changes rows of a table (triggers, cascading foreign keys, …), or
            the table is declared twice.
        """
        for table in tables:
            own_table(self.internals.forest, self.internals.forest.tables.spec(table))

    def declare_existing(self) -> None:
        """Declare the tables that exist in the database, except activedb's own.

        Tables that are declared already stay as they are declared.
        """
        self.internals.store.declare_existing()
