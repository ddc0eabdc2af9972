"""docs/cli.md and the commands say the same.

``ACTIVEDB_REWRITE_DOCS=1`` writes the made part of the page anew.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.cli.reference import BEGIN, PAGE, commands, reference

COMMANDS = dict(commands())
SERVES = {"dashboard"}
"""Commands without a result: they run until they are interrupted."""
PRINTS = {"grafana"}
"""Commands that print a file as it is."""


def test_page_is_what_the_commands_say_of_themselves() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == 1
    written, made = page.split(BEGIN)
    if os.environ.get("ACTIVEDB_REWRITE_DOCS") == "1":
        PAGE.write_text(f"{written}{BEGIN}\n{reference()}", encoding="utf-8")
        return
    assert made == f"\n{reference()}", "write it anew with ACTIVEDB_REWRITE_DOCS=1, and review it"


def test_page_has_the_statuses_that_the_program_tells() -> None:
    from activedb.cli import _main as _exits

    assert _exits.__doc__ is not None
    page = PAGE.read_text(encoding="utf-8")
    statuses = re.findall(r"^(\d+) ", _exits.__doc__, re.MULTILINE)
    assert statuses == ["0", "1", "2", "3", "130"]
    for status in statuses:
        assert re.search(rf"^\| {status} \|", page, re.MULTILINE), status


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_takes_json_and_says_what_each_option_means(words: str) -> None:
    command = COMMANDS[words]
    options = {name for each in command.params for name in each.opts}
    assert "--traceback" in options or words in PRINTS
    assert "--json" in options or words in SERVES | PRINTS
    assert all(each.help for each in command.params), words
    assert command.help
