"""``activedb dashboard`` of a real database: load, a deadlock, waits, failures, batches, an end."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activedb.cli import main
from tests.dashboard.bank import TOKEN, Bank
from tests.dashboard.conftest import Visit, started

expect = pytest.importorskip("playwright.sync_api", reason="no playwright").expect

Open = Callable[..., Visit]
LOOKS = 5  # that a page must show while the load lasts


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    bank = Bank(tmp_path_factory.mktemp("bank"))
    bank.batches()
    yield bank
    bank.close()


@pytest.fixture(scope="module")
def dashboard(bank: Bank) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with started(
        "activedb", "dashboard", "--attach", bank.address, "--port", "0", "--no-open"
    ) as found:
        yield found


@pytest.fixture
def seen(dashboard: tuple[str, subprocess.Popen[str]], visit: Open) -> Visit:
    """A browser that looks at it."""
    return visit(dashboard[0])


@pytest.mark.long
def test_overview_keeps_up_with_a_load_and_ends_with_its_last_transaction(
    bank: Bank, seen: Visit
) -> None:
    page = seen.open("/")
    row = page.get_by_role("row").filter(has_text=re.compile("^transactions committed"))
    expect(row).to_have_count(1)
    texts: set[str] = set()

    def is_enough() -> bool:
        texts.add(row.inner_text())
        return len(texts) >= LOOKS

    done = bank.load(is_enough)
    assert done > 0
    committed = bank.db.admin.counters()["transactions_committed"]
    expect(row).to_contain_text(f"{committed:,}")
    expect(page.get_by_role("img", name="Throughput")).to_have_attribute(
        "aria-label", "Throughput: 0 committed, 0 aborted and 0 rules fired per second"
    )


@pytest.mark.long
@pytest.mark.parametrize("path", ["/transactions", "/events"])
def test_lists_keep_up_with_a_load(bank: Bank, seen: Visit, path: str) -> None:
    page = seen.open(path)
    status = page.locator(".adb-main")
    texts: set[str] = set()

    def is_enough() -> bool:
        texts.add(status.inner_text())
        return len(texts) >= LOOKS

    bank.load(is_enough)
    last = max(event["seq"] for event in bank.state()["events"])
    if path == "/events":
        newest = bank.state()["events"][-1]
        assert newest["seq"] == last
        expect(page.locator("tbody tr").first).to_contain_text(str(newest["transaction"]))
    if path == "/transactions":
        expect(page.get_by_text("No live transactions.")).to_be_visible()
    assert seen.problems == []


@pytest.mark.long
def test_deadlock_is_listed_and_replayed_and_leads_to_the_victims_story(
    bank: Bank, seen: Visit
) -> None:
    bank.deadlock()
    victim = bank.state()["deadlocks"][-1]["victim"]
    page = seen.open("/locks")
    page.get_by_role("link", name="replay").first.click()
    expect(page.get_by_text("Step 1 of 4")).to_contain_text("waits for")
    page.get_by_role("button", name="Last").click()
    expect(page.get_by_text("Step 4 of 4")).to_contain_text("victim")
    page.get_by_role("link", name=f"{victim}").click()
    expect(page.get_by_role("heading", name="Why it aborted")).to_be_visible()
    expect(page.locator(".adb-why")).to_contain_text("eadlock")


@pytest.mark.long
def test_waiting_transaction_is_shown_until_it_goes_on(bank: Bank, seen: Visit) -> None:
    locks, forest = seen.open("/locks"), seen.open("/transactions")
    end = bank.waiting()
    try:
        expect(
            locks.get_by_role("region", name="Locks", exact=True).get_by_text("waiting")
        ).to_be_visible()
        expect(locks.get_by_role("img", name="Wait-for graph")).to_have_attribute(
            "aria-label", re.compile(r"\d+ waits for \d+")
        )
        waiting = forest.get_by_role("region", name="Waiting hierarchies")
        expect(waiting.get_by_text("waiting", exact=True)).to_be_visible()
        expect(waiting.get_by_text("accounts/20")).to_be_visible()
    finally:
        end()
    expect(forest.get_by_text("No transaction is waiting for a lock.")).to_be_visible()
    expect(locks.get_by_text("No transaction is waiting.")).to_be_visible()


@pytest.mark.long
def test_failed_rule_is_explained_in_the_story(bank: Bank, seen: Visit) -> None:
    bank.fail()
    state = bank.state()
    recent = [each for each in state["recent"] if each["state"] == "aborted"]
    failed = next(each for each in recent if each["rule"] == "overdraft")
    page = seen.open(f"/transactions/{failed['top']}")
    expect(page.get_by_role("heading", name="Why it aborted")).to_be_visible()
    expect(page.locator(".adb-why")).to_contain_text("overdraft")
    expect(page.get_by_role("region", name="Writes")).to_contain_text("accounts")
    page.get_by_role("region", name="Children").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Transaction")).to_be_visible()


@pytest.mark.long
def test_batches_are_drawn_and_late_events_and_letters_listed(bank: Bank, seen: Visit) -> None:
    bank.fail()
    page = seen.open("/batches")
    page.get_by_role("link", name="calls#2").click()
    expect(page.get_by_role("heading", name="Lineage of calls#2")).to_be_visible()
    with page.expect_response("**/drawing.svg*") as drawn:
        page.reload()
    assert drawn.value.ok
    expect(page.get_by_text("calls#2 is whole; sources: calls#2.")).to_be_visible()
    streams = page.get_by_role("region", name="Streams").get_by_role("row")
    expect(streams.nth(1).get_by_role("cell").nth(2)).to_have_text("1")  # late
    letters = page.get_by_role("region", name="Dead letters")
    expect(letters).to_contain_text("<script>window.hacked = 1</script>")
    assert page.evaluate("window.hacked === undefined")
    assert seen.problems == []


@pytest.mark.long
def test_rules_cannot_be_switched_unless_that_was_asked_for(seen: Visit) -> None:
    page = seen.open("/rules")
    expect(page.get_by_role("row").filter(has_text="overdraft")).to_have_count(1)
    expect(page.get_by_role("button", name="Disable")).to_have_count(0)
    expect(page.get_by_text("without --writable")).to_be_visible()


@pytest.mark.long
def test_rule_is_switched_where_that_is_allowed_and_the_end_of_the_process_is_told(
    tmp_path: Path, visit: Open
) -> None:
    bank = Bank(tmp_path, writable=True)
    command = ("--attach", bank.address, "--attach-token", TOKEN, "--port", "0", "--writable")
    with (
        contextlib.closing(bank),
        started("activedb", "dashboard", *command, "--no-open") as (address, process),
    ):
        host, _, token = address.partition("?")
        page = visit(host).open(f"/rules?{token}")
        page.get_by_role("button", name="Disable write_down").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Disable").click()
        expect(page.get_by_role("row").filter(has_text="write_down")).to_contain_text("disabled")
        entries = {entry.name: entry.enabled for entry in bank.db.rules}
        assert entries["write_down"] is False
        expect(page.get_by_role("alert").filter(has_text="is old")).to_have_count(0)
        bank.close()
        expect(page.get_by_role("alert").filter(has_text="The data shown is old.")).to_be_visible()
        process.send_signal(signal.SIGINT)
        said, log = process.communicate()
    assert process.returncode == 130
    assert said == ""
    assert [word for word in ("accounts", "write_down", token, TOKEN) if word in log] == []


@pytest.mark.long
def test_open_decision_is_made_where_that_is_allowed(tmp_path: Path, visit: Open) -> None:
    bank = Bank(tmp_path, writable=True)
    bank.leave_open("<b>vault</b>")
    command = ("--attach", bank.address, "--attach-token", TOKEN, "--port", "0", "--writable")
    with (
        contextlib.closing(bank),
        started("activedb", "dashboard", *command, "--no-open") as (address, _),
    ):
        host, _, token = address.partition("?")
        page = visit(host).open(f"/rules?{token}")
        row = page.get_by_role("region", name="Open decisions").get_by_role("row")
        expect(row.filter(has_text="<b>vault</b>")).to_contain_text("closed")
        row.get_by_role("button", name="Decide ").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog).to_contain_text("<b>vault</b>")
        dialog.get_by_role("button", name="Decide").click()
        expect(page.get_by_text("No open decisions.")).to_be_visible()
        (decision,) = bank.db.decisions.list()
        assert (decision.status, decision.chosen, decision.by) == ("resolved", (0,), "the monitor")
        assert bank.lines() == ["closed <b>vault</b>"]


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--host", "0.0.0.0"], 2, "needs a token"),
        (["--token", "short"], 2, "at least 16"),
        (["--host", "203.0.113.7", "--token", "x" * 16], 2, "cannot listen on 203.0.113.7"),
        (["--port", "0"], 3, "no monitor answers at http://127.0.0.1:9"),
    ],
)
def test_dashboard_that_cannot_be_started_says_why(
    options: list[str],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["dashboard", "--attach", "http://127.0.0.1:9", "--no-open", *options]
    monkeypatch.setattr("sys.argv", ["activedb", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    assert said in capsys.readouterr().err
