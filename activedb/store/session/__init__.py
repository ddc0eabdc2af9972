"""Stores, sessions, and the flat transaction that stands for a hierarchy at the server."""

from activedb.store.session._connect import new_metadata, open_store, wait_for_server
from activedb.store.session._external_transaction import (
    ExternalSession,
    borrow,
    connection_of,
    listen_to,
)
from activedb.store.session._plain_use import UserConnection
from activedb.store.session._processes import Backend, Wakeups, send_wakeup
from activedb.store.session._session import Durable, Session
from activedb.store.session._store import TRIGGER_POINTS, Store

__all__ = [
    "TRIGGER_POINTS",
    "Backend",
    "Durable",
    "ExternalSession",
    "Session",
    "Store",
    "UserConnection",
    "Wakeups",
    "borrow",
    "connection_of",
    "listen_to",
    "new_metadata",
    "open_store",
    "send_wakeup",
    "wait_for_server",
]
