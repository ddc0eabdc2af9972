"""Check of whether a server accepts connections, without a login, like ``pg_isready``.

libpq reports a refused connection only as text, in the server's language; so the check is made
below libpq, whose own ping blocks every Python thread.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import ssl
import struct
from collections.abc import Iterable

__all__ = ["Readiness", "readiness"]

_ASK_S_MAX = 5.0
_LENGTH = struct.Struct("!I")
_TLS = struct.pack("!II", 8, 80877103)
_NAMES = b"user\0activedb\0database\0activedb\0application_name\0activedb\0\0"
_START = struct.pack("!II", 8 + len(_NAMES), 3 << 16) + _NAMES
_STARTING = b"57P03"
_ANSWER_MAX = 10_000


class Readiness(enum.Enum):
    """Server's answer to a process that wants to connect."""

    READY = enum.auto()
    STARTING = enum.auto()
    SILENT = enum.auto()


def readiness(places: Iterable[tuple[str, int]]) -> Readiness:
    """Return the best answer of several servers, each a host or socket folder, and a port."""
    found = {_of(host, port) for host, port in places}
    order = (Readiness.READY, Readiness.STARTING, Readiness.SILENT)
    return next((one for one in order if one in found), Readiness.SILENT)


def _of(host: str, port: int) -> Readiness:
    try:
        with contextlib.ExitStack() as stack:
            if host.startswith(("/", "@")):
                wire = stack.enter_context(socket.socket(socket.AF_UNIX))
                wire.settimeout(_ASK_S_MAX)
                name = os.path.join(host, f".s.PGSQL.{port}")
                wire.connect(f"\0{name[1:]}" if host.startswith("@") else name)
            else:
                address = socket.create_connection((host, port), timeout=_ASK_S_MAX)
                wire = stack.enter_context(address)
                wire.sendall(_TLS)
                if wire.recv(1) == b"S":
                    wire = stack.enter_context(_unverified().wrap_socket(wire))
            wire.sendall(_START)
            return _understood(wire)
    except (OSError, ValueError):
        return Readiness.SILENT


def _understood(wire: socket.socket) -> Readiness:
    """Read the first message: an error with its code, or a request to authenticate."""
    head = _exactly(wire, 5)
    if head[:1] != b"E":
        return Readiness.READY
    size = min(_LENGTH.unpack(head[1:])[0] - 4, _ANSWER_MAX)
    fields = _exactly(wire, size).split(b"\0")
    return Readiness.STARTING if b"C" + _STARTING in fields else Readiness.READY


def _exactly(wire: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = wire.recv(size - len(found))
        if not more:
            raise ConnectionError("the server hung up")
        found += more
    return found


def _unverified() -> ssl.SSLContext:
    """Return a context without verification: nothing secret is sent; the later login verifies."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
