"""Events as they arrive: single ones with their position, and tables with one row per event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from activedb.clock import moment_of
from activedb.events import (
    Occurrence,
    Timestamp,
    decode_params,
    decode_timestamp,
    encode_params,
    encode_timestamp,
)

__all__ = ["PARAM_PREFIX", "Arrival", "EventColumn", "EventTable"]


PARAM_PREFIX = "p_"


class EventColumn(Protocol):
    """Column of an :class:`EventTable`; ``pyarrow.ChunkedArray`` satisfies it."""

    def to_pylist(self) -> list[Any]:
        """Return the values as Python objects, None for NULL."""


class EventTable(Protocol):
    """Rows of an atomic batch in columns; ``pyarrow.Table`` satisfies it."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""

    def column(self, name: str) -> EventColumn:
        """Return the column called ``name``."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Event of a stream together with its arrival position.

    Attributes
    ----------
    occurrence : Occurrence
    batch_id, position : int
        The micro-batch and the row in it; together they identify the event within the query.
    encoded : dict, optional
        `encode_params` of its parameters, if that is known already.
    """

    occurrence: Occurrence
    batch_id: int
    position: int
    encoded: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def order(self) -> tuple[int, str, int, int, str, int, int]:
        """Sort key of event-time order: lower end, then event id, then arrival.

        If an event is certainly before another, its key is smaller. By reference time, the interval
        of the earlier event begins first. By a node's local clock, the lower ends of one node never
        decrease, and the local reading breaks ties between equal ones.
        """
        o = self.occurrence
        stamp = o.stamp
        head = (o.low_us, "", 0)
        if stamp is not None and stamp.local_us is not None:
            head = (o.low_us, stamp.node or "", stamp.local_us)
        return (*head, o.us, o.id or "", self.batch_id, self.position)

    def record(self) -> dict[str, Any]:
        """Return the event as a JSON-serialisable row; `restore` is the inverse."""
        o = self.occurrence
        record = {
            "us": o.us,
            "batch_id": self.batch_id,
            "position": self.position,
            "event_id": o.id,
            "type": o.name,
            "params": encode_params(o.params) if self.encoded is None else self.encoded,
        }
        when = o.timestamp
        if isinstance(when, datetime) and when.tzinfo is UTC:
            return record  # `us` is sufficient
        return {**record, "stamp": encode_timestamp(when)}

    @classmethod
    def restore(cls, record: Mapping[str, Any]) -> Arrival:
        """Return the event that `record` was made from."""
        stamp = record.get("stamp")
        params = decode_params(record["params"])
        when: Timestamp
        when = moment_of(record["us"]) if stamp is None else decode_timestamp(stamp)
        o = Occurrence(record["type"], when, params, id=record["event_id"])
        return cls(o, record["batch_id"], record["position"])
