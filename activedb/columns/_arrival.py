"""An event of a stream with the place where it arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from activedb.clock import moment_of
from activedb.events import (
    Occurrence,
    Timestamp,
    decode_params,
    decode_timestamp,
    encode_params,
    encode_timestamp,
)

__all__ = ["Arrival"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event of a stream with the place where it arrived.

    Attributes
    ----------
    occurrence : Occurrence
    batch_id, position : int
        The micro-batch, and the row in it: the event's identity within the query.
    """

    occurrence: Occurrence
    batch_id: int
    position: int

    @property
    def order(self) -> tuple[int, str, int, int, str, int, int]:
        """Event-time order: that of the lower ends; ties go by event id, then by arrival.

        What is certainly before something comes before it: by reference time, as its interval then
        begins before, or by the node's local clock, as lower ends of one node never go back, and of
        those that are equal the local readings tell.
        """
        o = self.occurrence
        stamp = o.stamp
        head = (o.low_us, "", 0)
        if stamp is not None and stamp.local_us is not None:
            head = (o.low_us, stamp.node or "", stamp.local_us)
        return (*head, o.us, o.id or "", self.batch_id, self.position)

    def record(self) -> dict[str, Any]:
        """The event as a row; `restore` undoes it."""
        o = self.occurrence
        record = {
            "us": o.us,
            "batch_id": self.batch_id,
            "position": self.position,
            "event_id": o.id,
            "type": o.name,
            "params": encode_params(o.params),
        }
        when = o.timestamp
        if isinstance(when, datetime) and when.tzinfo is UTC:
            return record  # `us` says it all
        return {**record, "stamp": encode_timestamp(when)}

    @classmethod
    def restore(cls, record: Mapping[str, Any]) -> Arrival:
        """The event that `record` was made of."""
        stamp = record.get("stamp")
        params = decode_params(record["params"])
        when: Timestamp
        when = moment_of(record["us"]) if stamp is None else decode_timestamp(stamp)
        o = Occurrence(record["type"], when, params, id=record["event_id"])
        return cls(o, record["batch_id"], record["position"])
