"""The same is late, at the same time, whether a stream is matched by one process or elsewhere.

Elsewhere without Spark: its punctuation is the watermark, which counts the rows of the batches
before, and what its operator does with a row is a line here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest

import activedb as adb
from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.events import Occurrence
from activedb.streams import AtomicBatch, Marks, Matched, Stream, newest_times
from spark_bridge._matching_bucket import Bucket
from tests.drawing import SCALE, drawn

Row = tuple[str, int]  # the type and the time; "X" is no event, though its time counts

_COLUMNS = {
    "event_type": pa.string(),
    "event_time_us": pa.int64(),
    "event_id": pa.string(),
    "p_k": pa.int64(),
    "raw": pa.string(),
}


def table(rows: list[Row]) -> Any:
    found = [(kind, us, None, 1, "no event" if kind == "X" else None) for kind, us in rows]
    columns = zip(*found, strict=True) if found else ((),) * len(_COLUMNS)
    return pa.table(
        {
            name: pa.array(values, kind)
            for (name, kind), values in zip(_COLUMNS.items(), columns, strict=True)
        }
    )


class Cut(BaseException):
    """The process was stopped."""


class Played:
    """Batches through rules of which one is matched by key, here or elsewhere."""

    def __init__(self, db: adb.Database, stream: Stream, *, is_elsewhere: bool):
        self._noted: list[tuple[str, int, list[int]]] = []
        self._is_elsewhere = is_elsewhere
        a, b, c = map(adb.event, "ABC")
        self._define(db, "keyed", adb.seq(a, b).same("k").within(timedelta(milliseconds=20)))
        self._define(db, "plain", c)
        self._define(db, "timed", adb.seq(c, ~a).within(timedelta(milliseconds=5)))
        self._define(db, "late", adb.late(stream.name))
        self._define(db, "late then", adb.seq(adb.late(stream.name, alias="late"), c))
        self.run = stream.run
        self._stream = stream
        self._marks = Marks.restore(stream, None)
        matchable = self.run.matchable()
        assert [rule.name for rule in matchable.rules] == ["keyed"]
        self._keyed = matchable.rules
        self._bucket = Bucket(self._keyed)
        rules = {rule.name: rule.event for rule in matchable.rules}
        self._matched = Matched(rules, matchable.needs({"keyed"}))
        self._last = -1

    def _define(self, db: adb.Database, name: str, on: Any) -> None:
        # One after the other: rules of equal priority would run beside each other.
        @db.rule(name=name, on=on, priority=-len(db.rules))
        def note(t: adb.Transaction, o: Occurrence) -> None:
            self._noted.append((name, o.us, [part.us for part in o.parts.values()]))

    @property
    def seen(self) -> list[tuple[str, int, list[int]]]:
        """Return what rules have seen.

        Matches of one rule at one time, which run at once, are sorted.
        """
        alike = groupby(self._noted, key=itemgetter(0, 1))
        return [one for _, group in alike for one in sorted(group)]

    def apply(self, rows: list[Row], *, is_cut: bool) -> None:
        """Apply one batch; if `is_cut`, stop after its first part, and apply it again."""
        self._last += 1
        reached_us = self._marks.punctuation_us
        newest = newest_times(self._stream, table(rows), None)
        self._marks = self._marks.after(self._stream, newest, 0)
        if self._is_elsewhere:
            batch = self._spread(rows, reached_us)
        else:
            punctuation_us = self._marks.punctuation_us
            batch = AtomicBatch("letters", "query", self._last, table(rows), punctuation_us)
        if is_cut:
            self.run.on_progress = self._stop
            with pytest.raises(Cut):
                self.run.apply(batch)
            self.run.on_progress = lambda events: None
        self.run.apply(batch)
        self.run.apply(batch)  # which has been done

    def _stop(self, events: int) -> None:
        raise Cut

    def _spread(self, rows: list[Row], watermark_us: int | None) -> AtomicBatch:
        known = [us for us in (watermark_us, self.run.punctuation_us) if us is not None]
        late_us = max(known, default=None)
        passed = []
        for position, (kind, us) in enumerate(rows):
            is_late = late_us is not None and us < late_us
            if kind == "X" or is_late or kind in self._matched.passed:
                passed.append(position)
            if kind in "AB" and not is_late:
                o = Occurrence(kind, moment_of(us), {"k": 1})
                arrival = Arrival(o, self._last, position)
                self._bucket.take(arrival, home=kind not in self._matched.passed)
        done = Matched(self._matched.rules, self._matched.passed, positions=passed)
        if watermark_us is not None:
            found = self._bucket.advance(watermark_us, done_us=self.run.punctuation_us)
            done = replace(done, completions=found.completions, processed=found.processed)
        kept = table([rows[position] for position in passed])
        return AtomicBatch("letters", "query", self._last, kept, watermark_us, done)

    def finish(self) -> None:
        """The end, behind which more may come."""
        if not self._is_elsewhere:
            self.run.finish()
            return
        end = Bucket(self._keyed, json.loads(json.dumps(self._bucket.state())))
        found = end.advance(None, done_us=self.run.punctuation_us)
        self.run.finish(
            replace(
                self._matched,
                completions=found.completions,
                processed=found.processed,
                newest_us=found.newest_us,
                batch_id=self._last,
                punctuation_us=self._marks.punctuation_us,
            )
        )


def some_rows(of: random.Random) -> list[list[Row]]:
    """Few times, in parts of milliseconds, with disorder beyond the delay; also before 1970."""
    batches, now_us = [], of.choice((-8_000, 0, 5_000_000))
    for _ in range(of.randrange(2, 8)):
        rows = []
        for _ in range(of.choice((0, 1, 4, 8))):
            now_us += of.choice((0, 0, 300, 700, 1_000, 4_000))
            behind_us = of.choice((0, 0, 1, 999, 1_500, 5_000, 9_000))
            rows.append((of.choice("AABBCCCX"), now_us - behind_us))
        batches.append(rows)
    return batches


def outcome(
    batches: list[list[Row]],
    *,
    is_elsewhere: bool,
    delay: timedelta = timedelta(0),
    ends: Collection[int] = (),
    cuts: Collection[int] = (),
    part_max: int = 100,
) -> dict[str, Any]:
    """Return the result of batches of which some are cut, and some are an end."""
    with adb.connect("memory://", batch_events_max=part_max) as db:
        types = {"A": ("k",), "B": ("k",), "C": ()}
        stream = db.stream("letters", type="kind", timestamp="at", types=types, delay=delay)
        played = Played(db, stream, is_elsewhere=is_elsewhere)
        for number, rows in enumerate(batches):
            played.apply(rows, is_cut=number in cuts)
            if number in ends:
                played.finish()
        return {
            "seen": played.seen,
            "late": sorted((a.batch_id, a.position) for a in played.run.late_events()),
            "letters": sorted((x.identity, x.error) for x in db.dead_letters.list()),
            "totals": played.run.totals(),
            "punctuation": played.run.punctuation_us,
        }


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30 * SCALE))
def test_late_is_the_same_and_comes_at_the_same_time_matched_here_or_elsewhere(seed: int) -> None:
    of = drawn("late", seed)
    batches = some_rows(of)
    numbers = range(len(batches))
    given: dict[str, Any] = {
        "delay": timedelta(microseconds=of.choice((0, 1_000, 1_500, 3_000))),
        "ends": {number for number in numbers if of.random() < 0.2} | {numbers[-1]},
        "cuts": {number for number in numbers if of.random() < 0.5},
        "part_max": of.choice((1, 100)),
    }
    here = outcome(batches, is_elsewhere=False, **given)
    assert outcome(batches, is_elsewhere=True, **given) == here


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_late_event_comes_behind_what_the_batches_before_have_completed(is_elsewhere: bool) -> None:
    s = 1_000_000
    batches = [[("C", 10 * s), ("C", 30 * s)], [("C", 20 * s), ("C", 40 * s)]]
    found = outcome(batches, is_elsewhere=is_elsewhere)
    times = [(name, us // s) for name, us, _ in found["seen"] if name in ("plain", "late")]
    expected = [("plain", 10), ("late", 30), ("plain", 30)]
    assert times == (expected[:2] if is_elsewhere else expected)
    assert found["late"] == [(1, 0)]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_end_goes_on_to_what_a_row_that_is_no_event_has_completed(is_elsewhere: bool) -> None:
    batches = [[("C", 5_000_000)], [("X", 5_010_000)]]
    found = outcome(batches, is_elsewhere=is_elsewhere, ends={1})
    assert [(name, us) for name, us, _ in found["seen"]] == [
        ("plain", 5_000_000),
        ("timed", 5_005_000),
    ]
    assert found["punctuation"] == 5_010_000
