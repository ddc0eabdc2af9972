"""Findings of ``activedb doctor`` about errors: each text once, and always an advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.cli import _doctor
from activedb.cli._doctor import Finding, machine_checks, server_checks
from activedb.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


class Broken:
    """Part that a check asks, and that raises an error with a given text."""

    def __init__(self, text: str):
        self._text = text

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ConfigurationError(self._text)


def replaced(monkeypatch: pytest.MonkeyPatch, text: str, tmp_path: Path) -> dict[str, Finding]:
    """Return the findings when all that the checks ask fails with this text."""
    broken = Broken(text)
    monkeypatch.setattr(_doctor, "_version", lambda name: "1")
    for name in ("feed_class", "KernelClock", "check_programs", "server_of"):
        monkeypatch.setattr(_doctor, name, broken)
    settings = adb.Settings.load(folder=tmp_path)
    found = [finding for check in machine_checks(settings) for finding in check()]
    found += server_checks(settings)
    return {each.what: each for each in found}


PARTS = ("java", "clock", "embedded server", "server")


@pytest.mark.parametrize("what", PARTS)
def test_error_without_advice_is_found_once_and_advised_on(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finding = replaced(monkeypatch, "it is broken", tmp_path)[what]
    assert finding.found == "it is broken"
    assert finding.advice
    assert finding.advice != finding.found


@pytest.mark.parametrize("what", PARTS)
def test_error_with_advice_is_split_at_the_advice(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    finding = replaced(monkeypatch, "it is broken; so it stops; repair it", tmp_path)[what]
    assert (finding.found, finding.advice) == ("it is broken; so it stops", "repair it")
