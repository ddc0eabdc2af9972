"""Firings of work that is tried again: told apart by their place and their occurrence."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import SerializationConflict
from tests.databases import PATIENCE_S
from tests.engine.ledger import declare, event, open_ledger
from tests.histories.processes import Server, Worker

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from tests.engine.ledger import Ledger


def log_changes(ledger: Ledger, coupling: str = "detached") -> None:
    """Define a rule that writes down each change of a balance."""

    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling=coupling, name="log")
    def log(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{o.old['id']}: {o.old['balance']} to {o.new['balance']}")


def test_committed_change_of_a_later_try_has_its_detached_firing(ledger: Ledger) -> None:
    log_changes(ledger)
    values = iter([100, 200])

    def work(t: Transaction) -> None:
        value = next(values)
        t.update(ledger.accounts, 1, balance=value)
        if value == 100:
            raise SerializationConflict("as told")

    ledger.db.run(work)
    ledger.db.join()
    assert ledger.balances()[1] == 200
    assert sorted(ledger.lines()) == ["1: 10 to 100", "1: 10 to 200"]


@pytest.mark.parametrize("explicit", [False, True])
def test_times_tell_tries_apart_only_if_somebody_has_said_them(
    ledger: Ledger, explicit: bool
) -> None:
    ledger.db.rule(on=adb.seq(adb.event("A"), adb.event("B")), coupling="detached", name="pair")(
        lambda t, o: ledger.write(t, "pair")
    )
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        for name, second in (("A", 1), ("B", 2)):
            when = {"timestamp": float(second + 10 * len(tries))} if explicit else {}
            ledger.db.signal(name, **when)
        if len(tries) == 1:
            raise SerializationConflict("as told")

    ledger.db.run(work)
    ledger.db.join()
    assert ledger.lines() == ["pair"] * (2 if explicit else 1)


@pytest.mark.parametrize("fails", [False, True])
def test_exclusive_rule_runs_for_each_occurrence_of_any_try_if_the_work_fails(
    ledger: Ledger, fails: bool
) -> None:
    log_changes(ledger, "exclusive")
    values = [100, 200, 200]
    tries: list[int] = []

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=values[len(tries)])
        tries.append(1)
        if fails or len(tries) < len(values):
            raise SerializationConflict("as told")

    ledger.db.settings.__dict__["retries_max"] = len(values) - 1
    if fails:
        with pytest.raises(SerializationConflict):
            ledger.db.run(work)
    else:
        ledger.db.run(work)
    ledger.db.join()
    assert len(tries) == len(values)
    assert sorted(ledger.lines()) == (["1: 10 to 100", "1: 10 to 200"] if fails else [])
    assert ledger.pending() == []


@pytest.mark.parametrize("values", [(100, 200), (100, 100)])
def test_part_of_a_stream_that_is_done_again_fires_for_what_it_does_then(
    ledger: Ledger, values: tuple[int, int]
) -> None:
    log_changes(ledger)
    given = iter(values)

    @ledger.db.rule(on=adb.event("A"))
    def set_balance(t: Transaction, o: Occurrence) -> None:
        t.update(ledger.accounts, 1, balance=next(given))

    @ledger.db.rule(on=adb.event("B"))
    def stop(t: Transaction, o: Occurrence) -> None:
        if failures:
            failures.pop()
            raise SerializationConflict("as told")

    failures = [1]
    ledger.db.feed(declare(ledger.db), [event("A", 1), event("B", 2)])
    ledger.db.join()
    assert ledger.balances()[1] == values[1]
    assert sorted(ledger.lines()) == [f"1: 10 to {value}" for value in sorted(set(values))]
    assert ledger.pending() == []


@pytest.mark.parametrize("number", range(5))
def test_every_committed_change_of_random_tries_has_its_detached_firing_once(
    ledger: Ledger, number: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log_changes(ledger)
    fresh = iter(range(1_000, 9_999))
    committed: list[str] = []

    def work(t: Transaction) -> list[str]:
        made = []
        for key in chance.sample((1, 2), chance.randint(1, 2)):
            s = t.subtransaction() if chance.random() < 0.5 else None
            try:
                if s is not None:
                    s.__enter__()
                inside = t if s is None else s
                row = inside.get(ledger.accounts, key)
                assert row is not None
                value = chance.choice([7, next(fresh)])
                if row["balance"] != value:
                    inside.update(ledger.accounts, key, balance=value)
                    made.append(f"{key}: {row['balance']} to {value}")
            finally:
                if s is not None:
                    s.__exit__(None, None, None)
            if chance.random() < 0.4:
                raise SerializationConflict("as told")
        return made

    for _ in range(15):
        try:
            committed += ledger.db.run(work)
        except SerializationConflict:
            continue
    ledger.db.join()
    counts = Counter(ledger.lines())
    missing = Counter(committed) - counts
    assert not missing
    unique = [line for line in counts if not line.endswith(" 7")]  # values that no other try has
    assert {counts[line] for line in unique} <= {1}
    assert ledger.pending() == []
    assert ledger.letters() == []


@pytest.mark.crash
@pytest.mark.parametrize("point", ["before flush", "before commit", "after commit"])
@pytest.mark.parametrize("commit", [1, 2, 3, 4])
def test_committed_changes_have_their_firings_once_though_the_process_is_killed(
    database_url: str, tmp_path: Path, point: str, commit: int
) -> None:
    task = {"url": database_url, "point": point, "commit": commit}
    with Worker("tests.engine.test_tries", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) in (-signal.SIGKILL, 0)
    Server(database_url).wait_idle()
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        log_changes(ledger)
        db.recover()
        db.join()
        counts = Counter(ledger.lines())
        value = ledger.balances()[1]
        while value != 10:  # back over the committed changes
            line = next(each for each in counts if each.endswith(f" to {value}"))
            assert counts[line] == 1
            value = int(line.split()[1])
        assert set(counts.values()) <= {1}
        assert ledger.pending() == []
        assert ledger.letters() == []


def main(given: dict[str, Any]) -> None:
    """Change a balance in tries whose values differ; be killed at a point of some commit."""
    left, fresh = [given["commit"]], iter(range(100, 999))
    tries: list[int] = []

    def trigger(point: str) -> None:
        if point == given["point"]:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=next(fresh))
        tries.append(1)
        if len(tries) % 2:
            raise SerializationConflict("as told")

    with adb.connect(given["url"]) as db:
        ledger = open_ledger(db, {1: 10})
        log_changes(ledger)
        print("ready", flush=True)
        sys.stdin.readline()
        db._store.trigger = trigger  # type: ignore[method-assign]
        for _ in range(3):
            db.run(work)
        db.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
