"""Unit of work, one event in one program: its s-transaction, and its letter on failure."""

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

__all__ = ["ProgramTransaction", "letter_of"]


@dataclass(frozen=True, slots=True)
class ProgramTransaction:
    """S-transaction of a part.

    Attributes
    ----------
    defined : Defined
        Program it belongs to.
    transaction : STransaction
    arrival : Arrival or None
        Its event; None if it was triggered by time alone, or by a resolved decision.
    decision : str or None
        Id of that decision.
    """

    defined: Defined
    transaction: STransaction
    arrival: Arrival | None
    decision: str | None = None

    @property
    def identity(self) -> str:
        """Identity of the s-transaction, unique in the stream and the same when it is repeated."""
        return _identity(self.defined, self.arrival, self.transaction.at.us, self.decision)

    @property
    def timestamp(self) -> Any:
        """Time of the event."""
        if self.arrival is None:
            return moment_of(self.transaction.at.us)
        return self.arrival.occurrence.timestamp

    @property
    def outcome(self) -> Outcome:
        """Outcome of the s-transaction. REQUIRES: it has ended."""
        assert self.transaction.outcome is not None
        return self.transaction.outcome

    def output(self, value: Any, reason: str | None) -> Output:
        """Return the output of the s-transaction."""
        at = self.transaction.at
        id_ = None if self.arrival is None else self.arrival.occurrence.id
        return Output(at.us, at.arrival, id_, self.transaction.type, value, reason)

    def letter(self, stream: str, error: Exception) -> Letter:
        """Return the letter for an output that cannot be stored."""
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
    """Return the letter of an event, or of a time or a decision, that a program refuses."""
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
