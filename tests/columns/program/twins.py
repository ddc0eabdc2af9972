"""One stream of events, fed to `ProgramRun` with `SerialOrder` and to `ColumnRun`."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from activedb.clock import moment_of
from activedb.columns.events import NO_VALUE, EventColumns
from activedb.columns.program._results import ColumnResults
from activedb.columns.program._run import ColumnRun
from activedb.events import Occurrence
from activedb.scheduling import Outcome, Program, ProgramRun, Results, SerialOrder

from .shapes import SIZE

AMOUNTS = (0.0, 1.0, 2.5, 3.0, 7.0, -1.0)
LARGE = (8e15, 8e15, 1e200)  # sums are not exact; compiled code is not given the last one


@dataclass(frozen=True)
class Event:
    """A type, a time, an id, parameters."""

    type: str
    us: int
    id: str | None
    params: dict[str, Any]


def events_of(program: Program, names: tuple[str, str], seed: int, count: int) -> list[Event]:
    """Random ones, out of order, with skewed keys, some of them impossible or left out."""
    draw = random.Random(seed)
    skew, wrong, large = draw.choice((0, 2)), draw.choice((0, 0.05)), draw.choice((0, 0.03))
    lacking = draw.choice((0, 0, 0.03))
    with_ids = draw.random() < 0.5
    made = []
    for place in range(count):
        keys = [int(SIZE * draw.random() ** (1 + skew)) for _ in names]
        if draw.random() < wrong:
            for number in draw.sample((0, 1), draw.choice((1, 2))):
                keys[number] = draw.choice((-1, SIZE + 2, 10**12))
        amount = draw.choice(LARGE if draw.random() < large else AMOUNTS)
        id_ = draw.choice("abc") if with_ids and draw.random() < 0.7 else None
        us = place // 2 + draw.randrange(8)
        type_ = draw.choice(program.types)
        params: dict[str, Any] = dict(zip(names, keys, strict=True), amount=amount)
        for name in (*names, "amount"):
            if draw.random() < lacking:
                params[name] = None
            elif draw.random() < lacking:
                del params[name]
        made.append(Event(type_, us, id_, params))
    return made


def batch_of(types: tuple[str, ...], events: list[Event]) -> EventColumns:
    """The same in columns."""
    names = dict.fromkeys(name for event in events for name in event.params)
    return EventColumns.of_arrays(
        types,
        np.array([types.index(event.type) for event in events], np.int64),
        np.array([event.us for event in events], np.int64),
        {name: [event.params.get(name, NO_VALUE) for event in events] for name in names},
        [event.id for event in events] if any(event.id for event in events) else None,
    )


def compare(program: Program, run: ColumnRun, events: list[Event], seed: int) -> None:
    """Feed both in batches cut at random, and compare all that can be seen after each."""
    draw = random.Random(seed)
    general = ProgramRun(program, SerialOrder())
    place, mark = 0, 0
    while place < len(events):
        part = events[place : place + draw.randrange(1, 40)]
        place += len(part)
        mark = max(mark, mark + draw.randrange(-3, 12))
        punctuation = mark if draw.random() < 0.8 else None
        occurrences = [
            Occurrence(event.type, moment_of(event.us), event.params, id=event.id) for event in part
        ]
        expected = general.feed(occurrences, punctuation)
        found = run.feed(batch_of((*program.types, "OTHER"), part), punctuation)
        _compare_results(expected, found)
        assert [(part[refusal.row].us, refusal.reason) for refusal in found.refused] == [
            (refusal.event.us, refusal.reason) for refusal in expected.refused
        ]
        assert run.waiting == general.waiting
        _compare_state(general, run)
    _compare_results(general.finish(), run.finish())
    _compare_state(general, run)


def _compare_results(expected: Results, found: ColumnResults) -> None:
    assert len(found) == len(expected.transactions)
    for number, (transaction, outcome) in enumerate(
        zip(expected.transactions, found.outcomes(), strict=True)
    ):
        assert found.at(number) == transaction.at
        assert transaction.outcome is not None
        assert _shown(outcome) == _shown(transaction.outcome)
        assert bool(found.committed[number]) == outcome.committed


def _compare_state(general: ProgramRun, run: ColumnRun) -> None:
    for versions in general.state:
        table = versions.table
        assert run.state.newest(table) == versions.newest()
        if table.history_us:
            expected = {
                key: tuple((at._replace(id=""), value) for at, value in found)
                for key, found in versions.all().items()
            }
            assert run.state.all(table) == expected


def _shown(outcome: Outcome) -> Outcome:
    """Return an outcome that can be compared: the error's type for the error, text for NaN."""
    results = tuple(
        "NaN" if isinstance(result, float) and math.isnan(result) else result
        for result in outcome.results
    )
    return replace(outcome, results=results, error=type(outcome.error))  # type: ignore[arg-type]
