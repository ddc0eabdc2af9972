"""State of detectors survives: each match fires once, however often the process is killed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.store.system import detector_states, partials
from tests.databases import PATIENCE_S, in_thread
from tests.firing.remembering import do
from tests.histories.processes import Server, Worker
from tests.ledger import at, declare, event, open_ledger, read

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

POINTS = ("before flush", "inside flush", "before commit", "after commit")


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[str]]:
    """Return what is written when no process is killed."""
    lines = {of: do("memory://", of) for of in ("stream", "signals")}
    for of, found in lines.items():
        names = {line.split()[0] for line in found}
        assert names == {"plain", "chronicle", "skips", "silence", "delay", "reading"}, of
    return lines


@pytest.mark.parametrize("of", ["stream", "signals"])
def test_work_on_postgres_gives_what_it_gives_in_memory(
    database_url: str, undisturbed: dict[str, list[str]], of: str
) -> None:
    assert do(database_url, of) == undisturbed[of]


@pytest.mark.crash
@pytest.mark.parametrize("of", ["stream", "signals"])
@pytest.mark.parametrize("point", POINTS)
def test_each_match_fires_once_when_the_process_is_killed_again_and_again(
    database_url: str,
    tmp_path: Path,
    undisturbed: dict[str, list[str]],
    of: str,
    point: str,
) -> None:
    kills = 0
    for number, count in enumerate((9, 14)):
        task = {"url": database_url, "of": of, "point": point, "count": count}
        with Worker("tests.firing.remembering", task, tmp_path / f"log{number}") as worker:
            worker.wait_ready()
            worker.go()
            kills += worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        Server(database_url).wait_idle()
    assert kills >= 1
    assert do(database_url, of) == undisturbed[of]


# -- signals and data changes, step by step --------------------------------------------------


def open_again(where: Place, pattern: adb.Expression, **options: object) -> Ledger:
    """A new process, as far as the database can tell, with a rule on a pattern."""
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    for db in where._opened:
        db.close()
    ledger = open_ledger(where.open())

    @ledger.db.rule(on=pattern, name="match", **options)  # type: ignore[arg-type]
    def match(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "".join(str(c.params["n"]) for c in o.constituents))

    return ledger


PAIR = adb.seq(adb.event("A"), adb.event("B")).within(100)


@pytest.mark.parametrize("context", ["unrestricted", "chronicle", "recent"])
def test_half_a_match_is_completed_by_the_next_process(where: Place, context: str) -> None:
    pattern = PAIR.context(context)
    ledger = open_again(where, pattern)
    ledger.db.signal("A", timestamp=1, n=1)
    ledger.db.signal("A", timestamp=2, n=2)
    ledger = open_again(where, pattern)
    assert ledger.db.rules["match"].partials == 2
    ledger.db.signal("B", timestamp=3, n=3)
    expected = {"unrestricted": ["13", "23"], "chronicle": ["13"], "recent": ["23"]}[context]
    assert ledger.lines() == expected
    ledger = open_again(where, pattern)
    ledger.db.signal("B", timestamp=4, n=4)
    more = {"unrestricted": ["14", "24"], "chronicle": ["24"], "recent": ["24"]}[context]
    assert ledger.lines() == expected + more


@pytest.mark.parametrize("context", ["unrestricted", "chronicle"])
def test_what_an_aborted_transaction_raised_is_not_there_after_a_restart(
    where: Place, context: str
) -> None:
    pattern = PAIR.context(context)
    ledger = open_again(where, pattern)
    ledger.db.signal("A", timestamp=1, n=1)
    with ledger.db.transaction() as t:
        ledger.db.signal("A", timestamp=2, n=2)
        with t.subtransaction() as s:
            ledger.db.signal("A", timestamp=3, n=3)
            s.abort()
    with ledger.db.transaction() as t:
        ledger.db.signal("B", timestamp=4, n=4)
        t.abort()
    ledger = open_again(where, pattern)
    assert ledger.db.rules["match"].partials == 2
    ledger.db.signal("B", timestamp=5, n=5)
    assert ledger.lines() == (["15"] if context == "chronicle" else ["15", "25"])


def test_half_a_match_of_row_changes_is_completed_by_the_next_process(where: Place) -> None:
    def pattern(ledger: Ledger) -> adb.Expression:
        return adb.seq(adb.updated(ledger.accounts, "balance", alias="u"), adb.event("E"))

    if where.is_memory:
        pytest.skip("memory keeps nothing")

    def again() -> Ledger:
        for db in where._opened:
            db.close()
        ledger = open_ledger(where.open())

        @ledger.db.rule(on=pattern(ledger), name="both")
        def both(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"{o.parts['u'].old['balance']} {o.parts['u'].new['balance']}")

        return ledger

    ledger = again()
    with ledger.db.transaction() as t:
        t.insert(ledger.accounts, {"id": 1, "balance": 10})
        t.update(ledger.accounts, 1, balance=11)
    ledger = again()
    ledger.db.signal("E")
    assert ledger.lines() == ["10 11"]


def test_partial_matches_of_a_living_process_stay_its_own(where: Place) -> None:
    ledger = open_again(where, PAIR)
    ledger.db.signal("A", timestamp=1, n=1)
    other = where.open()
    other.rule(on=PAIR, name="match")(lambda t, o: ledger.write(t, "stolen"))
    other.recover()
    other.signal("B", timestamp=2, n=2)
    assert ledger.lines() == []
    assert other.rules["match"].partials == 0


@pytest.mark.parametrize("context", ["unrestricted", "chronicle"])
def test_partial_matches_of_a_process_that_ended_later_are_taken_over_by_recover(
    where: Place, context: str
) -> None:
    ledger = open_again(where, PAIR.context(context))
    ledger.db.signal("A", timestamp=1, n=1)
    other = open_ledger(where.open())
    other.db.rule(on=PAIR.context(context), name="match")(lambda t, o: other.write(t, "taken over"))
    ledger.db.close()
    other.db.recover()
    other.db.recover()
    other.db.signal("B", timestamp=2, n=2)
    assert other.lines() == ["taken over"]


@pytest.mark.parametrize("context", ["unrestricted", "chronicle"])
@pytest.mark.parametrize("change", ["disable", "another event", "delete"])
def test_rule_that_is_changed_begins_anew_after_a_restart_too(
    where: Place, change: str, context: str
) -> None:
    pattern = PAIR.context(context)
    ledger = open_again(where, pattern)
    ledger.db.signal("A", timestamp=1, n=1)
    if change == "disable":
        ledger.db.rules.disable("match")
        ledger.db.rules.enable("match")
    elif change == "delete":
        ledger.db.rules.delete("match")
    else:
        ledger.db.rules.change("match", on=adb.event("C"))
    assert read(ledger.db, partials) == []
    assert read(ledger.db, detector_states) == []
    ledger = open_again(where, pattern)
    ledger.db.signal("B", timestamp=2, n=2)
    assert ledger.lines() == []


def test_state_of_another_definition_is_not_taken_up(where: Place) -> None:
    ledger = open_again(where, PAIR.context("chronicle"))
    ledger.db.signal("A", timestamp=1, n=1)
    again = adb.seq(adb.event("A"), adb.event("B")).within(99).context("chronicle")
    ledger = open_again(where, again)
    assert ledger.db.rules["match"].partials == 0
    ledger.db.signal("B", timestamp=2, n=2)
    assert ledger.lines() == []


def test_expired_partial_matches_leave_the_database(where: Place) -> None:
    ledger = open_again(where, PAIR)
    for n in range(1, 600, 10):
        ledger.db.signal("A", timestamp=n, n=n)
    kept = [row["us"] // 1_000_000 for row in read(ledger.db, partials)]
    assert kept[-1] == 591
    assert kept[0] >= 591 - 100 - 100 // 4 - 10


def test_signal_with_a_value_that_cannot_be_kept_is_counted_and_still_matched(
    where: Place,
) -> None:
    ledger = open_again(where, PAIR)
    ledger.db.signal("A", timestamp=1, n=1, what=object())
    assert ledger.db.admin.counters()["partials_not_durable"] == 1
    ledger.db.signal("B", timestamp=2, n=2)
    assert ledger.lines() == ["12"]


def test_state_with_a_value_that_cannot_be_kept_leaves_no_older_one_behind(where: Place) -> None:
    """An older state would not know what was used up since, and its match would fire again."""
    pattern = PAIR.context("chronicle")
    ledger = open_again(where, pattern)
    ledger.db.signal("A", timestamp=1, n=1)
    ledger.db.signal("A", timestamp=2, n=2, what=object())
    ledger.db.signal("B", timestamp=3, n=3)
    assert ledger.lines() == ["13"]
    ledger = open_again(where, pattern)
    assert ledger.db.rules["match"].partials == 0
    ledger.db.signal("B", timestamp=4, n=4)
    assert ledger.lines() == ["13"]
    ledger.db.signal("A", timestamp=5, n=5)
    ledger = open_again(where, pattern)
    ledger.db.signal("B", timestamp=6, n=6)
    assert ledger.lines() == ["13", "56"]


def test_rules_that_keep_nothing_write_nothing(where: Place) -> None:
    ledger = open_again(where, adb.event("A") | adb.event("B"))
    ledger.db.signal("A", timestamp=1, n=1)
    assert read(ledger.db, partials) == []
    assert read(ledger.db, detector_states) == []
    assert ledger.lines() == ["1"] or ledger.lines() == [""]


# -- in parallel -----------------------------------------------------------------------------


def test_parallel_transactions_use_up_each_event_once(where: Place) -> None:
    """Threads raise A and B, and some abort: every B that counts has taken an A of its own."""
    ledger = open_ledger(where.open(retries_max=50))
    db = ledger.db

    @db.rule(on=adb.seq(adb.event("A"), adb.event("B")).context("chronicle"), name="match")
    def match(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, " ".join(str(c.params["n"]) for c in o.constituents))

    class Undo(Exception):
        pass

    def work(thread: int) -> int:
        committed = 0
        for number in range(12):
            n = 100 * thread + number

            def raise_some(t: Transaction, n: int = n, number: int = number) -> None:
                db.signal("A", n=n)
                if number % 3:
                    db.signal("B", n=n + 50)
                if number % 4 == 1:
                    raise Undo

            try:
                db.run(raise_some)
                committed += bool(number % 3)
            except Undo:
                pass
        return committed

    futures = [in_thread(work, thread) for thread in range(4)]
    raised = sum(future.result(PATIENCE_S) for future in futures)
    pairs = [line.split() for line in ledger.lines()]
    for place in (0, 1):
        used = [pair[place] for pair in pairs]
        assert len(set(used)) == len(used)
    assert all(int(n) % 4 != 1 for n, _ in pairs)
    # Its own A is before each B, unless the clock did not move in between.
    assert 0 < len(pairs) <= raised
    db.close()


# -- streams, step by step -------------------------------------------------------------------


def test_rule_in_a_context_goes_on_where_the_stream_stopped(where: Place) -> None:
    def again() -> Ledger:
        return open_again(where, PAIR.context("chronicle"))

    ledger = again()
    declare(ledger.db).feed([event("A", s, n=s) for s in (1, 2, 3)], punctuation=at(10))
    ledger = again()
    declare(ledger.db).feed([event("B", 11, n=11)], punctuation=at(20))
    ledger = again()
    stream = declare(ledger.db)
    stream.feed([event("B", 21, n=21), event("A", 40, n=40)], punctuation=at(30))
    assert ledger.lines() == ["111", "221"]
    (row,) = read(ledger.db, detector_states)
    assert (row["rule"], row["stream"], row["holder"]) == ("match", "input", 0)


def test_state_that_has_not_changed_is_not_written_again(where: Place) -> None:
    ledger = open_again(where, PAIR.context("chronicle"))
    stream = declare(ledger.db)
    written: list[str] = []
    rows = ledger.db._detector_rows
    write = rows.write_of_stream

    def note(connection: Any, stream: str, states: Any) -> None:
        written.extend(states)
        write(connection, stream, states)

    rows.write_of_stream = note  # type: ignore[method-assign]
    stream.feed([event("A", 1, n=1)], punctuation=at(2))
    assert written == ["match"]
    stream.feed([event("C", 3, n=3)], punctuation=at(4))
    assert written == ["match"]
    stream.feed([event("B", 5, n=5)], punctuation=at(6))
    assert written == ["match"] * 2
