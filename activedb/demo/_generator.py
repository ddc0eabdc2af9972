"""Seeded hospital ward: reports of its sensors, in the order of their arrival; and a recount."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "BEHAVIOURS",
    "DELAY",
    "FileFormat",
    "Sighting",
    "Ward",
    "compare",
    "replay",
    "write_files",
]


FileFormat = Literal["csv", "json"]

BEHAVIOURS = ("EXIT", "SANITIZE", "ENTER", "MASK")
DELAY = timedelta(seconds=20)
"""Longest time a sighting may take to arrive and still be in time."""

_SHIFT_STARTS = datetime(2011, 8, 29, 6, tzinfo=UTC)
_ROOMS = tuple(f"room {number}" for number in range(101, 109))
_CORRIDOR = "corridor"


@dataclass(frozen=True, slots=True)
class Sighting:
    """A worker's action, seen by a sensor: one input event.

    Attributes
    ----------
    event_id : str
        Distinct; ids sort in the order in which the events happened.
    worker, behaviour, room : str
        The worker, the action (one of `BEHAVIOURS`) and the room.
    at : datetime
        The event time: aware, whole seconds, so that ties occur.
    """

    event_id: str
    worker: str
    behaviour: str
    room: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Ward:
    """A ward whose workers change rooms, more or less hygienically.

    The events are those of figure 1 and section 3.1 of (Wang, Rundensteiner, Ellison 2011).

    Attributes
    ----------
    workers, events : int
        The number of workers, and the number of their actions altogether.
    seed : int
        Seed of the random numbers; equal values give equal sightings.
    late_share : float
        The share of sightings that take 15 to 150 times `DELAY` to arrive. The others take up to
        `DELAY`, most of them a small part of it.
    """

    workers: int
    events: int
    seed: int
    late_share: float = 0.007

    def sightings(self) -> list[Sighting]:
        """Return the sightings in the order of their arrival; O(n log n)."""
        random = Random(self.seed)  # noqa: S311 - a simulation that must repeat, not a secret
        happened: list[tuple[datetime, str, str, str]] = []
        for number in range(self.workers):
            steps = _shift(random)
            share = self.events // self.workers + (number < self.events % self.workers)
            for _, (at, behaviour, room) in zip(range(share), steps, strict=False):
                happened.append((at, f"w{number:04d}", behaviour, room))
        # The sort is stable and by time only: a worker's ties stay in the order of the steps.
        happened.sort(key=lambda step: step[0])
        arriving = []
        for number, (at, worker, behaviour, room) in enumerate(happened):
            late = random.random() < self.late_share
            lag = DELAY * (random.uniform(15, 150) if late else random.random() ** 3)
            arriving.append((at + lag, Sighting(f"e{number:07d}", worker, behaviour, room, at)))
        arriving.sort(key=lambda pair: (pair[0], pair[1].event_id))
        return [sighting for _, sighting in arriving]


def _shift(random: Random) -> Iterator[tuple[datetime, str, str]]:
    """Yield the actions of one worker, without end: (when, behaviour, room)."""
    at = _SHIFT_STARTS + timedelta(seconds=random.randrange(30))
    room, inside = random.choice(_ROOMS), True
    care = random.uniform(0.2, 0.6)  # probability that this worker sanitises before the next room
    while True:
        chance = random.random()
        if inside and chance < 0.55:
            yield at, "EXIT", room
            inside = False
        elif inside:
            yield at, "MASK" if chance < 0.75 else "SANITIZE", room
        elif chance < care:
            yield at, "SANITIZE", _CORRIDOR
        else:
            room, inside = random.choice(_ROOMS), True
            yield at, "ENTER", room
        # Mostly a few seconds, at times none (a tie) or so many that the windows expire.
        pause = random.choices((0, random.randint(1, 12), random.randint(13, 90)), (4, 76, 20))[0]
        at += timedelta(seconds=pause)


def write_files(
    sightings: Sequence[Sighting], folder: Path, files: int, file_format: FileFormat = "csv"
) -> list[Path]:
    """Write sightings to files of nearly equal length, in the order given.

    Parameters
    ----------
    sightings : sequence of Sighting
        In the order of their arrival.
    folder : Path
        Created if it does not exist.
    files : int
        Number of files; their names sort in the order of the sightings.
    file_format : {"csv", "json"}
        CSV with a header, or one JSON object per line; times as ISO 8601 in UTC.

    Returns
    -------
    list of Path
        The files, in order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for number in range(files):
        start, end = (len(sightings) * n // files for n in (number, number + 1))
        path = folder / f"ward-{number:05d}.{file_format}"
        # A stream may watch the folder already: a file appears whole or not at all.
        draft = folder / f".{path.name}.draft"
        with draft.open("w", encoding="utf-8", newline="") as out:
            rows = [asdict(s) | {"at": s.at.isoformat()} for s in sightings[start:end]]
            if file_format == "csv":
                writer = csv.DictWriter(out, [field.name for field in fields(Sighting)])
                writer.writeheader()
                writer.writerows(rows)
            else:
                out.writelines(json.dumps(row) + "\n" for row in rows)
        draft.rename(path)
        paths.append(path)
    return paths


# -- recount of the ward's tables without the system: a state machine over events in time order ----
# It uses no part of activedb, so that agreement between a run and its recount is meaningful.

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
