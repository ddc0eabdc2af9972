"""The monitor of a database object and its server, if the settings ask for them."""

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
    """Both of them, opened and closed together.

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
        """Both, for a new database object; None if the settings do not ask for them.

        Raises
        ------
        ConfigurationError
            If it may not, or cannot, listen where the settings say; the database is closed then.
        """
        if settings.monitor == "off":
            return None
        # The library's HTTP server takes a while to import.
        from activedb.monitor import Monitor, MonitorServer

        monitor = Monitor(db)
        try:
            return cls(monitor, MonitorServer(monitor, settings, metrics=_metrics(db)))
        except ConfigurationError:
            monitor.close()
            db._store.close()
            raise

    def close(self) -> None:
        """Answer and watch no longer."""
        self.server.close()
        self.monitor.close()


def _metrics(db: Database) -> Metrics | None:
    """What tells Prometheus, from the first time that it asks; None if its extra is missing."""
    if importlib.util.find_spec("prometheus_client") is None:
        return None

    @functools.cache
    def exposition() -> Exposition:
        from activedb.monitor import Exposition

        return Exposition(db)

    return lambda accept: exposition().text(accept)
