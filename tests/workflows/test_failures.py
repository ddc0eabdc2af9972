"""Programs that raise, actions that raise, plans that are out of date."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

import activedb as adb
from activedb.batches import Program, Standing, isolated, merged, split, standing
from activedb.errors import (
    AlreadyCompensated,
    BatchFailed,
    CompensationFailed,
    ConfigurationError,
    Interferes,
    NotCompensable,
    NotRecorded,
    PlanOutdated,
    ProgramFailed,
)
from activedb.firing._firings import BatchFirings
from activedb.store.system import pending_firings
from tests.databases import PATIENCE_S
from tests.workflows.marking import Marking, chain, marking, rows_of

if TYPE_CHECKING:
    from typing import Any

    from activedb import Database, Transaction
    from activedb.transactions import Run
    from tests.databases import Place


def recorded_firings(of: Marking) -> list[Any]:
    """The rows of firings, of done ones too."""
    with of.db.connection() as connection:
        return list(connection.execute(select(pending_firings.c.firing, pending_firings.c.run)))


def test_program_that_raises_stops_the_run_until_it_is_mended(where: Place) -> None:
    of = marking(where.open(), chain(isolated(), isolated(), isolated()))
    of.failing = lambda mark: mark == "P2(P1:x)"
    with pytest.raises(ProgramFailed, match=r"P2 failed in P2#1, .* a#1: ZeroDivisionError") as e:
        of.run.feed("a", rows_of("x"))
    assert isinstance(e.value, BatchFailed)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert (e.value.program, e.value.batches) == ("P2", ("a#1",))
    assert of.written() == ["P1(x)"]
    assert of.run.due() == ("P2#1",)
    (batch, *_) = of.db.workflows.history("marking").batches()
    assert batch.failed == {"P2#1": "ZeroDivisionError: P2(P1:x)"}

    with pytest.raises(ProgramFailed):  # it is first; nothing of this one is taken
        of.run.feed("a", rows_of("y"))
    with pytest.raises(NotRecorded):
        of.run.lineage("a#2")

    if not where.is_memory:
        of = marking(where.open(), chain(isolated(), isolated(), isolated()))
    of.failing = lambda mark: False
    assert of.run.resume() == ("P2#1",)
    assert of.written() == ["P1(x)", "P2(P1:x)", "P3(P2:P1:x)"]
    assert of.run.feed("a", rows_of("y")) == "a#2"
    assert set(of.states().values()) == {"whole"}
    history = of.db.workflows.history("marking")
    assert [batch.failed for batch in history.batches()] == [{}] * 8
    assert history.lineage.transaction("P2#1").output == "P2#1'"


def test_failed_batch_is_given_up_by_compensating_it(db: Database) -> None:
    of = marking(db, chain(isolated(), isolated(), isolated()))
    of.failing = lambda mark: mark == "P2(P1:x)"
    with pytest.raises(ProgramFailed):
        of.run.feed("a", rows_of("x"))
    plan = of.run.compensate("a#1")
    assert (plan.order, plan.never_executed) == (("P1#1",), ("P2#1",))
    assert of.written() == []
    assert of.run.due() == ()
    assert of.states() == {"a#1": "dropped", "P1#1'": "withdrawn"}
    of.run.feed("a", rows_of("y"))
    assert of.executed() == ["P1#2", "P2#2", "P3#2"]


def test_failed_merge_is_compensated_for_one_and_executed_for_the_other(db: Database) -> None:
    of = marking(db, chain(isolated(), merged(2)))
    of.run.feed("a", rows_of("x"))
    of.failing = lambda mark: mark == "P2(P1:x,P1:y)"
    with pytest.raises(ProgramFailed):
        of.run.feed("a", rows_of("y"))
    with pytest.raises(Interferes):
        of.run.compensate("a#1")
    of.run.compensate("a#1", "non-intrusive")
    assert of.written() == ["P1(y)"]
    of.run.resume()  # without the rows that were withdrawn
    assert of.written() == ["P1(y)", "P2(P1:y)"]


def test_on_failure_compensate_gives_the_batch_up_at_once(db: Database) -> None:
    of = marking(db, chain(isolated(), isolated()), on_failure="compensate")
    of.failing = lambda mark: "bad" in mark and mark.startswith("P2")
    assert of.run.feed("a", rows_of("bad")) == "a#1"
    assert of.run.feed("a", rows_of("good")) == "a#2"
    assert of.written() == ["P1(good)", "P2(P1:good)"]
    assert of.states()["a#1"] == "dropped"


def test_on_failure_compensate_that_would_interfere_stops(db: Database) -> None:
    of = marking(db, chain(isolated(), merged(2), isolated()), on_failure="compensate", mode="full")
    of.run.feed("a", rows_of("x"))
    of.failing = lambda mark: mark.startswith("P3")
    assert of.run.feed("a", rows_of("y")) == "a#2"  # both batches are those of what has failed
    assert of.written() == []
    assert {of.states()[id] for id in ("a#1", "a#2")} == {"dropped"}

    other = marking(
        db,
        [Program("P1", {"a": merged(2)}), Program("P2", {"P1": split(2)}), Program("P3", "P1")],
        name="other",
        on_failure="compensate",
        without_action=["P2"],
    )
    other.failing = lambda mark: mark.startswith("P3")
    other.run.feed("a", rows_of("x"))
    with pytest.raises(ProgramFailed) as failed:
        other.run.feed("a", rows_of("y"))
    assert "no compensating action" in failed.value.__notes__[0]
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert other.run.due() == ("P3#1",)


def test_relaxed_completion_records_the_failure_and_goes_on(db: Database) -> None:
    programs = [
        Program("P1", "a"),
        Program("P2", "P1", relax="completion"),
        Program("P3", {"P2": merged(2)}),
        Program("P4", "P1"),
    ]
    of = marking(db, programs)
    of.failing = lambda mark: mark == "P2(P1:x)"
    of.run.feed("a", rows_of("x"))
    of.run.feed("a", rows_of("y"))
    assert of.written() == ["P1(x)", "P1(y)", "P2(P1:y)", "P3(P2:P1:y)", "P4(P1:x)", "P4(P1:y)"]
    assert of.states()["a#1"] == "partially dropped"
    assert of.states()["a#2"] == "whole"
    (first, *_) = db.workflows.history("marking").batches()
    assert first.failed == {"P2#1": "ZeroDivisionError: P2(P1:x)"}
    assert of.run.due() == ()


def test_program_that_gives_out_no_rows_fails_and_leaves_nothing(db: Database) -> None:
    of = marking(db, [Program("P1", "a")])

    @of.definition.program(reads="P1")
    def wrong(t: Transaction, batch: list[dict[str, Any]]) -> Any:
        of.add(t, "wrong", 1)
        return [1, 2]

    with pytest.raises(ProgramFailed, match=r"the output of program wrong: row 0 is not a dict"):
        of.run.feed("a", rows_of("x"))
    assert of.written() == ["P1(x)"]


def test_call_that_has_taken_effect_says_so_when_what_follows_fails(db: Database) -> None:
    of = marking(db, [Program("P1", "a"), Program("P2", "put")])

    @of.definition.program()
    def put(t: Transaction, *, of: str) -> list[dict[str, Any]]:
        return rows_of(of)

    assert of.run.call("put", of="x") == "put#1"
    of.failing = lambda mark: mark == "P2(bad)"
    for number in (2, 3):  # by then, the second one is due
        with pytest.raises(ProgramFailed) as failed:
            of.run.call("put", of="bad")
        assert failed.value.taken == f"put#{number}"
    of.failing = lambda mark: False
    of.run.resume()
    assert of.written() == ["P2(bad)", "P2(bad)", "P2(x)"]


def test_action_that_raises_leaves_everything_as_it_was(db: Database) -> None:
    of = marking(db, chain(isolated(), isolated(), isolated()))
    of.run.feed("a", rows_of("x"))
    before, records = of.written(), of.run.whole_lineage().records()
    of.failing_actions = lambda mark: mark == "P1(x)"  # the last one of three
    with pytest.raises(CompensationFailed, match=r"action of P1 failed for P1#1") as failed:
        of.run.compensate("a#1")
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    assert of.written() == before
    assert of.run.whole_lineage().records() == records
    of.failing_actions = lambda mark: False
    of.run.compensate("a#1")
    assert of.written() == []
    with pytest.raises(AlreadyCompensated):
        of.run.compensate("a#1")


def test_action_that_is_missing_refuses_the_plan(db: Database) -> None:
    of = marking(db, chain(isolated(), isolated()), without_action=["P1"])
    of.run.feed("a", rows_of("x"))
    with pytest.raises(NotCompensable, match="no compensating action for P1#1"):
        of.run.compensate("a#1")
    of.run.compensate("P1#1'")
    assert of.written() == ["P1(x)"]


def test_plan_that_is_out_of_date_is_refused(db: Database) -> None:
    of = marking(db, chain(isolated(), merged(2)))
    of.run.feed("a", rows_of("x"))
    plan = of.run.plan("a#1")
    of.run.feed("a", rows_of("y"))
    with pytest.raises(PlanOutdated) as outdated:
        of.run.compensate(plan=plan)
    assert outdated.value.plan == of.run.plan("a#1")
    cover = of.run.plan("a#1", "independent cover", rounds=1)
    assert of.run.compensate(plan=cover, allow_interference=True) == cover
    with pytest.raises(ConfigurationError, match="say which batch"):
        of.run.compensate()


def test_waiting_batch_that_is_recalled_is_merged_without(db: Database) -> None:
    of = marking(db, [Program("P1", {"a": merged(2)})])
    of.run.feed("a", rows_of("x"))
    plan = of.run.compensate("a#1")
    assert plan.to_withdraw == ("a#1",)
    assert of.states()["a#1"] == "dropped"
    of.run.feed("a", rows_of("y"))
    assert of.written() == ["P1(y)"]


@pytest.mark.parametrize("mode", ["full", "non-intrusive"])
@pytest.mark.parametrize("asked", ["report#1", "clean#1'"])
def test_derived_batch_that_is_compensated_leaves_its_source_to_others(
    where: Place, asked: str, mode: str
) -> None:
    programs = [
        Program("clean", "s"),
        Program("report", "clean"),
        Program("bill", {"s": merged(2)}),
    ]
    of = marking(where.open(), programs, sources="s")
    of.run.feed("s", rows_of("1"))
    plan = of.run.compensate(asked, mode)
    assert (plan.order, plan.to_withdraw) == (("report#1",), ())
    assert of.run.waiting() == {"bill": ("s#1",)}
    for row in ("2", "4"):
        of.run.feed("s", rows_of(row))
    assert "bill(1,2)" in of.written()
    assert of.states()["s#1"] == "partially dropped"


def test_given_up_transaction_leaves_no_firings(db: Database) -> None:
    of = marking(db, chain(isolated(), isolated()))
    heard = []

    @db.rule(on=adb.inserted(of.marks), coupling="detached")
    def hear(t: Transaction, o: adb.Occurrence) -> None:
        assert o.new is not None
        heard.append(o.new["id"])

    of.failing = lambda mark: mark == "P2(P1:x)"
    for _ in range(2):
        with pytest.raises(ProgramFailed):
            of.run.feed("a", rows_of("x")) if not of.run.due() else of.run.resume()
        db.wait_idle()
    # Detached, so beside each other: each once, though what triggered it aborts.
    assert sorted(heard) == ["P1(x)", "P2(P1:x)"]
    of.run.compensate("a#1")
    assert db.admin.pending_firings() == []
    with db.connection() as connection:
        assert connection.scalar(select(func.count()).select_from(pending_firings)) == 0


@pytest.mark.parametrize("how", ["compensated", "of no importance"])
def test_firings_of_what_is_given_up_are_recorded_with_that(db: Database, how: str) -> None:
    relax = ["completion"] if how == "of no importance" else []
    of = marking(db, chain(isolated(), isolated(), relax=relax))
    goes_on, heard = threading.Event(), []

    @db.rule(on=adb.inserted(of.marks), coupling="detached")
    def hear(t: Transaction, o: adb.Occurrence) -> None:
        assert o.new is not None
        if o.new["id"] == "P2(P1:x)":
            assert goes_on.wait(PATIENCE_S)
        heard.append(o.new["id"])

    of.failing = lambda mark: mark == "P2(P1:x)"
    if relax:
        of.run.feed("a", rows_of("x"))
    else:
        with pytest.raises(ProgramFailed):
            of.run.feed("a", rows_of("x"))
        of.run.compensate("a#1")
    assert "workflow/marking/P2/1" in {each.run for each in recorded_firings(of)}
    goes_on.set()
    db.wait_idle()
    assert sorted(heard) == ["P1(x)", "P2(P1:x)"]
    assert "workflow/marking/P2/1" not in {each.run for each in recorded_firings(of)}


@pytest.mark.parametrize(
    "by", ["the next commit", "the next commit after a crash", "wait_idle", "close"]
)
def test_firing_that_ends_while_its_batch_commits_is_forgotten_later(
    where: Place, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where.is_memory:
        pytest.skip("in memory no other transaction writes during a commit")
    settles, asks = threading.Event(), threading.Event()
    settle, end_of = BatchFirings.settle, BatchFirings.end_of

    def settle_beside(self: BatchFirings, connection: Any, run: Run) -> None:
        settle(self, connection, run)
        if run.fired:
            settles.set()
            assert asks.wait(PATIENCE_S)  # so it has to leave a row: this may yet fail

    def ask(self: BatchFirings, firing: str) -> Any:
        end = end_of(self, firing)
        asks.set()
        return end

    monkeypatch.setattr(BatchFirings, "settle", settle_beside)
    monkeypatch.setattr(BatchFirings, "end_of", ask)

    def opened() -> Marking:
        of = marking(where.open(), chain(isolated()))

        @of.db.rule(on=adb.inserted(of.marks), coupling="detached")
        def hear(t: Transaction, o: adb.Occurrence) -> None:
            assert o.new is not None
            if o.new["id"] == "P1(x)":
                assert settles.wait(PATIENCE_S)

        return of

    of = opened()
    of.run.feed("a", rows_of("x"))
    of.db._launcher.join_running()
    (left,) = recorded_firings(of)
    after = opened() if by in ("the next commit after a crash", "close") else of
    if by == "wait_idle":
        of.db.wait_idle()
    elif by == "close":
        of.db.close()
    else:
        after.run.feed("a", rows_of("y"))
        after.db._launcher.join_running()
    assert left not in recorded_firings(after)  # that of y may have left one as well


def test_relaxed_completion_records_of_all_batches_what_they_are(db: Database) -> None:
    programs = [Program("P1", "a"), Program("P2", "P1"), Program("P3", "P2", relax="completion")]
    of = marking(db, programs)
    of.failing = lambda mark: mark.startswith("P3") and "x" in mark
    of.run.feed("a", rows_of("x"))
    of.run.feed("a", rows_of("y"))
    lineage = of.run.whole_lineage()
    told = {Standing.DROPPED: "dropped", Standing.PARTIALLY_DROPPED: "partially dropped"}
    for batch in lineage.batches():
        expected = told.get(standing(lineage, batch.id), "whole")
        assert of.states()[batch.id] == expected, batch.id
    assert of.states()["P2#1'"] == "dropped"


def test_call_triggered_by_one_transaction_takes_its_id(db: Database) -> None:
    of = marking(db, [Program("P1", "a")])

    @of.definition.program(after="P1")
    def correct(t: Transaction) -> None:
        of.add(t, "correct", 1)

    of.run.feed("a", rows_of("x"))
    id = of.run.call("correct", triggered_by="P1#1")
    assert of.run.whole_lineage().transaction(id).triggered_by == ("P1#1",)
