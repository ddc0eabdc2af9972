"""The table of operators in docs/rules.md is true, row by row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.events import Detector

if TYPE_CHECKING:
    from activedb import Occurrence

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rules.md"
TABLE = PAGE.read_text("utf-8").split("| expression | events | matches |\n|---|---|---|\n")[1]
ROWS = [
    (expression, events, matches)
    for line in TABLE.split("\n\n")[0].splitlines()
    for cells in ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]],)
    for expression in re.findall("`([^`]+)`", cells[0])
    for events, matches in (cells[1:],)
]
NAMES: dict[str, Any] = {
    **{name: getattr(adb, name) for name in adb.__all__},
    **{name: adb.event(name) for name in "ABCN"},
}


def shown(o: Occurrence) -> str:
    """An occurrence as the table has it."""
    constituents = o.constituents or (o,)
    return " ".join(
        f"{c.name if c.key[0] == 'event' else 'tick'}{c.us // 1_000_000}" for c in constituents
    )


def test_table_has_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize(("expression", "events", "matches"), ROWS)
def test_row_of_the_table_is_true(expression: str, events: str, matches: str) -> None:
    detector = Detector(eval(expression.replace("\\|", "|"), NAMES))
    made: list[Occurrence] = []
    for text in events.split():
        o = adb.occurrence(text[0], timestamp=int(text[1:]))
        made += detector.advance(o.us) + detector.feed(o)
    made += detector.advance(20_000_000)
    assert ", ".join(map(shown, made)) == ("" if matches == "none" else matches)
