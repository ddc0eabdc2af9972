"""``activedb doctor``: problems of this machine and its server, with advice."""

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
    """Check this machine and the database server, and suggest fixes.

    On this machine: Python, the extras, Java and Spark, the limit of file handles, the disk, the
    clock, the folder of the embedded server. On the server: version, encryption, rights, encoding,
    time zone, clock, sessions, free connections. Nothing is changed. A note is worth knowing; a
    problem keeps activedb from working.

    Exits with 0 if there are no problems, and with 1 otherwise.
    """
    reporter = Reporter(as_json=as_json)
    found: list[Finding] = []
    try:
        settings = Settings.load(url=url)
    except ConfigurationError as error:
        found.append(Finding("settings", "problem", str(error), "correct this setting"))
        settings = None
    with reporter.looking("checking this machine"):
        for check in machine_checks(settings):
            found += _found_by(check())
        if settings is not None:
            reporter.update("checking the server")
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
    """Yield the findings of a check; an error that stops the check is a finding, too."""
    try:
        yield from check
    except (OSError, RuntimeError) as error:  # a link that leads to itself is either of them
        text = " ".join(str(error).split())
        said = f"cannot be checked: {type(error).__name__}: {text}"
        yield Finding("machine", "problem", said, "make it readable, or choose another folder")


def _text(found: Sequence[Finding], counts: Counter[Verdict]) -> Text:
    """Return a line for each finding, its advice below it, and the totals."""
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
