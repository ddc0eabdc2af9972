"""One bucket of keys: its events in event-time order through the detectors of the keyed rules.

Pure: no Spark, no store. Spark's operator stores :meth:`Bucket.state` for a bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from activedb.columns import Arrival
from activedb.errors import BadEvent
from activedb.events import Detector, Query, decode, encode
from activedb.streams import Completion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from activedb.events import Occurrence
    from activedb.streams import KeyedRule


@dataclass
class Passed:
    """Result of passing a punctuation to a bucket.

    Attributes
    ----------
    completions : list of Completion
        In event-time order.
    processed : int
        Number of passed events whose home is this bucket.
    newest_us : int or None
        Time of the last passed event.
    """

    completions: list[Completion] = field(default_factory=list)
    processed: int = 0
    newest_us: int | None = None

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; :meth:`restore` undoes it."""
        return {
            "completions": [
                {
                    "event": each.arrival.record(),
                    "found": {
                        name: {"error": list(found)}
                        if isinstance(found, tuple)
                        else {"matches": [encode(o) for o in found]}
                        for name, found in each.found.items()
                    },
                }
                for each in self.completions
            ],
            "processed": self.processed,
            "newest_us": self.newest_us,
        }

    @classmethod
    def restore(cls, record: Mapping[str, Any]) -> Passed:
        """Restore an object from its :meth:`record`."""
        return cls(
            [
                Completion(
                    Arrival.restore(each["event"]),
                    {
                        name: (found["error"][0], found["error"][1])
                        if "error" in found
                        else [decode(o) for o in found["matches"]]
                        for name, found in each["found"].items()
                    },
                )
                for each in record["completions"]
            ],
            record["processed"],
            record["newest_us"],
        )


class Bucket:
    """Events of some keys that wait for the punctuation, and the state of the detectors.

    Any two events of one key are in one bucket, so its detectors make the same matches for these
    keys as one process would: each detector separates its keys itself. Events are fed in the same
    order as in one process, that of :attr:`Arrival.order`, once the punctuation has passed them.

    Parameters
    ----------
    rules : sequence of KeyedRule
        In the order of definition.
    state : mapping, optional
        State of a bucket that continues. For a rule that detects something else now it is
        discarded; for a rule that no longer exists it is kept, as the rule may come back.
    since : mapping of str to int, optional
        The micro-batch with which a rule began: it ignores events of earlier ones.
    """

    def __init__(
        self,
        rules: Sequence[KeyedRule],
        state: Mapping[str, Any] | None = None,
        *,
        since: Mapping[str, int] | None = None,
    ):
        self._rules = rules
        self._since = since or {}
        self._absent: dict[str, Any] = {}
        self._detectors = {rule.name: _detector(rule) for rule in rules}
        self._waiting: list[tuple[Arrival, bool]] = []
        if state is None:
            return
        self._waiting = [(Arrival.restore(record), home) for record, home in state["waiting"]]
        for rule in rules:
            *began, kept = state["detectors"].get(rule.name, (None,))
            if began == self._began(rule):
                self._detectors[rule.name].restore(kept)
        self._absent = {
            name: kept for name, kept in state["detectors"].items() if name not in self._detectors
        }

    @property
    def due_us(self) -> int | None:
        """Time of the first waiting event; None if none waits."""
        return self._waiting[0][0].occurrence.us if self._waiting else None

    def take(self, arrival: Arrival, *, home: bool) -> None:
        """Let an event wait. O(log waiting), plus the move of the events behind it.

        Parameters
        ----------
        home : bool
            Whether it is counted here: several buckets may get an event, one for each parameter
            that is a key.
        """
        place = bisect_left(self._waiting, arrival.order, key=lambda each: each[0].order)
        self._waiting.insert(place, (arrival, home))

    def advance(self, punctuation_us: int | None, *, done_us: int | None = None) -> Passed:
        """Feed the events that a punctuation has passed.

        Parameters
        ----------
        punctuation_us : int or None
            No event before it is still to come. None: no event at all is.
        done_us : int or None
            Events before it were processed already: they are fed, and their matches are dropped.
        """
        passed = Passed()
        count = len(self._waiting)
        if punctuation_us is not None:
            count = bisect_left(self._waiting, punctuation_us, key=lambda e: e[0].occurrence.us)
        for arrival, home in self._waiting[:count]:
            found = self._feed(arrival)
            us = arrival.occurrence.us
            if done_us is not None and us < done_us:
                continue
            passed.newest_us = us
            passed.processed += home
            if found:
                passed.completions.append(Completion(arrival, found))
        del self._waiting[:count]
        if punctuation_us is not None:
            for detector in self._detectors.values():
                detector.trim(punctuation_us)
        return passed

    def state(self) -> dict[str, Any]:
        """Return the whole state as JSON. O(size of the state)."""
        return {
            "waiting": [[arrival.record(), home] for arrival, home in self._waiting],
            "detectors": self._absent
            | {
                rule.name: [*self._began(rule), self._detectors[rule.name].state()]
                for rule in self._rules
            },
        }

    def _began(self, rule: KeyedRule) -> list[Any]:
        """Return a rule's event and first batch; a rule may change while its bucket sleeps."""
        return [rule.event, self._since.get(rule.name, 0)]

    def _feed(self, arrival: Arrival) -> dict[str, list[Occurrence] | tuple[str, str]]:
        """Return the matches of an event, or the error of a rule that refuses it.

        If a rule refuses it for all, none has been fed it.
        """
        found: dict[str, list[Occurrence] | tuple[str, str]] = {}
        fed: list[Detector] = []
        is_for_all = False
        o = arrival.occurrence
        for rule in self._rules:
            if arrival.batch_id < self._since.get(rule.name, 0):  # the rule did not exist then
                continue
            detector = self._detectors[rule.name]
            try:
                matches = detector.feed(o)
            except Exception as error:  # a user's predicate may raise anything
                found[rule.name] = (type(error).__name__, str(error))
                is_for_all |= not (rule.fails_alone or isinstance(error, BadEvent))
                continue
            fed.append(detector)
            if matches:
                found[rule.name] = matches
        if is_for_all:
            for detector in reversed(fed):
                detector.withdraw(o)
        return found


def _detector(rule: KeyedRule) -> Detector:
    return Detector(
        rule.on,
        name=None if isinstance(rule.on, Query) else rule.name,
        on_uncertain=rule.on_uncertain,
        partials_max=rule.partials_max,
        matches_max=rule.matches_max,
        on_many=rule.on_many,
    )
