"""Options with an empty value, as from a shell variable that is not set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.reference import commands

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller

ARGUMENTS = {
    "audit": ("history.jsonl",),
    "batches compensate": ("calls#1", "job.py"),
    "batches cover": ("calls#1",),
    "batches lineage": ("calls#1",),
    "dead-letter retry": ("job.py",),
    "dead-letter show": ("rule r", "1"),
    "decisions resolve": ("1", "--nothing"),
    "decisions show": ("1",),
    "follow": ("job.py",),
    "match": ("SEQ(A, B)",),
    "rules analyze": ("job.py",),
    "rules disable": ("r",),
    "rules enable": ("r",),
    "rules explain": ("job.py", "A"),
    "rules load": ("job.rules",),
    "rules ls": ("job.py",),
    "rules show": ("job.py", "r"),
    "run": ("job.py",),
    "work": ("job.py",),
}
"""Arguments of the commands that need some."""

DONE = {"match --null", "dead-letter ls --source", "decisions list --rule"}
"""Options for which an empty value is as good as any other."""

OPTIONS = [
    (words, option.opts[-1])
    for words, command in commands()
    for option in command.params
    if option.param_type_name == "option" and not option.is_flag
]


@pytest.mark.parametrize(("words", "option"), OPTIONS, ids=map(" ".join, OPTIONS))
def test_empty_value_of_an_option_is_wrong_usage(
    words: str, option: str, call: Caller, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("import activedb\ndb = activedb.connect('memory://')\n")
    (tmp_path / "job.rules").write_text("CREATE RULE r ON A CALL job:f;")
    (tmp_path / "events.csv").write_text("time,type\n1,A\n2,B\n")
    given = {option: ""}
    if words == "match":
        given = {"--input": "events.csv", **given}
    elif (words, "--url") in OPTIONS and words != "run":  # run leaves the URL in the environment
        given = {"--url": "memory://", **given}
    options = [text for pair in given.items() for text in pair]
    said = call(*words.split(), *ARGUMENTS.get(words, ()), *options)
    assert said.status == (0 if f"{words} {option}" in DONE else 2), said
    assert "Traceback" not in said.err
    if said.status:
        assert "error: " in said.err
        assert "--traceback shows where" not in said.err, "not a message about the option"


def test_skip_of_blanks_names_no_policy(call: Caller, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("time,type\n1,A\n2,B\n")
    said = call("match", "SEQ(A, B)", "--input", "events.csv", "--skip", " : ")
    assert said.status == 2
    assert "'' is not a skip" in said.err
