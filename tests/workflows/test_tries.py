"""Programs of a workflow that are tried again: what a try that failed has left, and what not."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String, Table, select

import activedb as adb
from activedb.batches import isolated
from activedb.errors import Deadlock, ProgramFailed, SerializationConflict
from activedb.firing._firings import BatchFirings
from activedb.transactions import Run
from tests.databases import PATIENCE_S, in_thread, place, until
from tests.drawing import drawn
from tests.firing.working import working
from tests.workflows.marking import chain, marking, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Database, Occurrence, Transaction
    from tests.workflows.marking import Marking

WITH_THE_COMMIT = ("immediate", "deferred", "sequential", "causal")
MODES = (*WITH_THE_COMMIT, "detached", "exclusive")


class Lines:
    """Rules of every mode on each mark that is written, and what they have written down."""

    def __init__(self, db: Database, hear: Callable[[str], object] = lambda mode: None):
        self.db, self._hear = db, hear  # called by each rule, with its mode, before it writes
        self.table = Table(
            "lines",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("text", String(200), nullable=False),
        )
        db.create_all()
        for mode in MODES:
            self._rule(mode)

    def _rule(self, mode: str) -> None:
        @self.db.rule(on=adb.event("M"), coupling=mode, name=mode)
        def log(t: Transaction, o: Occurrence) -> None:
            self._hear(mode)
            t.insert(self.table, {"text": f"{mode} {o.params['text']}"})

    def of(self, mode: str) -> list[str]:
        with self.db.transaction() as t:
            found = [row.text.split(" ", 1) for row in t.query(select(self.table))]
        return sorted(text for kind, text in found if kind == mode)


def test_program_that_is_tried_again_has_what_its_last_try_did_and_no_more(db: Database) -> None:
    lines = Lines(db)
    usage = db.workflow("usage", sources="a")
    seen: list[Any] = []
    given: list[Any] = []
    failures: list[Exception] = [SerializationConflict("as told"), Deadlock("as told")]

    @usage.program(reads="a")
    def first(t: Transaction, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen.append([dict(row, list=list(row["list"])) for row in batch])
        number = len(seen)
        db.signal("M", text=f"try {number}")
        db.signal("M", text="any try")
        for row in batch:
            row["list"].append("changed in place")
        batch.append({"list": []})
        if failures:
            raise failures.pop()
        return [{"of": number}]

    @usage.program(reads="first")
    def second(t: Transaction, batch: list[dict[str, Any]]) -> None:
        given.append(batch)

    run = db.workflows.open("usage")
    batch = run.feed("a", [{"list": [1]}])
    db.wait_idle()
    assert seen == [[{"list": [1]}]] * 3
    assert given == [[{"of": 3}]]
    assert run.rows(batch) == [{"list": [1]}]
    for mode in WITH_THE_COMMIT:
        assert lines.of(mode) == ["any try", "try 3"], mode
    assert lines.of("detached") == ["any try", "try 1", "try 2", "try 3"]
    assert lines.of("exclusive") == []
    assert db.admin.pending_firings() == []
    assert db.dead_letters.list() == []
    assert run.due() == ()
    assert [each.failed for each in db.workflows.history("usage").batches()] == [{}] * 2


def fail_at_the_second_try(db: Database) -> list[int]:
    """Feed a program that signals M and fails in each try; return its tries."""
    usage = db.workflow("usage", sources="a", on_failure="compensate")
    tries: list[int] = []

    @usage.program(reads="a")
    def first(t: Transaction, batch: list[dict[str, Any]]) -> None:
        tries.append(1)
        db.signal("M", text=f"try {len(tries)}")
        if len(tries) == 1:
            raise SerializationConflict("as told")
        raise ZeroDivisionError

    @first.compensation
    def undo(t: Transaction, execution: Any) -> None:
        """Do nothing, as nothing was executed."""

    db.workflows.open("usage").feed("a", [{}])
    db.wait_idle()
    return tries


def test_program_that_fails_for_good_has_only_what_is_independent_of_its_commit(
    db: Database,
) -> None:
    lines = Lines(db)
    tries = fail_at_the_second_try(db)
    assert len(tries) == 2
    for mode in WITH_THE_COMMIT:
        assert lines.of(mode) == [], mode
    assert lines.of("detached") == ["try 1", "try 2"]
    assert lines.of("exclusive") == ["try 1", "try 2"]
    assert db.admin.pending_firings() == []


def test_oltp_program_that_is_tried_again_is_given_its_arguments_as_they_were(
    db: Database,
) -> None:
    usage = db.workflow("usage", sources="a")
    seen: list[Any] = []

    @usage.program(reads="a")
    def take(t: Transaction, batch: list[dict[str, Any]]) -> None:
        """Read what there is, as each source needs."""

    @usage.program()
    def correct(t: Transaction, *, items: list[Any]) -> None:
        seen.append([list(each) for each in items])
        items[0].append("changed in place")
        items.append([])
        if len(seen) < 3:
            raise SerializationConflict("as told")

    @correct.compensation
    def undo(t: Transaction, execution: Any) -> None:
        seen.append(execution.arguments["items"])

    run = db.workflows.open("usage")
    items = [[1]]
    id = run.call("correct", items=items)
    assert items == [[1]]
    run.compensate(id)
    assert seen == [[[1]]] * 4


def _told(of: Marking, chance: random.Random, likely: float) -> Counter[str]:
    """Let programs fail by chance in what is retried; return which tries failed, by mark."""
    failed: Counter[str] = Counter()

    def failing(mark: str) -> bool:
        of.db.signal("M", text=f"{mark} {failed[mark]}")
        if failed[mark] < 3 and chance.random() < likely:
            failed[mark] += 1
            raise chance.choice([SerializationConflict, Deadlock])("as told")
        return False

    of.failing = failing
    return failed


@pytest.mark.parametrize("number", range(3))
def test_random_tries_leave_what_a_run_without_failures_leaves(db: Database, number: int) -> None:
    chance = drawn("random tries", number)
    lines = Lines(db)
    of = marking(db, chain(isolated(), isolated(), isolated()))
    db.settings.__dict__["retry_pause_ms"] = 0
    failed = _told(of, chance, 0.4)
    names = [f"x{n}" for n in range(6)]
    for name in names:
        of.run.feed("a", rows_of(name))
    db.wait_idle()
    marks = [f"{p}({i}{n})" for n in names for p, i in (("P1", ""), ("P2", "P1:"))]
    marks += [f"P3(P2:P1:{n})" for n in names]
    assert of.written() == sorted(marks)
    assert of.run.due() == ()
    last = sorted(f"{mark} {failed[mark]}" for mark in marks)
    for mode in WITH_THE_COMMIT:
        assert lines.of(mode) == last, mode
    every = sorted(f"{mark} {number}" for mark in marks for number in range(failed[mark] + 1))
    assert lines.of("detached") == every
    assert lines.of("exclusive") == []
    assert db.admin.pending_firings() == []
    assert db.dead_letters.list() == []


def test_what_a_batch_that_failed_for_good_has_triggered_is_left_to_the_workers(
    postgres_url: str,
) -> None:
    with place(postgres_url) as there:
        clerk, worker = there.open(firings="queue"), there.open()
        Lines(clerk)
        lines = Lines(worker)
        fail_at_the_second_try(clerk)
        assert len(clerk.admin.pending_firings()) == 4  # none of them was started here
        with working(worker):
            until(lambda: not worker.admin.pending_firings())
        for mode in ("detached", "exclusive"):
            assert lines.of(mode) == ["try 1", "try 2"]


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next commit of a workflow's transaction fail after it has changed the state."""
    failures = [SerializationConflict("as told")]
    settle = BatchFirings.settle

    def settle_or_fail(self: BatchFirings, connection: Any, run: Run) -> None:
        if failures:
            raise failures.pop()
        settle(self, connection, run)

    monkeypatch.setattr(BatchFirings, "settle", settle_or_fail)


def test_state_can_be_read_in_the_pause_before_a_retry(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = marking(db, chain(isolated(), isolated()))
    run, seen = of.run, []
    fail_once(monkeypatch)

    def pause(event: Any, seconds: float) -> None:
        seen.append(in_thread(run.due).result(PATIENCE_S))

    monkeypatch.setattr(db._forest.retries, "wait", pause)
    run.feed("a", rows_of("x"))
    assert len(seen) == 1
    assert of.written() == ["P1(x)", "P2(P1:x)"]


def test_what_only_a_failed_try_gives_up_is_not_given_up(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = marking(db, chain(isolated(), isolated()))
    instead: list[Any] = []
    db.rule(on=adb.inserted(of.marks), coupling="exclusive", name="instead")(
        lambda t, o: instead.append(o)
    )
    of.failing = lambda mark: mark == "P2(P1:x)"
    with pytest.raises(ProgramFailed):
        of.run.feed("a", rows_of("x"))
    due = of.run.due()
    fail_once(monkeypatch)
    tries: list[Any] = []

    def work(t: Any) -> Any:
        tries.append(t)
        return (lambda state, recorded: state.due.clear()) if len(tries) == 1 else None

    of.run._commits.run(Run(), work)
    assert len(tries) == 2
    assert of.run.due() == due
    of.failing = lambda mark: False
    of.run.resume()
    db.wait_idle()
    assert instead == []
