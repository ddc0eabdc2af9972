"""Monitor of a database object and its server, if the settings enable them."""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING, Self

from activedb.config import Settings
from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from activedb.database._database import Database
    from activedb.monitor import Exposition, Metrics, Monitor, MonitorServer

__all__ = ["Monitoring"]


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
        # Imports http.server, which is slow.
        from activedb.monitor import Monitor, MonitorServer

        monitor = Monitor(db)
        try:
            return cls(monitor, MonitorServer(monitor, settings, metrics=_metrics(db)))
        except ConfigurationError:
            monitor.close()
            db._store.close()
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
