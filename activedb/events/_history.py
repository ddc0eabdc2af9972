"""The retained events of one equivalence key, and the search for the matches they complete.

A sequence of n positive parts has n stages. Stage i has two lists of entries, each sorted by
(us, id, arrival): ``taken``, the events its positive part takes, and ``forbidden``, the events
taken by the negated parts right before it. README.md, "Algorithm", explains the search.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from activedb.events._occurrence import Occurrence

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Entry", "History"]

# (us, id or "", arrival, occurrence): arrivals differ, so comparing never reaches the occurrence.
# A one-tuple (us,) sorts before every entry of that time: bisect_left with (us,) finds the first
# entry at or after us, with (us + 1,) the first one after it.
Entry = tuple[int, str, int, Occurrence]


class History:
    """The retained events of one equivalence key.

    Parameters
    ----------
    key : tuple
        The values of the equivalence attributes.
    stages : int
        The number of positive parts.

    Attributes
    ----------
    due_us : int
        Where the history stands in its detector's expiry heap; kept by the detector.
    """

    __slots__ = ("due_us", "forbidden", "key", "taken")

    def __init__(self, key: tuple[object, ...], stages: int):
        self.key = key
        self.due_us = 0
        # The events of the last stage complete matches at once and are never retained.
        self.taken: list[list[Entry]] = [[] for _ in range(stages - 1)]
        self.forbidden: list[list[Entry]] = [[] for _ in range(stages)]

    def add(self, entry: Entry, taken: Iterable[int], forbidden: Iterable[int]) -> None:
        """Put `entry` at its place in the lists of the given stages."""
        for stage in taken:
            insort(self.taken[stage], entry)
        for stage in forbidden:
            insort(self.forbidden[stage], entry)

    def remove(self, o: Occurrence) -> bool:
        """Forget the last retained feeding of `o`, found by identity; tell whether there was one.

        Complexity: O(log n) to find it among n events, plus the events that share its time.
        """
        own = (o.us, o.id or "")
        last_arrival = -1
        for entries in (*self.taken, *self.forbidden):
            for entry in entries[bisect_left(entries, own) : bisect_left(entries, (o.us + 1,))]:
                if entry[3] is o:
                    last_arrival = max(last_arrival, entry[2])
        for entries in (*self.taken, *self.forbidden):
            place = bisect_left(entries, (*own, last_arrival))
            if place < len(entries) and entries[place][3] is o:
                del entries[place]
        return last_arrival >= 0

    def forget(self, before_us: int) -> int:
        """Forget the events before `before_us`; return how many there were."""
        forgotten: set[int] = set()
        for entries in (*self.taken, *self.forbidden):
            end = bisect_left(entries, (before_us,))
            forgotten.update(entry[2] for entry in entries[:end])
            del entries[:end]
        return len(forgotten)

    def oldest_us(self) -> int | None:
        """Return the time of the oldest retained event, None if there is none."""
        firsts = [entries[0][0] for entries in (*self.taken, *self.forbidden) if entries]
        return min(firsts, default=None)

    def completed_by(self, last: Entry, window_us: int | None) -> list[tuple[Entry, ...]]:
        """Return every sequence of retained events that `last` completes.

        Complexity: O(m log m + k) for m events within reach of `last` and k constituents of
        matches; without negations in the middle O(log n + k). No partial combination that
        cannot be completed is ever built.
        """
        start_us = None if window_us is None else last[0] - window_us
        spans = self._spans(last, start_us)
        viable = None if spans is None else self._viable(last, start_us, spans)
        if viable is None:
            return []
        sequences: list[tuple[Entry, ...]] = [(last,)]
        for stage in range(len(viable) - 1, 0, -1):
            earlier = viable[stage - 1]
            sequences = [
                (entry, *sequence)
                for sequence in sequences
                for entry in self._preceding(earlier, stage, sequence[0][0], start_us)
            ]
        sequences.sort()
        return sequences

    def _spans(self, last: Entry, start_us: int | None) -> list[tuple[int, int]] | None:
        """Per stage but the last, from which to which index entries may lead on to `last`.

        Downwards from `last`: an event must be before the latest one of the next stage, and not
        before the floor of the earliest one. None if a stage is left without events.
        """
        spans: list[tuple[int, int]] = []
        first_us = last_us = last[0]
        for stage in range(len(self.taken), 0, -1):
            entries = self.taken[stage - 1]
            low = self._low(entries, stage, first_us, start_us)
            high = bisect_left(entries, (last_us,))
            if low >= high:
                return None
            spans.append((low, high))
            first_us, last_us = entries[low][0], entries[high - 1][0]
        spans.reverse()
        return spans

    def _viable(
        self, last: Entry, start_us: int | None, spans: list[tuple[int, int]]
    ) -> list[list[Entry]] | None:
        """Per stage, the entries of its span that some sequence from the first stage leads to.

        Upwards from the first stage. None if `last` is not among them.
        """
        stages = [(self.taken[stage], low, high) for stage, (low, high) in enumerate(spans)]
        stages.append(([last], 0, 1))
        viable: list[list[Entry]] = []
        for stage, (entries, low, high) in enumerate(stages):
            if stage == 0:
                found = entries[low : self._end_of_first(entries, low, high, start_us)]
            else:
                earlier = viable[stage - 1]
                # Nothing up to the earliest viable entry of the stage before can follow one.
                low = bisect_left(entries, (earlier[0][0] + 1,), low, high)
                found = entries[low:high]
                if self.forbidden[stage]:
                    found = [e for e in found if self._follows(earlier, stage, e[0], start_us)]
            if not found:
                return None
            viable.append(found)
        return viable

    def _end_of_first(self, entries: list[Entry], low: int, high: int, start_us: int | None) -> int:
        """Return where the entries end that have no negated event of the start before them."""
        negated = self.forbidden[0]
        if start_us is None or not negated:
            return high
        place = bisect_left(negated, (start_us,))
        if place == len(negated):
            return high
        return bisect_left(entries, (negated[place][0] + 1,), low, high)

    def _follows(self, earlier: list[Entry], stage: int, us: int, start_us: int | None) -> bool:
        return self._low(earlier, stage, us, start_us) < bisect_left(earlier, (us,))

    def _preceding(
        self, earlier: list[Entry], stage: int, us: int, start_us: int | None
    ) -> list[Entry]:
        """Return the entries of the stage before that an event of `stage` at `us` may follow."""
        return earlier[self._low(earlier, stage, us, start_us) : bisect_left(earlier, (us,))]

    def _low(self, earlier: list[Entry], stage: int, us: int, start_us: int | None) -> int:
        """Return the first index of `earlier` from which an event of `stage` at `us` may follow.

        The floor is the time of the latest negated event before `us`: one at the same time as it
        is not before it, so nothing forbidden lies strictly between.
        """
        negated = self.forbidden[stage]
        place = bisect_left(negated, (us,))
        floor_us = negated[place - 1][0] if place else start_us
        if floor_us is None:
            return 0
        if start_us is not None:
            floor_us = max(floor_us, start_us)
        return bisect_left(earlier, (floor_us,))
