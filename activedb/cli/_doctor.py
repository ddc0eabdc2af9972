"""``activedb doctor``: what is wrong with this machine and its server, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import typer
from rich.text import Text

from activedb.cli._doctor_machine import machine_checks
from activedb.cli._doctor_server import server_checks
from activedb.cli._findings import Finding, Verdict
from activedb.cli._options import Json, Trace, Url
from activedb.cli._report import Reporter
from activedb.config import Settings
from activedb.errors import ConfigurationError

__all__ = ["doctor"]

_STYLES: dict[Verdict, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}


def doctor(url: Url = None, as_json: Json = False, show_traceback: Trace = False) -> None:
    """Check this machine and the database server, and say what to do.

    Looks at Python, the extras, Java and Spark, limits, disk, clocks, the embedded server's folder,
    and of the server at version, rights, encoding, time zone, notifications, room. Nothing is
    changed anywhere. A note is worth knowing; a problem keeps activedb from working.

    Exits with 0 if there is no problem, with 1 if there is one.
    """
    reporter = Reporter(as_json=as_json)
    found: list[Finding] = []
    try:
        settings = Settings.load(url=url)
    except ConfigurationError as error:
        found.append(Finding("settings", "problem", str(error), "correct that setting"))
        settings = None
    with reporter.looking("looking at this machine"):
        for check in machine_checks(settings):
            found += _found_by(check())
        if settings is not None:
            reporter.update("asking the server")
            found += _found_by(server_checks(settings))
    counts: Counter[Verdict] = Counter(finding.verdict for finding in found)
    reporter.says(
        _text(found, counts),
        {
            "problems": counts["problem"],
            "notes": counts["note"],
            "findings": [each.record() for each in found],
        },
    )
    if counts["problem"]:
        raise typer.Exit(1)


def _found_by(check: Iterator[Finding]) -> Iterator[Finding]:
    """What a check finds; what the machine keeps it from looking at is a finding, too."""
    try:
        yield from check
    except (OSError, RuntimeError) as error:  # a link that leads to itself is either of them
        text = " ".join(str(error).split())
        said = f"cannot be looked at: {type(error).__name__}: {text}"
        yield Finding("machine", "problem", said, "make that readable, or name another place")


def _text(found: Sequence[Finding], counts: Counter[Verdict]) -> Text:
    """A line for each finding, what to do below it, and how many there are."""
    text = Text()
    wide = max(len(each.what) for each in found)
    for each in found:
        text.append(f"{each.verdict:<8}", _STYLES[each.verdict])
        text.append(f"{each.what:<{wide}}  {each.found}\n")
        if each.advice:
            text.append(f"{'':8}{'':{wide}}  → {each.advice}\n")
    return text.append(f"{_some(counts['problem'], 'problem')}, {_some(counts['note'], 'note')}")


def _some(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
