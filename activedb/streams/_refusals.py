"""Record of events that detectors have refused, so that they don't see them after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from activedb.rules import Rule, event_fingerprint
from activedb.store.journals import ColumnJournal, ColumnNote

__all__ = ["Refusals"]


class Refusals:
    """Events that a single rule of a stream has refused, recorded with the part that did.

    A detector rebuilt later, without the state at that time, cannot tell that it would refuse the
    event; and the letters that report the refusal may have been deleted. A rule whose expression
    has changed has refused nothing.

    Not thread-safe: used only by the thread that feeds the stream.
    """

    def __init__(self) -> None:
        self._of_part: dict[tuple[str, str], None] = {}
        self._last_us = 0
        self._noted: dict[str, set[str]] = {}
        self._has_notes = False

    def read(self, notes: Iterable[bytes]) -> None:
        """Load the stored refusals."""
        self._noted = {}
        for note in notes:
            for who, identity in json.loads(note):
                self._noted.setdefault(who, set()).add(identity)
        self._has_notes = bool(self._noted)

    def of(self, rule: Rule) -> set[str]:
        """Return the arrival identities of events that a rule had refused at the last `read`."""
        return self._noted.get(_who(rule), set()) if self._noted else set()

    def begin(self) -> None:
        """Discard the refusals recorded so far, as a part begins, possibly on a retry."""
        self._of_part.clear()

    def add(self, rule: Rule, identity: str, us: int) -> None:
        """Record a refusal in the current part; `identity` is the event's batch and position."""
        self._of_part[_who(rule), identity] = None
        self._last_us = us

    def write(
        self, connection: Any, journal: ColumnJournal, sequence: int, before_us: int | None
    ) -> None:
        """Write the refusals of the current part, and forget those of events before a time."""
        if self._has_notes and before_us is not None:
            journal.forget_notes(connection, ColumnNote.REFUSED, before_us=before_us)
        if self._of_part and (before_us is None or self._last_us >= before_us):
            data = json.dumps(list(self._of_part)).encode()
            journal.write(connection, sequence, [(data, self._last_us)], ColumnNote.REFUSED)
            self._has_notes = True


def _who(rule: Rule) -> str:
    return f"{rule.name} {event_fingerprint(rule)}"
