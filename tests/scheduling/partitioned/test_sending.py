"""Values that go to other processes and come back, and values that cannot."""

from __future__ import annotations

import copy
import operator
import pickle
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest

import activedb as adb
from activedb.errors import DefinitionError
from activedb.events import Occurrence
from activedb.scheduling import (
    REMOVED,
    TPG,
    Abort,
    Access,
    At,
    Outcome,
    Partitioned,
    Program,
    ProgramRun,
    Reaction,
    Results,
    Scheduler,
    SerialOrder,
    SharedTable,
    View,
)
from tests.scheduling.events import event
from tests.scheduling.partitioned.here import TasksHere

SECOND_US = 1_000_000


class Bank:
    """A program of accounts; each account is an s-transaction's own if the events say so."""

    def __init__(self, scheduler: Scheduler | None = None):
        self.accounts = SharedTable("accounts", key=int, initial=0)
        self.program = Program("bank", [self.accounts])
        self.runner = TasksHere(2)
        self.scheduler = Partitioned(scheduler or SerialOrder(), self.runner)
        self.run = ProgramRun(self.program, self.scheduler)

    def feed(self, *given: tuple[str, int, Any]) -> Results:
        """Feed events of a type, of an account, with what else it is about."""
        first_us = self.run.punctuation_us or 0
        events = [
            event(name, us, k=k, what=what)
            for us, (name, k, what) in enumerate(given, start=first_us)
        ]
        return self.run.feed(events, first_us + SECOND_US)

    def newest(self) -> dict[Any, Any]:
        return self.run.state.of(self.accounts).newest()

    def on(self, function: Any) -> None:
        """Let events F write what a function makes of the account and of `what`."""
        accounts = self.accounts  # a function is sent with all that it names

        @self.program.on("F")
        def write(e: Mapping[str, Any], access: Access) -> None:
            access.write(accounts[e["k"]], function, e["what"])


class NeedsTwo(Exception):
    """Error that can be pickled, but not unpickled."""

    def __init__(self, one: str, other: str):
        super().__init__(f"{one} and {other}")


class HoldsLock(Exception):
    """Error that cannot be pickled."""

    def __init__(self, text: str):
        super().__init__(text)
        self.lock = threading.Lock()


def outcomes(results: Results) -> list[Outcome]:
    return [t.outcome for t in results.transactions if t.outcome is not None]


def raising(error: BaseException) -> Any:
    def function(has: int, what: Any) -> int:
        if what:
            raise error
        return 1

    return function


# -- errors of functions -------------------------------------------------------------------------


def test_error_of_a_function_comes_back_with_class_text_note_and_cause() -> None:
    bank = Bank()

    def function(has: int, what: str) -> int:
        try:
            return {"a": 1}[what]
        except KeyError as error:
            raise ValueError(f"no {what}") from error

    bank.on(function)
    aborted, committed = outcomes(bank.feed(("F", 1, "b"), ("F", 2, "a")))
    assert bank.scheduler.sizes == (1, 1)
    assert committed.committed
    assert aborted.reason == "ValueError: no b"
    assert type(aborted.error) is ValueError
    assert "raised in function" in aborted.error.__notes__[0]
    assert repr(aborted.error.__cause__) == "KeyError('b')"
    assert bank.newest() == {2: 1}


@pytest.mark.parametrize("error", [NeedsTwo("this", "that"), HoldsLock("it is held")])
def test_error_that_cannot_be_pickled_comes_back_by_name_and_text(error: Exception) -> None:
    bank = Bank()
    # Not the error itself: it could not go there.
    kind, text = type(error), str(error)
    bank.on(lambda has, what: _raise(kind, text) if what else 1)
    aborted, _ = outcomes(bank.feed(("F", 1, True), ("F", 2, False)))
    assert bank.scheduler.sizes == (1, 1)
    assert aborted.reason == f"{kind.__name__}: {text}"
    assert type(aborted.error).__name__ == kind.__name__
    assert str(aborted.error) == text


def _raise(kind: type[Exception], text: str) -> None:
    raise kind(*text.split(" and ")) if kind is NeedsTwo else kind(text)


def test_abort_is_an_abort() -> None:
    bank = Bank()
    bank.on(raising(Abort("not today")))
    aborted, _ = outcomes(bank.feed(("F", 1, True), ("F", 2, False)))
    assert aborted.reason == "not today"
    assert type(aborted.error) is Abort


def test_what_is_no_exception_comes_out_and_nothing_has_taken_effect() -> None:
    bank = Bank()
    bank.on(raising(SystemExit(3)))
    with pytest.raises(SystemExit) as raised:
        bank.feed(("F", 1, True), ("F", 2, False))
    assert raised.value.code == 3
    assert bank.newest() == {}
    bank.feed(("F", 1, False), ("F", 2, False))
    assert bank.newest() == {1: 1, 2: 1}


def test_module_that_only_this_process_has_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bank = Bank()

    def function(has: int, what: Any) -> int:
        import only_here  # type: ignore[import-not-found]

        return int(only_here.number)

    bank.on(function)
    there = bank.runner.run

    def run(payloads: Any) -> list[bytes]:
        answers = there(payloads)  # where it cannot be imported
        monkeypatch.setitem(sys.modules, "only_here", type("", (), {"number": 5}))
        return answers

    bank.runner.run = run  # type: ignore[method-assign]
    assert [o.reason for o in outcomes(bank.feed(("F", 1, 0), ("F", 2, 0)))] == [None, None]
    assert bank.newest() == {1: 5, 2: 5}


def test_state_access_that_fails_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank()
    accounts = bank.accounts

    @bank.program.on("F")
    def write(e: Mapping[str, Any], access: Access) -> None:
        from only_here import plus

        access.write(accounts[e["k"]], plus, 1)

    monkeypatch.setitem(sys.modules, "only_here", type("", (), {"plus": operator.add}))
    there = bank.runner.run

    def run(payloads: Any) -> list[bytes]:
        with monkeypatch.context() as elsewhere:
            elsewhere.delitem(sys.modules, "only_here")
            return there(payloads)

    bank.runner.run = run  # type: ignore[method-assign]
    with pytest.raises(DefinitionError, match=r"program bank, .* type F: .*No module named"):
        bank.feed(("F", 1, 0), ("F", 2, 0))
    assert bank.newest() == {}


# -- what cannot be sent -------------------------------------------------------------------------


def test_state_access_that_cannot_be_pickled_is_refused_by_name() -> None:
    bank, lock = Bank(), threading.Lock()
    bank.on(lambda has, what: lock.locked() + 1)
    with pytest.raises(DefinitionError, match=r"program bank: the state access for F .*lock"):
        bank.feed(("F", 1, 0), ("F", 2, 0))
    assert bank.newest() == {}


def test_parameter_that_cannot_be_pickled_is_refused_by_name() -> None:
    bank = Bank()
    bank.on(lambda has, what: 1)
    with pytest.raises(
        DefinitionError, match=r"program bank, s-transactions of type F: para.*lock"
    ):
        bank.feed(("F", 1, 0), ("F", 2, threading.Lock()))


def test_value_that_cannot_be_pickled_is_refused_by_its_table() -> None:
    bank = Bank()
    bank.on(lambda has, what: 1)
    bank.run.state.of(bank.accounts).write(2, At(-1, "", 0), threading.Lock())
    with pytest.raises(DefinitionError, match=r"table accounts: a key or value .*lock"):
        bank.feed(("F", 1, 0), ("F", 2, 0))


def test_result_that_cannot_be_pickled_is_refused_by_name() -> None:
    bank = Bank()
    accounts = bank.accounts

    @bank.program.on("LOOK")
    def look(e: Mapping[str, Any], access: Access) -> None:
        access.read(accounts[e["k"]], function=lambda has: threading.Lock())

    with pytest.raises(DefinitionError, match=r"type LOOK: its results cannot be sent .*lock"):
        bank.feed(("LOOK", 1, 0), ("LOOK", 2, 0))


def test_scheduler_that_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()
    scheduler = TPG(group_of=lambda t: lock.locked())
    with pytest.raises(DefinitionError, match=r"scheduler tpg cannot be sent .*by its name"):
        Partitioned(scheduler, TasksHere())


# -- what is the same there ----------------------------------------------------------------------


def test_groups_of_the_scheduler_see_types_and_parameters() -> None:
    bank = Bank(TPG(group_of=lambda t: (t.type, t.params["what"], t.params["k"])))
    bank.on(operator.add)
    bank.feed(("F", 1, 3), ("F", 2, 4), ("F", 1, 5))
    assert bank.scheduler.sizes == (2, 1)
    assert bank.newest() == {1: 8, 2: 4}


def test_parameters_cannot_be_changed_there_either() -> None:
    bank = Bank()
    accounts = bank.accounts

    @bank.program.transaction("F", writes=lambda e: [accounts[e["k"]]])
    def change(t: View, e: Any) -> None:
        e["k"] = 3

    reasons = [o.reason for o in outcomes(bank.feed(("F", 1, 0), ("F", 2, 0)))]
    assert reasons == ["TypeError: 'mappingproxy' object does not support item assignment"] * 2


def test_removed_keys_have_the_initial_value_there() -> None:
    bank = Bank()
    bank.on(lambda has, what: REMOVED if what is None else has + what)
    bank.feed(("F", 1, 3), ("F", 2, 3))
    bank.feed(("F", 1, None), ("F", 2, None))
    assert bank.newest() == {}
    bank.feed(("F", 1, 4), ("F", 2, 5))
    assert bank.newest() == {1: 4, 2: 5}


def test_program_with_new_types_is_sent_again() -> None:
    bank = Bank()
    bank.on(operator.add)
    bank.feed(("F", 1, 3), ("F", 2, 4))
    accounts = bank.accounts

    @bank.program.on("LESS")
    def less(e: Mapping[str, Any], access: Access) -> None:
        access.write(accounts[e["k"]], operator.sub, e["what"])

    bank.feed(("LESS", 1, 1), ("LESS", 2, 1))
    assert bank.newest() == {1: 2, 2: 3}


def test_rules_react_in_tasks() -> None:
    status = SharedTable("status", key=int, initial="safe")
    ward = Program("ward", [status])
    lock = threading.Lock()  # what is not needed to react is not sent
    entered = adb.seq(adb.event("EXIT"), ~adb.event("SANITIZE"), adb.event("ENTER"))
    pattern = entered.same("worker").where(lambda o: not lock.locked()).within(45)

    def row(o: Occurrence) -> list[Any]:
        return [status[o.parts["ENTER"].params["worker"]]]

    @ward.rule(pattern, writes=row, when=lambda t, o: t.read(*row(o)) == "safe")
    def warn(t: View, o: Occurrence) -> str:
        t.write(row(o)[0], "warning")
        return str(o.parts["EXIT"].name)

    scheduler = Partitioned(SerialOrder(), TasksHere(2))
    run = ProgramRun(ward, scheduler)
    events = [
        event(name, us + worker, worker=worker)
        for us, name in enumerate(("EXIT", "ENTER", "EXIT", "ENTER"))
        for worker in (10, 20, 30)
    ]
    results = run.feed(events, SECOND_US)
    assert scheduler.sizes == (4, 2)
    assert run.state.of(status).newest() == {10: "warning", 20: "warning", 30: "warning"}
    reactions = [r for o in outcomes(results) for each in o.results for r in each]
    assert all(isinstance(r, Reaction) for r in reactions)
    # EXIT and the second ENTER are a match, too: of who is not safe any more.
    assert sorted((r.fired, r.result or "") for r in reactions) == (
        [(False, "")] * 6 + [(True, "EXIT")] * 3
    )
    assert {r.occurrence.params["worker"] for r in reactions} == {10, 20, 30}


def test_shared_table_keeps_its_identity() -> None:
    table = SharedTable("table", key=int, initial=[], history=7.5)
    data = pickle.dumps([table, table[3].window(2), REMOVED])
    again, ref, removed = pickle.loads(data)
    assert again is table
    assert ref == table[3].window(2)
    assert removed is REMOVED
    assert copy.deepcopy(table) is table


def test_occurrences_are_the_same_when_pickled() -> None:
    parts: dict[str, Any] = {"a": event("A", 1, k=1), "b": (event("B", 2), event("B", 3))}
    for o in (
        event("A", 5, id="x", k=1),
        Occurrence("match", 3, parts=parts),
        Occurrence("match", 3, {"n": 1}, parts=parts),
        Occurrence("stock", 3, old={"id": 1}, new={"id": 2}),
        Occurrence("stock", 3, old={"id": 1}),
        Occurrence("clock", 3, kind="clock"),
        Occurrence("late", 3, {"n": 1}, kind="late"),
    ):
        again = pickle.loads(pickle.dumps(o))
        assert _fields(again) == _fields(o)


def _fields(o: Occurrence) -> list[Any]:
    found = [getattr(o, name) for name in Occurrence.__slots__ if name != "parts"]
    return [*map(repr, found), [_fields(part) for part in o.constituents], list(o.parts)]
