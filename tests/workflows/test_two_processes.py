"""Two open databases on one server, as of two processes: each sees what the other has done."""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.batches import Mode, Program, Workflow, isolated, merged, overlapping, split
from activedb.errors import ActiveDBError, CheckpointMismatch, NotRecorded, ProgramFailed
from tests.databases import PATIENCE_S, in_thread, place, until
from tests.drawing import SCALE, SEED, Worlds, drawn
from tests.workflows.marking import Marking, chain, marking, rows_of
from tests.workflows.naive import NaiveWorkflow
from tests.workflows.test_micro_batches import batch_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from activedb import Database, Transaction
    from activedb.workflows._run import BatchRun
    from tests.databases import Place

_numbers = itertools.count()


class Killed(BaseException):
    """The end of a process in the middle of a program."""


@pytest.fixture
def server(postgres_url: str) -> Iterator[Place]:
    """Somewhere on the server, which several processes can open."""
    with place(postgres_url) as opened:
        yield opened


def two(server: Place, programs: list[Program]) -> tuple[Marking, Marking]:
    one, other = (marking(server.open(), programs) for _ in range(2))
    assert one.run is not other.run
    return one, other


def fail_on(marks: set[str], *markings: Marking) -> None:
    for of in markings:
        of.failing = marks.__contains__


# -- each defect by itself -------------------------------------------------------------------------


def test_failure_of_another_process_is_resumed_here(server: Place) -> None:
    one, other = two(server, chain(isolated()))
    failing = {"P1(bad)"}
    fail_on(failing, one, other)
    one.run.feed("a", rows_of("x"))
    with pytest.raises(ProgramFailed):
        other.run.feed("a", rows_of("bad"))
    with pytest.raises(ProgramFailed, match="P1#2"):
        one.run.resume()
    failing.clear()
    assert one.run.resume() == ("P1#2",)
    assert one.written() == ["P1(bad)", "P1(x)"]


def test_failure_of_another_process_is_compensated_here(server: Place) -> None:
    one, other = two(server, chain(isolated()))
    fail_on({"P1(bad)"}, one, other)
    one.run.feed("a", rows_of("x"))
    with pytest.raises(ProgramFailed):
        other.run.feed("a", rows_of("bad"))
    assert one.run.compensate("a#2").never_executed == ("P1#2",)
    assert other.run.due() == ()


@pytest.mark.parametrize("is_killed", [False, True])
def test_batch_is_not_taken_while_one_of_another_process_fails(
    server: Place, is_killed: bool
) -> None:
    """The other process has recorded the failure, or was killed before it failed."""
    one, other = two(server, chain(isolated(), isolated()))
    failing = {"P2(P1:bad)"}
    fail_on(failing, one, other)
    one.run.feed("a", rows_of("x"))
    if is_killed:
        other.failing = killed_at("P2(P1:bad)")
    with pytest.raises(Killed if is_killed else ProgramFailed):
        other.run.feed("a", rows_of("bad"))
    with pytest.raises(ProgramFailed, match="P2#2") as failed:
        one.run.feed("a", rows_of("y"))
    assert failed.value.taken is None
    with pytest.raises(NotRecorded):
        one.run.lineage("a#3")
    failing.clear()
    assert one.run.feed("a", rows_of("y")) == "a#3"
    assert one.written() == sorted(
        f"P{p}{'(P1:' if p == 2 else '('}{n})" for p in (1, 2) for n in ("bad", "x", "y")
    )


def killed_at(mark: str) -> Callable[[str], bool]:
    def fail(text: str) -> bool:
        if text == mark:
            raise Killed
        return False

    return fail


def test_batch_of_a_process_that_was_killed_is_resumed_by_one_that_was_open(server: Place) -> None:
    one, other = two(server, chain(isolated(), isolated()))
    one.run.feed("a", rows_of("x"))
    other.failing = killed_at("P2(P1:y)")
    with pytest.raises(Killed):
        other.run.feed("a", rows_of("y"))
    assert one.run.resume() == ("P2#2",)
    assert one.written() == ["P1(x)", "P1(y)", "P2(P1:x)", "P2(P1:y)"]


def test_micro_batches_continue_those_that_another_process_has_applied(server: Place) -> None:
    one, other = two(server, chain(isolated()))
    assert one.run.apply(batch_of(0, "x")) == "a#1"
    assert other.run.apply(batch_of(1, "y")) == "a#2"
    assert other.run.apply(batch_of(2, "z")) == "a#3"
    with pytest.raises(CheckpointMismatch, match="batch 2 of query q, and now comes 4"):
        one.run.apply(batch_of(4, "w"))
    assert one.run.apply(batch_of(3, "w")) == "a#4"
    assert other.run.apply(batch_of(3, "w")) == "a#4"
    assert one.written() == ["P1(w)", "P1(x)", "P1(y)", "P1(z)"]


def test_program_that_another_process_has_executed_is_not_called_again(server: Place) -> None:
    one, other = two(server, chain(isolated()))
    heard: list[str] = []

    @one.db.rule(on=adb.inserted(one.marks), coupling="detached")
    def hear(t: Transaction, o: adb.Occurrence) -> None:
        assert o.new is not None
        heard.append(o.new["id"])

    failing = {"P1(bad)"}
    fail_on(failing, one, other)
    with pytest.raises(ProgramFailed):
        one.run.feed("a", rows_of("bad"))
    other.failing = lambda mark: False
    other.run.resume()
    one.run.feed("a", rows_of("x"))
    one.db.wait_idle()
    assert sorted(heard) == ["P1(bad)", "P1(x)"]  # detached: beside each other


@pytest.mark.parametrize("when", ["inside", "after"])
def test_batch_is_not_taken_before_what_a_call_has_just_made_due(
    db: Database, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    of = marking(db, [Program("P1", "a"), Program("P2", "put")])

    @of.definition.program()
    def put(t: Transaction) -> list[dict[str, Any]]:
        return rows_of("bad")

    failing = {"P2(bad)"}
    fail_on(failing, of)
    run, calls, left = of.run, [], ["put"]

    def call(point: str) -> None:
        if point == when and left:
            calls.append(in_thread(run.call, left.pop()))  # waits for the feed, to run what is due
            until(lambda: run._commits.look(lambda state: bool(state.due)))

    cut_in(run, monkeypatch, call)
    with pytest.raises(ProgramFailed, match="P2#1") as failed:
        run.feed("a", rows_of("x"))
    assert failed.value.taken is None
    of_call = calls[0].exception(PATIENCE_S)
    assert isinstance(of_call, ProgramFailed)
    assert of_call.taken == "put#1"
    failing.clear()
    assert run.feed("a", rows_of("x")) == "a#1"
    assert of.written() == ["P1(x)", "P2(bad)"]


# -- random turns ----------------------------------------------------------------------------------


class Turns:
    """One world's workflow in one or several open databases, with failures told from outside."""

    def __init__(self, name: str, programs: list[Program], dbs: list[Database]):
        self.of = [marking(db, programs, name=name) for db in dbs]
        self.broken: set[str] = set()
        self.killing: tuple[str, str] | None = None
        for each in self.of:
            each.failing = self._fails

    def _fails(self, mark: str) -> bool:
        if self.killing is not None and all(part in mark for part in self.killing):
            self.killing = None
            raise Killed
        return any(name in mark for name in self.broken)

    def outcome(self, act: Callable[[BatchRun], object], process: int) -> object:
        """Return what an act gives or raises, in one process."""
        try:
            found = act(self.of[process % len(self.of)].run)
        except ActiveDBError as error:
            found = (type(error), str(error), getattr(error, "taken", None))
        except Killed:
            found = Killed
        return found


def acted(random: Random, name: str, turns: Turns) -> tuple[str, Callable[[BatchRun], object]]:
    """Draw an act; `turns` shows how far the workflow is."""
    state = turns.of[0].run.whole_lineage()
    known = [batch.id for batch in state.batches()]
    what = random.choice(["feed", "feed", "apply", "resume", "fix", "compensate"])
    if what == "compensate" and not known:
        what = "feed"
    if what == "feed":
        return what, lambda run: run.feed("a", rows_of(name))
    if what == "apply":
        last = turns.of[0].run._commits._state.origins.get("a", [None, -1])[1]
        number = last + random.choice([1, 1, 1, 0, 2])
        return what, lambda run: run.apply(batch_of(number, name))
    if what == "compensate":
        chosen, mode = random.choice(known), random.choice(list(Mode))
        return what, lambda run: run.compensate(chosen, mode, allow_interference=True)
    return what, lambda run: run.resume()


def asked(random: Random, turns: Turns) -> Callable[[BatchRun], object]:
    """Draw a question."""
    known = [batch.id for batch in turns.of[0].run.whole_lineage().batches()]
    id = random.choice(known) if known else "a#1"
    return random.choice(
        [
            lambda run: run.due(),
            lambda run: run.waiting(),
            lambda run: run.rows(id),
            lambda run: run.lineage(id),
            lambda run: run.plan(id),
            lambda run: run.cover(id),
            lambda run: run.draw_svg(),
            lambda run: run.whole_lineage().records(),
        ]
    )


def groupings(random: Random) -> list[Any]:
    choices = [isolated(), merged(2), split(2), overlapping(2)]
    return [isolated(), *random.sample(choices, random.randint(0, 2))]


def test_two_processes_in_turn_do_and_answer_what_one_does(server: Place) -> None:
    shared = [server.open(), server.open()]
    met = {"ProgramFailed": 3, "Killed": 2, "CheckpointMismatch": 1, "plan": 1}
    worlds = Worlds(4 * SCALE, "two processes in turn", **met)
    with contextlib.closing(adb.connect("memory://")) as alone:
        for random in worlds:
            name, programs = f"w{next(_numbers)}", chain(*groupings(random))
            one, several = Turns(name, programs, [alone]), Turns(name, programs, shared)
            for step in range(10):
                row = f"{name}.{step}."
                what, act = acted(random, row, one)
                is_broken, is_killed = random.random() < 0.3, random.random() < 0.2
                killing = (random.choice(programs).name + "(", row)
                for turns in (one, several):
                    if what == "fix":
                        turns.broken.clear()
                    elif is_broken:
                        turns.broken.add(row)
                    turns.killing = killing if is_killed else None
                expected = one.outcome(act, 0)
                seen = several.outcome(act, random.randrange(2))
                assert seen == expected, (step, what, SEED)
                kind = expected[0] if isinstance(expected, tuple) and expected else expected
                worlds.met[getattr(kind, "__name__", "")] += 1
                worlds.met["plan"] += what == "compensate" and not isinstance(expected, tuple)
                question = asked(random, one)
                answer = several.outcome(question, random.randrange(2))
                assert answer == one.outcome(question, 0), (step, what, SEED)
            mine = [[m for m in of.written() if name in m] for of in (one.of[0], several.of[0])]
            assert mine[0] == mine[1], SEED


# -- random interleavings --------------------------------------------------------------------------


def cut_in(run: BatchRun, monkeypatch: pytest.MonkeyPatch, act: Callable[[str], object]) -> None:
    """Call `act` before each transaction of a run, and inside, before its work and after it.

    Inside: in the first try alone, as a later one may hold the row of the workflow.
    """
    commits = run._commits
    plain = commits.run

    def run_with_others(of: Any, work: Callable[[Any], Any]) -> None:
        tries = 0

        def beside(t: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                act("inside")
            record = work(t)
            if tries == 1:
                act("after")
            return record

        act("before")
        plain(of, beside)

    monkeypatch.setattr(commits, "run", run_with_others)


class Feeding:
    """Feeds by either process, each repeated by the caller unless its batch was taken."""

    def __init__(self, random: Random, turns: Turns, name: str):
        self.turns, self.fed = turns, 0
        self.left: list[str] = []
        self.breaks = True
        self._random, self._name = random, name
        self._is_inside = self.is_over = False

    def act(self, process: int) -> None:
        what = self._random.choice(["feed", "feed", "feed", "resume", "fix"])
        if what == "fix":
            self.turns.broken.clear()
        elif what == "resume":
            with contextlib.suppress(ProgramFailed):
                self.turns.of[process].run.resume()
        else:
            if not self.left or self._random.random() < 0.5:
                self.left.append(f"{self._name}.{self.fed}.")
                self.fed += 1
                if self._random.random() < 0.3 and self.breaks:
                    self.turns.broken.add(self.left[-1])
            self.feed(process)

    def feed(self, process: int) -> None:
        name = self.left.pop()
        try:
            self.turns.of[process].run.feed("a", rows_of(f"{name}l", f"{name}r"))
        except ProgramFailed as failed:
            if failed.taken is None:
                self.left.append(name)

    def cut_in(self, process: int, point: str) -> None:
        """Let the other process act, by chance, in the middle of what this one does."""
        if point == "after":
            return  # it may hold locks for which the other would wait
        if not (self._is_inside or self.is_over) and self._random.random() < 0.25:
            self._is_inside = True
            try:
                in_thread(self.act, 1 - process).result(PATIENCE_S)
            finally:
                self._is_inside = False


def test_two_processes_interleaved_take_each_batch_once(
    server: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dbs = [server.open(retry_pause_ms=0) for _ in range(2)]
    for world in range(6 * SCALE):
        random = drawn("two processes interleaved", world)
        name, programs = f"w{next(_numbers)}", chain(*groupings(random))
        turns = Turns(name, programs, dbs)
        feeding = Feeding(random, turns, name)
        for process, of in enumerate(turns.of):
            cut_in(of.run, monkeypatch, partial(feeding.cut_in, process))
        for _ in range(10):
            feeding.act(random.randrange(2))
        feeding.breaks = False  # nothing fails from now on, whatever cuts in
        turns.broken.clear()
        while feeding.left:
            feeding.feed(random.randrange(2))
        feeding.is_over = True
        run = turns.of[0].run
        run.resume()
        naive = NaiveWorkflow(Workflow(programs, sources="a"))
        for number in range(1, feeding.fed + 1):
            naive.feed("a", run.rows(f"a#{number}"))
        with pytest.raises(NotRecorded):
            run.rows(f"a#{feeding.fed + 1}")
        assert [m for m in turns.of[0].written() if f"{name}." in m] == naive.marks(), SEED
        taken = [run.rows(f"a#{number}")[0]["of"] for number in range(1, feeding.fed + 1)]
        assert sorted(taken) == sorted(f"{name}.{n}.l" for n in range(feeding.fed)), SEED
