"""Trial run of an expression over a list of events, without side effects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent, PatternError
from activedb.events._accuracy import Timestamp, microseconds
from activedb.events._detector import Detector
from activedb.events._expressions import Reader, Sequence
from activedb.events._occurrence import Occurrence, precedes
from activedb.events.detection._choice import MATCHES_MAX
from activedb.events.detection._uncertain import is_exact

if TYPE_CHECKING:
    from activedb.events._expressions import Expression

__all__ = ["detect"]

_TRIM_EVERY = 256


def detect(
    expression: Expression,
    events: Iterable[Occurrence | Mapping[str, Any]],
    *,
    context: str | None = None,
    selection: str | None = None,
    skip: str | tuple[str, str] | None = None,
    until: Timestamp | None = None,
    on_uncertain: str | Callable[..., Any] = "certain",
    matches_max: int | None = MATCHES_MAX,
    on_many: str = "refuse",
    reader: Reader = None,
) -> list[Occurrence]:
    """Return the matches of `expression` in `events`.

    Parameters
    ----------
    expression : Expression
        The pattern to detect.
    events : iterable of Occurrence or mapping
        Events in any order. They are sorted by time, then id, then position (intervals: by upper
        end first). A mapping has ``type``, ``timestamp`` and optionally ``id``; all other entries
        are parameters.
    context, selection : str, optional
        Override the expression's own; see `Expression.context` and `Sequence.selecting`.
    skip : str or (str, str), optional
        Skip strategy, with the part name if it takes one; see `Sequence.skipping`.
    until : timestamp, optional
        Matches that time completes up to this moment, inclusive, are detected too. Default: the
        time of the last event.
    on_uncertain : str or callable, optional
        Passed to `Detector`, as are `matches_max` and `on_many`.
    matches_max : int, optional
    on_many : str, optional
    reader : object, optional
        Transaction through which predicates read the shared store.

    Returns
    -------
    list of Occurrence
        Matches in the order of completion; those that one event completes are in the order of
        preference.

    Raises
    ------
    PatternError
        If `expression` cannot stand on its own, or an option does not apply to it.
    BadEvent
        If an event is invalid; the message says which one. `UncertainOrder`, if a match depends on
        an order that is not known.

    Examples
    --------
    >>> from activedb.events import event, seq
    >>> [match] = detect(
    ...     seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45),
    ...     [
    ...         {"type": "EXIT", "timestamp": 2, "worker": 7, "location": 1},
    ...         {"type": "ENTER", "timestamp": 10, "worker": 7, "location": 2},
    ...         {"type": "EXIT", "timestamp": 15, "worker": 7, "location": 2},
    ...     ],
    ... )
    >>> match.timestamp, match.parts["EXIT"].params["location"]
    (10, 1)
    """
    if context is not None:
        expression = expression.context(context)
    if selection is not None:
        expression = _sequence(expression, "selection").selecting(selection)
    if skip is not None:
        steps = (skip,) if isinstance(skip, str) else tuple(skip)
        expression = _sequence(expression, "skip").skipping(*steps)
    detector = Detector(
        expression, on_uncertain=on_uncertain, matches_max=matches_max, on_many=on_many
    )
    occurrences = [_occurrence(position, item) for position, item in enumerate(events)]
    # Sorting by upper ends agrees with the order of intervals. The sort is stable: ties keep their
    # positions.
    occurrences.sort(key=lambda o: (o.high_us, o.us, o.id or ""))
    found: list[Occurrence] = []
    exact = all(is_exact(o) for o in occurrences)
    in_steps: Iterable[tuple[Occurrence, int, list[Occurrence]]]
    in_steps = ((o, o.us, []) for o in occurrences) if exact else _in_steps(occurrences)
    if not exact:
        detector.expect_intervals()
    for number, (o, least_us, waiting) in enumerate(in_steps):
        if number % _TRIM_EVERY == 0:
            detector.trim(least_us)
        found += detector.advance(least_us, reader)
        found += detector.feed(o, reader, waiting)
    if until is not None:
        found += detector.advance(microseconds(until) + 1, reader)
    elif occurrences:
        found += detector.advance(occurrences[-1].high_us + 1, reader)
    return found


def _in_steps(
    occurrences: list[Occurrence],
) -> Iterator[tuple[Occurrence, int, list[Occurrence]]]:
    """Yield each event, the lower bound of the events left, and its possible predecessors.

    Events come by upper ends, except where a local clock gives another order.
    """
    by_low = sorted(occurrences, key=lambda o: o.low_us)
    by_high = deque(occurrences)
    fed: set[int] = set()
    reached: dict[int, Occurrence] = {}
    place = low_place = 0
    while by_high:
        o = by_high.popleft()
        if id(o) in fed:
            continue
        while place < len(by_low) and by_low[place].low_us <= o.high_us:
            reached[id(by_low[place])] = by_low[place]
            place += 1
        first = next(
            (x for x in reached.values() if x is not o and precedes(x, o) and not precedes(o, x)),
            None,
        )
        if first is not None:
            by_high.appendleft(o)
            o = _first_of(first, reached.values())
        del reached[id(o)]
        while id(by_low[low_place]) in fed:
            low_place += 1
        fed.add(id(o))
        yield o, by_low[low_place].low_us, [x for x in reached.values() if not precedes(o, x)]


def _first_of(o: Occurrence, others: Iterable[Occurrence]) -> Occurrence:
    """Return an event before `o` that no other precedes, or `o` itself if it is the first."""
    seen = {id(o)}
    while True:
        before = next((x for x in others if id(x) not in seen and precedes(x, o)), None)
        if before is None:
            return o
        seen.add(id(before))
        o = before


def _sequence(expression: Expression, option: str) -> Sequence:
    if isinstance(expression, Sequence):
        return expression
    raise PatternError(f"{option} is for a sequence, not for {expression!r}")


def _occurrence(position: int, item: Occurrence | Mapping[str, Any]) -> Occurrence:
    if isinstance(item, Occurrence):
        return item
    try:
        if not isinstance(item, Mapping):
            raise BadEvent(f"expected an Occurrence or a mapping, not {item!r}")
        params = dict(item)
        missing = [name for name in ("type", "timestamp") if name not in params]
        if missing:
            raise BadEvent(f"{' and '.join(missing)} missing in {params!r}")
        return Occurrence(
            params.pop("type"), params.pop("timestamp"), id=params.pop("id", None), params=params
        )
    except BadEvent as error:
        raise BadEvent(f"event {position} of the trial run: {error}") from error
