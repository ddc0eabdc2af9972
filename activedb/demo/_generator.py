"""Seeded hospital ward: reports of its sensors, in the order of their arrival."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["BEHAVIOURS", "DELAY", "FileFormat", "Sighting", "Ward", "write_files"]

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
