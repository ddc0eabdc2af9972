"""One producer of events: its sync points, and whether it is heard.

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

# Timestamps are within 64 bits, so one is below all of them, the other above.
NOT_YET_US = -(2**63)
NEVER_US = 2**63


class Producer:
    """What is known of one producer."""

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
        self.sync_us = NOT_YET_US  # never goes back
        self.local_clock: LocalClock | None = None
        self.local_sync_us = NOT_YET_US  # of local_clock; never goes back
        self.heard = True  # since the last look for the silent
        self.heard_us: int | None = None  # when that look was

    def sends(self, keys: Iterable[Key] | None) -> bool:
        return keys is None or self.keys is None or not self.keys.isdisjoint(keys)

    def move(self, us: int, stamp: AccuracyInterval | None) -> None:
        """Move the sync points to `us` and to what the local reading of `stamp` tells."""
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
        """Whether all that this one still sends is certain to follow `o`."""
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
        """Whether it has not been heard for too long; starts counting anew if it has been heard."""
        if self.heard or self.heard_us is None:
            self.heard, self.heard_us = False, now_us
        return self.silent_after_us is not None and now_us - self.heard_us > self.silent_after_us

    def record(self) -> dict[str, Any]:
        """What is known of it as a JSON-able dict; `restored` undoes it."""
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
        """The producer that `record` was made of."""
        data = decode_params(record)
        keys = None if data["keys"] is None else {(kind, key) for kind, key in data["keys"]}
        producer = cls(name, keys, data["in_order"], data["silent_after_us"])
        producer.sync_us = data["sync_us"]
        producer.local_sync_us = data["local_sync_us"]
        if data["local_clock"] is not None:
            producer.local_clock = LocalClock(*data["local_clock"])
        return producer
