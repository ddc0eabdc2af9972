"""Output of commands: a text from outside is shown as it is, whatever it looks like."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from activedb.cli._report import Reporter, RunFigures
from tests.drawing import drawn

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

MARKED = ("[/a].csv", "[odd] x", "[red]x[/red]", "[link=http://x]y[/link]", ":warning:", "\\[x]")

WIDE = "w" * 40  # a table wraps its title at its own width


def test_ids_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    row = ("rule fails", "0123456789" * 12, "rule", "ConnectionError", "no answer " * 20)
    heads = ("source", "identity", "kind", "error", "reason")
    reporter = Reporter(as_json=False)
    reporter.rows("letters", heads, [row], {})
    piped = capsys.readouterr().out
    assert all(cell.strip() in piped for cell in row)
    screen = io.StringIO()
    reporter._out = Console(file=screen, width=80, force_terminal=True, color_system=None)
    reporter.rows("letters", heads, [row], {})
    assert "…" not in screen.getvalue()
    assert sum(map(screen.getvalue().count, "0123456789")) == 120


def test_list_of_many_rows_says_so_only_where_they_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for as_json in (False, True):
        rows = [(str(n),) for n in range(201)]
        Reporter(as_json=as_json).first_rows("many", ("n",), rows, {"rows": rows})
        assert ("only the first 200" in capsys.readouterr().err) is not as_json


def hostile(random: Random) -> str:
    return "".join(random.choices("[]/\\:#=ab", k=random.randint(1, 12)))


def texts() -> list[str]:
    random = drawn("texts that look like markup")
    return [*MARKED, *(hostile(random) for _ in range(100))]


def working(reporter: Reporter, text: str) -> None:
    with reporter.working(text):
        pass


def updated(reporter: Reporter, text: str) -> None:
    with reporter.working("reading"):
        reporter._printed = -math.inf  # without a terminal, a line is due
        reporter.update(text)


METHODS: dict[str, Callable[[Reporter, str], None]] = {
    "working": working,
    "update": updated,
    "note": lambda reporter, text: reporter.note(text),
    "says": lambda reporter, text: reporter.says(text, {}),
    "title": lambda reporter, text: reporter.rows(text, [WIDE], [["b"]], {}),
    "column": lambda reporter, text: reporter.rows("t", [text], [["b"]], {}),
    "cell": lambda reporter, text: reporter.first_rows("t", ["a"], [[text]], {}),
    "title of figures": lambda reporter, text: reporter.result(text, RunFigures({WIDE: 1})),
    "label": lambda reporter, text: reporter.result("t", RunFigures({text: 1})),
    "figure": lambda reporter, text: reporter.result("t", RunFigures({"a": text})),
    "name in a label": lambda reporter, text: reporter.result("t", RunFigures({"rows": {text: 1}})),
}


def said(show: Callable[[Reporter, str], None], text: str, *, is_terminal: bool) -> str:
    """Return what is shown on the given kind of output, both streams together, without colours."""
    console = Console(
        file=io.StringIO(), record=True, width=200, force_terminal=is_terminal, _environ={}
    )
    reporter = Reporter(as_json=False)
    reporter._out = reporter._err = console
    show(reporter, text)
    return console.export_text()


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_text_with_markup_is_shown_unchanged(method: str, is_terminal: bool) -> None:
    for text in texts():
        assert text in said(METHODS[method], text, is_terminal=is_terminal), text


@pytest.mark.parametrize("method", METHODS)
def test_text_does_not_control_the_terminal(method: str) -> None:
    shown = said(METHODS[method], "a\x1b[31m\x07b", is_terminal=False)
    assert "a\\x1b[31m\\x07b" in shown


def test_lines_of_a_text_stay_lines() -> None:
    shown = said(lambda reporter, text: reporter.note(text), "a\nb", is_terminal=False)
    assert shown == "a\nb\n"
