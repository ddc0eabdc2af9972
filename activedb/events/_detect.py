"""A pure trial run of an expression over a list of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent, PatternError
from activedb.events._detector import Detector
from activedb.events._expression import Reader
from activedb.events._occurrence import Occurrence
from activedb.events._sequence import Sequence
from activedb.events._timestamps import Timestamp, microseconds
from activedb.events.detection._bound import MATCHES_MAX

if TYPE_CHECKING:
    from activedb.events._expression import Expression

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
    on_uncertain: str | Callable[..., Any] = "raise",
    matches_max: int | None = MATCHES_MAX,
    on_many: str = "refuse",
    reader: Reader = None,
) -> list[Occurrence]:
    """Return the matches of `expression` in `events`.

    Parameters
    ----------
    expression : Expression
        What to look for.
    events : iterable of Occurrence or mapping
        In any order: they are sorted by time, then id, then position (where times are intervals,
        by their upper ends first). A mapping has ``type``, ``timestamp``, perhaps ``id``; all other
        entries are parameters.
    context, selection : str, optional
        As for `Expression.context` and `Sequence.selecting`, instead of the expression's own.
    skip : str or (str, str), optional
        As for `Sequence.skipping`: where to, and perhaps the part.
    until : timestamp, optional
        What time completes up to then, inclusive, is found, too; by default up to the last event.
    on_uncertain : str or callable, optional
        As for `Detector`, as are `matches_max` and `on_many`.
    matches_max : int, optional
    on_many : str, optional
    reader : object, optional
        What predicates that read the shared store read through.

    Returns
    -------
    list of Occurrence
        In the order in which they are completed; those completed by one event in the order of
        preference.

    Raises
    ------
    PatternError
        If `expression` cannot stand on its own, or an option is not for it.
    BadEvent
        If an event cannot be understood; the message says which one. `UncertainOrder`, if it
        depends on an order that is not known.

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
    # By upper ends, which does not contradict the order of intervals; stable, so positions stay.
    occurrences.sort(key=lambda o: (o.high_us, o.us, o.id or ""))
    if any(o.low_us != o.high_us for o in occurrences):
        detector.expect_intervals()
    found: list[Occurrence] = []
    for number, o in enumerate(occurrences):
        if number % _TRIM_EVERY == 0:
            detector.trim(o.low_us)
        found += detector.advance(o.low_us, reader)
        found += detector.feed(o, reader)
    if until is not None:
        found += detector.advance(microseconds(until) + 1, reader)
    elif occurrences:
        found += detector.advance(occurrences[-1].high_us + 1, reader)
    return found


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
