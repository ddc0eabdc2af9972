"""What a look at the machine or the server has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["Finding", "Verdict"]

Verdict: TypeAlias = Literal["ok", "note", "problem"]
"""As it should be; worth knowing; keeps activedb, or what was installed for it, from working."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes
    ----------
    what : str
        What was looked at.
    verdict : {"ok", "note", "problem"}
    found : str
    advice : str
        What to do; empty if nothing is to be done.
    """

    what: str
    verdict: Verdict
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        assert bool(self.advice) == (self.verdict != "ok"), "each finding says what to do"

    def record(self) -> dict[str, Any]:
        """The same, as JSON takes it."""
        return asdict(self)
