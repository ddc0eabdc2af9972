"""Common parts of all pages: heading, navigation, the observed process, freshness of the data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nicegui import ui
from nicegui.element import Element

from activedb.dashboard._elements import Figure, text
from activedb.dashboard._live import Live
from activedb.dashboard._poller import Poller, Snapshot
from activedb.dashboard._words import clock_time, short

__all__ = ["PAGES", "THEME", "frame", "section"]

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


def _process(snapshot: Snapshot) -> list[Figure]:
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

    def show(snapshot: Snapshot) -> None:
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
