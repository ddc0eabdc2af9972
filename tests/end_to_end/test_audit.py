"""``activedb audit`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coupling.acta import Begin, Commit, Delegate, History, Operation, OperationKind
from tests.coupling.acta_script import played
from tests.end_to_end.commands import activedb, figures

GOOD = "begin 1; imm 1 2; write 2 accounts/7; delegate 2 1; commit 2; commit 1"
BAD = "begin 1; imm 1 2; write 2 accounts/7; commit 2; commit 1"


def test_audit_of_a_legal_history_exits_with_0(tmp_path: Path) -> None:
    played(GOOD).write(tmp_path / "h.jsonl")
    done = activedb("audit", "h.jsonl", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "h.jsonl: 6 events, 0 violations" in done.stdout
    assert figures(activedb("audit", "h.jsonl", "--json", folder=tmp_path)) == {
        "events": 6,
        "violations": [],
    }


def test_audit_of_a_violation_exits_with_1_and_shows_axiom_lines_and_sentence(
    tmp_path: Path,
) -> None:
    played(BAD).write(tmp_path / "h.jsonl")
    done = activedb("audit", "h.jsonl", folder=tmp_path, variables={"COLUMNS": "160"})
    assert done.returncode == 1
    assert "5 events, 1 violations" in done.stdout
    assert "transaction 2 commits and does not delegate to its parent 1" in done.stdout
    as_json = activedb("audit", "h.jsonl", "--json", folder=tmp_path)
    assert as_json.returncode == 1
    (violation,) = json.loads(as_json.stdout)["violations"]
    assert (violation["axiom"], violation["transaction"], violation["lines"]) == (24, 2, [4])
    assert violation["states"].startswith("A subtransaction commits if and only if")


def test_audit_of_very_many_violations_shows_the_first_and_says_so(tmp_path: Path) -> None:
    History(tuple(Begin(number) for number in range(1, 302))).write(tmp_path / "h.jsonl")
    done = activedb("audit", "h.jsonl", folder=tmp_path)
    assert done.returncode == 1
    assert "301 violations" in done.stdout
    assert "only the first 200 are shown" in done.stderr
    as_json = activedb("audit", "h.jsonl", "--json", folder=tmp_path)
    assert len(json.loads(as_json.stdout)["violations"]) == 301


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b'{"event":"begin","by":1}\nnonsense\n', "line 2: this is no JSON"),
        (b'{"event":"begin"}\n', "line 1: 'by' is missing"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_audit_of_what_is_no_history_exits_with_2_and_one_line(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "h.jsonl").write_bytes(content)
    done = activedb("audit", "h.jsonl", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert says in line
    assert "Traceback" not in done.stderr


def test_audit_of_a_folder_exits_with_2(tmp_path: Path) -> None:
    done = activedb("audit", tmp_path, folder=tmp_path)
    assert done.returncode == 2
    assert "cannot read" in done.stderr


def test_audit_shows_names_of_objects_as_they_are(tmp_path: Path) -> None:
    write = Operation(2, 1, OperationKind.WRITE, ("[red]a[/red]",))
    steps = (Begin(1), Begin(2), write, Operation(1, 2, OperationKind.READ, write.object))
    History((*steps, Delegate(2, 1), Commit(2), Commit(1))).write(tmp_path / "h.jsonl")
    done = activedb("audit", "h.jsonl", folder=tmp_path, variables={"COLUMNS": "160"})
    assert done.returncode == 1
    assert "invokes read on [red]a[/red]" in done.stdout
