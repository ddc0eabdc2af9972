"""The reference of the command line, as the commands themselves tell it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from activedb.cli._main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
BEGIN = "<!-- generated from the help texts of the commands: see tests/cli/test_reference.py -->\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words: ``dead-letter ls``."""
    yield from _below("", typer.main.get_command(app))


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words.strip(), command
        return
    for name, each in inner.items():
        yield from _below(f"{words} {name}", each)


def reference() -> str:
    """The part of the page that is made: a table of all commands, a section for each."""
    found = list(commands())
    table = "| command | purpose |\n|---|---|\n" + "".join(
        f"| [`{words}`](#activedb-{words.replace(' ', '-')}) | {_cell(_first(command))} |\n"
        for words, command in found
    )
    return "\n".join([table, *(_section(words, command) for words, command in found)])


def _first(command: Any) -> str:
    """The first sentence of a command's help."""
    return " ".join((command.help or "").split("\n\n")[0].split()).rstrip(".")


def _section(words: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    shown = [_argument(each) for each in arguments]
    text = (
        f"### activedb {words}\n\n```\nactivedb {' '.join([words, *shown, '[OPTIONS]'])}\n```\n\n"
    )
    paragraphs = " \n".join((command.help or "").splitlines()).split(" \n \n")
    text += "\n\n".join(" ".join(each.split()) for each in paragraphs) + "\n"
    rows = [(f"`{_argument(each)}`", each.help) for each in arguments]
    rows += [(f"`{_option(each)}`", _said(each)) for each in options]
    text += "\n| argument or option | meaning |\n|---|---|\n"
    return text + "".join(f"| {what} | {_cell(said)} |\n" for what, said in rows)


def _argument(argument: Any) -> str:
    name = str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {str(option.name).upper()}"


def _said(option: Any) -> str:
    default = option.default
    if option.is_flag or default in (None, "", (), []) or callable(default):
        return str(option.help)
    return f"{str(option.help).rstrip('.')} (default: {default})."


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")
