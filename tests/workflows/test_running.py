"""Batches of a workflow: run in order, durable, with their lineage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.batches import Mode, Program, isolated, merged, overlapping, split
from activedb.errors import (
    AlreadyCompensated,
    BadEvent,
    ConfigurationError,
    DefinitionError,
    NotRecorded,
    TransactionStateError,
    WorkflowChanged,
)
from tests.databases import PATIENCE_S, in_thread
from tests.workflows.marking import Marking, chain, marking, rows_of

if TYPE_CHECKING:
    from activedb import Database, Occurrence, Transaction
    from activedb.workflows._run import BatchRun
    from tests.databases import Place


def test_feed_isolated_batches_runs_the_chain_for_each(db: Database) -> None:
    of = marking(db, chain(isolated(), isolated()))
    assert of.run.feed("a", rows_of("x", "y")) == "a#1"
    assert of.run.feed("a", rows_of("z")) == "a#2"
    assert of.written() == ["P1(x,y)", "P1(z)", "P2(P1:x,P1:y)", "P2(P1:z)"]
    assert of.run.rows("P2#1'") == rows_of("P2:P1:x", "P2:P1:y")
    assert of.run.due() == ()
    assert of.states() == dict.fromkeys(["a#1", "P1#1'", "P2#1'", "a#2", "P1#2'", "P2#2'"], "whole")


def test_feed_splits_and_merges_gives_programs_their_pieces(db: Database) -> None:
    of = marking(db, chain(isolated(), split(3), merged(2)))
    of.run.feed("a", rows_of("1", "2", "3", "4"))
    assert [mark for mark in of.written() if mark.startswith("P2")] == [
        "P2(P1:1)",
        "P2(P1:2)",
        "P2(P1:3,P1:4)",
    ]
    assert of.run.waiting() == {"P3": ("P2#3'",)}
    of.run.feed("a", rows_of("5"))
    assert "P3(P2:P1:3,P2:P1:4)" in of.written()  # with an empty piece
    assert of.run.lineage("P3#2'").sources == ("a#1", "a#2")
    assert of.run.rows("P2>P3#2") == rows_of("P2:P1:3", "P2:P1:4")


def test_feed_several_streams_gives_one_batch_of_each(db: Database) -> None:
    programs = [Program("P1", "a"), Program("P2", {"P1": isolated(), "b": merged(2)})]
    of = marking(db, programs, sources=["a", "b"])
    of.run.feed("b", rows_of("u"))
    of.run.feed("a", rows_of("x"))
    assert of.written() == ["P1(x)"]
    of.run.feed("b", rows_of("v"))
    assert of.written() == ["P1(x)", "P2(P1:x;u,v)"]


def test_feed_program_without_output_lets_followers_go_on(db: Database) -> None:
    programs = [Program("P10", "a"), Program("P2", {"P10": merged(2)}), Program("P3", "a")]
    of = marking(db, programs)
    for name in "xyz":
        of.run.feed("a", rows_of(name))
    assert of.written() == ["P10(x)", "P10(y)", "P10(z)", "P3(x)", "P3(y)", "P3(z)"]


def test_run_opened_again_goes_on_where_it_stopped(where: Place) -> None:
    programs = chain(overlapping(2), merged(2))
    one = marking(where.open(), programs)
    for name in "xyz":
        one.run.feed("a", rows_of(name))
    if where.is_memory:
        one.db.workflows._runs.clear()
        other = one
    else:
        other = marking(where.open(), programs)
    assert other.run.whole_lineage().records() == one.run.whole_lineage().records()
    other.run.feed("a", rows_of("w"))
    other.run.feed("a", rows_of("v"))
    assert other.written() == [
        "P1(w,v)",
        "P1(x,y)",
        "P1(y,z)",
        "P1(z,w)",
        "P2(P1:x,P1:y,P1:y,P1:z)",
        "P2(P1:z,P1:w,P1:w,P1:v)",
    ]


def two_runs(where: Place, programs: list[Program]) -> tuple[Marking, list[BatchRun]]:
    """Two runs that do not know of each other, as in two processes."""
    of = marking(where.open(), programs)
    one = of.run
    if where.is_memory:
        of.db.workflows._runs.clear()
        return of, [one, of.run]
    return of, [one, marking(where.open(), programs).run]


def test_two_runs_in_turn_neither_lose_nor_repeat(where: Place) -> None:
    of, (one, other) = two_runs(where, chain(isolated(), merged(2)))
    assert one.feed("a", rows_of("x")) == "a#1"
    assert other.feed("a", rows_of("y")) == "a#2"
    assert one.feed("a", rows_of("z")) == "a#3"
    assert other.feed("a", rows_of("w")) == "a#4"
    assert of.written() == [
        "P1(w)",
        "P1(x)",
        "P1(y)",
        "P1(z)",
        "P2(P1:x,P1:y)",
        "P2(P1:z,P1:w)",
    ]


def test_two_runs_at_once_neither_lose_nor_repeat(where: Place) -> None:
    of, runs = two_runs(where, chain(isolated(), merged(2)))

    def feed(number: int) -> list[str]:
        return [runs[number].feed("a", rows_of(f"{number}.{each}")) for each in range(4)]

    futures = [in_thread(feed, number) for number in range(2)]
    ids = [id for future in futures for id in future.result(PATIENCE_S)]
    assert sorted(ids) == [f"a#{number}" for number in range(1, 9)]
    for run in runs:
        run.resume()
    assert len(of.written()) == len(set(of.written())) == 8 + 4
    assert set(of.states().values()) == {"whole"}


def test_relaxed_batch_order_runs_due_transactions_in_parallel(where: Place) -> None:
    db = where.open(threads=4)
    together = threading.Barrier(3, timeout=PATIENCE_S)
    usage = db.workflow("usage", sources="a")

    @usage.program(reads={"a": split(3)}, relax="batch order")
    def alone(t: Transaction, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        together.wait()  # all three are here at once
        return batch

    seen = []

    @usage.program(reads={"alone": merged(3)})
    def after(t: Transaction, batch: list[dict[str, Any]]) -> None:
        seen.append(batch)

    run = db.workflows.open("usage")
    run.feed("a", rows_of("x", "y", "z"))
    assert [sorted(row["of"] for row in batch) for batch in seen] == [["x", "y", "z"]]
    assert run.whole_lineage().records() == db.workflows.history("usage").lineage.records()


def test_call_oltp_program_is_recorded_with_what_it_was_called_with(db: Database) -> None:
    of = marking(db, [Program("P1", "a")])
    told: list[Any] = []

    @of.definition.program(after="P1")
    def correct(t: Transaction, *, of: str, by: int) -> None:
        told.append((of, by))

    @correct.compensation
    def uncorrect(t: Transaction, execution: Any) -> None:
        told.append(execution.arguments)

    of.run.feed("a", rows_of("x"))
    assert of.run.call("correct", of="x", by=3) == "correct#1"
    assert of.run.call("correct", triggered_by=["P1#1"], of="y", by=4) == "correct#2"
    assert of.run.lineage("a#1").triggered == ("P1#1", "correct#2")
    of.run.compensate("a#1")
    assert told == [("x", 3), ("y", 4), {"of": "y", "by": 4}]
    with pytest.raises(ConfigurationError, match="read no stream"):
        of.run.call("P1")


def test_call_beside_a_feed_does_not_wait_for_it(db: Database) -> None:
    inside, go_on = threading.Event(), threading.Event()
    usage = db.workflow("usage", sources="a")

    @usage.program(reads="a")
    def slow(t: Transaction, batch: list[dict[str, Any]]) -> None:
        inside.set()
        assert go_on.wait(PATIENCE_S)

    @usage.program()
    def look(t: Transaction) -> None:
        go_on.set()

    run = db.workflows.open("usage")
    feeding = threading.Thread(target=run.feed, args=("a", []))
    feeding.start()
    assert inside.wait(PATIENCE_S)
    run.call("look")
    feeding.join(PATIENCE_S)
    assert not feeding.is_alive()
    assert run.due() == ()


def test_rules_of_a_transaction_run_with_it(db: Database) -> None:
    of = marking(db, [Program("P1", "a")])
    heard = []

    @db.rule(on=adb.inserted(of.marks), coupling="detached")
    def hear(t: Transaction, o: Occurrence) -> None:
        assert o.new is not None
        heard.append(o.new["id"])

    of.run.feed("a", rows_of("x"))
    db.wait_idle()
    assert heard == ["P1(x)"]
    assert db.admin.pending_firings() == []


def test_feed_row_that_is_none_takes_nothing(db: Database) -> None:
    of = marking(db, [Program("P1", "a")])
    with pytest.raises(BadEvent, match=r"a batch of a: row 1 is not a dict .* but 7"):
        of.run.feed("a", [{"of": "x"}, 7])  # type: ignore[list-item]
    with pytest.raises(BadEvent, match="row 0: parameter 'of'"):
        of.run.feed("a", [{"of": object()}])
    with pytest.raises(BadEvent, match="is a list of rows"):
        of.run.feed("a", {"of": "x"})  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match="no source 'b'"):
        of.run.feed("b", [])
    with db.transaction(), pytest.raises(TransactionStateError, match="outside of transactions"):
        of.run.feed("a", [])
    with pytest.raises(NotRecorded):
        of.run.lineage("a#1")
    assert of.written() == []


def test_definition_without_meaning_is_refused(db: Database) -> None:
    usage = db.workflow("usage", sources="a")
    with pytest.raises(DefinitionError, match="cannot be called as"):
        usage.program(reads="a", name="x")(lambda: None)
    with pytest.raises(DefinitionError, match="none of"):
        usage.program(reads="a", name="x#1")(lambda t, batch: None)
    program = usage.program(reads="a", name="x")(lambda t, batch: None)
    with pytest.raises(DefinitionError, match="already"):
        usage.program(reads="a", name="x")(lambda t, batch: None)
    db.workflows.open(usage)
    with pytest.raises(DefinitionError, match="runs already"):
        program.compensation(lambda t, execution: None)
    with pytest.raises(DefinitionError, match="before"):
        usage.program(reads="a", name="y")(lambda t, batch: None)
    with pytest.raises(DefinitionError, match="named 'usage' already"):
        db.workflow("usage", sources="a")
    with pytest.raises(DefinitionError, match="on_failure"):
        db.workflow("other", sources="a", on_failure="shrug")
    with pytest.raises(DefinitionError, match="mode"):
        db.workflow("other", sources="a", mode="half")
    with pytest.raises(ConfigurationError, match="did you mean 'usage'"):
        db.workflows.open("usages")
    with pytest.raises(ConfigurationError, match="are recorded"):
        db.workflows.history("usages")
    assert db.workflows.recorded() == ["usage"]


def test_definition_changed_is_refused_only_if_batches_were_formed_otherwise(where: Place) -> None:
    db = where.open()
    marking(db, chain(merged(2))).run.feed("a", rows_of("x"))

    def again(programs: list[Program]) -> None:
        other = db if where.is_memory else where.open()
        other.workflows._defined.clear()
        other.workflows._runs.clear()
        assert marking(other, programs).run.waiting() == {"P1": ("a#1",)}

    again(chain(merged(2), relax=["completion"]))
    assert db.workflows.history("marking").workflow.programs["P1"].relaxed
    with pytest.raises(WorkflowChanged, match="program P1 was"):
        again(chain(merged(3)))


@pytest.mark.parametrize("is_relaxed", [True, False], ids=["relaxed first", "strict first"])
def test_definition_that_relaxes_batch_order_otherwise_goes_on_with_the_next_batch(
    where: Place, is_relaxed: bool
) -> None:
    db, written = where.open(), []
    for number in range(1, 7):
        relax = ["batch order"] if is_relaxed == (number in (1, 2, 5)) else []
        other = db if where.is_memory or number == 1 else where.open()
        other.workflows._defined.clear()
        other.workflows._runs.clear()
        of = marking(other, chain(isolated(), isolated(), relax=relax))
        of.run.feed("a", rows_of(f"{number}"))
        written += [f"P1({number})", f"P2(P1:{number})"]
        assert sorted(of.written()) == sorted(written)
        assert of.run.waiting() == {}


@pytest.mark.parametrize("grouping", [merged(2), overlapping(2)], ids=str)
@pytest.mark.parametrize("mode", list(Mode))
def test_second_compensation_of_what_was_withdrawn_says_so(grouping: Any, mode: Mode) -> None:
    """The last batch waits for more, or stands in a transaction that another one needs."""
    with adb.connect("memory://") as db:
        defined = db.workflow("w", sources="s")
        bill = defined.program(reads={"s": grouping}, name="bill")(lambda t, batch: batch)
        bill.compensation(lambda t, execution: None)
        run = db.workflows.open("w")
        for _ in range(3):
            run.feed("s", [{"v": 1}])
        run.compensate("s#3", mode, allow_interference=True)
        with pytest.raises(AlreadyCompensated):
            run.compensate("s#3", mode, allow_interference=True)
