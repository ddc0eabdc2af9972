"""Compensations one after another, and beside other work: what each of them triggers and undoes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from activedb.batches import Program, isolated
from activedb.errors import (
    ActiveDBError,
    CompensationFailed,
    NotRecorded,
    SerializationConflict,
)
from tests.databases import PATIENCE_S, in_thread
from tests.drawing import SCALE, SEED, drawn
from tests.workflows.marking import chain, marking, rows_of
from tests.workflows.test_forgetting import LATER
from tests.workflows.test_tries import WITH_THE_COMMIT, Lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Database, Transaction
    from activedb.workflows._run import BatchRun
    from tests.databases import Place

MANY = 4  # batches of one world


class Undoing:
    """A workflow whose compensating actions all signal the same M, and rules of every mode on M.

    Attributes
    ----------
    act : callable ``()``
        Called by each action before it signals; what it returns is called after that.
    """

    def __init__(self, db: Database, hear: Callable[[str], object] = lambda mode: None):
        self.lines = Lines(db, hear)
        self.act: Callable[[], Callable[[], object]] = lambda: lambda: None
        usage = db.workflow("usage", sources="a")

        @usage.program(reads="a")
        def first(t: Transaction, batch: list[dict[str, Any]]) -> None:
            """Write nothing."""

        @first.compensation
        def undo(t: Transaction, execution: Any) -> None:
            end = self.act()
            db.signal("M", text="undone")
            end()

        self.run = db.workflows.open(usage)

    def heard(self) -> dict[str, int]:
        """Return how many rules have run, by mode."""
        self.lines.db.wait_idle()
        return {mode: len(self.lines.of(mode)) for mode in expected(0, 0)}


def expected(done: int, failed: int) -> dict[str, int]:
    """Return how many rules so many compensations trigger, by mode."""
    with_the_commit = dict.fromkeys(WITH_THE_COMMIT, done)
    return {**with_the_commit, "detached": done + failed, "exclusive": failed}


# -- firings of the rules that compensations trigger -----------------------------------------------


def test_compensations_at_one_place_by_two_processes_trigger_rules_of_their_own(
    there: Place,
) -> None:
    heard, goes_on = threading.Semaphore(0), threading.Event()

    def hear(mode: str) -> None:
        if mode in ("sequential", "detached"):
            heard.release()
            assert goes_on.wait(PATIENCE_S)  # the firing is recorded, and has not ended

    one, other = Undoing(there.open(), hear), Undoing(there.open())
    for row in "xy":
        one.run.feed("a", rows_of(row))
    begun = iter([lambda: in_thread(one.run.compensate, "a#1").result(PATIENCE_S)])

    def act() -> Callable[[], object]:
        next(begun, lambda: None)()
        return lambda: None

    other.act = act
    other.run.compensate("a#2")
    for _ in ("sequential", "detached"):
        assert heard.acquire(timeout=PATIENCE_S)
    goes_on.set()
    one.lines.db.wait_idle()
    assert other.heard() == expected(2, 0)


@pytest.mark.parametrize("number", range(3))
def test_each_compensation_triggers_rules_once_however_often_it_is_tried(
    where: Place, number: int
) -> None:
    """Some fail, some are tried again, some are overtaken by one of another process."""
    random = drawn("compensations", number)
    processes = [Undoing(where.open(retry_pause_ms=0)) for _ in range(1 if where.is_memory else 2)]
    done = failed = 0
    left = [processes[0].run.feed("a", rows_of(str(row))) for row in range(MANY * SCALE)]

    def compensate(process: int, *, is_inner: bool = False) -> None:
        """Compensate the next batch, or fail in it, after some tries."""
        nonlocal done, failed
        of, batch = processes[process], left.pop()
        tries = random.randrange(3)
        is_overtaken = len(processes) == 2 and left and not is_inner and random.random() < 0.5
        fails = random.random() < 0.5
        number = itertools.count()
        before = of.act

        def act() -> Callable[[], object]:
            at = next(number)
            if is_overtaken and not at:
                in_thread(partial(compensate, 1 - process, is_inner=True)).result(PATIENCE_S)
            return lambda: end(at)

        def end(at: int) -> None:
            if at < tries:
                raise SerializationConflict("as told")
            if fails:
                raise ZeroDivisionError

        of.act = act
        try:
            of.run.compensate(batch)
            done += 1
        except CompensationFailed:
            failed += 1
            left.insert(random.randrange(len(left) + 1), batch)
        finally:
            of.act = before

    while left:
        compensate(random.randrange(len(processes)))
    for of in processes:
        of.lines.db.wait_idle()
    assert processes[0].heard() == expected(done, failed), SEED
    assert processes[0].lines.db.admin.pending_firings() == []


# -- what is forgotten, executed or called in between ----------------------------------------------


def before(
    owner: Any, name: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Call `act` on a thread of its own before the next call of a method, and then no more."""
    plain, left = getattr(owner, name), [act]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            in_thread(left.pop()).result(PATIENCE_S)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("by", ["this process", "another one"])
def test_rows_of_a_batch_that_is_forgotten_while_they_are_read(
    where: Place, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where.is_memory and by == "another one":
        pytest.skip("memory belongs to one process")
    one = marking(where.open(), chain(isolated()))
    other = one if by == "this process" else marking(where.open(), chain(isolated()))
    for row in "xyz":
        one.run.feed("a", rows_of(row))
    before(one.run._journal, "rows", monkeypatch, lambda: other.run.forget(LATER))
    with pytest.raises(NotRecorded, match="a#1 was forgotten while"):
        one.run.rows("a#1")
    with pytest.raises(NotRecorded):
        one.run.rows("a#1")
    assert one.run.rows("a#3") == rows_of("z")


@pytest.mark.parametrize("reads", ["rows", "arguments"])
@pytest.mark.parametrize("asked", ["a#1", "put#1"])
def test_compensation_of_what_another_process_forgets_undoes_nothing(
    there: Place, asked: str, reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[Any] = []

    def opened() -> BatchRun:
        of = marking(there.open(), [Program("P1", "a")])

        @of.definition.program()
        def put(t: Transaction, *, to: str) -> None:
            """Give out nothing."""

        @put.compensation
        def unput(t: Transaction, execution: Any) -> None:
            undone.append(execution.arguments["to"])

        return of.run

    one, other = opened(), opened()
    for row in "xyz":
        one.feed("a", rows_of(row))
        one.call("put", to=row)
    before(one._journal, reads, monkeypatch, lambda: other.forget(LATER))
    with pytest.raises(NotRecorded, match=asked):
        one.compensate(asked)
    one.compensate("put#3")
    assert undone == ["z"]
    assert one.whole_lineage().records() == other.whole_lineage().records()


@pytest.mark.parametrize("number", range(2 * SCALE))
def test_whatever_is_asked_beside_a_process_that_forgets_is_answered_or_refused(
    there: Place, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compensation takes its batch back once, and all else stands."""
    random = drawn("forgotten", number)
    one, other = (
        marking(there.open(retry_pause_ms=0), chain(isolated(), isolated())) for _ in "12"
    )
    fed: list[str] = []
    undone: set[str] = set()

    def beside(run: BatchRun) -> None:
        act = random.choice(["forget", "forget", "look", "compensate"])
        if act == "forget":
            run.forget(LATER)
        elif act == "look":
            run.due()
        else:
            compensate(run, random.choice(fed[-3:]))

    def compensate(run: BatchRun, id: str) -> None:
        run.compensate(id)
        assert id not in undone
        undone.add(id)

    def quietly(act: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(ActiveDBError):
            act(*args)

    for step in range(12):
        fed += [other.run.feed("a", rows_of(f"{step}.{part}")) for part in range(2)]
        with monkeypatch.context() as patch:
            where = random.choice(["rows", "rows", "arguments", "place", "load"])
            before(one.run._journal, where, patch, lambda: quietly(beside, other.run))
            questions: list[Callable[[str], object]] = [one.run.rows, one.run.lineage]
            questions += [partial(compensate, one.run)] * 2
            asked = random.choice(questions)
            quietly(asked, random.choice(fed[-3:]))
    numbers = [
        (id, f"{step}.{part}")
        for id, (step, part) in zip(fed, itertools.product(range(12), range(2)), strict=True)
    ]
    marks = [f"{p}{row})" for id, row in numbers if id not in undone for p in ("P1(", "P2(P1:")]
    assert one.written() == sorted(marks), SEED
    assert one.run.whole_lineage().records() == other.run.whole_lineage().records(), SEED


def test_call_that_belongs_to_a_batch_is_compensated_with_it_even_if_it_comes_in_between(
    db: Database,
) -> None:
    of = marking(db, [Program("P1", "a")])
    called: list[str] = []
    undone: list[str] = []

    @of.definition.program(after="P1")
    def note(t: Transaction) -> None:
        """Write nothing, so that it does not wait for the compensation."""

    @note.compensation
    def unnote(t: Transaction, execution: Any) -> None:
        undone.append(execution.transaction)

    of.run.feed("a", rows_of("x"))

    def call(mark: str) -> bool:
        if not called:
            called.append("note#1")
            in_thread(lambda: of.run.call("note", triggered_by=["P1#1"])).result(PATIENCE_S)
        return False

    of.failing_actions = call
    plan = of.run.compensate("a#1")
    assert plan.order == ("note#1", "P1#1")
    assert undone == called
    assert of.executed() == []
    assert of.written() == []


def test_transaction_that_another_process_executes_meanwhile_is_not_executed_again(
    there: Place,
) -> None:
    between: list[Callable[[], object]] = []
    calls: list[int] = []

    def opened() -> BatchRun:
        db = there.open()
        usage = db.workflow("usage", sources="a")

        @usage.program(reads="a")
        def first(t: Transaction, batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
            calls.append(1)
            if between:
                in_thread(between.pop()).result(PATIENCE_S)
            return batch

        return db.workflows.open(usage)

    one, other = opened(), opened()
    between.append(lambda: (other.resume(), one.due()))  # and this process sees it
    assert one.feed("a", rows_of("x")) == "a#1"
    assert len(calls) == 2
    assert one.rows("first#1'") == rows_of("x")
    assert [t.id for t in other.whole_lineage().transactions()] == ["first#1"]
