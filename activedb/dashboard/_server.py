"""Server of the dashboard: pages, their poller, and access control."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, Response
from nicegui import app as pages_app
from nicegui import ui

from activedb.dashboard import pages
from activedb.dashboard._access import AccessMiddleware, DashboardAccess
from activedb.dashboard._live import THEME
from activedb.dashboard._poller import Poller
from activedb.errors import ActiveDBError, ConfigurationError

if TYPE_CHECKING:
    from activedb.monitor import Source

__all__ = ["serve"]

_GRACE_S = 2
_BUILD_S = 10.0  # time limit for a page that asks the process
_STYLE = Path(__file__).with_name("style.css")

# A drawing is a separate document: it runs no scripts and loads no resources.
_DRAWING_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"

_is_used = False


def serve(
    source: Source,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    writable: bool = False,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve the dashboard until interrupted; once per process.

    Parameters
    ----------
    source : Source
        The monitor to show: ``db.admin.monitor`` of this process, or a ``RemoteMonitor`` of another
        one.
    host : str
        Address to listen on. Other computers reach it only if this is not loopback.
    port : int
        Port to listen on; 0 for any that is free.
    token : str or None
        Secret that visitors must know; needed unless `host` is loopback and nothing is `writable`.
    writable : bool
        Whether visitors can enable and disable rules, and make open decisions, if the source allows
        it as well.
    on_ready : callable
        Called with the address, without the token, once the server answers.

    Raises
    ------
    ConfigurationError
        If a token is missing or too short, the server cannot listen on the address, or `source`
        requires another token.
    ServerUnreachable
        If the process of `source` does not answer.
    KeyboardInterrupt
        When Ctrl-C has ended it.
    """
    global _is_used
    access = DashboardAccess(host, token)
    if writable and not access.needs_token:
        raise ConfigurationError(
            "a dashboard that may change something needs a token, as others on this computer can "
            "open it: say --token, or set ACTIVEDB_DASHBOARD_TOKEN"
        )
    assert not _is_used, "one dashboard per process"
    with _listening(host, port) as listener:
        source.state()  # else only a page would tell that there is no such process
        _is_used = True
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        poller = Poller(source)
        _add_pages(poller, is_writable=writable)
        _add_poller(poller, lambda: on_ready(address))
        logging.getLogger("nicegui").setLevel(logging.ERROR)  # its warnings quote addresses
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        ui.run_with(
            app,
            title="activedb",
            favicon="⚡",
            dark=None,
            tailwind=False,  # it would scan every change of the page for its own classes
            show_welcome_message=False,
            reconnect_timeout=10.0,
            message_history_length=100,
        )
        config = uvicorn.Config(
            AccessMiddleware(app, access),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=_GRACE_S,
        )
        before = signal.signal(signal.SIGTERM, _ended)  # uvicorn re-raises it after its stop
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, before)


def _ended(number: int, frame: FrameType | None) -> None:
    """End the dashboard on SIGTERM as if it were done."""


def _listening(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # clients that connect before the first page is ready wait for it
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"the dashboard cannot listen on {host}, port {port}: {reason}; say another --port "
            "(0: any that is free) or --host"
        ) from error
    return listener


def _add_poller(poller: Poller, on_ready: Callable[[], None]) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def start() -> None:
        await poller.look()
        tasks.append(asyncio.create_task(poller.run(), name="dashboard poller"))
        on_ready()

    async def stop() -> None:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    pages_app.on_startup(start)
    pages_app.on_shutdown(stop)


def _add_pages(poller: Poller, *, is_writable: bool) -> None:
    ui.add_css(_STYLE.read_text(encoding="utf-8"), shared=True)
    ui.add_head_html(THEME, shared=True)

    @ui.page("/")
    def overview() -> None:
        pages.overview_page(poller)

    @ui.page("/transactions")
    def transactions() -> None:
        pages.transactions_page(poller)

    @ui.page("/transactions/{id}", response_timeout=_BUILD_S)
    async def story(id: int) -> None:
        await pages.story_page(poller, id)

    @ui.page("/locks")
    def locks() -> None:
        pages.locks_page(poller)

    @ui.page("/deadlocks/{n}", response_timeout=_BUILD_S)
    async def replay(n: int) -> None:
        await pages.replay_page(poller, n)

    @ui.page("/rules", response_timeout=_BUILD_S)
    async def rules() -> None:
        await pages.rules_page(poller, is_writable=is_writable)

    @ui.page("/events")
    def events() -> None:
        pages.events_page(poller)

    @ui.page("/batches", response_timeout=_BUILD_S)
    async def batches(workflow: str | None = None, id: str | None = None) -> None:
        await pages.batches_page(poller, workflow, id)

    @pages_app.get("/drawing.svg")
    async def drawing(workflow: str | None = None, id: str | None = None) -> Response:
        try:
            found = await asyncio.to_thread(poller.source.batches, workflow, id)
        except ActiveDBError:  # the page that shows it reports the error
            found = {"svg": None}
        return Response(
            found["svg"] or "",
            200 if found["svg"] else 404,
            {"content-security-policy": _DRAWING_POLICY, "cache-control": "no-store"},
            "image/svg+xml",
        )
