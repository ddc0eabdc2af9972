"""One connection of the monitor's server: uvicorn's, but no client can hold it for good."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Collection
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["Connection"]

CONNECTIONS_MAX = 32
PATIENCE_S = 10
"""Time after which a client that sends no whole request, or does not read, is dropped."""
_MAKES_ROOM_AFTER_S = 1.0
_LAST_WORD_S = 1.0
_LOOKS = 10
_NO_ROOM = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)


class Connection(H11Protocol):
    """Connection over which several requests may arrive.

    uvicorn limits how long a connection may be idle, but not how long a client takes to send a
    request or to read its answer, and it accepts any number of connections.
    """

    _since_s: float  # when the client connected, or was given the last answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make room for a new connection, or turn it away."""
        self._since_s = self.loop.time()
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()
        self._end_if_slow()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection for its client too if a forked child has a copy of the socket."""
        super().connection_lost(exc)
        with contextlib.suppress(OSError):
            self.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def on_response_complete(self) -> None:
        """Wait for the client to read the answer and to send the next request."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Close a connection that awaits a request; give the others a moment to end."""
        super().shutdown()
        self.loop.call_later(_LAST_WORD_S, self.transport.abort)

    def _waited_s(self) -> float:
        """Return how long the server has waited for the client; 0 if the client waits."""
        cycle = self.cycle
        is_asked = cycle is not None and not (cycle.more_body or cycle.response_complete)
        return 0.0 if is_asked and not self.flow.write_paused else self.loop.time() - self._since_s

    def _make_room(self) -> None:
        """Close the connection whose client is waited for longest, if long enough, or this one."""
        others = cast("Collection[Connection]", self.connections)
        slowest = max(others, key=Connection._waited_s)
        if slowest._waited_s() < _MAKES_ROOM_AFTER_S:
            self.transport.write(_NO_ROOM)
            self.transport.close()
        else:
            self.connections.discard(slowest)  # does not count until it is lost
            slowest.transport.abort()

    def _end_if_slow(self) -> None:
        """Close the connection, also if an answer is not read, or look again later."""
        if self._waited_s() > PATIENCE_S:
            self.transport.abort()
        elif self in self.connections:
            self.loop.call_later(PATIENCE_S / _LOOKS, self._end_if_slow)
