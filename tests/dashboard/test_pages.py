"""The pages in a real browser, of a recorded process in which every name is hostile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.dashboard.conftest import Visit, started

expect = pytest.importorskip("playwright.sync_api", reason="no playwright").expect

TOKEN = "sixteen or more of them"
PAGES = (
    "/",
    "/transactions",
    "/transactions/17",
    "/transactions/3",  # not kept any more
    "/locks",
    "/deadlocks/1",
    "/rules",
    "/events",
    "/batches?workflow=calls&id=calls%233",
)

NAMELESS = """() => [...document.querySelectorAll("button, a, input, [role=region], [role=img]")]
    .filter((e) => e.offsetParent && !e.textContent.trim() && !e.ariaLabel
        && !(e.labels && e.labels.length)).map((e) => e.outerHTML)"""
BARE_TABLES = """() => [...document.querySelectorAll("table")]
    .filter((e) => !e.caption?.textContent.trim()).length"""

Open = Callable[..., Visit]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with started("tests.dashboard.recorded", "0", TOKEN, "writable") as (address, _):
        yield address


@pytest.fixture
def inside(address: str, visit: Open) -> Visit:
    """A browser that knows the token."""
    made = visit(address)
    made.open(f"/?token={TOKEN.replace(' ', '%20')}").close()
    return made


@pytest.mark.long
def test_every_page_fits_is_labelled_and_loads_nothing_from_elsewhere(
    inside: Visit, address: str
) -> None:
    visit = inside
    for path in PAGES:
        page = visit.open(path)
        expect(page.locator(".adb-main h1")).to_be_visible()
        expect(page.locator("header nav a")).to_have_count(6)
        for chart in page.locator(".adb-chart").all():
            expect(chart.locator("canvas")).to_have_count(1)
        assert page.evaluate(NAMELESS) == [], path
        assert page.evaluate(BARE_TABLES) == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 844})
        expect(page.locator("body.body--dark")).to_have_count(1)
        page.wait_for_function("document.documentElement.scrollWidth <= 390")
        assert page.evaluate("window.hacked === undefined"), path
        page.close()
    sandboxed = [each for each in visit.problems if "drawing.svg" in each]
    assert sandboxed, "the drawing's script should have been refused"
    assert [each for each in visit.problems if each not in sandboxed] == []
    host = address.removeprefix("http://").rstrip("/")
    allowed = (f"http://{host}/", f"ws://{host}/", "data:", "blob:")
    assert [url for url in visit.requests if not url.startswith(allowed)] == []


@pytest.mark.long
def test_names_are_shown_as_they_are_and_never_read_as_markup(inside: Visit) -> None:
    page = inside.open("/rules")
    rules = page.get_by_role("region", name="Rules", exact=True)
    row = rules.get_by_role("row").filter(has_text="<img src=x onerror=")
    expect(row).to_have_count(1)
    assert page.locator(".adb-main img").count() == 0


@pytest.mark.long
def test_page_changes_as_one_looks_until_it_is_paused(inside: Visit) -> None:
    page, other = inside.open("/"), inside.open("/")
    counters = page.get_by_role("region", name="Counters")
    before = counters.inner_text()
    expect(counters).not_to_have_text(before, use_inner_text=True)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
    shown = other.get_by_role("region", name="Counters")
    for _ in range(2):  # what was under way when it was pressed is shown by then
        expect(shown).not_to_have_text(shown.inner_text(), use_inner_text=True)
    paused = counters.inner_text()
    for _ in range(2):
        expect(shown).not_to_have_text(shown.inner_text(), use_inner_text=True)
    assert counters.inner_text() == paused
    page.get_by_role("button", name="Pause").click()
    expect(counters).not_to_have_text(paused, use_inner_text=True)


@pytest.mark.long
def test_table_is_sorted_and_filtered_from_the_keyboard(inside: Visit) -> None:
    page = inside.open("/rules")
    rules = page.get_by_role("region", name="Rules", exact=True)
    heading = rules.get_by_role("columnheader", name="Rule")
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "ascending")
    names = rules.locator("tbody tr td:first-child").all_inner_texts()
    assert names[1:] == sorted(names[1:], key=str.lower)
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    page.get_by_role("searchbox").fill("NOTIFY")
    expect(rules.locator("tbody tr")).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing has this")
    expect(page.get_by_text("No matching rows.")).to_be_visible()


@pytest.mark.long
def test_rule_is_switched_only_after_a_yes(inside: Visit) -> None:
    page = inside.open("/rules")
    row = page.get_by_role("row").filter(has_text="write_down")
    disable = page.get_by_role("button", name="Disable write_down")
    disable.click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("Disable rule write_down?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    expect(row).to_contain_text("enabled")
    disable.click()
    page.get_by_role("alertdialog").get_by_role("button", name="Disable").click()
    expect(row).to_contain_text("disabled")
    page.get_by_role("button", name="Enable write_down").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Enable").click()
    expect(row).to_contain_text("enabled")


@pytest.mark.long
def test_open_decision_is_made_only_after_a_yes_and_then_gone(inside: Visit) -> None:
    page = inside.open("/rules")
    region = page.get_by_role("region", name="Open decisions")
    expect(region.locator("tbody tr")).to_have_count(4)
    expect(page.get_by_text("1 more are not shown")).to_be_visible()
    expect(region.get_by_text('EXIT: <img src=x onerror="window.hacked=1">').first).to_be_visible()
    decide = page.get_by_role("button", name="Decide d0 1")
    decide.click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text("Decide for rule notify?")
    boxes = dialog.get_by_role("checkbox")
    expect(boxes).to_have_count(2)
    expect(boxes.nth(0)).not_to_be_checked()
    expect(boxes.nth(1)).to_be_checked()
    assert page.evaluate("window.hacked === undefined")
    assert page.locator(".adb-dialog img").count() == 0
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    expect(region.locator("tbody tr")).to_have_count(4)
    other = inside.open("/rules")  # opened before it is decided
    decide.click()
    page.get_by_role("alertdialog").get_by_role("button", name="Decide").click()
    expect(page.get_by_text("Decision recorded")).to_be_visible()
    expect(region.locator("tbody tr")).to_have_count(2)
    other.get_by_role("button", name="Decide d0 0").click()
    other.get_by_role("alertdialog").get_by_role("button", name="Decide").click()
    expect(other.get_by_text("decision d0 was decided before")).to_be_visible()
    assert page.evaluate("window.hacked === undefined")


@pytest.mark.long
def test_events_of_one_kind_are_chosen(inside: Visit) -> None:
    page = inside.open("/events")
    page.get_by_role("button", name="Matches").click()
    expect(page.get_by_role("button", name="Matches")).to_have_attribute("aria-pressed", "true")
    kinds = page.locator("tbody tr td:nth-child(2)")
    expect(kinds.filter(has_text="row")).to_have_count(0)
    expect(kinds.first).to_have_text("composite")


@pytest.mark.long
def test_deadlock_is_replayed_step_by_step(inside: Visit) -> None:
    page = inside.open("/deadlocks/1")
    graph = page.get_by_role("img", name="Wait-for graph")
    expect(graph).to_have_attribute("aria-label", "Wait-for graph of the step: 11 waits for 12")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("Step 2 of 4: 12 asks for accounts")).to_be_visible()
    expect(graph).to_have_attribute(
        "aria-label", "Wait-for graph of the step: 11 waits for 12; 12 waits for 13"
    )
    expect(page.locator("li[aria-current=step]")).to_contain_text("12 asks for accounts")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_text("Step 4 of 4: 13 is the victim")).to_be_visible()
    expect(page.get_by_role("button", name="Play")).to_be_visible()


@pytest.mark.long
def test_theme_that_was_chosen_stays(inside: Visit) -> None:
    page = inside.open("/locks")
    page.get_by_role("button", name="Light/dark").click()
    expect(page.locator("body.body--dark")).to_have_count(1)
    page.reload()
    expect(page.locator("body.body--dark")).to_have_count(1)
    page.evaluate("localStorage.clear()")


@pytest.mark.long
def test_stranger_sees_a_form_and_comes_in_with_the_token(address: str, visit: Open) -> None:
    page = visit(address).context.new_page()
    answer = page.goto(f"{address}locks")
    assert answer is not None
    assert answer.status == 401
    page.get_by_label("Token").fill("a wrong one, of course")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_have_text("The token is wrong.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="Locks", exact=True)).to_be_visible()
    assert page.url == f"{address}locks"
    assert page.evaluate("document.cookie") == ""
