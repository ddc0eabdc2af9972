"""A stream with rules of all kinds, in columns or event by event, and all that comes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pyarrow as pa
from sqlalchemy import CheckConstraint, Column, Integer, String, Table, select

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import PatternError
from activedb.store.system import dead_letters, late_events, pending_firings
from activedb.streams import AtomicBatch
from tests.columns.detect.strategies import is_supported, sequences
from tests.ledger import EPOCH, at, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from activedb import Occurrence, Stream, Transaction
    from activedb.events import Expression
    from tests.databases import Opens

TYPES = ("A", "B", "C", "N")
REFUSED = 13
"""A number that the server refuses."""
_US = 1_000_000


@dataclass(frozen=True)
class Spec:
    """A rule.

    Attributes
    ----------
    on : Expression
    coupling, on_abort : str
    priority : int or None
    raises_at : int or None
        It raises if the number of the event, modulo 5, is this.
    writes_number : bool
        Whether it writes the event's number, which the server may refuse.
    counts : bool
        Whether it has a condition on a row that its action writes.
    matches_max : int
        How many matches one event completes at most.
    """

    on: Expression
    coupling: str = "immediate"
    priority: int | None = None
    on_abort: str = "triggering"
    raises_at: int | None = None
    writes_number: bool = False
    counts: bool = False
    matches_max: int = 10_000


@dataclass
class Watch:
    """An open database with the stream."""

    db: adb.Database
    stream: Stream
    log: Table
    counts: Table
    batches: int = field(default=0)

    def feed(self, events: Sequence[Occurrence], second: float | None) -> None:
        """Feed events from Python, and a punctuation."""
        us = None if second is None else round(at(second).timestamp()) * _US
        self.stream.run.feed(events, us)

    def apply(self, number: int, events: Sequence[Occurrence], second: float | None) -> None:
        """Feed events as a table, which tells their types, and a punctuation."""
        self.stream.run.apply(batch_of(number, events, second))

    def everything(self) -> dict[str, Any]:
        """All that can be seen of it."""
        run = self.stream.run
        run.finish()
        with self.db.transaction() as t:
            log = sorted((row.path, row.text) for row in t.query(select(self.log)))
            counts = {row.rule: row.count for row in t.query(select(self.counts))}
        letters = [
            (row["source"], row["identity"], row["error"], _words(row), row["payload"])
            for row in read(self.db, dead_letters)
        ]
        return {
            "log": log,
            "counts": counts,
            "letters": sorted(letters, key=repr),
            "late": [dict(row) for row in read(self.db, late_events)],
            "pending": len(read(self.db, pending_firings)),
            "totals": run.totals(),
            "waiting": run.waiting,
            "punctuation": run.punctuation_us,
        }


def open_watch(where: Opens, specs: Sequence[Spec], *, columns: bool, **settings: Any) -> Watch:
    """Open the database, perhaps once more, with rules R0, R1, … on the stream.

    None is put into quarantine, which another thread does: the next events may be faster.
    """
    db = where.open(clock=SimulatedClock(at(60)), quarantine_after=0, **settings)
    log = Table(
        "log",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("path", String(300), nullable=False),
        Column("text", String(300), nullable=False),
        Column("number", Integer, CheckConstraint(f"number <> {REFUSED}", name="lucky")),
    )
    counts = Table(
        "counts",
        db.metadata,
        Column("rule", String(20), primary_key=True),
        Column("count", Integer, nullable=False),
    )
    db.create_all()
    stream = db.stream(
        "watched",
        type="kind",
        timestamp="at",
        types=dict.fromkeys(TYPES, ()),
        delay=timedelta(days=1),
        columns=columns,
    )
    watch = Watch(db, stream, log, counts)
    for number, spec in enumerate(specs):
        _define(watch, f"R{number}", spec)
    return watch


def _define(watch: Watch, name: str, spec: Spec) -> None:
    def act(t: Transaction, o: Occurrence) -> None:
        number = o.params.get("n", 0)
        if number % 5 == spec.raises_at:
            raise ValueError(f"{name} minds {number}")
        if spec.counts:
            row = t.get(watch.counts, name)
            if row is None:
                t.insert(watch.counts, {"rule": name, "count": 1})
            else:
                t.update(watch.counts, name, count=row["count"] + 1)
        written = number if spec.writes_number else 0
        t.insert(
            watch.log, {"path": f"{t.path} {t.timestamp}", "text": shown(o), "number": written}
        )

    def when(t: Transaction, o: Occurrence) -> bool:
        row = t.get(watch.counts, name)
        return row is None or (row["count"] + o.params.get("n", 0)) % 3 != 0

    watch.db.rule(
        on=spec.on,
        name=name,
        coupling=spec.coupling,
        priority=spec.priority,
        on_abort=spec.on_abort,
        when=when if spec.counts else None,
        matches_max=spec.matches_max,
    )(act)


def shown(o: Occurrence) -> str:
    """Return the text of an occurrence that a rule is given."""
    parts = {
        name: [p.params.get("n") for p in (part if isinstance(part, tuple) else (part,))]
        for name, part in o.parts.items()
    }
    return (
        f"{o.name} {o.id} {(o.us - _START_US) / _US:g} {parts} {sorted(map(str, o.params.items()))}"
    )


def _words(letter: Mapping[str, Any]) -> list[str]:
    """Return the words of a letter, sorted, as it may name parameters in any order.

    A violated constraint has no words here, as each database has its own message.
    """
    if letter["error"] == "ConstraintViolation":
        return []
    return sorted(re.findall(r"[\w.:'-]+", letter["reason"]))


_START_US = round(EPOCH.timestamp()) * _US


def batch_of(number: int, events: Sequence[Occurrence], second: float | None) -> AtomicBatch:
    """A batch with the parameters k, j, x, y, s and n, of one type each."""
    head = {
        "event_type": pa.array([o.name for o in events], pa.string()),
        "event_time_us": pa.array([o.us for o in events], pa.int64()),
        "event_id": pa.array([o.id for o in events], pa.string()),
        "raw": pa.nulls(len(events), pa.string()),
    }
    kinds = {
        "k": pa.string(),
        "j": pa.int64(),
        "x": pa.int64(),
        "y": pa.float64(),
        "s": pa.string(),
        "n": pa.int64(),
    }
    params = {
        f"p_{name}": pa.array(
            [
                str(value) if name == "k" and value is not None else value
                for value in (o.params.get(name) for o in events)
            ],
            kind,
        )
        for name, kind in kinds.items()
    }
    us = None if second is None else round(at(second).timestamp()) * _US
    return AtomicBatch(
        stream="watched",
        query_id="q",
        batch_id=number,
        table=pa.table({**head, **params}),
        punctuation_us=us,
    )


# -- random ones -----------------------------------------------------------------------------


def _is_possible(on: Expression) -> bool:
    try:
        return is_supported(on) and getattr(on, "window_us", None) is not None
    except PatternError:
        return False


@st.composite
def specs(draw: st.DrawFn) -> list[Spec]:
    """Some rules, of which those with the same priority do not write the same rows."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 4)) == 0:
            on: Any = draw(
                st.sampled_from(
                    [
                        adb.event("A"),
                        adb.event("B", where=adb.attr("x") >= 2),
                        adb.event("A", where=lambda o: o.params["j"] == 1) | adb.event("C"),
                    ]
                )
            )
        else:
            on = draw(sequences().filter(_is_possible))
        coupling = draw(
            st.sampled_from(["immediate", "immediate", "deferred", "detached", "sequential"])
        )
        found.append(
            Spec(
                on,
                coupling,
                draw(st.sampled_from([None, 1, 2])),
                draw(st.sampled_from(["triggering", "triggering", "rule"])),
                draw(st.sampled_from([None, 0, 1, 2])),
                draw(st.booleans()),
                coupling in ("immediate", "deferred") and draw(st.booleans()),
                draw(st.sampled_from([10_000, 10_000, 1, 2])),
            )
        )
    return found


@st.composite
def streams(draw: st.DrawFn, *, odd: bool) -> list[tuple[list[Occurrence], float | None]]:
    """Batches of events, in any order, some late; and up to when they are complete.

    Parameters
    ----------
    odd : bool
        Whether values are of several types, and some events lack some.
    """
    count = draw(st.integers(0, 24))
    keys = [0, 1, 1.0, True, "a", None] if odd else [0, 1, None]
    events = []
    for number in range(count):
        params: dict[str, Any] = {
            "k": draw(st.sampled_from(keys)),
            "j": draw(st.integers(0, 1)),
            "x": draw(st.sampled_from([0, 1, 2, 3, None])),
            "y": draw(st.sampled_from([0.0, 1.5, 2.0, -1.0])),
            "s": draw(st.sampled_from(["u", "v", None])),
            "n": number,
        }
        if odd and draw(st.integers(0, 9)) == 0:
            del params[draw(st.sampled_from(["k", "x"]))]
        events.append(
            adb.occurrence(
                draw(st.sampled_from("ABCN" if number % 7 else "ABCX")),
                timestamp=at(draw(st.integers(0, 20))),
                id=draw(st.sampled_from([None, None, "a", "b"])),
                **params,
            )
        )
    events.sort(key=lambda o: o.us // (4 * _US))
    batches: list[tuple[list[Occurrence], float | None]] = []
    second = 0
    while events:
        size = draw(st.integers(1, 12))
        batch, events = events[:size], events[size:]
        second += draw(st.integers(0, 8))
        batches.append((batch, draw(st.sampled_from([None, second, second]))))
    return batches
