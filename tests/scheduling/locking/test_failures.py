"""Failures of a function, a gate, an s-transaction end the run; the next one is whole."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from activedb.errors import AccessError, ConfigurationError
from activedb.scheduling import (
    Abort,
    At,
    Outcome,
    Ref,
    SerialOrder,
    SharedState,
    SharedTable,
    STransaction,
    View,
)
from activedb.scheduling.locking import LWM, PushBased, TurnGate
from activedb.scheduling.locking._gate import Stopped
from tests.patience import PATIENCE_S
from tests.scheduling.locking.runs import KINDS, a, b, made, outcome_of, run, scheduler
from tests.scheduling.locking.ward import at

# -- functions -----------------------------------------------------------------------------------


class Interrupted(BaseException):
    """Interruption like Ctrl-C, which is no error of a function."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_no_exception_ends_the_run_and_wakes_all_who_wait(kind: str, threads: int) -> None:
    before = set(threading.enumerate())

    def fail(value: int) -> int:
        raise Interrupted

    transactions = [made(at(1), lambda t: t.write(a[1], fail))] + [
        made(at(n), lambda t: t.write(a[1], operator.add, 1)) for n in range(2, 8)
    ]
    with pytest.raises(Interrupted):
        run(scheduler(kind, threads), transactions)
    assert set(threading.enumerate()) <= before
    assert all(t.outcome is None for t in transactions)


@pytest.mark.parametrize("kind", KINDS)
def test_later_ones_never_see_what_an_aborted_one_would_have_written(kind: str) -> None:
    def give_up() -> None:
        raise Abort("no more")

    for threads in (1, 2, 4):
        aborted = made(
            at(2),
            lambda t: t.write(a[1], operator.add, 100),
            lambda t: t.read(b[1], function=lambda value: give_up()),
        )
        reader = made(at(3), lambda t: t.read(a[1]))
        state = run(
            scheduler(kind, threads),
            [reader, aborted, made(at(1), lambda t: t.write(a[1], operator.add, 1))],
        )
        assert aborted.outcome is not None
        assert aborted.outcome.reason == "no more"
        assert reader.outcome is not None
        assert reader.outcome.results == (1,)
        assert state.of(a).all() == {1: ((at(1), 1),)}


def counts(n: int) -> STransaction:
    """Add one to a row that all of them write."""
    return made(at(n), lambda t: t.write(a[1], operator.add, 1))


def fails(n: int) -> STransaction:
    def fail(value: int) -> int:
        raise Interrupted

    return made(at(n), lambda t: t.write(a[1], fail))


def reads_stubbornly(n: int, *refs: Ref) -> STransaction:
    """Goes on whatever a read raises, and writes how many reads have failed."""

    def stubborn(t: View, e: Mapping[str, Any]) -> None:
        failed = 0
        for ref in refs:
            try:
                t.read(ref)
            except BaseException:
                failed += 1
        t.write(b[n], failed)

    return made(at(n), lambda t: t.body(stubborn, {}, refs, (b[n],)))


class Open:
    """Gate that holds no thread."""

    def start(self, threads: int) -> None: ...

    def access(self, at: At, what: str) -> None: ...

    def blocked(self, at: At) -> None: ...

    def unblocked(self, at: At) -> None: ...

    def leave(self) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("kind", KINDS)
def test_function_that_goes_on_after_the_run_has_failed_writes_nothing(kind: str) -> None:
    """The function waits to read what an older one writes, and the older one fails."""
    waits = threading.Event()

    class Telling(Open):
        def blocked(self, at: At) -> None:
            waits.set()

    def fail(value: int) -> int:
        waits.wait(PATIENCE_S)
        raise Interrupted

    state = SharedState([a, b])
    transactions = [
        made(at(1), lambda t: t.write(a[1], fail)),
        reads_stubbornly(2, a[1]),
    ]
    raised = outcome_of(lambda: run(scheduler(kind, 2, Telling()), transactions, state))
    assert isinstance(raised, Interrupted)
    assert waits.is_set()
    assert state.of(b).all() == {}


# -- gates ---------------------------------------------------------------------------------------


class Broken(Exception):
    """An error of a gate."""


def raises_broken(*_: object) -> Any:
    raise Broken


def raises_interrupted(*_: object) -> Any:
    raise Interrupted


CHOICES: dict[str, tuple[Callable[[Sequence[At]], At], type[BaseException]]] = {
    "an exception": (raises_broken, Broken),
    "no exception": (raises_interrupted, Interrupted),
    "none of those standing": (lambda standing: at(99), ConfigurationError),
}


@pytest.mark.parametrize("kind", [*KINDS, "push-based"])
@pytest.mark.parametrize("choice", CHOICES)
def test_choice_that_fails_ends_the_run(choice: str, kind: str) -> None:
    choose, expected = CHOICES[choice]
    chosen = PushBased(choose) if kind == "push-based" else scheduler(kind, 3, TurnGate(choose))
    transactions = [counts(n) for n in range(5)]
    state = SharedState([a, b])
    assert isinstance(outcome_of(lambda: run(chosen, transactions, state)), expected)
    assert all(t.outcome is None for t in transactions)
    assert state.of(a).all() == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_gate_that_fails_in_a_read_ends_the_run_though_the_function_goes_on(
    kind: str, threads: int
) -> None:
    class Refusing(Open):
        def access(self, at: At, what: str) -> None:
            if what == "read a[2]":
                raise Broken

    state = SharedState([a, b])
    transactions = [reads_stubbornly(n, a[1], a[2]) for n in range(1, 4)]
    chosen = scheduler(kind, threads, Refusing())
    assert isinstance(outcome_of(lambda: run(chosen, transactions, state)), Broken)
    assert all(t.outcome is None for t in transactions)
    assert state.of(b).all() == {}


@pytest.mark.parametrize("kind", KINDS)
def test_request_that_fails_ends_the_run(kind: str) -> None:
    """The second waits for the first, which goes on when the second is about to wait."""
    asks = threading.Event()

    class Refusing(Open):
        def blocked(self, at: At) -> None:
            asks.set()
            raise Broken

    def wait(value: int) -> int:
        return value + asks.wait(PATIENCE_S)

    waited_for = made(at(1), lambda t: t.write(a[1], wait))
    waiting = reads_stubbornly(2, a[1])
    chosen = scheduler(kind, 2, Refusing())
    assert isinstance(outcome_of(lambda: run(chosen, [waited_for, waiting])), Broken)
    assert waiting.outcome is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 3])
def test_stop_that_comes_from_outside_is_raised(kind: str, threads: int) -> None:
    class Stopping(Open):
        def access(self, at: At, what: str) -> None:
            raise Stopped

    transactions = [counts(n) for n in range(1, 4)]
    chosen = scheduler(kind, threads, Stopping())
    assert isinstance(outcome_of(lambda: run(chosen, transactions)), Stopped)


# -- the run after -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("failing", range(1, 5))
def test_turns_begin_anew_after_a_run_that_has_failed(kind: str, failing: int) -> None:
    chosen, state = scheduler(kind, 3, TurnGate(lambda standing: standing[-1])), SharedState([a, b])
    first = [fails(n) if n == failing else counts(n) for n in range(1, 5)]
    assert isinstance(outcome_of(lambda: run(chosen, first, state)), Interrupted)
    before = state.of(a).newest().get(1, 0)
    later = [counts(n) for n in range(11, 15)]
    assert outcome_of(lambda: run(chosen, later, state)) is None
    assert state.of(a).newest() == {1: before + 4}
    assert all(t.outcome is not None and t.outcome.committed for t in later)


@pytest.mark.parametrize("kind", KINDS)
def test_turns_begin_anew_after_a_choice_that_has_failed(kind: str) -> None:
    choices = iter([raises_broken])

    def choose(standing: Sequence[At]) -> At:
        made: At = next(choices, operator.itemgetter(0))(standing)
        return made

    chosen = scheduler(kind, 3, TurnGate(choose))
    assert isinstance(outcome_of(lambda: run(chosen, [counts(n) for n in range(3)])), Broken)
    later, state = [counts(n) for n in range(11, 15)], SharedState([a, b])
    assert outcome_of(lambda: run(chosen, later, state)) is None
    assert state.of(a).newest() == {1: 4}


# -- s-transactions made by hand -----------------------------------------------------------------


class Unhashable:
    """No key of any table."""

    def __hash__(self) -> int:
        raise ValueError("it has no hash")


class Incomparable:
    """A key that cannot be told from another one with the same hash."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ValueError("it cannot be compared")


loose = SharedTable("loose", initial=0)


def outcomes(transactions: Sequence[STransaction]) -> list[tuple[tuple[Any, ...], str | None]]:
    def shown(outcome: Outcome | None) -> tuple[tuple[Any, ...], str | None]:
        assert outcome is not None
        return outcome.results, outcome.reason

    return [shown(t.outcome) for t in transactions]


@pytest.mark.parametrize("kind", KINDS)
def test_s_transaction_that_cannot_be_run_aborts_and_the_others_run(kind: str) -> None:
    def new() -> list[STransaction]:
        return [
            made(at(1), lambda t: t.write(loose[1], operator.add, 1)),
            made(at(2), lambda t: t.write(loose[Unhashable()], operator.add, 1)),
            made(at(3), lambda t: t.read(loose[Unhashable()])),
            made(at(4), lambda t: t.write(loose[[]], operator.add, 1)),
            STransaction(at(5), "X", {}, (object(),)),  # type: ignore[arg-type]
            made(at(6), lambda t: t.write(loose[1], operator.add, 1)),
        ]

    expected, serial = new(), SharedState([loose])
    run(SerialOrder(), expected, serial)
    transactions, state = new(), SharedState([loose])
    raised = outcome_of(lambda: run(scheduler(kind, 3), transactions, state))
    assert raised is None
    reasons = [reason for _, reason in outcomes(transactions)]
    assert [reason is None for reason in reasons] == [True, False, False, False, False, True]
    assert reasons[:4] == [reason for _, reason in outcomes(expected)][:4]
    assert state.of(loose).all() == serial.of(loose).all()


@pytest.mark.parametrize("kind", KINDS)
def test_two_s_transactions_at_one_place_fail_their_run_and_not_the_next(kind: str) -> None:
    chosen, state = scheduler(kind, 3), SharedState([a, b])
    chosen.add(counts(1))
    chosen.add(counts(1))
    with pytest.raises(AccessError, match="has its locks already"):
        chosen.run(state)
    assert outcome_of(lambda: run(chosen, [counts(2)], state)) is None
    assert state.of(a).all() == {1: ((at(2), 1),)}


def test_key_that_fails_as_it_is_locked_fails_its_run_and_not_the_next() -> None:
    chosen, state = LWM("row", threads=3), SharedState([loose])
    for n in (1, 2):
        chosen.add(made(at(n), lambda t: t.write(loose[Incomparable()], lambda: 1, reads=())))
    with pytest.raises(ValueError, match="cannot be compared"):
        chosen.run(state)
    later = made(at(3), lambda t: t.write(loose[1], operator.add, 1))
    assert outcome_of(lambda: run(chosen, [later], state)) is None
    assert state.of(loose).all() == {1: ((at(3), 1),)}
