"""A durable program in columns does what the serial order does, row by row: all of it the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import CheckConstraint, Column, Double, Integer, Table, select

import activedb as adb
from activedb.errors import SerializationConflict
from activedb.scheduling import Program, SharedTable
from activedb.store.system import dead_letters
from tests.databases import place
from tests.ledger import at, event, read
from tests.streams.programs.column_bank import (
    QUIET,
    REFUSED,
    ROWS,
    TELLING,
    occurrence_of,
    open_bank,
)

if TYPE_CHECKING:
    from tests.databases import Place
    from tests.streams.programs.column_bank import ColumnBank, OpenBank, Row

pytestmark = pytest.mark.long

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
QUICK = settings(
    max_examples=15 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLOW = settings(QUICK, max_examples=3 * SCALE)

Batch = tuple[list["Row"], int | None]
BATCHES = st.lists(
    st.tuples(st.lists(ROWS, max_size=14), st.one_of(st.none(), st.integers(0, 14))),
    min_size=1,
    max_size=4,
)


def after(opened: OpenBank, batches: list[Batch]) -> dict[str, Any]:
    """Return everything, after some batches and the end of the stream."""
    for number, (rows, second) in enumerate(batches):
        opened.apply(number, rows, second)
    opened.stream.run.finish()
    return opened.everything()


def row_by_row(batches: list[Batch], bank: ColumnBank) -> dict[str, Any]:
    """Return the expected result of batches, found row by row."""
    with place(None) as where:
        return after(open_bank(where, bank, "serial"), batches)


@given(BATCHES, st.sampled_from([QUIET, TELLING]), st.sets(st.integers(1, 4), max_size=2))
@QUICK
def test_batches_in_columns_give_what_the_serial_order_gives(
    batches: list[Batch], bank: ColumnBank, failing: set[int]
) -> None:
    with place(None) as where:
        opened = open_bank(where, bank)
        flushes = 0

        def fail(point: str) -> None:
            nonlocal flushes
            flushes += point == "before flush"
            if point == "before flush" and flushes in failing:
                raise SerializationConflict("once more")

        _ = opened.stream.run
        opened.db._store.trigger = fail
        assert after(opened, batches) == row_by_row(batches, bank)


@st.composite
def refused(draw: st.DrawFn) -> list[Batch]:
    """Batches with deposits that bring an account to what the server refuses, and away from it."""
    rows: list[Row] = [
        ("DEPOSIT", second, None, draw(st.integers(0, 2)), 0, draw(st.sampled_from([1.0, 1012.0])))
        for second in draw(st.lists(st.integers(0, 12), min_size=1, max_size=14))
    ]
    rows.sort(key=lambda row: row[1] or 0)
    cut = draw(st.integers(0, len(rows)))
    return [(rows[:cut], 6), (rows[cut:], 20)]


@given(refused())
@QUICK
def test_rows_that_the_database_refuses_abort_alone(batches: list[Batch]) -> None:
    with place(None) as where:
        assert after(open_bank(where, TELLING), batches) == row_by_row(batches, TELLING)


@pytest.mark.parametrize("size", [1, 16, 2_000])
def test_one_row_that_is_refused_costs_one_event_of_a_large_batch(where: Place, size: int) -> None:
    opened = open_bank(where, TELLING, batch_events_max=size)
    rows: list[Row] = [("DEPOSIT", n // 2, None, n % 5, 0, 1.0) for n in range(60)]
    rows[37] = ("DEPOSIT", 18, None, 7, 0, REFUSED)
    rows[50] = ("UNKNOWN", 25, None, 1, 0, 1.0)
    opened.apply(0, rows, 28)
    opened.apply(0, rows, 28)
    opened.apply(1, [("DEPOSIT", 20, None, 1, 0, 1.0)], 40)
    found = opened.everything()
    expected = dict.fromkeys(range(5), 12.0) | {0: 11.0, 2: 11.0}
    assert found["accounts"] == expected
    (aborted,) = found["outputs"]
    assert (aborted.us - event("A", 0).us, aborted.id) == (18_000_000, None)
    assert "balance" in aborted.reason
    assert found["totals"] == {"events": 59, "late": 1, "dead": 1}
    assert (found["waiting"], found["batches"]) == (0, 2)


@given(st.lists(ROWS, max_size=20), st.lists(st.integers(0, 14), max_size=3))
@QUICK
def test_events_fed_from_python_give_what_the_serial_order_gives(
    rows: list[Row], seconds: list[int]
) -> None:
    found = []
    for scheduler in ("columns", "serial"):
        with place(None) as where:
            opened = open_bank(where, TELLING, scheduler)
            for second in (*seconds, None):
                events = [occurrence_of(row) for row in rows if row[0] and row[1] is not None]
                opened.stream.feed(events, None if second is None else at(second))
            found.append(opened.everything())
    assert found[0] == found[1]


@given(BATCHES, st.lists(st.sampled_from(["columns", "serial"]), min_size=4, max_size=4))
@SLOW
def test_program_reopened_by_any_scheduler_goes_on_where_it_was(
    postgres_url: str, batches: list[Batch], schedulers: list[str]
) -> None:
    with place(postgres_url) as where:
        for number, (rows, second) in enumerate(batches):
            opened = open_bank(where, TELLING, schedulers[number], batch_events_max=3)
            opened.apply(number, rows, second)
            opened.db.close()
        opened = open_bank(where, TELLING)
        opened.stream.run.finish()
        assert opened.everything() == row_by_row(batches, TELLING)


def with_outputs(where: Place, scheduler: str) -> dict[str, Any]:
    """Return the result of totals that go into a table, whose rows trigger a rule."""
    db = where.open()
    totals = SharedTable("totals", initial=0, size=4)
    program = Program("totals", [totals])

    @program.on("A")
    def add(e: Any, access: Any) -> None:
        access.write(totals[e["k"]], lambda has, n: has + n**1, e["n"])

    @program.post_process
    def tell(type_: str, params: Any, outcome: Any) -> Any:
        return {"key": params["k"], "total": outcome.results[0]}

    def numbered(name: str, *columns: Any) -> Table:
        return Table(name, db.metadata, Column("id", Integer, primary_key=True), *columns)

    kept = numbered("kept", Column("total", Double, nullable=False))
    told = numbered(
        "told",
        Column("key", Integer, nullable=False),
        Column("total", Double, CheckConstraint("total <> 3"), nullable=False),
    )
    heard = numbered("heard", Column("total", Double, nullable=False))
    db.create_all()
    stream = db.stream("input", type="k", timestamp="t", types={"A": ("k", "n")})
    stream.program(program, tables={totals: kept}, scheduler=scheduler, outputs=told)
    db.rule(on=adb.inserted(told), name="hears", coupling="sequential")(
        lambda t, o: t.insert(heard, {"total": o.params["total"]})
    )
    events = [event("A", second, k=second % 2, n=1.0) for second in range(8)]
    stream.feed(events[:3], punctuation=at(3))
    stream.feed(events[3:])
    stream.run.finish()
    with db.transaction() as t:
        return {
            "kept": sorted((r.id, r.total) for r in t.query(select(kept))),
            "told": sorted((r.key, r.total) for r in t.query(select(told))),
            "heard": sorted(r.total for r in t.query(select(heard))),
            "letters": [row["identity"] for row in read(db, dead_letters)],
        }


def test_outputs_go_into_a_table_and_rules_hear_of_them(where: Place) -> None:
    found = with_outputs(where, "columns")
    assert found["kept"] == [(0, 4.0), (1, 4.0)]
    assert found["told"] == [(key, n) for key in (0, 1) for n in (1.0, 2.0, 4.0)]
    assert found["heard"] == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert found["letters"] == ["1.1.totals", "1.2.totals"]
    with place(None) as other:
        assert with_outputs(other, "serial") == found


AMOUNTS: list[Any] = [1.5, float("inf"), float("nan"), -0.0, 2**53 + 1, 2**1024, True, None, "1"]


def taken_from(where: Place, scheduler: str, batches: list[list[Any]]) -> dict[str, Any]:
    """Return the result of amounts that are taken from one key, and put under the others."""
    db = where.open()
    values = SharedTable("values", initial=0, size=4)
    program = Program("takes", [values])

    @program.on("A")
    def take(e: Any, access: Any) -> None:
        access.write(values[0], lambda has, n: has - n, e["n"])
        access.write(values[e["k"]], lambda has, n: n, e["n"])

    kept = Table(
        "kept",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("value", Double),
    )
    db.create_all()
    stream = db.stream("input", type="kind", timestamp="t", types={"A": ("k", "n")})
    stream.program(program, tables={values: kept}, scheduler=scheduler)
    second = 0
    for amounts in batches:
        stream.feed([event("A", second := second + 1, k=1 + second % 3, n=n) for n in amounts])
    stream.run.finish()
    with db.transaction() as t:
        rows = sorted((r.id, repr(r.value)) for r in t.query(select(kept)))
    return {
        "rows": rows,
        "outputs": stream.outputs(program),
        "letters": read(db, dead_letters),
    }


@given(st.lists(st.lists(st.sampled_from(AMOUNTS), max_size=4), max_size=3))
@QUICK
def test_values_that_a_table_cannot_keep_are_refused_as_row_by_row(
    batches: list[list[Any]],
) -> None:
    found = []
    for scheduler in ("columns", "serial"):
        with place(None) as where:
            found.append(taken_from(where, scheduler, batches))
    assert found[0] == found[1]


def test_nan_is_kept_or_refused_as_row_by_row(where: Place) -> None:
    batches = [[1.5, float("nan")], [2.0], [float("inf"), float("inf")]]
    found = taken_from(where, "columns", batches)
    with where.another() as other:
        assert found == taken_from(other, "serial", batches)


@pytest.mark.parametrize("scheduler", ["columns", "serial"])
def test_zero_that_changes_its_sign_only_is_written(postgres_url: str, scheduler: str) -> None:
    with place(postgres_url) as where:  # which keeps the sign
        found = taken_from(where, scheduler, [[0.0, 0.0, 0.0], [-0.0]])
    assert found["rows"][1:] == [(1, "0.0"), (2, "-0.0"), (3, "0.0")]
