"""Threads are bounded, end and never get stuck; one goes on while another waits outside."""

from __future__ import annotations

import itertools
import operator
import threading
from typing import Any

import pytest

from activedb.scheduling import At, SharedState, SharedTable, STransaction
from activedb.scheduling.locking import LWM, TurnGate
from tests.patience import PATIENCE_S
from tests.scheduling.locking.runs import KINDS, a, b, made, run, scheduler
from tests.scheduling.locking.ward import at

# -- nothing hangs -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_more_s_transactions_than_threads_end_in_every_order_of_arrival(
    kind: str, threads: int
) -> None:
    for arrival in itertools.permutations(range(1, 6)):
        transactions = [
            made(at(n), lambda t: t.write(a[1], operator.add, 1), lambda t: t.read(b.range()))
            if n % 2
            else made(at(n), lambda t: t.write(b[1], sum, reads=(a.range(),)))
            for n in arrival
        ]
        state = run(scheduler(kind, threads), transactions)
        assert all(t.outcome is not None and t.outcome.committed for t in transactions)
        assert state.of(a).newest() == {1: 3}


@pytest.mark.parametrize("kind", KINDS)
def test_threads_are_no_more_than_told_and_end_with_the_run(kind: str) -> None:
    before = set(threading.enumerate())
    used: set[str] = set()

    def note(value: int) -> int:
        used.add(threading.current_thread().name)
        return value + 1

    def counts(n: int) -> STransaction:
        return made(at(n), lambda t: t.write(a[n % 5], note))

    run(scheduler(kind, 3), [counts(n) for n in range(60)])
    assert 1 <= len(used) <= 3
    assert set(threading.enumerate()) <= before


def test_one_thread_is_the_caller() -> None:
    used: set[threading.Thread] = set()

    def note(value: int) -> int:
        used.add(threading.current_thread())
        return value

    for kind in KINDS:
        run(scheduler(kind, 1), [made(at(n), lambda t: t.write(a[1], note)) for n in range(3)])
    assert used == {threading.current_thread()}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_added_is_nothing_run(kind: str) -> None:
    state = run(scheduler(kind, 2), [])
    assert state.of(a).all() == {}


@pytest.mark.parametrize("kind", KINDS)
def test_scheduler_runs_what_is_added_after_a_run(kind: str) -> None:
    chosen, state = scheduler(kind, 2), SharedState([a, b])
    for n in range(1, 9):
        chosen.add(made(at(n), lambda t: t.write(a[1], operator.add, 1)))
        chosen.run(state)
    assert state.of(a).newest() == {1: 8}


# -- waiting for what is outside -----------------------------------------------------------------


def test_lwm_lets_a_later_write_go_on_while_an_older_reader_waits_outside() -> None:
    """The reader's condition has read, and waits for what happens only when the writer has run."""
    for kind in ("lwm table", "lwm row"):
        written = threading.Event()

        def ask(value: int, written: threading.Event = written) -> tuple[int, bool]:
            return value, written.wait(PATIENCE_S)

        def tell(value: int, written: threading.Event = written) -> int:
            written.set()
            return value + 1

        reader = made(at(2), lambda t: t.read(a[1], function=ask))
        run(scheduler(kind, 2), [reader, made(at(10), lambda t: t.write(a[1], tell))])
        assert reader.outcome is not None
        assert reader.outcome.results == ((0, True),)


def test_lwm_lets_an_older_read_go_on_while_a_later_writer_waits_outside() -> None:
    for kind in ("lwm table", "lwm row"):
        read = threading.Event()

        def wait(value: int, read: threading.Event = read) -> int:
            return value + read.wait(PATIENCE_S)

        def tell(value: int, read: threading.Event = read) -> int:
            read.set()
            return value

        reader = made(at(2), lambda t: t.read(a[1], function=tell))
        state = run(scheduler(kind, 2), [made(at(10), lambda t: t.write(a[1], wait)), reader])
        assert state.of(a).newest() == {1: 1}


def ends(kind: str, *transactions: STransaction) -> list[At]:
    """The order in which s-transactions make their last access, the youngest being preferred."""
    gate = TurnGate(lambda standing: standing[-1])
    run(scheduler(kind, len(transactions), gate), transactions)
    last = {place: number for number, (place, _) in enumerate(gate.trace)}
    return sorted(last, key=lambda place: last[place])


def reads_twice(n: int, table: SharedTable, key: int) -> STransaction:
    return made(at(n), lambda t: t.read(table[key]), lambda t: t.read(table[key]))


def writes(n: int, table: SharedTable, key: int) -> STransaction:
    return made(at(n), lambda t: t.write(table[key], operator.add, 1))


def test_s2pl_keeps_a_later_writer_waiting_until_the_older_reader_has_ended() -> None:
    for granularity in ("table", "row"):
        assert ends(f"s2pl {granularity}", reads_twice(2, a, 1), writes(10, a, 1)) == [
            at(2),
            at(10),
        ]
        assert ends(f"lwm {granularity}", reads_twice(2, a, 1), writes(10, a, 1)) == [
            at(10),
            at(2),
        ]


def test_unrelated_accesses_wait_for_nobody() -> None:
    for kind in KINDS:
        assert ends(kind, writes(2, a, 1), reads_twice(10, b, 1)) == [at(10), at(2)]


def test_other_rows_of_a_table_wait_only_if_tables_are_locked() -> None:
    for protocol in ("s2pl", "lwm"):
        assert ends(f"{protocol} row", writes(2, a, 1), reads_twice(10, a, 2)) == [at(10), at(2)]
        assert ends(f"{protocol} table", writes(2, a, 1), reads_twice(10, a, 2)) == [
            at(2),
            at(10),
        ]


def test_lwm_waits_for_the_row_of_a_computed_key_and_not_for_the_table() -> None:
    def follows(n: int) -> STransaction:
        return made(at(n), lambda t: t.read(a.computed(int, reads=(b[1],))))

    assert ends("lwm row", writes(2, a, 1), follows(10)) == [at(10), at(2)]
    assert ends("lwm row", writes(2, a, 0), follows(10)) == [at(2), at(10)]
    assert ends("s2pl row", writes(2, a, 1), follows(10)) == [at(2), at(10)]


def test_writes_take_effect_in_the_order_of_time() -> None:
    """Definition 6, (2): also if the younger writer has nothing to read and is preferred."""

    def sets(n: int) -> STransaction:
        return made(at(n), lambda t: t.write(a[1], lambda: n, reads=()))

    for kind in KINDS:
        assert ends(kind, sets(2), sets(10), sets(15)) == [at(2), at(10), at(15)]


def test_lwm_lets_several_writers_of_a_table_wait_outside_at_once() -> None:
    """The writers may wait outside until they read what older ones write."""
    asked = threading.Barrier(3)

    def ask(*values: Any) -> int:
        asked.wait(PATIENCE_S)
        return 1

    def asks_first(n: int) -> STransaction:
        return made(
            at(n),
            lambda t: t.read(b[1], function=ask),
            lambda t: t.write(a[1], operator.add, 1),
        )

    state = run(LWM("table", threads=3), [asks_first(n) for n in (1, 2, 3)])
    assert state.of(a).newest() == {1: 3}


class Noting(TurnGate):
    """Gate that notes which s-transaction is granted a lock that it has waited for."""

    def __init__(self, notes: list[tuple[str, At]]):
        super().__init__(lambda standing: standing[-1])
        self.notes = notes

    def unblocked(self, at: At) -> None:
        self.notes.append(("granted", at))
        super().unblocked(at)


class NotingState(SharedState):
    """SharedState that notes which s-transactions write."""

    def __init__(self, notes: list[tuple[str, At]]):
        super().__init__([a, b])
        self.notes = notes

    def write(self, writes: Any, at: At) -> None:
        if writes:
            self.notes.append(("written", at))
        super().write(writes, at)


@pytest.mark.parametrize("kind", KINDS)
def test_versions_are_there_before_who_waits_for_them_is_woken(kind: str) -> None:
    notes: list[tuple[str, At]] = []
    chosen = scheduler(kind, 3, Noting(notes))
    for transaction in (writes(2, a, 1), writes(5, a, 1), reads_twice(10, a, 1)):
        chosen.add(transaction)
    chosen.run(NotingState(notes))
    first, second = (notes.index(("written", at(n))) for n in (2, 5))
    granted = {at(n): notes.index(("granted", at(n))) for n in (5, 10)}
    assert first < granted[at(5)] < second < granted[at(10)]
