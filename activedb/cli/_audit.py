"""``activedb audit``: a recorded history against the axioms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from activedb.cli._report import Reporter
from activedb.errors import ConfigurationError
from coupling.acta import AXIOMS, BadLine, History, Violation, audit

__all__ = ["run_audit"]

_LINES_AT_ONCE = 10_000
_SHOWN_MAX = 200


def run_audit(file: Path, reporter: Reporter) -> bool:
    """Audit a file of JSON lines and print the violations; return whether there are none.

    Raises
    ------
    ConfigurationError
        If there is no such file, or a line is not an event.
    """
    with reporter.working(f"auditing {file}"):
        history = _read(file, reporter)
        reporter.update(f"checking {len(history):,} events")
        violations = audit(history)
    reporter.rows(
        f"{file}: {len(history):,} events, {len(violations):,} violation"
        f"{'' if len(violations) == 1 else 's'}",
        ("axiom", "transaction", "lines", "violation"),
        [
            (str(v.axiom), str(v.transaction), ", ".join(map(str, _lines(v))), v.message)
            for v in violations[:_SHOWN_MAX]
        ],
        {
            "events": len(history),
            "violations": [
                {
                    "axiom": v.axiom,
                    "states": AXIOMS[v.axiom],
                    "transaction": v.transaction,
                    "message": v.message,
                    "lines": _lines(v),
                }
                for v in violations
            ],
        },
    )
    if len(violations) > _SHOWN_MAX:
        reporter.note(f"only the first {_SHOWN_MAX} are shown; --json prints all of them")
    return not violations


def _lines(violation: Violation) -> list[int]:
    return [position + 1 for position in violation.positions]


def _read(file: Path, reporter: Reporter) -> History:
    try:
        with file.open("rb") as lines:
            return History.of_lines(_counted(lines, reporter))
    except BadLine as error:
        raise ConfigurationError(
            f"{file} is no recorded history: {error}; write one with db.admin.history().write(path)"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from error


def _counted(lines: IO[bytes], reporter: Reporter) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        if number % _LINES_AT_ONCE == 0:
            reporter.update(f"{number:,} lines read")
        yield line
