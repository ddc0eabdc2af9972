"""Servers and schemas for tests."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from activedb.store.server import EmbeddedServer, drop_left_schemas, scratch_schema

__all__ = ["ScratchServer", "scratch_url"]


class ScratchServer:
    """A server for tests: an existing one, or an embedded one in a folder, kept between runs.

    Several processes may use the same folder. Schemas left behind by killed tests are dropped when
    no other process uses the server.

    Parameters
    ----------
    url : str or None
        URL of an existing server, with a role that may create schemas; None: the embedded one.
    folder : Path
        Data folder of the embedded server.

    Attributes
    ----------
    url : str
        May contain a password; don't log it.

    Raises
    ------
    InvalidURL, ServerUnreachable, ConfigurationError
    """

    def __init__(self, url: str | None, folder: Path):
        self._open = ExitStack()
        with self._open:
            if url is None:
                url = self._open.enter_context(EmbeddedServer.start(folder)).url
            self._open.enter_context(drop_left_schemas(url))
            self.url = url
            self._open = self._open.pop_all()

    def close(self) -> None:
        """Leave the server; an embedded one stops when no process uses it any more."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def scratch_url(server_url: str) -> AbstractContextManager[str]:
    """Yield the URL of an empty schema on a server; it is dropped when the block ends.

    Any program that gets it, for example as ``ACTIVEDB_URL``, works in that schema.

    Raises
    ------
    ServerUnreachable
    LockTimeout
        At the end, if another session has a transaction open in it.
    """
    return scratch_schema(server_url)
