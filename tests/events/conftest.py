"""Fixtures for the tests of detectors."""

from __future__ import annotations

import pytest

from activedb.events.detection._forgetting import Forgetting


@pytest.fixture
def forgets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let detectors look at all entries in every step; else they do once they keep many."""
    monkeypatch.setattr(Forgetting, "_is_due", lambda _: True)
