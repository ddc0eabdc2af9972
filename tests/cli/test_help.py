"""Help of the commands, which a terminal of any width wraps by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from activedb.cli._main import app


def helps(command: Any) -> Iterator[str]:
    """Yield the help of a command and of the commands below it."""
    yield command.help or ""
    for each in getattr(command, "commands", {}).values():
        yield from helps(each)


def test_help_of_each_command_has_no_line_break_inside_a_paragraph() -> None:
    paragraphs = [text for each in helps(get_command(app)) for text in each.split("\n\n")]
    assert len(paragraphs) > 20
    assert [text for text in paragraphs if "\n" in text] == []
