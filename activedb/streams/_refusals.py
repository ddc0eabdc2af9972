"""Which events of a stream detectors have refused: after a restart they are not shown them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from activedb.rules import Rule, event_fingerprint
from activedb.store.journals import ColumnJournal, ColumnNote

__all__ = ["Refusals"]


class Refusals:
    """The events that rules of a stream have refused alone, noted with the part that did.

    Who comes too late to see what a detector kept then cannot tell that it would refuse one; and
    letters, which say so, may be deleted. A rule that detects something else has refused nothing.

    Not thread-safe: used by the one thread that feeds the stream.
    """

    def __init__(self) -> None:
        self._of_part: dict[tuple[str, str], None] = {}
        self._last_us = 0
        self._noted: dict[str, set[str]] = {}
        self._has_notes = False

    def read(self, notes: Iterable[bytes]) -> None:
        """Take up what is noted."""
        self._noted = {}
        for note in notes:
            for who, identity in json.loads(note):
                self._noted.setdefault(who, set()).add(identity)
        self._has_notes = bool(self._noted)

    def of(self, rule: Rule) -> set[str]:
        """Where the events arrived that a rule had refused when it was `read`."""
        return self._noted.get(_who(rule), set()) if self._noted else set()

    def begin(self) -> None:
        """Take note of nothing yet: a part begins, perhaps once more."""
        self._of_part.clear()

    def add(self, rule: Rule, identity: str, us: int) -> None:
        """Take note of a refusal in the part at hand; `identity` tells where the event arrived."""
        self._of_part[_who(rule), identity] = None
        self._last_us = us

    def write(
        self, connection: Any, journal: ColumnJournal, sequence: int, before_us: int | None
    ) -> None:
        """Write the refusals of the part at hand, and forget those of events before a time."""
        if self._has_notes and before_us is not None:
            journal.forget_notes(connection, ColumnNote.REFUSED, before_us=before_us)
        if self._of_part and (before_us is None or self._last_us >= before_us):
            data = json.dumps(list(self._of_part)).encode()
            journal.write(connection, sequence, [(data, self._last_us)], ColumnNote.REFUSED)
            self._has_notes = True


def _who(rule: Rule) -> str:
    return f"{rule.name} {event_fingerprint(rule)}"
