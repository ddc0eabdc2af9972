"""Firings that processes share: who holds them, who may take them over, and which are due."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, text

from activedb.store.journals import Journal
from activedb.store.system import pending_firings
from tests.databases import Place, in_thread, until
from tests.patience import PATIENCE_S
from tests.store.flushing import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from activedb.store.session import Store


def firing(name: str, rule: str = "rule", *, keep: bool = False, run: str = "a-run") -> Any:
    """A firing as the engine records it."""
    return {
        "firing": name,
        "run": run,
        "rule": rule,
        "occurrence": {"name": "E"},
        "keep": keep,
        "done": False,
    }


class Process:
    """Process with a store that has a lease, and with a journal."""

    def __init__(self, where: Place, *, is_queued: bool = False):
        self.db = where.open()
        self.store: Store = self.db._store
        self.journal = Journal(self.store, is_queued=is_queued)

    @property
    def number(self) -> int:
        """Number of the lease."""
        return self.store.lease.number

    def record(self, *names: str, held: bool | None = None) -> None:
        """Record firings, one after another, so that each is newer than the one before."""
        for name in names:
            self.journal.record([firing(name)], held=held)

    def rows(self) -> dict[str, Mapping[str, Any]]:
        """All rows of firings by name."""
        with self.store.short() as connection:
            rows = connection.execute(select(pending_firings)).mappings()
            return {row["firing"]: dict(row) for row in rows}

    def backend(self) -> int:
        """The server's process that has the lease."""
        with self.store.short() as connection:
            pid = connection.scalar(
                text(
                    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
                    "AND mode = 'ExclusiveLock' AND (classid::bigint << 32) | objid::bigint = :n"
                ),
                {"n": self.number},
            )
        return 0 if pid is None else int(pid)

    def cut(self) -> None:
        """Cut the connection that has the lease, and wait until the lease is gone."""
        pid = self.backend()
        assert pid
        with self.store.short() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        until(lambda: self.backend() != pid)

    def die(self) -> None:
        """Go, and leave everything as it is."""
        self.db.close()


def names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names of firings in their order."""
    return [row["firing"] for row in rows]


@pytest.fixture
def ours(where: Place) -> Process:
    """A process, in memory and on Postgres."""
    return Process(where)


@pytest.fixture
def server_place(postgres_url: str) -> Any:
    """Somewhere on Postgres, for several processes."""
    from tests.databases import place

    with place(postgres_url) as opened:
        yield opened


# -- held, free and claimed ----------------------------------------------------------------


def test_recorded_firing_is_held_by_its_process(ours: Process) -> None:
    ours.record("f")
    assert ours.rows()["f"]["holder"] == ours.number
    assert ours.journal.claim(10) == []


def test_firing_that_nobody_holds_is_claimed_once(ours: Process) -> None:
    ours.record("a", "b", "c", held=False)
    assert ours.rows()["a"]["holder"] is None
    taken = ours.journal.claim(2)
    assert {row["holder"] for row in taken} == {ours.number}
    assert len(taken) == 2
    assert len(ours.journal.claim(2)) == 1
    assert ours.journal.claim(2) == []
    assert {row["holder"] for row in ours.rows().values()} == {ours.number}


def test_shared_journal_records_what_nobody_holds(where: Place) -> None:
    process = Process(where, is_queued=True)
    process.record("f")
    process.journal.record([firing("g")], held=True)
    assert [process.rows()[name]["holder"] for name in "fg"] == [None, process.number]


def test_claim_takes_the_oldest_first(server_place: Place) -> None:
    ours = Process(server_place)
    ours.record(*"zyxwv", held=False)
    assert names(ours.journal.claim(2)) == ["z", "y"]
    assert names(ours.journal.claim(2, of_dead=False)) == ["x", "w"]


def test_claim_leaves_firings_that_are_done(ours: Process) -> None:
    ours.journal.record([firing("f", keep=True, run="stream/s")], held=False)
    with ours.store.short() as connection:
        assert ours.journal.finish(connection, firing("f", keep=True), keep=True)
    assert ours.journal.claim(10) == []


def test_claim_leaves_firings_of_rules_that_are_not_known(ours: Process) -> None:
    strange = [firing(f"a{n}", rule="strange") for n in range(5)]
    ours.journal.record([*strange, firing("b"), firing("c")], held=False)
    assert names(ours.journal.claim(2, knows=lambda rule: rule == "rule")) == ["b", "c"]
    assert {ours.rows()[f"a{n}"]["holder"] for n in range(5)} == {None}
    assert ours.journal.claim(9, without=["strange"]) == []
    assert len(ours.journal.claim(9)) == 5


def test_claims_at_the_same_time_share_the_firings(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    ours.record(*(f"f{n}" for n in range(40)), held=False)

    def claim_all(process: Process) -> list[str]:
        found: list[str] = []
        while taken := process.journal.claim(3):
            found += names(taken)
        return found

    claims = [in_thread(claim_all, process) for process in (ours, others)]
    found = [name for claim in claims for name in claim.result(PATIENCE_S)]
    # Who meets only rows that the other one has locked at this moment ends early.
    found += claim_all(ours)
    assert sorted(found) == sorted(f"f{n}" for n in range(40))


def test_claim_passes_over_firings_that_another_claim_has_locked(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    ours.record("a", "b", held=False)
    with others.store.short() as connection:
        connection.execute(
            select(pending_firings).where(pending_firings.c.firing == "a").with_for_update()
        )
        assert names(ours.journal.claim(2)) == ["b"]


# -- leases --------------------------------------------------------------------------------


def test_firings_of_a_process_that_lives_are_left_alone(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    others.record("f")
    assert ours.journal.claim(10) == []


def test_firings_of_a_process_that_has_ended_are_taken_over(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    others.record("f")
    ours.record("of ours")
    others.die()
    assert ours.journal.claim(10, of_dead=False) == []
    assert names(ours.journal.claim(10)) == ["f"]
    assert ours.rows()["f"]["holder"] == ours.number


def test_lease_whose_connection_is_lost_is_free_until_it_is_taken_again(
    server_place: Place,
) -> None:
    ours, others = Process(server_place), Process(server_place)
    others.record("a", "b")
    others.cut()
    assert names(ours.journal.claim(1)) == ["a"]
    assert others.store.lease.take() == others.number
    assert others.backend()
    assert ours.journal.claim(10) == []
    others.record("c")
    assert ours.journal.claim(10) == []


def test_lease_is_not_asked_for_while_nothing_is_wrong(server_place: Place) -> None:
    ours = Process(server_place)
    lease = ours.store.lease
    lease.take()
    pid = ours.backend()

    def asked_at() -> Any:
        with ours.store.short() as connection:  # a transaction sees one state
            asked = text("SELECT query_start FROM pg_stat_activity WHERE pid = :pid")
            return connection.scalar(asked, {"pid": pid})

    began = asked_at()
    assert began is not None
    for _ in range(10):
        lease.take()
    assert asked_at() == began


def test_lease_is_not_taken_while_its_firings_are_taken_over(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    others.record("f")
    others.cut()
    with ours.store.short() as connection:
        lease = ours.store.lease
        assert lease.dead(connection, [others.number, lease.number]) == {others.number}
        others.store.lease.take()
        assert not others.backend()
        # Nor do those who ask at the same time keep each other from seeing that it is dead.
        third = Process(server_place)
        assert names(third.journal.claim(10)) == ["f"]
    others.store.lease.take()
    assert others.backend()


def test_lease_in_memory_never_dies() -> None:
    with opened(None) as store, store.short() as connection:
        assert store.lease.dead(connection, [1, 2, store.lease.take()]) == set()


def test_leases_have_different_numbers(server_place: Place) -> None:
    numbers = {Process(server_place).number for _ in range(3)}
    assert len(numbers) == 3
    assert all(0 < number < 2**62 for number in numbers)


# -- intents -------------------------------------------------------------------------------


def test_intent_is_no_pending_firing(ours: Process) -> None:
    ours.journal.intend([firing("i")])
    assert ours.journal.pending() == []
    assert ours.journal.claim(10) == []
    assert ours.rows()["i"]["holder"] == ours.number


def test_intents_are_erased_with_a_commit(ours: Process) -> None:
    ours.journal.intend([firing("i"), firing("j")])
    with ours.store.short() as connection:
        assert ours.journal.erase_intents(connection, ["i", "j"])
    assert ours.rows() == {}
    assert ours.journal.activate_intents(["i", "j"]) == []


def test_intents_that_are_not_erased_because_the_commit_fails_are_there(ours: Process) -> None:
    ours.journal.intend([firing("i")])
    with pytest.raises(ZeroDivisionError), ours.store.short() as connection:
        assert ours.journal.erase_intents(connection, ["i"])
        raise ZeroDivisionError
    assert names(ours.journal.activate_intents(["i"])) == ["i"]


def test_intents_fall_due_once(ours: Process) -> None:
    ours.journal.intend([firing("i"), firing("j")])
    assert names(ours.journal.activate_intents(["i", "j", "k"])) == ["i", "j"]
    assert ours.journal.activate_intents(["i", "j", "k"]) == []
    assert names(ours.journal.pending()) == ["i", "j"]
    assert ours.journal.claim(10) == []


def test_intents_of_a_shared_journal_fall_due_for_everybody(where: Place) -> None:
    ours = Process(where, is_queued=True)
    ours.journal.intend([firing("i")])
    assert ours.journal.claim(10) == []
    ours.journal.activate_intents(["i"])
    assert names(ours.journal.claim(10)) == ["i"]


def test_intent_of_a_retry_leaves_a_firing_that_is_due(ours: Process) -> None:
    ours.journal.intend([firing("i")])
    ours.journal.intend([firing("i")])
    ours.journal.activate_intents(["i"])
    ours.journal.intend([firing("i")])
    assert names(ours.journal.pending()) == ["i"]


def test_more_intents_than_a_statement_takes_are_erased_and_fall_due(ours: Process) -> None:
    all_names = [f"i{n}" for n in range(2_500)]
    ours.journal.intend([firing(name) for name in all_names])
    with ours.store.short() as connection:
        assert ours.journal.erase_intents(connection, all_names[:1_500])
    assert len(ours.journal.activate_intents(all_names)) == 1_000


def test_intents_of_a_dead_process_fall_due_when_they_are_claimed(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    others.journal.intend([firing("i"), firing("j", rule="strange")])
    others.die()
    (taken,) = ours.journal.claim(10, knows=lambda rule: rule == "rule")
    assert (taken["firing"], taken["intent"]) == ("i", False)
    # The intent of a rule unknown here is due as well, for any process.
    assert (ours.rows()["j"]["intent"], ours.rows()["j"]["holder"]) == (False, None)


def test_commit_is_refused_when_an_intent_has_been_taken_over(server_place: Place) -> None:
    ours, others = Process(server_place), Process(server_place)
    ours.journal.intend([firing("i"), firing("j")])
    ours.cut()
    assert names(others.journal.claim(1)) == ["i"]
    with ours.store.short() as connection:
        assert not ours.journal.erase_intents(connection, ["i", "j"])


def test_intent_of_a_dead_process_becomes_that_of_who_does_the_work_again(
    server_place: Place,
) -> None:
    first, ours, others = (Process(server_place) for _ in range(3))
    first.journal.intend([firing("i")])
    first.die()
    ours.journal.intend([firing("i")])
    assert others.journal.claim(10) == []
    with ours.store.short() as connection:
        assert ours.journal.erase_intents(connection, ["i"])


# -- done ----------------------------------------------------------------------------------


def test_firing_stays_done_while_the_firing_that_triggered_it_is_pending(ours: Process) -> None:
    above, below = firing("run#1"), firing("run#1#2", keep=True, run="run#1")
    ours.journal.record([above, below], held=False)
    with ours.store.short() as connection:
        assert ours.journal.finish(connection, below, keep=False)
    assert ours.rows()["run#1#2"]["done"]
    assert ours.journal.record([below]) == set()  # a second try of the one above
    with ours.store.short() as connection:
        assert ours.journal.finish(connection, above, keep=False)
    assert ours.rows() == {}


def test_firing_is_deleted_when_the_firing_that_triggered_it_is_done(ours: Process) -> None:
    below = firing("run#1#2", keep=True, run="run#1")
    ours.journal.record([below], held=False)
    with ours.store.short() as connection:
        assert ours.journal.finish(connection, below, keep=False)
        assert not ours.journal.finish(connection, below, keep=False)
    assert ours.rows() == {}


def test_firing_and_the_one_that_triggered_it_that_end_at_once_leave_nothing(
    server_place: Place,
) -> None:
    ours, others = Process(server_place), Process(server_place)
    above, below = firing("run#1"), firing("run#1#2", keep=True, run="run#1")
    ours.journal.record([above, below], held=False)

    def end_above() -> None:
        with others.store.short() as connection:
            assert others.journal.finish(connection, above, keep=False)

    with ours.store.short() as connection:
        assert ours.journal.finish(connection, below, keep=False)
        ending = in_thread(end_above)
        until(lambda: any(backend.blockers for backend in ours.store.backends()))
    ending.result(PATIENCE_S)
    assert ours.rows() == {}
