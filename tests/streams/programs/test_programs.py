"""Programs on a stream: order, outputs, refused events, rules beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import JSON, Column, Integer, String, Table, select
from sqlalchemy.orm import Session, registry

import activedb as adb
from activedb.errors import BatchFailed, TableOwned
from activedb.scheduling import Program, SharedTable
from tests.databases import place
from tests.ledger import Rows, at, declare, event
from tests.streams.programs.bank import REFUSED, SCHEDULERS, events_of, expected, open_bank

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from activedb.scheduling import Access, Outcome
    from tests.databases import Place

SOME = [
    ("DEPOSIT", 1, 1, 0, 20),
    ("TRANSFER", 3, 1, 2, 5),
    ("TRANSFER", 2, 1, 2, 90),
    ("ENTER", 4, 1, 0, 0),
    ("RECENT", 5, 1, 0, 0),
    ("CLOSE", 6, 2, 0, 0),
    ("TRANSFER", 2, 1, 1, 1),
]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_program_gives_the_serial_order_whatever_the_order_of_arrival(
    db: adb.Database, scheduler: str
) -> None:
    opened = open_bank(db, scheduler)
    events = events_of(SOME)
    opened.stream.feed(events[::-1])
    assert opened.rows() == expected(events).rows
    assert opened.outputs() == expected(events).outputs
    assert [r for r, _ in opened.reasons()] == ["TRANSFER", "TRANSFER"]
    assert "was not written" in opened.reasons()[0][1]
    assert "twice" in opened.reasons()[1][1]
    counters = db.admin.counters()
    assert (counters["s_transactions_committed"], counters["s_transactions_aborted"]) == (5, 2)


def test_program_goes_on_over_parts_and_feeds(where: Any) -> None:
    opened = open_bank(where.open(batch_events_max=2))
    events = events_of(SOME)
    opened.stream.feed(events[:4], punctuation=at(2))
    assert opened.rows()["accounts"] == {1: 20}
    opened.stream.feed(events[4:])
    assert opened.rows() == expected(events).rows
    assert opened.outputs() == expected(events).outputs


def test_program_sees_the_rows_that_were_there_before(db: adb.Database) -> None:
    opened = open_bank(db)
    with db.transaction() as t:
        t.insert(opened.accounts, {"id": 1, "balance": 7})
    opened.stream.feed([event("TRANSFER", 1, k=1, to=2, n=4), event("RECENT", 2, k=1)])
    assert opened.rows()["accounts"] == {1: 3, 2: 4}
    assert opened.outputs()[-1] == ["RECENT", 1, [[3]]]  # what was there was not written lately


def test_event_that_is_refused_becomes_a_dead_letter_and_the_others_stand(
    db: adb.Database,
) -> None:
    opened = open_bank(db)
    events = [event("DEPOSIT", 1, k=1, n=5), event("DEPOSIT", 2, k="x", n=5)]
    opened.stream.feed([*events, event("DEPOSIT", 3, k=1)])
    assert opened.rows()["accounts"] == {1: 5}
    first, second = db.dead_letters.list()
    assert (first.source, first.identity, first.error) == ("input", "0.1.bank", "AccessError")
    assert "'x' is not a key of table accounts" in first.reason
    assert second.reason == "program bank: it lacks 'n'"
    run = opened.stream.run
    assert run.totals() == {"events": 3, "late": 0, "dead": 2}


def test_refused_event_fails_the_part_if_the_run_stops_there(db: adb.Database) -> None:
    opened = open_bank(db)
    run = opened.stream.run
    run.fail_fast = True
    with pytest.raises(BatchFailed, match="lacks 'n'"):
        opened.stream.feed([event("DEPOSIT", 1, k=1, n=5), event("DEPOSIT", 2, k=1)])
    assert opened.rows()["accounts"] == {}
    run.fail_fast = False
    opened.stream.feed([event("DEPOSIT", 1, k=1, n=2)])
    assert opened.rows()["accounts"] == {1: 2}  # nothing of the first feed was taken


def test_late_events_are_kept_and_not_processed(db: adb.Database) -> None:
    opened = open_bank(db)
    opened.stream.feed([event("DEPOSIT", 5, k=1, n=5)], punctuation=at(6))
    opened.stream.feed([event("DEPOSIT", 4, k=1, n=9), event("DEPOSIT", 7, k=1, n=1)])
    assert opened.rows()["accounts"] == {1: 6}
    assert len(opened.stream.run.late_events()) == 1


def test_s_transaction_whose_rows_the_server_refuses_aborts_alone(db: adb.Database) -> None:
    opened = open_bank(db)
    events = [
        event("DEPOSIT", 1, k=1, n=5),
        event("DEPOSIT", 2, k=2, n=REFUSED),
        event("RECENT", 3, k=2),
        event("DEPOSIT", 4, k=1, n=4),
    ]
    opened.stream.feed(events)
    assert opened.rows()["accounts"] == {1: 9}
    assert opened.outputs() == [["RECENT", 2, [[]]]]
    ((kind, reason),) = opened.reasons()
    assert kind == "DEPOSIT"
    assert "ConstraintViolation" in reason


def test_value_that_the_table_cannot_keep_aborts_its_s_transaction_alone(db: adb.Database) -> None:
    opened = open_bank(db)
    events = [
        event("DEPOSIT", 1, k=1, n=5),
        event("DEPOSIT", 2, k=1, n=0.5),
        event("DEPOSIT", 3, k=1, n=1),
    ]
    opened.stream.feed(events)
    assert opened.rows()["accounts"] == {1: 6}
    ((_, reason),) = opened.reasons()
    assert reason.startswith("InvalidRow: table accounts: column balance takes Integer()")


def test_rules_run_before_programs_and_see_what_earlier_parts_left(where: Any) -> None:
    opened = open_bank(where.open(batch_events_max=1))
    db = opened.db
    seen: list[tuple[int, Any]] = []

    @db.rule(on=adb.event("DEPOSIT"))
    def look(t: Transaction, o: Occurrence) -> None:
        row = t.get(opened.accounts, o.params["k"])
        seen.append((o.params["n"], None if row is None else row["balance"]))

    opened.stream.feed([event("DEPOSIT", s, k=1, n=s) for s in (1, 2, 3)])
    assert seen == [(1, None), (2, 1), (3, 3)]


def test_rules_on_changes_hear_of_what_a_part_changes(db: adb.Database) -> None:
    opened = open_bank(db)
    heard: list[tuple[Any, Any]] = []

    @db.rule(on=adb.inserted(opened.accounts) | adb.updated(opened.accounts))
    def hear(t: Transaction, o: Occurrence) -> None:
        assert o.new is not None
        heard.append((None if o.old is None else o.old["balance"], o.new["balance"]))

    opened.stream.feed([event("DEPOSIT", s, k=1, n=s) for s in (1, 2)])
    opened.stream.feed([event("DEPOSIT", 3, k=1, n=3)])
    assert heard == [(None, 3), (3, 6)]


def test_rule_that_refuses_a_change_aborts_the_s_transaction_that_made_it(
    db: adb.Database,
) -> None:
    opened = open_bank(db)

    @db.rule(on=adb.inserted(opened.accounts) | adb.updated(opened.accounts))
    def check(t: Transaction, o: Occurrence) -> None:
        assert o.new is not None
        if o.new["balance"] > 10:
            raise ValueError("too much")

    opened.stream.feed([event("DEPOSIT", s, k=1, n=s) for s in (1, 20, 3)])
    assert opened.rows()["accounts"] == {1: 4}
    assert [kind for kind, _ in opened.reasons()] == ["DEPOSIT"]
    assert "too much" in opened.reasons()[0][1]


def test_nobody_else_writes_the_tables(db: adb.Database) -> None:
    opened = open_bank(db)

    @db.rule(on=adb.event("CLOSE"))
    def meddle(t: Transaction, o: Occurrence) -> None:
        t.update(opened.accounts, 1, balance=0)

    opened.stream.feed([event("DEPOSIT", 1, k=1, n=1)])
    with pytest.raises(TableOwned, match="the programs of stream input"), db.transaction() as t:
        t.update(opened.accounts, 1, balance=3)
    with pytest.raises(TableOwned), db.transaction() as t:
        t.execute(opened.accounts.delete())
    opened.stream.feed([event("CLOSE", 2, k=1)])
    (letter,) = db.dead_letters.list()
    assert letter.error == "TableOwned"
    assert opened.rows()["accounts"] == {}  # the program's own closing stands


def test_flush_of_a_watched_session_does_not_write_the_tables(db: adb.Database) -> None:
    opened = open_bank(db)

    class Account:
        id: int
        balance: int

    registry().map_imperatively(Account, opened.accounts)
    opened.stream.feed([event("DEPOSIT", 1, k=1, n=1)])
    with db.connection() as connection, Session(connection) as session:
        db.watch(session)
        found = session.get(Account, 1)
        assert found is not None
        found.balance = 9
        with pytest.raises(TableOwned):
            session.flush()
        session.rollback()
    assert opened.rows()["accounts"] == {1: 1}


def test_uncertain_times_count_from_their_lower_ends(where: Any) -> None:
    db = where.open(batch_events_max=1)
    shared = SharedTable("shared", key=int, initial="", history=60)
    program = Program("noting", [shared])

    @program.on("A")
    def note(e: Any, access: Any) -> None:
        access.write(shared[1], lambda has, n: f"{has}{n}", e["n"])
        access.read(shared[1].window(60), function=len)

    kept = Table("shared", db.metadata, Column("k", Integer, primary_key=True), Column("v", String))
    db.create_all()
    stream = declare(db)
    stream.program(program, tables={shared: kept})
    base = event("A", 10).us
    spans = [(5, 9), (0, 30), (5, 6), (7, 7), (3, 20)]  # lower and upper ends
    stream.feed(
        [
            adb.occurrence(
                "A", timestamp=adb.AccuracyInterval(base + high, base + low, base + high), n=n
            )
            for n, (low, high) in enumerate(spans)
        ],
    )
    with db.transaction() as t:
        assert t.get(kept, 1) == {"k": 1, "v": "14203"}


def test_outputs_go_into_a_table_of_the_users(db: adb.Database) -> None:
    accounts = SharedTable("accounts", key=int, initial=0)
    sums = Program("sums", [accounts])

    @sums.on("A")
    def add(e: Any, access: Any) -> None:
        access.write(accounts[1], lambda has, n: has + n if n else None, e["n"])

    @sums.post_process
    def tell(type_: str, params: Any, outcome: Any) -> Any:
        if not outcome.committed:
            return None
        if params["n"] == 7:
            return "no row"
        return {"n": params["n"], "total": outcome.results[0]}

    kept = Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("value", Integer),
    )
    lines = Table(
        "lines",
        db.metadata,
        Column("n", Integer, primary_key=True, autoincrement=False),
        Column("total", Integer),
        Column("remark", String(5), default="-"),
    )
    db.create_all()
    stream = declare(db)
    stream.program(sums, tables={accounts: kept}, outputs=lines)
    numbers = [1, 2, 0, 2, 7, 3]
    stream.feed([event("A", s, n=n) for s, n in enumerate(numbers)])
    with db.transaction() as t:
        found = {r.n: (r.total, r.remark) for r in t.query(select(lines))}
        assert t.get(kept, 1) == {"id": 1, "value": 15}
    assert found == {1: (1, "-"), 2: (3, "-"), 3: (15, "-")}
    (aborted,) = stream.outputs("sums")
    assert (aborted.type, aborted.us, aborted.committed) == ("A", event("A", 2).us, False)
    assert [(x.identity, x.error) for x in db.dead_letters.list()] == [
        ("0.3.sums", "RowExists"),
        ("0.4.sums", "BadEvent"),
    ]


def test_two_programs_of_a_stream_share_a_table_in_one_order(db: adb.Database) -> None:
    shared = SharedTable("shared", key=str, initial="")
    first, second = Program("first", [shared]), Program("second", [shared])

    @first.on("A")
    def one(e: Any, access: Any) -> None:
        access.write(shared["x"], lambda has, n: f"{has}a{n}", e["n"])

    @second.on("A")
    @second.on("B")
    def other(e: Any, access: Any) -> None:
        access.write(shared["x"], lambda has, n: f"{has}b{n}", e["n"])

    kept = Table(
        "shared", db.metadata, Column("k", String(5), primary_key=True), Column("v", String(99))
    )
    db.create_all()
    stream = declare(db)
    stream.program(first, tables={shared: kept})
    stream.program(second, tables={})
    stream.feed([event(kind, s, n=s) for s, kind in enumerate("ABCA")])
    with db.transaction() as t:
        assert t.get(kept, "x") == {"k": "x", "v": "a0b0b1a3b3"}


def test_batches_of_a_feed_take_effect_once(db: adb.Database) -> None:
    opened = open_bank(db)
    run = opened.stream.run
    events = events_of(SOME)
    batches = [
        adb.AtomicBatch("input", "q", n, Rows(events[n * 3 : n * 3 + 3], ("k", "to", "n")), None)
        for n in range(3)
    ]
    for batch in batches:
        run.apply(batch)
        run.apply(batch)
    run.finish()
    assert opened.rows() == expected(events).rows
    assert opened.outputs() == expected(events).outputs


EQUAL = [
    ([1], [True]),
    (1, True),
    ([True], [1.0]),
    ([0.0], [0]),
    ([0.0], [-0.0]),
    ({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]}),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
]
"""Values that are equal, but not the same."""


def open_notes(where: Place) -> tuple[adb.Database, adb.Stream, Table]:
    """Open a database with a program that writes any value, and keeps its versions."""
    db = where.open()
    rows = Table("notes", db.metadata, Column("id", Integer, primary_key=True), Column("v", JSON))
    db.create_all()
    notes = SharedTable("notes", key=int, history=100)
    program = Program("notes", [notes])

    @program.on("NOTE")
    def note(e: Any, access: Access) -> None:
        access.write(notes[1], lambda before: e["v"])

    @program.on("READ")
    def read(e: Any, access: Access) -> None:
        access.read(notes[1], function=repr)

    @program.post_process
    def tell(type_: str, params: Any, outcome: Outcome) -> Any:
        return list(outcome.results) if type_ == "READ" else None

    stream = db.stream("notes", types={"NOTE": ("v",), "READ": ()})
    stream.program(program, tables={notes: rows})
    return db, stream, rows


def note_of(rows: Table, db: adb.Database) -> str:
    with db.transaction() as t:
        row = t.get(rows, 1)
    assert row is not None
    return repr(row["v"])


@pytest.mark.parametrize(("before", "after"), EQUAL, ids=repr)
def test_value_that_equals_the_one_before_but_differs_is_written(
    where: Place, before: Any, after: Any
) -> None:
    db, stream, rows = open_notes(where)
    for second, value in enumerate((before, after, before), 1):
        stream.feed([adb.occurrence("NOTE", timestamp=at(second), v=value)])
        assert note_of(rows, db) == repr(value)


@pytest.mark.parametrize(("before", "after"), EQUAL, ids=repr)
def test_row_mended_by_hand_with_an_equal_value_that_differs_counts(
    postgres_url: str, before: Any, after: Any
) -> None:
    with place(postgres_url) as where:
        db, stream, rows = open_notes(where)
        stream.feed([adb.occurrence("NOTE", timestamp=at(1), v=before)])
        db.close()
        db, stream, rows = open_notes(where)
        with db.transaction() as t:
            t.update(rows, 1, v=after)
        stream.feed([adb.occurrence("READ", timestamp=at(2))])
        assert [output.value for output in stream.outputs("notes")] == [[repr(after)]]
