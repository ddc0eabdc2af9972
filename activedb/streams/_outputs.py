"""Outputs of programs as stored in the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activedb.events import decode_params, encode_params

__all__ = ["Output"]


@dataclass(frozen=True, slots=True)
class Output:
    """Output of one s-transaction of a program.

    Attributes
    ----------
    us, arrival : int
        Its place in the serial order: its timestamp, in microseconds since the epoch, and a unique
        number.
    id, type : str
        Id and type of its event; None and `scheduling.MOMENT` if time alone has triggered it.
    value : object
        Result of post-processing; None: no result.
    reason : str or None
        Reason why the s-transaction aborted; None: it committed.
    """

    us: int
    arrival: int
    id: str | None
    type: str
    value: Any = None
    reason: str | None = None

    @property
    def committed(self) -> bool:
        """True if the s-transaction committed."""
        return self.reason is None

    def record(self, program: str) -> dict[str, Any]:
        """Return the output as a row; `restore` is the inverse.

        Raises
        ------
        BadEvent
            If the value cannot be stored in a database.
        """
        return {
            "program": program,
            "us": self.us,
            "arrival": self.arrival,
            "event_id": self.id,
            "type": self.type,
            "output": None if self.value is None else encode_params({"output": self.value}),
            "reason": self.reason,
        }

    @classmethod
    def restore(cls, record: Mapping[str, Any]) -> Output:
        """Return the output that `record` was made from."""
        value = record["output"]
        return cls(
            us=record["us"],
            arrival=record["arrival"],
            id=record["event_id"],
            type=record["type"],
            value=None if value is None else decode_params(value)["output"],
            reason=record["reason"],
        )
