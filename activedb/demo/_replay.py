"""Recount of the ward's tables without the system: a state machine over events in time order.

It uses no part of activedb, so that agreement between a run and its recount is meaningful.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from activedb.demo._generator import Sighting

__all__ = ["compare", "replay"]

Rows = list[tuple[Any, ...]]


def replay(sightings: Iterable[Sighting], late_ids: Collection[str]) -> dict[str, Rows]:
    """Return what the tables must hold after a run over `sightings`.

    Parameters
    ----------
    sightings : iterable of Sighting
        In any order.
    late_ids : collection of str
        Ids of the events that the run found too late and did not process.

    Returns
    -------
    dict of str to list of tuple
        Table name to its rows, sorted; values in the order of the table's columns.
    """
    left_out = frozenset(late_ids)
    in_time = [s for s in sightings if s.event_id not in left_out]
    in_time.sort(key=lambda s: (s.at, s.event_id))
    pasts: dict[str, list[Sighting]] = {}
    statuses: dict[str, tuple[str, datetime]] = {}
    tally: Counter[tuple[datetime, str, str]] = Counter()
    audit: Rows = []
    for now in in_time:
        past = pasts.setdefault(now.worker, [])
        status, since = statuses.setdefault(now.worker, ("safe", now.at))
        following = _next_status(status, past, now) if since < now.at else status
        if following != status:
            statuses[now.worker] = (following, now.at)
            tally[now.at.replace(minute=0, second=0), status, following] += 1
            audit.append((now.worker, now.at, following, status))
        past.append(now)
    return {
        "worker_status": sorted((worker, *status) for worker, status in statuses.items()),
        "status_tally": sorted((*change, count) for change, count in tally.items()),
        "status_audit": sorted(audit),
    }


def _next_status(status: str, past: list[Sighting], now: Sighting) -> str:
    """Return the status after `now`; `past` has the worker's earlier sightings."""
    if now.behaviour == "ENTER":
        recent = _recent(past, now, 45)
        exits = [s for s in recent if s.behaviour == "EXIT"]
        dirty = [e for e in exits if not _between("SANITIZE", e, now, recent)]
        if any(e.room != now.room for e in dirty) and status != "violation":
            return {"safe": "warning", "warning": "violation"}[status]
        if len(dirty) < len(exits) and status == "warning":
            return "safe"
    elif now.behaviour == "EXIT":
        masked = any(s.behaviour == "MASK" for s in _recent(past, now, 5))
        if masked and status == "warning":
            return "violation"
    elif now.behaviour == "SANITIZE":
        recent = _recent(past, now, 60)
        washes = [s for s in recent if s.behaviour == "SANITIZE"]
        thorough = any(not _between("ENTER", wash, now, recent) for wash in washes)
        if thorough and status == "violation":
            return "safe"
    return status


def _recent(past: list[Sighting], now: Sighting, window_s: int) -> list[Sighting]:
    """Return the sightings before the second of `now`, at most the window before it."""
    recent = []
    for sighting in reversed(past):
        if now.at - sighting.at > timedelta(seconds=window_s):
            break
        if sighting.at < now.at:
            recent.append(sighting)
    return recent


def _between(behaviour: str, first: Sighting, last: Sighting, sightings: list[Sighting]) -> bool:
    """Return whether a sighting of `behaviour` lies strictly between two others in time."""
    return any(s.behaviour == behaviour and first.at < s.at < last.at for s in sightings)


def compare(
    expected: Mapping[str, Iterable[tuple[Any, ...]]],
    actual: Mapping[str, Iterable[tuple[Any, ...]]],
) -> list[str]:
    """Return the differences between two sets of tables, one sentence each.

    Parameters
    ----------
    expected, actual : mapping of str to iterable of tuple
        Table name to its rows, in any order; values must be hashable.

    Returns
    -------
    list of str
        Empty if the tables hold the same rows, with the same multiplicities.
    """
    differences = [f"table {name} is missing" for name in sorted(expected.keys() - actual.keys())]
    differences += [f"table {n} was not expected" for n in sorted(actual.keys() - expected.keys())]
    for name in sorted(expected.keys() & actual.keys()):
        wanted, found = Counter(expected[name]), Counter(actual[name])
        for row in sorted((wanted - found).elements()):
            differences.append(f"{name} lacks the row {_shown(row)}")
        for row in sorted((found - wanted).elements()):
            differences.append(f"{name} has the row {_shown(row)}, which was not expected")
    return differences


def _shown(row: tuple[Any, ...]) -> str:
    return ", ".join(v.isoformat() if isinstance(v, datetime) else str(v) for v in row)
