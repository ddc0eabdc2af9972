"""HTTP server of the monitor: uvicorn, on a thread of its own."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from activedb.config import Settings
from activedb.errors import ConfigurationError
from activedb.monitor._addresses import Address, tell, withdraw
from activedb.monitor._application import Application, MonitorAccess
from activedb.monitor._routes import Metrics
from activedb.monitor._source import Source

__all__ = ["MonitorServer"]

_LOG = logging.getLogger(__name__)
_THREAD = "activedb-monitor"
_BACKLOG = 64


class MonitorServer:
    """Server that answers requests about one process, on separate threads, until it is closed.

    At most 32 connections are open at a time. To admit another, the server closes the connection
    whose client it has waited for longest, for a request or to read an answer, and for at least a
    second; if there is none, the new client is told to come back. A client that in ten seconds
    sends no whole request, or does not read an answer, is dropped. Nothing is cached, and no other
    site may read the answers.

    Parameters
    ----------
    source : Source
        The monitor to serve.
    settings : Settings
        Its ``monitor_…`` fields, and the folder, where the address is written.
    metrics : callable, optional
        Returns, for an ``Accept`` header, the text for Prometheus and its content type.

    Attributes
    ----------
    url : str
        Address of the server: ``http://127.0.0.1:40123``.

    Raises
    ------
    ConfigurationError
        If a token is missing, or the server cannot listen on the address. If another process uses
        the port, the server picks another one and logs a warning.
    """

    def __init__(self, source: Source, settings: Settings, metrics: Metrics | None = None):
        # Slow to import, and programs that only look at a monitor do without.
        import uvicorn

        from activedb.monitor._connection import CONNECTIONS_MAX, PATIENCE_S, Connection

        self._is_closed = False
        self._pid = os.getpid()
        self._threads = ThreadPoolExecutor(CONNECTIONS_MAX, f"{_THREAD}-answer")
        config = uvicorn.Config(
            Application(source, MonitorAccess(settings), metrics, self._threads),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            server_header=False,
            workers=1,
            backlog=_BACKLOG,
            # Answers may outlive connections that clients have closed.
            limit_concurrency=2 * CONNECTIONS_MAX,
            timeout_keep_alive=PATIENCE_S,
            timeout_graceful_shutdown=PATIENCE_S,
        )
        # The program may run under uvicorn itself, so its loggers are not reconfigured.
        for name in ("uvicorn.access", "uvicorn.asgi", "uvicorn.error"):
            logging.getLogger(name).addFilter(_is_logged)
        host = settings.monitor_host
        self._listener = _listening(host, settings.monitor_port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listener],), name=_THREAD, daemon=True
        )
        self._thread.start()
        self._file = tell(settings.folder, Address(self.url, self._pid, time.time()))
        _LOG.info("the monitor listens at %s", self.url)

    def close(self) -> None:
        """Stop answering, once pending requests are answered; safe to call again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pid != os.getpid():  # a fork inherits the socket, but neither threads nor file
            self._listener.close()
            return
        withdraw(self._file)
        self._server.should_exit = True
        self._thread.join()
        self._threads.shutdown(wait=False)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at that port, or at any if it is taken: the work must continue.

    Raises
    ------
    ConfigurationError
        If the address is not one of this computer, or this user may not take the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it, answers take 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == 0:
                raise
            listener.bind((host, 0))
            _LOG.warning(
                "another process has port %d: the monitor listens at port %d instead",
                *(port, listener.getsockname()[1]),
            )
        listener.listen(_BACKLOG)  # clients that connect before the thread runs wait for it
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"the monitor cannot listen at {host}:{port}: {error.strerror or error}; set "
            f"monitor_host to an address of this computer, and monitor_port to one that this "
            f"user may take, or to 0"
        ) from error
    return listener


def _is_logged(record: logging.LogRecord) -> bool:
    """Return whether to log a record of uvicorn: requests may contain names chosen by users."""
    return record.threadName != _THREAD or record.levelno >= logging.ERROR
