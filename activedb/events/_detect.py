"""A pure trial run of an expression over a list of events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from activedb.errors import BadEvent
from activedb.events._detector import Detector
from activedb.events._occurrence import Occurrence

if TYPE_CHECKING:
    from activedb.events._expressions import Expression

__all__ = ["detect"]


def detect(
    expression: Expression, events: Iterable[Occurrence | Mapping[str, Any]]
) -> list[Occurrence]:
    """Return the matches of `expression` in `events`.

    Parameters
    ----------
    expression : Expression
        What to look for.
    events : iterable of Occurrence or mapping
        In any order: they are sorted by time, then id, then position. A mapping has ``type``,
        ``timestamp``, perhaps ``id``; all other entries are parameters.

    Returns
    -------
    list of Occurrence
        In the order in which they are completed; those completed by one event as in
        `Detector.feed`.

    Raises
    ------
    PatternError
        If `expression` cannot stand on its own.
    BadEvent
        If an event cannot be understood; the message says which one.

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
    detector = Detector(expression)
    occurrences = [_occurrence(position, item) for position, item in enumerate(events)]
    occurrences.sort(key=lambda o: (o.us, o.id or ""))  # a stable sort keeps positions
    return [match for o in occurrences for match in detector.feed(o)]


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
