"""Monitor of another process, over HTTP."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from activedb.config import Settings, mask_url
from activedb.errors import ConfigurationError, DefinitionError, ServerUnreachable
from activedb.monitor._addresses import addresses

__all__ = ["RemoteMonitor", "attach"]

_TIMEOUT_S = 5.0
_BYTES_MAX = 50_000_000
_IDLE_MAX = 4


def attach(
    url: str | None = None, token: str | None = None, folder: Path | str | None = None
) -> RemoteMonitor:
    """Return the monitor of another process: at `url`, or the one that is found.

    Parameters
    ----------
    url : str, optional
        Its address. By default that of the newest process that uses the folder.
    token : str, optional
        The setting ``monitor_token`` by default.
    folder : Path or str, optional
        The setting ``folder`` by default.

    Raises
    ------
    ServerUnreachable
        If no url is given and no process with a monitor uses the folder.
    ConfigurationError
        If `url` is not a valid URL.
    """
    settings = Settings.load()
    if token is None and settings.monitor_token is not None:
        token = settings.monitor_token.get_secret_value()
    if url is None:
        place = folder or settings.folder
        found = addresses(place)
        if not found:
            raise ServerUnreachable(
                f"no process with a monitor uses the folder {place}: open its database with "
                f"monitor='on' (ACTIVEDB_MONITOR=on), or give the monitor's url"
            )
        url = found[0].url
    return RemoteMonitor(url, token)


class RemoteMonitor:
    """`Source` of another process; safe to use from many threads.

    Each request times out after five seconds.

    Parameters
    ----------
    url : str
        ``http://host:port``, or ``https`` through a proxy.
    token : str, optional

    Raises
    ------
    ConfigurationError
        If `url` is not valid; later, if the token is wrong or the request cannot be served.
    ServerUnreachable
        Later: if the process does not answer.
    """

    def __init__(self, url: str, token: str | None = None):
        self.url = mask_url(url.rstrip("/"))
        try:
            self._parts = urlsplit(url.rstrip("/"))
            host, self._port = self._parts.hostname, self._parts.port
            is_right = self._parts.scheme in ("http", "https") and bool(host)
            (host or "").encode("idna")
        except ValueError:
            is_right = False
        if not is_right:
            raise ConfigurationError(
                f"{self.url!r} is not an address of a monitor; give one like http://127.0.0.1:40123"
            )
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ConfigurationError(
                "the monitor's token has characters that cannot be sent; give it as it is set in "
                "monitor_token, which takes printable ASCII characters"
            )
        self._token = token
        self._latch = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<RemoteMonitor {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def state(self, since: int = 0) -> dict[str, Any]:
        """See `Source`."""
        state = self._get(f"/api/state?since={int(since)}")
        if "process" not in state or "last_seq" not in state:
            raise self._is_none()
        return state

    def transaction(self, id: int) -> dict[str, Any] | None:
        """See `Source`."""
        return self._get_if_there(f"/api/transactions/{int(id)}")

    def deadlock(self, n: int) -> dict[str, Any] | None:
        """See `Source`."""
        return self._get_if_there(f"/api/deadlocks/{int(n)}")

    def batches(self, workflow: str | None = None, id: str | None = None) -> dict[str, Any]:
        """See `Source`."""
        given = {"workflow": workflow, "id": id}
        query = urlencode({name: text for name, text in given.items() if text is not None})
        return self._get(f"/api/batches?{query}")

    def letters(self) -> dict[str, Any]:
        """See `Source`."""
        return self._get("/api/letters")

    def decisions(self) -> dict[str, Any]:
        """See `Source`."""
        return self._get("/api/decisions")

    def resolve(self, id: str, chosen: Sequence[int]) -> None:
        """See `Source`."""
        choose = ",".join(map(str, chosen)) or "none"
        self._post(f"/api/decisions/{quote(id, safe='')}/resolve?choose={choose}")

    def pending(self) -> dict[str, Any]:
        """See `Source`."""
        return self._get("/api/pending")

    def switch(self, rule: str, enabled: bool) -> None:
        """See `Source`."""
        verb = "enable" if enabled else "disable"
        self._post(f"/api/rules/{quote(rule, safe='')}/{verb}")

    def close(self) -> None:
        """Close all connections; safe to call again."""
        with self._latch:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _post(self, path: str) -> None:
        status, told = self._ask("POST", path)
        if status == http.HTTPStatus.NOT_FOUND:
            raise DefinitionError(str(told.get("error")))
        self._check(status, told)

    def _get(self, path: str) -> dict[str, Any]:
        status, told = self._ask("GET", path)
        self._check(status, told)
        return told

    def _get_if_there(self, path: str) -> dict[str, Any] | None:
        status, told = self._ask("GET", path)
        if status == http.HTTPStatus.NOT_FOUND:
            return None
        self._check(status, told)
        return told

    def _check(self, status: int, told: dict[str, Any]) -> None:
        if status == http.HTTPStatus.OK:
            return
        said = told.get("error") or f"status {status}"
        if status == http.HTTPStatus.UNAUTHORIZED:
            raise ConfigurationError(f"the monitor at {self.url} wants its token: {said}")
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServerUnreachable(f"the monitor at {self.url} cannot answer: {said}")
        raise ConfigurationError(f"the monitor at {self.url}: {said}")

    def _ask(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None
        if method == "POST":
            headers["Content-Type"], body = "application/json", b"{}"
        try:
            status, data = self._exchange(method, self._parts.path + path, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerUnreachable(
                f"no monitor answers at {self.url}: {error or type(error).__name__}; the process "
                f"may have ended, or listens elsewhere"
            ) from error
        try:
            told = json.loads(data) if data else {}
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise self._is_none()
        return status, told

    def _is_none(self) -> ServerUnreachable:
        return ServerUnreachable(
            f"the server at {self.url} is not a monitor of activedb; check the url"
        )

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Make one request over a kept connection, or over a new one if the kept one was closed.

        A request that changes something must not be sent twice, so its connection is a new one.
        """
        with self._latch:
            kept = self._idle.pop() if self._idle and method == "GET" else None
        if kept is not None:
            try:
                return self._once(kept, method, path, body, headers)
            except TimeoutError:
                raise
            except (OSError, http.client.HTTPException):
                pass
        return self._once(self._connect(), method, path, body, headers)

    def _connect(self) -> http.client.HTTPConnection:
        parts = self._parts
        is_secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        assert parts.hostname is not None
        return kind(parts.hostname, self._port, timeout=_TIMEOUT_S)

    def _once(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        """Make one request; keep the connection for the next one, or close it."""
        is_whole = False
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            data = response.read(_BYTES_MAX)
            is_whole = response.isclosed()
            if not is_whole:
                raise http.client.HTTPException("the answer is too long")
        finally:
            with self._latch:
                is_kept = is_whole and not self._is_closed and len(self._idle) < _IDLE_MAX
                if is_kept:
                    self._idle.append(connection)
            if not is_kept:
                connection.close()
        return response.status, data
