"""Bounded record of a process's activity, for web pages, terminals, Prometheus and traces.

See ``docs/monitoring.md`` first; the README beside this file describes the data structures.
"""

from activedb.monitor._addresses import Address, addresses
from activedb.monitor._logs import JsonFormatter, TransactionFilter, json_handler
from activedb.monitor._monitor import Monitor
from activedb.monitor._prometheus import (
    Collector,
    Exposition,
    Latencies,
    collector,
    grafana_dashboard,
)
from activedb.monitor._remote import RemoteMonitor, attach
from activedb.monitor._routes import Metrics
from activedb.monitor._server import MonitorServer
from activedb.monitor._source import Source
from activedb.monitor._tracing import Tracing, trace

__all__ = [
    "Address",
    "Collector",
    "Exposition",
    "JsonFormatter",
    "Latencies",
    "Metrics",
    "Monitor",
    "MonitorServer",
    "RemoteMonitor",
    "Source",
    "Tracing",
    "TransactionFilter",
    "addresses",
    "attach",
    "collector",
    "grafana_dashboard",
    "json_handler",
    "trace",
]
