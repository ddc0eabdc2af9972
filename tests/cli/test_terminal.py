"""Commands in shells and terminals: completion, colours, statuses."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from activedb.cli._report import Reporter
from tests.cli.calling import Caller
from tests.end_to_end.commands import ACTIVEDB
from tests.patience import PATIENCE_S

ESCAPE = "\x1b["


def run(folder: Path, *arguments: str) -> str:
    """Return what a program prints in a process of its own; its status must be 0."""
    return subprocess.run(
        arguments,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    ).stdout


def _environment() -> dict[str, str]:
    wanted = {k: v for k, v in os.environ.items() if "ACTIVEDB_" not in k}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        wanted.pop(name, None)
    wanted["PATH"] = f"{Path(ACTIVEDB).parent}{os.pathsep}{wanted.get('PATH', '')}"
    return {**wanted, "TERM": "xterm-256color"}


@pytest.mark.long
def test_bash_completes_commands_with_the_script_that_is_shown(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    monkeypatch.setenv("_ACTIVEDB_COMPLETE", "source_bash")
    (tmp_path / "complete").write_text(call().out)
    said = run(
        tmp_path,
        bash,
        "-c",
        "source ./complete; COMP_WORDS=(activedb mig); COMP_CWORD=1; _activedb_completion activedb;"
        ' echo "${COMPREPLY[@]}"; complete -p activedb',
    )
    assert said.splitlines()[0] == "migrate"
    assert "_activedb_completion activedb" in said


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_and_answers(
    shell: str, call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ACTIVEDB_COMPLETE", f"source_{shell}")
    script = call().out
    assert f"complete_{shell}" in script
    monkeypatch.setenv("_ACTIVEDB_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "activedb dead-letter re")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    said = call().out
    assert "retry" in said
    assert "show" not in said
    program = shutil.which(shell)
    if program is not None:  # the shell itself reads it
        (tmp_path / "script").write_text(script)
        run(tmp_path, program, "-n", "script")


def on_terminal(folder: Path, *arguments: str, **variables: str) -> str:
    """Return what a command writes to a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [ACTIVEDB, *arguments],
        cwd=folder,
        env={**_environment(), **variables},
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    said = b""
    try:
        while part := os.read(ours, 65_536):
            said += part
    except OSError:  # the terminal is gone with its last user
        pass
    finally:
        os.close(ours)
    process.wait(PATIENCE_S)
    return said.decode()


@pytest.mark.long
def test_colours_only_on_a_terminal_that_wants_them(call: Caller, tmp_path: Path) -> None:
    colourful = on_terminal(tmp_path, "doctor", "--url", "memory://")
    assert f"{ESCAPE}32mok" in colourful, "green"
    plain = on_terminal(tmp_path, "doctor", "--url", "memory://", NO_COLOR="1")
    assert "python" in plain
    for colour in range(30, 48):
        assert f"{ESCAPE}{colour}m" not in plain
        assert f";{colour}m" not in plain
    assert ESCAPE not in call("doctor", "--url", "memory://").out, "no terminal"


def test_statuses_are_those_of_the_table(call: Caller, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"event":"commit","by":1}\n')
    wanted = {
        ("status",): 0,
        ("migrate", "--check"): 1,
        ("audit", "bad.jsonl"): 1,
        ("audit", "nowhere.jsonl"): 2,
        ("frobnicate",): 2,
        ("status", "--url", "mysql://x"): 2,
        ("status", "--url", "postgresql://127.0.0.1:9/db"): 3,
    }
    assert {words: call(*words).status for words in wanted} == wanted


def test_errors_are_one_line_and_traceback_shows_where(call: Caller) -> None:
    short = call("pending", "--url", "postgresql://127.0.0.1:9/db")
    assert [line for line in short.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in short.err
    long = call("pending", "--traceback", "--url", "postgresql://127.0.0.1:9/db")
    assert "Traceback" in long.err
    assert long.status == short.status == 3


def test_progress_is_shown_of_what_takes_long_and_of_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporter = Reporter(as_json=True)
    monkeypatch.setattr("activedb.cli._report._SHORT_S", PATIENCE_S)
    with reporter.looking("looking at nothing"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("activedb.cli._report._SHORT_S", 0.0)
    shown = threading.Event()
    monkeypatch.setattr(reporter, "_line", lambda text: shown.set())
    with reporter.looking("looking at a lot"):
        assert shown.wait(PATIENCE_S)
