"""Files that commands run: what these open is closed, however the command ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb
from activedb.database import Database

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.calling import Caller

OPENS = "import activedb\ndb = activedb.connect('memory://')\n"
ONE = OPENS + "db.stream('one', type='kind', timestamp='at', types={'A': ()})\n"
FILES = {
    "opens another": ONE + "other = activedb.connect('memory://')\n",
    "has no stream": OPENS,
    "has two streams": ONE + "db.stream('two', type='kind', timestamp='at', types={'A': ()})\n",
    "fails later": OPENS + "1 / 0\n",
    "is interrupted": OPENS + "raise KeyboardInterrupt\n",
    "refuses a rule": OPENS + "db.rule(on='A')(print)\n",
}


@pytest.mark.parametrize("words", ["run", "follow", "work", "rules ls"])
@pytest.mark.parametrize("text", FILES)
def test_databases_of_a_file_are_closed(
    words: str, text: str, call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text == "opens another" and words in ("run", "work"):
        pytest.skip("it runs")
    opened: list[Database] = []
    connect = activedb.connect

    def noted(*given: str) -> Database:
        opened.append(connect(*given))
        return opened[-1]

    monkeypatch.setattr(activedb, "connect", noted)
    (tmp_path / "job.py").write_text(FILES[text])
    done = call(*words.split(), "job.py")
    assert opened
    assert all(db._closed for db in opened), done
