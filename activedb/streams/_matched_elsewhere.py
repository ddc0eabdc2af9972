"""Results of the rules whose matches were found elsewhere, on Spark's executors.

Results that arrive with a batch are held in memory while the batch is processed. If processing is
interrupted, the batch is replayed with the same results, so they need not be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from activedb import errors
from activedb.columns import Arrival
from activedb.errors import BadEvent, ConfigurationError
from activedb.firing import Triggering
from activedb.streams._arrivals import Arrivals, Refused
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._matched import Completion, Matched, needed_types
from activedb.streams._time import StreamTime

__all__ = ["MatchedElsewhere", "placed", "refusal_of"]

_NOTHING = Matched({}, frozenset())


class MatchedElsewhere:
    """Results of the rules that are matched elsewhere, while a batch is processed.

    Not thread-safe: used only by the thread that feeds the stream.

    Parameters
    ----------
    stream : StreamDeclaration
    triggering : Triggering
    time : StreamTime

    Attributes
    ----------
    is_used : bool
        True if the current batch comes with results. Its punctuation then does not count its rows.
    """

    def __init__(self, stream: StreamDeclaration, triggering: Triggering, time: StreamTime):
        self._stream = stream
        self._catalog = triggering.catalog
        self._time = time
        self.is_used = False
        self._checked = -1  # version of the catalog
        self._matched = _NOTHING
        self._found: dict[tuple[int, int], Completion] = {}
        self._alone: set[tuple[int, int]] = set()

    def take(self, matched: Matched | None, since_us: int | None) -> None:
        """Take the results that arrive with a batch; None: there are none.

        Parameters
        ----------
        since_us : int or None
            Time before which completing events have already been processed.

        Raises
        ------
        ConfigurationError
            If the rules have changed since they were matched.
        """
        self._found, self._alone = {}, set()
        self.is_used = matched is not None
        if matched is None:
            self._matched = _NOTHING
            self._time.elsewhere = frozenset()
            return
        if self._checked != self._catalog.version or matched.rules != self._matched.rules:
            self._check(matched)
            self._checked = self._catalog.version
        self._matched = matched
        self._time.elsewhere = frozenset(matched.rules)
        for each in matched.completions:
            if since_us is not None and each.arrival.occurrence.us < since_us:
                continue
            place = (each.arrival.batch_id, each.arrival.position)
            before = self._found.get(place)
            # Rules with different keys are matched in different places.
            found = each.found if before is None else {**before.found, **each.found}
            self._found[place] = Completion(each.arrival, found)

    def alone(self, rows: Iterable[Arrival]) -> list[Arrival]:
        """Return the completing events that are not rows, but sent only for their matches.

        Whether an event is a row was decided on its arrival, possibly under different rules.

        Parameters
        ----------
        rows : iterable of Arrival
            Waiting rows and the rows of the batch.
        """
        there = {(a.batch_id, a.position) for a in rows} if self._found else ()
        self._alone = {place for place in self._found if place not in there}
        return [self._found[place].arrival for place in self._alone]

    def count(self, chunk: Sequence[Arrival], *, is_last: bool) -> int:
        """Return the number of events of a part: its rows, and in the last part all others."""
        rows = len(chunk)
        if self._alone:
            rows = sum((a.batch_id, a.position) not in self._alone for a in chunk)
        return rows + (self._matched.processed if is_last else 0)

    def is_elsewhere(self, rule: str) -> bool:
        """Return whether a rule is matched elsewhere."""
        return rule in self._matched.rules

    def is_row(self, arrival: Arrival) -> bool:
        """Return whether an event is a row, which the rules matched here have to see."""
        return (arrival.batch_id, arrival.position) not in self._alone

    def found(self, arrival: Arrival) -> Completion | None:
        """Return the matches that an event has completed elsewhere."""
        return self._found.get((arrival.batch_id, arrival.position))

    def _check(self, matched: Matched) -> None:
        advice = "start the feed of the stream again, so that it begins with the rules as they are"
        for subscription in self._catalog.listening_to_any(
            [("event", name) for name in self._stream.types]
        ):
            rule = subscription.rule.name
            event = matched.rules.get(rule)
            if event is not None and event != subscription.event:
                raise ConfigurationError(
                    f"stream {self._stream.name}: the event of rule {rule} was changed while "
                    f"Spark's executors match it: {advice}"
                )
        lacking = needed_types(self._stream, self._catalog, matched.rules) - matched.passed
        if lacking:
            raise ConfigurationError(
                f"stream {self._stream.name}: a rule was defined that listens to "
                f"{', '.join(sorted(lacking))} while Spark's executors match all rules on that: "
                f"{advice}"
            )


def placed(arrivals: Arrivals, matched: Matched | None) -> Arrivals:
    """Return `arrivals` with positions in the whole batch, refusing events from the future."""
    if matched is None or matched.positions is None:
        return arrivals
    positions = matched.positions
    found = Arrivals(refused=[replace(r, position=positions[r.position]) for r in arrivals.refused])
    for kind in ("admitted", "late"):
        for arrival in getattr(arrivals, kind):
            position = positions[arrival.position]
            if position not in matched.from_future:
                getattr(found, kind).append(replace(arrival, position=position))
                continue
            o = arrival.occurrence
            error = BadEvent(
                f"event {o.name!r} is of {o.timestamp}, which was too far ahead of the clock when "
                "its batch was planned: correct the sender's timestamps, or raise the "
                "setting future_max_s"
            )
            shown = {"type": o.name, "timestamp": str(o.timestamp)}
            found.refused.append(Refused(position, shown, error))
    found.refused.sort(key=lambda refused: refused.position)
    return found


def refusal_of(kind: str, text: str) -> Exception:
    """Return the error of a detector elsewhere, with the class name it had there.

    It is a `BadEvent` if it was one of activedb's own there.
    """
    known = getattr(errors, kind, None)
    is_bad = isinstance(known, type) and issubclass(known, BadEvent)
    error: Exception = type(kind, (BadEvent if is_bad else Exception,), {})(text)
    return error
