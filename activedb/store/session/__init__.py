"""Stores, and the flat transaction that the server sees of a hierarchy."""

from activedb.store.session._connect import new_metadata, open_store, wait_for_server
from activedb.store.session._external_transaction import (
    BorrowedSession,
    borrow,
    connection_of,
    listen_to,
)
from activedb.store.session._plain_use import PlainUse
from activedb.store.session._server_waits import Backend
from activedb.store.session._session import Durable, Session
from activedb.store.session._store import TRIGGER_POINTS, Store
from activedb.store.session._wakeups import Hints, give_hint

__all__ = [
    "TRIGGER_POINTS",
    "Backend",
    "BorrowedSession",
    "Durable",
    "Hints",
    "PlainUse",
    "Session",
    "Store",
    "borrow",
    "connection_of",
    "give_hint",
    "listen_to",
    "new_metadata",
    "open_store",
    "wait_for_server",
]
