"""Databases that are watched, and what their monitors tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table

from activedb.monitor import _remote
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    import activedb as adb
    from activedb.monitor import Monitor
    from tests.databases import Place


class Watched:
    """A database with accounts 1 to 3, and its monitor."""

    def __init__(self, where: Place, folder: Path, **settings: Any):
        self.db: adb.Database = where.open(monitor="on", folder=folder, **settings)
        assert self.db.admin.monitor is not None
        self.monitor: Monitor = self.db.admin.monitor
        self.accounts = Table(
            "accounts",
            self.db.metadata,
            Column("id", Integer, primary_key=True),
            Column("balance", Integer, nullable=False),
        )
        self.db.create_all()
        self.db.run(self._fill)
        self.since = self.monitor.state()["last_seq"]

    def _fill(self, t: adb.Transaction) -> None:
        for key in (1, 2, 3):
            t.insert(self.accounts, {"id": key, "balance": 10})

    def state(self) -> dict[str, Any]:
        """The state, with what is new since the accounts were made."""
        return self.monitor.state(self.since)

    def story(self, id: int) -> dict[str, Any]:
        """A story that is kept."""
        story = self.monitor.transaction(id)
        assert story is not None
        return story

    def steps(self, id: int) -> list[str]:
        """The words of a story's steps."""
        return [step["what"] for step in self.story(id)["steps"]]


@pytest.fixture(autouse=True)
def patient_remotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let those who ask a monitor over HTTP wait for long: its server runs in this process, too."""
    monkeypatch.setattr(_remote, "_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def watched(where: Place, tmp_path: Path) -> Watched:
    """Return a watched database, in memory and on Postgres; values are shown."""
    return Watched(where, tmp_path, monitor_values=True)


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    """Yield a function that makes watched databases in memory, with settings of their own."""
    from tests.databases import place

    with place(None) as where:
        yield lambda **settings: Watched(where, tmp_path, **settings)
