"""One event in one program: its s-transaction, and the letter if something fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.errors import BadEvent
from activedb.firing import IDENTITY_MAX, Letter, shortened, storable
from activedb.scheduling import Outcome, STransaction
from activedb.streams._outputs import Output
from activedb.streams._programs import Defined

__all__ = ["Work", "letter_of"]


@dataclass(frozen=True, slots=True)
class Work:
    """An s-transaction of a part.

    Attributes
    ----------
    defined : Defined
        Its program.
    transaction : STransaction
    arrival : Arrival or None
        Its event; None if time alone has triggered it, or somebody's decision.
    decision : str or None
        The id of that decision.
    """

    defined: Defined
    transaction: STransaction
    arrival: Arrival | None
    decision: str | None = None

    @property
    def identity(self) -> str:
        """What tells it from all others of the stream, the same when it is done again."""
        return _identity(self.defined, self.arrival, self.transaction.at.us, self.decision)

    @property
    def timestamp(self) -> Any:
        """The time of the event."""
        if self.arrival is None:
            return moment_of(self.transaction.at.us)
        return self.arrival.occurrence.timestamp

    @property
    def outcome(self) -> Outcome:
        """REQUIRES: it has ended."""
        assert self.transaction.outcome is not None
        return self.transaction.outcome

    def output(self, value: Any, reason: str | None) -> Output:
        """What came of it."""
        at = self.transaction.at
        id_ = None if self.arrival is None else self.arrival.occurrence.id
        return Output(at.us, at.arrival, id_, self.transaction.type, value, reason)

    def letter(self, stream: str, error: Exception) -> Letter:
        """Its letter, if its output cannot be kept."""
        us, decision = self.transaction.at.us, self.decision
        return letter_of(stream, self.defined, self.arrival, error, us=us, decision=decision)


def letter_of(
    stream: str,
    defined: Defined,
    arrival: Arrival | None,
    error: Exception | None,
    *,
    reason: str | None = None,
    us: int = 0,
    decision: str | None = None,
) -> Letter:
    """The letter of an event that a program refuses; without one, of a moment or a decision."""
    name = defined.program.name
    said = reason or f"{type(error).__name__}: {error}"
    return Letter(
        source=stream,
        identity=shortened(_identity(defined, arrival, us, decision), IDENTITY_MAX),
        kind="event",
        payload={"program": name, "us": us} if arrival is None else arrival.record(),
        error=type(error or BadEvent()).__name__,
        reason=storable(f"program {name}: {said}"),
    )


def _identity(defined: Defined, arrival: Arrival | None, us: int, decision: str | None) -> str:
    if decision is not None:
        place = f"decision.{decision}"
    else:
        place = f"time.{us}" if arrival is None else f"{arrival.batch_id}.{arrival.position}"
    return f"{place}.{defined.program.name}"
