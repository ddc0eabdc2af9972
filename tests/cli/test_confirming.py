"""The question of ``batches compensate``, and each answer to it."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller

JOB = """\
import activedb as adb
db = adb.connect("memory://")
usage = db.workflow("usage", sources="calls")

@usage.program(reads="calls")
def rate(t, batch):
    return [{"n": 1}]

@rate.compensation
def unrate(t, execution):
    print("undone")

db.workflows.open("usage").feed("calls", [{"n": 1}])
"""


class Keyboard(io.StringIO):
    """A terminal at which a line, or Ctrl-C, is typed."""

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(size)
        if "\x03" in line:
            raise KeyboardInterrupt
        return line


@pytest.mark.parametrize(
    ("typed", "status", "said"),
    [
        ("y\n", 0, "Execute this plan?"),
        ("YES\n", 0, "Execute this plan?"),
        ("n\n", 1, "nothing is compensated"),
        ("\n", 1, "nothing is compensated"),
        ("", 1, "nothing is compensated"),  # Ctrl-D
        ("\x03", 130, "interrupted"),
    ],
)
def test_answer_decides_what_is_done(
    typed: str,
    status: int,
    said: str,
    call: Caller,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    monkeypatch.setattr(sys, "stdin", Keyboard(typed))
    done = call("batches", "compensate", "calls#1", "job.py")
    assert (done.status, said in done.err) == (status, True), done.err
    assert ("undone" in done.out) is (status == 0)
    assert "--traceback" not in done.err
