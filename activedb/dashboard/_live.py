"""Pages in one browser: their common frame, and their parts, updated on each look.

Each page is updated as fast as its browser can keep up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from nicegui import Client, background_tasks, ui
from nicegui.element import Element

from activedb.dashboard._elements import (
    Change,
    ChartLine,
    Figure,
    LiveChart,
    LiveFigures,
    LivePage,
    LiveTable,
    text,
)
from activedb.dashboard._poller import Poller, PollResult
from activedb.dashboard._tables import LiveColumn, Row
from activedb.dashboard._words import clock_time, short

__all__ = ["PAGES", "THEME", "Live", "frame", "section"]


_ANSWER_S = 10.0  # messages to a browser that is away or busy still reach it in order, later

_log = logging.getLogger(__name__)

_Part = Callable[[PollResult], Change | None]


class Live:
    """The changing parts of a page.

    The browser is sent the differences of the newest look, and the next ones only after it has
    acknowledged these: a slow browser gets fewer looks, and never lags behind.

    Parameters
    ----------
    poller : Poller
    """

    def __init__(self, poller: Poller):
        self.poller = poller
        self.is_paused = False
        self._client: Client = ui.context.client
        self._parts: list[_Part] = []
        self._page = LivePage(self._take)
        self._sent = self._taken = 0
        self._is_taken = asyncio.Event()
        self._client.on_connect(self._start)
        self._is_running = False

    def part(self, show: _Part) -> None:
        """Call `show` with each snapshot, in the page's context."""
        self._parts.append(show)

    def table(
        self,
        caption: str,
        columns: Sequence[LiveColumn],
        rows: Callable[[PollResult], list[Row]],
        *,
        empty: str,
        filterable: bool = False,
        height: str = "28rem",
        on_act: Callable[[str, str], object] | None = None,
        shared: bool = True,
    ) -> LiveTable:
        """Add a table of the rows that `rows` returns; `shared`: the same rows for all viewers."""

        def made(snapshot: PollResult) -> list[Row]:
            return snapshot.once(rows) if shared else rows(snapshot)

        now = self.poller.snapshot
        table = LiveTable(
            caption,
            columns,
            made(now),
            empty=empty,
            now_s=_now_s(now),
            filterable=filterable,
            height=height,
            on_act=on_act,
        )
        self.part(lambda snapshot: table.show(made(snapshot), _now_s(snapshot)))
        return table

    def figures(self, caption: str, of: Callable[[PollResult], list[Figure]]) -> LiveFigures:
        """Add the figures that `of` returns for a snapshot."""
        figures = LiveFigures(caption, self.poller.snapshot.once(of))
        self.part(lambda snapshot: figures.show(snapshot.once(of)))
        return figures

    def lines(
        self, label: str, unit: str, lines: Sequence[ChartLine], said: Callable[[PollResult], str]
    ) -> LiveChart:
        """Add a chart of the last minutes; each look sends only its new points."""
        history = self.poller.history
        chart = LiveChart.of_lines(label, unit, lines, history.points)
        sent = history.number, history.generation

        def show(snapshot: PollResult) -> Change | None:
            nonlocal sent
            number, generation = sent
            sent = history.number, history.generation
            if sent == (number, generation):
                return None
            points = history.points
            clear = generation != history.generation or history.number - number > len(points)
            new = points if clear else points[len(points) - (history.number - number) :]
            return chart.push(lines, new, clear=clear, said=said(snapshot))

        self.part(show)
        return chart

    def now(self, table: LiveTable, rows: Callable[[PollResult], list[Row]]) -> None:
        """Show other rows of the last snapshot at once, after a choice of the user."""
        change = table.show(rows(self.poller.snapshot), _now_s(self.poller.snapshot))
        if change is not None:
            self.tell(change)

    def tell(self, change: Change) -> None:
        """Send one change to the browser, outside of the looks."""
        self._send([change])

    def _start(self) -> None:
        if not self._is_running:
            self._is_running = True
            background_tasks.create(self._run(), name="dashboard page")

    async def _run(self) -> None:
        number = -1  # so that changes since the page was built are sent, too
        try:
            with self.poller.watching(), self._client:
                while not self._client.is_deleted:
                    snapshot = await self.poller.after(number)
                    number = snapshot.number
                    if self.is_paused or not self._client.has_socket_connection:
                        continue
                    changes = self._changes(snapshot)
                    if changes:
                        await self._tell(changes)
        finally:
            self._is_running = False

    def _changes(self, snapshot: PollResult) -> list[Change]:
        """Return the change of each part; a part that fails is logged and skipped."""
        changes = []
        for part in self._parts:
            try:
                change = part(snapshot)
            except Exception as error:  # this look cannot be shown; the next ones may be
                _log.error("a part of a page cannot be shown: %s", type(error).__name__)
                continue
            if change is not None:
                changes.append(change)
        return changes

    async def _tell(self, changes: list[Change]) -> None:
        """Send all changes of a look as one message, and wait until the browser has drawn them."""
        number = self._send(changes)
        try:
            async with asyncio.timeout(_ANSWER_S):
                while self._taken < number:
                    self._is_taken.clear()
                    await self._is_taken.wait()
        except TimeoutError:
            _log.debug("a browser has not answered for %s s", _ANSWER_S)

    def _send(self, changes: list[Change]) -> int:
        self._sent += 1
        self._page.tell(changes, self._sent)
        return self._sent

    def _take(self, number: int) -> None:
        self._taken = max(self._taken, number)
        self._is_taken.set()


def _now_s(snapshot: PollResult) -> float:
    return 0.0 if snapshot.state is None else float(snapshot.state["process"]["now_s"])


# -- common parts of all pages: heading, navigation, the observed process, freshness of the data ---


PAGES = (
    ("/", "Overview"),
    ("/transactions", "Transactions"),
    ("/locks", "Locks"),
    ("/rules", "Rules"),
    ("/events", "Events"),
    ("/batches", "Batches"),
)

# Light or dark as the system prefers, until the user chooses; the browser keeps the choice.
THEME = """<script>
document.addEventListener("DOMContentLoaded", () => {
  const chosen = localStorage.getItem("activedb-dark");
  if (chosen !== null) setDark(chosen === "true");
});
</script>"""
_TOGGLE_THEME = """() => {
  const dark = !document.body.classList.contains("body--dark");
  setDark(dark);
  localStorage.setItem("activedb-dark", dark);
}"""


@contextmanager
def frame(poller: Poller, title: str, path: str) -> Iterator[Live]:
    """Yield a page; the block fills its main part.

    Parameters
    ----------
    title : str
        Heading of the page.
    path : str
        Entry of the navigation that the page belongs to.
    """
    ui.page_title(f"{short(title, 60)} · activedb")
    live = Live(poller)
    with text("header", classes="adb-header"):
        text("a", "activedb", "adb-brand", href="/")
        with text("nav", aria_label="Pages"), text("ul"):
            for target, name in PAGES:
                with text("li"):
                    link = text("a", name, href=target)
                    if target == path:
                        link.props["aria-current"] = "page"
        _buttons(live)
    with text("div", classes="adb-main") as main:  # the framework's page is the <main>
        ui.skip_link("Skip to content", target=main)
        text("h1", title)
        live.figures("Observed process", _process).classes("adb-status")
        _alarm(live)
        yield live


def _buttons(live: Live) -> None:
    with text("div", classes="adb-buttons"):
        pause = text("button", "Pause", "adb-button", type="button", aria_pressed="false")

        def toggle() -> None:
            live.is_paused = not live.is_paused
            pause.props["aria-pressed"] = "true" if live.is_paused else "false"
            pause.update()

        pause.on("click", toggle, [])
        theme = text("button", "Light/dark", "adb-button", type="button")
        theme.on("click", js_handler=_TOGGLE_THEME)


def _process(snapshot: PollResult) -> list[Figure]:
    if snapshot.state is None:
        return [Figure("Process", "no data yet")]
    process = snapshot.state["process"]
    return [
        Figure("Process", f"{short(process['host'], 40)}, pid {process['pid']}"),
        Figure("Database", short(process["url"], 60)),
        Figure("activedb", short(process["version"], 20)),
        Figure("As of", clock_time(process["now_s"])[:8], tone="bad" if snapshot.error else ""),
    ]


def _alarm(live: Live) -> None:
    """Show an alert while the process cannot be read."""
    alarm = text("p", "", "adb-alarm", role="alert")

    def show(snapshot: PollResult) -> None:
        said = snapshot.error
        if said and snapshot.state is not None:
            said = f"The data shown is old. {said}"
        alarm.set_visibility(bool(said))
        alarm.text = said

    show(live.poller.snapshot)
    live.part(show)


@contextmanager
def section(title: str, explanation: str = "") -> Iterator[Element]:
    """Yield a section of a page with a heading, and a sentence on how to read it."""
    with text("section", classes="adb-section") as made:
        text("h2", title)
        if explanation:
            text("p", explanation, "adb-small")
        yield made
