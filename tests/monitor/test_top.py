"""``activedb top``: a screen of a state, and the command on a process that runs."""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import activedb as adb
from activedb.cli._main import _status
from activedb.cli._top import _follow, screen
from tests.databases import PATIENCE_S, in_thread, until
from tests.monitor.test_server import url_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.calling import Caller
    from tests.monitor.conftest import Watched


def shown(state: dict[str, Any], before: dict[str, Any] | None = None, rows: int = 5) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(screen(state, before, rows))
    return console.export_text()


def test_screen_shows_waits_rules_and_rates(memory: Callable[..., Watched]) -> None:
    watched = memory(monitor_values=True)
    go_on, has_it = threading.Event(), threading.Event()

    @watched.db.rule(on=adb.event("[bold]paid[/bold]"), name="[red]odd")
    def rule(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    def first(t: adb.Transaction) -> None:
        t.update(watched.accounts, 2, balance=1)
        has_it.set()
        assert go_on.wait(PATIENCE_S)

    before = watched.state()
    one = in_thread(watched.db.run, first)
    assert has_it.wait(PATIENCE_S)
    other = in_thread(watched.db.run, lambda t: t.get(watched.accounts, 2))
    until(lambda: watched.state()["locks"]["waits_total"])
    for _ in range(3):
        watched.db.signal("[bold]paid[/bold]")
    text = shown(watched.state(), before)
    assert "2 live transactions" in text
    assert "waiting" in text
    assert "accounts/2" in text
    assert "[red]odd" in text  # and no markup
    assert "rules fired" in text
    go_on.set()
    one.result(PATIENCE_S)
    other.result(PATIENCE_S)
    assert "0 live transactions" in shown(watched.state())


def test_screen_of_any_names_has_no_character_that_controls_the_terminal(
    memory: Callable[..., Watched],
) -> None:
    watched = memory(monitor_values=True)
    watched.db.rule(on=adb.event("e"), name="rule")(lambda t, o: None)
    with watched.db.transaction() as t:
        t.update(watched.accounts, 2, balance=1)
        other = in_thread(watched.db.run, lambda t: t.get(watched.accounts, 2))
        until(lambda: watched.state()["locks"]["waits_total"])
        state = watched.state()
    other.result(PATIENCE_S)
    text = shown(with_texts(state, "\x1b[31m\x07\x9b2J\u202e\r"))
    assert "x1b[31m" in text
    assert not {c for c in text if not c.isprintable()} - {"\n"}


def with_texts(value: Any, text: str) -> Any:
    """A state all of whose texts are this one."""
    if isinstance(value, dict):
        return {key: with_texts(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [with_texts(each, text) for each in value]
    return text if isinstance(value, str) else value


def test_rates_after_a_restart_are_since_the_new_process_began(
    memory: Callable[..., Watched],
) -> None:
    now = memory().state()
    before = copy.deepcopy(now)
    before["process"]["started_s"] -= 100
    before["counters"]["transactions_committed"] += 50_000
    assert shown(now, before) == shown(now)


def test_screen_shows_no_more_rows_than_there_is_room_for(memory: Callable[..., Watched]) -> None:
    watched = memory()
    for n in range(30):
        watched.db.rule(on=adb.event("e"), name=f"rule{n}")(lambda t, o: None)
    text = shown(watched.state(), rows=4)
    assert "30 rules" in text
    assert text.count("immediate") == 4


def test_screen_is_renewed_until_it_is_interrupted(memory: Callable[..., Watched]) -> None:
    watched = memory()
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    asked: list[int] = []

    def state(since: int) -> dict[str, Any]:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(since)
        watched.db.signal("again")
        return watched.monitor.state(since)

    _follow(state, console, 0.0)
    assert asked == sorted(set(asked))  # each look asks for what is new
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("live transactions") == 3


@pytest.mark.parametrize("once", [[], ["--once"]])
def test_command_that_is_interrupted_exits_as_every_other(
    memory: Callable[..., Watched],
    call: Caller,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    once: list[str],
) -> None:
    watched = memory()

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("activedb.cli._top.time", SimpleNamespace(sleep=interrupt))
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = call("top", "--attach", url_of(watched), *once)
    assert (said.status, "live transactions" in said.out) == (0 if once else 130, True), said.err


@pytest.mark.long
def test_command_in_another_process_finds_it_by_the_folder(
    memory: Callable[..., Watched], tmp_path: Path
) -> None:
    watched = memory()
    told = subprocess.run(
        [sys.executable, "-m", "activedb", "top", "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "ACTIVEDB_FOLDER": str(tmp_path)},
        cwd=tmp_path,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    process = json.loads(told.stdout)["process"]
    assert {**process, "now_s": 0} == {**watched.state()["process"], "now_s": 0}


def test_command_without_a_terminal_looks_once_and_has_no_colours(
    memory: Callable[..., Watched], capsys: pytest.CaptureFixture[str]
) -> None:
    watched = memory()
    assert _status(["top", "--attach", url_of(watched)]) == 0
    text = capsys.readouterr().out
    assert "live transactions" in text
    assert "\x1b" not in text


def test_command_that_finds_no_process_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTIVEDB_FOLDER", str(tmp_path))
    assert _status(["top", "--once"]) == 3
    assert "monitor='on'" in capsys.readouterr().err
    assert _status(["top", "--attach", "nonsense"]) == 2
