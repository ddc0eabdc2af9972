"""Connections that a forked child inherits: it must neither use them nor end their sessions.

Parent and child share each socket. So in the child its descriptor is redirected to ``/dev/null``: a
late write does not reach the server, and the server sees the end of the connection only when the
parent closes it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any
from weakref import WeakSet

import psycopg
from sqlalchemy import Engine, event

__all__ = ["leave_sockets", "track_sockets"]

_connections: WeakSet[Any] = WeakSet()


def track_sockets(engine: Engine) -> None:
    """Remember an engine's new connections, for `leave_sockets`."""
    event.listen(engine, "connect", lambda connection, _: _connections.add(connection))


def leave_sockets() -> None:
    """Detach from every remembered connection. REQUIRES: this is a forked child."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for connection in list(_connections):
            with contextlib.suppress(OSError, psycopg.Error):  # already closed
                os.dup2(nowhere, connection.fileno(), inheritable=False)
    finally:
        os.close(nowhere)
    _connections.clear()
