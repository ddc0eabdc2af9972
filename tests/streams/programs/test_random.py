"""Random programs over a stream: commits that are tried again, parts of any size, any scheduler."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Column, Integer, Table, select

from activedb.errors import SerializationConflict
from activedb.events import Occurrence
from activedb.scheduling import ProgramRun, SerialOrder
from tests.databases import place
from tests.scheduling.workloads import Parameters, parameters, workload
from tests.streams.programs.bank import SCHEDULERS

if TYPE_CHECKING:
    import activedb as adb
    from activedb.scheduling import Outcome, Program

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(
    max_examples=12 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


SLOW = settings(QUICK, max_examples=2 * SCALE)


def storable(p: Parameters) -> tuple[Program, list[tuple[list[Occurrence], int | None]]]:
    """A workload whose events are numbers, and whose outputs are texts: a database keeps those."""
    made = workload(p)
    program, originals = made.program, list[Any]()
    before = program._pre or (lambda type_, params: params)
    after = program._post or (lambda type_, params, outcome: None)

    def numbered(o: Occurrence) -> Occurrence:
        originals.append(o.params)
        return Occurrence(o.name, o.timestamp, {"number": len(originals) - 1}, id=o.id)

    @program.pre_process
    def pre_process(type_: str, params: Any) -> Any:
        return before(type_, originals[params["number"]])

    @program.post_process
    def post_process(type_: str, params: Any, outcome: Outcome) -> str | None:
        found = after(type_, params, outcome)
        return None if found is None else repr(found)

    return program, [([numbered(o) for o in events], until) for events, until in made.pieces]


def check(db: adb.Database, p: Parameters, scheduler: str, failing: set[int]) -> None:
    program, pieces = storable(p)
    kept = {
        shared: Table(
            shared.name,
            db.metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("value", Integer, nullable=False),
        )
        for shared in program.tables
    }
    db.create_all()
    stream = db.stream(
        "input", type="k", timestamp="t", types=dict.fromkeys((*program.types, "OTHER"), ())
    )
    stream.program(program, tables=kept, scheduler=scheduler)
    run, serial = stream.run, ProgramRun(program, SerialOrder())
    flushes = 0

    def fail(point: str) -> None:
        nonlocal flushes
        flushes += point == "before flush"
        if point == "before flush" and flushes in failing:
            raise SerializationConflict("once more")

    db._store.trigger = fail
    results = []
    for events, until in pieces:
        run.feed(events, until)
        results.append(serial.feed(events, until))
    run.finish()
    results.append(serial.finish())
    with db.transaction() as t:
        for shared, table in kept.items():
            rows = {r.id: r.value for r in t.query(select(table))}
            assert rows == serial.state.of(shared).newest()
    ended = [t for each in results for t in each.transactions]
    outputs = stream.outputs(program)
    assert [o.value for o in outputs if o.value is not None] == [
        output for each in results for output in each.outputs
    ]
    assert [o.reason for o in outputs if o.reason is not None] == [
        t.outcome.reason for t in ended if t.outcome is not None and not t.outcome.committed
    ]
    totals = run.totals()
    assert totals["late"] + totals["dead"] == sum(len(each.refused) for each in results)


@pytest.mark.long
@given(parameters(), st.sampled_from(SCHEDULERS), st.sampled_from([1, 4, 2_000]), st.data())
@QUICK
def test_random_program_on_memory_gives_the_serial_order(
    p: Parameters, scheduler: str, batch_events_max: int, data: st.DataObject
) -> None:
    failing = data.draw(st.sets(st.integers(1, 8), max_size=3))
    with place(None) as where:
        db = where.open(batch_events_max=batch_events_max, retry_pause_ms=0)
        check(db, p, scheduler, failing)


@pytest.mark.long
@given(parameters(), st.sampled_from(SCHEDULERS), st.sampled_from([4, 2_000]))
@SLOW
def test_random_program_on_postgres_gives_the_serial_order(
    postgres_url: str, p: Parameters, scheduler: str, batch_events_max: int
) -> None:
    with place(postgres_url) as where:
        db = where.open(batch_events_max=batch_events_max, retry_pause_ms=0)
        check(db, p, scheduler, {2})
