"""Findings of checks on the machine or the server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Finding", "Verdict"]

Verdict: TypeAlias = Literal["ok", "note", "problem"]
"""No problem; worth knowing; activedb, or something installed for it, cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes
    ----------
    what : str
        Subject of the check.
    verdict : {"ok", "note", "problem"}
    found : str
    advice : str
        Advice; empty if there is nothing to do.
    """

    what: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert bool(self.advice) == (self.verdict != "ok"), "each finding says what to do"

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return asdict(self)
