"""Functions that do nothing when they are called are refused, wherever one is handed over."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table

import activedb as adb
from activedb.errors import CompensationFailed, DefinitionError, RuleFailed
from activedb.functions import checked_function, checked_result
from activedb.scheduling import Access, Program, ProgramRun, Results, SerialOrder, SharedTable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


async def async_function(*args: Any, **kwargs: Any) -> bool:
    return True


def generator_function(*args: Any, **kwargs: Any) -> Iterator[int]:
    yield 1


async def async_generator_function(*args: Any, **kwargs: Any) -> AsyncIterator[int]:
    yield 1


class Callables:
    """Objects and methods that can be called."""

    async def __call__(self, *args: Any, **kwargs: Any) -> bool:
        return True

    async def method(self, *args: Any, **kwargs: Any) -> bool:
        return True

    @staticmethod
    async def static(*args: Any, **kwargs: Any) -> bool:
        return True

    @classmethod
    def of_class(cls, *args: Any, **kwargs: Any) -> Iterator[int]:
        yield 1


LAZY: dict[str, Callable[..., Any]] = {
    "async def": async_function,
    "generator": generator_function,
    "async generator": async_generator_function,
    "partial": functools.partial(async_function, 1),
    "partial of partial": functools.partial(functools.partial(generator_function)),
    "object": Callables(),
    "method": Callables().method,
    "static method": Callables.static,
    "class method": Callables.of_class,
    "cache": functools.lru_cache(async_function),
    "partial of object": functools.partial(Callables()),
}


@functools.wraps(async_function)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return async_function(*args, **kwargs)


LAZY_WHEN_CALLED: dict[str, Callable[..., Any]] = {
    "lambda of a coroutine": lambda *args: async_function(*args),
    "lambda of a generator": lambda *args: (n for n in range(3)),
    "lambda of an async generator": lambda *args: async_generator_function(),
    "decorated": wrapped,
}


@functools.wraps(async_function)
def runs_it(*args: Any, **kwargs: Any) -> Any:
    return asyncio.run(async_function(*args, **kwargs))


@pytest.fixture(autouse=True)
def no_coroutine_is_left() -> Iterator[None]:
    """Fail on a warning that a coroutine was never awaited: what is refused is closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect(1)  # what the test has made; a full collection takes a second late in a run


@pytest.fixture
def db() -> Iterator[adb.Database]:
    with adb.connect("memory://") as db:
        Table("things", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()
        yield db


def things(db: adb.Database) -> Table:
    return db.metadata.tables["things"]


def plain(*args: Any, **kwargs: Any) -> Any:
    return None


SHARED = SharedTable("accounts")
NUMBERS = itertools.count()


STREAM = adb.StreamDeclaration("s", types={"E": ()}, type="t", timestamp="ts")


def program() -> Program:
    return Program("p", [SHARED])


def workflow(db: adb.Database) -> Any:
    return db.workflow(f"w{next(NUMBERS)}", sources="s")


# Every public place that takes a function: its name, and a call that hands one over.
def stream(db: adb.Database) -> adb.Stream:
    if "staged" not in db.streams:
        db.stream("staged", types={"E": ()}, type="t", timestamp="ts")
    return db.streams["staged"]


PLACES: dict[str, Callable[[adb.Database, Any], object]] = {
    "rule action": lambda db, f: db.rule(on=adb.event("E"), name="r")(f),
    "rule when": lambda db, f: db.rule(on=adb.event("E"), when=f, name="r")(plain),
    "rule on_uncertain": lambda db, f: db.rule(on=adb.event("E"), on_uncertain=f, name="r")(plain),
    "rules.create action": lambda db, f: db.rules.create(f, on=adb.event("E"), name="r"),
    "rules.create when": lambda db, f: db.rules.create(plain, on=adb.event("E"), when=f, name="r"),
    "rules.change action": lambda db, f: (
        db.rules.create(plain, on=adb.event("E"), name="r"),
        db.rules.change("r", action=f),
    ),
    "rules.change when": lambda db, f: (
        db.rules.create(plain, on=adb.event("E"), name="r"),
        db.rules.change("r", when=f),
    ),
    "event where": lambda db, f: adb.event("E", where=f),
    "inserted where": lambda db, f: adb.inserted(things(db), where=f),
    "updated where": lambda db, f: adb.updated(things(db), where=f),
    "deleted where": lambda db, f: adb.deleted(things(db), where=f),
    "called where": lambda db, f: adb.called(plain, where=f),
    "event reading": lambda db, f: adb.event("E", reading=f),
    "pattern where": lambda db, f: adb.seq(adb.event("A"), adb.event("B")).where(f),
    "pattern reading": lambda db, f: adb.seq(adb.event("A"), adb.event("B")).reading(f),
    "detect on_uncertain": lambda db, f: adb.detect(adb.event("A"), [], on_uncertain=f),
    "run": lambda db, f: db.run(f),
    "run with a limit": lambda db, f: db.with_timeout(60).run(f),
    "spawn": lambda db, f: db.run(lambda t: t.spawn(f).result()),
    "spawn with a limit": lambda db, f: db.run(lambda t: t.with_timeout(60).spawn(f).result()),
    "program access": lambda db, f: program().on("E")(f),
    "program transaction": lambda db, f: program().transaction("E", reads=plain, writes=plain)(f),
    "program rule": lambda db, f: program().rule(adb.event("E"), name="r")(f),
    "program rule when": lambda db, f: program().rule(adb.event("E"), when=f)(plain),
    "program pre_process": lambda db, f: program().pre_process(f),
    "read": lambda db, f: Access().read(SHARED[1], function=f),
    "write": lambda db, f: Access().write(SHARED[1], f),
    "workflow compensation": lambda db, f: (
        workflow(db).program(reads="s", name="p")(lambda t, batch: None).compensation(f)
    ),
    "on_silent": lambda db, f: db.stream("s", types={"E": ()}, membership="atomic", on_silent=f),
    "work on_progress": lambda db, f: db.run_worker(on_progress=f),
    "follow on_progress": lambda db, f: db.changes.follow(on_progress=f),
    "retry_letters on_progress": lambda db, f: db.dead_letters.retry_all(on_progress=f),
    "take_staged on_batch": lambda db, f: stream(db).take_staged(on_batch=f),
}
# What these return is gone through at once, so they may be generators; but no coroutines.
MAY_YIELD: dict[str, Callable[[adb.Database, Any], object]] = {
    "program post_process": lambda db, f: program().post_process(f),
    "program reads": lambda db, f: program().transaction("E", reads=f)(plain),
    "program writes": lambda db, f: program().transaction("E", writes=f)(plain),
    "program rule reads": lambda db, f: program().rule(adb.event("E"), reads=f)(plain),
    "workflow program": lambda db, f: workflow(db).program(reads="s", name="p")(f),
}


@pytest.mark.parametrize("place", PLACES)
def test_function_that_does_nothing_when_called_is_refused(db: adb.Database, place: str) -> None:
    for kind, function in LAZY.items():
        with pytest.raises(DefinitionError, match="calling it would do nothing"):
            PLACES[place](db, function)
        for entry in list(db.rules):
            assert entry.rule.action is plain, kind
            db.rules.delete(entry.name)


@pytest.mark.parametrize("place", MAY_YIELD)
def test_coroutine_function_is_refused_where_a_generator_may_be(
    db: adb.Database, place: str
) -> None:
    for kind in ("async def", "async generator", "object"):
        with pytest.raises(DefinitionError, match="calling it would do nothing"):
            MAY_YIELD[place](db, LAZY[kind])


def test_function_that_emits_decorates_is_refused(db: adb.Database) -> None:
    for function in (async_function, generator_function, async_generator_function):
        with pytest.raises(DefinitionError, match="calling it would do nothing"):
            db.emits(function)


@pytest.mark.parametrize("kind", ["async_function", "generator_function"])
@pytest.mark.parametrize("part", ["do", "when"])
def test_function_that_data_names_is_refused(db: adb.Database, kind: str, part: str) -> None:
    rule = {"name": "r", "on": {"event": "E"}, "do": f"{__name__}:plain"}
    rule[part] = f"{__name__}:{kind}"
    with pytest.raises(DefinitionError, match="calling it would do nothing"):
        db.rules.load([rule], modules=[sys.modules[__name__]])


@pytest.mark.parametrize("kind", LAZY_WHEN_CALLED)
def test_function_that_returns_what_is_still_to_be_run_is_refused_then(
    db: adb.Database, kind: str
) -> None:
    function = LAZY_WHEN_CALLED[kind]
    calls: list[Callable[[], object]] = [
        lambda: db.run(function),
        lambda: db.with_timeout(60).run(function),
        lambda: db.run(lambda t: t.spawn(function).result()),
        lambda: adb.detect(adb.event("E", where=function), [adb.Occurrence("E", 1.0, {})]),
        lambda: adb.detect(
            adb.seq(adb.event("A"), adb.event("B")).where(function),
            [adb.Occurrence("A", 1.0, {}), adb.Occurrence("B", 2.0, {})],
        ),
    ]
    for call in calls:
        with pytest.raises(DefinitionError, match="has done nothing"):
            call()


@pytest.mark.parametrize("part", ["action", "when"])
@pytest.mark.parametrize("kind", LAZY_WHEN_CALLED)
def test_rule_whose_function_turns_out_to_do_nothing_fails(
    db: adb.Database, kind: str, part: str
) -> None:
    action = LAZY_WHEN_CALLED[kind] if part == "action" else plain
    when = LAZY_WHEN_CALLED[kind] if part == "when" else None
    db.rule(on=adb.event("E"), when=when, name="r")(action)
    with pytest.raises(RuleFailed, match="has done nothing") as failed:
        db.signal("E")
    assert isinstance(failed.value.__cause__, DefinitionError)


@pytest.mark.parametrize("kind", LAZY_WHEN_CALLED)
def test_reading_that_turns_out_to_say_nothing_fails_what_it_was_to_decide(
    db: adb.Database, kind: str
) -> None:
    db.rule(on=adb.event("E", reading=LAZY_WHEN_CALLED[kind]), name="r")(plain)
    with pytest.raises(DefinitionError, match="has done nothing"):
        db.signal("E")


@pytest.mark.parametrize("kind", LAZY_WHEN_CALLED)
def test_compensating_action_that_turns_out_to_do_nothing_fails(
    db: adb.Database, kind: str
) -> None:
    defined = workflow(db)
    defined.program(reads="s", name="p")(lambda t, batch: None).compensation(LAZY_WHEN_CALLED[kind])
    run = db.workflows.open(defined.name)
    run.feed("s", [{"v": 1}])
    with pytest.raises(CompensationFailed, match="has done nothing"):
        run.compensate("s#1")


def results_of(p: Program) -> Results:
    """Run a program on one event."""
    run = ProgramRun(p, SerialOrder())
    run.feed([adb.Occurrence("E", 1.0, {})])
    return run.finish()


@pytest.mark.parametrize("kind", LAZY_WHEN_CALLED)
def test_s_transaction_whose_function_turns_out_to_do_nothing_aborts(kind: str) -> None:
    function = LAZY_WHEN_CALLED[kind]
    reading, short = program(), program()
    reading.on("E")(lambda e, access: access.read(SHARED[1], function=function))
    short.transaction("E", reads=lambda e: [SHARED[1]])(function)
    for each in (reading, short):
        (done,) = results_of(each).transactions
        assert done.outcome is not None
        assert isinstance(done.outcome.error, DefinitionError)


def test_output_that_is_a_coroutine_fails() -> None:
    p = program()
    p.on("E")(lambda e, access: access.read(SHARED[1]))
    p.post_process(LAZY_WHEN_CALLED["lambda of a coroutine"])
    (failed,) = results_of(p).failed_outputs
    assert isinstance(failed.error, DefinitionError)


def test_plain_functions_around_coroutines_that_run_them_are_taken(db: adb.Database) -> None:
    assert db.run(runs_it) is True
    assert db.run(functools.partial(runs_it)) is True
    assert checked_function(Callables, "a class") is Callables
    assert checked_function(len, "a built-in") is len
    for value in (None, True, 0, "text", [1], iter([1]), object()):
        assert checked_result(value, "it") is value


def test_run_that_is_given_no_function_says_so(db: adb.Database) -> None:
    with pytest.raises(DefinitionError, match=r"run\(\) takes a function"):
        db.run(3)  # type: ignore[arg-type]
