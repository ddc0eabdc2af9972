"""One producer of events: its sync points and its liveness.

See README-time.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from activedb.events._accuracy import AccuracyInterval, LocalClock
from activedb.events._codec import decode_params, encode_params
from activedb.events._occurrence import Occurrence

__all__ = ["NEVER_US", "NOT_YET_US", "Key", "Producer"]

Key = tuple[str, str]

# Sentinels below and above all timestamps, which fit in 64 bits.
NOT_YET_US = -(2**63)
NEVER_US = 2**63


class Producer:
    """State of one producer."""

    __slots__ = (
        "heard",
        "heard_us",
        "in_order",
        "keys",
        "local_clock",
        "local_sync_us",
        "name",
        "silent_after_us",
        "sync_us",
    )

    def __init__(
        self, name: str, keys: set[Key] | None, in_order: bool, silent_after_us: int | None
    ):
        self.name = name
        self.keys = keys  # None: any
        self.in_order = in_order
        self.silent_after_us = silent_after_us
        self.sync_us = NOT_YET_US  # never decreases
        self.local_clock: LocalClock | None = None
        self.local_sync_us = NOT_YET_US  # in readings of local_clock; never decreases
        self.heard = True  # since the last check for silent producers
        self.heard_us: int | None = None  # time of the first check at which it had been silent

    def sends(self, keys: Iterable[Key] | None) -> bool:
        return keys is None or self.keys is None or not self.keys.isdisjoint(keys)

    def move(self, us: int, stamp: AccuracyInterval | None) -> None:
        """Advance the sync points to `us` and to what the local reading of `stamp` implies."""
        self.sync_us = max(self.sync_us, us)
        clock = None if stamp is None else stamp.local_clock
        if stamp is None or clock is None:
            return
        assert stamp.local_us is not None
        local_sync_us = stamp.local_us - clock.apart_us
        if self.local_clock == clock:
            local_sync_us = max(self.local_sync_us, local_sync_us)
        self.local_clock, self.local_sync_us = clock, local_sync_us

    def is_past(self, o: Occurrence) -> bool:
        """Return whether every event this producer still sends is certain to follow `o`."""
        if self.sync_us > o.high_us:
            return True
        stamp = o.stamp
        return (
            stamp is not None
            and not o.parts
            and stamp.local_us is not None
            and stamp.local_us < self.local_sync_us
            and stamp.node == self.name
            and stamp.local_clock == self.local_clock
        )

    def is_silent(self, now_us: int) -> bool:
        """Return whether the producer is silent for too long; restart the count if it was heard."""
        if self.heard or self.heard_us is None:
            self.heard, self.heard_us = False, now_us
        return self.silent_after_us is not None and now_us - self.heard_us > self.silent_after_us

    def record(self) -> dict[str, Any]:
        """Return the producer's state as a JSON-serialisable dict for `restored`."""
        clock = self.local_clock
        return encode_params(
            {
                "keys": None if self.keys is None else [list(key) for key in sorted(self.keys)],
                "in_order": self.in_order,
                "silent_after_us": self.silent_after_us,
                "sync_us": self.sync_us,
                "local_sync_us": self.local_sync_us,
                "local_clock": None
                if clock is None
                else [
                    clock.incarnation,
                    clock.detection_delay_us,
                    clock.drift_ppb,
                    clock.granularity_us,
                    clock.adjustment_us,
                ],
            }
        )

    @classmethod
    def restored(cls, name: str, record: Mapping[str, Any]) -> Self:
        """Return the producer whose state is `record`."""
        data = decode_params(record)
        keys = None if data["keys"] is None else {(kind, key) for kind, key in data["keys"]}
        producer = cls(name, keys, data["in_order"], data["silent_after_us"])
        producer.sync_us = data["sync_us"]
        producer.local_sync_us = data["local_sync_us"]
        if data["local_clock"] is not None:
            producer.local_clock = LocalClock(*data["local_clock"])
        return producer
