"""``activedb audit``: once in a process of its own, the rest in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from activedb.cli import main
from coupling.acta import (
    BeginEvent,
    CommitEvent,
    DelegateEvent,
    History,
    ObjectOperation,
    OperationKind,
)
from tests.coupling.acta_script import played
from tests.end_to_end.commands import activedb

Audit = Callable[..., subprocess.CompletedProcess[str]]

GOOD = "begin 1; imm 1 2; write 2 accounts/7; delegate 2 1; commit 2; commit 1"
BAD = "begin 1; imm 1 2; write 2 accounts/7; commit 2; commit 1"


@pytest.fixture
def audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Audit:
    """``activedb audit`` with these arguments, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["activedb", "audit", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out, err)

    return call


@pytest.mark.long
def test_audit_in_a_process_of_its_own_prints_one_object_and_exits_with_1(tmp_path: Path) -> None:
    played(BAD).write(tmp_path / "h.jsonl")
    done = activedb("audit", "h.jsonl", "--json", folder=tmp_path)
    assert done.returncode == 1
    assert json.loads(done.stdout)["events"] == 5
    # The second line is said if it has taken over five seconds by then.
    assert done.stderr in ("auditing h.jsonl\n", "auditing h.jsonl\nchecking 5 events\n")


def test_audit_of_a_legal_history_exits_with_0(audit: Audit) -> None:
    played(GOOD).write("h.jsonl")
    done = audit("h.jsonl")
    assert done.returncode == 0, done.stderr
    assert "h.jsonl: 6 events, 0 violations" in done.stdout
    as_json = audit("h.jsonl", "--json")
    assert as_json.returncode == 0
    assert json.loads(as_json.stdout) == {"events": 6, "violations": []}


def test_audit_of_a_violation_exits_with_1_and_shows_axiom_lines_and_sentence(audit: Audit) -> None:
    played(BAD).write("h.jsonl")
    done = audit("h.jsonl")
    assert done.returncode == 1
    assert "5 events, 1 violation" in done.stdout
    assert "violations" not in done.stdout
    assert "transaction 2 commits and does not delegate to its parent 1" in done.stdout
    as_json = audit("h.jsonl", "--json")
    assert as_json.returncode == 1
    (violation,) = json.loads(as_json.stdout)["violations"]
    assert (violation["axiom"], violation["transaction"], violation["lines"]) == (24, 2, [4])
    assert violation["states"].startswith("A subtransaction commits if and only if")


def test_audit_of_very_many_violations_shows_the_first_and_says_so(audit: Audit) -> None:
    History(tuple(BeginEvent(number) for number in range(1, 302))).write("h.jsonl")
    done = audit("h.jsonl")
    assert done.returncode == 1
    assert "301 violations" in done.stdout
    assert "only the first 200 are shown" in done.stderr
    as_json = audit("h.jsonl", "--json")
    assert len(json.loads(as_json.stdout)["violations"]) == 301


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b'{"event":"begin","by":1}\nnonsense\n', "line 2: this is not JSON"),
        (b'{"event":"begin"}\n', "line 1: 'by' is missing"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_audit_of_what_is_no_history_exits_with_2_and_one_line(
    audit: Audit, content: bytes | None, says: str
) -> None:
    if content is not None:
        Path("h.jsonl").write_bytes(content)
    done = audit("h.jsonl")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line
    assert "Traceback" not in done.stderr


def test_audit_of_a_folder_exits_with_2(audit: Audit) -> None:
    done = audit(".")
    assert done.returncode == 2
    assert "cannot read" in done.stderr


def test_audit_shows_names_of_objects_as_they_are(audit: Audit) -> None:
    write = ObjectOperation(2, 1, OperationKind.WRITE, ("[red]a[/red]",))
    steps = (
        BeginEvent(1),
        BeginEvent(2),
        write,
        ObjectOperation(1, 2, OperationKind.READ, write.object),
    )
    History((*steps, DelegateEvent(2, 1), CommitEvent(2), CommitEvent(1))).write("h.jsonl")
    done = audit("h.jsonl")
    assert done.returncode == 1
    assert "invokes read on [red]a[/red]" in done.stdout
