"""Dead letters run again: once, with the letter's deletion, or not at all."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    DefinitionError,
    LockTimeout,
    RowNotFound,
    StoreError,
    TransactionStateError,
)
from activedb.store.journals import Journal
from tests.databases import PATIENCE_S, in_thread
from tests.firing.letters_program import define
from tests.histories.processes import Server, Worker
from tests.ledger import declare, event, open_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


class Switch:
    """Rule that fails until it is fixed, and counts its calls."""

    def __init__(self, ledger: Ledger, coupling: str, *, name: str = "rule", sets: bool = False):
        self.error: Exception | None = ValueError("no")
        self.seen: list[Occurrence] = []

        @ledger.db.rule(
            on=adb.event("E"), coupling=coupling, on_abort="rule", name=name, set_oriented=sets
        )
        def rule(t: Transaction, o: Occurrence) -> None:
            self.seen.append(o)
            ledger.write(t, f"{name} {o.params.get('n')}")
            if self.error is not None:
                raise self.error


def fail(ledger: Ledger, *numbers: int) -> None:
    """Signal E in one transaction, so many times; wait for what that triggers."""
    with ledger.db.transaction():
        for n in numbers:
            ledger.db.signal("E", n=n)
    ledger.db.wait_idle()


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential"])
def test_mended_rule_retried_takes_effect_once_and_the_letter_goes(
    ledger: Ledger, coupling: str
) -> None:
    rule = Switch(ledger, coupling)
    fail(ledger, 1)
    (letter,) = ledger.db.dead_letters.list()
    assert (letter.source, letter.kind, letter.error) == ("rule rule", "rule", "ValueError")
    rule.error = None
    result = ledger.db.dead_letters.retry(letter.source, letter.identity)
    assert (result.outcome, result.is_left, result.letter) == ("done", False, letter)
    assert ledger.lines() == ["rule 1"]
    assert rule.seen[0].timestamp == rule.seen[1].timestamp
    assert ledger.db.dead_letters.list() == []
    with pytest.raises(RowNotFound, match="there is no dead letter"):
        ledger.db.dead_letters.retry(letter.source, letter.identity)
    assert ledger.lines() == ["rule 1"]


def test_rule_that_fails_again_keeps_its_letter_with_the_new_reason(ledger: Ledger) -> None:
    rule = Switch(ledger, "sequential")
    fail(ledger, 1)
    (before,) = ledger.db.dead_letters.list()
    rule.error = LookupError("worse\0")
    (result,) = ledger.db.dead_letters.retry_all()
    (after,) = ledger.db.dead_letters.list()
    assert (result.outcome, result.is_left, result.letter) == ("failed", True, after)
    assert (after.identity, after.payload) == (before.identity, before.payload)
    assert (after.error, after.reason) == ("LookupError", r"rule rule failed: LookupError: worse\0")
    assert ledger.lines() == []
    rule.error = None
    assert [x.outcome for x in ledger.db.dead_letters.retry_all()] == ["done"]
    assert ledger.lines() == ["rule 1"]


def test_letters_of_one_fail_alone_and_progress_is_told(ledger: Ledger) -> None:
    mended, broken = Switch(ledger, "sequential", name="a"), Switch(ledger, "detached", name="b")
    fail(ledger, 1, 2)
    mended.error = None
    told: list[tuple[int, int]] = []
    results = ledger.db.dead_letters.retry_all(on_progress=lambda *at: told.append(at))
    assert [x.outcome for x in results] == ["done", "done", "failed", "failed"]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert sorted(ledger.lines()) == ["a 1", "a 2"]
    assert {x.source for x in ledger.db.dead_letters.list()} == {"rule b"}
    broken.error = None
    assert ledger.db.dead_letters.retry_all("rule a") == []
    assert [x.outcome for x in ledger.db.dead_letters.retry_all("rule b")] == ["done", "done"]


def test_letter_of_a_rule_that_is_not_defined_is_left_as_it_was(ledger: Ledger) -> None:
    Switch(ledger, "sequential")
    fail(ledger, 1)
    before = ledger.db.dead_letters.list()
    ledger.db.rules.delete("rule")
    (result,) = ledger.db.dead_letters.retry_all()
    assert (result.outcome, result.is_left) == ("undefined", True)
    assert "no rule 'rule' is defined here" in result.reason
    assert ledger.db.dead_letters.list() == before


def test_letter_whose_occurrence_could_not_be_kept_is_left(ledger: Ledger) -> None:
    Switch(ledger, "sequential").error = None
    with ledger.db.transaction():
        ledger.db.signal("E", n=object())
    ledger.db.wait_idle()
    (result,) = ledger.db.dead_letters.retry_all()
    assert (result.outcome, result.is_left) == ("unreadable", True)
    assert len(ledger.db.dead_letters.list()) == 1
    assert ledger.lines() == []


def test_letter_of_an_event_is_left_and_says_so(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("A"))
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    declare(ledger.db).feed([event("A", 1)])
    (letter,) = ledger.db.dead_letters.list(kind="event")
    assert ledger.db.dead_letters.list(kind="rule") == []
    assert ledger.db.dead_letters.list("input") == [letter]
    assert ledger.db.dead_letters.list("rule rule") == []
    (result,) = ledger.db.dead_letters.retry_all()
    assert (result.outcome, result.is_left, result.letter) == ("event", True, letter)
    assert ledger.db.dead_letters.list() == [letter]


def test_kind_that_there_is_not_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="event or rule, not 'rules'"):
        ledger.db.dead_letters.list(kind="rules")


def test_letters_inside_a_transaction_are_refused(ledger: Ledger) -> None:
    rule = Switch(ledger, "sequential")
    fail(ledger, 1)
    (letter,) = ledger.db.dead_letters.list()
    with ledger.db.transaction():
        with pytest.raises(TransactionStateError, match="outside of transactions"):
            ledger.db.dead_letters.retry_all()
        with pytest.raises(TransactionStateError, match="outside of transactions"):
            ledger.db.dead_letters.retry(letter.source, letter.identity)
    assert len(rule.seen) == 1
    assert ledger.db.dead_letters.list() == [letter]


def test_set_oriented_rule_is_given_its_set_again(ledger: Ledger) -> None:
    rule = Switch(ledger, "deferred", sets=True)
    fail(ledger, 1, 2)
    rule.error = None
    assert [x.outcome for x in ledger.db.dead_letters.retry_all()] == ["done"]
    given = [[o.params["n"] for o in seen.occurrences] for seen in rule.seen]  # type: ignore[attr-defined]
    assert given == [[1, 2], [1, 2]]


def test_rules_that_a_retried_rule_triggers_run_with_it(ledger: Ledger) -> None:
    rule = Switch(ledger, "sequential")
    for coupling in ("immediate", "deferred", "detached", "sequential"):

        @ledger.db.rule(on=adb.inserted(ledger.log), coupling=coupling, name=coupling)
        def next_one(t: Transaction, o: Occurrence) -> None:
            balance = t.get(ledger.accounts, 1, for_update=True)
            assert balance is not None
            t.update(ledger.accounts, 1, balance=balance["balance"] + 1)

    ledger.db.rules.disable("detached")  # or it runs for the try that fails, too
    fail(ledger, 1)
    ledger.db.rules.enable("detached")
    assert ledger.balances()[1] == 10
    rule.error = None
    assert [x.outcome for x in ledger.db.dead_letters.retry_all()] == ["done"]
    ledger.db.wait_idle()
    assert ledger.balances()[1] == 14
    assert ledger.pending() == []


def test_letter_that_is_being_run_is_not_run_by_another(ledger: Ledger) -> None:
    rule = Switch(ledger, "sequential")
    fail(ledger, 1)
    (letter,) = ledger.db.dead_letters.list()
    rule.error = None
    runs, goes_on = threading.Event(), threading.Event()

    def hold(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "held")
        runs.set()
        assert goes_on.wait(PATIENCE_S)

    ledger.db.rules.change("rule", action=hold)
    first = in_thread(ledger.db.dead_letters.retry_all)
    assert runs.wait(PATIENCE_S)
    assert ledger.db.dead_letters.retry(letter.source, letter.identity).outcome == "elsewhere"
    goes_on.set()
    assert [x.outcome for x in first.result(PATIENCE_S)] == ["done"]
    assert ledger.lines() == ["held"]


def test_pending_firings_are_those_not_done_the_oldest_first(ledger: Ledger) -> None:
    goes_on = threading.Event()

    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        assert goes_on.wait(PATIENCE_S)

    assert ledger.db.admin.pending_firings() == []
    for n in (2, 1):
        ledger.db.signal("E", timestamp=n, n=n)
    pending = ledger.db.admin.pending_firings()
    goes_on.set()
    ledger.db.wait_idle()
    assert [(x.rule, x.occurrence.params["n"]) for x in pending] == [("rule", 1), ("rule", 2)]
    assert all(x.firing.startswith(x.run) for x in pending)
    assert ledger.db.admin.pending_firings() == []


def move_to_dead_letters(url: str, count: int) -> None:
    """Leave so many letters of the program's rule in the database."""
    with adb.connect(url) as db:
        ledger = open_ledger(db, {1: 0})
        define(ledger, works=False)
        fail(ledger, *range(count))
        assert len(db.dead_letters.list()) == count


@pytest.mark.crash
@pytest.mark.parametrize("point", ["before flush", "inside flush", "before commit", "after commit"])
def test_letter_of_a_process_killed_at_a_point_is_run_once(
    database_url: str, tmp_path: Path, point: str
) -> None:
    move_to_dead_letters(database_url, 1)
    task = {"url": database_url, "point": point}
    with Worker("tests.firing.letters_program", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(database_url).wait_idle()
    has_committed = point == "after commit"
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        define(ledger)
        assert ledger.lines() == (["event 0"] if has_committed else [])
        assert [x.outcome for x in db.dead_letters.retry_all()] == (
            [] if has_committed else ["done"]
        )
        assert ledger.balances() == {1: 1}
        assert ledger.lines() == ["event 0"]
        assert db.dead_letters.list() == []


@pytest.mark.crash
def test_two_processes_that_retry_at_once_run_each_letter_once(
    database_url: str, tmp_path: Path, scale: int
) -> None:
    count = 40 * scale
    move_to_dead_letters(database_url, count)
    task = {"url": database_url, "point": None}
    logs = [tmp_path / "1", tmp_path / "2"]
    with (
        Worker("tests.firing.letters_program", task, logs[0]) as one,
        Worker("tests.firing.letters_program", task, logs[1]) as two,
    ):
        for worker in (one, two):
            worker.wait_ready()
        for worker in (one, two):
            worker.go()
        for worker in (one, two):
            worker.finish()
    outcomes = [line for log in logs for line in log.read_text().splitlines()]
    assert set(outcomes) <= {"done", "elsewhere"}
    assert outcomes.count("done") == count
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        assert ledger.balances() == {1: count}
        assert sorted(ledger.lines()) == sorted(f"event {n}" for n in range(count))
        assert db.dead_letters.list() == []


# -- errors that say nothing, and letters that cannot be written at once --------------------------


class UnspeakableError(Exception):
    """Error whose message cannot be read."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


LONG_NAMED = type("Long" * 100, (Exception,), {})
COUPLINGS = ["immediate", "deferred", "detached", "sequential", "causal"]


@pytest.mark.parametrize("error", [UnspeakableError(), LONG_NAMED("why")], ids=["mute", "long"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_rule_that_raises_an_odd_error_ends_as_a_letter(
    ledger: Ledger, coupling: str, error: Exception
) -> None:
    rule = Switch(ledger, coupling)
    rule.error = error
    fail(ledger, 1, 2)
    letters = ledger.db.dead_letters.list()
    assert len(letters) == len({o.params["n"] for o in rule.seen}) == 2
    name = type(error).__name__
    for letter in letters:
        assert letter.error[:100] == name[:100]
        assert f"rule rule failed: {name}: " in letter.reason
    assert ledger.db.admin.pending_firings() == []


def test_exclusive_rule_that_raises_an_odd_error_ends_as_a_letter(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("E"), coupling="exclusive", name="rule")
    def rule(t: Transaction, o: Occurrence) -> None:
        raise UnspeakableError

    with pytest.raises(ZeroDivisionError), ledger.db.transaction():
        ledger.db.signal("E")
        raise ZeroDivisionError
    ledger.db.wait_idle()
    (letter,) = ledger.db.dead_letters.list()
    assert letter.error == "UnspeakableError"


def test_quarantine_after_odd_errors(ledger: Ledger) -> None:
    rule = Switch(ledger, "detached")
    rule.error = UnspeakableError()
    for n in range(ledger.db.settings.quarantine_after):
        fail(ledger, n)
    ledger.db.wait_idle()
    assert "its message cannot be read" in str(ledger.db.rules["rule"].quarantine)


@pytest.mark.parametrize("coupling", ["detached", "sequential"])
def test_longest_name_of_a_rule_has_room_in_a_letter(ledger: Ledger, coupling: str) -> None:
    def rule(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    with pytest.raises(DefinitionError, match="a name has at most 195 characters"):
        ledger.db.rules.create(rule, on=adb.event("E"), coupling=coupling, name="n" * 196)
    ledger.db.rules.create(rule, on=adb.event("E"), coupling=coupling, name="n" * 195)
    fail(ledger, 1)
    assert [letter.source for letter in ledger.db.dead_letters.list()] == ["rule " + "n" * 195]


@pytest.mark.parametrize("problem", [StoreError("full"), LockTimeout("in use")], ids=repr)
@pytest.mark.parametrize("coupling", ["detached", "sequential", "causal"])
def test_letter_that_cannot_be_written_is_written_later_and_the_rule_not_run_again(
    where: Place, coupling: str, problem: ActiveDBError, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(where.open(restart_pause_ms=1, restart_pause_ms_max=2, restarts_max=2))
    rule = Switch(ledger, coupling)
    left = [problem] * 5
    write = Journal.move_to_dead_letters

    def refused(*given: Any, **options: Any) -> bool:
        if left:
            raise left.pop()
        return write(*given, **options)

    monkeypatch.setattr(Journal, "move_to_dead_letters", refused)
    fail(ledger, 1)
    (letter,) = ledger.db.dead_letters.list()
    runs = 2 if coupling == "causal" else 1  # beside the transaction, and after its commit
    assert (letter.error, len(rule.seen), left) == ("ValueError", runs, [])
    assert ledger.db.admin.pending_firings() == []
    assert ledger.lines() == []
